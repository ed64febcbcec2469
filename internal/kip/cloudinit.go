package kip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloudconfig"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
	"k8s.io/utils/clock"
)

const (
	// cloudInitPrefix is where the contents are stored that launches name, sealed.
	cloudInitPrefix = "cloudinit/"
	// cloudInitKey has the digest of the one that counts.
	cloudInitKey = "cloudinit"
	// cloudInitEvery is how often the file is looked at.
	cloudInitEvery = 5 * time.Second
	// cloudInitTell is how often it is told that it is wrong or gone.
	cloudInitTell = time.Hour
	// cloudInitKept is how long at least a content is kept that no cell names: a launch that
	// is being stored may.
	cloudInitKept = time.Minute
	// maxUnfit bounds how many reasons are remembered for which the file does not fit.
	maxUnfit = 100
)

// cloudInitFile is a content of cells.cloudInitFile, checked; the zero one is none.
type cloudInitFile struct {
	content []byte
	digest  string // "" for none
	login   bool   // it has users, or their keys
}

// readCloudInit reads and checks the file that the configuration names.
func readCloudInit(cfg *config.Config) (cloudInitFile, error) {
	path := cfg.Cells.CloudInitFile
	if path == "" {
		return cloudInitFile{}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return cloudInitFile{}, fmt.Errorf("cells.cloudInitFile: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return cloudInitFile{}, fmt.Errorf("cells.cloudInitFile: %w", err)
	}
	if size := info.Size(); size > cloudconfig.MaxBytes {
		return cloudInitFile{}, fmt.Errorf("cells.cloudInitFile: %w", cloudconfig.TooLarge(path, size))
	}
	// It may be no regular file, or grow.
	content, err := io.ReadAll(io.LimitReader(f, cloudconfig.MaxBytes+1))
	if err != nil {
		return cloudInitFile{}, fmt.Errorf("cells.cloudInitFile: %w", err)
	}
	return parseCloudInit(cfg, content)
}

// parseCloudInit checks a content of the file that the configuration names.
func parseCloudInit(cfg *config.Config, content []byte) (cloudInitFile, error) {
	path := cfg.Cells.CloudInitFile
	d, err := cloudconfig.Parse(path, content)
	if err != nil {
		return cloudInitFile{}, fmt.Errorf("cells.cloudInitFile: %w", err)
	}
	needs := d.NeedsLogin()
	if needs != "" && onlyKipsImage(cfg) {
		return cloudInitFile{}, fmt.Errorf("cells.cloudInitFile: %s: nobody can log in on Kip's own image, which these cells have: want no %s",
			path, needs)
	}
	return cloudInitFile{content: content, digest: cloudconfig.Digest(content), login: needs != ""}, nil
}

// operatorsCloudInit is the operator's cloud-init file, as it counts for the next launch, and
// what of it is stored for cells that were launched with another. What is stored is sealed
// like the CA's key: it may hold secrets.
type operatorsCloudInit struct {
	cfg      *config.Config
	store    *store.Store
	sealer   *pki.Sealer
	say      func(events.Event)
	watchdog *watchdog.Watchdog
	clock    clock.WithTicker
	log      *slog.Logger
	// last is what the last look found, and seen what was made of it: that of two that agree.
	// wrong is what is wrong with that, nil for nothing, and told when that was said. Of cloudInitLoop alone.
	last, seen string
	wrong      error
	told       time.Time

	mu  sync.Mutex
	now cloudInitFile
	// unfit is when it was last told why the file does not fit.
	unfit map[string]time.Time
}

var _ cells.CloudInit = (*operatorsCloudInit)(nil)

// openCloudInit has a file count before anything is launched, and seals anew what was sealed by
// another key. Events of the node go to say.
func (l *cloudSide) openCloudInit(ctx context.Context, say func(events.Event)) (*operatorsCloudInit, error) {
	o := &operatorsCloudInit{
		cfg:      l.cfg,
		store:    l.store,
		sealer:   l.ca.sealer,
		say:      say,
		watchdog: l.watchdog,
		clock:    l.clock,
		log:      l.Log,
		unfit:    map[string]time.Time{},
	}
	if err := o.sealAnew(ctx); err != nil {
		return nil, err
	}
	f, err := o.first(ctx, l.setUp)
	if err != nil {
		return nil, err
	}
	return o, o.take(ctx, f)
}

// first is the file that counts at first: as it is now, if this process or an earlier Kip has
// seen it so before. Else it is bad, gone or perhaps being written. Then what counted under
// the Kip before counts on, which may have been another process, or else what this process
// found at its start.
func (o *operatorsCloudInit) first(ctx context.Context, atStart cloudInitFile) (cloudInitFile, error) {
	var counted string
	revision, err := o.store.Get(ctx, cloudInitKey, &counted)
	if err != nil {
		return cloudInitFile{}, fmt.Errorf("read which cloud-init file counts: %w", err)
	}
	f, err := readCloudInit(o.cfg)
	o.last = lookOf(f, err)
	if err == nil && (f.digest == atStart.digest || revision > 0 && f.digest == counted) {
		o.seen = o.last
		return f, nil
	}
	last := atStart
	if counted != "" {
		content, revision, _, bad := o.stored(ctx, counted)
		if bad == nil && revision > 0 {
			if last, bad = parseCloudInit(o.cfg, content); bad != nil {
				o.log.Warn("the cloud-init file that counted is not one for this Kip; that of the start of this process counts", "err", bad)
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
func (o *operatorsCloudInit) Digest() string { return o.current().digest }

// NeedsLogin implements cells.CloudInit.
func (o *operatorsCloudInit) NeedsLogin() bool { return o.current().login }

func (o *operatorsCloudInit) current() cloudInitFile {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.now
}

// Unfit implements cells.CloudInit. It tells each reason anew after a while.
func (o *operatorsCloudInit) Unfit(why string) {
	now := o.clock.Now()
	o.mu.Lock()
	told, is := o.unfit[why]
	if tell := !is || now.Sub(told) >= cloudInitTell; !tell {
		o.mu.Unlock()
		return
	}
	if len(o.unfit) >= maxUnfit {
		clear(o.unfit)
	}
	o.unfit[why] = now
	digest := o.now.digest
	o.mu.Unlock()
	o.log.Error("the cloud-init file does not fit the image of cells: launches wait until you fix one of them, and cells that run go on",
		"digest", digest, "err", why)
	o.say(events.NewCloudInitUnfit(digest, why))
}

// Document implements cells.CloudInit.
func (o *operatorsCloudInit) Document(ctx context.Context, digest string) ([]byte, error) {
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
func (o *operatorsCloudInit) stored(ctx context.Context, digest string) (content []byte, revision int64, stale bool, err error) {
	key := cloudInitPrefix + digest
	var sealed []byte
	if revision, err = o.store.Get(ctx, key, &sealed); err != nil || revision == 0 {
		return nil, revision, false, err
	}
	if content, stale, err = o.sealer.Open(sealed, key); err == nil && cloudconfig.Digest(content) != digest {
		err = errors.New("what is stored is another")
	}
	return content, revision, stale, err
}

// take stores a content and that it counts, and has it count from then on.
func (o *operatorsCloudInit) take(ctx context.Context, f cloudInitFile) error {
	if err := o.keep(ctx, f); err != nil {
		return fmt.Errorf("store the cloud-init file: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = f
	return nil
}

// keep stores a content, and then that it counts.
func (o *operatorsCloudInit) keep(ctx context.Context, f cloudInitFile) error {
	if f.digest != "" {
		_, revision, _, err := o.stored(ctx, f.digest)
		if err == nil && revision == 0 {
			key := cloudInitPrefix + f.digest
			_, err = o.store.Put(ctx, key, o.sealer.Seal(f.content, key), 0)
		}
		if err != nil {
			return err
		}
	}
	var counted string
	revision, err := o.store.Get(ctx, cloudInitKey, &counted)
	if err == nil && counted != f.digest {
		_, err = o.store.Put(ctx, cloudInitKey, f.digest, revision)
	}
	return err
}

// digests are those of the stored contents.
func (o *operatorsCloudInit) digests(ctx context.Context) (all []string, err error) {
	err = o.store.List(ctx, cloudInitPrefix, func(key string, _ []byte, _ int64) error {
		all = append(all, strings.TrimPrefix(key, cloudInitPrefix))
		return nil
	})
	return all, err
}

// sealAnew seals what was sealed by a key that is not the first any more, and may go.
func (o *operatorsCloudInit) sealAnew(ctx context.Context) error {
	all, err := o.digests(ctx)
	if err != nil {
		return err
	}
	for _, digest := range all {
		content, revision, stale, err := o.stored(ctx, digest)
		if err == nil && stale {
			key := cloudInitPrefix + digest
			_, err = o.store.Put(ctx, key, o.sealer.Seal(content, key), revision)
		}
		if err != nil {
			return fmt.Errorf("read the cloud-init file %.12s of cells: %w", digest, err)
		}
	}
	return nil
}

// cloudInitLoop follows the file, and forgets contents that no cell needs.
type cloudInitLoop struct {
	*operatorsCloudInit
	cells   interface{ List() []cells.Cell }
	unnamed map[string]time.Time // since when no cell names a stored content
}

func newCloudInitLoop(o *operatorsCloudInit, all interface{ List() []cells.Cell }) cloudInitLoop {
	return cloudInitLoop{operatorsCloudInit: o, cells: all, unnamed: map[string]time.Time{}}
}

// Run reads the file again when it changes, until ctx ends.
func (o cloudInitLoop) Run(ctx context.Context) error {
	ticker := o.clock.NewTicker(cloudInitEvery)
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
func lookOf(f cloudInitFile, err error) string {
	if err != nil {
		return err.Error()
	}
	return f.digest
}

// look takes the file if it has changed and two looks found the same: one may find it half
// written, or gone while it is replaced. As long as it is wrong or gone, that is told again at
// times, and the last good one counts.
func (o *operatorsCloudInit) look(ctx context.Context) {
	f, err := readCloudInit(o.cfg)
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
			o.log.Warn("take the new cloud-init file, retrying", "err", err)
			return
		}
		o.seen, o.wrong = found, nil
		if f.digest != before {
			o.say(events.NewCloudInitChanged(f.digest))
		}
	}
}

// tellWrong tells what is wrong with the file, if anything is and it was not told lately.
func (o *operatorsCloudInit) tellWrong() {
	now, digest := o.clock.Now(), o.current().digest
	if o.wrong == nil || now.Sub(o.told) < cloudInitTell {
		return
	}
	o.told = now
	what, said := "is wrong", events.NewCloudInitWrong(digest, o.wrong)
	if errors.Is(o.wrong, fs.ErrNotExist) {
		what, said = "is gone", events.NewCloudInitGone(digest, o.wrong)
	}
	o.log.Warn("the cloud-init file "+what+", and the last good one counts for new cells", "digest", digest, "err", o.wrong)
	o.say(said)
}

// forget removes what no cell names, and has not for a while.
func (o cloudInitLoop) forget(ctx context.Context) {
	all, err := o.digests(ctx)
	if err != nil {
		o.log.Warn("look for cloud-init files that no cell needs", "err", err)
		return
	}
	needed := map[string]bool{o.current().digest: true}
	for _, cell := range o.cells.List() {
		needed[cell.CloudInit()] = true
	}
	now := o.clock.Now()
	for _, digest := range all {
		since, noted := o.unnamed[digest]
		switch {
		case needed[digest]:
			delete(o.unnamed, digest)
		case !noted:
			o.unnamed[digest] = now
		case now.Sub(since) >= cloudInitKept:
			_, revision, _, _ := o.stored(ctx, digest) // also one that cannot be read
			if err := o.store.Delete(ctx, cloudInitPrefix+digest, revision); err != nil {
				o.log.Warn("forget a cloud-init file that no cell needs", "err", err)
				continue
			}
			delete(o.unnamed, digest)
		}
	}
}
