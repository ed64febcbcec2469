package pods

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/sysctls"
)

// UnsupportedError reports what a pod asks for that cells of this cloud cannot have.
type UnsupportedError struct{ Annotation, Asked, Why string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("annotation %s: %q is not possible on this cloud, since %s", e.Annotation, e.Asked, e.Why)
}

// changesKernel returns an *UnsupportedError for the first annotation that would change a kernel for all cells which share it.
func changesKernel(a placement.Annotations) error {
	if len(a.HostModules) > 0 {
		return &UnsupportedError{placement.AnnotationHostModules, a.HostModules[0], "its cells share the kernel of their host"}
	}
	if a.SwapBytes > 0 {
		return &UnsupportedError{placement.AnnotationSwap, bytesText(a.SwapBytes),
			"its cells share the kernel of their host, whose swap is no pod's: here it can be 0 only"}
	}
	for _, s := range a.HostSysctls {
		if !sysctls.IsNamespaced(s.Name) {
			return &UnsupportedError{placement.AnnotationHostSysctls, s.Name,
				"its cells share the kernel of their host, and this sysctl is not namespaced"}
		}
	}
	return nil
}

// bytesText is the text of such a quantity.
func bytesText(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// kernelSettings are what the annotations ask of a machine's kernel; nil for nothing.
func kernelSettings(a placement.Annotations) *cells.KernelSettings {
	if len(a.HostModules)+len(a.HostSysctls) == 0 {
		return nil
	}
	asked := &cells.KernelSettings{Modules: a.HostModules}
	for _, s := range a.HostSysctls {
		asked.Sysctls = append(asked.Sysctls, cells.Sysctl(s))
	}
	return asked
}

// hugePages are those that a pod asks for, with all that runs beside it; nil for none.
func hugePages(placed *corev1.Pod) (all []cells.HugePages) {
	for _, p := range placement.HugePagesOf(placed) {
		all = append(all, cells.HugePages(p))
	}
	return all
}

// unsafeSysctls are those of a pod's securityContext that its namespace is granted. The kubelet judges the others: it has some
// that it calls safe, and rejects the pod for the rest.
func (g Grants) unsafeSysctls(pod *corev1.Pod) (granted []string) {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	patterns := g.UnsafeSysctls
	for _, n := range g.of(pod.Namespace) {
		patterns = append(patterns[:len(patterns):len(patterns)], n.UnsafeSysctls...)
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		// With another the kubelet would not start.
		if sysctls.IsNamespaced(s.Name) && matchesSysctl(patterns, s.Name) {
			granted = append(granted, s.Name)
		}
	}
	return granted
}

// matchesSysctl reports whether a sysctl is one of those that are granted, whatever separates the parts of their names.
func matchesSysctl(granted []string, name string) bool {
	normal := make([]string, len(granted))
	for i, g := range granted {
		normal[i] = sysctl.NormalizeName(g)
	}
	return matches(normal, sysctl.NormalizeName(name))
}

// matchesModule reports whether a module, of which the name has underscores, is one of those that are granted.
func matchesModule(granted []string, name string) bool {
	normal := make([]string, len(granted))
	for i, g := range granted {
		normal[i] = strings.ReplaceAll(g, "-", "_")
	}
	return matches(normal, name)
}
