package provisioner

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/volumes"
)

const (
	// checkTimeout bounds a question about one disk.
	checkTimeout = 10 * time.Second
	// checkedFor is how long its answer counts. checkedLateFor is how long a good one does that somebody has waited for in vain: until he
	// has asked again, which the controller of pods puts off for fifteen seconds at most, and other disks of his pod are told of, too.
	checkedFor, checkedLateFor = 3 * time.Second, 30 * time.Second
)

// checks are what the cloud says of disks that pods are to have, one question for each at a time.
type checks struct {
	asking singleflight.Group

	mu    sync.Mutex
	began map[volumes.Disk]time.Time // of the questions without an answer
	told  map[volumes.Disk]checked
	// slow is until when nobody waits, since the latest question took longer than anybody does: a thousand disks, each waited for a
	// while, would take all the time of those who ask.
	slow time.Time
}

type checked struct {
	err   error
	until time.Time // it counts
}

// begin notes when the question about a disk began, and says for how long to wait for it; or it
// returns the answer.
func (c *checks) begin(disk volumes.Disk, now time.Time) (answer checked, is bool, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer, is = c.told[disk]; is && now.Before(answer.until) {
		return answer, true, 0
	}
	if c.began == nil {
		c.began, c.told = map[volumes.Disk]time.Time{}, map[volumes.Disk]checked{}
	}
	began, is := c.began[disk]
	if !is {
		began = now
		c.began[disk] = now
	}
	wait = began.Add(patience).Sub(now)
	if wait <= 0 {
		c.slow = now.Add(checkedLateFor)
	}
	if now.Before(c.slow) {
		return checked{}, false, 0
	}
	return checked{}, false, wait
}

// waited notes that somebody has waited in vain.
func (c *checks) waited(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow = now.Add(checkedLateFor)
}

// answered keeps an answer, and forgets those that count no more.
func (c *checks) answered(disk volumes.Disk, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := checkedFor
	if err == nil && now.Before(c.slow) {
		counts = checkedLateFor
	}
	if began, is := c.began[disk]; is && now.Sub(began) < patience {
		c.slow = time.Time{}
	}
	delete(c.began, disk)
	maps.DeleteFunc(c.told, func(_ volumes.Disk, a checked) bool { return !now.Before(a.until) })
	c.told[disk] = checked{err, now.Add(counts)}
}

// Attachable says whether the cloud would give a disk to an instance in its zone, so that none is
// launched in vain: a *[volumes.HeldDiskError], or an *[volumes.UnusableDiskError], if not. The error
// is [volumes.ErrUntold] where the cloud takes its time; the question goes on, and whoever asks again
// is told. Other errors are the cloud's, of a disk that is not there yet or cannot be looked at.
func (p *Provisioner) Attachable(ctx context.Context, disk volumes.Disk) error {
	if p.cfg.Checker == nil {
		return nil
	}
	answer, is, wait := p.checks.begin(disk, p.cfg.Clock.Now())
	if is {
		return answer.err
	}
	told := p.checks.asking.DoChan(disk.ID+" "+disk.Zone+" "+disk.Volume, func() (any, error) {
		ctx, cancel := context.WithTimeout(p.lifetime, checkTimeout)
		defer cancel()
		err := inVolumes(disk.ID, p.cfg.Checker.CheckDisk(ctx, disk.ID, disk.Zone))
		p.checks.answered(disk, err, p.cfg.Clock.Now())
		return nil, err
	})
	ctx, cancel := context.WithTimeoutCause(ctx, wait, volumes.ErrUntold)
	defer cancel()
	select {
	case a := <-told:
		return a.Err
	case <-ctx.Done():
		err := context.Cause(ctx)
		if wait > 0 && errors.Is(err, volumes.ErrUntold) {
			p.checks.waited(p.cfg.Clock.Now())
		}
		return err
	}
}

// inVolumes is what a cloud says of a disk, as it is said of volumes.
func inVolumes(disk string, err error) error {
	inUse, held := errors.AsType[*cloud.InUseError](err)
	switch {
	case held:
		return &volumes.HeldDiskError{Disk: disk, Instance: inUse.Instance}
	case errors.Is(err, cloud.ErrRefused):
		return &volumes.UnusableDiskError{Disk: disk, Why: err}
	}
	return err
}
