package cellapi

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/daemonsets"
	"github.com/elotl/kip/internal/hostports"
	"github.com/elotl/kip/internal/sanitize"
	"github.com/elotl/kip/internal/watches"
)

// setPods are the pods of DaemonSets that stand on virtual nodes and run beside others. A nil *setPods has none.
type setPods struct {
	server *Server
	rules  *daemonsets.Rules

	mu     sync.Mutex
	byNode map[string]map[types.UID]*setPod
	due    map[string][]*setPod // by node: see ExpectSets
	shown  map[types.UID]bool   // those that all cells of their node know of
	listed map[string]bool      // the nodes of which all are known
	// passed are the versions of pods that have gone while the pods of their node are listed: the list may have older ones.
	passed    map[string]map[types.UID]uint64
	observers []daemonsets.CopyObserver
	ports     []daemonsets.PortObserver
}

// setPod is one of them, as cells are shown it. It never changes.
type setPod struct {
	pod   *corev1.Pod
	name  string // of the set
	terms daemonsets.Terms
	seen  uint64 // resource version at the API server
}

// setName names the DaemonSet of a pod.
func (s *setPod) setName() types.NamespacedName {
	return types.NamespacedName{Namespace: s.pod.Namespace, Name: s.name}
}

func newSetPods(s *Server, rules *daemonsets.Rules) *setPods {
	if rules == nil {
		return nil
	}
	return &setPods{
		server: s,
		rules:  rules,
		byNode: map[string]map[types.UID]*setPod{},
		due:    map[string][]*setPod{},
		shown:  map[types.UID]bool{},
		listed: map[string]bool{},
		passed: map[string]map[types.UID]uint64{},
	}
}

// beside returns those that run beside a pod of a node, in an order that stays.
func (s *setPods) beside(node string, pod *corev1.Pod) (all []*setPod) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, set := range s.byNode[node] {
		if set.pod.UID != pod.UID && set.terms.Beside(pod) {
			all = append(all, set)
		}
	}
	slices.SortFunc(all, func(a, b *setPod) int { return daemonsets.Order(a.pod, b.pod) })
	return all
}

// has reports whether a pod stands on a node, also one that is being deleted. A nil *setPods has none.
func (s *setPods) has(node string, pod types.UID) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byNode[node][pod] != nil
}

// see notes a state of a pod, and has the cells of its node see it.
func (s *setPods) see(pod *corev1.Pod) {
	if s == nil || apiv1.DaemonSetOf(pod) == nil {
		return
	}
	rv, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		return
	}
	terms, runs, _ := s.rules.Of(pod)
	node := pod.Spec.NodeName
	// One that has ended is replaced.
	if !runs || watches.Ended(pod) {
		s.drop(node, pod.UID, rv)
		return
	}
	s.mu.Lock()
	was := s.byNode[node][pod.UID]
	// One that has a cell is not on others; see hasCell.
	if was != nil && (rv <= was.seen || sameToCells(was.pod, pod)) || rv <= s.passed[node][pod.UID] || s.server.cellOf(pod.UID) != nil {
		s.mu.Unlock()
		return
	}
	if s.byNode[node] == nil {
		s.byNode[node] = map[types.UID]*setPod{}
	}
	s.byNode[node][pod.UID] = &setPod{pod: prepared(pod), name: apiv1.DaemonSetOf(pod).Name, terms: terms, seen: rv}
	s.mu.Unlock()
	s.tell(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byNode[node][pod.UID] != nil {
		s.shown[pod.UID] = true
	}
}

// gone notes that a pod does not stand on its node any more.
func (s *setPods) gone(pod *corev1.Pod) {
	if s == nil {
		return
	}
	s.drop(pod.Spec.NodeName, pod.UID, math.MaxUint64) // a UID does not come back
}

// hasCell notes that a pod has a cell of its own.
func (s *setPods) hasCell(node string, pod types.UID) {
	if s != nil {
		s.drop(node, pod, 0)
	}
}

// drop takes a pod from the cells of its node, as of a version.
func (s *setPods) drop(node string, pod types.UID, version uint64) {
	s.mu.Lock()
	_, was := s.byNode[node][pod]
	delete(s.byNode[node], pod)
	delete(s.shown, pod)
	if passed := s.passed[node]; passed != nil {
		passed[pod] = max(passed[pod], version)
	}
	s.mu.Unlock()
	if was {
		s.tell(node)
	}
}

// lost asks the API server whether a pod is gone that a list lacks: no kubelet is to end a copy for a list that lacks too much.
func (s *setPods) lost(pod *corev1.Pod) {
	if s == nil || apiv1.DaemonSetOf(pod) == nil {
		return
	}
	s.mu.Lock()
	_, has := s.byNode[pod.Spec.NodeName][pod.UID]
	has = has || s.passed[pod.Spec.NodeName] != nil // the list under way may have it
	s.mu.Unlock()
	if !has {
		return
	}
	s.server.tasks.Start(func() {
		as, err := s.server.identityOf(pod.Spec.NodeName)
		if err != nil {
			return
		}
		selector := fields.Set{metav1.ObjectNameField: pod.Name, "spec.nodeName": as.name}.AsSelector().String()
		list, ok := s.ask(s.server.tasks.Lifetime(), as, pod.Namespace, selector)
		if !ok {
			return
		}
		if !slices.ContainsFunc(list, func(p corev1.Pod) bool { return p.UID == pod.UID }) {
			s.gone(pod)
		}
	})
}

// tell has the cells of a node see what runs beside their pods.
func (s *setPods) tell(node string) {
	for _, c := range s.server.allCells() {
		if c.as.name == node {
			c.setsChanged()
		}
	}
}

// list asks the API server, once, for all pods of a node, since an informer may have started from one that lags. It is false when ctx ends.
func (s *setPods) list(ctx context.Context, as *identity) bool {
	if s == nil {
		return true
	}
	as.listing.Lock() // one for all cells
	defer as.listing.Unlock()
	if s.knows(as.name) {
		return true
	}
	s.mu.Lock()
	s.passed[as.name] = map[types.UID]uint64{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.passed, as.name)
	}()
	all, ok := s.ask(ctx, as, "", fields.OneTermEqualSelector("spec.nodeName", as.name).String())
	if !ok {
		return false
	}
	for i := range all {
		s.see(&all[i])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed[as.name] = true
	return true
}

// knows reports whether the pods of a node are listed.
func (s *setPods) knows(node string) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed[node]
}

// ask lists pods as the API server has them now, until it answers. It is false when ctx ends.
func (s *setPods) ask(ctx context.Context, as *identity, namespace, selector string) ([]corev1.Pod, bool) {
	for tries := 1; ; tries++ {
		list, err := as.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err == nil {
			return list.Items, true
		}
		if ctx.Err() != nil {
			return nil, false
		}
		s.server.log.Warn("pods of DaemonSets not looked up, retrying", "node", as.name, "err", err)
		if backoff.Random(nil).Wait(ctx, s.server.clock, tries, 200*time.Millisecond, 10*time.Second) != nil {
			return nil, false
		}
	}
}

// prepared is a pod as cells are shown it, for all to share.
func prepared(pod *corev1.Pod) *corev1.Pod {
	shown := pod.DeepCopy()
	shown.ManagedFields = nil
	hostports.Restore(shown)
	// A quantity keeps its text when it is written for the first time: from here on nobody changes it.
	_, _ = shown.Marshal()
	return shown
}

// sameToCells reports whether two states of a pod are one to a kubelet. Their status is no cell's.
func sameToCells(shown, next *corev1.Pod) bool {
	next = next.DeepCopy()
	hostports.Restore(next)
	a, b := shown.ObjectMeta, next.ObjectMeta
	a.ManagedFields, b.ManagedFields, a.ResourceVersion, b.ResourceVersion = nil, nil, "", ""
	return equality.Semantic.DeepEqual(a, b) && equality.Semantic.DeepEqual(shown.Spec, next.Spec)
}

// ObserveCopies adds an observer.
func (s *Server) ObserveCopies(o daemonsets.CopyObserver) {
	if s.sets == nil {
		return
	}
	s.sets.mu.Lock()
	defer s.sets.mu.Unlock()
	s.sets.observers = append(s.sets.observers, o)
}

// changed tells the observers of a copy.
func (s *setPods) changed(cell string, set types.NamespacedName) {
	if s == nil {
		return
	}
	s.mu.Lock()
	observers := s.observers
	s.mu.Unlock()
	for _, o := range observers {
		o.CopyChanged(cell, set)
	}
}

// SetsBeside returns the pods of DaemonSets that run, or are to run, beside a pod on its node, of each set the newest. One that is due
// has no UID.
func (s *Server) SetsBeside(pod *corev1.Pod) (all []*corev1.Pod) {
	last := types.NamespacedName{}
	node := cmp.Or(pod.Spec.NodeName, s.nodeName)
	have := s.sets.beside(node, pod)
	for _, set := range have {
		if name := set.setName(); name != last {
			all, last = append(all, set.pod), name
		}
	}
	for _, due := range s.sets.dueBeside(node, pod, nil) {
		if !slices.ContainsFunc(have, due.isSet) {
			all = append(all, due.pod)
		}
	}
	return all
}

// Copies returns what is known of the copies of a DaemonSet's pod, by cell.
func (s *Server) Copies(set types.UID) (all []daemonsets.Copy) {
	if s.sets == nil {
		return nil
	}
	for _, c := range s.allCells() {
		all = append(all, c.copiesOf(set)...)
	}
	slices.SortFunc(all, func(a, b daemonsets.Copy) int { return cmp.Compare(a.Cell, b.Cell) })
	return all
}

// Shown reports whether all cells of its node know of a DaemonSet's pod: Copies has those of each that runs it, or is to.
func (s *Server) Shown(set types.UID) bool {
	if s.sets == nil {
		return true
	}
	s.sets.mu.Lock()
	defer s.sets.mu.Unlock()
	return s.sets.shown[set]
}

// CopiesOn returns what is known of the copies on a cell, in order of their names.
func (s *Server) CopiesOn(id string) []daemonsets.Copy {
	s.mu.Lock()
	c := s.cells[id]
	s.mu.Unlock()
	if s.sets == nil || c == nil {
		return nil
	}
	return c.copiesOf("")
}

// HasPod reports whether a cell of this process has a pod, and the copies beside it are known. Beside one that has not started yet there is
// none that could have been ready.
func (s *Server) HasPod(uid types.UID) bool {
	c := s.cellOf(uid)
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	started := c.pod != nil && c.pod.current != nil && c.pod.current.Status.StartTime != nil
	return c.copies.isKnown && (!started || c.kept || c.decidesCopies())
}

// copiesOf returns what is known of the copies of a set's pod on the cell, of all for "".
func (c *boundPod) copiesOf(set types.UID) (all []daemonsets.Copy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pod == nil {
		return nil
	}
	own := apiv1.PodReference{Namespace: c.pod.namespace, Name: c.pod.name, UID: c.pod.uid}
	for uid, p := range c.copies.all {
		if set != "" && uid != set {
			continue
		}
		is := daemonsets.Copy{
			Cell:     c.id,
			Pod:      own,
			Set:      types.NamespacedName{Namespace: p.namespace, Name: p.name},
			UID:      uid,
			Shown:    p.since,
			Newer:    p.newer,
			Reported: p.reported,
			Ready:    p.isReady() && !p.hidden,
			WasReady: p.wasReady,
		}
		for _, list := range [][]corev1.ContainerStatus{p.status.InitContainerStatuses, p.status.ContainerStatuses} {
			for _, s := range list {
				is.Restarts += max(s.RestartCount, 0)
			}
		}
		if !is.Ready {
			is.Why = p.why()
		}
		all = append(all, is)
	}
	for uid, why := range c.copies.leftOut {
		if set == "" || uid == set {
			is := daemonsets.Copy{Cell: c.id, Pod: own, UID: uid, LeftOut: true, Why: sanitize.Printable(cut(why, maxTrouble))}
			is.Set = c.server.sets.nameOf(c.as.name, uid)
			all = append(all, is)
		}
	}
	slices.SortFunc(all, func(a, b daemonsets.Copy) int { return cmp.Compare(a.Set.String(), b.Set.String()) })
	return all
}

func (s *setPods) nameOf(node string, uid types.UID) types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.byNode[node][uid]
	if set == nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: set.pod.Namespace, Name: set.pod.Name}
}

// maxCopyWhy bounds why a copy is not ready, in bytes.
const maxCopyWhy = 200

// why says why a copy is not ready, as its kubelet tells.
func (p *copied) why() string {
	var reasons []string
	say := func(reason, message string) {
		if reason != "" && message != "" {
			reason += ": " + message
		}
		if reason != "" && len(reasons) == 0 {
			reasons = append(reasons, reason)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{p.status.InitContainerStatuses, p.status.ContainerStatuses} {
		for _, s := range list {
			if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
				say(w.Reason, w.Message)
			}
		}
	}
	say(p.status.Reason, p.status.Message)
	if p.trouble != "" {
		say(p.trouble, "")
	}
	switch {
	case len(reasons) > 0:
	case !p.reported:
		say("its kubelet has not told of it", "")
	case p.status.Phase == corev1.PodPending:
		say("it is starting", "")
	default:
		say("its containers are not ready", "")
	}
	return sanitize.Printable(cut(reasons[0], maxCopyWhy))
}
