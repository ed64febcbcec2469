package hardware

import (
	"net"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agent/sntp"
)

// The agent is the one that asks.
func TestTheAgentIsToldTheTime(t *testing.T) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	const ahead = 25 * 365 * 24 * time.Hour
	go func() { ended <- tellTime(c, func() time.Time { return time.Now().Add(ahead) }) }()
	got, err := sntp.Offset(t.Context(), c.LocalAddr().String(), time.Now)
	if err != nil || (got-ahead).Abs() > time.Minute {
		t.Errorf("the clock is said to be behind by %v, %v, want %v", got, err, ahead)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it ends without saying why")
	}
}
