package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elotl/kip/internal/cloud"
)

// outageRetry is when a launch that a rehearsed outage refused is worth another: soon, since
// whoever ends a rehearsal looks on.
const outageRetry = 15 * time.Second

// Outage rehearses that a zone has no capacity, from now until it is called with false: the
// Cloud of cfg.StateDir, of whichever process, launches nothing there. Machines that run,
// run on. A zone that the cloud has not is none that fails.
func Outage(cfg Config, zone string, on bool) error {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return err
	}
	if bad := validation.IsDNS1123Label(zone); len(bad) > 0 {
		return fmt.Errorf("outage: %q is no name of a zone: %s", zone, bad[0])
	}
	file := filepath.Join(cfg.outagesDir(), zone)
	if on {
		err = errors.Join(os.MkdirAll(cfg.outagesDir(), 0o700), os.WriteFile(file, nil, 0o600))
	} else if err = os.Remove(file); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("outage of zone %s: %w", zone, err)
	}
	return nil
}

// outage is why nothing is launched in a zone now, if that is rehearsed: there is a file of
// its name in the folder outages of the state folder.
func (c *Cloud) outage(zone string) error {
	switch _, err := os.Stat(filepath.Join(c.cfg.outagesDir(), zone)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for an outage of zone %s: %w", zone, err)
	}
	no := cloud.No(cloud.ErrCapacity, cloud.Scope{Zone: zone}, errors.New("an outage is rehearsed"))
	no.RetryAfter = outageRetry
	return no
}
