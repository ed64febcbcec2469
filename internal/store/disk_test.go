package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// small mounts a tmpfs of that many MiB.
func small(t *testing.T, mib int) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes what is left of the disk of dir.
func fill(t *testing.T, dir string) (ballast string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 100 { // etcd may claim some in between
		var disk unix.Statfs_t
		if err := unix.Statfs(dir, &disk); err != nil {
			t.Fatal(err)
		}
		if err = unix.Fallocate(int(f.Fd()), 0, 0, int64(disk.Bavail)*disk.Bsize); err == nil {
			return f.Name()
		}
	}
	t.Fatal(err)
	return ""
}

func TestWritesFailOnAFullDiskAndWorkAgainWhenThereIsRoom(t *testing.T) {
	dir := small(t, 512)
	s := open(t, dir)
	first := put(t, s, "a", "1", 0)
	ballast := fill(t, dir)
	for range 3 {
		_, err := s.Put(t.Context(), "a", item{"2"}, first)
		if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "0 MiB left") {
			t.Fatalf("a write on a full disk: %v", err)
		}
	}
	if got := contents(t, s); got != "a=1" {
		t.Fatalf("on a full disk the store reads %q", got)
	}
	if err := s.Ready(t.Context()); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("on a full disk the store is ready: %v", err)
	}
	if err := s.Healthy(t.Context()); err != nil {
		t.Fatalf("on a full disk the store cannot be read: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	put(t, s, "a", "2", first)
	if err := s.Ready(t.Context()); err != nil {
		t.Fatalf("with room again the store is not ready: %v", err)
	}
}

// childDir makes this process one that fills the disk of the folder that it names.
const childDir = "STORE_TEST_DIR"

func TestMain(m *testing.M) {
	if os.Getenv(childDir) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// TestKipSurvivesItsEtcdsDeath fills the disk under an etcd that is not held
// back, in a process of its own: what is left of a dead etcd cannot be closed.
func TestKipSurvivesItsEtcdsDeath(t *testing.T) {
	if dir := os.Getenv(childDir); dir != "" {
		dieOnAFullDisk(t, dir)
		return
	}
	dir := small(t, 320)
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), childDir+"="+dir)
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("the process with the full disk: %v\n%s", err, out)
	}
	t.Logf("%s", out)

	// Restarted with room, it has what was written and takes more.
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	var got item
	if revision, err := s.Get(t.Context(), "first", &got); err != nil || revision == 0 || got.Name != "kept" {
		t.Fatalf("after the restart: revision %d, %+v, %v", revision, got, err)
	}
	put(t, s, "second", "new", 0)
}

func dieOnAFullDisk(t *testing.T, dir string) {
	s, err := OpenEmbedded(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "first", "kept", 0)
	b := s.backend.(etcd)
	b.room = func() error { return nil }
	s.backend = b
	fill(t, dir)
	value := item{strings.Repeat("x", 1<<20)}
	for i := 0; ; i++ {
		if _, err = s.Put(t.Context(), fmt.Sprint(i), value, 0); err != nil {
			break
		}
		t.Log("wrote", i)
	}
	t.Log("a write says:", err)
	<-s.Done()
	t.Log("Err says:", s.Err())
	if !errors.Is(s.Err(), ErrNoSpace) {
		t.Fatal("that is not ErrNoSpace")
	}
	if _, err := s.Put(t.Context(), "later", value, 0); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("a write after the death: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("closing it: %v", err)
	}
}

func TestAStalledEtcdAnswersNobodyForLong(t *testing.T) {
	s := open(t, t.TempDir())
	revision := put(t, s, "a", "1", 0)
	b := s.backend.(etcd)
	patient := b
	b.timeout = 50 * time.Millisecond
	s.backend = b

	// What a commit that waits for the disk holds.
	tx := s.embedded.Backend().BatchTx()
	tx.LockOutsideApply()
	if _, err := s.Put(t.Context(), "a", item{"2"}, revision); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "put a in the store: etcd does not answer") {
		t.Errorf("a write to a stalled etcd: %v", err)
	}
	tx.Unlock()

	s.backend = patient
	// The write may be done, as the docs say, and later than any look: only another record's revision is known.
	put(t, s, "b", "3", 0)
}

func TestMaintainClearsTheSpaceAlarm(t *testing.T) {
	config := filepath.Join(t.TempDir(), "etcd.yaml")
	if err := os.WriteFile(config, []byte("name: kip\nquota-backend-bytes: 8388608\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenEmbedded(t.Context(), t.TempDir(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	log := slog.New(slog.DiscardHandler)

	// The same record again and again: all but the last are old revisions. etcd measures its
	// database at each commit of a batch, ten times a second: a fast disk takes much until then.
	const most = 1024
	var revision int64
	value := strings.Repeat("x", 256<<10)
	for i := range most {
		r, err := s.Put(t.Context(), "a", item{value}, revision)
		if errors.Is(err, ErrNoSpace) {
			if !strings.Contains(err.Error(), "quota-backend-bytes") {
				t.Fatalf("the error does not say what to do: %v", err)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if i == most-1 {
			t.Fatalf("%d MiB fit into a quota of 8", most/4)
		}
		revision = r
	}
	if _, err := s.Put(t.Context(), "b", item{"small"}, 0); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("a small write after the alarm: %v", err)
	}
	if err := s.Ready(t.Context()); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("after the alarm the store is ready: %v", err)
	}
	before, err := s.embeddedStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.maintain(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	after, err := s.embeddedStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the database had %d KiB, now %d", before.DbSize>>10, after.DbSize>>10)
	put(t, s, "b", "small", 0)
	if err := s.Ready(t.Context()); err != nil {
		t.Fatalf("after the alarm is cleared the store is not ready: %v", err)
	}
	var got item
	if _, err := s.Get(t.Context(), "a", &got); err != nil || got.Name != value {
		t.Fatalf("the record did not survive: %v", err)
	}

	// Full of what is still needed: the alarm stays, and the reason is said.
	for i := 0; err == nil; i++ {
		if i == most {
			t.Fatalf("%d MiB fit into a quota of 8", most/4)
		}
		if _, err = s.Put(t.Context(), fmt.Sprint("full", i), item{value}, 0); err != nil {
			err = s.maintain(t.Context(), log)
		}
	}
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "quota-backend-bytes") {
		t.Fatalf("with a quota full of records: %v", err)
	}
	if _, err = s.Put(t.Context(), "c", item{value}, 0); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("a write at the quota: %v", err)
	}
}

func TestMaintainGivesSpaceBackOnlyWhenItIsWorthIt(t *testing.T) {
	s := open(t, t.TempDir())
	log := slog.New(slog.DiscardHandler)
	revisions := make([]int64, defragmentAbove>>20+8)
	for i := range revisions {
		revisions[i] = put(t, s, fmt.Sprint(i), strings.Repeat("x", 1<<20), 0)
	}
	size := func() int64 {
		t.Helper()
		status, err := s.embeddedStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return status.DbSize
	}
	full := size()
	if err := s.maintain(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	if size() < full {
		t.Fatal("it rewrote a database that is in use")
	}
	for i, r := range revisions {
		if err := s.Delete(t.Context(), fmt.Sprint(i), r); err != nil {
			t.Fatal(err)
		}
	}
	p, err := s.backend.read(t.Context(), "x", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.backend.(etcd).client.Compact(t.Context(), p.at,
		clientv3.WithCompactPhysical()); err != nil { // what etcd does every five minutes
		t.Fatal(err)
	}
	// The pages are free once no earlier read transaction is open: etcd's own
	// last a moment.
	for deadline := time.Now().Add(time.Minute); size() > full/2; {
		if time.Now().After(deadline) {
			t.Fatalf("the database had %d MiB, and still has %d", full>>20, size()>>20)
		}
		s.embedded.Backend().ForceCommit()
		if err := s.maintain(t.Context(), log); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMaintainEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	log := slog.New(slog.DiscardHandler)
	both(t, func(t *testing.T, s *Store) {
		if err := s.Maintain(ctx, log); err != nil {
			t.Fatal(err)
		}
	})
}
