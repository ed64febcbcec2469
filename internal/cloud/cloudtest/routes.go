package cloudtest

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// takeBack takes routes to instances back at the end, whatever the check found: no list shows them.
func (t *trial) takeBack(r cloud.Router, prefixes []netip.Prefix, instances ...string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, id := range instances {
			if err := r.Unroute(ctx, id, prefixes); err != nil {
				t.Errorf("the routes %v to instance %s may be left: %v", prefixes, id, err)
			}
		}
	})
}

func leadsNetworks(t *trial) {
	r := t.cloud.Optional().Router
	if r == nil {
		t.Skip("this cloud makes no routes")
	}
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	a, b := got[0].ID, got[1].ID
	// TEST-NET-2 and 3, of RFC 5737.
	one, two := netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24")
	both := []netip.Prefix{one, two}
	t.takeBack(r, both, a, b)
	taken := func(what string, to string, instance string, prefixes ...netip.Prefix) {
		t.Helper()
		var err *cloud.RouteTakenError
		if said := r.Route(t.Context(), instance, prefixes); !errors.As(said, &err) || err.Target != to || err.To != prefixes[0] {
			t.Errorf("%s: %v: want a RouteTakenError that names %s", what, said, to)
		}
	}
	for range 2 {
		if err := r.Route(t.Context(), a, both); err != nil {
			t.Fatal(err)
		}
	}
	taken("a second instance", a, b, two)
	if err := r.Unroute(t.Context(), b, both); err != nil {
		t.Errorf("what leads to another was to be taken back: %v", err)
	}
	taken("after another's were taken back", a, b, one)
	for range 2 {
		if err := r.Unroute(t.Context(), a, both); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Route(t.Context(), b, both); err != nil {
		t.Errorf("routes that were taken back: %v", err)
	}
	if err := r.Route(t.Context(), "i-0123456789abcdef0", []netip.Prefix{one}); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("to an unknown instance: %v: want ErrNotFound", err)
	}
	t.terminate(a, b)
	t.eventuallyEmpty(Owners[0])
	// It may be that nobody but the caller knows any more whose they were.
	if err := r.Unroute(t.Context(), b, both); err != nil {
		t.Fatal(err)
	}
	last := t.launch(t.request(Owners[0], 1))
	t.eventuallyRunning(Owners[0], ids(last))
	t.takeBack(r, both, last[0].ID)
	if err := r.Route(t.Context(), last[0].ID, both); err != nil {
		t.Errorf("the routes of an instance that has ended: %v", err)
	}
	if err := r.Unroute(t.Context(), last[0].ID, both); err != nil {
		t.Fatal(err)
	}
	t.terminate(ids(last)...)
	t.eventuallyEmpty(Owners[0])
}
