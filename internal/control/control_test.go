package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

type answers struct {
	why   map[string]Explanation
	cells []Cell
	err   error
}

func (a answers) Why(_ context.Context, namespace, pod string) (Explanation, error) {
	e, ok := a.why[namespace+"/"+pod]
	if !ok {
		return e, fmt.Errorf("pod %s/%s: %w", namespace, pod, ErrNotFound)
	}
	return e, a.err
}

func (a answers) Cells(context.Context) ([]Cell, error) { return a.cells, a.err }

// run serves in dir until the test ends or stop is called.
func run(t *testing.T, dir string, a answers) (stop func()) {
	t.Helper()
	s, err := New(Config{Dir: dir, Version: "v1.2.3", Explainer: a, Log: slog.New(slog.DiscardHandler)})
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
	for deadline := time.Now().Add(30 * time.Second); ; {
		if _, err := NewClient(filepath.Join(dir, SocketName)).Version(t.Context()); err == nil {
			return stop
		} else if !errors.Is(err, ErrNoServer) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestClientAndServerSpeakTheSame(t *testing.T) {
	heard := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	cell := Cell{Name: "c-1", Status: apiv1.CellStatus{Phase: apiv1.Bound, InstanceType: "small"}, Tunnel: &Tunnel{Connected: true, LastHeard: &heard}}
	want := Explanation{
		Pod: apiv1.PodReference{Namespace: "ns", Name: "p", UID: "u"}, Node: "kip-0", PodPhase: "Pending", Waiting: "its image", Cell: &cell,
		Placement: &Placement{Need: "cpu 1", Candidates: []Candidate{{InstanceType: "small", PricePerHour: "0.01", Why: "cheapest"}}, Rejected: []Rejection{{What: "1 type", Why: "too small"}}},
		Events:    []Event{{Time: heard, Count: 2, Type: "Normal", Reason: "Pulling", Message: "m"}},
	}
	dir := t.TempDir()
	run(t, dir, answers{why: map[string]Explanation{"ns/p": want}, cells: []Cell{cell}})
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
	if _, err := c.Why(t.Context(), "ns", "other"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "ns/other") {
		t.Errorf("Why of an unknown pod: %v", err)
	}
	if _, err := c.Why(t.Context(), "", "p"); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("Why without a namespace: %v", err)
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

func TestNothingCanBeChangedThroughTheSocket(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, answers{})
	c := NewClient(filepath.Join(dir, SocketName))
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
