package configs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is what a machine can do, as far as configuration depends on it.
type Host struct {
	// CgroupV2 says that the controllers are in the unified hierarchy.
	CgroupV2 bool
	// Hugetlb says that there is a hugetlb controller to put pods into.
	Hugetlb bool
	// SysResource says that the agent has CAP_SYS_RESOURCE: without it nobody
	// here may lower an oom_score_adj.
	SysResource bool
	// SysModule says that the agent has CAP_SYS_MODULE: without it the kernel is not the machine's own.
	SysModule bool
	// AppArmor says that the kernel has it enabled.
	AppArmor bool
	// Tasks bounds what runs in the machine's own cgroup, that of a machine that shares its kernel; 0 for no bound but
	// the kernel's.
	Tasks int64
}

// capSysModule and capSysResource are CAP_SYS_MODULE and CAP_SYS_RESOURCE of linux/capability.h.
const capSysModule, capSysResource = 16, 24

// InspectHost looks at the machine whose root directory is root ("/").
func InspectHost(root string) (Host, error) {
	var h Host
	status, err := os.ReadFile(filepath.Join(root, "proc/self/status"))
	if err != nil {
		return h, fmt.Errorf("look up the agent's capabilities: %w", err)
	}
	found := false
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				return h, fmt.Errorf("look up the agent's capabilities: %w", err)
			}
			h.SysModule, h.SysResource, found = caps&(1<<capSysModule) != 0, caps&(1<<capSysResource) != 0, true
		}
	}
	if !found {
		return h, fmt.Errorf("look up the agent's capabilities: no CapEff in /proc/self/status")
	}
	cgroup := filepath.Join(root, "sys/fs/cgroup")
	// Only a cgroup v2 mount has this file in its root.
	if controllers, err := os.ReadFile(filepath.Join(cgroup, "cgroup.controllers")); err == nil {
		h.CgroupV2 = true
		h.Hugetlb = strings.Contains(" "+strings.TrimSpace(string(controllers))+" ", " hugetlb ")
	} else if _, err := os.Stat(filepath.Join(cgroup, "hugetlb", "cgroup.procs")); err == nil {
		h.Hugetlb = true
	}
	for _, f := range []string{"pids.max", "pids/pids.max"} {
		// A kernel's own root cgroup has no such file, and who sets no bound has "max" there.
		if b, err := os.ReadFile(filepath.Join(cgroup, f)); err == nil {
			h.Tasks, _ = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled")); err == nil {
		h.AppArmor = strings.HasPrefix(string(b), "Y")
	}
	return h, nil
}

// conntrackFiles are those in which kube-proxy sizes the table of connections. If it cannot write one
// it ends, and the kubelet with it (k8s.io/kubernetes/pkg/proxy/conntrack/sysctls.go).
var conntrackFiles = []string{"proc/sys/net/netfilter/nf_conntrack_max", "sys/module/nf_conntrack/parameters/hashsize"}

// OwnsConntrack reports whether the machine whose root directory is root may size the kernel's table of
// connections. A machine that is a namespace of another's kernel may not: the size is for all
// namespaces, so the kernel shows it read-only in all but the first. Ask once the firewall has
// loaded nf_conntrack.
func OwnsConntrack(root string) bool {
	for _, f := range conntrackFiles {
		if err := unix.Access(filepath.Join(root, f), unix.W_OK); err != nil {
			return false
		}
	}
	return true
}
