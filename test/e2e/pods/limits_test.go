//go:build e2e

package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/configs"

	"github.com/elotl/kip/test/namespace"
)

// Databases refuse to start with fewer. What runs a container inherits its limits from the machine's init, and
// Go changes that of open files in each program on the way.
func TestAPodMayOpenAsManyFilesAsOnOtherNodes(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
`))
	s.WaitReady("a")
	var own unix.Rlimit
	here, err := configs.InspectHost("/")
	if err := errors.Join(err, unix.Getrlimit(unix.RLIMIT_NOFILE, &own)); err != nil {
		t.Fatal(err)
	}
	most := uint64(1 << 20)
	if !here.SysResource { // nobody here may raise what this host gives
		most = min(most, own.Max)
	}
	soft, hard := fmt.Sprint(min(65536, most)), fmt.Sprint(most)
	for line := range strings.Lines(s.Kubectl("exec", "a", "--", "cat", "/proc/1/limits")) {
		if of, found := strings.CutPrefix(line, "Max open files"); found && !slices.Equal(strings.Fields(of), []string{soft, hard, "files"}) {
			t.Errorf("its container has %s", line)
		}
	}
	if got := s.Kubectl("exec", "a", "--", "sh", "-c", "ulimit -Sn; ulimit -Hn"); got != soft+"\n"+hard+"\n" {
		t.Errorf("exec has %q, want %s and %s", got, soft, hard)
	}
}
