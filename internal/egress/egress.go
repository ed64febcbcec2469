package egress

import (
	"context"
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
	// readTimeout bounds a reading, and firstTimeout that of a subnet of which nothing is known: the
	// cells there wait for it, in silence.
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
	// Changed is told that Masquerade may return something else. It does not block.
	Changed func()
	Clock   clock.Clock
	Log     *slog.Logger
}

// Egress knows the ways. Run keeps them.
type Egress struct {
	cfg  Config
	more chan struct{} // there is a subnet of which nothing is known

	mu      sync.Mutex
	subnets map[string]*subnet

	// Of Run alone.
	revision int64
	unstored bool
}

// subnet is one that has, or had, a cell with a public address.
type subnet struct {
	way *cloud.Way // nil while it is not known
	// asked says that the cloud was asked, whether it has answered or not.
	asked bool
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
		e.subnets[id] = &subnet{way: &way}
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
		select {
		case e.more <- struct{}{}:
		default:
		}
	}
	if s.way == nil || !s.way.Internet {
		return nil, false, s.way != nil || s.asked
	}
	var b netipx.IPSetBuilder
	for _, networks := range [][]netip.Prefix{private, s.way.Direct} {
		for _, p := range networks {
			b.AddPrefix(p)
		}
	}
	all, err := b.IPSet()
	if err != nil { // a network that is none, which no cloud and no annotation has
		return nil, false, true
	}
	return slices.DeleteFunc(all.Prefixes(), func(p netip.Prefix) bool { return !p.Addr().Is4() }), true, true
}

// Run reads the ways until ctx ends.
func (e *Egress) Run(ctx context.Context) error {
	for {
		var again <-chan time.Time // no subnet, no reading
		if ids, timeout := e.known(); len(ids) > 0 {
			pause := readEvery
			if err := e.read(ctx, timeout, ids); err != nil {
				if ctx.Err() != nil {
					return nil
				}
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

// known returns the subnets that the cloud is to be asked for, and how long that may take.
func (e *Egress) known() (ids []string, timeout time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	timeout = readTimeout
	for id, s := range e.subnets {
		ids = append(ids, id)
		if s.way == nil && !s.asked {
			timeout = firstTimeout
		}
	}
	slices.Sort(ids)
	return ids, timeout
}

// read asks the cloud, and stores what has changed.
func (e *Egress) read(ctx context.Context, timeout time.Duration, ids []string) error {
	call, cancel := context.WithTimeout(ctx, timeout)
	ways, err := e.cfg.Cloud.Ways(call, ids...)
	cancel()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e.mu.Lock()
	changed := false
	for _, id := range ids {
		s := e.subnets[id]
		changed = changed || s.way == nil && !s.asked
		s.asked = true
		if way := ways[id]; err == nil && (s.way == nil || !reflect.DeepEqual(*s.way, way)) {
			s.way, changed, e.unstored = &way, true, true
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
		e.cfg.Changed()
	}
	if e.unstored {
		e.store(ctx, stored)
	}
	return err
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
