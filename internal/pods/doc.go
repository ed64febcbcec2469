// Package pods holds the loop that matches pods to cells. Read this first: a pod
// that is bound to the virtual node gets a cell, a pod that has ended or is gone
// lets its cell go, and a pod that waits has an Event that says for what.
//
// It never touches the cloud, the store or a cell; package cells does. It never
// writes a pod's status while a kubelet may own it.
package pods
