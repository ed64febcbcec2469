package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"go4.org/netipx"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

const (
	// waysKey is where the last ways are stored: a Kip that starts changes nothing on running cells,
	// whether the cloud answers or not.
	waysKey = "egress"
	// readEvery is how often the cloud is asked. A network that somebody adds counts as the internet
	// until then.
	readEvery = time.Minute
	// retryEvery is the wait after an error.
	retryEvery = 10 * time.Second
	// readTimeout bounds a reading. firstTimeout bounds how long cells wait, in silence, for a subnet
	// of which nothing is known.
	readTimeout, firstTimeout = time.Minute, 5 * time.Second
)

// private are networks that the internet does not route: the cluster's Services, its pods and
// whatever else is one's own. Sources: RFC 1918, RFC 6598.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
}

// Config of an Egress. All fields are required.
type Config struct {
	Cloud cloud.Egress
	Store *store.Store
	Clock clock.Clock
	Log   *slog.Logger
}

// Egress knows the ways. Run keeps them.
type Egress struct {
	cfg  Config
	more chan struct{} // there is a subnet of which nothing is known

	mu      sync.Mutex
	subnets map[string]*subnet
	cancel  context.CancelFunc // of the reading under way; nil for none

	// Of Run alone.
	revision int64
	unstored bool
}

// subnet is one that has, or had, a cell with a public address.
type subnet struct {
	way    *cloud.Way     // nil while it is not known
	except []netip.Prefix // of way; never changed, only replaced
	does   bool           // cells masquerade
	// since is when the first reading began that asks for it, and asked says that the cloud was asked, whether it
	// has answered or not.
	since time.Time
	asked bool
	// doubts are what way has and the last reading has not, with the time of the first such reading: networks of Direct,
	// and the zero one for the way to the internet.
	doubts map[netip.Prefix]time.Time
}

// set takes a way, and reports whether cells masquerade otherwise than before.
func (s *subnet) set(way cloud.Way) (changed bool) {
	except, does := exceptions(way)
	changed = s.way == nil || does != s.does || !slices.Equal(except, s.except)
	s.way, s.except, s.does = &way, except, does
	return changed
}

// exceptions returns the networks for which cells do not masquerade, disjoint and sorted. They are few:
// EC2 bounds the routes of a table, and counts the entries of prefix lists among them.
func exceptions(way cloud.Way) (except []netip.Prefix, does bool) {
	if !way.Internet {
		return nil, false
	}
	var b netipx.IPSetBuilder
	for _, networks := range [][]netip.Prefix{private, way.Direct} {
		for _, p := range networks {
			b.AddPrefix(p)
		}
	}
	all, err := b.IPSet()
	if err != nil { // a network that is none, which no cloud has
		return nil, false
	}
	return slices.DeleteFunc(all.Prefixes(), func(p netip.Prefix) bool { return !p.Addr().Is4() }), true
}

// Open returns the ways that are stored.
func Open(ctx context.Context, cfg Config) (*Egress, error) {
	e := &Egress{
		cfg:     cfg,
		more:    make(chan struct{}, 1),
		subnets: map[string]*subnet{},
	}
	var stored map[string]cloud.Way
	var err error
	if e.revision, err = cfg.Store.Get(ctx, waysKey, &stored); err != nil {
		return nil, fmt.Errorf("read the stored ways to the internet: %w", err)
	}
	for id, way := range stored {
		e.subnets[id] = &subnet{}
		e.subnets[id].set(way)
	}
	return e, nil
}

// Masquerade returns whether cells with a public address in a subnet masquerade what their pods
// send, and the networks for which they do not, disjoint and sorted. It is known as soon as the
// cloud was asked: as long as it does not answer, cells do not masquerade.
func (e *Egress) Masquerade(id string) (except []netip.Prefix, does, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.subnets[id]
	if s == nil {
		s = &subnet{}
		e.subnets[id] = s
		if e.cancel != nil { // a reading that does not ask for this one
			e.cancel()
		}
		select {
		case e.more <- struct{}{}:
		default:
		}
	}
	return s.except, s.does, s.way != nil || s.asked
}

// Run reads the ways until ctx ends. It calls changed when Masquerade may return something else, which does not
// block.
func (e *Egress) Run(ctx context.Context, changed func()) error {
	for {
		var again <-chan time.Time // no subnet, no reading
		if call, ids, cancel := e.begin(ctx); len(ids) > 0 {
			pause := readEvery
			err := e.read(ctx, call, ids, changed)
			cancel()
			switch {
			case ctx.Err() != nil:
				return nil
			case errors.Is(err, errMore):
				continue
			case err != nil:
				e.cfg.Log.Warn("read the ways from subnets to the internet, retrying", "subnets", ids, "err", err)
				pause = retryEvery
			}
			again = e.cfg.Clock.After(pause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.more:
		case <-again:
		}
	}
}

// errMore says that a reading was given up, since there is a subnet more to read.
var errMore = errors.New("another subnet is to be read, too")

// begin returns the subnets that the cloud is to be asked for, and the context of that. The caller calls
// cancel.
func (e *Egress) begin(ctx context.Context) (call context.Context, ids []string, cancel context.CancelFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.more: // this reading is for it
	default:
	}
	timeout := readTimeout
	for id, s := range e.subnets {
		ids = append(ids, id)
		if s.since.IsZero() {
			s.since = e.cfg.Clock.Now()
		}
		if s.way == nil && !s.asked {
			timeout = min(timeout, firstTimeout-e.cfg.Clock.Since(s.since))
		}
	}
	slices.Sort(ids)
	call, cancel = context.WithTimeout(ctx, timeout)
	e.cancel = cancel
	return call, ids, cancel
}

// read asks the cloud, and stores what has changed. It returns errMore if it is to read again at once, since
// there is a subnet more, or one that has time left.
func (e *Egress) read(ctx, call context.Context, ids []string, tell func()) error {
	ways, err := e.cfg.Cloud.Ways(call, ids...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e.mu.Lock()
	e.cancel = nil
	if errors.Is(call.Err(), context.Canceled) && err != nil {
		e.mu.Unlock()
		return errMore
	}
	changed, waits, hung := false, false, err != nil && errors.Is(call.Err(), context.DeadlineExceeded)
	for _, id := range ids {
		s := e.subnets[id]
		if hung && s.way == nil && !s.asked && e.cfg.Clock.Since(s.since) < firstTimeout {
			waits = true // that was the time of another
			continue
		}
		changed = changed || s.way == nil && !s.asked
		s.asked = true
		if way, has := ways[id]; err == nil && has {
			changed = e.take(s, way) || changed
		}
	}
	stored := map[string]cloud.Way{}
	for id, s := range e.subnets {
		if s.way != nil {
			stored[id] = *s.way
		}
	}
	e.mu.Unlock()
	if changed {
		tell()
	}
	if e.unstored {
		e.store(ctx, stored)
	}
	if waits {
		return errMore
	}
	return err
}

// take takes what a reading has of a subnet, and reports whether cells masquerade otherwise than before. A
// way to the internet, or a network that pods reach from their own address, is gone when two readings in a row say so: an
// answer may lack what is there, and who replaces a table's association has the subnet use the main table for a moment.
func (e *Egress) take(s *subnet, way cloud.Way) (changed bool) {
	if s.way != nil {
		now, doubts := e.cfg.Clock.Now(), map[netip.Prefix]time.Time{}
		counts := func(lacking netip.Prefix) bool {
			since, before := s.doubts[lacking]
			if !before {
				since = now
			}
			doubts[lacking] = since
			return now.Sub(since) < retryEvery // at once, another one says no more
		}
		kept := s.way.Internet && !way.Internet && counts(netip.Prefix{})
		if !kept {
			way.Direct = withDoubted(s.way.Direct, way.Direct, counts)
		}
		s.doubts = doubts
		if kept || reflect.DeepEqual(*s.way, way) {
			return false
		}
	}
	e.unstored = true
	return s.set(way)
}

// withDoubted returns what a reading has of networks, and those of before that count although the reading lacks them.
func withDoubted(before, read []netip.Prefix, counts func(lacking netip.Prefix) bool) (networks []netip.Prefix) {
	lacks := false
	for _, p := range before {
		is := slices.Contains(read, p)
		if is || counts(p) {
			networks = append(networks, p)
			lacks = lacks || !is
		}
	}
	if !lacks {
		return read
	}
	for _, p := range read {
		if !slices.Contains(before, p) {
			networks = append(networks, p)
		}
	}
	return networks
}

// store keeps the ways for the next Kip. What fails is done with the next reading.
func (e *Egress) store(ctx context.Context, ways map[string]cloud.Way) {
	revision, err := e.cfg.Store.Put(ctx, waysKey, ways, e.revision)
	if e.unstored = err != nil; err != nil && ctx.Err() == nil {
		e.cfg.Log.Warn("store the ways from subnets to the internet", "err", err)
		var there map[string]cloud.Way // an answer that was lost may have been a yes
		if revision, err = e.cfg.Store.Get(ctx, waysKey, &there); err != nil {
			return
		}
	}
	if err == nil {
		e.revision = revision
	}
}
