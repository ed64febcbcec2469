package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/elotl/kip/internal/agentapi"
)

// Index holds policies, namespaces and pods, and says what is allowed to the pods
// that are its subjects. It is for one goroutine at a time.
type Index struct {
	namespaces map[string]labels.Set
	pods       map[string]map[types.NamespacedName]*Pod // by namespace
	policies   map[string]map[types.NamespacedName]*policy
	subjects   map[types.NamespacedName]*subject
	lastID     int

	// active are the policies that select a subject, and candidates, by
	// namespace, those of their rules that pods in it can count for.
	active     map[types.NamespacedName]*policy
	candidates map[string][]*rule
	// unions are the addresses of several rules together, by their IDs. They
	// last until one of any rule's pods changes.
	unions map[string]*union

	dirty sets.Set[types.NamespacedName]
}

// subject is a pod whose rules are asked for.
type subject struct {
	*Pod
	policies map[types.NamespacedName]*policy // that select it
}

// union is a set of addresses and its canonical form.
type union struct {
	any      bool
	prefixes []netip.Prefix
}

// NewIndex returns an Index without content.
func NewIndex() *Index {
	return &Index{
		namespaces: map[string]labels.Set{},
		pods:       map[string]map[types.NamespacedName]*Pod{},
		policies:   map[string]map[types.NamespacedName]*policy{},
		subjects:   map[types.NamespacedName]*subject{},
		active:     map[types.NamespacedName]*policy{},
		candidates: map[string][]*rule{},
		unions:     map[string]*union{},
		dirty:      sets.New[types.NamespacedName](),
	}
}

// Changed returns the subjects whose rules may have changed since the last call.
func (x *Index) Changed() []types.NamespacedName {
	changed := x.dirty.UnsortedList()
	x.dirty = sets.New[types.NamespacedName]()
	return changed
}

// NeedsPods says whether the rules of a subject depend on the cluster's pods.
func (x *Index) NeedsPods() bool {
	for _, p := range x.active {
		if p.needsPods() {
			return true
		}
	}
	return false
}

// DependsOnPods says whether the rules of this subject do.
func (x *Index) DependsOnPods(name types.NamespacedName) bool {
	s := x.subjects[name]
	if s == nil {
		return false
	}
	for _, p := range s.policies {
		if p.needsPods() {
			return true
		}
	}
	return false
}

func (p *policy) rules() []*rule { return append(slices.Clip(p.ingress.rules), p.egress.rules...) }

func (p *policy) needsPods() bool { return slices.ContainsFunc(p.rules(), (*rule).needsPods) }

// SetSubject adds a pod whose rules are asked for, or changes it.
func (x *Index) SetSubject(pod *Pod) {
	s := x.subjects[pod.Name]
	if s != nil && s.equal(pod) {
		return
	}
	if s == nil {
		s = &subject{policies: map[types.NamespacedName]*policy{}}
		x.subjects[pod.Name] = s
	}
	s.Pod = pod
	x.dirty.Insert(pod.Name)
	for _, p := range x.policies[pod.Name.Namespace] {
		x.link(s, p)
	}
}

// RemoveSubject forgets one.
func (x *Index) RemoveSubject(name types.NamespacedName) {
	s := x.subjects[name]
	if s == nil {
		return
	}
	delete(x.subjects, name)
	x.dirty.Delete(name)
	for _, p := range s.policies {
		p.subjects.Delete(name)
		x.activate(p)
	}
}

// link notes whether a policy selects a subject of its namespace.
func (x *Index) link(s *subject, p *policy) {
	selects := !s.HostNetwork && p.selector.Matches(labels.Set(s.Labels))
	if p.subjects.Has(s.Name) == selects {
		return
	}
	if selects {
		p.subjects.Insert(s.Name)
		s.policies[p.name] = p
	} else {
		p.subjects.Delete(s.Name)
		delete(s.policies, p.name)
	}
	x.dirty.Insert(s.Name)
	x.activate(p)
}

// activate finds the pods of the rules of a policy that has got its first subject,
// and forgets those of one that has lost its last.
func (x *Index) activate(p *policy) {
	isActive := x.active[p.name] == p
	switch wanted := p.subjects.Len() > 0; {
	case wanted == isActive:
		return
	case !wanted:
		delete(x.active, p.name)
		for _, r := range p.rules() {
			r.pods = nil
			r.changed()
		}
	default:
		x.active[p.name] = p
		for _, r := range p.rules() {
			r.pods = map[types.NamespacedName]member{}
			if !r.needsPods() {
				continue
			}
			for ns, pods := range x.pods {
				set, known := x.namespaces[ns]
				if !r.looksAt(ns, set, known) {
					continue
				}
				for name, pod := range pods {
					if m, counts := r.counts(pod, set, known); counts {
						r.pods[name] = m
					}
				}
			}
		}
	}
	x.forgetCandidates()
}

func (x *Index) forgetCandidates() {
	clear(x.candidates)
	clear(x.unions)
}

// SetPolicy adds a policy or changes it. The error says what of it cannot be
// read; the rest of it holds.
func (x *Index) SetPolicy(o *networkingv1.NetworkPolicy) error {
	name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if old := x.policies[name.Namespace][name]; old != nil && old.version != "" && old.version == o.ResourceVersion {
		return nil
	}
	p, err := compile(o, func() int { x.lastID++; return x.lastID })
	if p == nil {
		return err // the old one goes on
	}
	x.RemovePolicy(name)
	if x.policies[name.Namespace] == nil {
		x.policies[name.Namespace] = map[types.NamespacedName]*policy{}
	}
	x.policies[name.Namespace][name] = p
	for _, s := range x.subjects {
		if s.Name.Namespace == name.Namespace {
			x.link(s, p)
		}
	}
	return err
}

// RemovePolicy forgets a policy.
func (x *Index) RemovePolicy(name types.NamespacedName) {
	p := x.policies[name.Namespace][name]
	if p == nil {
		return
	}
	delete(x.policies[name.Namespace], name)
	if len(x.policies[name.Namespace]) == 0 {
		delete(x.policies, name.Namespace)
	}
	for s := range p.subjects {
		delete(x.subjects[s].policies, name)
		x.dirty.Insert(s)
	}
	p.subjects = sets.New[types.NamespacedName]()
	x.activate(p)
}

// Policies returns the names of all policies.
func (x *Index) Policies() (names []types.NamespacedName) {
	for _, in := range x.policies {
		for name := range in {
			names = append(names, name)
		}
	}
	return names
}

// SetNamespace adds a namespace or changes its labels.
func (x *Index) SetNamespace(name string, set map[string]string) {
	if old, known := x.namespaces[name]; known && labels.Equals(old, set) {
		return
	}
	x.namespaces[name] = set
	x.namespaceChanged(name)
}

// RemoveNamespace forgets a namespace. Its pods are matched by no
// namespaceSelector any more.
func (x *Index) RemoveNamespace(name string) {
	if _, known := x.namespaces[name]; known {
		delete(x.namespaces, name)
		x.namespaceChanged(name)
	}
}

// Namespaces returns the names of all namespaces.
func (x *Index) Namespaces() (names []string) {
	for name := range x.namespaces {
		names = append(names, name)
	}
	return names
}

func (x *Index) namespaceChanged(name string) {
	delete(x.candidates, name)
	set, known := x.namespaces[name]
	for _, p := range x.active {
		for _, r := range p.rules() {
			if !slices.ContainsFunc(r.selectors, func(s peerSelector) bool { return s.namespace == "" }) {
				continue
			}
			for pod, is := range x.pods[name] {
				x.count(r, pod, is, set, known)
			}
		}
	}
}

// SetPod adds a pod of the cluster or changes it.
func (x *Index) SetPod(pod *Pod) {
	ns := pod.Name.Namespace
	if old := x.pods[ns][pod.Name]; old != nil && old.equal(pod) {
		return
	}
	if x.pods[ns] == nil {
		x.pods[ns] = map[types.NamespacedName]*Pod{}
	}
	x.pods[ns][pod.Name] = pod
	set, known := x.namespaces[ns]
	for _, r := range x.candidatesIn(ns) {
		x.count(r, pod.Name, pod, set, known)
	}
}

// Pod returns a pod of the cluster, nil when it is not there. Nobody modifies one.
func (x *Index) Pod(name types.NamespacedName) *Pod { return x.pods[name.Namespace][name] }

// RemovePod forgets a pod of the cluster.
func (x *Index) RemovePod(name types.NamespacedName) {
	if x.pods[name.Namespace][name] == nil {
		return
	}
	delete(x.pods[name.Namespace], name)
	if len(x.pods[name.Namespace]) == 0 {
		delete(x.pods, name.Namespace)
	}
	for _, r := range x.candidatesIn(name.Namespace) {
		x.count(r, name, nil, nil, false)
	}
}

// Pods returns the names of the cluster's pods.
func (x *Index) Pods() (names []types.NamespacedName) {
	for _, in := range x.pods {
		for name := range in {
			names = append(names, name)
		}
	}
	return names
}

// candidatesIn are the active rules that pods of a namespace can count for.
func (x *Index) candidatesIn(ns string) []*rule {
	rules, there := x.candidates[ns]
	if !there {
		set, known := x.namespaces[ns]
		for _, p := range x.active {
			for _, r := range p.rules() {
				if r.looksAt(ns, set, known) {
					rules = append(rules, r)
				}
			}
		}
		x.candidates[ns] = rules
	}
	return rules
}

// count notes whether and how a pod, nil when it is gone, counts for a rule.
func (x *Index) count(r *rule, name types.NamespacedName, pod *Pod, namespace labels.Set, known bool) {
	was, did := r.pods[name]
	var is member
	does := false
	if pod != nil {
		is, does = r.counts(pod, namespace, known)
	}
	if does {
		r.pods[name] = is
	} else {
		delete(r.pods, name)
	}
	same := did == does && (!does || was.selected == is.selected && slices.Equal(was.Addresses, is.Addresses) &&
		(!r.resolves() || slices.Equal(was.Ports, is.Ports)))
	if same {
		return
	}
	r.changed()
	clear(x.unions)
	x.dirty = x.dirty.Union(r.policy.subjects)
}

// Rules returns what is allowed to a subject; ok is false when it is none. The
// slices must not be changed.
func (x *Index) Rules(name types.NamespacedName) (ingress, egress agentapi.Direction, ok bool) {
	s := x.subjects[name]
	if s == nil {
		return ingress, egress, false
	}
	selecting := make([]*policy, 0, len(s.policies))
	for _, p := range s.policies {
		selecting = append(selecting, p)
	}
	slices.SortFunc(selecting, func(a, b *policy) int { return cmp.Compare(a.name.Name, b.name.Name) })
	in, out := newParts(), newParts()
	for _, p := range selecting {
		ingress.Isolated = ingress.Isolated || p.ingress.applies
		egress.Isolated = egress.Isolated || p.egress.applies
		for _, r := range p.ingress.rules {
			ports := r.ports
			for _, n := range r.names {
				for _, number := range s.named(n.name, n.protocol) {
					ports = append(slices.Clip(ports), agentapi.Ports{Protocol: string(n.protocol), First: number, Last: number})
				}
			}
			in.add(r, nil, r.anyPort, mergePorts(slices.Clone(ports)))
		}
		for _, r := range p.egress.rules {
			out.add(r, nil, r.anyPort, r.ports)
			if r.evaluate() != nil {
				continue // cannot be: only invalid addresses make it fail
			}
			for ports := range r.byNumber {
				out.add(r, &ports, false, []agentapi.Ports{ports})
			}
		}
	}
	ingress.Allowed, egress.Allowed = x.join(in), x.join(out)
	return ingress, egress, true
}

// part are rules, or parts of them, that are for the same ports.
type part struct {
	anyPort bool
	ports   []agentapi.Ports
	sources []source
}

// source is a rule's peers, or those for which a name means this number.
type source struct {
	*rule
	number *agentapi.Ports
}

type parts map[string]*part // by ports

func newParts() parts { return parts{} }

func (all parts) add(r *rule, number *agentapi.Ports, anyPort bool, ports []agentapi.Ports) {
	if !anyPort && len(ports) == 0 {
		return
	}
	key := "any"
	if !anyPort {
		key = fmt.Sprint(ports)
	}
	if all[key] == nil {
		all[key] = &part{anyPort: anyPort, ports: ports}
	}
	all[key].sources = append(all[key].sources, source{r, number})
}

// join works out the addresses of each part, in an order that depends on nothing
// else than the result.
func (x *Index) join(all parts) (allowed []agentapi.Allowed) {
	for _, p := range all {
		u := x.union(p.sources)
		if u.any || len(u.prefixes) > 0 {
			allowed = append(allowed, agentapi.Allowed{
				Any:       u.any,
				Addresses: u.prefixes,
				AnyPort:   p.anyPort,
				Ports:     p.ports,
			})
		}
	}
	slices.SortFunc(allowed, func(a, b agentapi.Allowed) int { return slices.CompareFunc(a.Ports, b.Ports, comparePorts) })
	return allowed
}

func comparePorts(a, b agentapi.Ports) int {
	return cmp.Or(strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

func (x *Index) union(sources []source) *union {
	var key strings.Builder
	for _, s := range sources {
		fmt.Fprint(&key, s.id, s.number, " ")
	}
	if u := x.unions[key.String()]; u != nil {
		return u
	}
	u := &union{}
	var b netipx.IPSetBuilder
	for _, s := range sources {
		if s.any && s.number == nil {
			u.any = true
			break
		}
		if s.evaluate() != nil {
			continue
		}
		if s.number == nil {
			b.AddSet(s.peers)
		} else {
			b.AddSet(s.byNumber[*s.number])
		}
	}
	if !u.any {
		if set, err := b.IPSet(); err == nil {
			u.prefixes = set.Prefixes()
		}
	}
	x.unions[key.String()] = u
	return u
}
