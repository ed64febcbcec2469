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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Bounds that hold when Config says nothing.
const (
	DefaultMaxBytesPerContainer = 1 << 20
	DefaultMaxBytesTotal        = 1 << 30
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
	// MaxBytesTotal bounds all files together; beyond it the logs that were
	// saved first are removed, of the namespace that has most: nobody's pods
	// take away what others' have said. 0: DefaultMaxBytesTotal.
	MaxBytesTotal int64
	Log           *slog.Logger
	Clock         clock.PassiveClock // optional
}

// Saver keeps logs. Make it with Open. All methods are safe for concurrent use.
type Saver struct {
	c Config

	mu   sync.Mutex
	pods map[types.UID]index
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
	// Bytes of the file, if there is one.
	Saved bool  `json:"saved"`
	Bytes int64 `json:"bytes,omitempty"`
	// Answer is what the kubelet said instead of a log.
	Answer string `json:"answer,omitempty"`
}

func (i index) bytes() (n int64) {
	for _, c := range i.Containers {
		n += c.Current.Bytes + c.Previous.Bytes
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
	if c.MaxBytesPerContainer < 0 || c.MaxBytesTotal < 0 {
		return nil, fmt.Errorf("saved logs: MaxBytesPerContainer %d and MaxBytesTotal %d must not be negative", c.MaxBytesPerContainer,
			c.MaxBytesTotal)
	}
	c.MaxBytesPerContainer = cmp.Or(c.MaxBytesPerContainer, DefaultMaxBytesPerContainer)
	c.MaxBytesTotal = cmp.Or(c.MaxBytesTotal, DefaultMaxBytesTotal)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("saved logs: %w", err)
	}
	s := &Saver{c: c, pods: map[types.UID]index{}}
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
		s.pods[types.UID(e.Name())] = i
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

// Save fetches and keeps the log of each container, the current run and the
// previous. It goes on past a container that cannot be fetched, keeps of a log
// what could be read, and returns what went wrong, so that the caller may try
// again; what was saved by then, or before, stays.
func (s *Saver) Save(ctx context.Context, namespace, name string, uid types.UID, containers []string, fetch Fetch) error {
	if err := checkNames(uid, containers...); err != nil {
		return err
	}
	dir := filepath.Join(s.c.Dir, string(uid))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("save the logs of %s/%s: %w", namespace, name, err)
	}
	i := index{Namespace: namespace, Name: name, Containers: map[string]saved{}}
	s.mu.Lock()
	before := s.pods[uid]
	s.mu.Unlock()
	for c, was := range before.Containers {
		i.Containers[c] = was
	}

	var problems []error
	for _, c := range containers {
		was := i.Containers[c]
		for _, previous := range []bool{false, true} {
			have := &was.Current
			if previous {
				have = &was.Previous
			}
			r, err := s.saveRun(ctx, dir, c, previous, have.Saved, fetch)
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
	b, err := json.Marshal(i)
	if err == nil {
		_, err = writeFile(dir, indexFile, func(w io.Writer) error { _, err := w.Write(b); return err })
	}
	if err != nil {
		problems = append(problems, fmt.Errorf("index: %w", err))
	} else {
		s.mu.Lock()
		s.pods[uid] = i
		problems = append(problems, s.makeRoom(uid))
		s.mu.Unlock()
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("save the logs of %s/%s: %w", namespace, name, err)
	}
	return nil
}

// saveRun keeps the log of one run. The run is the zero value if nothing of it
// is to be kept; beside an error it may be the part that could be read, unless
// there is one from before.
func (s *Saver) saveRun(ctx context.Context, dir, container string, previous, have bool, fetch Fetch) (run, error) {
	body, err := fetch(ctx, container, previous)
	var none *NoLogError
	if errors.As(err, &none) {
		return run{Answer: none.Answer}, nil
	}
	if err != nil {
		return run{}, err
	}
	defer body.Close()
	t, broken := readTail(body, s.c.MaxBytesPerContainer)
	if broken != nil && (have || len(t.text) == 0) {
		return run{}, broken
	}
	n, err := writeFile(dir, logFile(container, previous), func(w io.Writer) error {
		return t.write(w, s.c.MaxBytesPerContainer, broken)
	})
	if err != nil {
		return run{}, errors.Join(broken, err)
	}
	return run{Saved: true, Bytes: n}, broken
}

// makeRoom removes the logs that were saved first while there is too much of
// all, but not those of uid. s.mu is held.
func (s *Saver) makeRoom(uid types.UID) error {
	var total int64
	of := map[string]int64{} // by namespace
	order := make([]types.UID, 0, len(s.pods))
	for u, i := range s.pods {
		total += i.bytes()
		of[i.Namespace] += i.bytes()
		if u != uid {
			order = append(order, u)
		}
	}
	if total <= s.c.MaxBytesTotal {
		return nil
	}
	slices.SortFunc(order, func(a, b types.UID) int { return s.pods[a].Saved.Compare(s.pods[b].Saved) })
	for len(order) > 0 && total > s.c.MaxBytesTotal {
		// The first of the namespace that has most, and another that something can be taken from.
		n := 0
		for k, u := range order {
			if of[s.pods[u].Namespace] > of[s.pods[order[n]].Namespace] {
				n = k
			}
		}
		u := order[n]
		order = slices.Delete(order, n, n+1)
		i := s.pods[u]
		if err := s.remove(u); err != nil {
			return err
		}
		total -= i.bytes()
		of[i.Namespace] -= i.bytes()
		s.c.Log.Warn("removed saved logs to make room", "pod", i.Namespace+"/"+i.Name, "uid", u, "limit", s.c.MaxBytesTotal)
	}
	return nil
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
func writeFile(dir, name string, write func(io.Writer) error) (n int64, err error) {
	f, err := os.CreateTemp(dir, tempPrefix) // mode 0600
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	info, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Close()); err != nil {
		return 0, err
	}
	return info.Size(), os.Rename(f.Name(), filepath.Join(dir, name))
}
