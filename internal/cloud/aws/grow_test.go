package aws

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// notYet is when a volume that EC2 does not change now is to be changed again; 0 for another answer.
func notYet(t *testing.T, err error, says string) time.Duration {
	t.Helper()
	var no *cloud.Error
	if !errors.As(err, &no) || no.Cause != cloud.ErrNotYet || !strings.Contains(err.Error(), says) {
		t.Errorf("%v: want ErrNotYet, and %s", err, says)
		return 0
	}
	return no.RetryAfter
}

func TestADiskGrowsFourTimesADay(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	disk := makeDisk(t, c, diskRequest("a"))
	for size := int64(2); size <= 5; size++ {
		if grown, err := c.GrowDisk(t.Context(), disk.ID, (size-1)*gibi+1); err != nil || grown.SizeBytes != size*gibi {
			t.Fatalf("%+v, %v: want %d GiB", grown, err, size)
		}
	}
	_, err := c.GrowDisk(t.Context(), disk.ID, 6*gibi)
	if again := notYet(t, err, "next modification at "); again != changedOftenRetry {
		t.Errorf("after four changes Kip tries again in %s", again)
	}
	model.Volumes.AgeChanges(24 * time.Hour)
	if grown, err := c.GrowDisk(t.Context(), disk.ID, 6*gibi); err != nil || grown.SizeBytes != 6*gibi {
		t.Errorf("a day later: %+v, %v: want 6 GiB", grown, err)
	}
}

// A step of the volume passes only when the test says so.
func TestADiskGrowsAgainOnceItsLastChangeIsCompleted(t *testing.T) {
	const step = time.Hour
	clk := clocktesting.NewFakeClock(time.Now())
	cfg := anAccount(sim.Knobs{})
	cfg.VolumeStep, cfg.Sim.Clock = step, clk
	model, url := serve(t, cfg)
	c := open(t, settings(url))
	grows := func(size int) {
		t.Helper()
		done := make(chan error, 1)
		go func() {
			grown, err := c.GrowDisk(t.Context(), model.Volumes.All()[0].ID, int64(size)*gibi)
			if err == nil && grown.SizeBytes != int64(size)*gibi {
				err = fmt.Errorf("it has %d bytes", grown.SizeBytes)
			}
			done <- err
		}()
		for model.Volumes.All()[0].GiB < size {
			select {
			case err := <-done:
				t.Fatalf("to %d GiB: it is over with %v before EC2 changes it", size, err)
			case <-time.After(time.Millisecond):
			}
		}
		clk.Step(step) // it is optimizing, and has the size
		if err := <-done; err != nil {
			t.Fatalf("to %d GiB: %v", size, err)
		}
	}
	made := make(chan error, 1)
	go func() {
		_, err := c.CreateDisk(t.Context(), diskRequest("a"))
		made <- err
	}()
	for creating := true; creating; {
		select {
		case err := <-made:
			if creating = false; err != nil {
				t.Fatal(err)
			}
		case <-time.After(5 * time.Millisecond):
			clk.Step(step)
		}
	}
	grows(2)
	_, err := c.GrowDisk(t.Context(), model.Volumes.All()[0].ID, 3*gibi)
	if again := notYet(t, err, "optimizing"); again != changingRetry {
		t.Errorf("during a change Kip tries again in %s", again)
	}
	clk.Step(step)
	grows(3)
}

// The change is under way: EC2 refuses another, and shows the old size for a while.
func TestALostAnswerDoesNotChangeADiskTwice(t *testing.T) {
	cfg := anAccount(sim.Knobs{})
	cfg.VolumeStep = 100 * time.Millisecond
	model, url := serve(t, cfg)
	c := open(t, settings(url))
	disk := makeDisk(t, c, diskRequest("a"))
	model.Machines().FailNth(sim.KindGrowDisk, 1, sim.Fault{After: sim.ErrLost})
	if _, err := c.GrowDisk(t.Context(), disk.ID, 2*gibi); err == nil {
		t.Fatal("the answer was not lost")
	}
	if grown, err := c.GrowDisk(t.Context(), disk.ID, 2*gibi); err != nil || grown.SizeBytes != 2*gibi {
		t.Errorf("again: %+v, %v: want 2 GiB", grown, err)
	}
}
