// Package admission owns what is changed of a pod before it is made, so that it can run
// on Kip's nodes, what is changed of the DaemonSets that are to run beside these, and the
// webhook by which the API server asks. It decides about no pod that has been made, and
// imports neither cells nor clouds.
//
//	pod.go           pure: pod in, patch out
//	selection.go     what a pod selects that no label of a node can say
//	tolerations.go   why a pod outlives a Kip that is away
//	profiles.go      which pods profiles choose
//	profiled.go      pure: what becomes of a pod that a profile has chosen
//	profileread.go   what is read of it for that
//	binding.go       what a pod gets when it is bound to a node of Kip's
//	daemonsets.go    what the templates of DaemonSets that run beside pods lack
//	host.go          what a pod asks of its host that each cell has by itself
//	resize.go        a resize beyond what the machine of a pod has
//	review.go        the API server's question and its answer
//	question.go      what is read of it, and how much
//	webhook.go       the server and its certificate
//	configuration.go how the API server calls it, and whom it trusts
//	defaults.go      which tolerations the API server adds by itself
package admission
