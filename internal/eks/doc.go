// Package eks owns the installation of Kip into a cluster of Amazon EKS: it checks the account and the cluster, publishes the boot
// image, and applies Kip's manifests. It changes nothing before all checks have passed. It launches no cells, and knows nothing of a
// Kip that runs but what the API server shows.
package eks
