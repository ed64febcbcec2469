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

// FailMachines rehearses that a zone loses its power: the first process of each machine there
// is killed, whichever process has the Cloud of cfg.StateDir, and with it all of the machine.
// The Cloud takes them for gone. It returns how many. What is only being launched meanwhile
// comes up: call Outage first.
func FailMachines(cfg Config, zone string) (n int, err error) {
	cfg, err = cfg.WithDefaults()
	if err != nil {
		return 0, err
	}
	all, err := readAll(cfg)
	if err != nil {
		return 0, fmt.Errorf("fail the machines of zone %s: %w", zone, err)
	}
	var errs []error
	for _, s := range all {
		// A record that is going away meanwhile is of a machine that ends anyway.
		if s.err != nil || s.rec.Instance.Zone != zone {
			continue
		}
		h, err := s.rec.Process.Open()
		if errors.Is(err, ErrGone) {
			continue
		}
		if err == nil {
			err = h.Kill()
			h.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("machine %s: %w", s.id, err))
			continue
		}
		n++
	}
	if err := errors.Join(errs...); err != nil {
		return n, fmt.Errorf("fail the machines of zone %s: %w", zone, err)
	}
	return n, nil
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
