package sim

import (
	"errors"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

func TestPartsEndWithTheirMachinesButForThoseThatAreLeft(t *testing.T) {
	for _, share := range []float64{0, 1} {
		inBubble(t, Config{Knobs: Knobs{OwnedLeft: share}}, func(t *testing.T, c *Cloud) {
			i := launch(t, c, request("token", 1))[0]
			list, err := c.OwnedResources.ListOwned(t.Context(), owner)
			if err != nil || len(list) != 1 || list[0].Instance != i.ID || list[0].Tags[cloud.TagCell] != i.Tags[cloud.TagCell] {
				t.Fatalf("%+v, %v: want one part of %s", list, err, i.ID)
			}
			if none, err := c.OwnedResources.ListOwned(t.Context(), "another"); err != nil || len(none) != 0 {
				t.Errorf("another owner has %v, %v", none, err)
			}
			if _, err := c.OwnedResources.ListOwned(t.Context(), ""); !errors.Is(err, cloud.ErrRefused) {
				t.Errorf("a list of nobody: %v", err)
			}
			part := list[0].ID
			results := c.OwnedResources.DeleteOwned(t.Context(), "unknown", part)
			if len(results) != 2 || results[0].Err != nil || !errors.Is(results[1].Err, cloud.ErrRefused) || results[1].ID != part {
				t.Errorf("a part in use: %v", results)
			}
			ok(t, c.Terminate(t.Context(), i.ID).Err())
			pass(time.Second)
			left := c.OwnedResources.OwnedNow()
			if want := int(share); len(left) != want || want == 1 && (left[0].Instance != "" || left[0].Tags[cloud.TagCell] == "") {
				t.Fatalf("%+v is left: want %d without an instance", left, want)
			}
			if err := c.OwnedResources.DeleteOwned(t.Context(), part).Err(); err != nil || len(c.OwnedResources.OwnedNow()) != 0 {
				t.Errorf("its deletion: %v, left %v", err, c.OwnedResources.OwnedNow())
			}
		})
	}
}
