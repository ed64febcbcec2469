// Package qemu owns how a virtual machine of this host is made: QEMU's process, its disk
// over the image's, its firmware configuration, its end of the cable. It must not know what
// runs inside a machine, nor why one is launched. Records, addresses and disks are package
// host's, QEMU's command line and monitor package vm's.
//
// A machine's folder is the working folder of its QEMU, by which its processes are found
// when all else is lost, and it has cgroups of its own. The process becomes QEMU when it is
// in them and recorded, and QEMU begins paused: before that nothing of the machine runs.
package qemu
