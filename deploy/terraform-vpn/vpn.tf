# Amazon's end of the VPN.
resource "aws_vpn_gateway" "kip" {
  vpc_id = aws_vpc.kip.id
  tags   = merge(var.tags, { Name = var.name })
}

# Yours.
resource "aws_customer_gateway" "on_premises" {
  bgp_asn    = var.customer_gateway_asn
  ip_address = var.customer_gateway_ip
  type       = "ipsec.1"
  tags       = merge(var.tags, { Name = var.name })
}

resource "aws_vpn_connection" "on_premises" {
  vpn_gateway_id      = aws_vpn_gateway.kip.id
  customer_gateway_id = aws_customer_gateway.on_premises.id
  type                = "ipsec.1"
  static_routes_only  = !var.bgp
  tags                = merge(var.tags, { Name = var.name })
}

resource "aws_vpn_connection_route" "on_premises" {
  for_each = toset(var.bgp ? [] : var.on_premises_cidrs)

  vpn_connection_id      = aws_vpn_connection.on_premises.id
  destination_cidr_block = each.value
}

# Cells and their pods send to your networks through the gateway. The gateway knows both addresses of a cell: they are of the VPC.
resource "aws_vpn_gateway_route_propagation" "cells" {
  vpn_gateway_id = aws_vpn_gateway.kip.id
  route_table_id = aws_route_table.cells.id
}
