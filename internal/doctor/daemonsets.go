package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
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
	for _, s := range all {
		switch {
		case s.beside && err != nil:
			found = append(found, unasked("list the cells, on which DaemonSet "+s.String()+" runs beside pods", err))
		case s.beside:
			found = append(found, fares(s, cells))
		case s.refused != "":
			cure := k.keepOff(ctx, s.namespace, s.name) + "; docs/daemonsets.md says what runs beside pods"
			found = append(found, finding.Warn(cure, "%s", s.refused))
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
		cure := k.keepOff(ctx, s.namespace, s.name) + "; docs/daemonsets.md runs it beside pods, docs/nodes.md gives it a machine"
		found = append(found, finding.Warn(cure,
			"DaemonSet %s stands on Kip's nodes without a machine: what it does for a node, it does not do for the pods on cells", s))
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
		s := &set{namespace: p.Namespace, name: owner.Name, pods: map[string]bool{}}
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
	which := strings.Join(bad[:min(len(bad), namedCells)], ", ")
	if more := len(bad) - namedCells; more > 0 {
		which += fmt.Sprintf(", and %d more", more)
	}
	cure := fmt.Sprintf("kipctl exec %s -- ls /var/log/containers # the logs of its copies; kubectl get cell %s -o yaml has status.beside", first, first)
	const message = "DaemonSet %s runs beside pods: of %d cells the copies on %d are not ready, or do not run: %s"
	if s.unready {
		return finding.Fail(cure, message, s, running, len(bad), which)
	}
	return finding.Warn(cure, message, s, running, len(bad), which)
}

// named names the entries of cells.daemonSets that name no DaemonSet, and the DaemonSets of others that have no pod on Kip's nodes.
func (k daemonSets) named(ctx context.Context, on []*set) (found []finding.Finding) {
	if k.c.Provider == nil || len(k.c.Provider.Cells.DaemonSets) == 0 || len(k.own) == 0 {
		return nil
	}
	list, err := k.c.Cluster.Kube.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return one(unasked("list the DaemonSets, of which cells.daemonSets names some", err))
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
				found = append(found, k.absent(key, d))
			}
		}
		if names == 0 {
			found = append(found, finding.Warn(k.editProvider(key), "%s names no DaemonSet: %s", key, misses(e, list.Items)))
		}
	}
	return found
}

// namedBy reports whether an entry names a DaemonSet.
func namedBy(e config.DaemonSet, d *appsv1.DaemonSet) bool {
	s, err := labels.Parse(e.Selector)
	return err == nil && e.Namespace == d.Namespace && (e.Name == "" || e.Name == d.Name) && s.Matches(labels.Set(d.Spec.Template.Labels))
}

// hasMachine reports whether a DaemonSet has pods on Kip's nodes, all the same.
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

// absent says why a DaemonSet has no pod on Kip's nodes.
func (k daemonSets) absent(key string, d *appsv1.DaemonSet) finding.Finding {
	spec := &d.Spec.Template.Spec
	for _, taint := range k.own[0].Spec.Taints {
		// Those of Kubernetes are tolerated by all DaemonSets, and others of Kip's come and go.
		if taint.Effect == corev1.TaintEffectPreferNoSchedule || strings.HasPrefix(taint.Key, "node.kubernetes.io/") ||
			strings.HasPrefix(taint.Key, "kip.elotl.co/") ||
			slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Logger{}, &taint, false) }) {
			continue
		}
		toleration := fmt.Sprintf(`{"key":%q,"operator":"Exists","effect":%q}`, taint.Key, taint.Effect)
		at := "/-"
		if len(spec.Tolerations) == 0 {
			at, toleration = "", "["+toleration+"]"
		}
		return finding.Warn(fmt.Sprintf(`kubectl patch daemonset -n %s %s --type=json -p '[{"op":"add","path":"/spec/template/spec/tolerations%s","value":%s}]'`,
			d.Namespace, d.Name, at, toleration),
			"%s names DaemonSet %s/%s, which runs beside no pod: it does not tolerate the taint %s of Kip's nodes, so it has no pod there", key, d.Namespace,
			d.Name, taint.ToString())
	}
	why := ""
	if by := keptOff(spec, k.own[0].Labels); by != "" {
		why = ": " + by + " keeps it off"
	}
	return finding.Warn(fmt.Sprintf("kubectl edit daemonset -n %s %s # its nodeSelector and affinity; if a chart writes it, the chart's values",
		d.Namespace, d.Name),
		"%s names DaemonSet %s/%s, which runs beside no pod: it has no pod on Kip's nodes%s", key, d.Namespace, d.Name, why)
}

// keptOff names what of the node selector and the required affinity of a pod keeps it off a node with these labels; "" for nothing. Of
// several terms it names the first that does not match.
func keptOff(spec *corev1.PodSpec, own map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		if value := spec.NodeSelector[key]; own[key] != value {
			return fmt.Sprintf("nodeSelector %s: %s", key, value)
		}
	}
	affinity := spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	first := ""
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		unmet := slices.IndexFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool { return !meets(own, e) })
		if unmet < 0 {
			return ""
		}
		if e := term.MatchExpressions[unmet]; first == "" {
			first = strings.TrimSuffix(fmt.Sprintf("its affinity %s %s %s", e.Key, e.Operator, strings.Join(e.Values, ", ")), " ")
		}
	}
	return first
}

// meets reports whether labels meet a requirement.
func meets(own map[string]string, e corev1.NodeSelectorRequirement) bool {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: own}}
	s, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{e}},
	}})
	return err == nil && s.Match(node)
}

// notOnKip is the expression that keeps the pods of a DaemonSet off Kip's nodes.
const notOnKip = `{"key":"type","operator":"NotIn","values":["virtual-kubelet"]}`

// keepOff returns the command that keeps a DaemonSet off Kip's nodes. A patch replaces all terms of a required node affinity, since
// nodeSelectorTerms is an atomic list: keepOff returns one only if the DaemonSet has no such affinity.
func (k daemonSets) keepOff(ctx context.Context, namespace, name string) string {
	set, err := k.c.Cluster.Kube.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		affinity := set.Spec.Template.Spec.Affinity
		if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
			return fmt.Sprintf(`kubectl patch daemonset -n %s %s -p '{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":`+
				`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[%s]}]}}}}}}}' # keeps it off Kip's nodes`,
				namespace, name, notOnKip)
		}
	}
	return fmt.Sprintf("kubectl edit daemonset -n %s %s # add %s to matchExpressions of each of its nodeSelectorTerms: it keeps it off Kip's nodes",
		namespace, name, notOnKip)
}
