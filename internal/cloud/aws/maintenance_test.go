package aws

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// looksAhead is how often a driver that listens looks for maintenance.
const looksAhead = 100 * time.Millisecond

// listening is a driver at a model whose listener notes what it is told. It looks for spot requests
// at the beginning alone, and for maintenance as until has time pass.
type listening struct {
	*testing.T
	model *ec2.Model
	clock *testclock.FakeClock
	spot  string // an instance
	ended chan error

	mu   sync.Mutex
	told []string
}

// listen starts one, to whose listener maintenance of these instances was told before.
func listen(t *testing.T, planned ...string) *listening {
	t.Helper()
	w := &listening{
		T:     t,
		clock: testclock.NewFakeClock(time.Now()),
		ended: make(chan error, 1),
	}
	account := anAccount(sim.Knobs{})
	account.Sim.Clock = w.clock
	var url string
	w.model, url = serve(t, account)
	cfg := settings(url)
	cfg.Clock, cfg.InterruptionsEvery, cfg.MaintenanceEvery = w.clock, 24*time.Hour, looksAhead
	c := open(t, cfg)
	r := request("t", 1)
	r.CapacityType = cloud.Spot
	got, err := runLaunch(t.Context(), c, r).All()
	if err != nil {
		t.Fatal(err)
	}
	w.spot = got[0].ID
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		w.ended <- c.Interruptions(ctx, cloud.Listener{
			Notify: func(i cloud.Interruption) {
				what, _, _ := strings.Cut(i.Reason, ":")
				w.note(what + " " + i.InstanceID)
				if !i.Planned {
					w.note("not planned")
				}
			},
			Mine:    func(id string) bool { return id == w.spot },
			Planned: func() []string { return planned },
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-w.ended
	})
	return w
}

func (w *listening) note(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, text)
}

func (w *listening) all() (told []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told)
}

// until lets time pass until something is so.
func (w *listening) until(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("it is never so that %s: told %q", what, w.all())
		}
		w.clock.Step(looksAhead)
	}
}

func (w *listening) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func TestMaintenanceThatWasCalledOffWhileNobodyListenedIsToldToBe(t *testing.T) {
	w := listen(t, "i-of-an-earlier-life")
	w.until("it looked", func() bool { return w.model.Calls()["DescribeInstanceStatus"] > 3 })
	if told := w.all(); !slices.Equal(told, []string{"called off i-of-an-earlier-life"}) {
		t.Errorf("told %q, want once what is called off", told)
	}
}

func TestMaintenanceIsToldOnceAndAnHourBefore(t *testing.T) {
	w := listen(t)
	looked := func() { // twice from now on
		w.Helper()
		until := w.model.Calls()["DescribeInstanceStatus"] + 2
		w.until("it looked", func() bool { return w.model.Calls()["DescribeInstanceStatus"] > until })
	}
	of := ec2.Maintenance{Instance: w.spot, Code: "instance-stop", NotBefore: w.clock.Now().Add(10 * 24 * time.Hour)}
	w.must(w.model.Announcements.Maintain(of))
	looked()
	of.NotBefore, of.Over = w.clock.Now().Add(time.Minute), true
	w.must(w.model.Announcements.Maintain(of))
	looked()
	if told := w.all(); len(told) > 0 {
		t.Errorf("told %q long before, or of what is over", told)
	}
	of.NotBefore, of.Over = w.clock.Now().Add(maintenanceLead/2), false
	w.must(w.model.Announcements.Maintain(of))
	looked()
	want := []string{"instance-stop " + w.spot}
	if told := w.all(); !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	// Put off, by however little, it is told again.
	of.NotBefore = of.NotBefore.Add(time.Minute)
	w.must(w.model.Announcements.Maintain(of))
	looked()
	want = append(want, want[0])
	if told := w.all(); !slices.Equal(told, want) {
		t.Errorf("put off: told %q, want %q", told, want)
	}
	// Put off for long, or called off, it is no reason to move a pod.
	of.NotBefore = w.clock.Now().Add(10 * 24 * time.Hour)
	w.must(w.model.Announcements.Maintain(of))
	looked()
	want = append(want, "called off "+w.spot)
	if told := w.all(); !slices.Equal(told, want) {
		t.Errorf("put off for long: told %q, want %q", told, want)
	}
	of.NotBefore = w.clock.Now().Add(maintenanceLead / 2)
	w.must(w.model.Announcements.Maintain(of))
	looked()
	// Others are none of Kip's, and a look that is refused ends nothing.
	w.mu.Lock()
	w.told = nil
	w.mu.Unlock()
	launch := request("other", 1)
	others, err := w.model.Machines().Launch(t.Context(), launch).All()
	w.must(err)
	w.must(w.model.Announcements.Maintain(ec2.Maintenance{Instance: others[0].ID, Code: "system-reboot", NotBefore: w.clock.Now()}))
	w.model.Machines().FailNth(sim.KindInterruptions, 1, sim.Fault{Before: sim.ErrInternal})
	looked()
	if told := w.all(); len(told) > 0 {
		t.Errorf("told %q of what is not %s, or once more", told, w.spot)
	}
}
