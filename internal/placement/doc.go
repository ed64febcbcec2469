// Package placement chooses instance types for pods: a pure function of a pod, a
// catalogue, what is out of capacity and the configuration. It has no clock, does
// no I/O and imports no client; what it returns, others launch.
//
//	placer.go       a catalogue, prepared for choices
//	choose.go       offerings for a pod, and why there are no others. Read this first
//	choice.go       what a pod says about its machine, and which offerings it may have
//	ordered.go      choices of a pod that has several, in its order
//	walk.go         which types fit, and at which condition each other one fails
//	conditions.go   what a type must pass to fit, and in which words it fails
//	search.go       the cheapest offerings of those that fit
//	spread.go       the order of spot offerings that cost about the same
//	reasons.go      why each was chosen
//	explain.go      why no type fits, or has no capacity, by counts
//	pattern.go      patterns of names of types
//	sets.go         types of a catalogue as sets, by what they have
//	need.go         what a pod needs of a machine
//	constraint.go   where, and on which architecture, it may run
//	annotations.go  pod.elotl.co/*
//	requirements.go terms of node affinity about an instance
//	labels.go       which labels an instance has
//	errors.go       what a caller decides on
package placement
