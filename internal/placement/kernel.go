package placement

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/elotl/kip/internal/sysctls"
)

// Sysctl is a setting of a kernel.
type Sysctl struct {
	// Name has dots between its parts, as sysctl.NormalizeName writes it.
	Name, Value string
}

const (
	maxSysctls, maxModules = 64, 16
	// maxSysctlValue is more than any setting of numbers needs.
	maxSysctlValue = 256
)

var (
	// sysctlValue is one line and has no comma, which separates sysctls.
	sysctlValue = regexp.MustCompile(`^[\x21-\x2b\x2d-\x7e]([\t\x20-\x2b\x2d-\x7e]*[\x21-\x2b\x2d-\x7e])?$`)
	// moduleName has at most as many characters as the kernel keeps (MODULE_NAME_LEN in include/linux/moduleparam.h).
	moduleName = regexp.MustCompile(`^[A-Za-z0-9]([-_A-Za-z0-9]{0,53}[A-Za-z0-9])?$`)
)

// kubeletsSysctls are those that each kubelet sets when it starts (setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go):
// other values would not last.
var kubeletsSysctls = []string{
	"vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops", "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes",
}

// parseSysctls reads "NAME=VALUE,NAME=VALUE". The error says what is wrong with the first that is wrong.
func parseSysctls(value string) ([]Sysctl, error) {
	parts := strings.Split(value, ",")
	if len(parts) > maxSysctls {
		return nil, fmt.Errorf("%d sysctls", len(parts))
	}
	var all []Sysctl
	for _, part := range parts {
		name, set, is := strings.Cut(part, "=")
		name, set = strings.TrimSpace(name), strings.TrimSpace(set)
		s := Sysctl{Name: sysctl.NormalizeName(name), Value: set}
		switch {
		case !is:
			return nil, fmt.Errorf("%q has no =", shortened(strings.TrimSpace(part)))
		case !sysctls.IsName(name):
			return nil, fmt.Errorf("not the name of a sysctl: %q", shortened(name))
		case len(set) > maxSysctlValue || !sysctlValue.MatchString(set):
			return nil, fmt.Errorf("the value of %s is not valid", name)
		case slices.Contains(kubeletsSysctls, s.Name):
			return nil, fmt.Errorf("the kubelet of each cell sets %s itself", s.Name)
		case slices.ContainsFunc(all, func(other Sysctl) bool { return other.Name == s.Name }):
			return nil, fmt.Errorf("%s is there twice", s.Name)
		}
		all = append(all, s)
	}
	return all, nil
}

// parseModules reads "NAME,NAME". The error says what is wrong with the first that is wrong.
func parseModules(value string) ([]string, error) {
	names := strings.Split(value, ",")
	if len(names) > maxModules {
		return nil, fmt.Errorf("%d modules", len(names))
	}
	var all []string
	for _, name := range names {
		name = strings.TrimSpace(name)
		switch {
		case name == "":
			return nil, errors.New("a name is missing")
		case !moduleName.MatchString(name):
			return nil, fmt.Errorf("not the name of a module: %q", shortened(name))
		}
		// To the kernel they are the same.
		if name = strings.ReplaceAll(name, "-", "_"); slices.Contains(all, name) {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		all = append(all, name)
	}
	return all, nil
}
