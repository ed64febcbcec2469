package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Link is the Conn of an interface. It sends by UDP and sees each packet that comes,
// since one to an address that the machine does not have yet is no UDP to the kernel.
type Link struct {
	send    net.PacketConn
	receive *os.File
}

var _ Conn = (*Link)(nil)

// Open opens an interface, which is up.
func Open(name string, index int) (*Link, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(swapped(unix.ETH_P_IP)))
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	receive := os.NewFile(uintptr(fd), "packets of "+name)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swapped(unix.ETH_P_IP), Ifindex: index}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind a packet socket to %s: %w", name, err), receive.Close())
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		ctl := c.Control(func(fd uintptr) {
			err = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, name),
			)
		})
		return errors.Join(ctl, err)
	}}
	send, err := config.ListenPacket(context.Background(), "udp4", fmt.Sprintf(":%d", clientPort))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the DHCP port of %s: %w", name, err), receive.Close())
	}
	return &Link{send: send, receive: receive}, nil
}

// swapped is a number in the network's order of bytes.
func swapped(n uint16) uint16 { return n<<8 | n>>8 }

// Close ends both.
func (l *Link) Close() error { return errors.Join(l.send.Close(), l.receive.Close()) }

// Send sends a message to all.
func (l *Link) Send(message []byte) error {
	_, err := l.send.WriteTo(message, net.UDPAddrFromAddrPort(toAll))
	return err
}

// Receive returns the next message to a client.
func (l *Link) Receive(until time.Time) ([]byte, error) {
	if err := l.receive.SetReadDeadline(until); err != nil {
		return nil, err
	}
	b := make([]byte, 1<<16)
	for {
		n, err := l.receive.Read(b)
		if err != nil {
			return nil, err
		}
		if m := payload(b[:n], clientPort); m != nil {
			return m, nil
		}
	}
}
