// Package adminapi is the API by which a person administers Kip: JSON over HTTP on a
// unix socket that only Kip's own user can open. It tells what Kip knows and the
// Kubernetes API does not, hands out backups of the store, and changes nothing but what a
// person asks it to. It holds both ends, Server and Client, and their words; what is told comes
// from an Explainer (package explain), what is done from a Cleaner (package cleanup),
// and it imports neither.
package adminapi
