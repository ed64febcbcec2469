package machine

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/elotl/kip/internal/agent/configs"
)

// asInit is set for a child of a test that does what a machine's first process does.
const asInit = "KIP_TEST_AS_INIT"

// Go sets the limit of open files back for each program that it starts, to what it was when Go
// began, so only a child shows what init's children have.
func TestWhatInitStartsMayOpenAsManyFilesAsOnOtherNodes(t *testing.T) {
	if os.Getenv(asInit) != "" {
		if err := RaiseLimits(); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("bash", "-c", "ulimit -Sn; ulimit -Hn; ulimit -Su; ulimit -Hu")
		cmd.Stdout = os.Stdout
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may raise limits")
	}
	here, err := configs.InspectHost("/")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		soft, hard int
		prefix     []string
		want       string
	}{
		"as the kernel starts init":        {1024, 4096, nil, "65536\n1048576\nunlimited\nunlimited\n"},
		"where Kip itself has higher ones": {1 << 20, 1 << 20, nil, "65536\n1048576\nunlimited\nunlimited\n"},
		// As in a container whose root may not raise limits.
		"without CAP_SYS_RESOURCE": {
			1024, 4096, []string{"setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"}, "4096\n4096\n500\n500\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.prefix == nil && !here.SysResource {
				t.Skip("this machine's root lacks CAP_SYS_RESOURCE")
			}
			begin := fmt.Sprintf(`ulimit -Sn 1000 && ulimit -Hn %d && ulimit -Sn %d && ulimit -u 500 && exec "$@"`, tc.hard, tc.soft)
			args := append([]string{"-c", begin, "bash"}, tc.prefix...)
			cmd := exec.Command("bash", append(args, os.Args[0], "-test.run=^TestWhatInitStartsMayOpenAsManyFilesAsOnOtherNodes$")...)
			cmd.Env, cmd.Stderr = append(os.Environ(), asInit+"=1"), t.Output()
			if got, err := cmd.Output(); err != nil || string(got) != tc.want {
				t.Errorf("its child has the limits %q (%v), want %q", got, err, tc.want)
			}
		})
	}
}
