package pods

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A tenant keeps the pods that Kip evicts by finalizers, after a short grace period or in an endless one.
func TestEvictedPodsThatNeverGoStopNoEvictionsOfOthers(t *testing.T) {
	for grace, most := range map[int64]time.Duration{0: time.Minute, math.MaxInt64: 11 * time.Minute} {
		h, evicted := agedHarness(t, nil)
		old := map[string][]*corev1.Pod{}
		for n := range 3 * mostDisrupted {
			namespace := fmt.Sprintf("ns-%d", n%3)
			name := fmt.Sprintf("%s-%d", namespace, n)
			p := pod(name, running, ownedBy("ReplicaSet", name), inNamespace(namespace, grace))
			h.onCell(p)
			old[namespace] = append(old[namespace], p)
		}
		h.clock.Step(24 * time.Hour)
		// evicts has Kip look at the pods of a namespace until it has evicted most of them, or for as long as said.
		evicts := func(namespace string, most int, during time.Duration) (gone []*corev1.Pod) {
			for end := h.clock.Now().Add(during); h.clock.Now().Before(end) && len(gone) < most; h.clock.Step(5 * time.Second) {
				for _, p := range old[namespace] {
					if slices.Contains(*evicted, p.Name) {
						continue
					}
					if h.look(p); slices.Contains(*evicted, p.Name) {
						gone = append(gone, p)
					}
				}
			}
			return gone
		}
		began := h.clock.Now()
		if n := len(evicts("ns-0", mostDisrupted, 59*time.Second)); n != mostDisrupted/2 {
			t.Errorf("grace %d: %d pods of a namespace are being evicted, want %d", grace, n, mostDisrupted/2)
		}
		for _, p := range evicts("ns-1", 1, time.Minute) {
			h.leave(p)
		}
		if n := len(*evicted); n != mostDisrupted/2+1 {
			t.Errorf("grace %d: %d pods were evicted with that of another namespace, want %d", grace, n, mostDisrupted/2+1)
		}
		evicts("ns-1", mostDisrupted/2, most)
		evicts("ns-2", 1, most)
		if since := h.clock.Since(began); !slices.ContainsFunc(*evicted, func(name string) bool { return strings.HasPrefix(name, "ns-2") }) {
			t.Errorf("grace %d: after %s no pod of a third namespace was evicted: %q", grace, since, *evicted)
		} else if grace > 0 && since < most {
			t.Errorf("grace %d: after %s an eleventh pod was evicted", grace, since)
		}
	}
}

func TestOfAsManyControllersAsAreKnownTheOldestIsForgotten(t *testing.T) {
	known, began := map[route]time.Time{}, time.Unix(0, 0)
	of := func(i int) route { return route{node: fmt.Sprint(i)} }
	for i := range mostPaced + 1 {
		makeRoom(known, of(i), func(at time.Time) time.Time { return at })
		known[of(i)] = began.Add(time.Duration(i))
	}
	makeRoom(known, of(mostPaced), func(at time.Time) time.Time { return at }) // it is known
	if _, has := known[of(0)]; has || len(known) != mostPaced {
		t.Errorf("%d are known, and the oldest: %t", len(known), has)
	}
}

func TestAPodIsDisruptedOnlyIfAnotherReplacesItAndItDoesNotAskToStay(t *testing.T) {
	const karpenter, autoscaler = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/safe-to-evict"
	for name, tc := range map[string]struct {
		kind  string // of its controller; "" for none
		asks  map[string]string
		stays bool
	}{
		"it has a controller":           {"ReplicaSet", nil, false},
		"it has none":                   {"", nil, true},
		"it has none, and asks to go":   {"", map[string]string{autoscaler: "true"}, true},
		"it asks Karpenter":             {"ReplicaSet", map[string]string{karpenter: "true"}, true},
		"it asks the autoscaler":        {"ReplicaSet", map[string]string{autoscaler: "false"}, true},
		"it may go, by both":            {"ReplicaSet", map[string]string{karpenter: "false", autoscaler: "true"}, false},
		"it is a Job's":                 {"Job", nil, true},
		"it is a Job's, and may go":     {"Job", map[string]string{karpenter: "false"}, false},
		"it is a Job's, and may go too": {"Job", map[string]string{autoscaler: "true"}, false},
		"it is a Job's, and says both":  {"Job", map[string]string{karpenter: "true", autoscaler: "true"}, true},
		"it is a Job's, and unclear":    {"Job", map[string]string{karpenter: "perhaps"}, true},
	} {
		p := pod("a", func(p *corev1.Pod) { p.Annotations = tc.asks })
		if tc.kind != "" {
			ownedBy(tc.kind, "owner")(p)
		}
		if why := whyUndisrupted(p); (why != "") != tc.stays {
			t.Errorf("%s: it stays for %q", name, why)
		}
	}
}
