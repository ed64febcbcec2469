locals {
  service_account = "kip"

  # The chart's Job publishes the boot image with a role of its own.
  publisher = "kip-boot-image"

  # In Kubernetes' words. EC2 calls amd64 x86_64.
  arch = contains(data.aws_ec2_instance_type.cells.supported_architectures, "arm64") ? "arm64" : "amd64"

  features = [
    for statement in jsondecode(file("${path.module}/../aws/kip-policy-features.json")).Statement :
    statement if contains(var.kip_features, statement.Sid)
  ]

  # Values of the chart deploy/helm/kip.
  values = {
    image = {
      repository = var.image_repository
      tag        = var.image_tag
    }

    serviceAccount = {
      name        = local.service_account
      annotations = { "eks.amazonaws.com/role-arn" = aws_iam_role.kip.arn }
    }

    # Kip learns from the metadata of its instance that it is inside of the VPC. The workers of EKS answer programs of their own
    # network only (hop limit 1 with Amazon Linux 2023), so that pods cannot take the worker's role.
    hostNetwork = true

    # docs/serving-certificates.md: approve Kip's request for kubectl logs and exec.
    servingCertificate = {
      source     = "csr"
      signerName = "beta.eks.amazonaws.com/app-serving"
    }

    bootImage = {
      publish     = var.publish_boot_image
      archs       = [local.arch]
      annotations = var.publish_boot_image ? { "eks.amazonaws.com/role-arn" = aws_iam_role.boot_image[0].arn } : {}
    }

    persistence = { storageClassName = local.store }

    # Before Kip goes, all pods on its nodes are deleted and all cells end: nobody else would end them.
    uninstall = { force = true }

    config = {
      cloud = {
        aws = {
          region      = var.region
          subnetID    = aws_subnet.cells[*].id
          clusterName = var.cluster_name
        }
      }
      cells = {
        defaultInstanceType = var.cell_default_instance_type
        bootImageSpec       = { name = var.boot_image_name }
        extraSecurityGroups = [aws_security_group.cells.id]
        tags                = var.tags
      }
    }
  }

  # A class that no StorageClass has: the claim takes the disk below and no other.
  store = "kip-store"
}

resource "aws_iam_role" "kip" {
  name = "${var.cluster_name}-kip"
  tags = var.tags

  assume_role_policy = local.trust.kip
}

# docs/aws-permissions.md, from the same source.
resource "aws_iam_policy" "kip" {
  name   = "${var.cluster_name}-kip"
  policy = file("${path.module}/../aws/kip-policy.json")
  tags   = var.tags
}

resource "aws_iam_role_policy_attachment" "kip" {
  role       = aws_iam_role.kip.name
  policy_arn = aws_iam_policy.kip.arn
}

resource "aws_iam_policy" "kip_features" {
  count = length(var.kip_features) > 0 ? 1 : 0

  name   = "${var.cluster_name}-kip-features"
  policy = jsonencode({ Version = "2012-10-17", Statement = local.features })
  tags   = var.tags

  lifecycle {
    precondition {
      condition     = length(local.features) == length(distinct(var.kip_features))
      error_message = "kip_features: deploy/aws/kip-policy-features.json has no statement ${join(", ", setsubtract(var.kip_features, local.features[*].Sid))}. Want Sids of it, such as KipMakesTheSpotRole."
    }
  }
}

resource "aws_iam_role_policy_attachment" "kip_features" {
  count = length(aws_iam_policy.kip_features)

  role       = aws_iam_role.kip.name
  policy_arn = aws_iam_policy.kip_features[count.index].arn
}

# Kip's own role may not publish: whoever may can tag any snapshot of the account, and then delete it.
resource "aws_iam_role" "boot_image" {
  count = var.publish_boot_image ? 1 : 0

  name = "${var.cluster_name}-kip-boot-image"
  tags = var.tags

  assume_role_policy = local.trust.boot_image
}

# docs/boot-image.md, without the statements for a customer managed key.
resource "aws_iam_role_policy" "boot_image" {
  count = length(aws_iam_role.boot_image)

  name = "boot-image"
  role = aws_iam_role.boot_image[count.index].name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      for statement in jsondecode(file("${path.module}/../aws/boot-image-policy.json")).Statement :
      statement if !contains(["GrantsTheKey", "UsesTheKey"], statement.Sid)
    ]
  })
}

# The disk of Kip's store is Terraform's own. The chart keeps the claim of a store when it is uninstalled, and a disk that the
# driver made for that claim would outlive the cluster.
resource "aws_ebs_volume" "store" {
  availability_zone = aws_subnet.nodes[0].availability_zone
  size              = 4
  type              = "gp3"
  encrypted         = true

  tags = merge(var.tags, {
    Name                      = "${var.cluster_name}-kip-store"
    "ebs.csi.aws.com/cluster" = "true" # which rights of the driver may ask for
  })

  # Another zone would replace the disk, and Kip would lose its store. The worker's subnet keeps its zone, too; if it is replaced and
  # comes to another zone, the worker's precondition fails.
  lifecycle {
    ignore_changes = [availability_zone]
  }
}

resource "kubernetes_namespace_v1" "kip" {
  metadata {
    name = var.namespace
  }

  depends_on = [aws_eks_node_group.worker]
}

resource "kubernetes_persistent_volume_v1" "store" {
  metadata {
    name = "${var.cluster_name}-kip-store"
  }

  spec {
    capacity                         = { storage = "4Gi" }
    access_modes                     = ["ReadWriteOnce"]
    persistent_volume_reclaim_policy = "Retain"
    storage_class_name               = local.store

    persistent_volume_source {
      csi {
        driver        = "ebs.csi.aws.com"
        volume_handle = aws_ebs_volume.store.id
        fs_type       = "ext4"
      }
    }

    node_affinity {
      required {
        node_selector_term {
          match_expressions {
            key      = "topology.kubernetes.io/zone"
            operator = "In"
            values   = [aws_ebs_volume.store.availability_zone]
          }
        }
      }
    }
  }

  # While the disk is attached, the driver holds this object. So it goes after the release and before the driver.
  depends_on = [aws_eks_addon.ebs_driver]
}

# The claim that Kip's StatefulSet looks for.
resource "kubernetes_persistent_volume_claim_v1" "store" {
  metadata {
    name      = "data-kip-0"
    namespace = kubernetes_namespace_v1.kip.metadata[0].name
  }

  spec {
    access_modes       = ["ReadWriteOnce"]
    storage_class_name = local.store
    volume_name        = kubernetes_persistent_volume_v1.store.metadata[0].name

    resources {
      requests = { storage = "4Gi" }
    }
  }
}

resource "helm_release" "kip" {
  name      = "kip"
  namespace = kubernetes_namespace_v1.kip.metadata[0].name
  chart     = "${path.module}/../helm/kip"
  values    = [yamlencode(local.values)]

  # The Job that ends all cells may take 15 minutes.
  timeout = 1200

  # Terraform destroys in the reverse order. All that cells use, and all that Kip needs to end them, must go after the release:
  # else cells run on without Kip, and their interfaces keep subnets and groups from being deleted.
  depends_on = [
    aws_eks_addon.ebs_driver,
    aws_iam_role_policy_attachment.kip,
    aws_iam_role_policy_attachment.kip_features,
    aws_route_table_association.cells,
    aws_vpc_security_group_ingress_rule.cells_to_cluster,
    aws_efs_mount_target.cells,
    aws_vpc_security_group_ingress_rule.cells_to_efs,
    aws_vpc_security_group_ingress_rule.worker_to_efs,
    kubernetes_persistent_volume_claim_v1.store,
    aws_iam_role_policy.boot_image,
  ]
}
