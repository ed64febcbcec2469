package local

import (
	"fmt"

	"github.com/elotl/kip/internal/cloud"
)

// HostSide is what of a machine can be seen, entered and broken from the host.
type HostSide struct {
	State cloud.State
	// PID is the machine's init as the host counts; 0 when it does not run.
	PID int
	// Device is the host's end of the machine's network cable, a port of the
	// bridge while the machine runs.
	Device string
	// Dir holds its record, its console's log and, in upper, what it has
	// written; but what is on its disk is seen only below /proc/PID/root.
	Dir string
}

// Inspect returns a machine's host side by its record in cfg.StateDir. It needs
// no Cloud, and asks none.
func Inspect(cfg Config, id string) (HostSide, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return HostSide{}, err
	}
	if !instanceID.MatchString(id) {
		return HostSide{}, notAnID(id)
	}
	rec, err := readRecord(cfg.machineDir(id))
	if err != nil {
		return HostSide{}, fmt.Errorf("inspect %s: %w", id, err)
	}
	side := HostSide{State: rec.Instance.State, Device: linkName(id), Dir: cfg.machineDir(id)}
	if h, err := rec.Process.open(); err == nil {
		h.close()
		side.PID = rec.Process.PID
	}
	return side, nil
}

func notAnID(id string) error {
	return fmt.Errorf("%q is not an instance ID: want i- and 16 hexadecimal digits", id)
}
