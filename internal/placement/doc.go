// Package placement chooses instance types for pods: a pure function of a pod, a
// catalogue, what is out of capacity and the configuration. It has no clock, does
// no I/O and imports no client; what it returns, others launch.
//
//	placer.go       the choice
//	sets.go         types of a catalogue as sets, by what they have
//	need.go         what a pod needs of a machine
//	constraint.go   where, and on which architecture, it may run
//	annotations.go  pod.elotl.co/*
//	requirements.go terms of node affinity about an instance
//	labels.go       which labels an instance has
//	explain.go      why no type fits, by counts
//	errors.go       what a caller decides on
package placement
