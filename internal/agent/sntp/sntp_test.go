package sntp

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"testing"
	"time"
)

// server answers on loopback with a clock of its own; change may spoil each answer.
func server(t *testing.T, clock func() time.Time, change func(b []byte)) string {
	t.Helper()
	s, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, size)
		for {
			n, from, err := s.ReadFrom(b)
			if err != nil {
				return
			}
			if n != size || b[0] != 0x23 { // version 4, a client
				continue
			}
			answer := make([]byte, size)
			answer[0], answer[1] = 0x24, 2
			copy(answer[24:], b[40:])
			at := clock()
			seconds := uint64(at.Unix() + 2208988800)
			binary.BigEndian.PutUint32(answer[32:], uint32(seconds))
			binary.BigEndian.PutUint32(answer[40:], uint32(seconds))
			change(answer)
			_, _ = s.WriteTo(answer[:len(b)], from)
		}
	}()
	t.Cleanup(func() { s.Close(); <-ended })
	return s.LocalAddr().String()
}

func TestAClockThatIsYearsWrongIsSeen(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	real := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, here := range map[string]time.Time{
		"years behind":      time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC),
		"years ahead":       time.Date(2035, 1, 1, 0, 0, 0, 0, time.UTC),
		"right":             real,
		"in the era beyond": time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		address := server(t, func() time.Time { return real }, func([]byte) {})
		got, err := Offset(ctx, address, func() time.Time { return here })
		if err != nil || got != real.Sub(here) {
			t.Errorf("%s: %v (%v), want %v", name, got, err, real.Sub(here))
		}
	}
	// The server's clock may be in that era as well.
	late := time.Date(2037, 1, 1, 0, 0, 0, 0, time.UTC)
	address := server(t, func() time.Time { return late }, func([]byte) {})
	if got, err := Offset(ctx, address, func() time.Time { return real }); err != nil || got != late.Sub(real) {
		t.Errorf("a server of 2037: %v (%v), want %v", got, err, late.Sub(real))
	}
}

func TestABadAnswerSetsNoClock(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(b []byte)
		want   string
	}{
		"no answer to this":  {func(b []byte) { b[24] ^= 1 }, "timeout"},
		"a client":           {func(b []byte) { b[0] = 0x23 }, "mode 3"},
		"a clock not set":    {func(b []byte) { b[0] |= 0xc0 }, "not set"},
		"a kiss of death":    {func(b []byte) { b[1] = 0 }, "stratum 0"},
		"too far from a sun": {func(b []byte) { b[1] = 16 }, "stratum 16"},
		"no time":            {func(b []byte) { clear(b[40:]) }, "says no time"},
	} {
		limit := 5 * time.Minute // which only a hang meets
		if tc.want == "timeout" {
			limit = 50 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		_, err := Offset(ctx, server(t, time.Now, tc.change), time.Now)
		cancel()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
