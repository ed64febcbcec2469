// Package stack owns Kip on one machine, in one state folder: the bridge, the
// control plane, the registry and Kip with its cells, their start in order,
// their end in order, and the look whether anything is left. It prints nothing
// and runs no pod.
package stack
