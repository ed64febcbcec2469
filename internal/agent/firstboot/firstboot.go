package firstboot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/elotl/kip/internal/agent/supervise"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/cloudconfig"
)

// LogName is the file, in the folder of logs, with the output of scripts.
const LogName = "kip-cloud-init.log"

const (
	// recordName is the file, in the folder of the agent's state, that says what was begun.
	recordName = "cloud-init.json"
	// maxFailures bounds what is told of failures, maxFailure each of them, in bytes.
	maxFailures = 20
	maxFailure  = 300
)

var (
	// ErrUnderWay: it is being carried out. The same is to be asked again.
	ErrUnderWay = errors.New("the cloud-init file is being carried out")
	// ErrNotBegun: no such file was begun on this machine.
	ErrNotBegun = errors.New("no such cloud-init file was begun on this machine")
	// ErrRefused: it cannot be carried out on this machine, and nothing of it was.
	ErrRefused = errors.New("the cloud-init file is refused")
)

// Options of a Machine. All are required.
type Options struct {
	// Root is the machine's root folder: "/", but in tests.
	Root string
	// StateDir keeps the record of what was carried out.
	StateDir string
	// LogDir has the output of scripts.
	LogDir string
	// KipsImage says that the machine runs Kip's own image, on which nobody can log in.
	KipsImage bool
	// SetHostname sets the running machine's name.
	SetHostname func(name string) error
	// Sync has all that was written on the disks before it returns: unix.Sync, but in tests.
	Sync   func()
	Reaper *supervise.Reaper
	Log    *slog.Logger
}

// Machine is the one that a file is carried out on.
type Machine struct {
	o    Options
	jobs chan *cloudconfig.Document // of which there is one

	mu     sync.Mutex
	record *record // nil before anything was begun
	began  bool    // by this process
}

// record is what is stored before anything is done, and again afterwards.
type record struct {
	// Digest is of the file.
	Digest string `json:"digest"`
	// Hostname is set again when the machine is started again: Kip's image does not keep it.
	Hostname string   `json:"hostname,omitempty"`
	Ended    bool     `json:"ended"`
	Failures []string `json:"failures,omitempty"`
}

// New reads what was carried out before. A host name is set again, and scripts go that an
// agent left which was killed: they may hold secrets.
func New(o Options) (*Machine, error) {
	m := &Machine{o: o, jobs: make(chan *cloudconfig.Document, 1)}
	if err := os.RemoveAll(m.in(scriptDir)); err != nil {
		o.Log.Error("remove the scripts of a cloud-init file that was cut off", "err", err)
	}
	data, err := os.ReadFile(m.recordFile())
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	var r record
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		// It may have been carried out: never twice.
		return nil, fmt.Errorf("read what cloud-init has done: %w", err)
	}
	m.record = &r
	if r.Hostname != "" {
		if err := m.setHostname(r.Hostname); err != nil {
			o.Log.Warn("set the host name of the cloud-init file again", "err", err)
		}
	}
	return m, nil
}

func (m *Machine) recordFile() string { return filepath.Join(m.o.StateDir, recordName) }

// Run carries out what Apply is given, until ctx ends.
func (m *Machine) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
	case d := <-m.jobs:
		failures := m.carryOut(ctx, d)
		if ctx.Err() != nil {
			return // it is cut off, and the next agent says so
		}
		m.o.Sync() // what was done is not to be lost, with the record that it was
		m.end(failures)
	}
}

// Apply has a file carried out, unless one was already, and returns what of it could not be
// done. ErrUnderWay until it has ended, ErrRefused where nothing was done. It does not wait:
// whoever asks asks for a thousand machines.
func (m *Machine) Apply(file []byte) (agentapi.CloudInitDone, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(file); err != nil {
		return agentapi.CloudInitDone{}, err
	}
	return m.done()
}

// Done says the same of a file that was begun, by its digest; ErrNotBegun if none with that was.
func (m *Machine) Done(digest string) (agentapi.CloudInitDone, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.record == nil || m.record.Digest != digest {
		return agentapi.CloudInitDone{}, ErrNotBegun
	}
	if err := m.cutOff(); err != nil {
		return agentapi.CloudInitDone{}, err
	}
	return m.done()
}

// done is what has become of what was begun. The caller holds mu.
func (m *Machine) done() (agentapi.CloudInitDone, error) {
	if !m.record.Ended {
		return agentapi.CloudInitDone{}, ErrUnderWay
	}
	return agentapi.CloudInitDone{Failures: m.record.Failures}, nil
}

// cutOff records that what an agent before this one began is at its end, if it is not. The
// caller holds mu.
func (m *Machine) cutOff() error {
	if m.began || m.record.Ended {
		return nil
	}
	cut := *m.record
	cut.Ended = true
	cut.Failures = append(cut.Failures, "it was cut off when the agent ended, and is not begun again")
	if err := m.keep(cut); err != nil {
		return err
	}
	m.o.Log.Warn("the cloud-init file was cut off", "digest", cut.Digest)
	return nil
}

// begin records that a file is carried out, and has that begun, unless it was. The caller
// holds mu.
func (m *Machine) begin(file []byte) error {
	digest := cloudconfig.Digest(file)
	switch r := m.record; {
	case r != nil && r.Digest != digest:
		return fmt.Errorf("%w: this machine has had another one, and has one in its life", ErrRefused)
	case r != nil:
		return m.cutOff()
	}
	d, err := cloudconfig.Parse("cloud-init", file)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if needs := d.NeedsLogin(); needs != "" && m.o.KipsImage {
		return fmt.Errorf("%w: nobody can log in on Kip's own image, so it has no %s", ErrRefused, needs)
	}
	if err := m.keep(record{Digest: digest, Hostname: d.Hostname}); err != nil {
		return err
	}
	m.o.Log.Info("carrying out the cloud-init file", "digest", digest)
	m.began = true
	m.jobs <- d // it has room, and there is one
	return nil
}

// keep stores a record, which then holds. The caller holds mu.
func (m *Machine) keep(r record) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = store(m.recordFile(), data)
	}
	if err != nil {
		return fmt.Errorf("record what cloud-init does: %w", err)
	}
	m.record = &r
	return nil
}

// end records what became of it.
func (m *Machine) end(failures []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := *m.record
	r.Ended, r.Failures = true, failures
	if err := m.keep(r); err != nil {
		m.o.Log.Error("the cloud-init file is carried out", "err", err)
		m.record = &r // for this process; the next one says that it was cut off
	}
	for _, f := range failures {
		m.o.Log.Warn("a part of the cloud-init file could not be done", "err", f)
	}
}

// store replaces a file as a whole, and has it on the disk before it returns.
func store(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.WriteSynced(path, data, 0o600)
}
