//go:build unix

package tunnel

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// maxUnsent is how many bytes the kernel holds of a connection that it has not sent yet.
// The rest waits in HTTP/2's queue, where pings and small answers overtake it.
const maxUnsent = 128 << 10

func limitUnsent(tcp *net.TCPConn) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
	})
	return errors.Join(err, setErr)
}
