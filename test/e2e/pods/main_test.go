//go:build e2e

// Package pods proves what a pod may expect of its node, whoever reads its manifest: that it runs, ends and fails as
// elsewhere, with its volumes, its network, its logs and exec. Kip runs as a user has it: as a pod that its chart has
// installed, with the chart's rights. Its cells are instances of a model of EC2.
package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	audit := filepath.Join(os.TempDir(), fmt.Sprintf("kip-pods-%d-audit.log", os.Getpid()))
	o := harness.Options{
		Network:   harness.MustClaim("pods"),
		Stderr:    os.Stderr,
		Installed: true,
		AuditLog:  audit, // Main fails if Kip was refused anything
	}
	code := harness.Main(o, &world, m.Run)
	if code == 0 {
		os.Remove(audit)
	}
	os.Exit(code)
}

// space is a namespace of a test's own.
type space struct{ *namespace.Space }

func newSpace(t *testing.T) *space {
	t.Helper()
	return &space{namespace.New(t, world)}
}
