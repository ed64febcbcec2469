package aws

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

func TestADiskThatHasGrownIsChangedAgainWhenEC2ChangesIt(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	disk := makeDisk(t, c, diskRequest("a"))
	if grown, err := c.GrowDisk(t.Context(), disk.ID, gibi+1); err != nil || grown.SizeBytes != 2*gibi {
		t.Fatalf("%+v, %v: want 2 GiB", grown, err)
	}
	early := time.Now()
	_, err := c.GrowDisk(t.Context(), disk.ID, 3*gibi)
	late := time.Now()
	var no *cloud.Error
	if !errors.As(err, &no) || no.Cause != cloud.ErrNotYet || no.RetryAfter < 5*time.Hour || no.RetryAfter > betweenChanges {
		t.Errorf("changed again at once: %v, want ErrNotYet and nearly six hours", err)
	}
	from := func(asked time.Time) string {
		return "from " + asked.Add(betweenChanges).UTC().Format("2006-01-02T15:")
	}
	if err == nil || !strings.Contains(err.Error(), from(early)) && !strings.Contains(err.Error(), from(late)) {
		t.Errorf("%v does not say %s", err, from(late))
	}
	model.AgeChanges(betweenChanges)
	if grown, err := c.GrowDisk(t.Context(), disk.ID, 3*gibi); err != nil || grown.SizeBytes != 3*gibi {
		t.Errorf("six hours later: %+v, %v: want 3 GiB", grown, err)
	}
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
