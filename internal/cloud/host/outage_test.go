package host

import (
	"errors"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

func TestAZoneThatIsOutLaunchesNothingNew(t *testing.T) {
	cfg, kind := sleeping(t)
	c := opened(t, cfg, kind)
	before, err := c.Launch(t.Context(), launchRequest()).All()
	if err != nil {
		t.Fatal(err)
	}
	out := func(zone string, on bool) {
		t.Helper()
		if err := Outage(cfg, zone, on); err != nil {
			t.Fatal(err)
		}
	}
	next := launchRequest()
	next.Token = "next"
	out("elsewhere", true)
	out("here", true)
	_, err = c.Launch(t.Context(), next).All()
	var no *cloud.Error
	if !errors.As(err, &no) || !errors.Is(err, cloud.ErrCapacity) || no.Scope != (cloud.Scope{Zone: "here"}) || !no.NothingDone ||
		no.RetryAfter != outageRetry {
		t.Errorf("a launch in the zone: %v", err)
	}
	if again, err := c.Launch(t.Context(), launchRequest()).All(); err != nil || again[0].ID != before[0].ID || state(t, c) != cloud.Running {
		t.Errorf("what was launched before: %+v, %v", again, err)
	}
	out("here", false)
	out("here", false)
	if list, err := c.Launch(t.Context(), next).All(); err != nil || list[0].ID == before[0].ID {
		t.Errorf("a launch after it: %+v, %v", list, err)
	}
	for _, zone := range []string{"", "..", "a/b"} {
		if err := Outage(cfg, zone, true); err == nil {
			t.Errorf("there is an outage of zone %q", zone)
		}
	}
}

func TestTheMachinesOfAZoneThatFailsAreGone(t *testing.T) {
	cfg, kind := sleeping(t)
	c := opened(t, cfg, kind)
	list, err := c.Launch(t.Context(), launchRequest()).All()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := FailMachines(cfg, "elsewhere"); n != 0 || err != nil || state(t, c) != cloud.Running {
		t.Errorf("%d machines of another zone have failed, %v", n, err)
	}
	if n, err := FailMachines(cfg, "here"); n != 1 || err != nil {
		t.Errorf("%d machines have failed, %v", n, err)
	}
	select {
	case <-c.Gone(list[0].ID):
	case <-time.After(time.Minute):
		t.Fatal("the cloud has not noticed")
	}
	if n, err := FailMachines(cfg, "here"); n != 0 || err != nil {
		t.Errorf("%d machines have failed twice, %v", n, err)
	}
}
