package leader

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/store/storetest"
	"go.uber.org/goleak"
)

// endpointVar makes this process one that leads, on the etcd that it names.
const endpointVar = "LEADER_TEST_ENDPOINT"

func TestMain(m *testing.M) {
	if os.Getenv(endpointVar) != "" {
		os.Exit(m.Run()) // it reads its input until it ends
	}
	goleak.VerifyTestMain(m)
}

var silent = slog.New(slog.DiscardHandler)

type item struct{ Writer string }

func connect(t *testing.T, endpoint string) *store.Store {
	t.Helper()
	s, err := store.OpenExternal(t.Context(), store.External{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s.Within("kip/")
}

func win(t *testing.T, s *store.Store, identity string) *Leadership {
	t.Helper()
	l, err := Elect(t.Context(), s, identity, silent)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// revoke ends the leader's lease under it, as etcd does when it runs out.
func revoke(t *testing.T, l *Leadership) {
	t.Helper()
	if _, err := l.client.Revoke(t.Context(), l.session.Lease()); err != nil {
		t.Fatal(err)
	}
}

// candidate elects in the background and logs "waiting" on its channel.
func candidate(t *testing.T, s *store.Store, identity string) (waits <-chan string, wins <-chan *Leadership) {
	lines, won := make(chan string, 100), make(chan *Leadership, 1)
	log := slog.New(slog.NewTextHandler(writer(lines), nil))
	go func() {
		l, err := Elect(t.Context(), s, identity, log)
		if err == nil {
			won <- l
		}
	}()
	return lines, won
}

type writer chan string

func (w writer) Write(p []byte) (int, error) { w <- string(p); return len(p), nil }

func TestOneLeadsAtATime(t *testing.T) {
	etcd := storetest.Serve(t, nil)
	const candidates = 5
	turns := make(chan string, candidates)
	var wg sync.WaitGroup
	var mu sync.Mutex // TryLock fails if two lead at once
	for i := range candidates {
		s := connect(t, etcd.Endpoint)
		wg.Go(func() {
			l, err := Elect(t.Context(), s, fmt.Sprint(i), silent)
			if err != nil {
				t.Error(err)
				return
			}
			if !mu.TryLock() {
				t.Error("two lead")
				return
			}
			revision, err := l.Store().Get(t.Context(), "a", new(item))
			if err == nil {
				_, err = l.Store().Put(t.Context(), "a", item{fmt.Sprint(i)}, revision)
			}
			if err != nil {
				t.Errorf("the leader cannot write: %v", err)
			}
			turns <- fmt.Sprint(i)
			mu.Unlock()
			if err := l.Resign(t.Context()); err != nil {
				t.Error(err)
			}
			<-l.Lost()
			if _, err := l.Store().Put(t.Context(), "b", item{}, 0); !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("a write after resigning: %v", err)
			}
		})
	}
	wg.Wait()
	if len(turns) != candidates {
		t.Fatalf("%d of %d had their turn", len(turns), candidates)
	}
}

func TestADeposedLeaderCannotWrite(t *testing.T) {
	etcd := storetest.Serve(t, nil)
	old := win(t, connect(t, etcd.Endpoint), "old")
	revision, err := old.Store().Put(t.Context(), "a", item{"old"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	waits, wins := candidate(t, connect(t, etcd.Endpoint), "new")
	if line := <-waits; !strings.Contains(line, "leader=old") {
		t.Fatalf("the candidate logs %s", line)
	}
	for what, s := range map[string]*store.Store{"the leader": old.Store(), "its view": old.Store().Within("x/")} {
		if err := s.Leads(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	revoke(t, old)
	// At once, whether or not it knows, and whether or not another leads yet;
	// every way of writing, also where the record would match.
	try := func(s *store.Store) {
		t.Helper()
		_, putErr := s.Put(t.Context(), "a", item{"late"}, revision)
		_, newErr := s.Within("x/").Put(t.Context(), "b", item{"late"}, 0)
		_, applyErr := s.Apply(t.Context(), store.Change{Key: "c", Value: item{"late"}}, store.Change{Key: "a", Revision: revision})
		for what, err := range map[string]error{
			"put": putErr, "put within": newErr, "apply": applyErr,
			"delete": s.Delete(t.Context(), "a", revision), "delete of what is not there": s.Delete(t.Context(), "nothing", 7),
			"restore": s.Restore(t.Context(), backup(t), true), "the question whether it leads": s.Leads(t.Context()),
		} {
			if !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("%s by the deposed leader: %v", what, err)
			}
		}
	}
	try(old.Store())
	next := <-wins
	if revision, err = next.Store().Put(t.Context(), "a", item{"new"}, revision); err != nil {
		t.Fatalf("the new leader cannot write: %v", err)
	}
	try(old.Store())
	<-old.Lost()
	if err := old.Resign(t.Context()); err != nil {
		t.Fatalf("resign after a loss: %v", err)
	}
	var got item
	if _, err := old.Store().Get(t.Context(), "a", &got); err != nil || got.Writer != "new" {
		t.Fatalf("the store holds %+v, %v", got, err)
	}
	select {
	case <-next.Lost():
		t.Fatal("the new leader lost with the old one")
	default:
	}
}

// backup is of a store with one record of its own.
func backup(t *testing.T) *strings.Reader {
	t.Helper()
	s := store.Memory(nil)
	if _, err := s.Put(t.Context(), "z", item{"backup"}, 0); err != nil {
		t.Fatal(err)
	}
	var file strings.Builder
	if err := s.Backup(t.Context(), &file, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	return strings.NewReader(file.String())
}

func TestLeadingIsNoneOfTheStoresRecords(t *testing.T) {
	etcd := storetest.Serve(t, nil)
	s := connect(t, etcd.Endpoint)
	win(t, s, "me")
	if err := s.List(t.Context(), "", func(key string, _ []byte, _ int64) error { return fmt.Errorf("found %s", key) }); err != nil {
		t.Fatal(err)
	}
	other := connect(t, etcd.Endpoint).Within("other/")
	win(t, other, "another Kip's") // does not wait
}

func TestACandidateWhoseLeaseEndsDoesNotWinWithoutOne(t *testing.T) {
	etcd := storetest.Serve(t, nil)
	first := win(t, connect(t, etcd.Endpoint), "first")
	waits, wins := candidate(t, connect(t, etcd.Endpoint), "second")
	<-waits
	leases, err := first.client.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases.Leases {
		if l.ID != first.session.Lease() {
			if _, err := first.client.Revoke(t.Context(), l.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	for line := range waits { // it starts again, behind the first
		if strings.Contains(line, "waiting to lead") {
			break
		}
	}
	select {
	case <-wins:
		t.Fatal("it leads while the first does")
	default:
	}
	if err := first.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := (<-wins).Store().Put(t.Context(), "a", item{"second"}, 0); err != nil {
		t.Fatal(err)
	}
}

func TestACandidateThatGivesUpIsNotWaitedFor(t *testing.T) {
	etcd := storetest.Serve(t, nil)
	first := win(t, connect(t, etcd.Endpoint), "first")
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	lines := make(chan string, 100)
	s := connect(t, etcd.Endpoint)
	go func() {
		_, err := Elect(ctx, s, "second", slog.New(slog.NewTextHandler(writer(lines), nil)))
		gaveUp <- err
	}()
	<-lines
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := first.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	win(t, connect(t, etcd.Endpoint), "third")
}

func TestGivingUpDoesNotWaitForAnEtcdThatIsDown(t *testing.T) {
	etcd := storetest.Serve(t, nil)
	win(t, connect(t, etcd.Endpoint), "first")
	s := connect(t, etcd.Endpoint)
	ctx, cancel := context.WithCancel(t.Context())
	lines, gaveUp := make(chan string, 100), make(chan error, 1)
	go func() {
		_, err := Elect(ctx, s, "second", slog.New(slog.NewTextHandler(writer(lines), nil)))
		gaveUp <- err
	}()
	<-lines
	etcd.Stop()
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestAnEmbeddedEtcdLeadsAtOnce(t *testing.T) {
	s, err := store.OpenEmbedded(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, s := range []*store.Store{s, store.Memory(nil)} {
		l := win(t, s, "me")
		if _, err := l.Store().Put(t.Context(), "a", item{"me"}, 0); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.Lost():
			t.Fatal("lost")
		default:
		}
		if err := l.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnotherTakesOver kills, pauses and stops a leading process and tells how
// long nobody led. The process is this test, run again.
func TestAnotherTakesOver(t *testing.T) {
	if endpoint := os.Getenv(endpointVar); endpoint != "" {
		lead(t, endpoint)
		return
	}
	etcd := storetest.Serve(t, nil)
	for _, c := range []struct {
		name string
		end  func(p *os.Process) error
	}{
		{"kill -9", func(p *os.Process) error { return p.Kill() }},
		{"a clean stop", func(p *os.Process) error { return p.Signal(syscall.SIGTERM) }},
		{"a pause", func(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			child := exec.Command(os.Args[0], "-test.run=^TestAnotherTakesOver$", "-test.v")
			child.Env = append(os.Environ(), endpointVar+"="+etcd.Endpoint)
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			in, err := child.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = child.Wait() }()
			defer func() { _ = child.Process.Kill() }()
			lines := bufio.NewScanner(out)
			until := func(want string) string {
				t.Helper()
				for lines.Scan() {
					if _, said, found := strings.Cut(lines.Text(), want); found {
						return strings.TrimSpace(said)
					}
				}
				t.Fatalf("the process never said %q: %v", want, lines.Err())
				return ""
			}
			lease := until("LEADS")
			standby := connect(t, etcd.Endpoint)
			waits, wins := candidate(t, standby, "standby")
			<-waits
			began := time.Now()
			if err := c.end(child.Process); err != nil {
				t.Fatal(err)
			}
			won := make(chan *Leadership)
			go func() {
				l := <-wins
				t.Logf("took over %s after %s", time.Since(began).Round(time.Millisecond), c.name)
				won <- l
			}()
			if c.name == "a clean stop" {
				for lines.Scan() { // to its end
				}
				if err := child.Wait(); err != nil {
					t.Errorf("the process ended with %v", err)
				}
				// What is left of it would run out by itself, as after a kill.
				if left := leases(t, standby); slices.Contains(left, lease) {
					t.Errorf("its lease %s is left: %v", lease, left)
				}
			}
			l := <-won
			if _, err := l.Store().Put(t.Context(), c.name, item{"standby"}, 0); err != nil {
				t.Fatal(err)
			}
			if c.name == "a pause" {
				// It wakes up with a write that it decided on before.
				if _, err := fmt.Fprintln(in, "write"); err != nil {
					t.Fatal(err)
				}
				if err := child.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				until("WRITE REFUSED true")
				until("LOST")
			}
			if err := l.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// leases are those that etcd has granted, and that have not ended.
func leases(t *testing.T, s *store.Store) (ids []string) {
	t.Helper()
	client, _, _ := s.Shared()
	r, err := client.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range r.Leases {
		ids = append(ids, fmt.Sprint(int64(l.ID)))
	}
	return ids
}

func lead(t *testing.T, endpoint string) {
	stopped, stop := context.WithCancel(t.Context())
	defer stop()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	l := win(t, connect(t, endpoint), "child")
	fmt.Println("LEADS", int64(l.session.Lease()))
	go func() {
		if bufio.NewScanner(os.Stdin).Scan() {
			_, err := l.Store().Put(t.Context(), "late", item{"child"}, 0)
			fmt.Println("WRITE REFUSED", errors.Is(err, store.ErrNotLeader))
			<-l.Lost()
			fmt.Println("LOST")
			stop()
		}
	}()
	select {
	case <-signals:
		if err := l.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	case <-stopped.Done():
	}
}
