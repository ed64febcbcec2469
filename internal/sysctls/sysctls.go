// Package sysctls knows names of sysctls, for Kip and the agent. It must not set any.
package sysctls

import (
	"regexp"

	"k8s.io/component-helpers/node/util/sysctl"
)

// maxName is the most that Kubernetes allows (SysctlMaxLength in pkg/apis/core/validation).
const maxName = 253

// name is Kubernetes' form (SysctlContainSlashFmt in pkg/apis/core/validation). None of the parts between dots or slashes is "." or "..",
// since each begins and ends with a letter or a digit.
var name = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// IsName reports whether a sysctl can have this name, with dots or slashes between its parts.
func IsName(s string) bool { return len(s) <= maxName && name.MatchString(s) }

// IsNamespaced reports whether each pod, and each machine that shares a kernel, has a sysctl of its own.
func IsNamespaced(name string) bool {
	of, _, _ := sysctl.GetNamespace(name)
	return of != sysctl.UnknownNamespace
}
