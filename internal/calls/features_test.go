package calls

import (
	"testing"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/cloudtest"
	"k8s.io/utils/clock"
)

func TestEachFeatureWaitsForItsBudget(t *testing.T) {
	bare := cloudtest.Undecorated(t, func(c cloud.Cloud) cloud.Cloud { return New(Config{Cloud: c, Clock: clock.RealClock{}}) })
	if len(bare) > 0 {
		t.Errorf("Calls passes on %v as they are: their calls have no budget and no back-off", bare)
	}
}
