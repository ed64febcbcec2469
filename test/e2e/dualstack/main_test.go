//go:build e2e

// Package dualstack proves on the real parts, as package e2e does, that cells and
// Services have both families where the cluster is dual-stack. Its world is its own:
// that of e2e has IPv4 only, as most clusters.
package dualstack

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// The network of the cells; other ones let two runs go side by side.
var (
	bridge   = cmp.Or(os.Getenv("KIP_E2E_DUALSTACK_BRIDGE"), "kipe2e6")
	cidr     = cmp.Or(os.Getenv("KIP_E2E_DUALSTACK_CIDR"), "10.116.0.0/16")
	ipv6CIDR = cmp.Or(os.Getenv("KIP_E2E_DUALSTACK_IPV6_CIDR"), "fd10:116::/64")
)

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	o := harness.Options{Name: bridge, CIDR: cidr, Race: true, Stderr: os.Stderr, DevArgs: []string{"--ipv6-cidr", ipv6CIDR}}
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
