// Package loopback has addresses for tests. It opens no connection.
package loopback

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Own is an address of this host that no other process takes ports of, as long as all choose
// by this function. A port that is free there now is so later, which of 127.0.0.1 nobody
// knows: each connection of any process takes one.
func Own() netip.Addr {
	const least = 64 // a process number has 22 bits at most, so the second byte is 127 at most
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, least + byte(pid>>16), byte(pid >> 8), byte(pid)})
}

// Refused is an address and port that refuse connections until the test ends: the port is
// taken, and nobody listens.
func Refused(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(fmt.Errorf("open a socket: %w", err))
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(fmt.Errorf("take a port: %w", err))
	}
	is, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(fmt.Errorf("which port was taken: %w", err))
	}
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(is.(*unix.SockaddrInet4).Port))
}
