// Package doctor owns the checks of a cluster before and after Kip is installed into it, the order in which checks run, and the bundle
// that a bug report needs. It changes nothing in the cluster, opens no cloud and reads no Secret: checks of an account are passed to it.
//
//	run.go     runs checks, each within a time
//	doctor.go  what is asked, in which order
//	before.go  what Kip needs of a cluster
//	after.go   whether a Kip that is installed works
//	ports.go   whether the API server reaches Kip
//	pods.go    what cells are to the workloads of the cluster
//	raw.go     asks the API server for a path
//	bundle.go  the files of a bug report
//	redact.go  what leaves them out that is secret
package doctor
