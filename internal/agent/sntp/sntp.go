// Package sntp asks a server how wrong this machine's clock is (RFC 4330). It sets
// none.
package sntp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/elotl/kip/internal/agent/firewall"
)

const (
	size = 48
	// hello is version 4 in a client's message, and modeServer what an answer is of.
	hello      = 4<<3 | 3
	modeServer = 4
	// era is 1970 in seconds since 1900, from which the protocol counts.
	era = 2208988800
)

// Offset returns what is to be added to this machine's clock for the server's time.
// The network's way back is taken to be as long as the way there.
func Offset(ctx context.Context, address string, now func() time.Time) (time.Duration, error) {
	d := net.Dialer{Control: firewall.Exempt} // some clouds tell the time where their metadata is
	c, err := d.DialContext(ctx, "udp", address)
	if err != nil {
		return 0, fmt.Errorf("ask %s for the time: %w", address, err)
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return 0, fmt.Errorf("ask %s for the time: %w", address, err)
		}
	}
	ask := make([]byte, size)
	ask[0] = hello
	sent := now()
	rand.Read(ask[40:]) // which the answer repeats: who does not see the question cannot answer it
	if _, err := c.Write(ask); err != nil {
		return 0, fmt.Errorf("ask %s for the time: %w", address, err)
	}
	b := make([]byte, size)
	for {
		n, err := c.Read(b)
		if err != nil {
			return 0, fmt.Errorf("ask %s for the time: %w", address, err)
		}
		came := now()
		if n < size || binary.BigEndian.Uint64(b[24:]) != binary.BigEndian.Uint64(ask[40:]) {
			continue // somebody else's, or made up
		}
		if err := check(b); err != nil {
			return 0, fmt.Errorf("ask %s for the time: %w", address, err)
		}
		received, answered := date(binary.BigEndian.Uint64(b[32:])), date(binary.BigEndian.Uint64(b[40:]))
		return (received.Sub(sent) + answered.Sub(came)) / 2, nil
	}
}

// check says why an answer is not to be believed.
func check(b []byte) error {
	switch stratum := b[1]; {
	case b[0]&7 != modeServer:
		return fmt.Errorf("an answer of mode %d", b[0]&7)
	case b[0]>>6 == 3:
		return errors.New("the server's own clock is not set")
	case stratum == 0 || stratum > 15:
		return fmt.Errorf("the server says stratum %d: it has no time, or does not want to be asked", stratum)
	case binary.BigEndian.Uint64(b[40:]) == 0:
		return errors.New("the server says no time")
	}
	return nil
}

// date reads a time stamp. The count begins anew in 2036: a small one is of that era.
func date(s uint64) time.Time {
	seconds := int64(s >> 32)
	if seconds < 1<<31 {
		seconds += 1 << 32
	}
	return time.Unix(seconds-era, int64(s&0xffffffff*1e9>>32))
}
