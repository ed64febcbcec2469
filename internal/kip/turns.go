package kip

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/elotl/kip/internal/cellca"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/internal/leader"
	"github.com/elotl/kip/internal/store"
)

var (
	// errDeposed: the lease of the leader has run out.
	errDeposed = errors.New("this process no longer leads: another Kip may")
	// errStill: a loop of the leader has stood still, and another is to lead.
	errStill = errors.New("a loop has stood still, and the lease is given up")
)

// takeTurns does Kip's work whenever this process leads.
func (k *process) takeTurns(ctx context.Context, own *store.Store, lead task) error {
	for {
		err := k.turn(ctx, own, lead)
		deposed := errors.Is(err, errDeposed)
		if errors.Is(err, cells.ErrTakenOver) && !deposed && ctx.Err() == nil {
			k.Log.Warn("the store has taken over, and its cells are loaded anew")
			continue
		}
		if errors.Is(err, cellca.ErrNew) && !deposed && ctx.Err() == nil {
			k.Log.Info("cells are loaded anew, with the CAs that are stored", "err", err)
			continue
		}
		if errors.Is(err, cells.ErrBehindTime) && !deposed && ctx.Err() == nil {
			k.Log.Warn("a new term is begun, by a clock that has been set", "err", err)
			continue
		}
		if (errors.Is(err, holder.ErrOther) || errors.Is(err, holder.ErrFollowed)) && !deposed && ctx.Err() == nil {
			k.Log.Error("two Kips of one node run: what this one did is given up, and its pods go on running on their cells", "err", err)
			continue
		}
		// One that another has followed begins afresh, in a new process. While
		// the store does not answer nobody follows: this one goes on saying so,
		// and leads again.
		if !deposed || own.Healthy(ctx) == nil {
			return err
		}
		k.Log.Warn("the store does not answer; pods go on running on their cells until this process leads again", "err", err)
	}
}

// resignTimeout bounds the handing over to another replica, which otherwise waits
// for the lease to run out.
const resignTimeout = 3 * time.Second

// task is what a process does while it leads, with its fenced view of the store.
type task func(ctx context.Context, st *store.Store) error

// turn waits until this process leads, and does Kip's work as long as it does.
func (k *process) turn(ctx context.Context, own *store.Store, lead task) (err error) {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	leadership, err := leader.Elect(ctx, own, fmt.Sprintf("%s (process %d)", host, os.Getpid()), k.Log)
	if err != nil {
		return err
	}
	resign := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
		defer cancel()
		return leadership.Resign(ctx)
	}
	defer func() { err = errors.Join(err, resign()) }()
	k.role.elected.Store(true)
	defer func() {
		k.role.elected.Store(false)
		k.role.leading.Store(nil)
	}()
	work, stop := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-leadership.Lost():
			stop(errDeposed)
		case <-k.watchdog.Stalled():
			stop(errStill)
			// Now: what stands still may never end. The fence keeps it from writing.
			if err := resign(); err != nil {
				k.Log.Warn("give up the lease", "err", err)
			}
		case <-work.Done():
		}
	}()
	defer func() { stop(nil); <-watched }()
	st := leadership.Store()
	if err = st.Migrate(work); err == nil {
		err = lead(work, st)
	}
	if cause := context.Cause(work); errors.Is(cause, errDeposed) || errors.Is(cause, errStill) {
		return errors.Join(cause, err)
	}
	return err
}
