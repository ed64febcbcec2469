// Package doctor owns the checks of a cluster before and after Kip is installed into it, the order in which checks run, and the bundle
// that a bug report needs. It changes nothing in the cluster, opens no cloud and reads no Secret: checks of an account are passed to it.
//
//	run.go           runs checks, each within a time
//	doctor.go        the checks, in their order, and which Kip they are about
//	several.go       the same for each of several Kips
//	installation.go  what is known of a Kip and its cluster, and the commands that change them
//	reach.go         whether there is an API server to ask
//	before.go        what Kip needs of a cluster
//	storage.go       what Kip's store and pods on cells need of its disks
//	grants.go        what the user may do to install Kip
//	after.go         whether a Kip that is installed works
//	rights.go        what Kip's service account may do
//	ports.go         whether the API server reaches Kip
//	profiles.go      whether it asks Kip what profiles need
//	agents.go        whether Kip reaches its cells
//	pods.go          what cells are to the workloads of the cluster
//	selectors.go     which pods wait for labels that Kip's nodes do not have
//	daemonsets.go    which DaemonSets run beside pods on cells, and which stand without a machine
//	podidentity.go   who gets a role by EKS Pod Identity
//	raw.go           asks the API server for a path
//	bundle.go        the files of a bug report
//	redact.go        what leaves them out that is secret
//
// A Doctor says which checks there are. Each area of checks is a struct of its own around one installation.
package doctor
