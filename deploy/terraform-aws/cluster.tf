data "aws_partition" "current" {}

locals {
  aws_policy = "arn:${data.aws_partition.current.partition}:iam::aws:policy"

  # Who issues the tokens of the cluster's service accounts, by which they take roles (IRSA).
  issuer = replace(aws_eks_cluster.kip.identity[0].oidc[0].issuer, "https://", "")

  # The trust policies of these roles, by their names here: one service account of the cluster may take each.
  trust = {
    for role, account in {
      boot_image = "${var.namespace}:${local.publisher}"
      ebs_driver = "kube-system:ebs-csi-controller-sa"
      kip        = "${var.namespace}:${local.service_account}"
    } :
    role => jsonencode({
      Version = "2012-10-17"
      Statement = [{
        Effect    = "Allow"
        Principal = { Federated = aws_iam_openid_connect_provider.cluster.arn }
        Action    = "sts:AssumeRoleWithWebIdentity"
        Condition = {
          StringEquals = {
            "${local.issuer}:aud" = "sts.amazonaws.com"
            "${local.issuer}:sub" = "system:serviceaccount:${account}"
          }
        }
      }]
    })
  }
}

resource "aws_iam_role" "cluster" {
  name = "${var.cluster_name}-cluster"
  tags = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
    }]
  })
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "${local.aws_policy}/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "kip" {
  name     = var.cluster_name
  role_arn = aws_iam_role.cluster.arn
  version  = var.kubernetes_version
  tags     = var.tags

  # Whoever runs Terraform is the cluster's admin.
  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  vpc_config {
    subnet_ids              = aws_subnet.nodes[*].id
    endpoint_private_access = true
    endpoint_public_access  = true
    public_access_cidrs     = var.api_cidrs
  }

  # Without its role EKS cannot remove the interfaces and the group that it made.
  depends_on = [aws_iam_role_policy_attachment.cluster]
}

resource "aws_iam_openid_connect_provider" "cluster" {
  url            = aws_eks_cluster.kip.identity[0].oidc[0].issuer
  client_id_list = ["sts.amazonaws.com"]
  tags           = var.tags
}

resource "aws_iam_role" "worker" {
  name = "${var.cluster_name}-worker"
  tags = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "worker" {
  for_each = toset(["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly"])

  role       = aws_iam_role.worker.name
  policy_arn = "${local.aws_policy}/${each.value}"
}

# One worker, in one zone: the disk of Kip's store is in that zone, too.
resource "aws_eks_node_group" "worker" {
  cluster_name    = aws_eks_cluster.kip.name
  node_group_name = "${var.cluster_name}-worker"
  node_role_arn   = aws_iam_role.worker.arn
  subnet_ids      = [aws_subnet.nodes[0].id]
  ami_type        = "AL2023_x86_64_STANDARD"
  instance_types  = [var.worker_instance_type]
  disk_size       = var.worker_disk_size
  tags            = var.tags

  scaling_config {
    min_size     = 1
    max_size     = 1
    desired_size = 1
  }

  # A subnet that is replaced, such as by another vpc_cidr, is made in the first zone of the day. The disk stays where it is.
  lifecycle {
    precondition {
      condition     = aws_subnet.nodes[0].availability_zone == aws_ebs_volume.store.availability_zone
      error_message = "The worker's new subnet is in ${aws_subnet.nodes[0].availability_zone}, and the disk of Kip's store in ${aws_ebs_volume.store.availability_zone}: undo the change that replaces the subnet, or run terraform destroy first, which deletes the store."
    }
  }

  # The worker needs its way to the internet to join, and its role until it has gone.
  depends_on = [
    aws_iam_role_policy_attachment.worker,
    aws_route.internet,
    aws_route_table_association.nodes,
  ]
}

resource "aws_iam_role" "ebs_driver" {
  name = "${var.cluster_name}-ebs-driver"
  tags = var.tags

  assume_role_policy = local.trust.ebs_driver
}

resource "aws_iam_role_policy_attachment" "ebs_driver" {
  role       = aws_iam_role.ebs_driver.name
  policy_arn = "${local.aws_policy}/service-role/AmazonEBSCSIDriverPolicy"
}

# Attaches the disk of Kip's store to the worker. EKS has no driver for disks without it.
resource "aws_eks_addon" "ebs_driver" {
  cluster_name             = aws_eks_cluster.kip.name
  addon_name               = "aws-ebs-csi-driver"
  service_account_role_arn = aws_iam_role.ebs_driver.arn
  tags                     = var.tags

  depends_on = [aws_iam_role_policy_attachment.ebs_driver, aws_eks_node_group.worker]
}
