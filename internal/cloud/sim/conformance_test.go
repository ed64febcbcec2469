package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/cloudtest"
)

func TestKeepsWhatCloudsPromise(t *testing.T) {
	late := EC2()
	late.ListLag = Distribution{Median: 5 * time.Second, Spread: 2}
	late.AddressDelay = always(20 * time.Second)
	for name, knobs := range map[string]Knobs{"ideal": {}, "like EC2": EC2(), "late": late, "one user data a call": EC2()} {
		t.Run(name, func(t *testing.T) {
			cloudtest.Run(t, cloudtest.Subject{
				Bubble: synctest.Test,
				New: func(t *testing.T) cloud.Cloud {
					return newCloud(t, Config{Knobs: knobs, Seed: 1, SharedUserData: name == "one user data a call"})
				},
				// Not spot, so that it can be stopped.
				Offering: func(types []catalog.InstanceType) (catalog.InstanceType, catalog.PurchaseOption) {
					return types[0], types[0].Offerings[0]
				},
				UserData: []byte("#cloud-config\n"), ComparesRequests: true,
			})
		})
	}
}
