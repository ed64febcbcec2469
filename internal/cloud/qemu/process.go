package qemu

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// running returns the PIDs of the QEMU processes whose working folder is one below
// machines, by the folder's name, which is a machine's ID.
func running(machines string) (map[string][]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := map[string][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that ends, or has ended and was not waited for, has neither.
		dir, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		if err != nil || filepath.Dir(dir) != machines {
			continue
		}
		program, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil || !strings.HasPrefix(filepath.Base(program), "qemu-system-") {
			continue
		}
		id := strings.TrimSuffix(filepath.Base(dir), " (deleted)")
		found[id] = append(found[id], pid)
	}
	return found, nil
}

// waiting is a process that becomes a program when it is released. If this process dies
// before, it ends, having done nothing.
type waiting struct {
	pid  int
	gate *os.File
}

// gateScript is what it runs meanwhile.
const gateScript = `read -r go && exec "$@" < /dev/null`

// spawn starts a process that is to become a program in a folder, in a session of its own,
// so that it outlives this process, with what it says going to a file, and files for its
// descriptors from 3 on.
func spawn(path, dir string, args []string, said string, files ...*os.File) (*waiting, error) {
	out, err := os.OpenFile(said, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	ear, gate, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ear.Close()
	p, err := os.StartProcess("/bin/sh", append([]string{"sh", "-c", gateScript, "sh", path}, args...), &os.ProcAttr{
		Dir:   dir,
		Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"},
		Files: append([]*os.File{ear, out, out}, files...),
		Sys:   &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		gate.Close()
		return nil, err
	}
	w := &waiting{pid: p.Pid, gate: gate}
	// Waiting for its end is done by the machine's own handle.
	return w, p.Release()
}

// release lets the process become the program.
func (w *waiting) release() error {
	_, err := w.gate.WriteString("\n")
	return errors.Join(err, w.gate.Close())
}

// abandon ends and reaps the process. It is our child and not reaped yet, so the PID is
// still its own.
func (w *waiting) abandon() {
	w.gate.Close()
	_ = unix.Kill(w.pid, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(w.pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// lastWords is the first line of what a process said, for an error message.
func lastWords(file string) string {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		return ": " + err.Error()
	}
	defer f.Close()
	const longest = 4 << 10
	b, err := io.ReadAll(io.LimitReader(f, longest))
	if err != nil {
		return ": " + err.Error()
	}
	if line := firstLine(string(b)); line != "" {
		return ": " + line
	}
	return ""
}
