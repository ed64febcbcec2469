// Package provisioner makes the disks of claims whose StorageClass names Kip's
// driver, makes them larger when their claim asks for more, and removes them when
// their volume's reclaim policy says so. It acts for one virtual node: a cluster may
// have several Kips. It attaches nothing.
package provisioner
