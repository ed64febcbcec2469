// Package volumes owns what Kip knows about the volumes of pods: which kinds of
// them work on cells and by whom, on which disks of the cloud they are, and how a
// cell's kubelet is shown those. It attaches nothing and changes no object.
package volumes
