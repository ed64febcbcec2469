package aws

import (
	"context"
	"testing"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/cloudtest"
	"github.com/elotl/kip/internal/cloud/sim"
)

// withImage gives each launch that names no image one, since there is none of Kip's own, and resolves it.
type withImage struct{ *Cloud }

func (c withImage) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	if r.Image == nil {
		r.Image = map[string]string{imageID: "ami-1"}
	}
	return runLaunch(ctx, c.Cloud, r)
}

func short(d time.Duration) sim.Distribution { return sim.Distribution{Median: d} }

func TestKeepsWhatCloudsPromise(t *testing.T) {
	ideal := anAccount(sim.Knobs{StoppedKeepsAddresses: true})
	late := anAccount(sim.Knobs{
		Pending:               short(20 * time.Millisecond),
		AddressDelay:          short(10 * time.Millisecond),
		Termination:           short(30 * time.Millisecond),
		Stopping:              short(20 * time.Millisecond),
		ListLag:               sim.Distribution{Median: 5 * time.Millisecond, Spread: 2},
		UnknownFor:            short(5 * time.Millisecond),
		StoppedKeepsAddresses: true,
	})
	late.VolumeStep = 20 * time.Millisecond
	paged := anAccount(sim.Knobs{StoppedKeepsAddresses: true})
	paged.PageSize = 1
	for name, cfg := range map[string]ec2.Config{"at once": ideal, "late": late, "one thing a page": paged} {
		t.Run(name, func(t *testing.T) {
			cloudtest.Run(t, cloudtest.Subject{
				New: func(t *testing.T) cloud.Cloud {
					policy, err := ec2.ParsePolicy(Policy())
					if err != nil {
						t.Fatal(err)
					}
					cfg.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
					_, url := serve(t, cfg)
					return withImage{open(t, settings(url))}
				},
				// Not spot, so that it can be stopped.
				Offering: func(types []catalog.InstanceType) (catalog.InstanceType, catalog.PurchaseOption) {
					return types[0], types[0].Offerings[0]
				},
				UserData: []byte("#cloud-config\n"), Patience: time.Minute, ComparesRequests: true,
			})
		})
	}
}
