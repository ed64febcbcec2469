// Package control is Kip's local socket: JSON over HTTP on a unix socket that
// only its own user can open. It tells what Kip knows and the Kubernetes API does
// not, hands out backups of the store, and changes nothing but by a cleanup. It
// holds both ends, Server and Client; what is told comes from an Explainer, what
// is done from a Cleaner.
package control
