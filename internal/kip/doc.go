// Package kip puts a Kip together: two flat lists of the parts that run, in the order
// in which they start, one for each process and one for the process that leads. It
// decides nothing about the life of pods and cells; the parts do, and none of them
// knows this package.
//
// What is between two parts, and in neither, is here: what provider.yaml says turned
// into what a part is given, what standby pools are launched as, the shortages that
// are kept over a restart, and the way from a pod's name to its cell.
package kip
