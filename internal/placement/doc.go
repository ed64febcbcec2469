// Package placement chooses instance types for pods: a pure function of a pod, a
// catalogue, what is out of capacity and the configuration. It has no clock, does
// no I/O and imports no client; what it returns, others launch.
//
//	placer.go       a catalogue, prepared for choices
//	choice.go       what a pod says about its machine, and which offerings it may have
//	search.go       the cheapest of these
//	reasons.go      why each was chosen
//	pattern.go      patterns of names of types
//	sets.go         types of a catalogue as sets, by what they have
//	need.go         what a pod needs of a machine
//	constraint.go   where, and on which architecture, it may run
//	annotations.go  pod.elotl.co/*
//	requirements.go terms of node affinity about an instance
//	labels.go       which labels an instance has
//	explain.go      why no type fits, by counts
//	errors.go       what a caller decides on
package placement
