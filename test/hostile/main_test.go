//go:build e2e

// Package hostile attacks Kip as whoever has taken a cell can: on a real control plane
// and real cells of the local cloud. Root on a cell fires at the cell API, an agent of
// the attacker's own answers in the place of itzo, and pods attack agents. Meanwhile
// the cell of a bystander is used, and Kip's memory is looked at. Each attack prints a
// line. It needs root and what `make build` builds.
package hostile

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/elotl/kip/test/harness"
)

var (
	ownNetwork = harness.MustClaim("hostile")
	// metrics is where Kip tells of its health.
	metrics = netip.AddrPortFrom(ownNetwork.Host(), 10255).String()
)

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

// seed is that of the fuzzed requests. The same each time, so that a check says
// something of the change that it checks; 0 takes another.
var seed = func() int64 {
	n, err := strconv.ParseInt(cmp.Or(os.Getenv("HOSTILE_SEED"), "1"), 10, 64)
	if err != nil {
		fmt.Fprintf(os.Stderr, "HOSTILE_SEED: %v\n", err)
		os.Exit(2)
	}
	if n == 0 {
		n = time.Now().UnixNano()
	}
	return n
}()

// Kip is built without -race, which needs several times the memory: its memory is
// what is looked at here. That of make e2e tells of data races.
func TestMain(m *testing.M) {
	os.Exit(harness.Main(harness.Options{Network: ownNetwork, Stderr: os.Stderr}, &world, m.Run))
}
