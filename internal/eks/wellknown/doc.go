// Package wellknown owns what Amazon EKS calls the things that it brings into a cluster, and the commands that install them. It is pure: it
// asks nobody.
package wellknown
