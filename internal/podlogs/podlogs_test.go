package podlogs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/agentapi"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// at is the time of a line, s seconds before noon.
func at(s int) string { return noon.Add(-time.Duration(s) * time.Second).Format(timeFormat) }

func open(t *testing.T, c Config) (*Saver, *clocktesting.FakePassiveClock) {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(noon)
	c.Clock = clock
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	if c.Statfs == nil {
		c.Statfs = hasFree(1000)
	}
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return s, clock
}

// hasFree is what a disk of a thousand blocks says that has so many for whoever is not root.
func hasFree(blocks uint64) func(string, *unix.Statfs_t) error {
	return func(_ string, disk *unix.Statfs_t) error {
		disk.Bsize, disk.Blocks, disk.Bfree, disk.Bavail = 4096, 1000, 1000, blocks
		return nil
	}
}

// aTerabyteWithFree is what a disk of a terabyte says that has so many bytes for whoever is not root.
func aTerabyteWithFree(bytes uint64) func(string, *unix.Statfs_t) error {
	return func(_ string, disk *unix.Statfs_t) error {
		disk.Bsize, disk.Blocks, disk.Bfree, disk.Bavail = 1, 1<<40, 1<<40, bytes
		return nil
	}
}

// texts is a Fetch of logs by "container" or "container/previous".
func texts(logs map[string]string) Fetch {
	return func(_ context.Context, container string, previous bool) (io.ReadCloser, error) {
		key := container
		if previous {
			key += "/previous"
		}
		text, ok := logs[key]
		if !ok {
			return nil, &NoLogError{Answer: fmt.Sprintf("%s has no log", key)}
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}
}

func save(t *testing.T, s *Saver, uid types.UID, logs map[string]string) {
	t.Helper()
	if err := s.Save(t.Context(), "ns", "pod-"+string(uid), uid, []string{"main"}, texts(logs)); err != nil {
		t.Fatal(err)
	}
}

func get(s *Saver, uid types.UID, container, query string) (int, string) {
	r := httptest.NewRequest("GET", "/containerLogs/ns/pod/"+container+"?"+query, nil)
	w := httptest.NewRecorder()
	s.Serve(w, r, uid, container)
	return w.Code, w.Body.String()
}

// The wanted answers are those of the kubelet for the same log: tail first (on
// the whole log), then since (inclusive), then the limit on what is written.
func TestServeAnswersEachOptionAsTheKubelet(t *testing.T) {
	s, _ := open(t, Config{})
	full := at(40) + " one\n" + at(30) + " two\n" + at(20) + " \n" + at(10) + " four words and  blanks\n"
	save(t, s, "u", map[string]string{"main": full, "main/previous": at(99) + " before\n"})

	for query, want := range map[string]string{
		"":                 "one\ntwo\n\nfour words and  blanks\n",
		"timestamps=true":  full,
		"timestamps=false": "one\ntwo\n\nfour words and  blanks\n",
		"follow=true":      "one\ntwo\n\nfour words and  blanks\n",
		"tailLines=0":      "",
		"tailLines=1":      "four words and  blanks\n",
		"tailLines=3":      "two\n\nfour words and  blanks\n",
		"tailLines=100":    "one\ntwo\n\nfour words and  blanks\n",
		"tail=1":           "four words and  blanks\n",
		"tail=all":         "one\ntwo\n\nfour words and  blanks\n",
		"sinceSeconds=30":  "two\n\nfour words and  blanks\n",
		"sinceSeconds=29":  "\nfour words and  blanks\n",
		"sinceSeconds=1":   "",

		"sinceSeconds=9300000000&timestamps=true":          full,
		"sinceSeconds=9223372036854775807&timestamps=true": full,

		"sinceTime=" + at(20)[:19] + "Z":             "\nfour words and  blanks\n",
		"tailLines=2&sinceSeconds=15":                "four words and  blanks\n",
		"tailLines=1&sinceSeconds=5":                 "",
		"limitBytes=5":                               "one\nt",
		"limitBytes=4&tailLines=1":                   "four",
		"limitBytes=35&timestamps=true":              full[:35],
		"limitBytes=1000":                            "one\ntwo\n\nfour words and  blanks\n",
		"limitBytes=3&sinceSeconds=30":               "two",
		"previous=true":                              "before\n",
		"previous=true&timestamps=true":              at(99) + " before\n",
		"stream=All":                                 "one\ntwo\n\nfour words and  blanks\n",
		"tailLines=1&timestamps=true&limitBytes=999": at(10) + " four words and  blanks\n",
	} {
		if code, got := get(s, "u", "main", query); code != 200 || got != want {
			t.Errorf("?%s\n got %d %q\nwant 200 %q", query, code, got, want)
		}
	}
}

func TestServeRefusesAsTheKubelet(t *testing.T) {
	s, _ := open(t, Config{})
	save(t, s, "u", map[string]string{"main": at(1) + " x\n"})
	for _, c := range []struct {
		uid       types.UID
		container string
		query     string
		code      int
		says      string
	}{
		{"u", "main", "tailLines=-1", 422, "tailLines"},
		{"u", "main", "limitBytes=0", 422, "limitBytes"},
		{"u", "main", "sinceSeconds=0", 422, "sinceSeconds"},
		{"u", "main", "sinceSeconds=1&sinceTime=2026-07-01T00:00:00Z", 422, "at most one"},
		{"u", "main", "tailLines=many", 400, "unable to decode"},
		{"u", "main", "stream=Stdout", 400, "Stdout"},
		{"u", "main", "previous=true", 400, "main/previous has no log"},
		{"u", "side", "", 404, `container "side" not found in pod "pod-u"`},
		{"other", "main", "", 400, "not saved"},
		{"../u", "main", "", 400, "not saved"},
	} {
		if code, got := get(s, c.uid, c.container, c.query); code != c.code || !strings.Contains(got, c.says) {
			t.Errorf("%s/%s?%s: got %d %q, want %d and %q", c.uid, c.container, c.query, code, got, c.code, c.says)
		}
	}
}

func TestTheEndOfALongLogIsKeptAndSaysSo(t *testing.T) {
	s, _ := open(t, Config{MaxBytesPerContainer: 4 * 36})
	var log strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&log, "%s %04d\n", at(1000-i), i) // 36 bytes each
	}
	save(t, s, "u", map[string]string{"main": log.String()})
	code, got := get(s, "u", "main", "")
	want := "[kip: the log was longer than the 144 bytes that are kept; 996 lines, 35856 bytes, before this are left out]\n" +
		"0996\n0997\n0998\n0999\n"
	if code != 200 || got != want {
		t.Errorf("got %d %q\nwant %q", code, got, want)
	}
	if _, got := get(s, "u", "main", "tailLines=2"); got != "0998\n0999\n" {
		t.Errorf("tail: %q", got)
	}
	if _, got := get(s, "u", "main", "sinceSeconds=1"); got != "0999\n" {
		t.Errorf("since: %q", got)
	}
}

func TestALineLongerThanTheLimitIsCutAndSaysSo(t *testing.T) {
	s, _ := open(t, Config{MaxBytesPerContainer: 100 + maxNote})
	save(t, s, "u", map[string]string{"main": at(2) + " first\n" + at(1) + " " + strings.Repeat("x", 200_000) + "\n"})
	_, got := get(s, "u", "main", "tailLines=1")
	want := strings.Repeat("x", 100-31) + " [kip: 199932 bytes of this line were left out]\n"
	if got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestALogThatBreaksOffIsKeptSaysSoAndIsCompletedByALaterSave(t *testing.T) {
	s, _ := open(t, Config{})
	broken := errors.New("connection lost")
	fetch := func(_ context.Context, _ string, previous bool) (io.ReadCloser, error) {
		if previous {
			return nil, broken
		}
		return io.NopCloser(io.MultiReader(strings.NewReader(at(3)+" one\n"+at(2)+" tw"), iotest.ErrReader(broken))), nil
	}
	err := s.Save(t.Context(), "ns", "p", "u", []string{"main"}, fetch)
	if !errors.Is(err, broken) {
		t.Fatalf("Save: %v, want it to say that the connection was lost", err)
	}
	if _, got := get(s, "u", "main", ""); got != "one\ntw\n[kip: the rest of the log could not be read from the cell: connection lost]\n" {
		t.Errorf("after the break: %q", got)
	}
	if code, got := get(s, "u", "main", "previous=true"); code != 400 || !strings.Contains(got, "not found") {
		t.Errorf("previous, never read: %d %q", code, got)
	}

	whole := map[string]string{"main": at(3) + " one\n" + at(2) + " two\n"}
	save(t, s, "u", whole)
	if _, got := get(s, "u", "main", ""); got != "one\ntwo\n" {
		t.Errorf("after the second Save: %q", got)
	}
	// A third that breaks does not spoil what is whole.
	if err := s.Save(t.Context(), "ns", "p", "u", []string{"main"}, fetch); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if _, got := get(s, "u", "main", ""); got != "one\ntwo\n" {
		t.Errorf("after the third Save: %q", got)
	}
}

func TestAContainerThatNeverStartedAnswersWhatTheKubeletSaid(t *testing.T) {
	s, _ := open(t, Config{})
	save(t, s, "u", nil)
	if code, got := get(s, "u", "main", ""); code != 400 || got != "main has no log\n" {
		t.Errorf("got %d %q", code, got)
	}
}

func TestLogsSurviveARestartAndAreForTheirOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	s, _ := open(t, Config{Dir: dir})
	save(t, s, "u", map[string]string{"main": at(1) + " x\n"})

	// What a crash leaves: a pod without an index, a file half written.
	half := filepath.Join(dir, "half")
	if err := errors.Join(os.Mkdir(half, 0o700), os.WriteFile(filepath.Join(half, "main.log"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "u", tempPrefix+"1"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, Config{Dir: dir})
	if code, got := get(s, "u", "main", ""); code != 200 || got != "x\n" {
		t.Errorf("after a restart: %d %q", code, got)
	}
	var found []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		found = append(found, fmt.Sprintf("%s %v", rel, info.Mode()))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{". drwx------", "u drwx------", "u/index.json -rw-------", "u/main.log -rw-------"}
	if !slices.Equal(found, want) {
		t.Errorf("the folder holds %q, want %q", found, want)
	}
}

func TestOpenRemovesNothingFromAFolderThatIsNotItsOwn(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "member", "snap.db")
	if err := errors.Join(os.Mkdir(filepath.Dir(precious), 0o700), os.WriteFile(precious, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil ||
		!strings.Contains(err.Error(), "folder of their own") {
		t.Errorf("Open: %v", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestTheOldestGoWhenThereIsTooMuch(t *testing.T) {
	s, clock := open(t, Config{MaxBytesTotal: 2 * 40})
	for i, uid := range []types.UID{"a", "b", "c"} {
		clock.SetTime(noon.Add(time.Duration(i) * time.Minute))
		save(t, s, uid, map[string]string{"main": at(1) + " 12345678\n"}) // 40 bytes
	}
	for uid, want := range map[types.UID]bool{"a": false, "b": true, "c": true} {
		if s.Has(uid) != want {
			t.Errorf("Has(%s) = %v", uid, !want)
		}
	}
	if _, err := os.Stat(filepath.Join(s.c.Dir, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the files of a are still there: %v", err)
	}
}

func TestWhoHasMostMakesRoom(t *testing.T) {
	s, clock := open(t, Config{MaxBytesTotal: 4 * 40})
	for n, pod := range []string{"quiet/a", "loud/b", "loud/c", "loud/d", "loud/e", "loud/f", "other/g"} {
		clock.SetTime(noon.Add(time.Duration(n) * time.Minute))
		namespace, uid, _ := strings.Cut(pod, "/")
		log := texts(map[string]string{"main": at(1) + " 12345678\n"}) // 40 bytes
		if err := s.Save(t.Context(), namespace, uid, types.UID(uid), []string{"main"}, log); err != nil {
			t.Fatal(err)
		}
	}
	for uid, want := range map[types.UID]bool{"a": true, "b": false, "c": false, "d": false, "e": true, "f": true, "g": true} {
		if s.Has(uid) != want {
			t.Errorf("Has(%s) = %v", uid, !want)
		}
	}
}

// buffer is the file of a tail.
type buffer struct{ b []byte }

func (b *buffer) grow(n int64) (int64, string) { return n, "" }

func (b *buffer) WriteAt(p []byte, at int64) (int, error) {
	b.b = append(b.b, make([]byte, max(0, int(at)+len(p)-len(b.b)))...)
	return copy(b.b[at:], p), nil
}

func (b *buffer) ReadAt(p []byte, at int64) (int, error) { return bytes.NewReader(b.b).ReadAt(p, at) }

// kept is what is shown of a log, of which so much is kept.
func kept(t *testing.T, log io.Reader, max int64) (r run, shown string, file *buffer) {
	t.Helper()
	file = &buffer{}
	tail := &tail{file: file, max: max}
	broken := tail.read(log)
	r, err := tail.run(broken)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r.text(file))
	if err != nil {
		t.Fatal(err)
	}
	return r, string(b), file
}

// A cell may answer anything.
func TestALogOfManyLinesTakesItsBytes(t *testing.T) {
	const max = 1 << 20
	r, shown, file := kept(t, strings.NewReader(strings.Repeat("\n", 3*max)), max)
	if r.Bytes != max || len(file.b) != max+1 || !strings.Contains(shown, fmt.Sprintf("%d lines, %d bytes, before", 2*max, 2*max)) {
		t.Errorf("%d bytes in a file of %d: %.200q", r.Bytes, len(file.b), shown)
	}
}

func TestSweepRemovesWhatIsNotKeptOrTooOld(t *testing.T) {
	s, clock := open(t, Config{})
	save(t, s, "old", nil)
	clock.SetTime(noon.Add(time.Hour))
	save(t, s, "kept", nil)
	save(t, s, "deleted", nil)
	if err := s.Sweep(func(uid types.UID) bool { return uid != "deleted" }, 30*time.Minute); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[types.UID]bool{"old": false, "kept": true, "deleted": false} {
		if s.Has(uid) != want {
			t.Errorf("Has(%s) = %v", uid, !want)
		}
	}
	if err := errors.Join(s.Remove("kept"), s.Remove("kept")); err != nil {
		t.Errorf("Remove twice: %v", err)
	}
}

func TestNamesCannotLeaveTheFolder(t *testing.T) {
	s, _ := open(t, Config{})
	for _, c := range [][2]string{{"..", "main"}, {"", "main"}, {"a/b", "main"}, {"u", "../x"}, {"u", ".hidden"}} {
		if err := s.Save(t.Context(), "ns", "p", types.UID(c[0]), []string{c[1]}, texts(nil)); err == nil {
			t.Errorf("Save accepted uid %q, container %q", c[0], c[1])
		}
	}
	if err := s.Remove(".."); err == nil {
		t.Error("Remove accepted ..")
	}
}

func TestFromCellAsksTheKubeletWithTimes(t *testing.T) {
	var asked []string
	cell := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		switch r.URL.Path {
		case agentapi.PathKubelet + "/containerLogs/ns/p/main":
			fmt.Fprintf(w, "%s hello\n", at(1))
		case agentapi.PathKubelet + "/containerLogs/ns/p/late":
			http.Error(w, "is waiting to start", http.StatusBadRequest)
		default:
			http.Error(w, `container "lost" not found in pod "p"`, http.StatusNotFound)
		}
	}))
	defer cell.Close()
	conn := toServer{strings.TrimPrefix(cell.URL, "http://")}
	s, _ := open(t, Config{})
	err := s.Save(t.Context(), "ns", "p", "u", []string{"main", "late", "lost"}, FromCell(conn, "ns", "p"))
	if err == nil || !strings.Contains(err.Error(), "container lost") || strings.Contains(err.Error(), "late") {
		t.Errorf("Save: %v, want it to complain about lost alone", err)
	}
	if asked[0] != agentapi.PathKubelet+"/containerLogs/ns/p/main?timestamps=true" ||
		asked[1] != agentapi.PathKubelet+"/containerLogs/ns/p/main?previous=true&timestamps=true" {
		t.Errorf("asked %q", asked)
	}
	if _, got := get(s, "u", "main", ""); got != "hello\n" {
		t.Errorf("main: %q", got)
	}
	if code, got := get(s, "u", "late", ""); code != 400 || got != "is waiting to start\n" {
		t.Errorf("late: %d %q", code, got)
	}
	if code, got := get(s, "u", "lost", ""); code != 400 || !strings.Contains(got, "could not be read before its cell ended") {
		t.Errorf("lost: %d %q", code, got)
	}
}

func TestAKubeletThatDoesNotKnowItsPodYetIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		fetch := FromCell(tracked(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			if tries++; tries < 4 {
				http.Error(w, `pod "p" does not exist`, http.StatusNotFound)
			} else {
				fmt.Fprint(w, "hello")
			}
			return w.Result(), nil
		}), "ns", "p")
		log, err := fetch(t.Context(), "main", false)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(log); string(b) != "hello" || err != nil || tries != 4 {
			t.Errorf("%q after %d tries: %v", b, tries, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), SaveTimeout)
		defer cancel()
		if tries = -1 << 30; err == nil {
			_, err = fetch(ctx, "main", false)
		}
		if err == nil {
			t.Error("it does not end")
		}
	})
}

// toServer sends every request to one address.
type toServer struct{ addr string }

func (s toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host = s.addr
	return http.DefaultTransport.RoundTrip(r)
}

// FuzzSavedLogsNeverGrowBeyondTheirBound holds the bound of what is kept of a log, and
// those that a query sets on what is shown of it.
func FuzzSavedLogsNeverGrowBeyondTheirBound(f *testing.F) {
	long := at(1) + " " + strings.Repeat("x", 300)
	f.Add(at(1)+" hello\nwithout a time\n\n", uint16(1000), "tailLines=1&limitBytes=3")
	f.Add(at(3)+" a\n"+at(2)+" b\n"+at(1)+" no end", uint16(1000), "timestamps=true")
	f.Add(at(3)+" a\n"+at(2)+" b\n"+at(1)+" no end", uint16(1000), "tailLines=1")
	f.Add(strings.Repeat(at(2)+" x\n", 9), uint16(80), "timestamps=true")
	f.Add(strings.Repeat(at(2)+" x\n", 9), uint16(80), "tailLines=2")
	f.Add(long, uint16(50), "sinceSeconds=1&timestamps=true")
	f.Add(long+"\n"+at(0)+" short\n"+long, uint16(50), "tail=all&limitBytes=40")
	f.Add("\n\n\n", uint16(0), "tailLines=2&tailLines=3&stream=All&sinceTime="+at(1))
	for _, wrong := range []string{"tailLines=-1", "limitBytes=0", "sinceSeconds=0", "sinceSeconds=1&sinceTime=" + at(1), "sinceTime=x",
		"stream=Stdout", "tailLines=x"} {
		f.Add(at(1)+" x\n", uint16(100), wrong)
	}
	f.Fuzz(func(t *testing.T, log string, room uint16, query string) {
		max := int64(room) + 1
		r, saved, file := kept(t, strings.NewReader(log), max)
		if r.Bytes > max || int64(len(file.b)) > max+1 {
			t.Fatalf("kept %d bytes, of at most %d, in a file of %d", r.Bytes, max, len(file.b))
		}
		if int64(len(log)) <= max-maxNote && saved != log {
			t.Fatalf("a log that fits became %q", saved)
		}
		_, broken, _ := kept(t, io.MultiReader(strings.NewReader(log), iotest.ErrReader(errors.New("link down"))), max)
		before := saved
		if before != "" && !strings.HasSuffix(before, "\n") {
			before += "\n" // a last line without an end gets one
		}
		said, whole := strings.CutPrefix(broken, before)
		stamp, text, _ := strings.Cut(said, " ")
		if _, err := time.Parse(timeFormat, stamp); err != nil || !whole ||
			text != "[kip: the rest of the log could not be read from the cell: link down]\n" {
			t.Fatalf("a broken log became %q, without the break %q", broken, saved)
		}
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		o, code, err := parseOptions(q)
		if err != nil {
			if code != http.StatusBadRequest && code != http.StatusUnprocessableEntity {
				t.Fatalf("%q: %d, %v", query, code, err)
			}
			return
		}
		var shown bytes.Buffer
		if err := write(&shown, func() io.Reader { return strings.NewReader(saved) }, o, noon); err != nil {
			t.Fatal(err)
		}
		if o.LimitBytes != nil && int64(shown.Len()) > *o.LimitBytes {
			t.Fatalf("%q shows %d bytes", query, shown.Len())
		}
		lines := int64(bytes.Count(shown.Bytes(), []byte("\n")))
		if shown.Len() > 0 && !bytes.HasSuffix(shown.Bytes(), []byte("\n")) {
			lines++
		}
		if o.TailLines != nil && lines > *o.TailLines {
			t.Fatalf("%q shows %q", query, shown.String())
		}
		if all := o.LimitBytes == nil && o.SinceSeconds == nil && o.SinceTime == nil; all && o.Timestamps {
			if !strings.HasSuffix(saved, shown.String()) || o.TailLines == nil && shown.Len() != len(saved) {
				t.Fatalf("%q shows %q of %q", query, shown.String(), saved)
			}
		}
	})
}
