package supervise

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// tailBytes is how much of a component's last output is kept for its status.
const tailBytes = 2048

// LogFile is a component's output: a file that is rotated once it has reached
// a size (to NAME.1), and its last lines in memory.
type LogFile struct {
	path string
	max  int64

	mu   sync.Mutex
	f    *os.File
	size int64
	tail []byte
}

// OpenLog opens a log file for appending. maxBytes bounds the file; with the
// rotated one it takes at most twice as much. A link in its place is an error: a pod
// may have the folder by hostPath.
func OpenLog(path string, maxBytes int64) (*LogFile, error) {
	l := &LogFile{path: path, max: maxBytes}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *LogFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open log: %w", err)
	}
	l.f, l.size = f, info.Size()
	return nil
}

// Write never fails for want of disk: a component must not stop because its log
// cannot be written. What does not fit is lost, but for the tail in memory.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, p...)
	if n := len(l.tail) - tailBytes; n > 0 {
		l.tail = append(l.tail[:0], l.tail[n:]...)
	}
	if l.f != nil && l.size+int64(len(p)) > l.max && l.size > 0 {
		l.f.Close()
		l.f = nil
		_ = os.Rename(l.path, l.path+".1")
	}
	if l.f == nil && l.open() != nil {
		return len(p), nil
	}
	n, _ := l.f.Write(p)
	l.size += int64(n)
	return len(p), nil
}

// LastLines returns up to n of the last whole lines written.
func (l *LogFile) LastLines(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	tail := l.tail
	if len(tail) == tailBytes { // the first line may be cut
		if i := bytes.IndexByte(tail, '\n'); i >= 0 && i+1 < len(tail) {
			tail = tail[i+1:]
		}
	}
	lines := strings.Split(strings.TrimRight(string(tail), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// Close closes the file.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
