package networkpolicy

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"k8s.io/apimachinery/pkg/types"
)

// public makes a cell with a public address in a subnet.
func (w *world) public(name, subnet string) *agentOf {
	w.Helper()
	p := w.pod(name, "10.0.0.9", nil, "kip-0")
	if err := w.kip.cfg.Pods.GetStore().Add(p); err != nil {
		w.Fatal(err)
	}
	a := &agentOf{}
	w.agents[name] = a
	w.kip.Connected("cell-"+name, a)
	w.kip.Bound(Cell{
		ID: "cell-" + name, PodIP: netip.MustParseAddr("10.0.0.9"), Subnet: subnet, PublicAt: netip.MustParseAddr("10.0.0.2"),
		Pod: apiv1.PodReference{Namespace: "a", Name: name, UID: types.UID("uid of " + name)},
	})
	return a
}

// tell changes what is known of masquerading.
func (w *world) tell(masquerade func(subnet string) (except []netip.Prefix, does, known bool)) {
	w.mu.Lock()
	w.masquerade = masquerade
	w.mu.Unlock()
	w.kip.MasqueradeChanged()
}

func TestCellsWithAPublicAddressMasqueradeBesidesTheirRules(t *testing.T) {
	inWorld(t, func(w *world) {
		w.tell(func(string) (_ []netip.Prefix, _, _ bool) { return nil, false, false })
		w.namespaces()
		w.policies(denyAll)
		in, out := w.public("in", "a"), w.public("out", "b")
		private := w.cell("private")
		w.later(time.Second)
		for name, a := range map[string]*agentOf{"in": in, "out": out} {
			if fw, _ := a.now(); fw != nil {
				t.Errorf("%s has rules before it is known what it masquerades: %+v", name, fw)
			}
		}
		plain := func(name string, a *agentOf) {
			t.Helper()
			if fw, _ := a.now(); fw == nil || fw.Masquerade != nil || !fw.Egress.Isolated {
				t.Errorf("%s has %+v", name, fw)
			}
		}
		plain("private", private)

		except := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		w.tell(func(subnet string) ([]netip.Prefix, bool, bool) { return except, subnet == "a", true })
		w.later(time.Second)
		has := func(a *agentOf, want []netip.Prefix) {
			t.Helper()
			fw, _ := a.now()
			if fw == nil || fw.Masquerade == nil || fw.Masquerade.As.String() != "10.0.0.2" || !slices.Equal(fw.Masquerade.Except, want) ||
				!fw.Egress.Isolated || !fw.Ingress.Isolated {
				t.Errorf("it has %+v, want it to masquerade but for %v", fw, want)
			}
		}
		has(in, except)
		plain("out", out)

		// On a running cell, with its rules as they are.
		more := append(slices.Clip(except), netip.MustParsePrefix("172.31.0.0/16"))
		w.tell(func(subnet string) ([]netip.Prefix, bool, bool) { return more, subnet == "a", true })
		w.later(time.Second)
		has(in, more)
		// What is not known again leaves it what it has, and policies do not wait.
		w.tell(func(string) (_ []netip.Prefix, _, _ bool) { return nil, false, false })
		w.policies(`{podSelector: {}, policyTypes: [Ingress]}`)
		w.later(time.Second)
		if fw, _ := in.now(); fw.Egress.Isolated || fw.Masquerade == nil || !slices.Equal(fw.Masquerade.Except, more) {
			t.Errorf("with other policies it has %+v, want it to masquerade as before", fw)
		}
		w.tell(func(string) ([]netip.Prefix, bool, bool) { return nil, false, true })
		w.later(time.Second)
		if fw, _ := in.now(); fw == nil || fw.Masquerade != nil || fw.Egress.Isolated {
			t.Errorf("without masquerading it has %+v", fw)
		}
		if fw, puts := private.now(); fw == nil || fw.Masquerade != nil || puts != 2 {
			t.Errorf("one without a public address has %+v after %d calls, of which each policy makes one", fw, puts)
		}
	})
}
