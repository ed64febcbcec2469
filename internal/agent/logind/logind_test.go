package logind

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server until the test ends.
func serve(t *testing.T) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "logind") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(filepath.Join(dir, "run", "logind"), 20*time.Second, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// kubelet connects as a kubelet does, with its library.
func kubelet(t *testing.T, s *Server) *dbus.Conn {
	t.Helper()
	c, err := dbus.Connect(s.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// lock takes a lock, and returns what holds it.
func lock(t *testing.T, c *dbus.Conn) *os.File {
	t.Helper()
	var fd dbus.UnixFD
	call := c.Object("org.freedesktop.login1", path).Call(manager+".Inhibit", 0, "shutdown", "kubelet", "pods end first", "delay")
	if err := call.Store(&fd); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "lock")
}

// signals are those that say whether the machine ends.
func signals(t *testing.T, c *dbus.Conn) <-chan *dbus.Signal {
	t.Helper()
	options := []dbus.MatchOption{
		dbus.WithMatchInterface(manager),
		dbus.WithMatchMember(prepare),
		dbus.WithMatchObjectPath(path),
	}
	if err := c.AddMatchSignal(options...); err != nil {
		t.Fatal(err)
	}
	all := make(chan *dbus.Signal, 4)
	c.Signal(all)
	return all
}

// ending ends the machine beside the test.
func ending(ctx context.Context, s *Server) <-chan error {
	over := make(chan error, 1)
	go func() {
		_, err := s.End(ctx)
		over <- err
	}()
	return over
}

// none checks that the machine has not ended.
func none(t *testing.T, over <-chan error) {
	t.Helper()
	select {
	case err := <-over:
		t.Fatalf("the machine ended (%v), though somebody delays that", err)
	case <-time.After(50 * time.Millisecond):
	}
}

func TestTheMachineEndsWhenNobodyDelaysIt(t *testing.T) {
	s := serve(t)
	first, second := kubelet(t, s), kubelet(t, s)
	delay, err := first.Object("org.freedesktop.login1", path).GetProperty(manager + "." + maxDelay)
	if err != nil || delay.Value() != uint64(20_000_000) {
		t.Errorf("the longest delay is %v (%v), want 20 s", delay, err)
	}
	a, b := lock(t, first), lock(t, second)
	heard := signals(t, first)
	signals(t, second)
	over := ending(t.Context(), s)
	if said := <-heard; said.Path != path || said.Name != manager+"."+prepare || len(said.Body) != 1 || said.Body[0] != true {
		t.Errorf("it says %+v", said)
	}
	none(t, over)
	_ = a.Close()
	none(t, over)
	_ = b.Close()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

func TestWhoComesWhileTheMachineEndsDoesNotDelayIt(t *testing.T) {
	s := serve(t)
	first := kubelet(t, s)
	held := lock(t, first)
	said := signals(t, first)
	over := ending(t.Context(), s)
	<-said // it ends from then on
	none(t, over)
	call := kubelet(t, s).Object("org.freedesktop.login1", path).Call(manager+".Inhibit", 0, "shutdown", "kubelet", "late", "delay")
	if refused := new(dbus.Error); !errors.As(call.Err, refused) || refused.Name != ends {
		t.Errorf("who comes late is answered %v", call.Err)
	}
	none(t, over)
	_ = held.Close()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// A kubelet takes its lock before it asks for signals. One that has not come to that hears nothing.
func TestWhoHearsNothingDelaysNothing(t *testing.T) {
	s := serve(t)
	defer lock(t, kubelet(t, s)).Close()
	if left, err := s.End(t.Context()); err != nil || left != nil {
		t.Errorf("somebody delayed it: %t (%v)", left != nil, err)
	}
}

func TestItIsToldWhenWhoDelayedTheEndHasGone(t *testing.T) {
	s := serve(t)
	defer lock(t, kubelet(t, s)).Close() // of one that hears nothing
	c := kubelet(t, s)
	held := lock(t, c)
	said := signals(t, c)
	go func() {
		<-said
		_ = held.Close()
	}()
	left, err := s.End(t.Context())
	if err != nil || left == nil {
		t.Fatalf("somebody delayed it: %t (%v)", left != nil, err)
	}
	select {
	case <-left:
		t.Error("it has gone, and is still there")
	default:
	}
	_ = c.Close()
	<-left
}

// A kubelet whose pods have ended already lets go before End checks who still delays it.
func TestEndReportsAClientThatLetsGoAtOnce(t *testing.T) {
	s := serve(t)
	c := kubelet(t, s)
	held := lock(t, c)
	signals(t, c)
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.clients))
	s.mu.Unlock()
	all[0].mu.Lock() // End waits here with its signal
	ended := make(chan (<-chan struct{}), 1)
	go func() {
		left, err := s.End(t.Context())
		if err != nil {
			t.Error(err)
		}
		ended <- left
	}()
	eventually(t, s, func() bool { return s.ending })
	_ = held.Close()
	eventually(t, s, func() bool { return len(s.locks) == 0 })
	all[0].mu.Unlock()
	if <-ended == nil {
		t.Error("End reports that nobody delayed it")
	}
}

// eventually waits until something holds of a server. is is called under its mu.
func eventually(t *testing.T, s *Server, is func() bool) {
	t.Helper()
	for {
		s.mu.Lock()
		now := is()
		s.mu.Unlock()
		if now {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestALockEndsWithTheProcessThatHoldsIt(t *testing.T) {
	s := serve(t)
	c := kubelet(t, s)
	held := lock(t, c)
	signals(t, c)
	copied, err := unix.Dup(int(held.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	over := ending(t.Context(), s)
	_ = held.Close()
	_ = c.Close() // the connection is not what holds it
	none(t, over)
	_ = unix.Close(copied) // as the kernel does when a process ends
	if err := <-over; err != nil {
		t.Error(err)
	}
}

func TestWhereNobodyDelaysTheEndItIsAtOnceAndElseNotForEver(t *testing.T) {
	s := serve(t)
	if left, err := s.End(t.Context()); err != nil || left != nil {
		t.Errorf("somebody delayed it: %t (%v)", left != nil, err)
	}
	s = serve(t)
	c := kubelet(t, s)
	defer lock(t, c).Close()
	signals(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	over := ending(ctx, s)
	none(t, over)
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 still delay") {
		t.Errorf("%v", err)
	}
}

func TestWhatIsNotServedIsRefused(t *testing.T) {
	s := serve(t)
	c := kubelet(t, s)
	object := c.Object("org.freedesktop.login1", path)
	for method, arguments := range map[string][]any{
		manager + ".PowerOff": {true},
		manager + ".Inhibit":  {"sleep", "kubelet", "", "block"},
		properties + ".Get":   {manager, "IdleHint"},
	} {
		var refused dbus.Error
		if err := object.Call(method, 0, arguments...).Err; !errors.As(err, &refused) || (refused.Name != unknown && refused.Name != wrong) {
			t.Errorf("%s%v: %v", method, arguments, err)
		}
	}
	// What is no D-Bus ends its own connection alone.
	for _, said := range []string{"", "\x00AUTH", "\x00AUTH EXTERNAL 30\r\nBEGIN\r\nGET / HTTP/1.1\r\n\r\n", strings.Repeat("x", 2*maxLine)} {
		other, err := net.Dial("unix", s.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		_ = other.Close()
	}
	_ = lock(t, c).Close()
}
