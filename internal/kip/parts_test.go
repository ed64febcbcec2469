package kip

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/provisioner"
)

// history is what parts do, in order.
type history struct {
	mu    sync.Mutex
	lines []string
}

func (h *history) note(line string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, line)
}

func (h *history) want(t *testing.T, lines ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.lines, lines) {
		t.Errorf("%q: want %q", h.lines, lines)
	}
	h.lines = nil
}

// part is one that runs until it is stopped, and is ready when it has begun.
func (h *history) part(name string) part {
	begun := make(chan struct{})
	return part{
		name: name,
		run: func(ctx context.Context) error {
			h.note(name + " starts")
			close(begun)
			<-ctx.Done()
			h.note(name + " stops")
			return ctx.Err()
		},
		ready: func(ctx context.Context) {
			select {
			case <-begun:
			case <-ctx.Done():
			}
		},
	}
}

// started runs parts; end waits for their end.
func started(ctx context.Context, all ...part) (end func() error) {
	ended := make(chan error, 1)
	go func() { ended <- runParts(ctx, all) }()
	synctest.Wait()
	return func() error { return <-ended }
}

func TestPartsStartInOrderAndStopInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var h history
		without := h.part("left")
		without.left = true
		end := started(ctx, h.part("a"), without, h.part("b"), h.part("c"))
		h.want(t, "a starts", "b starts", "c starts")
		cancel()
		if err := end(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		h.want(t, "c stops", "b stops", "a stops")
	})
}

func TestThePartThatFailsEndsAllAndIsNamed(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"an error":         {broken, "b: broken"},
		"without an error": {nil, "b: it has ended by itself"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h history
				fail := make(chan struct{})
				end := started(t.Context(), h.part("a"), part{name: "b", run: func(context.Context) error { <-fail; return tc.err }}, h.part("c"))
				h.want(t, "a starts", "c starts")
				close(fail)
				err := end()
				if err == nil || err.Error() != tc.want || tc.err != nil && !errors.Is(err, tc.err) {
					t.Errorf("ended with %v: want %q", err, tc.want)
				}
				h.want(t, "c stops", "a stops")
			})
		})
	}
}

func TestNothingStartsAfterAPartThatIsNotReady(t *testing.T) {
	for name, fails := range map[string]bool{"ended from outside": false, "it fails": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var h history
				fail := make(chan struct{})
				slow := part{
					name: "slow",
					run: func(ctx context.Context) error {
						select {
						case <-ctx.Done():
							return nil
						case <-fail:
							return errors.New("broken")
						}
					},
					ready: func(ctx context.Context) { <-ctx.Done() },
				}
				end := started(ctx, h.part("a"), slow, h.part("never"))
				h.want(t, "a starts")
				if fails {
					close(fail)
				} else {
					cancel()
				}
				if err := end(); fails != (err != nil) || fails && !strings.HasPrefix(err.Error(), "slow: ") {
					t.Errorf("ended with %v", err)
				}
				h.want(t, "a stops")
			})
		})
	}
}

func TestAPartThatHangsHoldsUpTheEndButNotTheStopOfTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var h history
		release := make(chan struct{})
		end := started(ctx, h.part("a"), part{name: "hangs", run: func(context.Context) error { <-release; return nil }})
		cancel()
		time.Sleep(2 * stopTime)
		synctest.Wait()
		h.want(t, "a starts", "a stops")
		close(release)
		if err := end(); err != nil {
			t.Errorf("stopped with %v", err)
		}
	})
}

func TestTheFirstFailureIsTheOneThatIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := runParts(t.Context(), []part{
			{name: "later", run: func(ctx context.Context) error { <-ctx.Done(); return errors.New("also broken") }},
			{name: "first", run: func(context.Context) error { return errors.New("broken") }},
		})
		if err == nil || err.Error() != "first: broken" {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestEachPartStartsAfterWhatItNeeds(t *testing.T) {
	l := &leading{term: &term{process: &process{}}, nodes: nodeSide{provisioner: &provisioner.Provisioner{}}}
	place := map[string]int{}
	waits := map[string]bool{}
	for i, p := range l.parts(nil, nil) {
		if _, twice := place[p.name]; twice || p.name == "" || p.run == nil {
			t.Errorf("part %d is called %q, and runs: %t", i, p.name, p.run != nil)
		}
		place[p.name], waits[p.name] = i, p.ready != nil
	}
	for name, needs := range map[string][]string{
		"cell API":     {"pod informer"},
		"saved logs":   {"pod informer"},
		"firewalls":    {"pod informer", "cell API"},
		"cells":        {"pod informer", "cell API", "firewalls", "shortages"},
		"virtual node": {"pods of the node", "pod informer", "client CA"},
		"pods":         {"pods of the node", "cells", "cell mirror", "virtual node"},
	} {
		at, ok := place[name]
		if !ok {
			t.Errorf("there is no part %s", name)
		}
		for _, need := range needs {
			if before, ok := place[need]; !ok || before > at {
				t.Errorf("%s is not started before %s, which needs it", need, name)
			}
		}
	}
	for _, name := range []string{"pods of the node", "virtual node", "cell mirror"} {
		if !waits[name] {
			t.Errorf("what comes after the %s does not wait for it", name)
		}
		delete(waits, name)
	}
	for name, is := range waits {
		if is && place[name] < place["cells"] {
			t.Errorf("cells wait for %s: they are to be heard although the API server is away", name)
		}
	}
	if _, ok := place["provisioner"]; !ok {
		t.Error("there is no provisioner, although there are disks")
	}
}

// The start of a pod's next cell counts by what the metrics know of its last one, and pods ask for it once they are told.
func TestMetricsAreToldOfCellsBeforePodsAct(t *testing.T) {
	l := &leading{term: &term{process: &process{}}}
	counted, acted := -1, -1
	for at, o := range l.observers() {
		switch o.(type) {
		case *metrics.Metrics:
			counted = at
		case *pods.Controller:
			acted = at
		}
	}
	if counted < 0 || acted < counted {
		t.Errorf("metrics are told in place %d, pods in place %d", counted, acted)
	}
}
