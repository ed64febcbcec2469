resource "aws_efs_file_system" "kip" {
  count = var.enable_efs ? 1 : 0

  encrypted       = true
  throughput_mode = "elastic"
  tags            = merge(var.tags, { Name = var.cluster_name })
}

resource "aws_security_group" "efs" {
  count = var.enable_efs ? 1 : 0

  name        = "${var.cluster_name}-efs"
  description = "EFS of cells of Kip"
  vpc_id      = aws_vpc.kip.id
  tags        = merge(var.tags, { Name = "${var.cluster_name}-efs" })
}

resource "aws_vpc_security_group_ingress_rule" "cells_to_efs" {
  count = length(aws_security_group.efs)

  security_group_id            = aws_security_group.efs[count.index].id
  referenced_security_group_id = aws_security_group.cells.id
  ip_protocol                  = "tcp"
  from_port                    = 2049
  to_port                      = 2049
  description                  = "NFS from cells of Kip"
}

resource "aws_vpc_security_group_ingress_rule" "worker_to_efs" {
  count = length(aws_security_group.efs)

  security_group_id            = aws_security_group.efs[count.index].id
  referenced_security_group_id = aws_eks_cluster.kip.vpc_config[0].cluster_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = 2049
  to_port                      = 2049
  description                  = "NFS from the worker"
}

# One in each zone that has cells.
resource "aws_efs_mount_target" "cells" {
  count = var.enable_efs ? length(aws_subnet.cells) : 0

  file_system_id  = aws_efs_file_system.kip[0].id
  subnet_id       = aws_subnet.cells[count.index].id
  security_groups = aws_security_group.efs[*].id
}
