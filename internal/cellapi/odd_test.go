package cellapi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/test/oddpods"
)

// TestReferencesOfAnyPodAreFound has pods with anything in every field: none makes
// it panic, and none refers to an object without a name.
func TestReferencesOfAnyPodAreFound(t *testing.T) {
	found := 0
	for seed := uint64(1); seed < 500; seed++ {
		for kind, pod := range map[string]*corev1.Pod{"any": oddpods.Any(seed), "posted": oddpods.Posted(seed, "ns", "p", "kip-0")} {
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("seed %d (%s): %v", seed, kind, p)
					}
				}()
				refs := referencesOf(pod)
				found += len(refs.secrets) + len(refs.configMaps) + len(refs.claims)
				if refs.secrets.Has("") || refs.configMaps.Has("") || refs.claims.Has("") {
					t.Errorf("seed %d (%s): a reference without a name", seed, kind)
				}
			}()
		}
	}
	if found == 0 {
		t.Error("no pod refers to anything")
	}
}
