package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/elotl/kip/internal/placement"
)

// Mode says where the pods of a Profile run.
type Mode string

const (
	// AsPodsSay: the profile chooses only pods that select Kip's nodes by themselves.
	AsPodsSay Mode = ""
	// Only: on Kip's nodes.
	Only Mode = "only"
	// Burst: on ordinary nodes, and on Kip's when these are full.
	Burst Mode = "burst"
	// Never: not on Kip's nodes.
	Never Mode = "never"
)

// Profile chooses pods, and says what becomes of them. What is empty chooses all; all that is not must hold.
type Profile struct {
	Name string
	// Namespaces are names, or the beginnings of names with a * at the end.
	Namespaces []string
	// NamespaceLabels and PodLabels are nil for any.
	NamespaceLabels, PodLabels labels.Selector
	ServiceAccounts            []string
	// OwnerKinds are the kinds of what controls the pods. Those of DaemonSets are chosen only by name.
	OwnerKinds []string
	// GPU, when set, says whether the pods request a resource for which IsGPU is true.
	GPU *bool
	// Resources are requested, all of them.
	Resources []corev1.ResourceName
	// MinCPU and MinMemory are the least that is requested.
	MinCPU, MinMemory resource.Quantity

	Mode Mode
	// Annotations are for pods that do not have them.
	Annotations map[string]string
	// DeletionCost is the annotation corev1.PodDeletionCost of pods on Kip's nodes that have none; "" for none.
	DeletionCost string
}

// Profiles choose pods. The zero value chooses none.
type Profiles struct {
	// List is in order: the first that chooses a pod counts.
	List []Profile
	// System are the namespaces whose pods are chosen only by profiles that name them.
	System []string
	// IsGPU reports whether Profile.GPU is about a resource.
	IsGPU func(corev1.ResourceName) bool
	// LabelsOf returns the labels of a namespace.
	LabelsOf func(ctx context.Context, namespace string) (labels.Set, error)
	// AnnotationsOf returns the annotations of a pod that is made.
	AnnotationsOf func(ctx context.Context, namespace, name string) (map[string]string, error)
}

// around has the API server asked by a function, which is handed each question.
func (ps Profiles) around(do func(ctx context.Context, ask func() error) error) Profiles {
	labelsOf, annotationsOf := ps.LabelsOf, ps.AnnotationsOf
	ps.LabelsOf = func(ctx context.Context, namespace string) (of labels.Set, err error) {
		err = do(ctx, func() (err error) { of, err = labelsOf(ctx, namespace); return err })
		return of, err
	}
	ps.AnnotationsOf = func(ctx context.Context, namespace, name string) (of map[string]string, err error) {
		err = do(ctx, func() (err error) { of, err = annotationsOf(ctx, namespace, name); return err })
		return of, err
	}
	return ps
}

// candidate is a pod that a profile may choose.
type candidate struct {
	pod       *corev1.Pod
	namespace string
	says      said
	// forKip is that the pod selects Kip's nodes by itself.
	forKip bool
}

// of returns the profile that chooses a pod; nil if none does.
func (ps Profiles) of(ctx context.Context, c candidate) (*Profile, error) {
	for i := range ps.List {
		p := &ps.List[i]
		if !ps.chooses(p, c) {
			continue
		}
		if p.NamespaceLabels != nil && !p.NamespaceLabels.Empty() {
			of, err := ps.LabelsOf(ctx, c.namespace)
			if err != nil {
				return nil, fmt.Errorf("read the labels of namespace %s: %w", c.namespace, err)
			}
			if !p.NamespaceLabels.Matches(of) {
				continue
			}
		}
		return p, nil
	}
	return nil, nil
}

// chooses reports whether a profile chooses a pod by all but the labels of its namespace.
func (ps Profiles) chooses(p *Profile, c candidate) bool {
	kind := ""
	if owner := metav1.GetControllerOf(c.pod); owner != nil {
		kind = owner.Kind
	}
	switch {
	case p.Mode == AsPodsSay && (!c.forKip || ps.sent(c.pod, p)):
	case len(p.Namespaces) > 0 && !slices.ContainsFunc(p.Namespaces, func(v string) bool { return standsFor(v, c.namespace) }):
	case slices.Contains(ps.System, c.namespace) && !slices.Contains(p.Namespaces, c.namespace):
	case p.PodLabels != nil && !p.PodLabels.Matches(labels.Set(c.says.labels)):
	case len(p.ServiceAccounts) > 0 && !slices.Contains(p.ServiceAccounts, c.says.account):
	case len(p.OwnerKinds) > 0 && !slices.Contains(p.OwnerKinds, kind):
	case len(p.OwnerKinds) == 0 && kind == daemonSet:
	default:
		return ps.requested(p, c.says.requests)
	}
	return false
}

// sent reports whether a pod selects Kip's nodes since another profile had it do so, when the API server asked before.
func (ps Profiles) sent(pod *corev1.Pod, p *Profile) bool {
	before := ps.named(pod.Annotations[placement.AnnotationProfile])
	return before != nil && before != p && before.Mode == Only
}

// requested reports whether a pod requests what a profile is about.
func (ps Profiles) requested(p *Profile, requests corev1.ResourceList) bool {
	if p.GPU != nil {
		has := false
		for name, q := range requests {
			has = has || ps.IsGPU(name) && !q.IsZero()
		}
		if has != *p.GPU {
			return false
		}
	}
	for _, name := range p.Resources {
		if q := requests[name]; q.IsZero() {
			return false
		}
	}
	return requests.Cpu().Cmp(p.MinCPU) >= 0 && requests.Memory().Cmp(p.MinMemory) >= 0
}

// named returns the profile of a name; nil if there is none.
func (ps Profiles) named(name string) *Profile {
	if i := slices.IndexFunc(ps.List, func(p Profile) bool { return p.Name == name }); i >= 0 {
		return &ps.List[i]
	}
	return nil
}

// cost reports whether a profile has a cost of deletion.
func (ps Profiles) cost() bool {
	return slices.ContainsFunc(ps.List, func(p Profile) bool { return p.DeletionCost != "" })
}

// standsFor reports whether a name, or the beginning of names with a * at its end, stands for a name.
func standsFor(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// daemonSet is the kind of owners that choose the nodes of their pods.
const daemonSet = "DaemonSet"

func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.APIVersion == appsv1.SchemeGroupVersion.String() && owner.Kind == daemonSet
}
