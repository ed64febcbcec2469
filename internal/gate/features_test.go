package gate

import (
	"context"
	"slices"
	"testing"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/cloudtest"
)

func TestEachFeatureThatDestroysIsFenced(t *testing.T) {
	harmless := []string{
		"Interrupter", // reports what the cloud ends
		"DiskChecker", // reads
		"DiskGrower",  // takes nothing away; a second call for the same size does nothing
		"Console",     // reads
		"Tagger",      // writes tags for people
		"Resolver",    // looks up what all launches share
		"Registries",  // lends a right to read
		"Checkup",     // reads
		"Booster",     // takes what no cell is to have for good; a second call does nothing
		"Egress",      // reads
		"Bounder",     // reads
		"Owners",      // reads
	}
	bare := cloudtest.Undecorated(t, func(c cloud.Cloud) cloud.Cloud { return Fence(c, func(context.Context) error { return nil }) })
	if !slices.Equal(bare, harmless) {
		t.Errorf("the fence passes on %v as they are, want %v: fence a new feature, or list it as harmless", bare, harmless)
	}
}
