package cells

import (
	"encoding/json"
	"strings"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestTheMirrorTakesBackWhatACellNoLongerWaitsFor(t *testing.T) {
	m := &Mirror{node: "kip-0"}
	for phase, want := range map[apiv1.Phase]string{apiv1.Launching: `"waiting":"the cloud"`, apiv1.Booting: `"waiting":"its agent"`, apiv1.Bound: `"waiting":""`} {
		patch, err := json.Marshal(m.Status(Cell{Phase: phase}))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(patch), want) {
			t.Errorf("the patch of a cell that is %s is %s, want %s in it", phase, patch, want)
		}
	}
}
