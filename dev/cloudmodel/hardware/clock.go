package hardware

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"
)

// Of SNTP's messages (RFC 4330).
const (
	messageBytes = 48
	modeClient   = 3
	// reply begins an answer: version 4, of a server, at stratum 1.
	reply   = 4<<3 | 4
	stratum = 1
	// era is 1970 in seconds since 1900, from which the protocol counts.
	era = 2208988800
)

// tellTime answers who asks for the time until conn is closed, and returns why it ended.
func tellTime(conn net.PacketConn, now func() time.Time) error {
	ask := make([]byte, 1<<10)
	for {
		n, from, err := conn.ReadFrom(ask)
		if err != nil {
			return fmt.Errorf("tell the time: %w", err)
		}
		if n < messageBytes || ask[0]&7 != modeClient {
			continue
		}
		at := stamp(now())
		b := make([]byte, messageBytes)
		b[0], b[1] = reply, stratum
		copy(b[24:32], ask[40:48]) // by which who asks knows its answer
		binary.BigEndian.PutUint64(b[32:], at)
		binary.BigEndian.PutUint64(b[40:], at)
		_, _ = conn.WriteTo(b, from) // or who asked has gone; of a conn that is closed the next read tells
	}
}

// stamp is a time as the protocol has it: seconds, and their parts of 2³².
func stamp(t time.Time) uint64 {
	return uint64(t.Unix()+era)<<32 | uint64(t.Nanosecond())<<32/uint64(time.Second)
}
