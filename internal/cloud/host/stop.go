package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud"
)

// shutRequest bounds the request to a machine to end by itself, and shutAgain is after how
// long it is repeated.
const shutRequest, shutAgain = 10 * time.Second, 3 * time.Second

// Stop ends the machines' processes, as when a machine's power is cut or, where that would
// lose what they keep in memory (Shutter), as by their power buttons, and
// returns when they are Stopped: what is left is the folder, with the disk, the
// addresses and the record. It is idempotent. When ctx ends first, the work goes
// on. A machine that is not there is refused.
func (c *Cloud) Stop(ctx context.Context, ids ...string) cloud.Results {
	results := cloud.Each(nil, ids...)
	machines := make([]*machine, len(ids))
	for n, id := range ids {
		m, err := c.find(id)
		if err == nil {
			err = c.unless(ctx, m, []cloud.State{cloud.Pending}, func() error { return c.stop(m) })
		}
		if err != nil {
			results[n].Err = fmt.Errorf("stop %s: %w", id, err)
			continue
		}
		machines[n] = m
	}
	for n, m := range machines {
		if m == nil {
			continue
		}
		if err := c.unless(ctx, m, []cloud.State{cloud.Stopping}, func() error { return nil }); err != nil {
			results[n].Err = fmt.Errorf("stop %s: %w", m.id, err)
		}
	}
	return results
}

// find returns a machine.
func (c *Cloud) find(id string) (*machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machines[id]
	if m == nil {
		return nil, noMachine(id)
	}
	return m, nil
}

func noMachine(id string) error {
	return fmt.Errorf("%w: there is no machine %s", cloud.ErrRefused, id)
}

// stop begins to stop a machine. The caller holds mu.
func (c *Cloud) stop(m *machine) error {
	switch m.rec.Instance.State {
	case cloud.Running:
	case cloud.Terminating:
		return noMachine(m.id)
	default:
		return nil
	}
	if err := c.enter(m, cloud.Stopping); err != nil {
		return err
	}
	m.settled = make(chan struct{})
	c.cfg.Reached("stopping")
	if _, ok := c.kind.(Shutter); !ok {
		return c.kind.Kill(m.id, m.process)
	}
	c.shut(m)
	return nil
}

// shut has a machine end by itself, and kills it if it does not. The caller holds mu; the
// machine has a process, and is Stopping.
func (c *Cloud) shut(m *machine) {
	process, settled := m.rec.Process, m.settled
	c.wg.Go(func() {
		err := c.ask(c.kind.(Shutter), m, process, settled)
		c.mu.Lock()
		defer c.mu.Unlock()
		if m.process == nil || m.rec.Instance.State != cloud.Stopping || c.closed {
			return // it has ended, or somebody else ends it
		}
		log := c.cfg.Log.With("instance", m.id)
		log.Warn("a machine does not end by itself, and is killed", "err", err)
		if err := c.kind.Kill(m.id, m.process); err != nil {
			log.Error("cannot kill a machine", "err", err)
		}
	})
}

// ask asks a machine to end until it has, or its time is over: one that still boots does not
// hear it, and one on a busy host may not answer at once.
func (c *Cloud) ask(kind Shutter, m *machine, process Process, settled <-chan struct{}) error {
	over := c.cfg.Clock.After(kind.ShutLimit())
	for {
		ctx, cancel := context.WithTimeout(c.ctx, shutRequest)
		err := kind.Shut(ctx, m.id, process)
		cancel()
		select {
		case <-settled:
			return nil
		case <-m.gone:
			return nil
		case <-c.ctx.Done():
			return nil
		case <-over:
			return errors.Join(fmt.Errorf("it has not ended after %v", kind.ShutLimit()), err)
		case <-c.cfg.Clock.After(shutAgain):
		}
	}
}

// syncAround has the file system of a folder write all that it holds.
func syncAround(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// rest notes that a machine has stopped. It says false for one that is not to
// rest: it was terminated meanwhile.
func (c *Cloud) rest(m *machine) (bool, error) {
	if _, ok := c.kind.(Shutter); ok {
		// What starts again outlives a crash of the host.
		if err := syncAround(c.cfg.MachineDir(m.id)); err != nil {
			return false, fmt.Errorf("write the disk of a machine that has stopped: %w", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.rec.Instance.State != cloud.Stopping {
		return false, nil
	}
	rec := m.rec
	rec.Instance.State, rec.Process = cloud.Stopped, Process{}
	if err := rec.write(c.cfg.MachineDir(m.id)); err != nil {
		return false, fmt.Errorf("record that the machine has stopped: %w", err)
	}
	c.cfg.Reached("stopped")
	m.rec = rec
	m.settle()
	return true, nil
}

// Start boots stopped machines again, with the same disk, IPv4 addresses and user
// data, all at the same time, and returns when their inits run. It is
// idempotent. A machine that is not there, or whose type is not in the catalogue
// any more, is refused. One that cannot be started is Stopped again.
func (c *Cloud) Start(ctx context.Context, ids ...string) cloud.Results {
	results := cloud.Each(nil, ids...)
	var wg sync.WaitGroup
	for n, id := range ids {
		wg.Go(func() {
			m, err := c.find(id)
			if err == nil {
				err = c.start(ctx, m)
			}
			if err != nil {
				results[n].Err = fmt.Errorf("start %s: %w", id, err)
			}
		})
	}
	wg.Wait()
	return results
}

func (c *Cloud) start(ctx context.Context, m *machine) error {
	var rec record // ours alone while the machine is Pending
	ours := false
	err := c.unless(ctx, m, []cloud.State{cloud.Pending, cloud.Stopping}, func() error {
		switch m.rec.Instance.State {
		case cloud.Running:
			return nil
		case cloud.Terminating:
			return noMachine(m.id)
		}
		if c.closed {
			return errClosed
		}
		rec, ours = m.rec, true
		m.rec.Instance.State, m.settled = cloud.Pending, make(chan struct{})
		c.wg.Add(1)
		return nil
	})
	if err != nil || !ours {
		return err
	}
	defer c.wg.Done()
	started := c.cfg.Clock.Now()
	// On disk it is Stopped until it runs: whoever finds it half-started only
	// has to halt it.
	h, err := c.restart(ctx, &rec)
	if err == nil {
		c.cfg.Log.InfoContext(ctx, "started a machine", "instance", m.id, "cell", rec.Instance.Tags[cloud.TagCell],
			"type", rec.Instance.InstanceType, "took", c.cfg.Clock.Since(started).Round(time.Millisecond))
		c.runs(m, rec, h)
		return nil
	}
	c.mu.Lock()
	m.rec.Process, m.rec.Instance.State = rec.Process, cloud.Stopping
	c.mu.Unlock()
	c.wg.Go(func() { c.end(m) })
	return err
}

// restart takes all steps of a start.
func (c *Cloud) restart(ctx context.Context, rec *record) (*Handle, error) {
	t, ok := c.cfg.instanceType(rec.Instance.InstanceType)
	if !ok {
		return nil, fmt.Errorf("%w: instance type %s is no longer in the catalogue", cloud.ErrRefused, rec.Instance.InstanceType)
	}
	c.cfg.addressIPv6(&rec.Instance, rec.Slot) // the network may be another than at its launch
	return c.boot(ctx, rec, t, nil, true)
}
