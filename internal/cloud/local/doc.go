// Package local owns how a machine of the local cloud is made: a namespaced process
// tree on this host, with its own root, network device and limits. It must not know
// what runs inside a machine, nor why one is launched. Records, addresses and disks
// are package host's.
//
// What a machine shares with the host, and so cannot be shown otherwise:
// the kernel, the clock, the number of CPUs a process may run on (affinity;
// the cores of the type are shown in /proc/cpuinfo and /sys/devices/system,
// and held by a CPU quota). Its disk is as large as its type says, if the host
// can make one (e2fsprogs and loop devices), but for what is written outside of
// /var/lib/containerd and /var/lib/kubelet. Types may add up to more than the
// host has: this cloud overcommits.
package local
