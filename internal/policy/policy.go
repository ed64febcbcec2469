package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/elotl/kip/internal/agentapi"
)

// policy is a NetworkPolicy, made ready to be evaluated.
type policy struct {
	name            types.NamespacedName
	version         string // of the object, if it has one
	selector        labels.Selector
	ingress, egress side
	// subjects are the pods whose rules are asked for and that it selects. A
	// policy without one costs nothing.
	subjects sets.Set[types.NamespacedName]
}

// side is one direction of a policy.
type side struct {
	applies bool
	rules   []*rule
}

// rule is one of the rules of a direction.
type rule struct {
	id     int
	policy *policy
	// any is true for all addresses.
	any       bool
	blocks    *netipx.IPSet // those of its ipBlocks, less what they except
	selectors []peerSelector
	anyPort   bool
	ports     []agentapi.Ports // those with numbers
	names     []namedPort
	egress    bool

	// pods are those that count: that its selectors match, or, for a named port
	// of an egress rule, those that its peers include. nil as long as no subject
	// needs it.
	pods map[types.NamespacedName]member
	// What follows is worked out from these, nil when it must be done anew.
	peers *netipx.IPSet
	// byNumber are the peers for which a name means each number.
	byNumber map[agentapi.Ports]*netipx.IPSet
}

// member is a pod that counts for a rule.
type member struct {
	*Pod
	selected bool // by a selector, so with all its addresses
}

// peerSelector are the pods that match in the namespaces that match.
type peerSelector struct {
	namespace  string // if not "", the only one
	namespaces labels.Selector
	pods       labels.Selector
}

type namedPort struct {
	name     string
	protocol corev1.Protocol
}

// compile reads a policy. What the API server would have refused selects and
// allows nothing more than what is valid in it, and is an error.
func compile(p *networkingv1.NetworkPolicy, nextID func() int) (*policy, error) {
	c := &policy{
		name: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, version: p.ResourceVersion,
		subjects: sets.New[types.NamespacedName](),
	}
	fail := func(field string, err error) error {
		return fmt.Errorf("NetworkPolicy %s: %s: %w", c.name, field, err)
	}
	var err error
	if c.selector, err = metav1.LabelSelectorAsSelector(&p.Spec.PodSelector); err != nil {
		return nil, fail("spec.podSelector", err)
	}
	c.ingress.applies = len(p.Spec.PolicyTypes) == 0 || slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	c.egress.applies = len(p.Spec.PolicyTypes) == 0 && len(p.Spec.Egress) > 0 ||
		slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	var problems error
	add := func(s *side, egress bool, field string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
		r := &rule{
			id:      nextID(),
			policy:  c,
			egress:  egress,
			any:     len(peers) == 0,
			anyPort: len(ports) == 0,
		}
		if err := r.readPeers(c.name.Namespace, peers); err != nil && problems == nil {
			problems = fail(field, err)
		}
		if err := r.readPorts(ports); err != nil && problems == nil {
			problems = fail(field+".ports", err)
		}
		s.rules = append(s.rules, r)
	}
	if c.ingress.applies {
		for i, r := range p.Spec.Ingress {
			add(&c.ingress, false, fmt.Sprintf("spec.ingress[%d]", i), r.From, r.Ports)
		}
	}
	if c.egress.applies {
		for i, r := range p.Spec.Egress {
			add(&c.egress, true, fmt.Sprintf("spec.egress[%d]", i), r.To, r.Ports)
		}
	}
	return c, problems
}

func (r *rule) readPeers(namespace string, peers []networkingv1.NetworkPolicyPeer) error {
	var blocks netipx.IPSetBuilder
	var problem error
	note := func(err error) {
		if problem == nil {
			problem = err
		}
	}
	for _, p := range peers {
		if p.IPBlock != nil {
			set, err := blockOf(p.IPBlock)
			if err != nil {
				note(err)
				continue
			}
			blocks.AddSet(set)
			continue
		}
		if p.PodSelector == nil && p.NamespaceSelector == nil {
			note(fmt.Errorf("a peer without ipBlock, podSelector and namespaceSelector, which matches nothing"))
			continue
		}
		s := peerSelector{namespace: namespace, pods: labels.Everything()}
		var err error
		if p.NamespaceSelector != nil {
			s.namespace = ""
			if s.namespaces, err = metav1.LabelSelectorAsSelector(p.NamespaceSelector); err != nil {
				note(fmt.Errorf("namespaceSelector: %w", err))
				continue
			}
		}
		if p.PodSelector != nil {
			if s.pods, err = metav1.LabelSelectorAsSelector(p.PodSelector); err != nil {
				note(fmt.Errorf("podSelector: %w", err))
				continue
			}
		}
		r.selectors = append(r.selectors, s)
	}
	var err error
	if r.blocks, err = blocks.IPSet(); err != nil {
		note(err)
		r.blocks = &netipx.IPSet{}
	}
	return problem
}

// blockOf are the addresses of an ipBlock. One whose exception cannot be read
// has none.
func blockOf(b *networkingv1.IPBlock) (*netipx.IPSet, error) {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil, fmt.Errorf("ipBlock.cidr %q: %w", b.CIDR, err)
	}
	var set netipx.IPSetBuilder
	set.AddPrefix(cidr.Masked())
	for _, e := range b.Except {
		except, err := netip.ParsePrefix(e)
		if err != nil {
			return nil, fmt.Errorf("ipBlock.except %q: %w", e, err)
		}
		set.RemovePrefix(except.Masked())
	}
	return set.IPSet()
}

func (r *rule) readPorts(ports []networkingv1.NetworkPolicyPort) error {
	var problem error
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if !slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, protocol) {
			problem = fmt.Errorf("protocol %q must be TCP, UDP or SCTP", protocol)
			continue
		}
		switch {
		case p.Port == nil:
			r.ports = append(r.ports, agentapi.Ports{Protocol: string(protocol), First: 0, Last: 65535})
		case p.Port.Type == intstr.String:
			if !slices.Contains(r.names, namedPort{p.Port.StrVal, protocol}) {
				r.names = append(r.names, namedPort{p.Port.StrVal, protocol})
			}
		default:
			first, last := p.Port.IntVal, p.Port.IntVal
			if p.EndPort != nil {
				last = *p.EndPort
			}
			if first < 0 || last > 65535 || first > last {
				problem = fmt.Errorf("port %d to endPort %d is no range of ports", first, last)
				continue
			}
			r.ports = append(r.ports, agentapi.Ports{Protocol: string(protocol), First: uint16(first), Last: uint16(last)})
		}
	}
	r.ports = mergePorts(r.ports)
	return problem
}

// mergePorts sorts ports and joins those that overlap or touch.
func mergePorts(ports []agentapi.Ports) []agentapi.Ports {
	slices.SortFunc(ports, comparePorts)
	var merged []agentapi.Ports
	for _, p := range ports {
		if n := len(merged); n > 0 && merged[n-1].Protocol == p.Protocol && int(p.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, p.Last)
			continue
		}
		merged = append(merged, p)
	}
	return merged
}

// needsPods says whether the rule cannot be evaluated without the cluster's pods.
func (r *rule) needsPods() bool { return len(r.selectors) > 0 || r.resolves() }

// resolves says whether names mean what each peer says.
func (r *rule) resolves() bool { return r.egress && len(r.names) > 0 }

// counts says whether a pod is one of the rule's pods. namespace are the labels of
// its namespace, if that is known.
func (r *rule) counts(p *Pod, namespace labels.Set, known bool) (m member, counts bool) {
	if len(p.Addresses) == 0 || p.HostNetwork {
		return member{}, false
	}
	for _, s := range r.selectors {
		in := s.namespace == p.Name.Namespace
		if s.namespace == "" {
			in = known && s.namespaces.Matches(namespace)
		}
		if in && s.pods.Matches(labels.Set(p.Labels)) {
			return member{p, true}, true
		}
	}
	if !r.resolves() || !slices.ContainsFunc(r.names, func(n namedPort) bool { return len(p.named(n.name, n.protocol)) > 0 }) {
		return member{}, false
	}
	return member{p, false}, r.any || slices.ContainsFunc(p.Addresses, r.blocks.Contains)
}

// looksAt says whether pods of a namespace can be the rule's.
func (r *rule) looksAt(namespace string, set labels.Set, known bool) bool {
	for _, s := range r.selectors {
		if s.namespace == namespace || s.namespace == "" && known && s.namespaces.Matches(set) {
			return true
		}
	}
	return r.resolves() && (r.any || len(r.blocks.Ranges()) > 0)
}

// changed forgets what was worked out.
func (r *rule) changed() { r.peers, r.byNumber = nil, nil }

// evaluate works out the addresses of the rule's peers.
func (r *rule) evaluate() error {
	if r.peers != nil {
		return nil
	}
	var peers netipx.IPSetBuilder
	peers.AddSet(r.blocks)
	numbers := map[agentapi.Ports]*netipx.IPSetBuilder{}
	for _, p := range r.pods {
		for _, a := range p.Addresses {
			if p.selected {
				peers.Add(a)
			}
			if !r.egress || !p.selected && !r.any && !r.blocks.Contains(a) {
				continue
			}
			for _, n := range r.names {
				for _, number := range p.named(n.name, n.protocol) {
					key := agentapi.Ports{Protocol: string(n.protocol), First: number, Last: number}
					if numbers[key] == nil {
						numbers[key] = &netipx.IPSetBuilder{}
					}
					numbers[key].Add(a)
				}
			}
		}
	}
	set, err := peers.IPSet()
	if err != nil {
		return err
	}
	byNumber := map[agentapi.Ports]*netipx.IPSet{}
	for key, b := range numbers {
		if byNumber[key], err = b.IPSet(); err != nil {
			return err
		}
	}
	r.peers, r.byNumber = set, byNumber
	return nil
}
