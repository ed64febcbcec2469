# The arguments of resources were checked against these versions: docs/terraform.md
terraform {
  required_version = ">= 1.5.7"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.1"
    }
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 3.0"
    }
  }
}

provider "aws" {
  region = var.region
}

# A token of EKS ends after 15 minutes, so each provider asks the AWS CLI for one when it needs it.
provider "kubernetes" {
  host                   = aws_eks_cluster.kip.endpoint
  cluster_ca_certificate = base64decode(aws_eks_cluster.kip.certificate_authority[0].data)

  exec {
    api_version = "client.authentication.k8s.io/v1beta1"
    command     = "aws"
    args        = local.token
  }
}

provider "helm" {
  kubernetes = {
    host                   = aws_eks_cluster.kip.endpoint
    cluster_ca_certificate = base64decode(aws_eks_cluster.kip.certificate_authority[0].data)

    exec = {
      api_version = "client.authentication.k8s.io/v1beta1"
      command     = "aws"
      args        = local.token
    }
  }
}

locals {
  token = ["eks", "get-token", "--region", var.region, "--cluster-name", aws_eks_cluster.kip.name]
}
