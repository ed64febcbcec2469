package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/cloud/remote"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/hollow"
	"k8s.io/apimachinery/pkg/types"
)

// simulated is a world whose Kip launches hollow cells in a simulated cloud. Both
// run in this process, so that Kip's own shows what Kip costs.
type simulated struct {
	bed
	fleet    *hollow.Fleet
	launches *arrivals
	stop     func() error
}

// arrivals notes when the launch of each pod's instance reached the cloud, and which
// instances were to be ended.
type arrivals struct {
	cloud.Cloud

	mu    sync.Mutex
	at    map[types.UID]time.Time
	ended map[string]bool
}

// Terminate is the cloud's.
func (a *arrivals) Terminate(ctx context.Context, ids ...string) cloud.Results {
	a.mu.Lock()
	for _, id := range ids {
		a.ended[id] = true
	}
	a.mu.Unlock()
	return a.Cloud.Terminate(ctx, ids...)
}

// endedSoFar is how many instances were to be ended.
func (a *arrivals) endedSoFar() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ended)
}

// Launch is the cloud's.
func (a *arrivals) Launch(ctx context.Context, r cloud.LaunchRequest) cloud.LaunchResults {
	now := time.Now()
	a.mu.Lock()
	for n := range r.Machines {
		if uid := types.UID(r.TagsOf(n)[cloud.TagPodUID]); a.at[uid].IsZero() {
			a.at[uid] = now
		}
	}
	a.mu.Unlock()
	return a.Cloud.Launch(ctx, r)
}

// of returns when the pod's launch arrived; zero if it has not.
func (a *arrivals) of(uid types.UID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at[uid]
}

// seller is the cloud of a world: its API, and how Kip is told where that is.
type seller struct {
	network, address string // to listen on
	// open returns the API, of machines in which boot runs, and what ends it.
	open func(boot func(context.Context, cloud.Instance, []byte)) (api http.Handler, end func() error, err error)
	// configure is what provider.yaml has of it; at is where it listens.
	configure func(provider map[string]any, at string)
}

// simulate starts a world with the simulated cloud. Its machines boot in the given time, more
// or less; at once if it is 0.
func simulate(ctx context.Context, boot time.Duration, o harness.Options) (*simulated, error) {
	dir, err := os.MkdirTemp("", "kip-bench-")
	if err != nil {
		return nil, err
	}
	o.Sim = true
	launches := &arrivals{at: map[types.UID]time.Time{}, ended: map[string]bool{}}
	s, err := sell(ctx, o, seller{
		network: "unix",
		address: filepath.Join(dir, "cloud.sock"),
		open: func(run func(context.Context, cloud.Instance, []byte)) (http.Handler, func() error, error) {
			machines, err := sim.New(sim.Config{
				Catalogue: sizes.Types("amd64"), Boot: run,
				Knobs: sim.Knobs{BootTimes: []sim.BootTime{{Distribution: sim.Distribution{Median: boot, Spread: 1.3}}}},
			})
			if err != nil {
				return nil, nil, err
			}
			launches.Cloud = machines
			return remote.Handler(launches), machines.Close, nil
		},
		configure: func(provider map[string]any, at string) {
			provider["cloud"] = map[string]any{"sim": map[string]any{"socket": at}}
		},
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop := s.stop
	s.launches, s.stop = launches, func() error { return errors.Join(stop(), os.RemoveAll(dir)) }
	return s, nil
}

// sell starts a world whose Kip launches hollow cells in a cloud.
func sell(ctx context.Context, o harness.Options, of seller) (_ *simulated, err error) {
	var undo []func() error
	s := &simulated{stop: func() error {
		var errs []error
		for n := len(undo) - 1; n >= 0; n-- {
			errs = append(errs, undo[n]())
		}
		return errors.Join(errs...)
	}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	// One listener for all cells: a process may not have files for one each.
	port, err := hollow.Share(netip.MustParseAddrPort("0.0.0.0:6421"))
	if err != nil {
		return nil, err
	}
	undo = append(undo, port.Close)
	if s.fleet, err = hollow.New(hollow.Config{Listen: port.Listen, Whole: true}); err != nil {
		return nil, err
	}
	undo = append(undo, s.fleet.Close)
	api, end, err := of.open(s.fleet.Boot)
	if err != nil {
		return nil, err
	}
	undo = append(undo, end)
	l, err := net.Listen(of.network, of.address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	undo = append(undo, func() error {
		err := server.Close()
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
		return err
	})
	w, err := harness.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	undo = append(undo, w.Stop)
	s.bed = bed{w}
	if _, err := w.Reconfigure(ctx, func(provider map[string]any) {
		of.configure(provider, l.Addr().String())
		provider["kubelet"] = map[string]any{"capacity": map[string]any{"cpu": "100000", "memory": "400Ti", "pods": "100000"}}
	}); err != nil {
		return nil, fmt.Errorf("start Kip on the simulated cloud: %w", err)
	}
	return s, w.NodeReady(ctx)
}
