//go:build e2e

package install

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/tier"
)

// The control plane emulates these, which is what upstream offers to try an older API server by: APIs and features are those
// of the version, the kubelets are not.
var olderVersions = []string{"1.33", "1.34", "1.35"}

func TestTheChartInstallsKipBesideOlderAPIServers(t *testing.T) {
	tier.All(t)
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range olderVersions {
		t.Run(version, func(t *testing.T) {
			n, err := harness.Claim("install-" + version)
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), world.Tool("kip-dev"), "run", "--once", "--emulated-version", version,
				"--nodes=1", "--cloud=aws", "--chart", filepath.Join(root, "deploy", "helm", "kip"),
				"--images", filepath.Join(world.Bin, "images", "kip"), "--state", n.State, "--bridge", n.Bridge, "--cidr", n.CIDR.String(),
				"--cell-root", filepath.Join(root, ".kip", "cell-root"), "--masquerade=false").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "ok: pod hello succeeded") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
