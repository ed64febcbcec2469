package podlogs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// errTaken is why a log is not kept whose room was given to others.
var errTaken = errors.New("no room: its namespace keeps the most logs, so Kip gave the space to another namespace")

// room is what is kept, in bytes, and what is reserved for what is being written.
type room struct {
	total       int64
	ofNamespace map[string]int64
	ofPod       map[types.UID]int64
	claims      map[*claim]bool
}

func (r *room) add(namespace string, uid types.UID, n int64) {
	r.total += n
	if r.ofNamespace[namespace] += n; r.ofNamespace[namespace] == 0 {
		delete(r.ofNamespace, namespace)
	}
	if r.ofPod[uid] += n; r.ofPod[uid] == 0 {
		delete(r.ofPod, uid)
	}
}

// most is the namespace that has most, where one is to have so much more.
func (r *room) most(namespace string, more int64) string {
	most, has := namespace, r.ofNamespace[namespace]+more
	for other, n := range r.ofNamespace {
		if n > has {
			most, has = other, n
		}
	}
	return most
}

// claim is a file of the Saver's folder whose bytes are reserved before they are written.
type claim struct {
	s         *Saver
	namespace string
	uid       types.UID
	at        time.Time
	bytes     int64 // under s.mu

	mu   sync.Mutex // after s.mu
	file *os.File   // nil when the room was given to others, or is given back
}

// claim makes a file. Where it is not named it goes with the claim, or this process.
func (s *Saver) claim(dir, namespace string, uid types.UID, named bool) (*claim, error) {
	f, err := os.CreateTemp(dir, tempPrefix) // mode 0600
	if err != nil {
		return nil, err
	}
	if !named {
		if err := os.Remove(f.Name()); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	c := &claim{s: s, namespace: namespace, uid: uid, at: s.c.Clock.Now(), file: f}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room.claims[c] = true
	return c, nil
}

// grow reserves room for so many bytes more, or as many as there is room for: for its pod, and without what namespaces
// have that keep less. Where these are fewer, it returns which bound does not allow more.
func (c *claim) grow(n int64) (reserved int64, bound string) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.room.claims[c] {
		return 0, ""
	}
	if left := s.c.MaxBytesPerPod - s.room.ofPod[c.uid]; n > left {
		n, bound = left, fmt.Sprintf("Kip keeps at most %d bytes of the logs of a pod", s.c.MaxBytesPerPod)
	}
	limit := s.c.MaxBytesTotal
	ofAll := fmt.Sprintf("Kip keeps at most %d bytes of logs, and most of them are of this namespace", limit)
	if s.diskLow() && s.room.total < limit {
		limit = s.room.total // what is new takes the place of what is old
		ofAll = fmt.Sprintf("the disk of Kip's data folder is nearly full: %d of its %d bytes are free, and logs leave %d free",
			s.disk.free, s.disk.size, diskReserve(s.disk.size))
		s.warning.Do(func() {
			s.c.Log.Warn("the disk is nearly full: Kip removes older saved logs to save new ones", "dir", s.c.Dir,
				"free", s.disk.free, "size", s.disk.size)
		})
	}
	for n > 0 && s.room.total+n > limit {
		if !s.makeRoom(c, n, ofAll) {
			n, bound = limit-s.room.total, ofAll
		}
	}
	n = max(n, 0)
	c.bytes += n
	s.room.add(c.namespace, c.uid, n)
	return n, bound
}

// makeRoom removes the logs that were saved first of the namespace that has most; where it has none but those that
// are being written or read, the oldest of these. It returns false where that is the namespace of who needs the room,
// and nothing is left to remove of it. s.mu is held.
func (s *Saver) makeRoom(of *claim, n int64, bound string) bool {
	most := s.room.most(of.namespace, n)
	var first types.UID
	for uid, i := range s.pods {
		if i.Namespace == most && uid != of.uid && i.bytes() > 0 && (first == "" || i.Saved.Before(s.pods[first].Saved)) {
			first = uid
		}
	}
	if first != "" {
		i := s.pods[first]
		s.c.Log.Warn("removed saved logs to make room", "pod", i.Namespace+"/"+i.Name, "uid", first, "bound", bound)
		if err := s.remove(first); err != nil {
			s.c.Log.Error("remove saved logs", "err", err)
			return false
		}
		return true
	}
	if most == of.namespace {
		return false
	}
	var oldest *claim
	for c := range s.room.claims {
		if c.namespace == most && c.bytes > 0 && (oldest == nil || c.at.Before(oldest.at)) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	s.giveBack(oldest)
	return true
}

// giveBack ends a claim. s.mu is held.
func (s *Saver) giveBack(c *claim) {
	if !s.room.claims[c] {
		return
	}
	delete(s.room.claims, c)
	s.room.add(c.namespace, c.uid, -c.bytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		_ = c.file.Close()
		_ = os.Remove(c.file.Name()) // it may have no name
		c.file = nil
	}
}

// release gives back what is reserved, and removes the file.
func (c *claim) release() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.giveBack(c)
}

// keep gives the file its name. What is reserved stays so, and is the caller's.
func (c *claim) keep(name string) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.s.room.claims[c] {
		return errTaken
	}
	c.mu.Lock()
	file := c.file
	c.mu.Unlock()
	if err := os.Rename(file.Name(), filepath.Join(filepath.Dir(file.Name()), name)); err != nil {
		return err
	}
	delete(c.s.room.claims, c)
	return file.Close()
}

func (c *claim) do(what func(*os.File) (int, error)) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return 0, errTaken
	}
	return what(c.file)
}

// WriteAt implements io.WriterAt.
func (c *claim) WriteAt(p []byte, at int64) (int, error) {
	return c.do(func(f *os.File) (int, error) { return f.WriteAt(p, at) })
}

// ReadAt implements io.ReaderAt.
func (c *claim) ReadAt(p []byte, at int64) (int, error) {
	return c.do(func(f *os.File) (int, error) { return f.ReadAt(p, at) })
}

func (c *claim) sync() error {
	_, err := c.do(func(f *os.File) (int, error) { return 0, f.Sync() })
	return err
}

// diskReserve is how many bytes of a disk of so many logs leave free: a tenth, as a kubelet does (nodefs.available<10%,
// DefaultEvictionHard in pkg/kubelet/eviction/defaults_linux.go), since the store may be on it. A tenth of a large disk is more
// than the store and a node need: as much as all logs may take is enough.
func diskReserve(size uint64) uint64 { return min(size/10, DefaultMaxBytesTotal) }

// diskCheck is how long the answer of the file system counts: each piece of each log asks.
const diskCheck = time.Second

// disk is the disk of the logs. Saver.mu guards it.
type disk struct {
	low        bool
	free, size uint64 // bytes
	checked    time.Time
}

// diskLow reports whether the logs' disk was nearly full less than diskCheck ago. s.mu is held.
func (s *Saver) diskLow() bool {
	now := s.c.Clock.Now()
	if age := now.Sub(s.disk.checked); age < 0 || age >= diskCheck {
		var is unix.Statfs_t
		err := s.c.Statfs(s.c.Dir, &is)
		// After an error a log is written nevertheless: the write reports what is wrong.
		s.disk = disk{free: is.Bavail * uint64(is.Bsize), size: is.Blocks * uint64(is.Bsize), checked: now}
		s.disk.low = err == nil && s.disk.free < diskReserve(s.disk.size)
	}
	return s.disk.low
}

func (c *Config) checkRoom() error {
	for name, n := range map[string]int64{"MaxBytesPerContainer": c.MaxBytesPerContainer, "MaxBytesPerPod": c.MaxBytesPerPod,
		"MaxBytesTotal": c.MaxBytesTotal} {
		if n < 0 {
			return fmt.Errorf("saved logs: %s %d must not be negative", name, n)
		}
	}
	return nil
}
