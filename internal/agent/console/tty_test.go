package console

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

// terminal makes one, and returns whoever looks at it and its path.
func terminal(t *testing.T) (viewer *os.File, path string) {
	t.Helper()
	viewer, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { viewer.Close() })
	conn, err := viewer.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n uint32
	var unlocked error
	err = conn.Control(func(fd uintptr) {
		unlocked = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		n, _ = unix.IoctlGetUint32(int(fd), unix.TIOCGPTN)
	})
	if err := errors.Join(err, unlocked, viewer.SetDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	return viewer, fmt.Sprintf("/dev/pts/%d", n)
}

// other opens the terminal as another program does.
func other(t *testing.T, path string) (fd int) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// shows reads lines until one is this.
func shows(t *testing.T, viewer *os.File, want string) {
	t.Helper()
	for lines := bufio.NewScanner(viewer); lines.Scan(); {
		if lines.Text() == want {
			return
		}
	}
	t.Errorf("the terminal never shows %q", want)
}

func TestCtrlSStopsNoConsole(t *testing.T) {
	viewer, path := terminal(t)
	program := other(t, path)
	// It is stopped before the machine's init begins.
	if _, err := viewer.Write([]byte{'S' & 0x1f}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := unix.Write(program, []byte("\n")); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil || time.Now().After(deadline) {
			t.Fatalf("Ctrl-S does not stop a terminal: %v", err)
		}
	}
	c, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.file.Close()
	if _, err := c.Write([]byte("goes on\n")); err != nil {
		t.Fatalf("stopped before: %v", err)
	}
	shows(t, viewer, "goes on")
	settings, err := unix.IoctlGetTermios(program, unix.TCGETS)
	if err != nil || settings.Iflag&unix.IXON != 0 {
		t.Errorf("Ctrl-S stops it again (%v)", err)
	}
}

func TestAConsoleThatTakesNothingBlocksNobody(t *testing.T) {
	viewer, path := terminal(t)
	program := other(t, path)
	c, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.file.Close()
	c.limit = 20 * time.Millisecond
	const stop, start = 0, 1 // TCOOFF, TCOON
	if err := unix.IoctlSetInt(program, unix.TCXONC, stop); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		var errs []error
		for range 3 {
			_, err := c.Write([]byte("lost\n"))
			errs = append(errs, err)
		}
		wrote <- errors.Join(errs...)
	}()
	select {
	case err := <-wrote:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("to a terminal that takes nothing: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a terminal that takes nothing blocks who writes")
	}
	if err := unix.IoctlSetInt(program, unix.TCXONC, start); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("once more\n")); err != nil {
		t.Fatalf("to one that goes on: %v", err)
	}
	shows(t, viewer, "once more")
}
