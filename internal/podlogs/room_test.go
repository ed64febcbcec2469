package podlogs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// saveIn keeps a log of a pod that is named as its UID.
func saveIn(t *testing.T, s *Saver, namespace string, uid types.UID, containers []string, log string) error {
	t.Helper()
	logs := map[string]string{}
	for _, c := range containers {
		logs[c] = log
	}
	return s.Save(t.Context(), namespace, string(uid), uid, containers, texts(logs))
}

// accounted looks that what is counted is what there is.
func accounted(t *testing.T, s *Saver) {
	t.Helper()
	var total int64
	for _, i := range s.pods {
		total += i.bytes()
	}
	if s.room.total != total || len(s.room.claims) != 0 {
		t.Errorf("%d bytes are counted and %d claims, of %d", s.room.total, len(s.room.claims), total)
	}
}

// As `kubectl logs` shows it of a node: what it writes in ten seconds may be beyond the size at which a log is rotated.
func TestALogOfANodesSizeIsKeptWhole(t *testing.T) {
	s, _ := open(t, Config{})
	for name, log := range map[string]string{
		"lines of a hundred bytes": strings.Repeat(at(1)+" "+strings.Repeat("x", 108)+"\n", 89_000),
		"short lines":              strings.Repeat(at(1)+" x\n", (10<<20)/len(at(1)+" stdout F x\n")), // as the file is that is rotated
		"one line":                 at(1) + " " + strings.Repeat("x", 10<<20) + "\n",
	} {
		if err := s.Save(t.Context(), "ns", "p", "u", []string{"main"}, texts(map[string]string{"main": log, "main/previous": log})); err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{"timestamps=true", "timestamps=true&previous=true"} {
			if code, got := get(s, "u", "main", query); code != 200 || got != log {
				t.Errorf("%s, ?%s: %d, %d bytes of %d", name, query, code, len(got), len(log))
			}
		}
		accounted(t, s)
	}
}

func TestNobodysLogsEvictWhatOthersHave(t *testing.T) {
	line := at(1) + " 12345678\n" // 40 bytes
	many := make([]string, 30)
	for i := range many {
		many[i] = fmt.Sprintf("c-%d", i)
	}
	for name, loud := range map[string]func(*Saver, func(time.Duration)){
		"many pods": func(s *Saver, later func(time.Duration)) {
			for n := range 50 {
				later(time.Second)
				if err := saveIn(t, s, "loud", types.UID(fmt.Sprintf("loud-%d", n)), []string{"main"}, line); err != nil {
					t.Error(err)
				}
			}
		},
		"many containers": func(s *Saver, _ func(time.Duration)) {
			if err := saveIn(t, s, "loud", "loud", many, line); err != nil {
				t.Error(err)
			}
		},
		"many pods of many containers": func(s *Saver, later func(time.Duration)) {
			for n := range 5 {
				later(time.Second)
				if err := saveIn(t, s, "loud", types.UID(fmt.Sprintf("loud-%d", n)), many, line); err != nil {
					t.Error(err)
				}
			}
		},
		"long logs": func(s *Saver, _ func(time.Duration)) {
			if err := saveIn(t, s, "loud", "loud", []string{"main"}, strings.Repeat(line, 1000)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, clock := open(t, Config{MaxBytesTotal: 1000})
			later := func(d time.Duration) { clock.SetTime(clock.Now().Add(d)) }
			for n := range 5 {
				later(time.Second)
				if err := saveIn(t, s, fmt.Sprintf("quiet-%d", n), types.UID(fmt.Sprint(n)), []string{"main"}, line); err != nil {
					t.Fatal(err)
				}
			}
			loud(s, later)
			for n := range 5 {
				if _, got := get(s, types.UID(fmt.Sprint(n)), "main", "timestamps=true"); got != line {
					t.Errorf("the log of quiet-%d is %q", n, got)
				}
			}
			if s.room.total > 1000 || s.room.ofNamespace["loud"] < 700 {
				t.Errorf("%d bytes are kept, %d of who has many", s.room.total, s.room.ofNamespace["loud"])
			}
			accounted(t, s)
			// And who comes later has its share.
			if err := saveIn(t, s, "late", "late", []string{"main"}, line); err != nil {
				t.Error(err)
			}
			if _, got := get(s, "late", "main", "timestamps=true"); got != line {
				t.Errorf("the log of who comes later is %q", got)
			}
		})
	}
}

func TestAPodHasSoMuchRoom(t *testing.T) {
	line := at(1) + " 12345678\n" // 40 bytes
	s, _ := open(t, Config{MaxBytesPerPod: 100})
	if err := saveIn(t, s, "ns", "u", []string{"a", "b", "c"}, line); err != nil {
		t.Fatal(err)
	}
	if _, got := get(s, "u", "b", ""); got != "12345678\n" {
		t.Errorf("what fits is %q", got)
	}
	if code, got := get(s, "u", "c", ""); code != 200 || !strings.Contains(got, "1 lines, 40 bytes, before this are left out") {
		t.Errorf("what does not is %d %q", code, got)
	}
	accounted(t, s)
}

// What is saved at the same time is reserved, and who has most gives way also while it is being saved.
func TestRoomIsReservedBeforeItIsWritten(t *testing.T) {
	line := at(1) + " 12345678\n" // 40 bytes
	s, _ := open(t, Config{MaxBytesTotal: 400})
	written, read := io.Pipe()
	saved := make(chan error, 1)
	go func() {
		fetch := func(_ context.Context, _ string, previous bool) (io.ReadCloser, error) {
			if previous {
				return nil, &NoLogError{Answer: "none"}
			}
			return written, nil
		}
		saved <- s.Save(context.Background(), "loud", "p", "loud", []string{"main"}, fetch)
	}()
	// More than is buffered, so that a part is in the file.
	if _, err := io.WriteString(read, strings.Repeat(line, 8000)); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []types.UID{"a", "b"} {
		if err := saveIn(t, s, "quiet", uid, []string{"main"}, strings.Repeat(line, 4)); err != nil {
			t.Fatal(err)
		}
		if s.room.total > 400 {
			t.Errorf("%d bytes are reserved", s.room.total)
		}
	}
	read.Close()
	if err := <-saved; !errors.Is(err, errTaken) {
		t.Errorf("of who had most: %v", err)
	}
	for _, uid := range []types.UID{"a", "b"} {
		if _, got := get(s, uid, "main", "timestamps=true"); got != strings.Repeat(line, 4) {
			t.Errorf("%s is %q", uid, got)
		}
	}
	accounted(t, s)
}

// The store may be on the disk of the logs.
func TestLogsLeaveRoomOnTheDisk(t *testing.T) {
	line := at(1) + " 12345678\n" // 40 bytes
	dir := t.TempDir()
	var is func(string, *unix.Statfs_t) error
	var logged bytes.Buffer
	s, clock := open(t, Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&logged, nil)),
		Statfs: func(path string, disk *unix.Statfs_t) error {
			if path != dir {
				t.Errorf("what is free is asked of %s, and logs are in %s", path, dir)
			}
			return is(path, disk)
		}})
	for _, c := range []struct {
		uid  types.UID
		disk func(string, *unix.Statfs_t) error
		kept string
		said bool
	}{
		{"a", hasFree(100), "a", false},
		{"b", hasFree(100), "ab", false},
		{"c", hasFree(99), "bc", true},
		{"d", hasFree(0), "cd", true},
		{"e", func(string, *unix.Statfs_t) error { return unix.EIO }, "cde", true},
		{"f", aTerabyteWithFree(10 << 30), "cdef", true},
		{"g", aTerabyteWithFree(10<<30 - 1), "defg", true},
	} {
		is = c.disk
		clock.SetTime(clock.Now().Add(diskCheck))
		if err := saveIn(t, s, "ns", c.uid, []string{"main"}, line); err != nil {
			t.Fatal(err)
		}
		var kept []string
		for uid := range s.pods {
			kept = append(kept, string(uid))
		}
		slices.Sort(kept)
		if got := strings.Join(kept, ""); got != c.kept {
			t.Errorf("after the log of %s those of %q are kept, want %q", c.uid, got, c.kept)
		}
		if said := strings.Contains(logged.String(), "the disk is nearly full"); said != c.said {
			t.Errorf("after the log of %s Kip has warned of the disk: %t, want %t", c.uid, said, c.said)
		}
	}
	accounted(t, s)
}

// A log of which nothing is kept says which bound that is, since the log itself was not too long.
func TestALogThatHasNoRoomSaysWhichBoundThatIs(t *testing.T) {
	line := at(1) + " 12345678\n" // 40 bytes
	for name, c := range map[string]struct {
		cfg        Config
		containers []string
		want       string
	}{
		"the disk": {
			cfg: Config{Statfs: hasFree(99)}, containers: []string{"z"},
			want: "the disk of Kip's data folder is nearly full: 405504 of its 4096000 bytes are free, and logs leave 409600 free",
		},
		"the pod": {
			cfg: Config{MaxBytesPerPod: 40}, containers: []string{"a", "z"}, want: "Kip keeps at most 40 bytes of the logs of a pod",
		},
		"all": {
			cfg: Config{MaxBytesTotal: 40}, containers: []string{"a", "z"}, want: "Kip keeps at most 40 bytes of logs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := open(t, c.cfg)
			if err := saveIn(t, s, "ns", "u", c.containers, line); err != nil {
				t.Fatal(err)
			}
			_, got := get(s, "u", "z", "")
			if !strings.Contains(got, c.want) || !strings.Contains(got, "; 1 lines, 40 bytes, before this are left out]") ||
				strings.Contains(got, "longer") {
				t.Errorf("the log is %q, want %q", got, c.want)
			}
			accounted(t, s)
		})
	}
}

// A file system that answers slowly holds up all logs.
func TestTheDiskIsAskedOnceASecond(t *testing.T) {
	asked := 0
	s, clock := open(t, Config{Statfs: func(path string, disk *unix.Statfs_t) error {
		asked++
		return hasFree(1000)(path, disk)
	}})
	for _, c := range []struct {
		later time.Duration
		asked int
	}{{0, 1}, {diskCheck - 1, 1}, {1, 2}, {-time.Hour, 3}} { // somebody may set a clock back
		clock.SetTime(clock.Now().Add(c.later))
		if err := saveIn(t, s, "ns", "u", []string{"a", "b"}, strings.Repeat(at(1)+" 12345678\n", 8000)); err != nil {
			t.Fatal(err)
		}
		if asked != c.asked {
			t.Errorf("%v later the disk was asked %d times, want %d", c.later, asked, c.asked)
		}
	}
}

// comes is a log of which so much comes each second.
type comes struct {
	left, each int
	now        int // that came, and is not read
	ctx        context.Context
}

func (c *comes) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	if c.now == 0 {
		select {
		case <-time.After(time.Second):
		case <-c.ctx.Done():
			return 0, context.Cause(c.ctx)
		}
		c.now = min(c.left, c.each)
	}
	n := min(len(p), c.now)
	c.left -= n
	c.now -= n
	return n, nil
}

func TestASaveTakesLongOnlyWhileLogsCome(t *testing.T) {
	const room = 64 << 20
	for name, c := range map[string]struct {
		all, each int // bytes, and those of a second
		takes     time.Duration
		whole     bool
	}{
		"short":          {all: 1 << 10, each: 1 << 10, takes: time.Second, whole: true},
		"slow":           {all: 1 << 20, each: 1 << 10, takes: SaveTimeout},
		"too slow":       {all: room, each: leastRate / 4, takes: SaveTimeout + 9*time.Second}, // the tenth MiB comes after 40 s
		"long":           {all: room, each: leastRate, takes: room / leastRate * time.Second, whole: true},
		"without an end": {all: 1 << 30, each: leastRate, takes: SaveTimeout + room/leastRate*time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, p, cancel := withPatience(t.Context(), SaveTimeout, room)
			defer cancel()
			began := time.Now()
			_, err := io.Copy(io.Discard, p.reader(&comes{left: c.all, each: c.each, ctx: ctx}))
			if took := time.Since(began); took != c.takes || (err == nil) != c.whole || err != nil && !errors.Is(err, errSlow) {
				t.Errorf("%s: %v after %v, want %v", name, err, took, c.takes)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, p, cancel := withPatience(t.Context(), SaveTimeout, 1<<30)
		defer cancel()
		for range 100 { // 200 MiB of 2 MiB a second
			time.Sleep(time.Second)
			p.came(2 << 20)
		}
		if err := ctx.Err(); err != nil {
			t.Errorf("while logs come: %v", err)
		}
		time.Sleep(SaveTimeout)
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), errSlow) {
			t.Errorf("when none come any more: %v", context.Cause(ctx))
		}
	})
}
