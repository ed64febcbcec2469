package cloudinitfile

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/watchdog"
)

// Loop follows the file, and forgets contents that no cell needs.
type Loop struct {
	*Current
	cells    Cells
	watchdog *watchdog.Watchdog
	unnamed  map[string]time.Time // since when no cell names a stored content
}

// Cells are those that may need a content.
type Cells interface{ List() []cells.Cell }

// NewLoop returns what follows the file; Run starts it.
func NewLoop(o *Current, all Cells, w *watchdog.Watchdog) *Loop {
	return &Loop{
		Current:  o,
		cells:    all,
		watchdog: w,
		unnamed:  map[string]time.Time{},
	}
}

// Run reads the file again when it changes, until ctx ends.
func (o *Loop) Run(ctx context.Context) error {
	ticker := o.cfg.Clock.NewTicker(every)
	defer ticker.Stop()
	for {
		o.watchdog.Track(ctx, "cloud-init file", func(ctx context.Context) {
			o.look(ctx)
			o.forget(ctx)
		})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// lookOf names what a look at the file found: the content, or what is wrong.
func lookOf(f File, err error) string {
	if err != nil {
		return err.Error()
	}
	return f.digest
}

// look takes the file if it has changed and two looks found the same: one may find it half
// written, or gone while it is replaced. As long as it is wrong or gone, that is told again at
// times, and the last good one counts.
func (o *Current) look(ctx context.Context) {
	f, err := o.cfg.Source.Read()
	found := lookOf(f, err)
	agree := found == o.last
	o.last = found
	switch {
	case found == o.seen:
		o.tellWrong()
	case !agree:
	case err != nil:
		o.seen, o.wrong, o.told = found, err, time.Time{}
		o.tellWrong()
	default:
		before := o.current().digest
		if err := o.take(ctx, f); err != nil {
			o.cfg.Log.Warn("take the new cloud-init file, retrying", "err", err)
			return
		}
		o.seen, o.wrong = found, nil
		if f.digest != before {
			o.cfg.Events.Report(events.NewCloudInitChanged(f.digest))
		}
	}
}

// tellWrong tells what is wrong with the file, if anything is and it was not told lately.
func (o *Current) tellWrong() {
	now, digest := o.cfg.Clock.Now(), o.current().digest
	if o.wrong == nil || now.Sub(o.told) < tellAgain {
		return
	}
	o.told = now
	what, said := "is wrong", events.NewCloudInitWrong(digest, o.wrong)
	if errors.Is(o.wrong, fs.ErrNotExist) {
		what, said = "is gone", events.NewCloudInitGone(digest, o.wrong)
	}
	o.cfg.Log.Warn("the cloud-init file "+what+", and the last good one counts for new cells", "digest", digest, "err", o.wrong)
	o.cfg.Events.Report(said)
}

// forget removes what no cell names, and has not for a while.
func (o *Loop) forget(ctx context.Context) {
	all, err := o.digests(ctx)
	if err != nil {
		o.cfg.Log.Warn("look for cloud-init files that no cell needs", "err", err)
		return
	}
	needed := map[string]bool{o.current().digest: true}
	for _, cell := range o.cells.List() {
		needed[cell.CloudInit()] = true
	}
	now := o.cfg.Clock.Now()
	for _, digest := range all {
		since, noted := o.unnamed[digest]
		switch {
		case needed[digest]:
			delete(o.unnamed, digest)
		case !noted:
			o.unnamed[digest] = now
		case now.Sub(since) >= keptFor:
			_, revision, _, _ := o.stored(ctx, digest) // also one that cannot be read
			if err := o.cfg.Store.Delete(ctx, prefix+digest, revision); err != nil {
				o.cfg.Log.Warn("forget a cloud-init file that no cell needs", "err", err)
				continue
			}
			delete(o.unnamed, digest)
		}
	}
}
