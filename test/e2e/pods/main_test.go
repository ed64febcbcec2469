//go:build e2e

// Package pods proves what a pod may expect of its node, whoever reads its manifest: that it runs, ends and fails as
// elsewhere, with its volumes, its network, its logs and exec. Kip runs as a user has it: as a pod that its chart has
// installed, with the chart's rights. Its cells are instances of a model of EC2.
package pods

import (
	"context"
	"errors"
	"flag"
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
	flag.Parse()
	network := harness.MustClaim("pods")
	o := harness.Options{
		Network:   network,
		Stderr:    os.Stderr,
		Installed: true,
		AuditLog:  filepath.Join(os.TempDir(), network.Bridge+"-audit.log"),
	}
	os.Exit(func() int {
		if !testing.Short() { // of tests that -short leaves out
			images, err := meshFolder()
			if err != nil {
				fmt.Fprintln(os.Stderr, "make the image of a mesh:", err)
				return 1
			}
			defer os.RemoveAll(images)
			o.DevArgs = []string{"--images", images}
		}
		return harness.Main(o, &world, m.Run)
	}())
}

// meshFolder is a folder with the image of a mesh.
func meshFolder() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "mesh-image-"); err != nil {
		return "", err
	}
	if err := writeMeshImage(context.Background(), dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// space is a namespace of a test's own.
type space struct{ *namespace.Space }

func newSpace(t *testing.T) *space {
	t.Helper()
	return &space{namespace.New(t, world)}
}
