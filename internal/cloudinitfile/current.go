package cloudinitfile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloudconfig"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"k8s.io/utils/clock"
)

const (
	// prefix is where the contents are stored that launches name, sealed.
	prefix = "cloudinit/"
	// countsKey has the digest of the one that counts.
	countsKey = "cloudinit"
	// every is how often the file is looked at.
	every = 5 * time.Second
	// tellAgain is how often it is told that it is wrong or gone.
	tellAgain = time.Hour
	// keptFor is how long at least a content is kept that no cell names: a launch that
	// is being stored may.
	keptFor = time.Minute
	// maxUnfit bounds how many reasons are remembered for which the file does not fit.
	maxUnfit = 100
)

// Current is the operator's cloud-init file, as it counts for the next launch, and
// what of it is stored for cells that were launched with another. What is stored is sealed
// like the CA's key: it may hold secrets.
type Current struct {
	cfg Config
	// last is what the last look found, and seen what was made of it: that of two that agree.
	// wrong is what is wrong with that, nil for nothing, and told when that was said. Of Loop alone.
	last, seen string
	wrong      error
	told       time.Time

	mu  sync.Mutex
	now File
	// unfit is when it was last told why the file does not fit.
	unfit map[string]time.Time
}

var _ cells.CloudInit = (*Current)(nil)

// Config of a Current. All is required.
type Config struct {
	Source Source
	// AtStart is the file that this process has read when it began.
	AtStart File
	Store   *store.Store
	Sealer  *pki.Sealer
	// Events are those of the node.
	Events Recorder
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// Recorder reports Events of the node.
type Recorder interface{ Report(e events.Event) }

// Open has a file count before anything is launched, and seals anew what was sealed by
// another key.
func Open(ctx context.Context, cfg Config) (*Current, error) {
	o := &Current{cfg: cfg, unfit: map[string]time.Time{}}
	if err := o.sealAnew(ctx); err != nil {
		return nil, err
	}
	f, err := o.first(ctx, cfg.AtStart)
	if err != nil {
		return nil, err
	}
	return o, o.take(ctx, f)
}

// first returns the file to use at the start: the one on disk, if this process or an earlier
// Kip has read the same content before. Otherwise that file may be bad, gone or half written:
// then it is the one that the Kip before used, or else what this process read at its start.
func (o *Current) first(ctx context.Context, atStart File) (File, error) {
	var counted string
	revision, err := o.cfg.Store.Get(ctx, countsKey, &counted)
	if err != nil {
		return File{}, fmt.Errorf("read which cloud-init file counts: %w", err)
	}
	f, err := o.cfg.Source.Read()
	o.last = lookOf(f, err)
	if err == nil && (f.digest == atStart.digest || revision > 0 && f.digest == counted) {
		o.seen = o.last
		return f, nil
	}
	last := atStart
	if counted != "" {
		content, revision, _, bad := o.stored(ctx, counted)
		if bad == nil && revision > 0 {
			if last, bad = o.cfg.Source.parse(content); bad != nil {
				o.cfg.Log.Warn("the cloud-init file that counted is not one for this Kip; that of the start of this process counts", "err", bad)
				last = atStart
			}
		}
	}
	o.seen = last.digest
	if err != nil {
		o.seen, o.wrong = o.last, err
	}
	return last, nil
}

// Digest implements cells.CloudInit.
func (o *Current) Digest() string { return o.current().digest }

// NeedsLogin implements cells.CloudInit.
func (o *Current) NeedsLogin() bool { return o.current().login }

func (o *Current) current() File {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now
}

// Unfit implements cells.CloudInit. It tells each reason anew after a while.
func (o *Current) Unfit(why string) {
	now := o.cfg.Clock.Now()
	o.mu.Lock()
	told, is := o.unfit[why]
	if tell := !is || now.Sub(told) >= tellAgain; !tell {
		o.mu.Unlock()
		return
	}
	if len(o.unfit) >= maxUnfit {
		clear(o.unfit)
	}
	o.unfit[why] = now
	digest := o.now.digest
	o.mu.Unlock()
	o.cfg.Log.Error("the cloud-init file does not fit the image of cells: launches wait until you fix one of them, and cells that run go on",
		"digest", digest, "err", why)
	o.cfg.Events.Report(events.NewCloudInitUnfit(digest, why))
}

// Document implements cells.CloudInit.
func (o *Current) Document(ctx context.Context, digest string) ([]byte, error) {
	if now := o.current(); now.digest == digest {
		return now.content, nil
	}
	content, revision, _, err := o.stored(ctx, digest)
	if err == nil && revision == 0 {
		err = errors.New("it is not in the store")
	}
	if err != nil {
		return nil, fmt.Errorf("read the cloud-init file %.12s: %w", digest, err)
	}
	return content, nil
}

// stored returns a stored content and the revision of its record, 0 for none. It is stale where
// the sealer would seal it otherwise.
func (o *Current) stored(ctx context.Context, digest string) (content []byte, revision int64, stale bool, err error) {
	key := prefix + digest
	var sealed []byte
	if revision, err = o.cfg.Store.Get(ctx, key, &sealed); err != nil || revision == 0 {
		return nil, revision, false, err
	}
	if content, stale, err = o.cfg.Sealer.Open(sealed, key); err == nil && cloudconfig.Digest(content) != digest {
		err = errors.New("what is stored is another")
	}
	return content, revision, stale, err
}

// take stores a content and that it counts, and has it count from then on.
func (o *Current) take(ctx context.Context, f File) error {
	if err := o.keep(ctx, f); err != nil {
		return fmt.Errorf("store the cloud-init file: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = f
	return nil
}

// keep stores a content, and then that it counts.
func (o *Current) keep(ctx context.Context, f File) error {
	if f.digest != "" {
		_, revision, _, err := o.stored(ctx, f.digest)
		if err == nil && revision == 0 {
			key := prefix + f.digest
			_, err = o.cfg.Store.Put(ctx, key, o.cfg.Sealer.Seal(f.content, key), 0)
		}
		if err != nil {
			return err
		}
	}
	var counted string
	revision, err := o.cfg.Store.Get(ctx, countsKey, &counted)
	if err == nil && counted != f.digest {
		_, err = o.cfg.Store.Put(ctx, countsKey, f.digest, revision)
	}
	return err
}

// digests are those of the stored contents.
func (o *Current) digests(ctx context.Context) (all []string, err error) {
	err = o.cfg.Store.List(ctx, prefix, func(key string, _ []byte, _ int64) error {
		all = append(all, strings.TrimPrefix(key, prefix))
		return nil
	})
	return all, err
}

// sealAnew seals what was sealed by a key that is not the first any more, and may go.
func (o *Current) sealAnew(ctx context.Context) error {
	all, err := o.digests(ctx)
	if err != nil {
		return err
	}
	for _, digest := range all {
		content, revision, stale, err := o.stored(ctx, digest)
		if err == nil && stale {
			key := prefix + digest
			_, err = o.cfg.Store.Put(ctx, key, o.cfg.Sealer.Seal(content, key), revision)
		}
		if err != nil {
			return fmt.Errorf("read the cloud-init file %.12s of cells: %w", digest, err)
		}
	}
	return nil
}
