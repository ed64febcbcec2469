// Package eks owns what an installation of Kip asks of an AWS account about a cluster of Amazon EKS: the cluster, its subnets, the role of
// Kip's service account and what that role lacks, and the boot images. It changes nothing but the account's boot images, and knows
// nothing of Kubernetes' API.
package eks
