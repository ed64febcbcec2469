package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/leader"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/store/storetest"
)

// someStore has a CA, a cell that runs a pod, and one on standby.
func someStore(t *testing.T) *store.Store {
	t.Helper()
	st := store.Memory(nil)
	for key, v := range map[string]any{
		"ca": "secret", "born": now.Add(-time.Hour),
		"cells/cell-1": cells.Cell{ID: "cell-1", Phase: apiv1.Bound, Pod: apiv1.PodReference{Namespace: "ns", Name: "p", UID: "u"}},
		"cells/cell-2": cells.Cell{ID: "cell-2", Phase: apiv1.Ready, OfPool: cells.OfPool{Standby: "small"}},
	} {
		if _, err := st.Put(t.Context(), key, v, 0); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

func backedUp(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := someStore(t).Backup(t.Context(), &b, now.Add(-2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func serving(backup func(context.Context, io.Writer) error) func(*adminapi.Config) {
	return func(c *adminapi.Config) { c.Backup = backup }
}

func TestABackupIsWrittenWholeOrNotAtAll(t *testing.T) {
	whole := backedUp(t)
	for name, test := range map[string]struct {
		sent []byte
		err  error
		want string // in the error
	}{
		"whole":           {sent: whole},
		"cut off":         {sent: whole[:len(whole)/2], err: errors.New("etcd has died"), want: "etcd has died"},
		"without its end": {sent: whole[:len(whole)/2], want: "there is no trailer"},
		"damaged":         {sent: bytes.Replace(whole, []byte(`"key":"ca"`), []byte(`"key":"cb"`), 1), want: "damaged"},
		"nothing":         {err: errors.New("etcd is away"), want: "etcd is away"},
	} {
		t.Run(name, func(t *testing.T) {
			socket(t, serving(func(_ context.Context, w io.Writer) error {
				if len(test.sent) > 0 {
					if _, err := w.Write(test.sent); err != nil {
						return err
					}
				}
				return test.err
			}))
			dir := t.TempDir()
			file := filepath.Join(dir, "kip.backup")
			got := run(t, nil, "backup", "-f", file)
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if test.want != "" {
				if got.failed == nil || !strings.Contains(got.err, test.want) || len(entries) != 0 {
					t.Errorf("%+v; the folder holds %v", got, entries)
				}
				if got := run(t, nil, "backup"); got.failed == nil || !strings.Contains(got.err, test.want) {
					t.Errorf("to standard output: %v, %q", got.failed, got.err)
				}
				return
			}
			written, err := os.ReadFile(file)
			if got.failed != nil || err != nil || !bytes.Equal(written, whole) || len(entries) != 1 {
				t.Fatalf("%+v, %v; the folder holds %v", got, err, entries)
			}
			if info, err := os.Stat(file); err != nil || info.Mode() != fs.FileMode(0o600) {
				t.Errorf("its mode is %v, %v", info.Mode(), err)
			}
			if !strings.Contains(got.err, "born 1, ca 1, cells 2") {
				t.Errorf("said %q", got.err)
			}
			if got := run(t, nil, "backup"); got.failed != nil || got.out != string(whole) || got.err != "" {
				t.Errorf("to standard output: %v, %q, %d bytes", got.failed, got.err, len(got.out))
			}
		})
	}
}

func TestProgressIsSaidEveryTwoSeconds(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(now)
	var out, said bytes.Buffer
	p := &progress{to: &out, say: &said, clock: c, last: now}
	for second := range 5 {
		c.SetTime(now.Add(time.Duration(second) * time.Second))
		if n, err := p.Write(make([]byte, 1<<20)); n != 1<<20 || err != nil {
			t.Fatal(n, err)
		}
	}
	if said.String() != "3.0 MiB…\n5.0 MiB…\n" || out.Len() != 5<<20 {
		t.Errorf("said %q of %d bytes", said.String(), out.Len())
	}
}

// place is where a Kip that does not run has its files.
type place struct{ config, backup, data string }

func newPlace(t *testing.T, more string) place {
	t.Helper()
	dir := t.TempDir()
	p := place{filepath.Join(dir, "provider.yaml"), filepath.Join(dir, "kip.backup"), filepath.Join(dir, "data")}
	text := fmt.Sprintf("apiVersion: v1\nkind: serverConfig\ncloud:\n  local:\n    stateDir: %s\n    rootDir: %s\netcd:\n  internal:\n    dataDir: %s\ncells:\n  defaultInstanceType: nano\n%s",
		dir, dir, p.data, more)
	for file, data := range map[string][]byte{p.config: []byte(text), p.backup: backedUp(t)} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// open opens the store as the Kip of a controller does.
func (p place) open(t *testing.T, id string) *store.Store {
	t.Helper()
	st, err := store.OpenEmbedded(t.Context(), p.data, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st.Within(id + "/")
}

func TestARestoredStoreIsThatOfThisClustersKip(t *testing.T) {
	p := newPlace(t, "")
	c := &cluster{kube: fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "the-cluster"}})}
	restore := []string{"restore", p.backup, "--provider-config", p.config, "--node", "kip-7"}
	got := run(t, c, restore...)
	id := cells.ControllerID("the-cluster", "kip-7")
	if got.failed != nil {
		t.Fatalf("%+v", got)
	}
	for _, words := range []string{"born 1, ca 1, cells 2", "taken 2026-07-01T10:00:00Z (120m ago)", "schema 1", id, "1 of its cells",
		"Start Kip now", "kipctl generation"} {
		if !strings.Contains(got.out, words) {
			t.Errorf("printed %q, which lacks %q", got.out, words)
		}
	}
	again := run(t, c, restore...)
	if again.failed == nil || !strings.Contains(again.err, "which are replaced only with --overwrite") {
		t.Errorf("into a store that is not empty: %+v", again)
	}
	if got := run(t, c, append(restore, "--overwrite")...); got.failed != nil {
		t.Errorf("with --overwrite: %+v", got)
	}

	st := p.open(t, id)
	var keys []string
	if err := st.List(t.Context(), "", func(key string, _ []byte, _ int64) error {
		keys = append(keys, key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if strings.Join(keys, " ") != "born ca cells/cell-1" { // not the one on standby
		t.Errorf("the store holds %q", keys)
	}
	var born time.Time
	if _, err := st.Get(t.Context(), "born", &born); err != nil || !born.Equal(now) {
		t.Errorf("what no record names is unknown from %s on, want %s; %v", born, now, err)
	}
	if got := run(t, c, append(restore, "--overwrite")...); got.failed == nil || !strings.Contains(got.err, "in use by another Kip") {
		t.Errorf("while a Kip runs: %+v", got)
	}
}

func TestAFixedControllerNeedsNoCluster(t *testing.T) {
	p := newPlace(t, "testing:\n  controllerID: fixed\n")
	got := run(t, nil, "restore", p.backup, "--provider-config", p.config)
	if got.failed != nil || !strings.Contains(got.out, "controller fixed") {
		t.Errorf("%+v", got)
	}
}

func TestAnEtcdThatAKipUsesIsNotRestored(t *testing.T) {
	server := storetest.Serve(t, nil)
	endpoint := "http://" + server.Endpoint
	p := newPlace(t, "testing:\n  controllerID: fixed\n")
	text, err := os.ReadFile(p.config)
	if err != nil {
		t.Fatal(err)
	}
	external := "  client:\n    allowPlainText: true\n    endpoints: [" + endpoint + "]"
	text = bytes.Replace(text, []byte("  internal:\n    dataDir: "+p.data), []byte(external), 1)
	if err := os.WriteFile(p.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := store.OpenExternal(t.Context(), store.External{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	leads, err := leader.Elect(t.Context(), st.Within("fixed/"), "kip-of-the-test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	restore := []string{"restore", p.backup, "--provider-config", p.config}
	got := run(t, nil, restore...)
	if got.failed == nil || !strings.Contains(got.err, "stop all of its replicas") || !strings.Contains(got.err, "kip-of-the-test") {
		t.Errorf("while a Kip leads: %+v", got)
	}
	if revision, err := st.Within("fixed/").Get(t.Context(), "ca", new(string)); revision != 0 || err != nil {
		t.Errorf("something was written: %d, %v", revision, err)
	}
	if err := leads.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := run(t, nil, restore...); got.failed != nil {
		t.Errorf("when it has stopped: %+v", got)
	}
	var ca string
	if _, err := st.Within("fixed/").Get(t.Context(), "ca", &ca); ca != "secret" || err != nil {
		t.Errorf("the CA is %q, %v", ca, err)
	}
}

func TestABackupThatIsNotWholeTouchesNothing(t *testing.T) {
	p := newPlace(t, "testing:\n  controllerID: fixed\n")
	if err := os.Truncate(p.backup, 100); err != nil {
		t.Fatal(err)
	}
	got := run(t, nil, "restore", p.backup, "--provider-config", p.config, "--overwrite")
	if _, err := os.Stat(p.data); got.failed == nil || !strings.Contains(got.err, "no trailer") || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%+v; the store's folder: %v", got, err)
	}
}

// kip is a Kip to clean up after: what it has, and how a cleanup of it ends.
type kip struct {
	has, left adminapi.Holdings
	err       error
}

func (k kip) Holdings(context.Context) (adminapi.Holdings, error) { return k.has, nil }

func (k kip) Clean(ctx context.Context, say func(string)) (adminapi.Holdings, error) {
	if until, ok := ctx.Deadline(); !ok || time.Until(until) > 5*time.Minute {
		return k.has, fmt.Errorf("the time limit is %v", until)
	}
	say("waiting for 1 cell: cell-1 Terminating (the cloud to end it)")
	return k.left, k.err
}

func TestACleanupShowsWhatItDoesAndFailsIfAnythingIsLeft(t *testing.T) {
	has := adminapi.Holdings{Node: "kip-0", NodeExists: true, NodeLease: true, Pods: []string{"ns/p"},
		Cells:     []string{"cell-1 Bound (pod ns/p)"},
		Instances: []string{"i-1 of cell-1"}, CellResources: []string{"cell-1"}, Disks: []string{"disk-1 of 64Mi: Kip volume me ns/data"},
		Records: map[string]int{"ca": 1, "cells": 1}, Store: "in /data: remove the folder, or its volume"}
	clean := adminapi.Holdings{Node: "kip-0", Records: map[string]int{"ca": 1}, Store: has.Store}

	socket(t, func(c *adminapi.Config) { c.Cleaner = kip{has: has, left: clean} })
	asked := run(t, nil, "cleanup")
	if asked.failed == nil || !strings.Contains(asked.err, "--yes") {
		t.Errorf("without --yes: %+v", asked)
	}
	golden(t, "cleanup-asked", asked.out)
	done := run(t, nil, "cleanup", "--yes", "--timeout", "5m")
	if done.failed != nil || !strings.Contains(done.err, "cell-1 Terminating") || !strings.Contains(done.err, "Clean:") {
		t.Errorf("with --yes: %+v", done)
	}
	golden(t, "cleanup-done", done.out)

	socket(t, func(c *adminapi.Config) {
		c.Cleaner = kip{has: has, left: has, err: errors.New("left: 1 instance (i-1 of cell-1)")}
	})
	if got := run(t, nil, "cleanup", "--yes", "--timeout", "5m"); got.failed == nil || !strings.Contains(got.err, "left: 1 instance (i-1") ||
		got.out != asked.out {
		t.Errorf("with something left: %+v", got)
	}

	socket(t, func(c *adminapi.Config) { c.Cleaner = kip{has: clean} })
	if got := run(t, nil, "cleanup"); got.failed != nil || !strings.Contains(got.err, "nothing to clean up") {
		t.Errorf("of a clean Kip: %+v", got)
	}
}

// held is a Kip that holds back ends until they are allowed.
type held struct{ allowed *bool }

func (h held) Held() []adminapi.HeldEnd {
	if *h.allowed {
		return []adminapi.HeldEnd{}
	}
	return []adminapi.HeldEnd{
		{
			Instance: "i-1",
			Cell:     "cell-1",
			Pod:      apiv1.PodReference{Namespace: "ns", Name: "p"},
			Why:      "nothing was heard of its kubelet for 1m30s",
			HeldBack: "10 of 40 have ended within 5m0s",
			Since:    now.Add(-2 * time.Minute),
		},
		{Instance: "i-2", Why: "it has Kip's tags and no cell", HeldBack: "10 of 40 have ended within 5m0s", Since: now},
	}
}

func (h held) Allow(seen time.Time) []adminapi.HeldEnd {
	all := h.Held()
	if !seen.Equal(now) {
		return nil
	}
	*h.allowed = true
	return all
}

func TestWhatIsHeldBackIsShownAndAllowedOnlyIfItIsMeant(t *testing.T) {
	allowed := false
	socket(t, func(c *adminapi.Config) { c.Holder = held{&allowed} })
	asked := run(t, nil, "allow")
	if asked.failed == nil || !strings.Contains(asked.err, "--yes") || allowed {
		t.Errorf("without --yes: %+v", asked)
	}
	golden(t, "allow", asked.out)
	for _, wrong := range []string{"", "true", "yesterday"} {
		if got := run(t, nil, "allow", "--yes="+wrong); got.failed == nil || allowed {
			t.Errorf("with --yes=%s: %+v", wrong, got)
		}
	}
	_, said, _ := strings.Cut(asked.err, "--yes ")
	done := run(t, nil, "allow", "--yes", strings.Fields(said + " none")[0])
	if done.failed != nil || done.out != asked.out || !strings.Contains(done.err, "2 instances may end") || !allowed {
		t.Errorf("with --yes: %+v", done)
	}
	if none := run(t, nil, "allow"); none.failed != nil || !strings.Contains(none.err, "Nothing is held back") {
		t.Errorf("with nothing: %+v", none)
	}
}

// reloads has one for each time that Kip begins anew, which it does when it has answered.
type reloads chan struct{}

func (r reloads) Reload() { r <- struct{}{} }

// begun says that Kip has begun anew.
func (r reloads) begun(t *testing.T) bool {
	t.Helper()
	select {
	case <-r:
		return true
	case <-time.After(time.Minute):
		return false
	}
}

// behindStore is a store that does not know of two instances until it takes over.
type behindStore struct {
	taken, incomplete *bool
	reloads
}

func (b behindStore) Generation() adminapi.Generation {
	g := adminapi.Generation{Store: "store-1", Number: 7, Unknown: []adminapi.UnknownInstance{}}
	if *b.taken {
		return g
	}
	g.Behind = "the cloud has instances that it does not know of"
	g.Unknown = []adminapi.UnknownInstance{
		{
			Instance:   "i-1",
			Generation: "line.9",
			Pod:        apiv1.PodReference{Namespace: "ns", Name: "p"},
			Launched:   now.Add(-2 * time.Minute),
		},
		{Instance: "i-2", Launched: now.Add(-time.Hour)},
	}
	g.Shown = "two"
	if *b.incomplete {
		g.Incomplete = "a zone is away"
	}
	return g
}

func (b behindStore) TakeOver(_ context.Context, shown string) error {
	switch {
	case *b.taken:
		return errors.New("there is nothing to take over")
	case shown != "two":
		return errors.New("look again")
	}
	*b.taken = true
	return nil
}

func TestAStoreTakesOverOnlyIfItIsMeant(t *testing.T) {
	taken, incomplete, anew := false, true, make(reloads, 10)
	socket(t, func(c *adminapi.Config) { c.Generation = behindStore{&taken, &incomplete, anew} })
	shown := run(t, nil, "generation")
	if shown.failed != nil {
		t.Errorf("to show it: %+v", shown)
	}
	golden(t, "generation", shown.out)
	if early := run(t, nil, "generation", "take-over"); early.failed == nil || !strings.Contains(early.err, "a zone is away") {
		t.Errorf("while a zone is away: %+v", early)
	}
	incomplete = false
	other := run(t, nil, "generation", "take-over", "--yes", "one")
	if other.failed == nil || !strings.Contains(other.err, "look again") || taken {
		t.Errorf("for another list: %+v", other)
	}
	asked := run(t, nil, "generation", "take-over")
	if asked.failed == nil || !strings.Contains(asked.err, "--yes two ends 2 instances") || taken || asked.out != shown.out {
		t.Errorf("without --yes: %+v", asked)
	}
	done := run(t, nil, "generation", "take-over", "--yes", "two")
	if done.failed != nil || done.out != shown.out || !strings.Contains(done.err, "2 instances") || !taken || !anew.begun(t) {
		t.Errorf("with --yes, or it did not begin anew: %+v, taken over %t", done, taken)
	}
	again := run(t, nil, "generation", "take-over", "--yes", "two")
	if again.failed == nil || !strings.Contains(again.err, "nothing to take over") || len(anew) > 0 {
		t.Errorf("again, or it began anew: %+v", again)
	}
	if none := run(t, nil, "generation", "take-over"); none.failed != nil || !strings.Contains(none.err, "nothing to take over") {
		t.Errorf("with nothing: %+v", none)
	}
}

// keptCA is a CA that can be rotated, with cells that are not moved.
type keptCA struct {
	is *adminapi.CA
	reloads
}

func (k keptCA) CA() adminapi.CA { return *k.is }

func (k keptCA) RotateCA(context.Context) (adminapi.CA, error) {
	if k.is.Before != nil {
		return adminapi.CA{}, errors.New("the CA is being rotated already")
	}
	before := k.is.Signs
	*k.is = adminapi.CA{
		Signs:   adminapi.Authority{Hash: strings.Repeat("b", 64), Made: now, Ends: now.AddDate(10, 0, 0)},
		Before:  &before,
		Unmoved: []adminapi.UnmovedCell{},
	}
	return *k.is, nil
}

func (k keptCA) EndUnmoved(shown string) ([]adminapi.UnmovedCell, error) {
	if shown != k.is.Shown {
		return nil, errors.New("look again")
	}
	ended := k.is.Unmoved
	k.is.Unmoved = nil
	return ended, nil
}

func TestTheCAIsRotatedAndCellsEndOnlyIfItIsMeant(t *testing.T) {
	anew := make(reloads, 10)
	made := now.AddDate(-1, 0, 0)
	is := adminapi.CA{
		Signs:   adminapi.Authority{Hash: strings.Repeat("a", 64), Made: made, Ends: made.AddDate(10, 0, 0)},
		Unmoved: []adminapi.UnmovedCell{},
		Untold:  2,
	}
	socket(t, func(c *adminapi.Config) { c.CAKeeper = keptCA{&is, anew} })
	if first := run(t, nil, "ca"); first.failed != nil || !strings.Contains(first.err, "2 cells may trust one of before yet") {
		t.Errorf("before: %+v", first)
	}
	if none := run(t, nil, "ca", "drop"); none.failed != nil || !strings.Contains(none.err, "not being rotated") {
		t.Errorf("there is nothing to drop: %+v", none)
	}
	begun := run(t, nil, "ca", "rotate")
	if begun.failed != nil || !strings.Contains(begun.err, "has begun") || is.Before == nil || !anew.begun(t) {
		t.Errorf("to rotate it, or Kip did not begin anew: %+v", begun)
	}
	if again := run(t, nil, "ca", "rotate"); again.failed == nil || !strings.Contains(again.err, "already") || len(anew) > 0 {
		t.Errorf("a second rotation: %+v", again)
	}
	is.Waits, is.Shown = "2 cells of now would be out of reach", "two"
	is.Unmoved = []adminapi.UnmovedCell{
		{Cell: "cell-a", Pod: apiv1.PodReference{Namespace: "ns", Name: "p"}, Why: "it is not connected\x1b[2J"},
		{Cell: "cell-b", Why: "it is stopped"},
	}
	shown := run(t, nil, "ca")
	if shown.failed != nil || !strings.Contains(shown.err, "would be out of reach") {
		t.Errorf("in the rotation: %+v", shown)
	}
	golden(t, "ca", shown.out)
	asked := run(t, nil, "ca", "drop")
	if asked.failed == nil || !strings.Contains(asked.err, "--yes two ends 2 cells") || len(is.Unmoved) != 2 || asked.out != shown.out {
		t.Errorf("without --yes: %+v", asked)
	}
	other := run(t, nil, "ca", "drop", "--yes", "one")
	if other.failed == nil || !strings.Contains(other.err, "look again") || len(is.Unmoved) != 2 {
		t.Errorf("for another list: %+v", other)
	}
	done := run(t, nil, "ca", "drop", "--yes", "two")
	if done.failed != nil || !strings.Contains(done.err, "2 cells will be ended") || !strings.Contains(done.out, "cell-b") ||
		len(is.Unmoved) != 0 {
		t.Errorf("with --yes: %+v", done)
	}
	is.Waits = ""
	if last := run(t, nil, "ca"); last.failed != nil || !strings.Contains(last.err, "dropped in a moment") {
		t.Errorf("then: %+v", last)
	}
}
