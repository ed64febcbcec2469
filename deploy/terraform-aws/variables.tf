variable "region" {
  description = "Region of the cluster and of the cells."
  type        = string
  default     = "us-east-1"
}

variable "cluster_name" {
  description = "Name of the EKS cluster. All that this makes is named after it."
  type        = string
  default     = "kip"

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z-]{0,39}$", var.cluster_name))
    error_message = "cluster_name must be 1 to 40 letters, digits and dashes, and must not begin with a dash."
  }
}

variable "kubernetes_version" {
  description = "Version of Kubernetes, such as 1.35; 1.30 or later. null: the newest that EKS has."
  type        = string
  default     = null
}

variable "api_cidrs" {
  description = "Networks that may reach the API server from the internet. The machine that runs Terraform must be in one of them."
  type        = list(string)
  default     = ["0.0.0.0/0"]
}

variable "vpc_cidr" {
  description = "Network of the VPC, a /16 to /18."
  type        = string
  default     = "10.0.0.0/16"

  validation {
    condition     = can(regex("/1[678]$", var.vpc_cidr)) && can(cidrhost(var.vpc_cidr, 0))
    error_message = "vpc_cidr must be an IPv4 network from /16 to /18, such as 10.0.0.0/16: the cells get two sixteenths of it."
  }
}

variable "excluded_zone_ids" {
  description = "IDs of zones to leave out. The default are those in which EKS makes no control plane."
  type        = list(string)
  default     = ["use1-az3", "usw1-az2", "cac1-az3"]
}

variable "worker_instance_type" {
  description = "Instance type of the one worker, on which Kip, CoreDNS and the EBS driver run. An x86 type."
  type        = string
  default     = "t3.medium"
}

variable "worker_disk_size" {
  description = "Size of the worker's root disk in GiB."
  type        = number
  default     = 20
}

variable "namespace" {
  description = "Namespace of Kip. Terraform makes it."
  type        = string
  default     = "kip-system"
}

variable "image_repository" {
  description = "Registry and name of Kip's own container image."
  type        = string
  default     = "ghcr.io/elotl/kip"
}

variable "image_tag" {
  description = "Tag of Kip's own container image. Empty: the version of the chart."
  type        = string
  default     = ""
}

variable "boot_image_name" {
  description = "Name of the AMI of your account that cells boot. A * stands for any characters; the newest is taken."
  type        = string
  default     = "kip-cell-*"
}

variable "publish_boot_image" {
  description = "Publish Kip's boot image in the region before Kip is installed, from the registry of Kip's own container image. An image that is there is left as it is."
  type        = bool
  default     = true
}

variable "cell_default_instance_type" {
  description = "Instance type of the cells of pods that name neither resources nor a type."
  type        = string
  default     = "t3.micro"
}

variable "kip_features" {
  description = "Statements of deploy/aws/kip-policy-features.json that Kip gets besides those that it needs, by their Sid."
  type        = list(string)
  default     = []
}

variable "enable_efs" {
  description = "Make an EFS file system that pods on cells and on the worker can mount by NFS. `terraform destroy` deletes it with all that is in it."
  type        = bool
  default     = false
}

variable "tags" {
  description = "Tags of all that this makes, and of cells."
  type        = map(string)
  default     = {}
}
