data "aws_availability_zones" "available" {
  state            = "available"
  exclude_zone_ids = var.excluded_zone_ids

  # Without Local Zones and Wavelength Zones, in which EKS has no control plane.
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

data "aws_ec2_instance_type" "cells" {
  instance_type = var.cell_default_instance_type
}

# The account's images with that name that cells of the default type boot.
data "aws_ami_ids" "cells" {
  owners = ["self"]

  filter {
    name   = "name"
    values = [var.boot_image_name]
  }

  filter {
    name   = "architecture"
    values = data.aws_ec2_instance_type.cells.supported_architectures
  }
}

locals {
  # EKS wants two zones. The worker runs in the first one. These are the zones of new subnets: EC2's list changes when a zone is
  # impaired, and with excluded_zone_ids. A subnet that exists keeps its zone (ignore_changes below).
  zones = slice(data.aws_availability_zones.available.names, 0, min(2, length(data.aws_availability_zones.available.names)))
}

resource "aws_vpc" "kip" {
  cidr_block           = var.vpc_cidr
  enable_dns_hostnames = true
  tags                 = merge(var.tags, { Name = var.cluster_name })

  # The VPC is made first, so that nothing has changed yet if one of these is missing.
  lifecycle {
    precondition {
      condition     = length(local.zones) == 2
      error_message = "excluded_zone_ids leaves ${length(local.zones)} zones of ${var.region}: want two, or another region."
    }

    precondition {
      condition     = var.publish_boot_image || length(data.aws_ami_ids.cells.ids) > 0
      error_message = "There is no AMI named ${var.boot_image_name} for ${local.arch}, which ${var.cell_default_instance_type} has, of your account in ${var.region}. Run \"kipctl image publish --region ${var.region} --arch ${local.arch}\", or set publish_boot_image = true."
    }

    precondition {
      condition     = !var.publish_boot_image || startswith(var.boot_image_name, "kip-cell-")
      error_message = "boot_image_name is ${var.boot_image_name}, and publish_boot_image publishes Kip's own image, kip-cell-...: set publish_boot_image = false, or leave boot_image_name out."
    }
  }
}

resource "aws_internet_gateway" "kip" {
  vpc_id = aws_vpc.kip.id
  tags   = merge(var.tags, { Name = var.cluster_name })
}

resource "aws_route_table" "kip" {
  vpc_id = aws_vpc.kip.id
  tags   = merge(var.tags, { Name = var.cluster_name })
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.kip.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.kip.id
}

# The worker and the control plane's interfaces.
resource "aws_subnet" "nodes" {
  count = length(local.zones)

  vpc_id                  = aws_vpc.kip.id
  availability_zone       = local.zones[count.index]
  cidr_block              = cidrsubnet(var.vpc_cidr, 8, count.index)
  map_public_ip_on_launch = true # there is no NAT gateway, which would cost more than all else here

  tags = merge(var.tags, {
    Name                     = "${var.cluster_name}-nodes-${count.index}"
    "kubernetes.io/role/elb" = "1"
  })

  # Another zone would replace the subnet, and with it the worker and the disk of Kip's store.
  lifecycle {
    ignore_changes = [availability_zone]
  }
}

resource "aws_route_table_association" "nodes" {
  count = length(aws_subnet.nodes)

  subnet_id      = aws_subnet.nodes[count.index].id
  route_table_id = aws_route_table.kip.id
}

# Subnets for cells alone: a cell takes two addresses, or seventeen (docs/aws.md#addresses-and-subnets).
resource "aws_subnet" "cells" {
  count = length(local.zones)

  vpc_id                  = aws_vpc.kip.id
  availability_zone       = local.zones[count.index]
  cidr_block              = cidrsubnet(var.vpc_cidr, 4, count.index + 1)
  map_public_ip_on_launch = true

  tags = merge(var.tags, { Name = "${var.cluster_name}-cells-${count.index}" })

  # Another zone would replace the subnet, and with it all cells in it.
  lifecycle {
    ignore_changes = [availability_zone]
  }
}

resource "aws_route_table_association" "cells" {
  count = length(aws_subnet.cells)

  subnet_id      = aws_subnet.cells[count.index].id
  route_table_id = aws_route_table.kip.id
}

# A group that each cell has besides the one that Kip makes, which lets traffic of the VPC in. Rules of yours go here.
resource "aws_security_group" "cells" {
  name        = "${var.cluster_name}-cells"
  description = "Cells of Kip"
  vpc_id      = aws_vpc.kip.id

  # The AWS Load Balancer Controller wants this tag on exactly one group of a cell (docs/aws.md#security-groups).
  tags = merge(var.tags, {
    Name                                        = "${var.cluster_name}-cells"
    "kubernetes.io/cluster/${var.cluster_name}" = "owned"
  })
}

# Pods on cells reach CoreDNS, other pods of the worker, and the API server. The cluster's security group, which EKS makes, lets in
# its members only. Cells must not become members: the worker is one, so Kip's own group lets all members reach the agents' port
# (docs/aws.md#security-groups), and each cell would reach the agent of every other cell.
# kipctl eks deploy makes cells members all the same, since it changes no rule of a group of yours.
# https://docs.aws.amazon.com/eks/latest/userguide/sec-group-reqs.html
resource "aws_vpc_security_group_ingress_rule" "cells_to_cluster" {
  security_group_id            = aws_eks_cluster.kip.vpc_config[0].cluster_security_group_id
  referenced_security_group_id = aws_security_group.cells.id
  ip_protocol                  = "-1"
  description                  = "from cells of Kip"
}
