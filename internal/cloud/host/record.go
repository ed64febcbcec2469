package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/cloud"
)

// record is all that is known of a machine. It is on disk before
// anything of the machine exists and is the last thing to go.
type record struct {
	Instance cloud.Instance `json:"instance"`
	Token    string         `json:"token"` // of the launch, "/" and the machine's place in it
	Group    int            `json:"group"` // how many machines the launch has
	// Slot is the machine's place in the network; its addresses follow from it.
	Slot uint32 `json:"slot"`
	// Process is the machine's first one as the host sees it; unset until it was
	// started.
	Process Process `json:"process"`
}

const recordName = "record.json"

// write replaces the record in dir in one step. It does not sync: the record
// must survive the death of this process, and a crash of the host ends the
// machine anyway, unless it is stopped. A record that a host's crash left half-written reads as an
// error, and its machine is removed by the folder's name.
func (r record) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record of %s: %w", r.Instance.ID, err)
	}
	return atomicfile.Write(filepath.Join(dir, recordName), data, 0o600)
}

func readRecord(dir string) (record, error) {
	path := filepath.Join(dir, recordName)
	data, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("read %s: %w", path, err)
	}
	if want := filepath.Base(dir); r.Instance.ID != want {
		return record{}, fmt.Errorf("read %s: instance.id is %q, want the folder's name %q", path, r.Instance.ID, want)
	}
	return r, nil
}

// stored is one machine's folder: its record, or why that cannot be read.
type stored struct {
	id  string
	rec record
	err error
}

// readAll returns what the state folder holds, in order of ID. Folders whose
// names are no instance ID are not this cloud's and are left out.
func readAll(cfg Config) ([]stored, error) {
	entries, err := os.ReadDir(cfg.machinesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	var all []stored
	for _, e := range entries {
		if !instanceID.MatchString(e.Name()) {
			continue
		}
		s := stored{id: e.Name()}
		s.rec, s.err = readRecord(cfg.MachineDir(s.id))
		all = append(all, s)
	}
	return all, nil
}
