//go:build e2e

// Package dualstack proves on the real parts, as package e2e does, that cells and
// Services have both families where the cluster is dual-stack. Its world is its own:
// that of e2e has IPv4 only, as most clusters.
package dualstack

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// The network of the cells.
var (
	ownNetwork = harness.MustClaim("dualstack")
	ipv6CIDR   = ownNetwork.IPv6CIDR.String()
)

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	o := harness.Options{Network: ownNetwork, Race: true, Stderr: os.Stderr, DevArgs: []string{"--ipv6-cidr", ipv6CIDR}}
	os.Exit(harness.Main(o, &world, m.Run))
}

// space is a namespace of a test's own.
type space struct{ *namespace.Space }

func newSpace(t *testing.T) *space {
	t.Helper()
	return &space{namespace.New(t, world)}
}

// exec runs a command in a pod, and returns what it prints.
func (s *space) exec(ctx context.Context, pod string, command ...string) (string, error) {
	out, code, errs := s.Attempt(ctx, append([]string{"exec", pod, "--"}, command...)...)
	if code != 0 {
		return out, fmt.Errorf("%s: exit %d: %s%s", strings.Join(command, " "), code, out, errs)
	}
	return out, nil
}
