package adminapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

type answers struct {
	why   map[string]Explanation
	cells []Cell
	err   error

	pools     []Pool
	shortages []Shortage
	consoles  map[string]ConsoleText
}

func (a answers) Console(_ context.Context, cell string) (ConsoleText, error) {
	t, ok := a.consoles[cell]
	if !ok {
		return t, fmt.Errorf("cell %s: %w", cell, ErrNotFound)
	}
	return t, a.err
}

func (a answers) Why(_ context.Context, namespace, pod string) (Explanation, error) {
	e, ok := a.why[namespace+"/"+pod]
	if !ok {
		return e, fmt.Errorf("pod %s/%s: %w", namespace, pod, ErrNotFound)
	}
	return e, a.err
}

func (a answers) Cells(context.Context) ([]Cell, error)        { return a.cells, a.err }
func (a answers) Standby(context.Context) ([]Pool, error)      { return a.pools, a.err }
func (a answers) Capacity(context.Context) ([]Shortage, error) { return a.shortages, a.err }

// run serves in dir until the test ends or stop is called.
func run(t *testing.T, dir string, a answers) (stop func()) {
	t.Helper()
	return serve(t, Config{Dir: dir, Version: "v1.2.3", Explainer: a, Log: slog.New(slog.DiscardHandler)})
}

func serve(t *testing.T, c Config) (stop func()) {
	t.Helper()
	dir := c.Dir
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	for deadline := time.Now().Add(patience); ; {
		if _, err := NewClient(filepath.Join(dir, SocketName)).Version(t.Context()); err == nil {
			return stop
		} else if !errors.Is(err, ErrNoServer) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestClientAndServerSpeakTheSame(t *testing.T) {
	heard := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	cell := Cell{
		Name:   "c-1",
		Status: apiv1.CellStatus{Phase: apiv1.Bound, InstanceType: "small"},
		Tunnel: &Tunnel{Connected: true, LastHeard: &heard},
	}
	want := Explanation{
		Pod: apiv1.PodReference{Namespace: "ns", Name: "p", UID: "u"}, Node: "kip-0", PodPhase: "Pending", Waiting: "its image", Cell: &cell,
		Placement: &Placement{
			Need:       "cpu 1",
			Candidates: []Candidate{{InstanceType: "small", PricePerHour: "0.01", Why: "cheapest"}},
			Rejected:   []Rejection{{What: "1 type", Why: "too small"}},
		},
		Events: []Event{{Time: heard, Count: 2, Type: "Normal", Reason: "Pulling", Message: "m"}},
	}
	dir := t.TempDir()
	pools := []Pool{{Name: "small", Want: 2, Ready: 1, Booting: 1, Why: "quota"}}
	shortages := []Shortage{{InstanceType: "small", Zone: "z", LaunchType: "Spot", Until: heard, Why: "none left"}}
	console := ConsoleText{Cell: "c-1", Phase: apiv1.Booting, Instance: "i-1", Text: []byte("\x1b[2J\xff\r\n")}
	run(t, dir, answers{
		why:       map[string]Explanation{"ns/p": want},
		cells:     []Cell{cell},
		pools:     pools,
		shortages: shortages,
		consoles:  map[string]ConsoleText{"c-1": console},
	})
	c := NewClient(filepath.Join(dir, SocketName))

	if v, err := c.Version(t.Context()); err != nil || v.Version != "v1.2.3" || v.Kubernetes == "" || v.Go == "" {
		t.Errorf("Version: %+v, %v", v, err)
	}
	if got, err := c.Why(t.Context(), "ns", "p"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Why: %+v, %v\nwant %+v", got, err, want)
	}
	if got, err := c.Cells(t.Context()); err != nil || !reflect.DeepEqual(got, []Cell{cell}) {
		t.Errorf("Cells: %+v, %v", got, err)
	}
	if got, err := c.Standby(t.Context()); err != nil || !reflect.DeepEqual(got, pools) {
		t.Errorf("Standby: %+v, %v", got, err)
	}
	if got, err := c.Capacity(t.Context()); err != nil || !reflect.DeepEqual(got, shortages) {
		t.Errorf("Capacity: %+v, %v", got, err)
	}
	if got, err := c.Console(t.Context(), "c-1"); err != nil || !reflect.DeepEqual(got, console) {
		t.Errorf("Console: %+v, %v", got, err)
	}
	if _, err := c.Console(t.Context(), "c-2"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "c-2") {
		t.Errorf("Console of an unknown cell: %v", err)
	}
	if _, err := c.Console(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "must have cell") {
		t.Errorf("Console without a cell: %v", err)
	}
	if _, err := c.Why(t.Context(), "ns", "other"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "ns/other") {
		t.Errorf("Why of an unknown pod: %v", err)
	}
	if _, err := c.Why(t.Context(), "", "p"); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("Why without a namespace: %v", err)
	}
}

func TestTheUsageOfCellsIsToldTheWorstFirst(t *testing.T) {
	cell := func(name string, seconds float64, refused, bytes uint64) CellUsage {
		return CellUsage{Cell: name, WorkedSeconds: seconds, AnsweredBytes: bytes, RefusedBy: map[string]uint64{"a": refused, "b": 1}}
	}
	want := []CellUsage{cell("works", 2, 0, 0), cell("refused", 1, 9, 0), cell("large", 1, 1, 5), cell("a", 1, 1, 4), cell("b", 1, 1, 4)}
	dir := t.TempDir()
	serve(t, Config{
		Dir:       dir,
		Version:   "v1",
		Explainer: answers{},
		Usage: func() []CellUsage {
			all := slices.Clone(want)
			slices.Reverse(all)
			return all
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if got, err := NewClient(filepath.Join(dir, SocketName)).Usage(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	if n := want[1].Refused(); n != 10 {
		t.Errorf("%d were refused", n)
	}
}

func TestAFailureBehindTheSocketReachesTheClient(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, answers{err: errors.New("etcd is away")})
	_, err := NewClient(filepath.Join(dir, SocketName)).Cells(t.Context())
	if err == nil || !strings.Contains(err.Error(), "etcd is away") || errors.Is(err, ErrNotFound) {
		t.Errorf("Cells: %v", err)
	}
}

func TestTheSocketIsForItsOwnerAloneAndGoesWithTheServer(t *testing.T) {
	dir := t.TempDir()
	stop := run(t, dir, answers{})
	info, err := os.Lstat(filepath.Join(dir, SocketName))
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket's mode is %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder holds %v, %v, want the socket alone", entries, err)
	}
	stop()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("after the end the folder holds %v, %v", entries, err)
	}
	if _, err := NewClient(filepath.Join(dir, SocketName)).Version(t.Context()); !errors.Is(err, ErrNoServer) {
		t.Errorf("after the end: %v", err)
	}
}

func TestASocketThatNobodyServesIsReplacedAndOneThatIsServedIsNot(t *testing.T) {
	dir := t.TempDir()
	var l net.Listener
	err := withAddress(filepath.Join(dir, SocketName), func(address string) (err error) {
		l, err = net.Listen("unix", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as kill -9 leaves it
	l.Close()
	if _, err := NewClient(filepath.Join(dir, SocketName)).Version(t.Context()); !errors.Is(err, ErrNoServer) {
		t.Errorf("a dead socket: %v", err)
	}
	run(t, dir, answers{})

	second, err := New(Config{Dir: dir, Version: "v2", Explainer: answers{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another Kip") {
		t.Errorf("the second server: %v", err)
	}
	if v, err := NewClient(filepath.Join(dir, SocketName)).Version(t.Context()); err != nil || v.Version != "v1.2.3" {
		t.Errorf("the first server no longer answers: %+v, %v", v, err)
	}
}

func TestNothingCanBeChangedThroughASocketWithoutACleaner(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, answers{})
	c := NewClient(filepath.Join(dir, SocketName))
	_, err := c.Cleanup(t.Context(), time.Minute, func(Progress) {})
	if err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "another version") {
		t.Errorf("Cleanup: %v", err)
	}
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://kip"+PathCells, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
}

func TestAFolderWithALongNameHoldsASocketToo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stop := run(t, dir, answers{})
	stop()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("after the end the folder holds %v, %v", entries, err)
	}
}

// cleaner does what a test says.
type cleaner func(ctx context.Context, say func(string)) (Holdings, error)

func (c cleaner) Holdings(ctx context.Context) (Holdings, error) { return c(ctx, nil) }
func (c cleaner) Clean(ctx context.Context, say func(string)) (Holdings, error) {
	return c(ctx, say)
}

func client(t *testing.T, c Config) *Client {
	t.Helper()
	c.Dir, c.Version, c.Explainer, c.Log = t.TempDir(), "v1.2.3", answers{}, slog.New(slog.DiscardHandler)
	serve(t, c)
	return NewClient(filepath.Join(c.Dir, SocketName))
}

func TestABackupThatIsCutOffIsAnErrorWithItsReason(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	for name, test := range map[string]struct {
		backup func(context.Context, io.Writer) error
		want   string // in the error
	}{
		"whole": {backup: func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, large)
			return err
		}},
		"refused": {want: "etcd is away", backup: func(context.Context, io.Writer) error { return errors.New("etcd is away") }},
		"cut off with a reason": {want: "etcd has died", backup: func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, large)
			return errors.Join(err, errors.New("etcd has died"))
		}},
		"cut off early with a reason": {want: "etcd has died", backup: func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, "x")
			return errors.Join(err, errors.New("etcd has died"))
		}},
		"cut off by a crash": {want: "unexpected EOF", backup: func(_ context.Context, w io.Writer) error {
			if _, err := io.WriteString(w, large); err != nil {
				return err
			}
			panic(http.ErrAbortHandler)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			err := client(t, Config{Backup: test.backup}).Backup(t.Context(), &got)
			if test.want == "" && (err != nil || got.String() != large) {
				t.Errorf("%d bytes, %v", got.Len(), err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%d bytes, %v; want an error with %q", got.Len(), err, test.want)
			}
		})
	}
}

func TestACleanupIsToldAsItGoesAndWhatIsLeftComesLast(t *testing.T) {
	left := Holdings{Node: "kip-0", NodeExists: true, Cells: []string{"c-1"}, Records: map[string]int{"ca": 1}, Store: "in a folder"}
	heard := make(chan struct{})
	c := client(t, Config{Cleaner: cleaner(func(_ context.Context, say func(string)) (Holdings, error) {
		if say == nil {
			return left, nil
		}
		say("one")
		<-heard // the line is not held back until the end
		say("two")
		return left, errors.New("left: 1 cell")
	})})
	if got, err := c.Holdings(t.Context()); err != nil || !reflect.DeepEqual(got, left) {
		t.Errorf("Holdings: %+v, %v", got, err)
	}
	var lines []string
	got, err := c.Cleanup(t.Context(), time.Minute, func(p Progress) {
		if lines = append(lines, p.Message); len(lines) == 1 {
			close(heard)
		}
	})
	if err == nil || err.Error() != "left: 1 cell" || !reflect.DeepEqual(got, left) || strings.Join(lines, " ") != "one two" {
		t.Errorf("Cleanup: %+v, %v, lines %q", got, err, lines)
	}
	want := "1 cell (c-1); node kip-0"
	if got := strings.Join(got.Left(), "; "); got != want {
		t.Errorf("left: %q, want %q", got, want)
	}
}

func TestACleanupEndsWithItsTimeAndWithWhoAskedForIt(t *testing.T) {
	ended := make(chan error, 1)
	c := client(t, Config{Cleaner: cleaner(func(ctx context.Context, say func(string)) (Holdings, error) {
		say("waiting")
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return Holdings{Node: "kip-0"}, context.Cause(ctx)
	})})
	h, err := c.Cleanup(t.Context(), time.Millisecond, func(Progress) {})
	if err == nil || !strings.Contains(err.Error(), "within 1ms") || h.Node != "kip-0" {
		t.Errorf("after its time: %+v, %v", h, err)
	}
	<-ended
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Cleanup(ctx, time.Hour, func(Progress) { cancel() }); err == nil || !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Kip was told %v", err)
	}
	for _, timeout := range []time.Duration{0, -time.Second} {
		if _, err := c.Cleanup(t.Context(), timeout, func(Progress) {}); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("timeout %s: %v", timeout, err)
		}
	}
}

func TestAKipThatEndsInACleanupHasNotSaidThatItIsDone(t *testing.T) {
	c := client(t, Config{Cleaner: cleaner(func(_ context.Context, say func(string)) (Holdings, error) {
		say("waiting")
		panic(http.ErrAbortHandler)
	})})
	if _, err := c.Cleanup(t.Context(), time.Minute, func(Progress) {}); err == nil || !strings.Contains(err.Error(), "has not said how") {
		t.Errorf("Cleanup: %v", err)
	}
}
