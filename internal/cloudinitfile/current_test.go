package cloudinitfile

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloudconfig"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
	testclock "k8s.io/utils/clock/testing"
)

// cellList are the cells of a Kip that has no others.
type cellList []cells.Cell

func (l *cellList) List() []cells.Cell { return *l }

// ofFile is a cell that was launched with a content.
func ofFile(content string) cells.Cell {
	return cells.Cell{Launch: &cells.Launch{CloudInit: cloudconfig.Digest([]byte(content))}}
}

// fileWorld is a Kip with a cloud-init file.
type fileWorld struct {
	*Loop
	t     *testing.T
	path  string
	cells cellList
	clock *testclock.FakeClock
	said  []string
	heard chan string // gets the reason of each Event instead; nil for none
}

func newFileWorld(t *testing.T, st *store.Store, content string, keys ...byte) *fileWorld {
	t.Helper()
	w := &fileWorld{t: t, path: filepath.Join(t.TempDir(), "file"), clock: testclock.NewFakeClock(time.Unix(1e9, 0))}
	w.write(content)
	w.process(st, keys...)()
	return w
}

// process starts a Kip, which begins a term with each call of what it returns.
func (w *fileWorld) process(st *store.Store, keys ...byte) (begin func()) {
	t := w.t
	t.Helper()
	source := Source{Path: w.path}
	atStart, err := source.Read()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Source:  source,
		AtStart: atStart,
		Store:   st,
		Sealer:  sealer(t, keys),
		Events:  w,
		Clock:   w.clock,
		Log:     silent,
	}
	return func() {
		t.Helper()
		o, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.Loop = NewLoop(o, &w.cells, watchdog.New(w.clock, silent))
	}
}

// Report notes an Event.
func (w *fileWorld) Report(e events.Event) {
	if w.heard != nil {
		w.heard <- e.Reason
		return
	}
	w.said = append(w.said, e.Reason+": "+e.Message)
}

var silent = slog.New(slog.DiscardHandler)

// sealer seals by keys of these bytes.
func sealer(t *testing.T, keys []byte) *pki.Sealer {
	t.Helper()
	var all [][]byte
	for _, b := range keys {
		all = append(all, []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))))
	}
	s, err := pki.NewSealer(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// looks looks at the file as often as it takes to have it count.
func (w *fileWorld) looks() {
	for range 2 {
		w.look(w.t.Context())
	}
}

// counts fails the test unless a content counts, and can be had.
func (w *fileWorld) counts(content string) {
	w.t.Helper()
	if got, err := w.Document(w.t.Context(), w.Digest()); string(got) != content || err != nil {
		w.t.Errorf("%q counts (%v), want %q", got, err, content)
	}
}

func (w *fileWorld) write(content string) {
	w.t.Helper()
	if err := os.WriteFile(w.path, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// document returns a content by its digest.
func (w *fileWorld) document(content string) (string, error) {
	got, err := w.Document(w.t.Context(), cloudconfig.Digest([]byte(content)))
	return string(got), err
}

const (
	fileOne = "#cloud-config\nruncmd: [one]\n"
	fileTwo = "#cloud-config\nruncmd: [two, sesame]\n"
)

func TestACloudInitFileThatChangesCountsForTheNextCellAndABadOneForNone(t *testing.T) {
	w := newFileWorld(t, store.Memory(nil), fileOne)
	w.look(t.Context())
	if len(w.said) != 0 || w.Digest() != cloudconfig.Digest([]byte(fileOne)) {
		t.Fatalf("at first: %v", w.said)
	}
	w.write("#cloud-config\nruncmd: sesame\n")
	for range 3 {
		w.look(t.Context())
	}
	want := "CloudInitInvalid: The cloud-init file is wrong, so new cells use the last good one (" + cloudconfig.Digest([]byte(fileOne))[:12]
	if len(w.said) != 1 || !strings.HasPrefix(w.said[0], want) || !strings.Contains(w.said[0], w.path+":2: runcmd: a text is not valid") ||
		strings.Contains(w.said[0], "sesame") {
		t.Errorf("said %q", w.said)
	}
	if got, err := w.document(fileOne); w.Digest() != cloudconfig.Digest([]byte(fileOne)) || got != fileOne || err != nil {
		t.Errorf("the last good one: %q, %v", got, err)
	}
	if err := os.Remove(w.path); err != nil {
		t.Fatal(err)
	}
	w.look(t.Context())
	w.write(fileTwo)
	w.looks()
	if w.Digest() != cloudconfig.Digest([]byte(fileTwo)) || len(w.said) != 2 || !strings.HasPrefix(w.said[1], "CloudInitChanged: ") {
		t.Errorf("said %q", w.said)
	}
	for _, content := range []string{fileOne, fileTwo} {
		if got, err := w.document(content); got != content || err != nil {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
	if _, err := w.document("another"); err == nil || !strings.Contains(err.Error(), "it is not in the store") {
		t.Errorf("one that is not stored: %v", err)
	}
}

func TestContentsOfTheCloudInitFileAreKeptAsLongAsACellNamesThem(t *testing.T) {
	w := newFileWorld(t, store.Memory(nil), fileOne)
	w.cells = cellList{ofFile(fileOne), {}}
	w.write(fileTwo)
	w.looks()
	pass := func() {
		for range 3 {
			w.forget(t.Context())
			w.clock.Step(keptFor)
		}
	}
	pass()
	if got, err := w.document(fileOne); got != fileOne {
		t.Fatalf("a cell names it: %q, %v", got, err)
	}
	w.cells = nil
	w.forget(t.Context())
	w.clock.Step(keptFor - time.Second)
	w.forget(t.Context())
	if got, err := w.document(fileOne); got != fileOne {
		t.Fatalf("a launch may be stored that names it: %q, %v", got, err)
	}
	pass()
	if _, err := w.document(fileOne); err == nil {
		t.Error("it is kept for nobody")
	}
	if got, err := w.document(fileTwo); got != fileTwo {
		t.Errorf("the next launch names it: %q, %v", got, err)
	}
}

func TestTheCloudInitFileIsSealedInTheStoreByTheFirstKey(t *testing.T) {
	st := store.Memory(nil)
	raw := func() (all [][]byte) {
		t.Helper()
		err := st.List(t.Context(), prefix, func(key string, _ []byte, _ int64) error {
			var sealed []byte
			_, err := st.Get(t.Context(), key, &sealed)
			all = append(all, sealed)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	const first, second = 1, 2
	newFileWorld(t, st, fileTwo, first)
	if all := raw(); len(all) != 1 || bytes.Contains(all[0], []byte("sesame")) {
		t.Fatalf("it is stored as %q", all)
	}
	newFileWorld(t, st, fileOne, second, first) // a key is put before it: all is sealed anew
	w := newFileWorld(t, st, fileOne, second)
	if got, err := w.document(fileTwo); got != fileTwo {
		t.Errorf("after the first key is gone: %q, %v", got, err)
	}
	if _, err := Open(t.Context(), Config{Store: st, Sealer: sealer(t, []byte{first})}); !errors.Is(err, pki.ErrSealed) {
		t.Errorf("with a key that is not that of the store: %v", err)
	}
}

func TestWhatIsWrongWithTheCloudInitFileIsToldAtTheStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	for content, want := range map[string]string{
		fileOne:                           "",
		"runcmd: [one]":                   "cells.cloudInitFile: " + file + ":1: the first line is neither",
		"#cloud-config\npackages: [vim]":  "cells.cloudInitFile: " + file + ":2: packages: Kip does not carry out",
		"#cloud-config\nusers: [ann]":     "want no users",
		"#!" + strings.Repeat("x", 70000): "cells.cloudInitFile: " + file + ":1: it has 70002 bytes: want at most 65536",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Source{Path: file, KipsImage: true}.Read()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", content, err, want)
		}
	}
	if err := os.WriteFile(file, []byte("#cloud-config\nusers: [ann]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := (Source{Path: file}).Read(); err != nil || !f.login {
		t.Errorf("on a cloud with images of one's own: %v", err)
	}
}

func TestThatTheCloudInitFileDoesNotFitIsToldTheOperatorNowAndThen(t *testing.T) {
	w := newFileWorld(t, store.Memory(nil), fileOne)
	for range 3 {
		w.Unfit("nobody can log in")
	}
	w.Unfit("another image")
	if len(w.said) != 2 || !strings.HasPrefix(w.said[0], "CloudInitUnfit: The cloud-init file ("+w.Digest()[:12]) ||
		!strings.HasSuffix(w.said[0], ": nobody can log in") {
		t.Errorf("said %q", w.said)
	}
	w.clock.Step(tellAgain)
	w.Unfit("nobody can log in")
	if len(w.said) != 3 {
		t.Errorf("an hour later it is said %d times", len(w.said))
	}
	for n := range 3 * maxUnfit {
		w.Unfit(fmt.Sprint(n))
	}
	if len(w.unfit) > maxUnfit {
		t.Errorf("%d reasons are remembered", len(w.unfit))
	}
}

func TestTheCloudInitFileIsFollowedUntilKipEnds(t *testing.T) {
	w := newFileWorld(t, store.Memory(nil), fileOne)
	ctx, cancel := context.WithCancel(t.Context())
	w.heard = make(chan string, 1)
	w.write(fileTwo)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	for !w.clock.HasWaiters() { // its ticker is there
		time.Sleep(time.Millisecond)
	}
	w.clock.Step(every)
	if reason := <-w.heard; reason != "CloudInitChanged" {
		t.Errorf("it says %s", reason)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestACloudInitFileCountsOnceTwoLooksFindTheSame(t *testing.T) {
	w := newFileWorld(t, store.Memory(nil), fileOne)
	const half = "#cloud-config\nruncmd: [two]\n" // of fileTwo as it is being written
	for _, content := range []string{half, fileOne, "#cloud-config\nrunc", fileTwo} {
		w.write(content)
		w.look(t.Context())
		w.counts(fileOne)
	}
	w.look(t.Context())
	w.counts(fileTwo)
	if len(w.said) != 1 || !strings.HasPrefix(w.said[0], "CloudInitChanged: ") {
		t.Errorf("said %q", w.said)
	}
}

func TestACloudInitFileThatIsGoneIsToldEachHourAndCountsOn(t *testing.T) {
	w := newFileWorld(t, store.Memory(nil), fileOne)
	if err := os.Remove(w.path); err != nil {
		t.Fatal(err)
	}
	w.look(t.Context())
	if len(w.said) != 0 {
		t.Fatalf("while it may be being replaced: %q", w.said)
	}
	for n := range 3 {
		w.looks()
		w.clock.Step(tellAgain - time.Second)
		w.looks()
		if len(w.said) != n+1 || !strings.HasPrefix(w.said[n], "CloudInitInvalid: The cloud-init file is gone, so new cells use the last good one") {
			t.Fatalf("in hour %d: said %q", n, w.said)
		}
		w.clock.Step(time.Second)
	}
	w.counts(fileOne)
	w.write(fileOne)
	w.looks()
	w.clock.Step(tellAgain)
	w.looks()
	if len(w.said) != 3 {
		t.Errorf("once it is there again: said %q", w.said)
	}
}

func TestANewTermGoesOnWithTheCloudInitFileThatCounted(t *testing.T) {
	st := store.Memory(nil)
	w := newFileWorld(t, st, fileOne)
	const fileThree = "#cloud-config\nruncmd: [three]\n"
	first := w.process(st)
	first()
	w.write(fileTwo)
	w.looks()
	first() // as when the CA is rotated
	w.counts(fileTwo)
	second := w.process(st) // which takes over later
	w.write(fileThree)
	w.looks()
	w.counts(fileThree)
	w.said = nil
	for content, what := range map[string]string{"#cloud-config\nruncmd: 1\n": "is wrong", "": "is gone"} {
		w.write(content)
		if content == "" {
			if err := os.Remove(w.path); err != nil {
				t.Fatal(err)
			}
		}
		for _, term := range []func(){first, second} {
			w.said = nil
			term()
			w.counts(fileThree)
			w.look(t.Context())
			w.looks()
			w.counts(fileThree)
			if len(w.said) != 1 || !strings.Contains(w.said[0], "The cloud-init file "+what) {
				t.Errorf("a file that %s: said %q", what, w.said)
			}
		}
	}
	// One that nobody has seen before may be half of one.
	w.write(fileOne + "# changed\n")
	second()
	w.counts(fileThree)
	w.look(t.Context())
	w.counts(fileOne + "# changed\n")
}
