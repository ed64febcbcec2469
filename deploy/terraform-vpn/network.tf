data "aws_availability_zones" "available" {
  state = "available"

  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

locals {
  # The zones of new subnets: EC2's list changes when a zone is impaired. A subnet that exists keeps its zone (ignore_changes below).
  zones = slice(data.aws_availability_zones.available.names, 0, 2)
}

resource "aws_vpc" "kip" {
  cidr_block           = var.vpc_cidr
  enable_dns_hostnames = true
  tags                 = merge(var.tags, { Name = var.name })
}

resource "aws_route_table" "cells" {
  vpc_id = aws_vpc.kip.id
  tags   = merge(var.tags, { Name = "${var.name}-cells" })
}

# Subnets for cells alone: a cell takes two addresses, or seventeen (docs/aws.md#addresses-and-subnets). None of them is public.
resource "aws_subnet" "cells" {
  count = length(local.zones)

  vpc_id            = aws_vpc.kip.id
  availability_zone = local.zones[count.index]
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, count.index + 1)
  tags              = merge(var.tags, { Name = "${var.name}-cells-${count.index}" })

  # Another zone would replace the subnet, and with it all cells in it.
  lifecycle {
    ignore_changes = [availability_zone]
  }
}

resource "aws_route_table_association" "cells" {
  count = length(aws_subnet.cells)

  subnet_id      = aws_subnet.cells[count.index].id
  route_table_id = aws_route_table.cells.id
}

resource "aws_internet_gateway" "kip" {
  count = var.nat_gateway ? 1 : 0

  vpc_id = aws_vpc.kip.id
  tags   = merge(var.tags, { Name = var.name })
}

resource "aws_subnet" "nat" {
  count = var.nat_gateway ? 1 : 0

  vpc_id            = aws_vpc.kip.id
  availability_zone = local.zones[0]
  cidr_block        = cidrsubnet(var.vpc_cidr, 8, 0)
  tags              = merge(var.tags, { Name = "${var.name}-nat" })

  # Another zone would replace the subnet, and with it the NAT gateway.
  lifecycle {
    ignore_changes = [availability_zone]
  }
}

resource "aws_route_table" "nat" {
  count = var.nat_gateway ? 1 : 0

  vpc_id = aws_vpc.kip.id
  tags   = merge(var.tags, { Name = "${var.name}-nat" })
}

resource "aws_route" "nat_to_internet" {
  count = var.nat_gateway ? 1 : 0

  route_table_id         = aws_route_table.nat[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.kip[0].id
}

resource "aws_route_table_association" "nat" {
  count = var.nat_gateway ? 1 : 0

  subnet_id      = aws_subnet.nat[0].id
  route_table_id = aws_route_table.nat[0].id
}

resource "aws_eip" "nat" {
  count = var.nat_gateway ? 1 : 0

  domain = "vpc"
  tags   = merge(var.tags, { Name = "${var.name}-nat" })
}

resource "aws_nat_gateway" "kip" {
  count = var.nat_gateway ? 1 : 0

  allocation_id = aws_eip.nat[0].id
  subnet_id     = aws_subnet.nat[0].id
  tags          = merge(var.tags, { Name = var.name })

  depends_on = [aws_route.nat_to_internet, aws_route_table_association.nat]
}

resource "aws_route" "cells_to_internet" {
  count = var.nat_gateway ? 1 : 0

  route_table_id         = aws_route_table.cells.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.kip[0].id
}
