// Package dns owns the cluster's DNS for development: CoreDNS as a process of
// this host, and the Service by which it is an ordinary one to pods. Which names
// there are is CoreDNS's and the API server's business.
package dns
