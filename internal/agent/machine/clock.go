package machine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/dhcp"
	"github.com/elotl/kip/internal/agent/sntp"
	"github.com/elotl/kip/internal/agent/userdata"
	"github.com/elotl/kip/internal/backoff"
)

const (
	// askLimit bounds one question for the time: the servers are near.
	askLimit = time.Second
	// clockEvery is how often the clock is compared, and stepFrom by how much it may be
	// wrong to be set right slowly: a step makes timers go wrong.
	clockEvery = 15 * time.Minute
	stepFrom   = 500 * time.Millisecond
	// clockAgain is when one is asked again for the first time that has not answered, and then twice as
	// late each time: one lost packet must not keep a machine with a wrong clock from joining.
	clockAgain = time.Second
	ntpPort    = "123"
)

// written is before the first certificate that any Kip with this agent has issued.
var written = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)

// agentYears is longer than any agent is in use. A clock whose battery is empty begins with 1980 on
// some machines, which Linux reads as 2080 where the firmware tells it no century.
const agentYears = 20

// timekeeper keeps the clock right.
type timekeeper struct {
	console *console.Console
	// host returns the device of the hypervisor's clock, "" for none: it is asked before the servers, and may
	// come late. Optional: there is none.
	host    func() string
	servers []netip.Addr
	// ask returns by how much the clock is behind a server's, askHost by how much behind that of a
	// device, set sets it, and adjust is adjtimex. Optional: by SNTP, and the kernel's.
	ask     func(ctx context.Context, server netip.Addr) (time.Duration, error)
	askHost func(device string) (time.Duration, error)
	set     func(to time.Time) error
	adjust  func(*unix.Timex) error
	// now is what the clock says. Optional: the kernel's.
	now func() time.Time
	// random is for jitter. Optional.
	random backoff.Random
}

func askSNTP(ctx context.Context, server netip.Addr) (time.Duration, error) {
	return sntp.Offset(ctx, net.JoinHostPort(server.String(), ntpPort), time.Now)
}

func adjustClock(t *unix.Timex) error {
	_, err := unix.Adjtimex(t)
	return err
}

func setClock(to time.Time) error {
	t := unix.NsecToTimespec(to.UnixNano())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &t)
}

// servers are whom to ask for the time: the cloud's own before what the network tells.
func servers(s userdata.Source, l dhcp.Lease) []netip.Addr {
	var out []netip.Addr
	if s.Clock.IsValid() {
		out = append(out, s.Clock)
	}
	return append(out, l.NTP...)
}

// begin sets the clock before anybody judges a certificate by it. It says whether that was done: a
// wrong clock is told, and the machine goes on, since it may be right after all.
func (t timekeeper) begin(ctx context.Context) (done bool) {
	if t.any() && t.console.Step("clock", func() error { return t.compare(ctx) }) == nil {
		return true
	}
	now := t.clock().UTC()
	t.console.Say("the clock is the hardware's, nobody else tells the time: %s", now.Format(time.RFC3339))
	if impossible(now) {
		t.console.Say("that is wrong by years, since this agent was written at %s: no certificate is valid then, and Kip cannot join: "+
			"set the machine's clock, or name a time server by DHCP", written.Format(time.DateOnly))
	}
	return false
}

// any reports whether there is somebody to ask for the time.
func (t timekeeper) any() bool { return len(t.servers) > 0 || t.host != nil && t.host() != "" }

// clock is what the machine's says.
func (t timekeeper) clock() time.Time {
	if t.now == nil {
		return time.Now()
	}
	return t.now()
}

// impossible says that no certificate is valid then that an agent is shown.
func impossible(at time.Time) bool {
	return at.Before(written) || at.After(written.AddDate(agentYears, 0, 0))
}

// keep compares the clock now and then, and soon where begin could not.
func (t timekeeper) keep(ctx context.Context, done bool) {
	if t.host == nil && len(t.servers) == 0 {
		return
	}
	for tries := 1; ; {
		wait := clockEvery
		if !done {
			wait = t.random.After(tries, clockAgain, clockEvery)
			tries++
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if !t.any() {
			continue
		}
		err := t.compare(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.console.Say("clock: %v", err)
		} else {
			tries = 1
		}
		done = err == nil
	}
}

// complete returns t with what is optional.
func (t timekeeper) complete() timekeeper {
	if t.ask == nil {
		t.ask = askSNTP
	}
	if t.askHost == nil {
		t.askHost = askHost
	}
	if t.set == nil {
		t.set = setClock
	}
	if t.adjust == nil {
		t.adjust = adjustClock
	}
	return t
}

// compare asks the hypervisor and the servers in turn, and sets the clock by the first that answers.
func (t timekeeper) compare(ctx context.Context) error {
	t = t.complete()
	var last error
	if t.host != nil {
		if device := t.host(); device != "" {
			answered, err := t.by(device, func() (time.Duration, error) { return t.askHost(device) })
			if answered {
				return err
			}
			last = err
		}
	}
	for _, s := range t.servers {
		answered, err := t.by(s.String(), func() (time.Duration, error) {
			one, cancel := context.WithTimeout(ctx, askLimit)
			defer cancel()
			return t.ask(one, s)
		})
		if answered {
			return err
		}
		last = err
	}
	return last
}

// by asks one, and sets the clock by what it says. It returns false where it says no time.
func (t timekeeper) by(name string, ask func() (time.Duration, error)) (answered bool, err error) {
	began := time.Now()
	offset, err := ask()
	if err != nil {
		return false, err
	}
	took := time.Since(began)
	if told := t.clock().Add(offset); impossible(told) {
		return false, fmt.Errorf("%s tells the time %s, which cannot be: an agent of %s is in use for %d years at most", name,
			told.UTC().Format(time.RFC3339), written.Format(time.DateOnly), agentYears)
	}
	return true, t.move(offset, took)
}

// move moves the clock. The answer took so long.
func (t timekeeper) move(offset, took time.Duration) error {
	if offset.Abs() < stepFrom {
		// Slowly.
		if err := t.adjust(&unix.Timex{Modes: unix.ADJ_OFFSET_SINGLESHOT, Offset: offset.Microseconds()}); err != nil {
			return fmt.Errorf("adjust the clock by %v: %w", offset, err)
		}
		return t.synchronised(offset.Abs() + took)
	}
	if err := t.set(t.clock().Add(offset)); err != nil {
		return fmt.Errorf("set the clock, which is wrong by %v: %w", offset, err)
	}
	t.console.Say("the clock was wrong by %v and is set", offset)
	return t.synchronised(took)
}

// synchronised tells the kernel that the clock is right, but for so much: else it says by adjtimex that nobody
// keeps the clock (STA_UNSYNC), of which node-exporter and databases warn. The kernel lets the error grow
// by half a second in 1000, and says so again once it is 16 s (NTP_PHASE_LIMIT), after 9 hours.
func (t timekeeper) synchronised(within time.Duration) error {
	err := t.adjust(&unix.Timex{
		Modes:    unix.ADJ_STATUS | unix.ADJ_MAXERROR | unix.ADJ_ESTERROR,
		Maxerror: within.Microseconds(),
		Esterror: within.Microseconds(),
	})
	if err != nil {
		return fmt.Errorf("say that the clock is kept: %w", err)
	}
	return nil
}
