package local

import (
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/cloudtest"
)

func TestKeepsWhatCloudsPromise(t *testing.T) {
	cloudtest.Run(t, cloudtest.Subject{
		New: func(t *testing.T) cloud.Cloud {
			cfg := coreHost(t)
			cfg.IPv6CIDR = ours(t).IPv6CIDR
			return open(t, cfg)
		},
		UserData: []byte("#cloud-config\n"), Patience: time.Minute, ForgetsTokens: true,
	})
}
