package podlogs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Bounds that hold when Config says nothing.
const (
	// DefaultMaxBytesPerContainer is twice the size at which a kubelet rotates a log, 10Mi (ContainerLogMaxSize in
	// pkg/kubelet/apis/config/v1beta1/defaults.go): it looks each ten seconds, and never again when the container has
	// ended, and the time of a line takes 31 bytes here.
	DefaultMaxBytesPerContainer = 20 << 20
	// DefaultMaxBytesPerPod has room for the longest logs of 50 containers.
	DefaultMaxBytesPerPod = 1 << 30
	// DefaultMaxBytesTotal has room for those of 500, as for twice the pods of a node (110, MaxPods in the same file) that
	// log without end, and one that ends again and again.
	DefaultMaxBytesTotal = 10 << 30
)

const (
	indexFile  = "index.json"
	tempPrefix = ".tmp-"
)

// Config says where logs are kept, and how much of them.
type Config struct {
	// Dir is made if it is missing. It is for one Saver alone.
	Dir string
	// MaxBytesPerContainer is how much of the end of a log is kept, for the
	// current and for the previous run each. 0: DefaultMaxBytesPerContainer.
	MaxBytesPerContainer int64
	// MaxBytesPerPod bounds the logs of a pod. 0: DefaultMaxBytesPerPod.
	MaxBytesPerPod int64
	// MaxBytesTotal bounds all files together; beyond it the logs that were
	// saved first are removed, of the namespace that has most: nobody's pods
	// take away what others' have said. Each byte is reserved before it is
	// written. 0: DefaultMaxBytesTotal.
	MaxBytesTotal int64
	Log           *slog.Logger
	Clock         clock.PassiveClock                           // optional
	Statfs        func(path string, disk *unix.Statfs_t) error // optional: what the file system of Dir has
}

// Saver keeps logs. Make it with Open. All methods are safe for concurrent use.
type Saver struct {
	c Config

	warning rate.Sometimes // that the disk is nearly full

	mu   sync.Mutex
	pods map[types.UID]index
	room room
	disk disk

	streams streams
}

// index is what is known of a pod's saved logs.
type index struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Saved     time.Time `json:"saved"`
	// Containers by name.
	Containers map[string]saved `json:"containers"`
}

// saved is what there is of one container.
type saved struct {
	Current  run `json:"current"`
	Previous run `json:"previous"`
}

// run is the log of one run of a container.
type run struct {
	Saved bool `json:"saved"`
	// Bytes are those of the log, File those of the file if they are others. The log is in it from Begin on, and goes on
	// at its beginning.
	Bytes int64 `json:"bytes,omitempty"`
	File  int64 `json:"file,omitempty"`
	Begin int64 `json:"begin,omitempty"`
	// Before and After are what is said of what is missing.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Answer is what the kubelet said instead of a log.
	Answer string `json:"answer,omitempty"`
}

// size is that of the file.
func (r run) size() int64 { return cmp.Or(r.File, r.Bytes) }

// kept reads the log in the file, without what is said of it.
func (r run) kept(file io.ReaderAt) io.Reader {
	first := min(r.Bytes, r.size()-r.Begin)
	return io.MultiReader(io.NewSectionReader(file, r.Begin, first), io.NewSectionReader(file, 0, r.Bytes-first))
}

// text reads all.
func (r run) text(file io.ReaderAt) io.Reader {
	return io.MultiReader(strings.NewReader(r.Before), r.kept(file), strings.NewReader(r.After))
}

func (i index) bytes() (n int64) {
	for _, c := range i.Containers {
		n += c.Current.size() + c.Previous.size()
	}
	return n
}

// NoLogError is what a Fetch returns when there is no such log, and asking again
// will not change that: the container never started, or has no previous run.
type NoLogError struct {
	// Answer is what `kubectl logs` would have been told.
	Answer string
}

func (e *NoLogError) Error() string { return e.Answer }

// Fetch opens the log of one run of a container, with the time before each line
// (timestamps=true).
type Fetch func(ctx context.Context, container string, previous bool) (io.ReadCloser, error)

// Open reads what the folder holds. Leftovers of an interrupted Save are
// removed.
func Open(c Config) (*Saver, error) {
	if c.Dir == "" || c.Log == nil {
		return nil, errors.New("saved logs: Dir and Log must be set")
	}
	s := &Saver{
		warning: rate.Sometimes{Interval: time.Minute},
		pods:    map[types.UID]index{},
		room:    room{ofNamespace: map[string]int64{}, ofPod: map[types.UID]int64{}, claims: map[*claim]bool{}},
		streams: streams{open: map[types.UID]map[*stream]bool{}, finishing: map[types.UID]*finishing{}},
	}
	s.streams.ended.L = &s.streams.mu
	if err := c.checkRoom(); err != nil {
		return nil, err
	}
	c.MaxBytesPerContainer = cmp.Or(c.MaxBytesPerContainer, DefaultMaxBytesPerContainer)
	c.MaxBytesPerPod = cmp.Or(c.MaxBytesPerPod, DefaultMaxBytesPerPod)
	c.MaxBytesTotal = cmp.Or(c.MaxBytesTotal, DefaultMaxBytesTotal)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Statfs == nil {
		c.Statfs = unix.Statfs
	}
	s.c = c
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("saved logs: %w", err)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("saved logs: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(c.Dir, e.Name())
		i, err := readIndex(dir)
		if err != nil {
			// Without an index there is no telling what the files are.
			if err := onlyLogs(dir); err != nil {
				return nil, fmt.Errorf("saved logs: %w", err)
			}
			c.Log.Warn("removing logs that were not saved in full", "dir", dir, "err", err)
			if err := os.RemoveAll(dir); err != nil {
				return nil, fmt.Errorf("saved logs: %w", err)
			}
			continue
		}
		if err := removeTemporary(dir); err != nil {
			return nil, fmt.Errorf("saved logs: %w", err)
		}
		uid := types.UID(e.Name())
		s.pods[uid] = i
		s.room.add(i.Namespace, uid, i.bytes())
	}
	return s, nil
}

func readIndex(dir string) (i index, err error) {
	b, err := os.ReadFile(filepath.Join(dir, indexFile))
	if err != nil {
		return i, err
	}
	return i, json.Unmarshal(b, &i)
}

// onlyLogs is an error if there is something in dir that no Saver wrote: then Dir
// is not ours, and nothing in it may be removed.
func onlyLogs(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		name := e.Name()
		if !e.Type().IsRegular() || name != indexFile && !strings.HasPrefix(name, tempPrefix) && filepath.Ext(name) != ".log" {
			err = errors.Join(err, fmt.Errorf("%s is no saved log: give them a folder of their own", filepath.Join(dir, name)))
		}
	}
	return err
}

func removeTemporary(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// SaveTimeout is how long a Save may take, and one second more for each leastRate bytes that come.
const (
	SaveTimeout = 30 * time.Second
	leastRate   = 1 << 20
)

// saving is what a Save is of.
type saving struct {
	namespace, dir string
	uid            types.UID
	fetch          Fetch
	patience       *patience
}

// Save fetches and keeps the log of each container, the current run and the
// previous. It goes on past a container that cannot be fetched, keeps of a log
// what could be read, and returns what went wrong, so that the caller may try
// again; what was saved by then, or before, stays. It takes SaveTimeout, and longer only while logs come.
func (s *Saver) Save(ctx context.Context, namespace, name string, uid types.UID, containers []string, fetch Fetch) error {
	if err := checkNames(uid, containers...); err != nil {
		return err
	}
	most := min(s.c.MaxBytesPerPod, 2*int64(len(containers))*s.c.MaxBytesPerContainer) // of the current and the previous run
	ctx, patience, cancel := withPatience(ctx, SaveTimeout, most)
	defer cancel()
	of := saving{namespace: namespace, dir: filepath.Join(s.c.Dir, string(uid)), uid: uid, fetch: fetch, patience: patience}
	if err := os.MkdirAll(of.dir, 0o700); err != nil {
		return fmt.Errorf("save the logs of %s/%s: %w", namespace, name, err)
	}
	i := index{Namespace: namespace, Name: name, Containers: map[string]saved{}}
	s.mu.Lock()
	maps.Copy(i.Containers, s.pods[uid].Containers)
	s.mu.Unlock()

	var problems []error
	var reserved int64 // for what is saved now
	for _, c := range containers {
		was := i.Containers[c]
		for _, previous := range []bool{false, true} {
			have := &was.Current
			if previous {
				have = &was.Previous
			}
			r, err := s.saveRun(ctx, of, c, previous, have.Saved)
			reserved += r.size()
			if err != nil {
				what := "log of container " + c
				if previous {
					what = "previous " + what
				}
				problems = append(problems, fmt.Errorf("%s: %w", what, err))
			}
			if r != (run{}) {
				*have = r
			}
		}
		i.Containers[c] = was
	}
	i.Saved = s.c.Clock.Now()
	if err := errors.Join(append(problems, s.enter(of, i, reserved))...); err != nil {
		return fmt.Errorf("save the logs of %s/%s: %w", namespace, name, err)
	}
	return nil
}

// enter makes an index that of its pod. So many bytes were reserved beside those of the index before.
func (s *Saver) enter(of saving, i index, reserved int64) error {
	b, err := json.Marshal(i)
	if err == nil {
		err = writeFile(of.dir, indexFile, b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.room.add(of.namespace, of.uid, -reserved)
		return fmt.Errorf("index: %w", err)
	}
	before := s.pods[of.uid] // none if it was removed meanwhile
	s.room.add(of.namespace, of.uid, i.bytes()-before.bytes()-reserved)
	s.pods[of.uid] = i
	return nil
}

// saveRun keeps the log of one run, of which it returns what is reserved for it. The run is the zero value if nothing
// of it is to be kept; beside an error it may be the part that could be read, unless there is one from before.
func (s *Saver) saveRun(ctx context.Context, of saving, container string, previous, have bool) (run, error) {
	body, err := of.fetch(ctx, container, previous)
	var none *NoLogError
	if errors.As(err, &none) {
		return run{Answer: none.Answer}, nil
	}
	if err != nil {
		return run{}, err
	}
	defer body.Close()
	file, err := s.claim(of.dir, of.namespace, of.uid, true)
	if err != nil {
		return run{}, err
	}
	defer file.release()
	t := &tail{file: file, max: s.c.MaxBytesPerContainer}
	broken := t.read(of.patience.reader(body))
	if broken != nil && ctx.Err() != nil {
		broken = context.Cause(ctx)
	}
	if broken != nil && (have || t.written == 0) {
		return run{}, broken
	}
	r, err := t.run(broken)
	if err == nil {
		err = file.sync()
	}
	if err == nil {
		err = file.keep(logFile(container, previous))
	}
	if err != nil {
		return run{}, errors.Join(broken, err)
	}
	return r, broken
}

// Has says whether logs of the pod are kept.
func (s *Saver) Has(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pods[uid]
	return ok
}

// Remove forgets a pod's logs. To forget one that is not known is no error.
func (s *Saver) Remove(uid types.UID) error {
	if err := checkNames(uid); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(uid)
}

// remove needs s.mu. The index goes first, so that what an interruption leaves is
// known for a leftover.
func (s *Saver) remove(uid types.UID) error {
	dir := filepath.Join(s.c.Dir, string(uid))
	if err := os.Remove(filepath.Join(dir, indexFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove saved logs: %w", err)
	}
	s.room.add(s.pods[uid].Namespace, uid, -s.pods[uid].bytes())
	delete(s.pods, uid)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove saved logs: %w", err)
	}
	return nil
}

// Sweep removes the logs of the pods that keep does not want, and those that are
// older than maxAge. A maxAge of 0 is no limit.
func (s *Saver) Sweep(keep func(types.UID) bool, maxAge time.Duration) error {
	s.mu.Lock()
	all := make(map[types.UID]time.Time, len(s.pods))
	for uid, i := range s.pods {
		all[uid] = i.Saved
	}
	s.mu.Unlock()
	now := s.c.Clock.Now()
	var problems []error
	for uid, at := range all {
		if keep(uid) && (maxAge == 0 || now.Sub(at) <= maxAge) {
			continue
		}
		problems = append(problems, s.Remove(uid))
	}
	return errors.Join(problems...)
}

// checkNames makes sure that names from outside stay inside the folder.
func checkNames(uid types.UID, containers ...string) error {
	for _, name := range append([]string{string(uid)}, containers...) {
		if name == "" || strings.HasPrefix(name, ".") || len(content.IsPathSegmentName(name)) > 0 {
			return fmt.Errorf("saved logs: %q is not the UID of a pod or the name of a container", name)
		}
	}
	return nil
}

func logFile(container string, previous bool) string {
	if previous {
		return container + ".previous.log" // a container's name has no dot
	}
	return container + ".log"
}

// writeFile writes a file whole or not at all.
func writeFile(dir, name string, content []byte) (err error) {
	f, err := os.CreateTemp(dir, tempPrefix) // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, name))
}
