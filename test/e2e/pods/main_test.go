//go:build e2e

// Package pods proves what a pod may expect of its node, whoever reads its manifest: that it runs, ends and fails as
// elsewhere, with its volumes, its network, its logs and exec. Kip runs as a user has it: as a pod that its chart has
// installed, with the chart's rights. Its cells are instances of a model of EC2.
package pods

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	network := harness.MustClaim("pods")
	o := harness.Options{
		Network:   network,
		Stderr:    os.Stderr,
		Installed: true,
		AuditLog:  filepath.Join(os.TempDir(), network.Bridge+"-audit.log"),
	}
	os.Exit(harness.Main(o, &world, m.Run))
}

// space is a namespace of a test's own.
type space struct{ *namespace.Space }

func newSpace(t *testing.T) *space {
	t.Helper()
	return &space{namespace.New(t, world)}
}
