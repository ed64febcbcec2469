output "kubeconfig" {
  description = "Command that writes the cluster into your kubeconfig."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${aws_eks_cluster.kip.name}"
}

output "node" {
  description = "Kip's virtual node. Those of single zones begin with this name."
  value       = "${helm_release.kip.name}-0"
}

output "role" {
  description = "ARN of the role by which Kip calls AWS."
  value       = aws_iam_role.kip.arn
}

output "group" {
  description = "ID of the security group of the cells, for rules of yours."
  value       = aws_security_group.cells.id
}

output "nfs_endpoint" {
  description = "NFS server and path of the EFS file system; null without enable_efs."
  value       = one([for fs in aws_efs_file_system.kip : "${fs.dns_name}:/"])
}
