// Package local owns the machines of the local cloud: namespaced process trees
// on this host, each with its own root, network address and limits, and every
// trace of them (processes, cgroups, links, folders). It must not know what
// runs inside a machine, nor why one is launched.
//
// The state folder is this cloud's database. It holds one folder a machine,
// and a machine's record is written before anything else of it exists, so that
// whoever comes next, after a kill -9 at any moment, finds what was made and
// either adopts it or removes it. Machines outlive the process that launched
// them, and stopped ones the host's reboot.
//
// What a machine shares with the host, and so cannot be shown otherwise:
// the kernel, the clock, the number of CPUs a process may run on (affinity;
// the cores of the type are shown in /proc/cpuinfo and /sys/devices/system,
// and held by a CPU quota). Its disk is as large as its type says, if the host
// can make one (e2fsprogs and loop devices), but for what is written outside of
// /var/lib/containerd and /var/lib/kubelet. Types may add up to more than the
// host has: this cloud overcommits.
package local
