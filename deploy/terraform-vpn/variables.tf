variable "region" {
  description = "Region of the cells."
  type        = string
  default     = "us-east-1"
}

variable "name" {
  description = "All that this makes is named after it."
  type        = string
  default     = "kip-vpn"
}

variable "vpc_cidr" {
  description = "Network of the VPC, a /16 to /18. It must overlap none of your networks."
  type        = string
  default     = "10.200.0.0/16"

  validation {
    condition     = can(regex("/1[678]$", var.vpc_cidr)) && can(cidrhost(var.vpc_cidr, 0))
    error_message = "vpc_cidr must be an IPv4 network from /16 to /18, such as 10.200.0.0/16: the cells get two sixteenths of it."
  }
}

variable "customer_gateway_ip" {
  description = "Public IPv4 address of your VPN router."
  type        = string

  validation {
    condition     = can(regex("^[0-9.]+$", var.customer_gateway_ip)) && can(cidrhost("${var.customer_gateway_ip}/32", 0))
    error_message = "customer_gateway_ip must be an IPv4 address, such as 203.0.113.7."
  }
}

variable "customer_gateway_asn" {
  description = "BGP ASN of your VPN router. Without bgp any private one."
  type        = number
  default     = 65000
}

variable "bgp" {
  description = "Learn your networks from your router by BGP, instead of static routes to on_premises_cidrs."
  type        = bool
  default     = false
}

variable "kip_cidrs" {
  description = "Networks from which Kip dials its cells: those of its pod, or of the machines if pods leave your cluster with their addresses."
  type        = list(string)
}

variable "on_premises_cidrs" {
  description = "All your networks that cells and their pods exchange traffic with: those of machines, and those of pods."
  type        = list(string)
}

variable "nat_gateway" {
  description = "Give cells a way to the internet by a NAT gateway, for images. Without one they need your own, through the VPN."
  type        = bool
  default     = true
}

variable "boot_image_name" {
  description = "Name of the AMI of your account that cells boot. A * stands for any characters; the newest is taken."
  type        = string
  default     = "kip-cell-*"
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

variable "tags" {
  description = "Tags of all that this makes, and of cells."
  type        = map(string)
  default     = {}
}
