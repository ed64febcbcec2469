package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/elotl/kip/internal/backoff"
)

// Times between one sending of a message and the next, in the RFC's words of 4 to 64
// seconds, which are from a time of slower networks.
const (
	firstWait = 500 * time.Millisecond
	lastWait  = 8 * time.Second
)

// Conn carries messages: sent ones to all servers of a link, those received from any.
type Conn interface {
	Send(message []byte) error
	// Receive returns what came, or os.ErrDeadlineExceeded.
	Receive(until time.Time) ([]byte, error)
}

// Client asks for one interface's address.
type Client struct {
	Conn Conn
	// Hardware is the interface's address.
	Hardware net.HardwareAddr
	// Rand makes the numbers by which answers are known.
	Rand func() uint32
	// wait is the first pause before a message is sent again, or a lease asked for anew; 0 for firstWait.
	wait time.Duration
}

// errRefused is a server's no.
var errRefused = errors.New("the DHCP server refuses the address")

// Acquire asks until a server has given a lease or ctx ends. What makes no sense is
// passed over; the error tells of the last.
func (c *Client) Acquire(ctx context.Context) (Lease, error) {
	for tries := 1; ; tries++ {
		xid := c.Rand()
		offered, err := c.exchange(ctx, discover, xid, netip.Addr{}, c.options(), offer)
		if err != nil {
			return Lease{}, err
		}
		o := c.options()
		o[optRequested] = offered.Address.Addr().AsSlice()
		if offered.Server.IsValid() {
			o[optServer] = offered.Server.AsSlice()
		}
		l, err := c.exchange(ctx, request, xid, netip.Addr{}, o, ack)
		if !errors.Is(err, errRefused) {
			return l, err
		}
		// Such as one of two servers that disagree, which answers as fast as it is asked.
		again := time.NewTimer(c.pause(tries))
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return Lease{}, fmt.Errorf("no lease: %w; last: %w", ctx.Err(), err)
		}
	}
}

// Renew asks for a lease's address again.
func (c *Client) Renew(ctx context.Context, l Lease) (Lease, error) {
	return c.exchange(ctx, request, c.Rand(), l.Address.Addr(), c.options(), ack)
}

// options are those that each message of a client has.
func (c *Client) options() map[byte][]byte {
	return map[byte][]byte{
		optClient:  append([]byte{ethernet}, c.Hardware...),
		optMaxSize: {maxBytes >> 8, maxBytes & 0xff},
		optWanted: {
			optMask, optRouter, optDNS, optHostname, optDomain, optMTU, optNTP, optLifetime, optServer, optRenew, optSearch,
			optRoutes,
		},
	}
}

// exchange sends a message, again and again, until an answer of the wanted kind has
// come. Has is the address that the machine has, unset for none.
func (c *Client) exchange(
	ctx context.Context, kind byte, xid uint32, has netip.Addr, options map[byte][]byte, want byte,
) (Lease, error) {
	m := message{
		kind:     kind,
		xid:      xid,
		hardware: c.Hardware,
		client:   has,
		options:  options,
	}
	last := errors.New("nothing came")
	for tries := 1; ; tries++ {
		if err := c.Conn.Send(m.bytes()); err != nil {
			last = err // a link that is not up yet
		}
		for until := time.Now().Add(c.pause(tries)); ; {
			if ctx.Err() != nil {
				return Lease{}, fmt.Errorf("no answer of a DHCP server: %w; last: %w", ctx.Err(), last)
			}
			b, err := c.Conn.Receive(deadline(ctx, until))
			if err != nil {
				if !time.Now().Before(until) {
					break
				}
				if ctx.Err() == nil && !isTimeout(err) {
					return Lease{}, fmt.Errorf("receive from DHCP servers: %w", err)
				}
				continue
			}
			l, err := c.answer(b, m.xid, want)
			if err == nil || errors.Is(err, errRefused) {
				return l, err
			}
			last = err
		}
	}
}

// pause is how long is waited after so many messages, with jitter: many machines begin at once (RFC 2131, section 4.1).
func (c *Client) pause(tries int) time.Duration {
	return backoff.Random(nil).After(tries, cmp.Or(c.wait, firstWait), lastWait)
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func deadline(ctx context.Context, until time.Time) time.Time {
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		return end
	}
	return until
}

// answer reads what may be the answer to a message.
func (c *Client) answer(b []byte, xid uint32, want byte) (Lease, error) {
	m, err := parse(b)
	switch {
	case err != nil:
		return Lease{}, err
	case m.xid != xid || m.hardware.String() != c.Hardware.String():
		return Lease{}, errors.New("an answer to somebody else")
	case m.kind == nak && want == ack:
		return Lease{}, errRefused
	case m.kind != want:
		return Lease{}, fmt.Errorf("an answer of kind %d, and not %d", m.kind, want)
	}
	return m.lease()
}

// payload returns what an IPv4 packet brings to a port by UDP, nil for another packet.
// Its checksums the link has looked at.
func payload(packet []byte, port uint16) []byte {
	const udp, udpHeader = 17, 8
	if len(packet) < 20 || packet[0]>>4 != 4 || packet[9] != udp || packet[6]&0x3f|packet[7] != 0 {
		return nil
	}
	rest := packet[min(len(packet), int(packet[0]&0xf)*4):]
	if len(rest) < udpHeader || uint16(rest[2])<<8|uint16(rest[3]) != port {
		return nil
	}
	length := int(rest[4])<<8 | int(rest[5])
	if length < udpHeader || length > len(rest) {
		return nil
	}
	return rest[udpHeader:length]
}

// Ports of the protocol.
const (
	serverPort = 67
	clientPort = 68
)

// toAll is where messages are sent.
var toAll = netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), serverPort)
