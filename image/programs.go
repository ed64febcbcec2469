package image

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/elotl/kip/internal/agent/configs"
)

// Portmap is the path in the tree of the CNI plugin for hostPorts.
var Portmap = strings.TrimPrefix(configs.CNIPluginDir, "/") + "/portmap"

// hostPrograms are those that a distribution builds better than Kip could, by their
// path in the tree.
var hostPrograms = []struct{ to, name, purpose, packages string }{
	{"usr/sbin/nft", "nft", "writes the rules of Services and NetworkPolicies", "nftables"},
	// In front of what busybox has of the same name.
	{"usr/sbin/blkid", "blkid", "tells a kubelet whether a disk is blank", "util-linux"},
	{"usr/sbin/fsck", "e2fsck", "checks the file systems of disks", "e2fsprogs"},
	{"usr/sbin/mkfs.ext4", "mke2fs", "makes the file systems of disks", "e2fsprogs"},
	{"usr/sbin/resize2fs", "resize2fs", "makes the file systems of disks larger", "e2fsprogs"},
}

// HostPrograms finds the programs of this host that a tree needs, by their path in
// the tree. The error names those that are missing, and Debian's packages of them.
func HostPrograms() (map[string]string, error) {
	found := map[string]string{}
	var errs []error
	for _, p := range hostPrograms {
		path, err := lookPath(p.name)
		if err != nil {
			errs = append(errs, fmt.Errorf("find %s, which %s (Debian's package %s has it): %w", p.name, p.purpose, p.packages, err))
		}
		found[p.to] = path
	}
	return found, errors.Join(errs...)
}

// lookPath also looks where the PATH of a user who is not root does not lead.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
	}
	return path, err
}
