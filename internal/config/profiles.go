package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elotl/kip/internal/placement"
)

// Modes of a Profile. Without a mode pods stay where they go.
const (
	ModeOnly  = "only"
	ModeBurst = "burst"
	ModeNever = "never"
)

var profileModes = []string{ModeOnly, ModeBurst, ModeNever}

// DaemonSetKind is the owner whose pods a profile chooses only if it names it.
const DaemonSetKind = "DaemonSet"

// SystemNamespaces are those whose pods a profile chooses only if it names them. Kip's own is one, too.
var SystemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// MaxProfiles is how many profiles there are at most: each is looked at for each pod that is made.
const MaxProfiles = 64

// burstDeletionCost is what a pod on Kip's nodes costs to delete where its profile is of mode burst: less than the 0 of all others.
const burstDeletionCost = -1

// Admission is what the webhook does for pods that do not select Kip's nodes.
type Admission struct {
	Profiles []Profile `key:"profiles" doc:"Which pods run on Kip's nodes without a change to their manifests, and with which annotations; at most 64. The first profile that chooses a pod counts. Needs the webhook: docs/profiles.md."`
}

// Profile says of the pods that it chooses whether they are for Kip's nodes. What is empty chooses all; all that is not must hold.
type Profile struct {
	Name              string            `key:"name" doc:"Name of the profile, at most 63 lower-case letters, digits and dashes. The pods that it chooses have it in the annotation pod.elotl.co/profile. Required."`
	Namespaces        []string          `key:"namespaces" doc:"Names of the pods' namespaces. One that ends with * stands for all that begin like it. Pods of kube-system, kube-public, kube-node-lease and of Kip's own namespace are chosen only if that is here by its name."`
	NamespaceSelector LabelSelector     `key:"namespaceSelector" doc:"Labels of the pods' namespaces."`
	PodSelector       LabelSelector     `key:"podSelector" doc:"Labels of the pods."`
	ServiceAccounts   []string          `key:"serviceAccounts" doc:"Names of the pods' service accounts."`
	OwnerKinds        []string          `key:"ownerKinds" doc:"Kinds of what controls the pods, such as Job, ReplicaSet (which controls the pods of a Deployment) or StatefulSet. Pods of DaemonSets are chosen only if DaemonSet is here."`
	GPU               *bool             `key:"gpu" doc:"true: pods that request a GPU: a resource whose name begins with nvidia.com/ or ends with /gpu. false: pods that do not."`
	Resources         []string          `key:"resources" doc:"Names of resources, such as aws.amazon.com/neuron, of which the pods request all."`
	MinCPU            resource.Quantity `key:"minCPU" default:"0" doc:"The least CPU that the pods request."`
	MinMemory         resource.Quantity `key:"minMemory" default:"0" doc:"The least memory that the pods request."`
	Mode              string            `key:"mode" doc:"only: the pods run on Kip's nodes. burst: on ordinary nodes, and on Kip's when these are full. never: on ordinary nodes. Without a mode the profile chooses only pods that select Kip's nodes by themselves, and they get its annotations."`
	Annotations       map[string]string `key:"annotations" doc:"Annotations that the pods get unless they have them: those of docs/annotations.md, and karpenter.sh/do-not-disrupt and cluster-autoscaler.kubernetes.io/safe-to-evict. The pods' namespaces need the same grants as for annotations of the pods' own."`
	PodDeletionCost   *int              `key:"podDeletionCost" doc:"The annotation controller.kubernetes.io/pod-deletion-cost of the pods on Kip's nodes, unless they have one: a ReplicaSet that scales in deletes pods with a lower one first. 0: none. Default: -1 with mode burst, else 0."`
}

// LabelSelector is that of Kubernetes.
type LabelSelector struct {
	MatchLabels      map[string]string `key:"matchLabels" doc:"Labels and their values."`
	MatchExpressions []LabelExpression `key:"matchExpressions" doc:"Expressions, all of which hold."`
}

// LabelExpression is a requirement of a LabelSelector.
type LabelExpression struct {
	Key      string   `key:"key" doc:"Key of the label. Required."`
	Operator string   `key:"operator" doc:"In, NotIn, Exists or DoesNotExist. Required."`
	Values   []string `key:"values" doc:"Values, with In and NotIn."`
}

// Selector is what selects by it.
func (s LabelSelector) Selector() (labels.Selector, error) {
	is := metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, e := range s.MatchExpressions {
		is.MatchExpressions = append(is.MatchExpressions, metav1.LabelSelectorRequirement{
			Key:      e.Key,
			Operator: metav1.LabelSelectorOperator(e.Operator),
			Values:   e.Values,
		})
	}
	return metav1.LabelSelectorAsSelector(&is)
}

// DeletionCost is the cost of deleting pods of a profile on Kip's nodes; 0 for none of the profile's.
func (p Profile) DeletionCost() int {
	switch {
	case p.PodDeletionCost != nil:
		return *p.PodDeletionCost
	case p.Mode == ModeBurst:
		return burstDeletionCost
	}
	return 0
}

// Bursts reports whether there are pods for which Kip's nodes are the second choice.
func (a Admission) Bursts() bool {
	return slices.ContainsFunc(a.Profiles, func(p Profile) bool { return p.Mode == ModeBurst })
}

// IsGPU reports whether a resource is one that Profile.GPU is about.
func IsGPU(resource string) bool {
	return strings.HasPrefix(resource, "nvidia.com/") || strings.HasSuffix(resource, "/gpu")
}

func (d *decoder) profiles(profiles []Profile) {
	if n := len(profiles); n > MaxProfiles {
		d.bad("admission.profiles", "there are %d: want at most %d", n, MaxProfiles)
	}
	for i, p := range profiles {
		key := fmt.Sprintf("admission.profiles[%d]", i)
		d.require(key+".name", p.Name)
		for _, problem := range validation.IsDNS1123Label(p.Name) {
			d.bad(key+".name", "%s is not valid: %s", quote(p.Name), problem)
		}
		if first := slices.IndexFunc(profiles, func(q Profile) bool { return q.Name == p.Name }); first < i {
			d.bad(key+".name", "admission.profiles[%d] has the name %s too: want another", first, p.Name)
		}
		d.whichPods(key, p)
		d.whereAndHow(key, p)
		d.reached(key, p, profiles[:i])
	}
}

var ownerKind = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)

// controlled are the kinds that control no pods themselves, and what they do it by.
var controlled = map[string]string{"Deployment": "ReplicaSet", "CronJob": "Job"}

// whichPods checks by what a profile chooses pods.
func (d *decoder) whichPods(key string, p Profile) {
	d.words(key+".namespaces", p.Namespaces, nil)
	for i, v := range p.Namespaces {
		name := strings.TrimSuffix(v, "*")
		// The beginning of a name may end with a dash.
		ok := name == "" || len(validation.IsDNS1123Label(name)) == 0 || name != v && len(validation.IsDNS1123Label(name+"a")) == 0
		d.check(ok, fmt.Sprintf("%s.namespaces[%d]", key, i), v, "the name of a namespace, or the beginning of one and a * at its end")
	}
	d.selector(key+".namespaceSelector", p.NamespaceSelector)
	d.selector(key+".podSelector", p.PodSelector)
	d.words(key+".serviceAccounts", p.ServiceAccounts, nil)
	for i, v := range p.ServiceAccounts {
		d.check(len(validation.IsDNS1123Subdomain(v)) == 0, fmt.Sprintf("%s.serviceAccounts[%d]", key, i), v,
			"the name of a service account, without its namespace")
	}
	d.words(key+".ownerKinds", p.OwnerKinds, nil)
	for i, v := range p.OwnerKinds {
		at := fmt.Sprintf("%s.ownerKinds[%d]", key, i)
		d.check(controlled[v] == "", at, v, controlled[v]+", by which a "+v+" controls its pods")
		d.check(ownerKind.MatchString(v), at, v, "a kind such as Job, ReplicaSet or StatefulSet")
	}
	d.words(key+".resources", p.Resources, nil)
	for i, v := range p.Resources {
		at := fmt.Sprintf("%s.resources[%d]", key, i)
		switch corev1.ResourceName(v) {
		case corev1.ResourceCPU:
			d.bad(at, "%q is not valid: want minCPU", v)
		case corev1.ResourceMemory:
			d.bad(at, "%q is not valid: want minMemory", v)
		}
		for _, problem := range validation.IsQualifiedName(v) {
			d.bad(at, "%s is no name of a resource: %s", quote(v), problem)
		}
		if p.GPU != nil && !*p.GPU && IsGPU(v) {
			d.bad(at, "%q is a GPU, and gpu is false: no pod is chosen; want only one of them", v)
		}
	}
	d.check(p.MinCPU.Sign() >= 0, key+".minCPU", p.MinCPU.String(), "0 or more")
	d.check(p.MinMemory.Sign() >= 0, key+".minMemory", p.MinMemory.String(), "0 or more")
}

var labelOperators = []string{"In", "NotIn", "Exists", "DoesNotExist"}

func (d *decoder) selector(key string, s LabelSelector) {
	d.labels(key+".matchLabels", s.MatchLabels)
	for i, e := range s.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", key, i)
		d.require(at+".key", e.Key)
		if !slices.Contains(labelOperators, e.Operator) {
			d.check(false, at+".operator", e.Operator, "In, NotIn, Exists or DoesNotExist")
			continue
		}
		if _, err := (LabelSelector{MatchExpressions: []LabelExpression{e}}).Selector(); err != nil {
			d.bad(at, "is not valid: %v", err)
		}
	}
}

// ofAutoscalers are the annotations by which a pod asks Karpenter and Cluster Autoscaler to leave its node alone, which profiles may
// set, too: pods that may burst would otherwise be moved from an ordinary node to Kip's.
var ofAutoscalers = []string{"karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/safe-to-evict"}

// whereAndHow checks what a profile says of the pods that it chooses.
func (d *decoder) whereAndHow(key string, p Profile) {
	d.check(p.Mode == "" || slices.Contains(profileModes, p.Mode), key+".mode", p.Mode, "only, burst or never")
	if p.Mode == "" && len(p.Annotations) == 0 {
		d.bad(key, "says nothing of the pods that it chooses: want a mode (only, burst or never), or annotations")
	}
	if p.Mode == ModeNever && len(p.Annotations) > 0 {
		d.bad(key+".annotations", "are for pods on Kip's nodes, and mode is never: want none")
	}
	// The controller of a DaemonSet chooses the node of each pod. A pod that may not be there would stay Pending.
	if slices.Contains(p.OwnerKinds, DaemonSetKind) && (p.Mode == ModeBurst || p.Mode == ModeNever) {
		d.check(false, key+".mode", p.Mode, "only, or none, since ownerKinds has DaemonSet, whose controller chooses the nodes itself")
	}
	for _, name := range slices.Sorted(maps.Keys(p.Annotations)) {
		at := join(key+".annotations", name)
		switch own := strings.HasPrefix(name, placement.Prefix); {
		case !own && !slices.Contains(ofAutoscalers, name):
			d.bad(at, "is none of Kip's annotations: want one of docs/annotations.md, which begin with %s, or %s", placement.Prefix,
				strings.Join(ofAutoscalers, " or "))
		case !own:
			d.check(slices.Contains([]string{"true", "false"}, p.Annotations[name]), at, p.Annotations[name], "true or false")
		}
		if name == placement.AnnotationProfile {
			d.bad(at, "Kip writes this one itself: want another, or none")
		}
	}
	if _, err := placement.ParseAnnotations(p.Annotations); err != nil {
		for _, e := range invalidAnnotations(err) {
			d.bad(join(key+".annotations", e.Annotation), "%v", e)
		}
	}
	if c := p.PodDeletionCost; c != nil {
		at := key + ".podDeletionCost"
		d.check(*c >= math.MinInt32 && *c <= math.MaxInt32, at, strconv.Itoa(*c), "a number of 32 bits")
		d.check(p.Mode != ModeNever || *c == 0, at, strconv.Itoa(*c), "0, since mode is never")
	}
}

// invalidAnnotations are those that an error of placement joins.
func invalidAnnotations(err error) (all []*placement.InvalidAnnotationError) {
	var many interface{ Unwrap() []error }
	var one *placement.InvalidAnnotationError
	if errors.As(err, &many) {
		for _, e := range many.Unwrap() {
			all = append(all, invalidAnnotations(e)...)
		}
	} else if errors.As(err, &one) {
		all = append(all, one)
	}
	return all
}

// reached notes a profile that no pod reaches, since one before it chooses all that it chooses.
func (d *decoder) reached(key string, p Profile, before []Profile) {
	for i, b := range before {
		switch {
		case !covers(b, p):
		case covers(p, b) && b.Mode != p.Mode:
			d.bad(key, "chooses the same pods as admission.profiles[%d] (%s), and contradicts its mode %q by %q: want one of them", i, b.Name,
				b.Mode, p.Mode)
			return
		default:
			d.bad(key, "chooses no pod, since admission.profiles[%d] (%s) comes before it and chooses all that it would: "+
				"want it before that one, or that one narrower", i, b.Name)
			return
		}
	}
}

// covers reports whether a profile surely chooses all pods that another chooses.
func covers(a, b Profile) bool {
	named := func(p Profile, list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(v string) bool { return !slices.Contains(p.Namespaces, v) })
	}
	// Without a mode only pods that select Kip's nodes are chosen.
	return (a.Mode != "" || b.Mode == "") &&
		(len(a.Namespaces) == 0 || len(b.Namespaces) > 0 && each(b.Namespaces, func(v string) bool { return coversName(a.Namespaces, v) })) &&
		within(named(b, SystemNamespaces), a.Namespaces) &&
		coversSelector(a.NamespaceSelector, b.NamespaceSelector) && coversSelector(a.PodSelector, b.PodSelector) &&
		(len(a.ServiceAccounts) == 0 || len(b.ServiceAccounts) > 0 && within(b.ServiceAccounts, a.ServiceAccounts)) &&
		(len(a.OwnerKinds) == 0 && !slices.Contains(b.OwnerKinds, DaemonSetKind) ||
			len(b.OwnerKinds) > 0 && within(b.OwnerKinds, a.OwnerKinds)) &&
		(a.GPU == nil || b.GPU != nil && *a.GPU == *b.GPU) &&
		within(a.Resources, b.Resources) && a.MinCPU.Cmp(b.MinCPU) <= 0 && a.MinMemory.Cmp(b.MinMemory) <= 0
}

// coversName reports whether one of names stands for a name, or for all that begin like it.
func coversName(names []string, name string) bool {
	return slices.ContainsFunc(names, func(v string) bool {
		prefix, pattern := strings.CutSuffix(v, "*")
		return v == name || pattern && strings.HasPrefix(strings.TrimSuffix(name, "*"), prefix)
	})
}

// coversSelector reports whether a selector asks for nothing that another does not ask for.
func coversSelector(a, b LabelSelector) bool {
	mine, err := a.Selector()
	if err != nil {
		return false
	}
	theirs, err := b.Selector()
	if err != nil {
		return false
	}
	asked, _ := mine.Requirements()
	had, _ := theirs.Requirements()
	return each(asked, func(r labels.Requirement) bool {
		return slices.ContainsFunc(had, func(h labels.Requirement) bool {
			return h.Equal(r) || r.Key() == h.Key() && r.Operator() == selection.Exists &&
				(h.Operator() == selection.In || h.Operator() == selection.Equals)
		})
	})
}

func within(list, others []string) bool {
	return each(list, func(v string) bool { return slices.Contains(others, v) })
}

func each[T any](list []T, is func(T) bool) bool {
	return !slices.ContainsFunc(list, func(v T) bool { return !is(v) })
}
