package machine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/modules"
)

// errPower is why a machine ends whose button was pressed: by EC2 before a stop, by a
// hypervisor's order, by hand.
var errPower = errors.New("the power button was pressed")

// Of linux/input.h: an event on a machine of 64 bits has two times of 8 bytes, its
// type, its code and its value.
const (
	eventBytes = 24
	eventKey   = 1
	keyPower   = 116
)

// powered reports whether an event says that the power button went down.
func powered(e []byte) bool {
	return len(e) == eventBytes && binary.NativeEndian.Uint16(e[16:]) == eventKey &&
		binary.NativeEndian.Uint16(e[18:]) == keyPower && binary.NativeEndian.Uint32(e[20:]) == 1
}

// watchPower ends the machine when its button is pressed, until ctx ends.
func (m *machine) watchPower(ctx context.Context) {
	all, err := filepath.Glob("/dev/input/event*")
	if err != nil {
		m.console.Say("look for the power button: %v", err)
	}
	ended := make(chan struct{})
	for _, path := range all {
		go func() {
			defer func() { ended <- struct{}{} }()
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				m.console.Say("look for the power button at %s: %v", path, err)
				return
			}
			f := os.NewFile(uintptr(fd), path)
			defer f.Close()
			defer context.AfterFunc(ctx, func() { f.Close() })()
			for e := make([]byte, eventBytes); ; {
				n, err := f.Read(e)
				if err != nil {
					return // closed, or the device went
				}
				if powered(e[:n]) {
					m.end(errPower)
				}
			}
		}()
	}
	for range all {
		<-ended
	}
}

// modalias returns what a device that has come asks for, "" for another message of
// the kernel: "add@/devices/…", then lines that end with a zero.
func modalias(message []byte) string {
	if !bytes.HasPrefix(message, []byte("add@")) {
		return ""
	}
	for line := range bytes.SplitSeq(message, []byte{0}) {
		if a, ok := strings.CutPrefix(string(line), "MODALIAS="); ok {
			return a
		}
	}
	return ""
}

// newDevices opens what tells of devices that come from then on.
func newDevices() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("watch for devices: %w", err)
	}
	const fromKernel = 1
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: fromKernel}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch for devices: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "devices"), nil
}

// watchDevices loads the drivers of devices of which f tells, such as the disk of a volume, until ctx
// ends. It closes f.
func watchDevices(ctx context.Context, c *console.Console, f *os.File, set *modules.Set) {
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	for b := make([]byte, 1<<14); ; {
		n, err := f.Read(b)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			// Too many at once for the socket: what was missed is found by looking.
			if !errors.Is(err, unix.ENOBUFS) {
				c.Say("watch for devices: %v", err)
				return
			}
			err = set.LoadPresent("/sys/devices")
		} else if a := modalias(b[:n]); a != "" {
			err = set.Load(a)
		}
		if err != nil && !errors.Is(err, modules.ErrUnknown) {
			c.Say("a driver failed: %v", err)
		}
	}
}

// PowerOff tells init to end the machine and returns an exit code. The kernel calls it
// where its hypervisor asks for an end (Xen, Hyper-V), and so may anybody on the
// machine.
func PowerOff() int {
	if err := unix.Kill(1, unix.SIGTERM); err != nil {
		console.New(os.Stderr).Say("tell init to end: %v", err)
		return 1
	}
	return 0
}
