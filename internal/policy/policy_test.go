package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agentapi"
)

// passes says whether rules let a connection pass.
func passes(d agentapi.Direction, ip netip.Addr, protocol string, port uint16) bool {
	return !d.Isolated || slices.ContainsFunc(d.Allowed, func(a agentapi.Allowed) bool {
		return (a.Any || slices.ContainsFunc(a.Addresses, func(p netip.Prefix) bool { return p.Contains(ip) })) &&
			(a.AnyPort || slices.ContainsFunc(a.Ports, func(p agentapi.Ports) bool {
				return p.Protocol == protocol && p.First <= port && port <= p.Last
			}))
	})
}

// outcomes counts what the oracle has decided.
type outcomes struct {
	allowed, denied int // by a policy
	named           int // of those allowed, by a port's name
	foreign         int // of those allowed, by the selector of another namespace
	excepted        int // of those denied, what a block holds and its except does not
}

// cluster is what the oracle knows: the objects, as they are in the API.
type cluster struct {
	namespaces map[string]map[string]string
	pods       map[string]*corev1.Pod // by namespace/name
	policies   map[string]*networkingv1.NetworkPolicy
	*outcomes
	rule outcomes // what the rule that is being looked at has decided by
}

func matches(s *metav1.LabelSelector, labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		got, has := labels[e.Key]
		var is bool
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			is = has && slices.Contains(e.Values, got)
		case metav1.LabelSelectorOpNotIn:
			is = !has || !slices.Contains(e.Values, got)
		case metav1.LabelSelectorOpExists:
			is = has
		case metav1.LabelSelectorOpDoesNotExist:
			is = !has
		}
		if !is {
			return false
		}
	}
	return true
}

// at are the pods that have an address to themselves.
func (c *cluster) at(ip netip.Addr) (pods []*corev1.Pod) {
	for _, p := range c.pods {
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		if slices.Contains(p.Status.PodIPs, corev1.PodIP{IP: ip.String()}) {
			pods = append(pods, p)
		}
	}
	return pods
}

// allows decides on one connection of a subject with an address, by what the API's
// documentation says.
func (c *cluster) allows(subject *corev1.Pod, egress bool, ip netip.Addr, protocol corev1.Protocol, port uint16) bool {
	isolated, excepted := false, 0
	if subject.Spec.HostNetwork {
		return true
	}
	type ports = []networkingv1.NetworkPolicyPort
	type peers = []networkingv1.NetworkPolicyPeer
	lets := func(numbers ports, named *corev1.Pod, namespace string, from peers, only *corev1.Pod) bool {
		c.rule = outcomes{}
		if !c.portMatches(numbers, protocol, port, named) {
			return false
		}
		if !c.peerMatches(namespace, from, ip, only) {
			excepted += c.rule.excepted
			return false
		}
		c.allowed++
		c.named += c.rule.named
		c.foreign += c.rule.foreign
		return true
	}
	for _, p := range c.policies {
		if p.Namespace != subject.Namespace || !matches(&p.Spec.PodSelector, subject.Labels) {
			continue
		}
		if egress && slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			isolated = true
			for _, r := range p.Spec.Egress {
				// The pods at the address may each give a name another number.
				if lets(r.Ports, nil, p.Namespace, r.To, nil) {
					return true
				}
				for _, dst := range c.at(ip) {
					if lets(r.Ports, dst, p.Namespace, r.To, dst) {
						return true
					}
				}
			}
		}
		if !egress && slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
			isolated = true
			for _, r := range p.Spec.Ingress {
				if lets(r.Ports, subject, p.Namespace, r.From, nil) {
					return true
				}
			}
		}
	}
	if isolated {
		c.denied++
		c.excepted += min(excepted, 1)
	}
	return !isolated
}

// portMatches looks at numbers, and, for a destination that is known, at names.
func (c *cluster) portMatches(ports []networkingv1.NetworkPolicyPort, protocol corev1.Protocol, port uint16, dst *corev1.Pod) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		want := corev1.ProtocolTCP
		if p.Protocol != nil {
			want = *p.Protocol
		}
		if want != protocol {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.Int && p.EndPort == nil:
			if int(port) == p.Port.IntValue() {
				return true
			}
		case p.Port.Type == intstr.Int:
			if int(port) >= p.Port.IntValue() && int32(port) <= *p.EndPort {
				return true
			}
		case dst != nil:
			for _, container := range dst.Spec.Containers {
				for _, named := range container.Ports {
					if named.Name == p.Port.StrVal && named.Protocol == want && uint16(named.ContainerPort) == port {
						c.rule.named = 1
						return true
					}
				}
			}
		}
	}
	return false
}

// peerMatches looks at one pod at the address, or, with nil, at all of them.
func (c *cluster) peerMatches(namespace string, peers []networkingv1.NetworkPolicyPeer, ip netip.Addr, only *corev1.Pod) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		if b := peer.IPBlock; b != nil {
			in := netip.MustParsePrefix(b.CIDR).Contains(ip)
			for _, e := range b.Except {
				if in && netip.MustParsePrefix(e).Contains(ip) {
					in, c.rule.excepted = false, 1
				}
			}
			if in {
				return true
			}
			continue
		}
		for _, pod := range c.at(ip) {
			if only != nil && pod != only {
				continue
			}
			if peer.NamespaceSelector == nil && pod.Namespace != namespace {
				continue
			}
			if peer.NamespaceSelector != nil {
				labels, there := c.namespaces[pod.Namespace]
				if !there || !matches(peer.NamespaceSelector, labels) {
					continue
				}
			}
			if peer.PodSelector == nil || matches(peer.PodSelector, pod.Labels) {
				if pod.Namespace != namespace {
					c.rule.foreign = 1
				}
				return true
			}
		}
	}
	return false
}

var (
	namespaceNames = []string{"a", "b"}
	podNames       = []string{"p", "q", "r"}
	addresses      = []string{"10.0.0.1", "10.0.0.2", "10.0.0.66", "192.0.2.1", "fd00::1", "fd00::66"}
	cidrs          = []string{"10.0.0.0/8", "10.0.0.0/24", "10.0.0.64/26", "10.0.0.2/32", "192.0.2.0/24", "fd00::/64", "fd00::40/122",
		"0.0.0.0/0"}
	protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	ports     = []uint16{1, 80, 81, 82, 443, 8080, 65535}
)

func drawLabels(t *rapid.T) map[string]string {
	return rapid.MapOfN(rapid.SampledFrom([]string{"x", "y"}), rapid.SampledFrom([]string{"1", "2"}), 0, 1).Draw(t, "labels")
}

func drawSelector(t *rapid.T) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if rapid.Bool().Draw(t, "by label") {
		s.MatchLabels = drawLabels(t)
	}
	if rapid.IntRange(0, 3).Draw(t, "by expression") == 0 {
		e := metav1.LabelSelectorRequirement{
			Key: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "key"),
			Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{
				metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
			}).Draw(t, "operator"),
		}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"1", "2"}), 1, 2, rapid.ID).Draw(t, "values")
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func drawPeers(t *rapid.T) []networkingv1.NetworkPolicyPeer {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) (p networkingv1.NetworkPolicyPeer) {
		switch rapid.IntRange(0, 3).Draw(t, "peer") {
		case 0:
			p.IPBlock = &networkingv1.IPBlock{CIDR: rapid.SampledFrom(cidrs).Draw(t, "cidr")}
			p.IPBlock.Except = rapid.SliceOfN(rapid.SampledFrom(cidrs), 0, 2).Draw(t, "except")
		case 1:
			p.PodSelector = drawSelector(t)
		case 2:
			p.NamespaceSelector = drawSelector(t)
		case 3:
			p.PodSelector, p.NamespaceSelector = drawSelector(t), drawSelector(t)
		}
		return p
	}), 0, 3).Draw(t, "peers")
}

func drawPorts(t *rapid.T) []networkingv1.NetworkPolicyPort {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) (p networkingv1.NetworkPolicyPort) {
		if rapid.Bool().Draw(t, "has protocol") {
			protocol := rapid.SampledFrom(protocols).Draw(t, "protocol")
			p.Protocol = &protocol
		}
		switch rapid.IntRange(0, 3).Draw(t, "port") {
		case 1:
			port := intstr.FromInt32(int32(rapid.SampledFrom(ports).Draw(t, "number")))
			p.Port = &port
		case 2:
			port := intstr.FromInt32(int32(rapid.SampledFrom(ports).Draw(t, "first")))
			end := port.IntVal + int32(rapid.IntRange(0, min(2, 65535-port.IntValue())).Draw(t, "more"))
			p.Port, p.EndPort = &port, &end
		case 3:
			port := intstr.FromString(rapid.SampledFrom([]string{"web", "dns"}).Draw(t, "name"))
			p.Port = &port
		}
		return p
	}), 0, 3).Draw(t, "ports")
}

func drawPolicy(t *rapid.T) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{PodSelector: *drawSelector(t)}}
	p.Namespace, p.Name = rapid.SampledFrom(namespaceNames).Draw(t, "namespace"), rapid.SampledFrom(podNames).Draw(t, "name")
	if rapid.Bool().Draw(t, "ingress") {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	}
	if rapid.Bool().Draw(t, "egress") {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
	if len(p.Spec.PolicyTypes) == 0 {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	}
	p.Spec.Ingress = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: drawPeers(t), Ports: drawPorts(t)}
	}), 0, 2).Draw(t, "ingress rules")
	p.Spec.Egress = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: drawPeers(t), Ports: drawPorts(t)}
	}), 0, 2).Draw(t, "egress rules")
	return p
}

func drawPod(t *rapid.T) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name = rapid.SampledFrom(namespaceNames).Draw(t, "namespace"), rapid.SampledFrom(podNames).Draw(t, "name")
	p.Labels = drawLabels(t)
	p.Spec.HostNetwork = rapid.IntRange(0, 7).Draw(t, "host network") == 0
	p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending,
		corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "phase")
	for _, ip := range rapid.SliceOfNDistinct(rapid.SampledFrom(addresses), 0, 2, rapid.ID).Draw(t, "addresses") {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	for range rapid.IntRange(0, 2).Draw(t, "containers") {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Ports: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) corev1.ContainerPort {
			return corev1.ContainerPort{
				Name: rapid.SampledFrom([]string{"", "web", "dns"}).Draw(t, "name"), Protocol: rapid.SampledFrom(protocols).Draw(t, "protocol"),
				ContainerPort: int32(rapid.SampledFrom(ports).Draw(t, "number")),
			}
		}), 0, 2).Draw(t, "ports")})
	}
	return p
}

// history plays changes to an Index and to the oracle's cluster.
type history struct {
	cluster
	index    *Index
	subjects map[string]*corev1.Pod
	last     map[types.NamespacedName][2]agentapi.Direction
}

func TestWhatIsAllowedIsWhatTheAPIDocuments(t *testing.T) {
	const histories = 300
	var ran int
	var decided outcomes
	for ran < histories && !t.Failed() { // -short makes each Check a fifth
		rapid.Check(t, func(t *rapid.T) {
			ran++
			playHistory(t, &decided)
		})
	}
	t.Logf("%d histories: %+v", ran, decided)
	// The histories must reach each outcome, or the comparison proves nothing.
	if decided.allowed < 100_000 || decided.denied < 400_000 || decided.named < 30 || decided.foreign < 3000 || decided.excepted < 3000 {
		t.Errorf("%d histories decided only %+v", ran, decided)
	}
}

// playHistory plays one, and compares after each step.
func playHistory(t *rapid.T, decided *outcomes) {
	h := &history{
		cluster: cluster{
			namespaces: map[string]map[string]string{},
			pods:       map[string]*corev1.Pod{},
			policies:   map[string]*networkingv1.NetworkPolicy{},
			outcomes:   decided,
		},
		index:    NewIndex(),
		subjects: map[string]*corev1.Pod{},
		last:     map[types.NamespacedName][2]agentapi.Direction{},
	}
	steps := map[string]func(*rapid.T){
		"namespace": func(t *rapid.T) {
			name, labels := rapid.SampledFrom(namespaceNames).Draw(t, "name"), drawLabels(t)
			h.namespaces[name] = labels
			h.index.SetNamespace(name, labels)
		},
		"no namespace": func(t *rapid.T) {
			name := rapid.SampledFrom(namespaceNames).Draw(t, "name")
			delete(h.namespaces, name)
			h.index.RemoveNamespace(name)
		},
		"pod": func(t *rapid.T) {
			p := drawPod(t)
			h.pods[p.Namespace+"/"+p.Name] = p
			h.index.SetPod(PodOf(p))
		},
		"no pod": func(t *rapid.T) {
			ns, name := rapid.SampledFrom(namespaceNames).Draw(t, "namespace"), rapid.SampledFrom(podNames).Draw(t, "name")
			delete(h.pods, ns+"/"+name)
			h.index.RemovePod(types.NamespacedName{Namespace: ns, Name: name})
		},
		"policy": func(t *rapid.T) {
			p := drawPolicy(t)
			h.policies[p.Namespace+"/"+p.Name] = p
			if err := h.index.SetPolicy(p); err != nil {
				t.Fatal(err)
			}
		},
		"no policy": func(t *rapid.T) {
			ns, name := rapid.SampledFrom(namespaceNames).Draw(t, "namespace"), rapid.SampledFrom(podNames).Draw(t, "name")
			delete(h.policies, ns+"/"+name)
			h.index.RemovePolicy(types.NamespacedName{Namespace: ns, Name: name})
		},
		"subject": func(t *rapid.T) {
			p := drawPod(t)
			h.subjects[p.Namespace+"/"+p.Name] = p
			h.index.SetSubject(PodOf(p))
		},
		"no subject": func(t *rapid.T) {
			ns, name := rapid.SampledFrom(namespaceNames).Draw(t, "namespace"), rapid.SampledFrom(podNames).Draw(t, "name")
			delete(h.subjects, ns+"/"+name)
			delete(h.last, types.NamespacedName{Namespace: ns, Name: name})
			h.index.RemoveSubject(types.NamespacedName{Namespace: ns, Name: name})
		},
		"": h.check,
	}
	// Most of what can go wrong takes some of each.
	for range 6 {
		for _, step := range []string{"namespace", "pod", "policy", "subject"} {
			steps[step](t)
		}
	}
	t.Repeat(steps)
}

// check compares every subject's rules with the oracle, connection by connection,
// and finds rules that changed in silence.
func (h *history) check(t *rapid.T) {
	told := h.index.Changed()
	for _, s := range h.subjects {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		ingress, egress, ok := h.index.Rules(name)
		if !ok {
			t.Fatalf("%s is no subject", name)
		}
		if was, before := h.last[name]; (!before || !reflect.DeepEqual(was, [2]agentapi.Direction{ingress, egress})) &&
			!slices.Contains(told, name) {
			t.Fatalf("the rules of %s changed, and nobody was told", name)
		}
		h.last[name] = [2]agentapi.Direction{ingress, egress}
		for _, d := range []agentapi.Direction{ingress, egress} {
			checkForm(t, d)
		}
		for _, a := range addresses {
			ip := netip.MustParseAddr(a)
			for _, protocol := range protocols {
				for _, port := range ports {
					for _, is := range []struct {
						egress bool
						rules  agentapi.Direction
					}{{false, ingress}, {true, egress}} {
						if got, want := passes(is.rules, ip, string(protocol), port), h.allows(s, is.egress, ip, protocol, port); got != want {
							t.Fatalf("%s and %s, %s %d, egress %t: allowed %t, want %t\n%+v", name, ip, protocol, port, is.egress, got, want, is.rules)
						}
					}
				}
			}
		}
	}
}

// checkForm finds what two equal sets of rules could differ in.
func checkForm(t *rapid.T, d agentapi.Direction) {
	for i, a := range d.Allowed {
		if a.AnyPort != (len(a.Ports) == 0) || a.Any && a.Addresses != nil || !a.Any && len(a.Addresses) == 0 {
			t.Fatalf("no canonical form: %+v", a)
		}
		if i > 0 && slices.CompareFunc(d.Allowed[i-1].Ports, a.Ports, comparePorts) >= 0 {
			t.Fatalf("not in order, or the same ports twice: %+v", d.Allowed)
		}
		for j := 1; j < len(a.Addresses); j++ {
			if a.Addresses[j-1].Overlaps(a.Addresses[j]) || a.Addresses[j-1].Addr().Compare(a.Addresses[j].Addr()) >= 0 {
				t.Fatalf("addresses overlap or are not in order: %v", a.Addresses)
			}
		}
	}
}

func policyOf(t testing.TB, text string) *networkingv1.NetworkPolicy {
	t.Helper()
	var p networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

func podOf(namespace, name, ip string, labels map[string]string, ports ...NamedPort) *Pod {
	return &Pod{Name: types.NamespacedName{Namespace: namespace, Name: name}, Labels: labels,
		Addresses: []netip.Addr{netip.MustParseAddr(ip)}, Ports: ports}
}

func TestOnePolicyReadsAsItsRules(t *testing.T) {
	x := NewIndex()
	x.SetNamespace("shop", nil)
	x.SetNamespace("ops", map[string]string{"team": "ops"})
	if err := x.SetPolicy(policyOf(t, `
metadata: {namespace: shop, name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from:
    - podSelector: {matchLabels: {app: front}}
    - namespaceSelector: {matchLabels: {team: ops}}
    ports: [{port: http}, {protocol: UDP, port: 53, endPort: 55}]
  egress:
  - to: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}]
  - to: [{podSelector: {}}]
    ports: [{port: db}]
`)); err != nil {
		t.Fatal(err)
	}
	web := podOf("shop", "web", "10.0.0.1", map[string]string{"app": "web"}, NamedPort{"http", "TCP", 8080})
	x.SetSubject(web)
	if !x.NeedsPods() || !x.DependsOnPods(web.Name) {
		t.Error("the rules need no pods")
	}
	x.SetPod(web)
	x.SetPod(podOf("shop", "front", "10.0.0.2", map[string]string{"app": "front"}))
	x.SetPod(podOf("shop", "db", "10.0.0.3", nil, NamedPort{"db", "TCP", 5432}))
	x.SetPod(podOf("shop", "old", "10.0.0.4", nil, NamedPort{"db", "TCP", 3306}))
	x.SetPod(podOf("ops", "probe", "10.0.0.5", nil, NamedPort{"db", "TCP", 1}))
	in, out, _ := x.Rules(web.Name)
	got, err := json.Marshal([]any{in, out})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"isolated":true,"allowed":[` +
		`{"addresses":["10.0.0.2/32","10.0.0.5/32"],"ports":[{"protocol":"TCP","first":8080,"last":8080},{"protocol":"UDP","first":53,"last":55}]}]},` +
		`{"isolated":true,"allowed":[{"addresses":["192.0.2.0/25"],"anyPort":true},` +
		`{"addresses":["10.0.0.4/32"],"ports":[{"protocol":"TCP","first":3306,"last":3306}]},` +
		`{"addresses":["10.0.0.3/32"],"ports":[{"protocol":"TCP","first":5432,"last":5432}]}]}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAPodsChangeTouchesOnlyThoseWhosePoliciesNameIt(t *testing.T) {
	x := NewIndex()
	for _, ns := range []string{"a", "b"} {
		x.SetNamespace(ns, nil)
		if err := x.SetPolicy(policyOf(t, fmt.Sprintf(`
metadata: {namespace: %s, name: p}
spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {x: "1"}}}]}]}`, ns))); err != nil {
			t.Fatal(err)
		}
		x.SetSubject(podOf(ns, "s", "10.0.0.1", nil))
	}
	x.Changed()
	for _, step := range []struct {
		what string
		do   func()
		want []types.NamespacedName
	}{
		{"a pod that nobody names", func() { x.SetPod(podOf("a", "p", "10.0.0.2", nil)) }, nil},
		{"one that a policy of its namespace names", func() { x.SetPod(podOf("b", "p", "10.0.0.3", map[string]string{"x": "1"})) },
			[]types.NamespacedName{{Namespace: "b", Name: "s"}}},
		{"the same again", func() { x.SetPod(podOf("b", "p", "10.0.0.3", map[string]string{"x": "1"})) }, nil},
		{"another label, which no policy asks for", func() {
			x.SetPod(podOf("b", "p", "10.0.0.3", map[string]string{"x": "1", "y": "1"}))
		}, nil},
		{"another address", func() { x.SetPod(podOf("b", "p", "10.0.0.4", map[string]string{"x": "1"})) },
			[]types.NamespacedName{{Namespace: "b", Name: "s"}}},
		{"its end", func() { x.RemovePod(types.NamespacedName{Namespace: "b", Name: "p"}) }, []types.NamespacedName{{Namespace: "b", Name: "s"}}},
	} {
		step.do()
		if got := x.Changed(); !slices.Equal(got, step.want) {
			t.Errorf("%s: %v changed, want %v", step.what, got, step.want)
		}
	}
}

func TestWhatCannotBeReadOfAPolicyAllowsNothing(t *testing.T) {
	for name, text := range map[string]string{
		"cidr":     `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: all}}]}]}`,
		"except":   `{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [x]}}]}]}`,
		"selector": `{podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Is}]}}]}]}`,
		"empty":    `{podSelector: {}, ingress: [{from: [{}]}]}`,
		"protocol": `{podSelector: {}, ingress: [{ports: [{protocol: ICMP}]}]}`,
		"range":    `{podSelector: {}, ingress: [{ports: [{port: 80, endPort: 79}]}]}`,
		"port":     `{podSelector: {}, ingress: [{ports: [{port: 65536}]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			x := NewIndex()
			x.SetSubject(podOf("a", "s", "10.0.0.1", nil))
			if err := x.SetPolicy(policyOf(t, "metadata: {namespace: a, name: p}\nspec: "+text)); err == nil {
				t.Error("no error")
			}
			if in, _, _ := x.Rules(types.NamespacedName{Namespace: "a", Name: "s"}); !in.Isolated || len(in.Allowed) > 0 {
				t.Errorf("rules %+v", in)
			}
		})
	}
}

// What one pod that comes and goes costs, when a thousand pods of the node let ten
// thousand pods in.
func BenchmarkAPeerOfAThousandPodsChanges(b *testing.B) {
	x := NewIndex()
	x.SetNamespace("a", nil)
	if err := x.SetPolicy(policyOf(b,
		"metadata: {namespace: a, name: p}\nspec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}")); err != nil {
		b.Fatal(err)
	}
	pod := func(i int) *Pod {
		return podOf("a", fmt.Sprint("p", i), netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)}).String(), nil)
	}
	for i := range 10_000 {
		x.SetPod(pod(i))
		if i < 1000 {
			x.SetSubject(pod(i))
		}
	}
	x.Changed()
	for i := 0; b.Loop(); i++ {
		if i%2 == 0 {
			x.SetPod(pod(10_000))
		} else {
			x.RemovePod(pod(10_000).Name)
		}
		changed := x.Changed()
		if len(changed) != 1000 {
			b.Fatalf("%d changed", len(changed))
		}
		for _, name := range changed {
			x.Rules(name)
		}
	}
}
