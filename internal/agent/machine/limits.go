package machine

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// limit is one of a process, which its children inherit.
type limit struct {
	resource   int
	name       string
	soft, hard uint64
}

// limits are those of the machine's first process that differ from the kernel's. containerd's CRI
// sets none for containers (v2.3.7, internal/cri/opts/spec_opts.go), so the pod inherits them.
//
// The kernel gives its first process 1024 open files, 4096 at most (include/asm-generic/resource.h),
// and to each user as many processes as its memory allows. Nodes of EKS give containers 65536 and
// 1048576 open files (amazon-eks-ami, nodeadm/internal/containerd/base-runtime-spec.json). Elasticsearch
// refuses to start below 65535. The soft limit is no higher, since some programs close each
// file up to it. The cgroup bounds a pod's processes (reservedPIDs in package configs), so the
// limit by user is off, as in containerd's own unit.
//
// These stay as the kernel has them: 8 MiB of locked memory, which is systemd's default too, and
// core files of no bytes, which a process may raise. Nothing on a cell collects core files: each
// would fill the disk of the pod and end with the machine.
var limits = []limit{
	{unix.RLIMIT_NOFILE, "open files", 65536, 1 << 20},
	{unix.RLIMIT_NPROC, "processes of a user", unix.RLIM_INFINITY, unix.RLIM_INFINITY},
}

// RaiseLimits gives this process, and all that it starts from now on, the limits that containers
// have on other nodes. A process without CAP_SYS_RESOURCE keeps its hard limits.
func RaiseLimits() error {
	var errs []error
	for _, l := range limits {
		if err := l.raise(); err != nil {
			errs = append(errs, fmt.Errorf("set the limit of %s to %d, at most %d: %w", l.name, l.soft, l.hard, err))
		}
	}
	return errors.Join(errs...)
}

func (l limit) raise() error {
	err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.soft, Max: l.hard})
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	var has unix.Rlimit
	if err := unix.Getrlimit(l.resource, &has); err != nil {
		return err
	}
	has.Max = min(has.Max, l.hard)
	has.Cur = min(has.Max, l.soft)
	return unix.Setrlimit(l.resource, &has)
}
