locals {
  features = [
    for statement in jsondecode(file("${path.module}/../aws/kip-policy-features.json")).Statement :
    statement if contains(var.kip_features, statement.Sid)
  ]

  # Values of the chart deploy/helm/kip, for your cluster.
  values = {
    credentials = { existingSecret = "kip-aws" }

    config = {
      cloud = {
        aws = {
          region     = var.region
          subnetID   = aws_subnet.cells[*].id
          kipSources = var.kip_cidrs
        }
      }
      cells = {
        defaultInstanceType = var.cell_default_instance_type
        bootImageSpec       = { name = var.boot_image_name }

        # Kip dials the cells' own addresses, through the VPN. Without this it would dial public ones, since it is outside of EC2.
        privateIPOnly = true
        extraCIDRs    = var.on_premises_cidrs
        tags          = var.tags
      }
    }
  }
}

# Kip is no instance of EC2 and has no service account of EKS, so it has keys. You make them: Terraform would keep them in its state.
resource "aws_iam_user" "kip" {
  name          = var.name
  force_destroy = true # with its keys
  tags          = var.tags
}

# docs/aws-permissions.md, from the same source.
resource "aws_iam_policy" "kip" {
  name   = var.name
  policy = file("${path.module}/../aws/kip-policy.json")
  tags   = var.tags
}

resource "aws_iam_user_policy_attachment" "kip" {
  user       = aws_iam_user.kip.name
  policy_arn = aws_iam_policy.kip.arn
}

resource "aws_iam_policy" "kip_features" {
  count = length(var.kip_features) > 0 ? 1 : 0

  name   = "${var.name}-features"
  policy = jsonencode({ Version = "2012-10-17", Statement = local.features })
  tags   = var.tags

  lifecycle {
    precondition {
      condition     = length(local.features) == length(distinct(var.kip_features))
      error_message = "kip_features: deploy/aws/kip-policy-features.json has no statement ${join(", ", setsubtract(var.kip_features, local.features[*].Sid))}. Want Sids of it, such as KipMakesTheSpotRole."
    }
  }
}

resource "aws_iam_user_policy_attachment" "kip_features" {
  count = length(aws_iam_policy.kip_features)

  user       = aws_iam_user.kip.name
  policy_arn = aws_iam_policy.kip_features[count.index].arn
}
