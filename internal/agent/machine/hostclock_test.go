package machine

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/modules"
)

// Azure has no time server: its hypervisor shows its clock as a device.
func TestTheHypervisorsClockIsKnownByItsName(t *testing.T) {
	for names, want := range map[string]string{"ena-ptp-00,hyperv": "/dev/ptp1", "KVM virtual PTP": "/dev/ptp0", "ena-ptp-00": "", "": ""} {
		sys := t.TempDir()
		for i, name := range strings.Split(names, ",") {
			p := filepath.Join(sys, "class/ptp", "ptp"+string(rune('0'+i)), "clock_name")
			if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(name+"\n"), 0o444)); err != nil {
				t.Fatal(err)
			}
		}
		if got := hostClock(sys, "/dev"); got != want {
			t.Errorf("of the clocks %q the hypervisor's is %q, want %q", names, got, want)
		}
	}
	if got := hostClock(t.TempDir(), "/dev"); got != "" {
		t.Errorf("without clocks it is %q", got)
	}
	at := func(s float64) unix.Timespec { return unix.NsecToTimespec(int64(s * 1e9)) }
	if got := behind(at(100), at(103.5), at(101)); got != 3*time.Second {
		t.Errorf("a clock that says 100 and 101 s is behind one of 103.5 s by %v", got)
	}
}

func TestAMachineWithoutKVMsClockSaysNothingOfIt(t *testing.T) {
	broken := errors.New("it is broken")
	for loaded, want := range map[error]error{nil: nil, modules.ErrUnknown: nil, unix.ENODEV: nil, unix.EOPNOTSUPP: nil, broken: broken} {
		var asked string
		load := func(module string) error { asked = module; return loaded }
		if err := loadHostClock(load); !errors.Is(err, want) || asked != "ptp_kvm" {
			t.Errorf("loading %q fails with %v: %v, want %v", asked, loaded, err, want)
		}
	}
}

// asks is a timekeeper of a test, and what it is told and does.
type asks struct {
	timekeeper
	out     strings.Builder
	asked   []string
	adjusts []unix.Timex
	sets    int
}

func newAsks(host, server func() (time.Duration, error)) *asks {
	a := &asks{}
	a.timekeeper = timekeeper{
		console: console.New(&a.out),
		servers: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		ask: func(context.Context, netip.Addr) (time.Duration, error) {
			a.asked = append(a.asked, "server")
			return server()
		},
		askHost: func(device string) (time.Duration, error) { a.asked = append(a.asked, device); return host() },
		set:     func(time.Time) error { a.sets++; return nil },
		adjust:  func(t *unix.Timex) error { a.adjusts = append(a.adjusts, *t); return nil },
		now:     func() time.Time { return written },
	}
	return a
}

func TestTheHypervisorIsAskedBeforeServers(t *testing.T) {
	says := func(d time.Duration, err error) func() (time.Duration, error) {
		return func() (time.Duration, error) { return d, err }
	}
	for name, tc := range map[string]struct {
		host, server func() (time.Duration, error)
		device       string
		want         []string
		done         bool
	}{
		"the hypervisor":          {says(time.Hour, nil), says(0, nil), "/dev/ptp0", []string{"/dev/ptp0"}, true},
		"before its first sample": {says(0, unix.ESTALE), says(time.Hour, nil), "/dev/ptp0", []string{"/dev/ptp0", "server"}, true},
		"a time that cannot be":   {says(-time.Hour, nil), says(time.Hour, nil), "/dev/ptp0", []string{"/dev/ptp0", "server"}, true},
		"no hypervisor":           {says(0, nil), says(time.Hour, nil), "", []string{"server"}, true},
		"nobody answers":          {says(0, unix.ESTALE), says(0, unix.ETIMEDOUT), "/dev/ptp0", []string{"/dev/ptp0", "server"}, false},
	} {
		a := newAsks(tc.host, tc.server)
		a.host = func() string { return tc.device }
		if done := a.begin(t.Context()); done != tc.done || !slices.Equal(a.asked, tc.want) {
			t.Errorf("%s: asked %q, want %q; done: %t; the console has %q", name, a.asked, tc.want, done, &a.out)
		}
	}
}

func TestAHypervisorsClockThatComesLateIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := newAsks(func() (time.Duration, error) { return time.Hour, nil }, nil)
		a.servers = nil
		a.host = func() string {
			if time.Since(began) < 3*time.Second {
				return ""
			}
			return "/dev/ptp0"
		}
		ctx, cancel := context.WithTimeout(t.Context(), clockEvery)
		defer cancel()
		a.keep(ctx, a.begin(ctx))
		if a.sets != 1 || !strings.Contains(a.out.String(), "the clock is the hardware's") {
			t.Errorf("the clock is set %d times, and the console has %q", a.sets, &a.out)
		}
	})
}

// The kernel says of a clock that was set by hand that nobody keeps it, which databases and alerts read.
func TestAClockThatIsKeptIsSaidToBe(t *testing.T) {
	const statusAndErrors = unix.ADJ_STATUS | unix.ADJ_MAXERROR | unix.ADJ_ESTERROR
	synctest.Test(t, func(t *testing.T) {
		for offset, want := range map[time.Duration]time.Duration{
			40 * time.Millisecond: 240 * time.Millisecond, -40 * time.Millisecond: 240 * time.Millisecond, time.Hour: 200 * time.Millisecond,
		} {
			a := newAsks(nil, func() (time.Duration, error) { time.Sleep(200 * time.Millisecond); return offset, nil })
			a.now = func() time.Time { return written.Add(time.Hour) }
			if !a.begin(t.Context()) || len(a.adjusts) == 0 {
				t.Fatalf("the clock is not set: %q", &a.out)
			}
			last := a.adjusts[len(a.adjusts)-1]
			if last.Modes != statusAndErrors || last.Status != 0 || last.Maxerror != want.Microseconds() {
				t.Errorf("a clock that was wrong by %v has the state %#x, by at most %d us (modes %#x), want %d us",
					offset, last.Status, last.Maxerror, last.Modes, want.Microseconds())
			}
			if slow := a.adjusts[0].Modes == unix.ADJ_OFFSET_SINGLESHOT && a.sets == 0; slow != (offset < stepFrom) {
				t.Errorf("a clock that is wrong by %v is set slowly: %t", offset, slow)
			}
		}
	})
	refused := newAsks(nil, func() (time.Duration, error) { return time.Hour, nil })
	refused.set = func(time.Time) error { return unix.EPERM }
	if refused.begin(t.Context()) || len(refused.adjusts) > 0 {
		t.Errorf("a clock that cannot be set is said to be kept: %+v", refused.adjusts)
	}
}
