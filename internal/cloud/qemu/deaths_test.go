package qemu

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/test/tier"
)

// deaths runs a test for each step at which a machine's QEMU dies, and Kip goes on. It is armed by
// what arm returns, from when on the next such step is its last.
func deaths(t *testing.T, steps []string, check func(t *testing.T, cfg Config, c *Cloud, arm func())) {
	tier.All(t)
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			cfg := testHost(t)
			var armed, died atomic.Bool
			cfg.Reached = func(s string) {
				if s != step || !armed.CompareAndSwap(true, false) {
					return
				}
				_, pids := groupsOf(t, cfg).Inspect()
				for _, pid := range pids {
					died.Store(true)
					if err := unix.Kill(pid, unix.SIGKILL); err != nil {
						t.Errorf("kill QEMU: %v", err)
					}
				}
			}
			check(t, cfg, open(t, cfg), func() { armed.Store(true) })
			if !died.Load() {
				t.Errorf("no QEMU died at %q", step)
			}
		})
	}
}

// gone waits until no machine is listed, and checks that nothing of one is left.
func gone(t *testing.T, cfg Config, c *Cloud) {
	t.Helper()
	within(t, "the machine is gone", func() error {
		if l := list(t, c); len(l) > 0 {
			return fmt.Errorf("listed: %+v", l)
		}
		return nil
	})
	onlyBridgeIsLeft(t, cfg)
}

func TestQEMUThatDiesInLaunchLeavesNothingBehind(t *testing.T) {
	deaths(t, []string{"attached", "identified", "answers", "begun", "running"}, func(t *testing.T, cfg Config, c *Cloud, arm func()) {
		arm()
		// A machine that was there for a moment is none that failed to start.
		if made, err := c.Launch(context.Background(), request("a")).All(); err != nil {
			t.Logf("the launch says: %v", err)
		} else if len(made) != 1 {
			t.Errorf("launched: %+v", made)
		}
		gone(t, cfg, c)
		says(t, c, launch(t, c, "b").ID, "here\n")
	})
}

func TestQEMUThatStartsSlowlyIsWaitedFor(t *testing.T) {
	cfg := testHost(t)
	var goOn sync.WaitGroup
	defer goOn.Wait()
	cfg.Reached = func(s string) {
		if s != "attached" {
			return
		}
		_, pids := groupsOf(t, cfg).Inspect()
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Errorf("stop QEMU: %v", err)
			}
		}
		if len(pids) == 0 {
			t.Error("no QEMU was stopped")
		}
		// Longer than a QEMU that runs is waited for.
		goOn.Go(func() {
			time.Sleep(vm.AnswerLimit + time.Second)
			for _, pid := range pids {
				if err := unix.Kill(pid, unix.SIGCONT); err != nil {
					t.Errorf("let QEMU go on: %v", err)
				}
			}
		})
	}
	c := open(t, cfg)
	says(t, c, launch(t, c, "a").ID, "here\n")
}

func TestQEMUThatDiesInTerminateHasEnded(t *testing.T) {
	deaths(t, []string{"terminating"}, func(t *testing.T, cfg Config, c *Cloud, arm func()) {
		id := launch(t, c, "a").ID
		arm()
		if err := c.Terminate(context.Background(), id).Err(); err != nil {
			t.Error(err)
		}
		gone(t, cfg, c)
	})
}

func TestQEMUThatDiesInStopHasStopped(t *testing.T) {
	deaths(t, []string{"stopping"}, func(t *testing.T, cfg Config, c *Cloud, arm func()) {
		id := launch(t, c, "a").ID
		says(t, c, id, "here\n")
		arm()
		if err := c.Stop(context.Background(), id).Err(); err != nil {
			t.Error(err)
		}
		startsAgain(t, cfg, c, id)
	})
}

func TestQEMUThatDiesInStartLeavesAStoppedMachine(t *testing.T) {
	deaths(t, []string{"attached", "identified", "answers"}, func(t *testing.T, cfg Config, c *Cloud, arm func()) {
		id := launch(t, c, "a").ID
		says(t, c, id, "here\n")
		if err := c.Stop(context.Background(), id).Err(); err != nil {
			t.Fatal(err)
		}
		arm()
		if err := c.Start(context.Background(), id).Err(); err == nil {
			t.Error("it started, though its QEMU has died")
		}
		startsAgain(t, cfg, c, id)
	})
}

// A machine that began, and has ended by itself, is gone: it is no start that failed.
func TestQEMUThatDiesOnceItsMachineRunsAgainLeavesNothingBehind(t *testing.T) {
	deaths(t, []string{"begun", "running"}, func(t *testing.T, cfg Config, c *Cloud, arm func()) {
		id := launch(t, c, "a").ID
		says(t, c, id, "here\n")
		if err := c.Stop(context.Background(), id).Err(); err != nil {
			t.Fatal(err)
		}
		arm()
		if err := c.Start(context.Background(), id).Err(); err != nil {
			t.Errorf("the start of a machine that began says: %v", err)
		}
		gone(t, cfg, c)
	})
}

// startsAgain checks that a machine is stopped, with nothing of it but its folder, and starts.
func startsAgain(t *testing.T, cfg Config, c *Cloud, id string) {
	t.Helper()
	within(t, "it is stopped", func() error {
		if i := only(t, c); i.State != cloud.Stopped {
			return fmt.Errorf("it is %s", i.State)
		}
		return nil
	})
	if l := left(t, cfg); !slices.Equal(l, []string{"folder " + cfg.MachineDir(id)}) {
		t.Errorf("left of a stopped machine: %q", l)
	}
	if err := c.Start(context.Background(), id).Err(); err != nil {
		t.Fatal(err)
	}
	says(t, c, id, "here\n")
}

func TestQEMUThatDiesWhileADiskIsPluggedInGivesTheDiskBack(t *testing.T) {
	for _, plugs := range []bool{true, false} {
		steps := []string{"disk attaching", "disk opened", "disk attached"}
		if !plugs {
			steps = []string{"disk unplugged"}
		}
		deaths(t, steps, func(t *testing.T, cfg Config, c *Cloud, arm func()) {
			ctx := context.Background()
			id := launch(t, c, "a").ID
			d, err := c.CreateDisk(ctx, diskRequest())
			if err != nil {
				t.Fatal(err)
			}
			if plugs {
				arm()
				t.Logf("plugging it in: %v", c.AttachDisk(ctx, d.ID, id))
			} else {
				if err := c.AttachDisk(ctx, d.ID, id); err != nil {
					t.Fatal(err)
				}
				arm()
				t.Logf("taking it out: %v", c.DetachDisk(ctx, d.ID, id))
			}
			within(t, "the machine is gone", func() error {
				if l := list(t, c); len(l) > 0 {
					return fmt.Errorf("listed: %+v", l)
				}
				return nil
			})
			if err := c.DetachDisk(ctx, d.ID, id); err != nil {
				t.Errorf("taken from the machine that is gone: %v", err)
			}
			next := launch(t, c, "b").ID
			if err := c.AttachDisk(ctx, d.ID, next); err != nil {
				t.Fatal(err)
			}
			if got := devices(t, cfg, next); len(got) != 1 {
				t.Errorf("attached to the next machine: %q", got)
			}
			if err := c.Terminate(ctx, next).Err(); err != nil {
				t.Error(err)
			}
			if err := c.DeleteDisk(ctx, d.ID); err != nil {
				t.Error(err)
			}
			gone(t, cfg, c)
		})
	}
}

func TestQEMUThatDiesWhileADiskGrowsLeavesItToTheNextMachine(t *testing.T) {
	deaths(t, []string{"disk file grown", "disk growing", "disk grown"}, func(t *testing.T, cfg Config, c *Cloud, arm func()) {
		ctx := context.Background()
		id := launch(t, c, "a").ID
		d, err := c.CreateDisk(ctx, diskRequest())
		if err == nil {
			err = c.AttachDisk(ctx, d.ID, id)
		}
		if err != nil {
			t.Fatal(err)
		}
		arm()
		want := d.SizeBytes // of a growth that failed
		grown, err := c.GrowDisk(ctx, d.ID, grownBytes)
		if t.Logf("growing it: %+v, %v", grown, err); err == nil {
			want = grownBytes
		}
		gone(t, cfg, c)
		if left := onlyDisk(t, c); left.SizeBytes != want || left.Instance != "" {
			t.Errorf("left: %+v; want %d bytes, free", left, want)
		}
		if grown, err := c.GrowDisk(ctx, d.ID, grownBytes); err != nil || grown.SizeBytes != grownBytes {
			t.Errorf("grown without a machine: %+v, %v; want %d bytes", grown, err, grownBytes)
		}
		next := launch(t, c, "b").ID
		if err := c.AttachDisk(ctx, d.ID, next); err != nil {
			t.Fatal(err)
		}
		hasGrown(t, cfg, c, next)
		if err := c.Terminate(ctx, next).Err(); err != nil {
			t.Error(err)
		}
		if err := c.DeleteDisk(ctx, d.ID); err != nil {
			t.Error(err)
		}
		if found := diskFolders(t, cfg); len(found) > 0 {
			t.Errorf("left of the disk: %q", found)
		}
		gone(t, cfg, c)
	})
}
