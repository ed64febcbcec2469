package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/test/tier"
)

// only returns the one machine that is listed.
func only(t testing.TB, c *Cloud) cloud.Instance {
	t.Helper()
	l, err := c.List(context.Background(), "me")
	if err != nil || len(l.Instances) != 1 {
		t.Fatalf("listed: %+v, %v; want one machine", l, err)
	}
	return l.Instances[0]
}

func stop(t testing.TB, c *Cloud, ids ...string) {
	t.Helper()
	if err := c.Stop(context.Background(), ids...).Err(); err != nil {
		t.Fatal(err)
	}
}

func start(t testing.TB, c *Cloud, ids ...string) {
	t.Helper()
	if err := c.Start(context.Background(), ids...).Err(); err != nil {
		t.Fatal(err)
	}
}

// onlyFolderIsLeft checks that a stopped machine has nothing on the host but its
// folder.
func onlyFolderIsLeft(t testing.TB, cfg Config, id string) {
	t.Helper()
	left, err := Leftovers(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := "folder " + cfg.MachineDir(id)
	if !slices.Contains(left, want) {
		t.Errorf("left: %q, want %q too", left, want)
	}
	for _, s := range left {
		if s != want && !isOfBridge(cfg, s) {
			t.Errorf("left of a stopped machine: %s", s)
		}
	}
}

const places = "/srv/state /tmp/state /var/lib/containerd/state /var/lib/kubelet/state"

// writeEverywhere and readEverywhere leave and find a word on all of a machine's
// disk.
func writeEverywhere(t testing.TB, i cloud.Instance) {
	t.Helper()
	run(t, i.ManagementIP, "for p in "+places+"; do echo kept > $p || exit 1; done; rm /srv/name; echo gone > /run/state")
}

func readEverywhere(t testing.TB, i cloud.Instance) {
	t.Helper()
	if got := run(t, i.ManagementIP, "cat "+places); got != "kept\nkept\nkept\nkept" {
		t.Errorf("disk: %q", got)
	}
	if got := run(t, i.ManagementIP, "ls /run/state /srv/name 2> /dev/null || true"); got != "" {
		t.Errorf("came back: %q", got)
	}
}

func TestStoppedMachineStartsWithItsDiskAndAddresses(t *testing.T) {
	cfg := testHost(t)
	if err := os.WriteFile(filepath.Join(cfg.RootDir, "srv/name"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := open(t, cfg)
	first := launch(t, c, request("a"))
	writeEverywhere(t, first)
	const identity = "cat /proc/sys/kernel/random/boot_id; hostname; cat /etc/machine-id /var/lib/cloud/seed/user-data"
	boot, who, _ := strings.Cut(run(t, first.ManagementIP, identity), "\n")
	for round := range 3 {
		stop(t, c, first.ID)
		stop(t, c, first.ID, first.ID)
		if i := only(t, c); i.State != cloud.Stopped || i.ManagementIP != first.ManagementIP || i.PodIP != first.PodIP ||
			i.Tags[cloud.TagCell] != "cell-a" {
			t.Fatalf("stopped: %+v, was %+v", i, first)
		}
		onlyFolderIsLeft(t, cfg, first.ID)
		if i := launch(t, c, request("a")); i.ID != first.ID {
			t.Fatalf("the token launched %s beside %s", i.ID, first.ID)
		}
		// The addresses are not for others.
		if other := launch(t, c, request(fmt.Sprint("b", round))); other.ManagementIP == first.ManagementIP {
			t.Fatalf("%s has the address of stopped %s", other.ID, first.ID)
		} else if err := c.Terminate(context.Background(), other.ID).Err(); err != nil {
			t.Fatal(err)
		}
		start(t, c, first.ID)
		start(t, c, first.ID, first.ID)
		if i := only(t, c); i.State != cloud.Running || i.ManagementIP != first.ManagementIP || i.PodIP != first.PodIP {
			t.Fatalf("started: %+v, was %+v", i, first)
		}
		readEverywhere(t, first)
		again, still, _ := strings.Cut(run(t, first.ManagementIP, identity), "\n")
		if still != who {
			t.Errorf("identity: %q, want %q", still, who)
		}
		if again == boot {
			t.Error("the boot has the ID of an earlier one")
		}
		boot = again
	}
	stop(t, c, first.ID)
	if err := c.Terminate(context.Background(), first.ID).Err(); err != nil {
		t.Fatal(err)
	}
	onlyBridgeIsLeft(t, cfg)
	for what, err := range map[string]error{"stop": c.Stop(context.Background(), first.ID).Err(),
		"start": c.Start(context.Background(), first.ID).Err()} {
		if !errors.Is(err, cloud.ErrRefused) {
			t.Errorf("%s what is gone: %v", what, err)
		}
	}
}

func TestStoppedMachineOutlivesKip(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	writeEverywhere(t, i)
	stop(t, c, i.ID)
	_ = c.Close()
	if err := c.Stop(context.Background(), i.ID).Err(); err != nil { // it is
		t.Error(err)
	}
	if err := c.Start(context.Background(), i.ID).Err(); err == nil {
		t.Error("started on a closed cloud")
	}
	c = open(t, cfg)
	if got := only(t, c); got.ID != i.ID || got.State != cloud.Stopped {
		t.Fatalf("after a restart: %+v", got)
	}
	onlyFolderIsLeft(t, cfg, i.ID)
	if got := launch(t, c, request("a")); got.ID != i.ID {
		t.Errorf("the token launched %s beside %s", got.ID, i.ID)
	}
	start(t, c, i.ID)
	readEverywhere(t, i)
	_ = c.Close()
	c = open(t, cfg)
	if got := only(t, c); got.State != cloud.Running {
		t.Fatalf("after another restart: %+v", got)
	}
	readEverywhere(t, i)
	// One that was adopted stops, and one that ends by itself is gone.
	stop(t, c, i.ID)
	start(t, c, i.ID)
	powerOff(t, i.ManagementIP)
	within(t, "machine vanishes", func() error {
		if l := list(t, c); len(l) > 0 {
			return fmt.Errorf("listed: %q", l)
		}
		return nil
	})
	onlyBridgeIsLeft(t, cfg)
}

func TestKipThatDiesInStopOrStartLeavesAStoppedMachine(t *testing.T) {
	tier.All(t)
	for does, steps := range map[string][]string{
		"stop":  {"stopping", "killed", "halted", "stopped"},
		"start": {"spawned", "populated", "limited", "identified", "attached", "plugged", "released", "running"},
	} {
		for _, step := range steps {
			t.Run(does+" "+step, func(t *testing.T) {
				cfg := testHost(t)
				die(t, step, does)
				c := open(t, cfg)
				i := only(t, c)
				if step == "running" {
					if i.State != cloud.Running {
						t.Fatalf("after a restart: %+v", i)
					}
					stop(t, c, i.ID)
				} else if i.State != cloud.Stopped {
					t.Fatalf("after a restart: %+v", i)
				}
				onlyFolderIsLeft(t, cfg, i.ID)
				start(t, c, i.ID)
				if got := run(t, i.ManagementIP, "hostname"); got != i.ID {
					t.Errorf("started: %q, want %q", got, i.ID)
				}
				if got := launch(t, c, request("crash")); got.ID != i.ID {
					t.Errorf("the token launched %s beside %s", got.ID, i.ID)
				}
			})
		}
	}
}

func TestMachineThatCannotStartIsStoppedAgain(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	writeEverywhere(t, i)
	stop(t, c, i.ID)
	init := filepath.Join(cfg.RootDir, "init")
	if err := os.Chmod(init, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(context.Background(), i.ID).Err(); err == nil || !strings.Contains(err.Error(), "run init /init") {
		t.Errorf("error is %v", err)
	}
	stop(t, c, i.ID) // waits for what is left of the attempt
	if got := only(t, c); got.State != cloud.Stopped {
		t.Errorf("after a failed start: %+v", got)
	}
	onlyFolderIsLeft(t, cfg, i.ID)
	if err := os.Chmod(init, 0o755); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	without := cfg
	without.Catalogue = testTypes[1:]
	c = open(t, without)
	if err := c.Start(context.Background(), i.ID).Err(); !errors.Is(err, cloud.ErrRefused) || !strings.Contains(err.Error(), "nano") {
		t.Errorf("start a machine whose type is gone: %v", err)
	}
	_ = c.Close()
	c = open(t, cfg)
	start(t, c, i.ID)
	readEverywhere(t, i)
}

func TestCancelledStartLeavesAStoppedMachine(t *testing.T) {
	tier.All(t)
	for _, step := range []string{"spawned", "plugged"} {
		t.Run(step, func(t *testing.T) {
			cfg := testHost(t)
			ctx, cancel := context.WithCancel(context.Background())
			launched := make(chan struct{})
			cfg.Reached = func(s string) {
				select {
				case <-launched:
					if s == step {
						cancel()
					}
				default:
				}
			}
			c := open(t, cfg)
			i := launch(t, c, request("a"))
			stop(t, c, i.ID)
			close(launched)
			if err := c.Start(ctx, i.ID).Err(); !errors.Is(err, context.Canceled) {
				t.Fatalf("error is %v", err)
			}
			start(t, c, i.ID)
			if got := run(t, i.ManagementIP, "hostname"); got != i.ID {
				t.Errorf("started: %q, want %q", got, i.ID)
			}
		})
	}
}

func TestTerminationWinsOverStopAndStart(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	ctx := context.Background()
	for n := range 10 {
		i := launch(t, c, request(fmt.Sprint(n)))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := c.Stop(ctx, i.ID).Err(); err != nil && !errors.Is(err, cloud.ErrRefused) {
					t.Errorf("stop: %v", err)
				}
			})
			wg.Go(func() {
				if err := c.Start(ctx, i.ID).Err(); err != nil && !errors.Is(err, cloud.ErrRefused) {
					t.Errorf("start: %v", err)
				}
			})
		}
		wg.Go(func() {
			if err := c.Terminate(ctx, i.ID).Err(); err != nil {
				t.Errorf("terminate: %v", err)
			}
		})
		wg.Wait()
		if l := list(t, c); len(l) > 0 {
			t.Fatalf("after termination: %q", l)
		}
	}
	onlyBridgeIsLeft(t, cfg)
}

func TestMachineThatIsTerminatedWhileItStopsIsGone(t *testing.T) {
	cfg := testHost(t)
	var c *Cloud
	var id string
	terminated := make(chan error, 1)
	cfg.Reached = func(s string) {
		if s == "halted" {
			go func() { terminated <- c.Terminate(context.Background(), id).Err() }()
			within(t, "termination", func() error {
				if i := only(t, c); i.State != cloud.Terminating {
					return fmt.Errorf("listed: %+v", i)
				}
				return nil
			})
		}
	}
	c = open(t, cfg)
	id = launch(t, c, request("a")).ID
	stop(t, c, id)
	if err := <-terminated; err != nil {
		t.Error(err)
	}
	if l := list(t, c); len(l) > 0 {
		t.Errorf("listed: %q", l)
	}
	onlyBridgeIsLeft(t, cfg)
}

func TestDestroyEndsStoppedMachines(t *testing.T) {
	cfg := testHost(t)
	c := open(t, cfg)
	i := launch(t, c, request("a"))
	stop(t, c, i.ID)
	_ = c.Close()
	if err := Destroy(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	if left, err := Leftovers(context.Background(), cfg); err != nil || len(left) > 0 {
		t.Errorf("after Destroy: %q, %v", left, err)
	}
}

func BenchmarkStopAndStart(b *testing.B) {
	cfg := testHost(b)
	c := open(b, cfg)
	i := launch(b, c, request("a"))
	var stopping, starting time.Duration
	for b.Loop() {
		began := time.Now()
		stop(b, c, i.ID)
		stopped := time.Now()
		start(b, c, i.ID)
		stopping += stopped.Sub(began)
		starting += time.Since(stopped)
	}
	b.ReportMetric(float64(stopping.Milliseconds())/float64(b.N), "ms/stop")
	b.ReportMetric(float64(starting.Milliseconds())/float64(b.N), "ms/start")
}
