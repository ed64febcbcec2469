package installation

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Finding is something that a Linux lacks, or has too much.
type Finding struct {
	What string // "nft is missing"
	Why  string // what a cell has it for
	To   string // what to do
	// Required says that no cell works so; else some pods do not.
	Required bool
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s; %s", f.What, f.Why, f.To) }

// binaries are where the agent and its parts look for programs.
var binaries = []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"}

// programs that a cell uses and the agent does not bring along.
var programs = []struct {
	name, why, to string
	required      bool
}{
	{"runc", "it starts containers", "put it beside itzo, or install Debian's package runc", true},
	{"nft", "the rules of Services and NetworkPolicies are written by it", "install Debian's package nftables", true},
	{"mount", "volumes are mounted by it", "install Debian's package mount", true},
	{"umount", "volumes are unmounted by it", "install Debian's package mount", true},
	{"systemctl", "systemd starts the agent", "take a Linux with systemd", true},
	{"blkid", "the kubelet asks it whether a disk is blank", "install Debian's package util-linux", false},
	{"fsck", "the kubelet checks disks by it", "install Debian's package util-linux", false},
	{"mkfs.ext4", "the kubelet makes the file systems of disks by it", "install Debian's package e2fsprogs", false},
	{"resize2fs", "the kubelet makes file systems larger by it", "install Debian's package e2fsprogs", false},
	{"mkfs.xfs", "the same for StorageClasses that ask for XFS", "install Debian's package xfsprogs", false},
	{"mount.nfs", "NFS volumes are mounted by it", "install Debian's package nfs-common", false},
}

// features are modules that a kernel must have, or have built in.
var features = []struct{ module, why string }{
	{"overlay", "containers' file systems are made by it"},
	{"veth", "pods are connected by it"},
	{"nf_tables", "firewall and Services are written for it"},
	{"nft_chain_nat", "Services need it"},
	{"nft_nat", "Services need it"},
	{"nft_masq", "Services need it"},
	{"nft_ct", "NetworkPolicies and Services need it"},
	{"nft_fib_inet", "Services need it"},
	{"nft_numgen", "Services choose a pod by it"},
	{"nft_reject_inet", "Services without pods refuse by it"},
}

// controllers of cgroup v2 that the kubelet wants.
var controllers = []string{"cpu", "cpuset", "memory", "pids"}

// rivals are units that want the same places, names and ports as the agent's parts.
var rivals = []string{"containerd.service", "docker.service", "kubelet.service"}

// check looks at a Linux below root. What only a running one shows is left out where
// kernel, the release of the one that runs, is "". beside says what the agent's files have.
func check(root *os.Root, kernel string, beside func(name string) bool) ([]Finding, error) {
	var found []Finding
	for _, p := range programs {
		if !has(root, p.name, binaries...) && !beside(p.name) {
			found = append(found, Finding{
				What:     p.name + " is missing",
				Why:      p.why,
				To:       p.to,
				Required: p.required,
			})
		}
	}
	kernels, err := kernelFindings(root, kernel)
	if err != nil {
		return nil, err
	}
	found = append(found, kernels...)
	if kernel != "" {
		found = append(found, cgroupFindings(root)...)
	}
	wanted, err := fs.Glob(root.FS(), "etc/systemd/system/*.wants/*.service")
	if err != nil {
		return nil, err
	}
	for _, unit := range rivals {
		if slices.ContainsFunc(wanted, func(p string) bool { return path.Base(p) == unit }) {
			found = append(found, Finding{
				What:     unit + " is enabled",
				Why:      "the agent runs its own containerd and kubelet, in the same places",
				To:       "systemctl disable --now " + unit,
				Required: true,
			})
		}
	}
	if loopbackDNS(root) {
		found = append(found, Finding{
			What: "/etc/resolv.conf names a server on loopback",
			Why:  "pods with dnsPolicy Default find no names by it",
			To:   "link it to /run/systemd/resolve/resolv.conf",
		})
	}
	return found, nil
}

// has says that there is a file of this name in one of the folders. A link counts, wherever
// it leads: one that is absolute leads nowhere while its root is a folder.
func has(root *os.Root, name string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(dir string) bool {
		_, err := root.Lstat(path.Join(dir, name))
		return err == nil
	})
}

// modulesDirs are where distributions have a kernel's modules.
var modulesDirs = []string{"lib/modules", "usr/lib/modules"}

// kernelFindings looks for the features in the kernel that runs or, where that is "", in
// each that is below root.
func kernelFindings(root *os.Root, running string) ([]Finding, error) {
	var lists []string
	for _, dir := range modulesDirs {
		pattern := path.Join(dir, "*", "modules.builtin")
		if running != "" {
			pattern = path.Join(dir, running, "modules.builtin")
		}
		more, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return nil, err
		}
		lists = append(lists, more...)
	}
	if len(lists) == 0 {
		return []Finding{{
			What: strings.TrimSpace("no modules of kernel "+running) + " are below /lib/modules",
			Why:  "what the kernel can do is not known",
			To:   "see that it has " + featureNames(),
		}}, nil
	}
	var found []Finding
	for i, builtin := range lists {
		release := path.Base(path.Dir(builtin))
		if slices.ContainsFunc(lists[:i], func(p string) bool { return path.Base(path.Dir(p)) == release }) {
			continue // /lib is a link to /usr/lib
		}
		modules, err := modulesOf(root, path.Dir(builtin))
		if err != nil {
			return nil, err
		}
		for _, f := range features {
			if !modules[f.module] {
				found = append(found, Finding{
					What:     fmt.Sprintf("kernel %s has no %s", release, f.module),
					Why:      f.why,
					To:       "install a kernel that has it, as Debian's linux-image-amd64 does",
					Required: true,
				})
			}
		}
	}
	return found, nil
}

func featureNames() string {
	var names []string
	for _, f := range features {
		names = append(names, f.module)
	}
	return strings.Join(names, ", ")
}

// modulesOf are the modules of a kernel's folder, built in or not, by name.
func modulesOf(root *os.Root, dir string) (map[string]bool, error) {
	modules := map[string]bool{}
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		b, err := root.ReadFile(path.Join(dir, list))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without modules
		}
		if err != nil {
			return nil, fmt.Errorf("look what the kernel can do: %w", err)
		}
		lines := bufio.NewScanner(bytes.NewReader(b))
		for lines.Scan() {
			file, _, _ := strings.Cut(lines.Text(), ":")
			name, _, _ := strings.Cut(path.Base(file), ".ko")
			modules[strings.ReplaceAll(name, "-", "_")] = true
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("look what the kernel can do: %w", err)
		}
	}
	return modules, nil
}

func cgroupFindings(root *os.Root) []Finding {
	const to = "boot with systemd.unified_cgroup_hierarchy=1"
	b, err := root.ReadFile("sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return []Finding{{What: "cgroup v2 is not there", Why: "pods are limited by it", To: to, Required: true}}
	}
	var found []Finding
	for _, c := range controllers {
		if !slices.Contains(strings.Fields(string(b)), c) {
			found = append(found, Finding{
				What:     "cgroup v2 has no controller " + c,
				Why:      "pods are limited by it",
				To:       to + ", and without cgroup_disable=" + c,
				Required: true,
			})
		}
	}
	return found
}

// loopbackDNS says that the kubelet would give pods a server that they do not reach.
func loopbackDNS(root *os.Root) bool {
	b, err := root.ReadFile("etc/resolv.conf")
	if err != nil {
		return false // it is made when the machine boots
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" && (strings.HasPrefix(f[1], "127.") || f[1] == "::1") {
			return true
		}
	}
	return false
}
