// Package hostports owns how the host ports of pods on cells are told apart. To the scheduler
// all cells of a virtual node are one host, on which a port is one pod's; each cell has all ports
// of its own. Before a pod is made, its ports get a hostIP that no other pod has, and its cell is
// shown the one that its owner wrote. The port itself stays where policies look for it.
//
// It is pure, and decides about no pod.
package hostports
