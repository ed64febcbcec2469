package cells

import (
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestAKubeletSeesItsPodOnlyWhenTheRecordSaysSo(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		shown := 0
		b.links.binds = func(id string) {
			shown++
			var stored Cell
			if _, err := b.store.Get(t.Context(), keyPrefix+id, &stored); err != nil || stored.Phase != apiv1.Bound {
				t.Errorf("the pod is shown while the record says %q (%v)", stored.Phase, err)
			}
		}
		b.request("a", "nano")
		b.later(10 * time.Second)
		if shown != 1 {
			t.Errorf("the pod is shown %d times, want once", shown)
		}
	})
}
