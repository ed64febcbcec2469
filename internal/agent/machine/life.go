package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/console"
)

// life is how a machine knows that its pod has had its life. A machine that was started
// again before a pod came, as a standby cell is, goes on.
type life struct {
	// pods is the kubelet's folder with one folder a pod.
	pods string
	// mark is a file that is there once a pod was.
	mark string
}

var theLife = life{pods: "/var/lib/kubelet/pods", mark: "/var/lib/itzo/a-pod-was-here"}

// errSecondLife is that of a machine that was started again after its pod had come: by
// a crash of the kernel, by the host, by somebody who pressed a button.
var errSecondLife = errors.New("a pod was on this machine before it was started again, and must not start twice")

func (l life) check() error {
	if _, err := os.Stat(l.mark); err == nil {
		return errSecondLife
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	pods, err := os.ReadDir(l.pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(pods) > 0 {
		return errSecondLife
	}
	return nil
}

// lifeWatch waits for a pod.
type lifeWatch struct {
	life
	events *os.File
}

// watch begins to wait for a pod. It is to be called before the kubelet runs.
func (l life) watch() (*lifeWatch, error) {
	for _, dir := range []string{l.pods, filepath.Dir(l.mark)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("watch for the pod: %w", err)
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch for the pod: %w", err)
	}
	w := &lifeWatch{l, os.NewFile(uintptr(fd), "inotify")}
	if _, err := unix.InotifyAddWatch(fd, l.pods, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		return nil, errors.Join(fmt.Errorf("watch for the pod: %w", err), w.events.Close())
	}
	return w, nil
}

// run writes the mark as soon as a pod has a folder, which is before it has a container,
// and returns then or when ctx ends.
func (w *lifeWatch) run(ctx context.Context, c *console.Console) {
	defer context.AfterFunc(ctx, func() { w.events.Close() })()
	defer w.events.Close()
	if _, err := w.events.Read(make([]byte, unix.SizeofInotifyEvent+unix.NAME_MAX+1)); err != nil {
		if ctx.Err() == nil {
			c.Say("watch for the pod: %v", err)
		}
		return
	}
	if err := write(w.mark); err != nil {
		// The kubelet's folder says the same, unless the power goes within seconds.
		c.Say("mark that a pod is here: %v", err)
		return
	}
	c.Say("a pod is here: this machine does not start again after it")
}

// write makes an empty file that outlives a crash.
func write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Sync(), f.Close(), dir.Sync(), dir.Close())
}
