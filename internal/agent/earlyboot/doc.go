// Package earlyboot is the first process of a machine, in the kernel's first file
// system: it finds the root, makes the partition for what the machine writes, lays
// both over each other and becomes the root's init. It knows nothing of a network, of
// user data or of a pod.
package earlyboot
