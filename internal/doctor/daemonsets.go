package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/suggest"
)

// daemonSets checks which DaemonSets run beside pods on their cells: docs/daemonsets.md.
type daemonSets struct{ *installation }

// Reasons of the condition of a DaemonSet's pod without a machine: internal/events.
const (
	runsBeside   = "BesidePods"
	runsNotThere = "DaemonSetLeftOut"
)

// set is a DaemonSet with pods on Kip's nodes that have no machine.
type set struct {
	namespace, name string
	pods            map[string]bool // by name
	beside          bool            // its pods stand for copies on cells
	unready         bool            // one of them is not Ready
	refused         string          // why it does not run beside pods although it is to; "" if it does, or is not to
	forMachines     string          // what it does that only machines need; "" for another
}

func (s *set) String() string { return s.namespace + "/" + s.name }

// onNodes says how the DaemonSets fare that have pods on Kip's nodes, and which do not have any although they are to run there.
func (k daemonSets) onNodes(ctx context.Context) (found []finding.Finding) {
	all := k.sets()
	var cells []apiv1.Cell
	var err error
	if slices.ContainsFunc(all, func(s *set) bool { return s.beside }) {
		cells, err = k.c.Cluster.Cells(ctx)
	}
	var stand []*set
	var machines []string
	for _, s := range all {
		switch {
		case s.beside && err != nil:
			found = append(found, unasked("list the cells, on which DaemonSet "+s.String()+" runs beside pods", err))
		case s.beside:
			found = append(found, fares(s, cells))
		case s.refused != "":
			cure := "docs/daemonsets.md says what runs beside pods"
			if off := k.keepOff(ctx, s); off != "" {
				cure = off + "; " + cure
			}
			found = append(found, finding.Warn(cure, "%s", s.refused))
		case s.forMachines != "":
			machines = append(machines, fmt.Sprintf("%s (%s)", s, s.forMachines))
		default:
			stand = append(stand, s)
		}
	}
	for n, s := range stand {
		if n == mostNamed {
			found = append(found, finding.Warn("kubectl get pods -A -o wide",
				"%d more DaemonSets stand on Kip's nodes without a machine", len(stand)-n))
			break
		}
		cure := k.changeProvider(fmt.Sprintf("to run it beside pods, add {namespace: %s, name: %s} to", s.namespace, s.name), "cells.daemonSets")
		if off := k.keepOff(ctx, s); off != "" {
			cure += "; or: " + off
		}
		found = append(found, finding.Warn(cure+"; docs/daemonsets.md",
			"DaemonSet %s shows Running and Ready on Kip's nodes, and does nothing there: cells.daemonSets does not name it, so it runs beside no pod", s))
	}
	if len(machines) > 0 {
		found = append(found, finding.Fine("on Kip's nodes stand DaemonSets that only machines need, and that docs/daemonsets.md says not to name: %s",
			orNone(machines)))
	}
	if found = append(found, k.named(ctx, all)...); found == nil {
		found = one(finding.Fine("no DaemonSet stands on Kip's nodes without a machine"))
	}
	return found
}

// sets are those whose pods have no machine, in the order of their names.
func (k daemonSets) sets() (all []*set) {
	by := map[string]*set{}
	for i := range k.onOwn {
		p := &k.onOwn[i]
		owner, why := apiv1.DaemonSetOf(p), apiv1.WithoutMachine(p)
		if owner == nil || why == nil {
			continue
		}
		s := &set{namespace: p.Namespace, name: owner.Name, pods: map[string]bool{}, forMachines: forMachines(owner.Name, p)}
		if is := by[s.String()]; is != nil {
			s = is
		}
		by[s.String()] = s
		s.pods[p.Name] = true
		switch why.Reason {
		case runsBeside:
			s.beside = true
			s.unready = s.unready || !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
		case runsNotThere:
			s.refused = why.Message
		}
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all = append(all, by[name])
	}
	return all
}

// namedCells is how many cells a message names.
const namedCells = 3

// fares says how the copies of a DaemonSet fare, as its cells show them.
func fares(s *set, cells []apiv1.Cell) finding.Finding {
	running, first := 0, ""
	var bad []string
	for _, c := range cells {
		i := slices.IndexFunc(c.Status.Beside, func(b apiv1.BesidePod) bool { return b.Namespace == s.namespace && s.pods[b.Name] })
		if c.Status.Phase != apiv1.Bound || i < 0 {
			continue
		}
		if running++; c.Status.Beside[i].Ready {
			continue
		}
		if bad = append(bad, fmt.Sprintf("%s beside pod %s (%s)", c.Name, c.Status.Pod, c.Status.Beside[i].Message)); first == "" {
			first = c.Name
		}
	}
	if len(bad) == 0 && !s.unready {
		return finding.Fine("DaemonSet %s runs beside pods: %d cells have a copy, and all copies are ready", s, running)
	}
	if len(bad) == 0 {
		return finding.Warn(fmt.Sprintf("kubectl describe daemonset -n %s %s", s.namespace, s.name),
			"DaemonSet %s runs beside pods, and is not Ready yet: of %d cells none shows a copy that is not ready", s, running)
	}
	which := listed(bad, namedCells)
	cure := fmt.Sprintf("kipctl exec %s -- ls /var/log/containers # the logs of its copies; kubectl get cell %s -o yaml has status.beside", first, first)
	const message = "DaemonSet %s runs beside pods: of %d cells the copies on %d are not ready, or do not run: %s"
	if s.unready {
		return finding.Fail(cure, message, s, running, len(bad), which)
	}
	return finding.Warn(cure, message, s, running, len(bad), which)
}

// named names the entries of cells.daemonSets that name no DaemonSet, and the DaemonSets that have no pod on Kip's nodes.
func (k daemonSets) named(ctx context.Context, on []*set) (found []finding.Finding) {
	if k.c.Provider == nil || len(k.own) == 0 {
		return nil
	}
	list, err := k.c.Cluster.Kube.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return one(unasked("list the DaemonSets, to see which are not on Kip's nodes", err))
	}
	if others := k.unnamed(list.Items); len(others) > 0 {
		found = one(finding.Fine("these DaemonSets have no pod on Kip's nodes, and run beside no pod there, since cells.daemonSets does not name them "+
			"(docs/daemonsets.md): %s", listed(others, mostNamed)))
	}
	configured, err := ports(k).webhookConfiguration(ctx)
	if err != nil {
		configured = nil // a patch helps in any case
	}
	for i, e := range k.c.Provider.Cells.DaemonSets {
		key := fmt.Sprintf("cells.daemonSets[%d]", i)
		names := 0
		for n := range list.Items {
			d := &list.Items[n]
			if !namedBy(e, d) {
				continue
			}
			names++
			if !slices.ContainsFunc(on, func(s *set) bool { return s.namespace == d.Namespace && s.name == d.Name }) && !k.hasMachine(d) {
				found = append(found, k.absent(key, d, configured))
			}
		}
		if names == 0 {
			found = append(found, finding.Warn(k.editProvider(key), "%s names no DaemonSet: %s", key, misses(e, list.Items)))
		}
	}
	return found
}

// unnamed are the DaemonSets without a pod on Kip's nodes that no entry names, but for those that only machines need.
func (k daemonSets) unnamed(all []appsv1.DaemonSet) (names []string) {
	for n := range all {
		d := &all[n]
		isNamed := slices.ContainsFunc(k.c.Provider.Cells.DaemonSets, func(e config.DaemonSet) bool { return namedBy(e, d) })
		pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
		if !isNamed && !k.hasMachine(d) && forMachines(d.Name, pod) == "" {
			names = append(names, d.Namespace+"/"+d.Name)
		}
	}
	return names
}

// listed is the first most of these, and how many there are besides.
func listed(names []string, most int) string {
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}

// namedBy reports whether an entry names a DaemonSet.
func namedBy(e config.DaemonSet, d *appsv1.DaemonSet) bool {
	s, err := labels.Parse(e.Selector)
	return err == nil && e.Namespace == d.Namespace && (e.Name == "" || e.Name == d.Name) && s.Matches(labels.Set(d.Spec.Template.Labels))
}

// hasMachine reports whether a DaemonSet has pods on Kip's nodes, with a machine or without.
func (k daemonSets) hasMachine(d *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(k.onOwn, func(p corev1.Pod) bool {
		owner := apiv1.DaemonSetOf(&p)
		return owner != nil && p.Namespace == d.Namespace && owner.Name == d.Name
	})
}

// misses says why an entry names no DaemonSet of a cluster.
func misses(e config.DaemonSet, all []appsv1.DaemonSet) string {
	var there, elsewhere []string
	for _, d := range all {
		switch {
		case d.Namespace == e.Namespace:
			there = append(there, d.Name)
		case d.Name == e.Name:
			elsewhere = append(elsewhere, d.Namespace)
		}
	}
	is := slices.Contains(there, e.Name)
	nearest := suggest.Nearest(e.Name, there)
	switch {
	case e.Name != "" && !is && nearest != "":
		return fmt.Sprintf("namespace %s has no %s, but %s", e.Namespace, e.Name, nearest)
	case e.Name != "" && !is && len(elsewhere) > 0:
		return fmt.Sprintf("namespace %s has no %s, but namespace %s does", e.Namespace, e.Name, elsewhere[0])
	case e.Name != "" && !is:
		return fmt.Sprintf("namespace %s has no %s", e.Namespace, e.Name)
	case len(there) == 0:
		return fmt.Sprintf("namespace %s has none", e.Namespace)
	}
	return fmt.Sprintf("the selector %s chooses no pods of those in namespace %s: %s", e.Selector, e.Namespace, orNone(there))
}

// daemonSetsPath is that of the webhook by which the templates of sets that are named are made to fit: internal/admission.
const daemonSetsPath = "/daemonsets"

// absent says why a DaemonSet has no pod on Kip's nodes.
func (k daemonSets) absent(
	key string, d *appsv1.DaemonSet, configured *admissionregistrationv1.MutatingWebhookConfiguration,
) finding.Finding {
	node, spec := &k.own[0], d.Spec.Template.Spec.DeepCopy()
	bars := daemonsets.Barred(spec, node)
	const message = "%s names DaemonSet %s/%s, which runs beside no pod: %s"
	look := fmt.Sprintf("kubectl get daemonset -n %s %s -o yaml # its nodeSelector and affinity", d.Namespace, d.Name)
	if bars == "" {
		return finding.Warn(look, message, key, d.Namespace, d.Name, "it has no pod on Kip's nodes")
	}
	lacks := k.fit(node).Fit(spec)
	patch := patchOf(spec, lacks)
	spec.Tolerations = append(spec.Tolerations, lacks.Tolerations...)
	if len(lacks.Terms) > 0 {
		r := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		r.NodeSelectorTerms = append(r.NodeSelectorTerms, lacks.Terms...)
	}
	restart := fmt.Sprintf("kubectl rollout restart daemonset -n %s %s", d.Namespace, d.Name)
	cure := ""
	switch left := daemonsets.Barred(spec, node); {
	case left != "":
		bars, cure = left, look+"; kubelet.labels of provider.yaml gives Kip's nodes a label"
	case asks(configured, daemonSetsPath):
		cure = restart + " # Kip's webhook then adds what it lacks, and all of its pods are replaced once"
	case managed(d):
		cure = k.setsWebhook(configured) + "\n" + restart
	default:
		cure = fmt.Sprintf("kubectl patch daemonset -n %s %s --type=json -p '%s'", d.Namespace, d.Name, patch)
	}
	return finding.Warn(cure, message, key, d.Namespace, d.Name, bars+", so it has no pod on Kip's nodes")
}

// setsWebhook is the command that makes the webhook of DaemonSets.
func (k daemonSets) setsWebhook(c *admissionregistrationv1.MutatingWebhookConfiguration) string {
	if k.release != "" || len(k.pods) == 0 {
		return k.set("webhook.daemonSets=true")
	}
	return ports(k).profileWebhooks(c)
}

// fit is what Kip's webhook goes by. Taints that a node of its own has are not among it, nor are those of Kubernetes, which all DaemonSets
// tolerate, and Kip's own, which come and go.
func (k daemonSets) fit(node *corev1.Node) daemonsets.Nodes {
	fit := daemonsets.Nodes{Controller: node.Labels[apiv1.LabelController]}
	for _, taint := range node.Spec.Taints {
		ofOne := slices.ContainsFunc(k.c.Provider.Nodes, func(n config.Node) bool {
			return slices.ContainsFunc(n.Taints, func(t config.Taint) bool { return t.Key == taint.Key })
		})
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(taint.Key, "node.kubernetes.io/") &&
			!strings.HasPrefix(taint.Key, "kip.elotl.co/") && !ofOne {
			fit.Taints = append(fit.Taints, taint)
		}
	}
	return fit
}

// patchOf is the JSON patch that adds to a template what it lacks.
func patchOf(spec *corev1.PodSpec, lacks daemonsets.Fit) []byte {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	const at = "/spec/template/spec/"
	var patch []operation
	if len(spec.Tolerations) == 0 && len(lacks.Tolerations) > 0 {
		patch = append(patch, operation{"add", at + "tolerations", lacks.Tolerations})
	} else {
		for _, t := range lacks.Tolerations {
			patch = append(patch, operation{"add", at + "tolerations/-", t})
		}
	}
	for _, t := range lacks.Terms {
		patch = append(patch, operation{"add", at + "affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/-", t})
	}
	text, _ := json.Marshal(patch) // of these types it does not fail
	return text
}

// notOnKip is the expression that keeps the pods of a DaemonSet off Kip's nodes.
const notOnKip = `{"key":"type","operator":"NotIn","values":["virtual-kubelet"]}`

// keepOff returns the command that keeps a DaemonSet off Kip's nodes; "" for one that somebody makes again as it was. A patch replaces all
// terms of a required node affinity, since nodeSelectorTerms is an atomic list: keepOff returns one only if the DaemonSet has no such
// affinity.
func (k daemonSets) keepOff(ctx context.Context, s *set) string {
	d, err := k.c.Cluster.Kube.AppsV1().DaemonSets(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		d = &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name}}
	}
	if managed(d) {
		return ""
	}
	affinity := d.Spec.Template.Spec.Affinity
	free := affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil
	if err == nil && free {
		return fmt.Sprintf(`kubectl patch daemonset -n %s %s -p '{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":`+
			`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[%s]}]}}}}}}}' # keeps it off Kip's nodes`,
			s.namespace, s.name, notOnKip)
	}
	return fmt.Sprintf("kubectl edit daemonset -n %s %s # add %s to matchExpressions of each of its nodeSelectorTerms: it keeps it off Kip's nodes",
		s.namespace, s.name, notOnKip)
}
