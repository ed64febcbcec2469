package faults

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// setCAs is a write of Kip's CAs, after which it begins anew.
func (s *stage) setCAs(ca, old string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ca, s.oldCA = ca, old
	s.killLocked()
}

// cut cuts a machine off, or joins it again.
func (s *stage) cut(id string, off bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machines[id].cutOff = off
	s.troubled(time.Now())
	s.linksChanged()
}

// leads returns a Kip whose loops run, with these CAs; nil where there is none.
func (s *stage) leads(ca, old string) *kip {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.kip; k != nil && k.up && k.ctx.Err() == nil && k.ca == ca && k.oldCA == old {
		return k
	}
	return nil
}

// rotationScenarios are about Kip's CA. That no cell is ever dialled by a CA that it does
// not trust is checked at each dial.
var rotationScenarios = []scenario{{
	name:  "the CA is rotated while a cell is cut off and another is launched",
	pools: []poolOf{{instanceType: "small", count: 1, stopped: true}},
	story: func(s *stage) {
		uids := []types.UID{s.pod(corev1.RestartPolicyNever, "large"), s.pod(corev1.RestartPolicyNever, "large")}
		s.until("they run", s.runs(uids...))
		on := []string{s.machineOf(uids[0]), s.machineOf(uids[1])}
		s.cut(on[0], true)
		launched := s.pod(corev1.RestartPolicyNever, "large")
		time.Sleep(time.Second)
		s.setCAs("ca-2", "ca-1")
		taking := s.pod(corev1.RestartPolicyNever, "small")
		time.Sleep(20 * time.Second)
		s.cut(on[0], false)
		s.until("each cell knows Kip by the new CA", func() bool {
			k := s.leads("ca-2", "ca-1")
			return k != nil && s.runs(launched, taking)() && len(k.cells.Unmoved()) == 0
		})
		s.setCAs("ca-2", "")
		s.until("no cell trusts the old CA", func() bool {
			k := s.leads("ca-2", "")
			if k == nil || k.cells.Untold() > 0 {
				return false
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, m := range s.machines {
				if m.up && m.configured && (len(m.trusts) != 1 || m.trusts[0] != "ca-2") {
					return false
				}
			}
			return true
		})
		for n, uid := range uids {
			if now := s.machineOf(uid); now != on[n] {
				s.violate("pod %s ran on %s, and in a rotation of the CA it came to %q", uid, on[n], now)
			}
		}
		s.mu.Lock()
		moved := s.plays["cell moved to another CA"]
		s.mu.Unlock()
		s.shows("cells are moved, and told of the end", moved >= 4)
		s.delete(append(uids, launched, taking)...)
		s.until("they are gone", s.gone(append(uids, launched, taking)...))
	},
}}
