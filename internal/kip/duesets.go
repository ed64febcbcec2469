package kip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
)

const (
	// dueEvery is how often the DaemonSets that are named are read, and for how long one has no pod on a node before somebody is told: an
	// update takes a moment. dueSoon is how often is looked whether there is another node.
	dueEvery, dueSoon = 30 * time.Second, 2 * time.Second
	// mostSoon is how often a node that is not registered is looked for soon.
	mostSoon = 15
)

// dueSets knows of the DaemonSets that are to run beside pods which are to have a pod on which node. Cells wait for these, and who runs
// the cluster hears of those that have none.
type dueSets struct {
	rules  *daemonsets.Rules // nil for none
	client kubernetes.Interface
	// nodes are Kip's, and pods those on them.
	nodes func() []string
	pods  func() ([]*corev1.Pod, error)
	// expect is told the pods that are due on a node, and event reports something of a node.
	expect func(node string, pods []*corev1.Pod)
	event  func(node string, e events.Event)
	clock  clock.WithTicker
	warn   func(error)

	absent map[absence]lasting
	looked map[string]bool // the nodes that have been looked at
	missed map[string]int  // how often the others were not there
	first  chan struct{}   // closed after the first round
	once   sync.Once
}

// absence is that of a set on a node, and why.
type absence struct {
	node string
	set  types.NamespacedName
	why  string
}

// lasting is since when something is so, and whether somebody was told.
type lasting struct {
	since time.Time
	told  bool
}

// namedSet is a DaemonSet that an entry names. set is nil if there is none.
type namedSet struct {
	name types.NamespacedName
	set  *appsv1.DaemonSet
}

// run keeps it up until ctx ends.
func (d *dueSets) run(ctx context.Context) error {
	ticker := d.clock.NewTicker(dueSoon)
	defer ticker.Stop()
	var last time.Time
	for said := ""; ; {
		if now := d.clock.Now(); last.IsZero() || now.Sub(last) >= dueEvery || d.hasNewNode() {
			last = now
			switch err := d.look(ctx); {
			case err == nil:
				said = ""
			case err.Error() != said && ctx.Err() == nil:
				said = err.Error()
				d.warn(err)
			}
			d.once.Do(func() { close(d.first) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// ready waits for the first round, since the first pods may be bound at once.
func (d *dueSets) ready(ctx context.Context) { await(ctx, d.first) }

func (d *dueSets) hasNewNode() bool {
	return slices.ContainsFunc(d.nodes(), func(name string) bool { return !d.looked[name] })
}

// look reads the sets and the nodes. What cannot be read is nobody's to wait for.
func (d *dueSets) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	sets, err := d.read(ctx)
	there, unlisted := d.there()
	absent, looked, missed := map[absence]lasting{}, map[string]bool{}, map[string]int{}
	for _, name := range d.nodes() {
		n, unread := d.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(unread) && d.missed[name] < mostSoon {
			missed[name] = d.missed[name] + 1
			continue // it is registered in a moment
		}
		looked[name] = true
		if unread != nil {
			err = errors.Join(err, fmt.Errorf("read node %s: %w", name, unread))
			d.expect(name, nil)
			continue
		}
		var due []*corev1.Pod
		for _, s := range sets {
			pod, why := d.dueOn(n, s)
			if pod != nil {
				due = append(due, pod)
			}
			on := absence{node: name, set: s.name, why: why}
			if !unlisted && why != "" && !there[absence{node: name, set: s.name}] && !removed(n) {
				d.note(absent, on)
			}
		}
		d.expect(name, due)
	}
	d.absent, d.looked, d.missed = absent, looked, missed
	return err
}

// note notes that a set has no pod on a node, and reports it once.
func (d *dueSets) note(absent map[absence]lasting, on absence) {
	now := d.clock.Now()
	is, known := d.absent[on]
	if !known {
		is.since = now
	}
	tells := !is.told && now.Sub(is.since) >= dueEvery
	is.told = is.told || tells
	if absent[on] = is; tells {
		d.event(on.node, events.NewDaemonSetAbsent(on.set.String(), d.rules.NamedBy(on.set.Namespace, on.set.Name), on.why))
	}
}

// dueOn returns the pod of a set that is due on a node, and why a set has none there; nil and "" for a set that needs none there.
func (d *dueSets) dueOn(n *corev1.Node, s namedSet) (due *corev1.Pod, why string) {
	if s.set == nil {
		return nil, "there is no such DaemonSet"
	}
	template := s.set.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:       s.set.Namespace,
		Labels:          template.Labels,
		Annotations:     template.Annotations,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
	}, Spec: template.Spec}
	pod.Spec.NodeName = n.Name
	if _, runs, _ := d.rules.Of(pod); !runs {
		return nil, "" // of another entry's labels, or its pod says why not
	}
	if bars := daemonsets.Barred(&template.Spec, n); bars != "" {
		return nil, bars
	}
	return pod, "nothing that Kip knows of keeps it off, and its controller has made none: `kubectl describe daemonset` may say why"
}

// removed reports whether a node takes no more pods.
func removed(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == node.RemovedTaint })
}

// there are the sets that have a pod on a node; unlisted reports that it is not known.
func (d *dueSets) there() (have map[absence]bool, unlisted bool) {
	all, err := d.pods()
	if err != nil {
		return nil, true
	}
	have = map[absence]bool{}
	for _, p := range all {
		if owner := apiv1.DaemonSetOf(p); owner != nil {
			have[absence{node: p.Spec.NodeName, set: types.NamespacedName{Namespace: p.Namespace, Name: owner.Name}}] = true
		}
	}
	return have, false
}

// read returns the sets that entries name.
func (d *dueSets) read(ctx context.Context) (sets []namedSet, err error) {
	apps := d.client.AppsV1()
	add := func(s namedSet) {
		if (s.set == nil || s.set.DeletionTimestamp == nil) && !slices.ContainsFunc(sets, func(is namedSet) bool { return is.name == s.name }) {
			sets = append(sets, s)
		}
	}
	for _, name := range d.rules.Named() {
		if name.Name != "" {
			set, failed := apps.DaemonSets(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
			switch {
			case failed == nil:
				add(namedSet{name: name, set: set})
			case apierrors.IsNotFound(failed):
				add(namedSet{name: name})
			default:
				err = errors.Join(err, fmt.Errorf("read DaemonSet %s: %w", name, failed))
			}
			continue
		}
		list, failed := apps.DaemonSets(name.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("list the DaemonSets of namespace %s: %w", name.Namespace, failed))
			continue
		}
		for i := range list.Items {
			set := &list.Items[i]
			add(namedSet{name: types.NamespacedName{Namespace: set.Namespace, Name: set.Name}, set: set})
		}
	}
	return sets, err
}

// followSets makes what knows which DaemonSets are due; nil where none runs beside pods.
func (t *term) followSets(rules *daemonsets.Rules, all *nodes.Nodes, cellAPI *cellapi.Server) *dueSets {
	if rules == nil {
		return nil
	}
	return &dueSets{
		rules:  rules,
		client: t.api.asKip,
		nodes: func() (names []string) {
			for _, n := range all.Own() {
				names = append(names, n.Name)
			}
			return names
		},
		pods:   all.ListPods,
		expect: cellAPI.ExpectSets,
		event:  all.Event,
		clock:  t.clock,
		warn: func(err error) {
			t.Log.Warn("Kip does not know which DaemonSets are to run beside pods: pods do not wait for those that have no pod yet", "err", err)
		},
		first: make(chan struct{}),
	}
}
