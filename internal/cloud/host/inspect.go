package host

import (
	"fmt"

	"github.com/elotl/kip/internal/cloud"
)

// Side is what of a machine can be seen, entered and broken from the host.
type Side struct {
	State cloud.State
	// PID is the machine's process as the host counts; 0 when it does not run.
	PID int
	// Device is the host's end of the machine's network cable, a port of the
	// bridge while the machine runs.
	Device string
	// Dir holds its record, its console's log and what its kind keeps there.
	Dir string
}

// Inspect returns a machine's host side by its record in cfg.StateDir. It needs
// no Cloud, and asks none.
func Inspect(cfg Config, id string) (Side, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return Side{}, err
	}
	if !instanceID.MatchString(id) {
		return Side{}, notAnID(id)
	}
	rec, err := readRecord(cfg.MachineDir(id))
	if err != nil {
		return Side{}, fmt.Errorf("inspect %s: %w", id, err)
	}
	side := Side{State: rec.Instance.State, Device: linkName(id), Dir: cfg.MachineDir(id)}
	if h, err := rec.Process.Open(); err == nil {
		h.Close()
		side.PID = rec.Process.PID
	}
	return side, nil
}

// Recorded are the machines that have a record in cfg.StateDir which can be read, in
// order of ID. It needs no Cloud, and asks none.
func Recorded(cfg Config) ([]cloud.Instance, error) {
	all, err := readAll(cfg)
	if err != nil {
		return nil, err
	}
	var list []cloud.Instance
	for _, s := range all {
		if s.err == nil {
			list = append(list, s.rec.Instance)
		}
	}
	return list, nil
}

func notAnID(id string) error {
	return fmt.Errorf("%q is not an instance ID: want i- and 16 hexadecimal digits", id)
}
