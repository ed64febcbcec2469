// Package disks finds the devices of a cell's disks, shows each at a path that
// follows from its ID, and sees to it that nothing of a disk is mounted before it
// is taken away. It formats and mounts nothing: that the kubelet does, with its
// own care for what is on a device already.
package disks
