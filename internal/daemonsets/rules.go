package daemonsets

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/placement"
)

// Annotation asks, in the pod template of a DaemonSet, for copies beside all pods. It counts where its namespace is
// granted that.
const Annotation = placement.AnnotationBesidePods

// Entry names sets that run beside pods: cells.daemonSets. What is empty narrows nothing.
type Entry struct {
	// By is what says so, for people. Default: cells.daemonSets with the entry's place in the list.
	By        string
	Namespace string
	Name      string
	Selector  labels.Selector // of the labels of the set's pods
	Pods      labels.Selector // of the labels of the pods that they run beside
	// Namespaces are those of these pods.
	Namespaces []string
	// MaxDelay is how long a pod may wait until the copy beside it is Ready.
	MaxDelay time.Duration
	// Linger is how long a cell goes on after its pod has ended, until the copy has ended, too.
	Linger time.Duration
	// Drivers are the CSI drivers whose node plugins the set has: it runs beside pods with volumes of one of them, and no
	// others. None for a set that has none.
	Drivers []string
}

// Rules say which sets run beside which pods. A nil *Rules is none.
type Rules struct {
	entries []Entry
	granted func(namespace string) bool
}

// New returns rules. granted reports whether Annotation counts in a namespace; it is pure.
func New(entries []Entry, granted func(namespace string) bool) *Rules {
	return &Rules{entries: slices.Clone(entries), granted: granted}
}

// Terms are how a set runs beside pods.
type Terms struct {
	// By is what says so, for people.
	By         string
	pods       labels.Selector
	namespaces []string // none for all
	unnamed    bool     // by annotation, and in the machine's network
	drivers    []string // none for any pod
	plugins    []string // the CSI drivers whose node plugins the set has
	MaxDelay   time.Duration
	Linger     time.Duration
}

// Of returns the terms of the DaemonSet that a pod is of; false where the set does not run beside pods, also since it
// may not or cannot. why says that then, if the set asks for it.
func (r *Rules) Of(set *corev1.Pod) (t Terms, runs bool, why error) {
	if r == nil {
		return t, false, nil
	}
	owner := apiv1.DaemonSetOf(set)
	if owner == nil {
		return t, false, nil
	}
	if t, runs, why = r.named(set, owner.Name); !runs {
		return t, false, why
	}
	if err := supported(set); err != nil {
		return Terms{}, false, err
	}
	return t, true, nil
}

// Names reports whether a DaemonSet is to run beside pods, by the labels and annotations of its pod template. why says that it asks for
// that by annotation, and may not.
func (r *Rules) Names(namespace, name string, labels, annotations map[string]string) (is bool, why error) {
	if r == nil {
		return false, nil
	}
	set := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: labels, Annotations: annotations}}
	_, is, why = r.named(set, name)
	return is, why
}

// Named are the sets that entries name, each once. An empty name stands for all of the namespace.
func (r *Rules) Named() (list []types.NamespacedName) {
	if r == nil {
		return nil
	}
	for _, e := range r.entries {
		if n := (types.NamespacedName{Namespace: e.Namespace, Name: e.Name}); !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

// NamedBy returns what names a set by its namespace and name, for people; "" for nothing.
func (r *Rules) NamedBy(namespace, name string) string {
	for i, e := range r.entries {
		if e.Namespace == namespace && (e.Name == "" || e.Name == name) {
			return cmp.Or(e.By, fmt.Sprintf("cells.daemonSets[%d]", i))
		}
	}
	return ""
}

// named returns the terms of the first entry that names a set, or else those of the annotation.
func (r *Rules) named(set *corev1.Pod, name string) (Terms, bool, error) {
	var plugins []string // of all entries
	for _, e := range r.entries {
		if e.names(set, name) {
			plugins = append(plugins, e.Drivers...)
		}
	}
	for i, e := range r.entries {
		if e.names(set, name) {
			return Terms{
				By:         cmp.Or(e.By, fmt.Sprintf("cells.daemonSets[%d]", i)),
				pods:       e.Pods,
				namespaces: e.Namespaces,
				drivers:    e.Drivers,
				plugins:    plugins,
				MaxDelay:   e.MaxDelay,
				Linger:     e.Linger,
			}, true, nil
		}
	}
	switch value := strings.TrimSpace(set.Annotations[Annotation]); {
	case !strings.EqualFold(value, "true"):
		return Terms{}, false, nil
	case r.granted == nil || !r.granted(set.Namespace):
		return Terms{}, false, &NotGrantedError{Namespace: set.Namespace}
	}
	return Terms{By: "annotation " + Annotation, unnamed: set.Spec.HostNetwork}, true, nil
}

// names reports whether an entry names a set.
func (e *Entry) names(set *corev1.Pod, name string) bool {
	return (e.Namespace == "" || e.Namespace == set.Namespace) && (e.Name == "" || e.Name == name) &&
		(e.Selector == nil || e.Selector.Matches(labels.Set(set.Labels)))
}

// Beside reports whether a set with these terms runs beside a pod. Who has the machine's network has the role of a pod that may
// reach the metadata service: of sets that the operator does not name none does.
func (t Terms) Beside(pod *corev1.Pod) bool {
	if asked, err := placement.ParseAnnotations(pod.Annotations); t.unnamed &&
		(err != nil || asked.AllowMetadata != nil && *asked.AllowMetadata) {
		return false
	}
	return (len(t.namespaces) == 0 || slices.Contains(t.namespaces, pod.Namespace)) &&
		(t.pods == nil || t.pods.Matches(labels.Set(pod.Labels)))
}

// Serves reports whether a set with these terms runs beside a pod with volumes of these drivers.
func (t Terms) Serves(drivers []string) bool {
	return len(t.drivers) == 0 || slices.ContainsFunc(t.drivers, func(d string) bool { return slices.Contains(drivers, d) })
}

// HasPlugin reports whether a set with these terms has the node plugin of one of these drivers. A pod with volumes of that driver cannot
// start without the set.
func (t Terms) HasPlugin(drivers []string) bool {
	return slices.ContainsFunc(t.plugins, func(d string) bool { return slices.Contains(drivers, d) })
}

// NotGrantedError says that a set asks by annotation to run beside pods, and may not.
type NotGrantedError struct{ Namespace string }

func (e *NotGrantedError) Error() string {
	return fmt.Sprintf("annotation %s: %q is not granted to namespace %s: "+
		"cells.grants.namespaces[].besidePods of provider.yaml says what is", Annotation, "true", e.Namespace)
}

// UnsupportedError says what of a set's pods keeps them from running beside others.
type UnsupportedError struct{ What string }

func (e *UnsupportedError) Error() string { return e.What }

// supported returns an *UnsupportedError for a pod that needs what only the pod of a cell has.
func supported(set *corev1.Pod) error {
	for _, v := range set.Spec.Volumes {
		what := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			what = "a PersistentVolumeClaim"
		case v.Ephemeral != nil:
			what = "an ephemeral PersistentVolumeClaim"
		case v.CSI != nil:
			what = "a CSI driver"
		}
		if what != "" {
			return &UnsupportedError{fmt.Sprintf("its volume %s is of %s, which only the pod of a cell has", v.Name, what)}
		}
	}
	if len(set.Spec.ResourceClaims) > 0 {
		return &UnsupportedError{"it has spec.resourceClaims, which cells do not have"}
	}
	return nil
}

// port is a port of a machine that a pod listens on.
type port struct {
	protocol corev1.Protocol
	number   int32
}

// hostPorts are the ports of its machine that a pod names.
func hostPorts(pod *corev1.Pod) map[port]bool {
	ports := map[port]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			for _, p := range c.Ports {
				number := p.HostPort
				if number == 0 && pod.Spec.HostNetwork {
					number = p.ContainerPort
				}
				if number != 0 {
					ports[port{cmp.Or(p.Protocol, corev1.ProtocolTCP), number}] = true
				}
			}
		}
	}
	return ports
}

// HostPorts calls f with each port of its machine that a pod names.
func HostPorts(pod *corev1.Pod, f func(protocol corev1.Protocol, number int32)) {
	for p := range hostPorts(pod) {
		f(p.protocol, p.number)
	}
}

// Conflict returns a host port that two pods of one machine name, as "TCP 9100"; "" for none.
func Conflict(a, b *corev1.Pod) string {
	others := hostPorts(b)
	var both []port
	for p := range hostPorts(a) {
		if others[p] {
			both = append(both, p)
		}
	}
	if len(both) == 0 {
		return ""
	}
	first := slices.MinFunc(both, func(a, b port) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.protocol, b.protocol))
	})
	return fmt.Sprintf("%s %d", first.protocol, first.number)
}

// Order compares two pods of sets: by name, the newer first of one set.
func Order(a, b *corev1.Pod) int {
	of := func(p *corev1.Pod) string {
		if owner := apiv1.DaemonSetOf(p); owner != nil {
			return owner.Name
		}
		return p.Name
	}
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(of(a), of(b)),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		cmp.Compare(a.UID, b.UID),
	)
}
