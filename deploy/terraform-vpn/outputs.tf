output "values" {
  description = "Values of Kip's chart, for helm install in your cluster."
  value       = yamlencode(local.values)
}

output "user" {
  description = "Name of the user whose keys Kip needs."
  value       = aws_iam_user.kip.name
}

output "tunnels" {
  description = "Public addresses of Amazon's two ends of the VPN."
  value       = [aws_vpn_connection.on_premises.tunnel1_address, aws_vpn_connection.on_premises.tunnel2_address]
}

output "router_configuration" {
  description = "What your router needs, with the pre-shared keys, as XML."
  value       = aws_vpn_connection.on_premises.customer_gateway_configuration
  sensitive   = true
}
