package kip

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elotl/kip/internal/agent/imageplugin"
)

// ending are goroutines that end by themselves a while after they were told to: a reflector
// of client-go whose watch or back-off is under way, and a queue that looks twice a second
// whether it was shut down.
var ending = []string{
	"k8s.io/client-go/tools/cache.(*Reflector)",
	"k8s.io/client-go/util/workqueue.(*Typed[...]).updateUnfinishedWorkLoop",
}

// patience is how long a test waits for what must come, and they have to end. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) != "" {
		os.Exit(imageplugin.Run())
	}
	code := m.Run()
	if code == 0 {
		awaitEnds()
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// awaitEnds waits until nothing of ending runs. What still does after patience is a leak, which
// goleak then finds.
func awaitEnds() {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(50 * time.Millisecond) {
		if !strings.Contains(stacks(), ending[0]) && !strings.Contains(stacks(), ending[1]) {
			return
		}
	}
}

// stacks are those of all goroutines.
func stacks() string {
	for b := make([]byte, 1<<20); ; b = make([]byte, 2*len(b)) {
		if n := runtime.Stack(b, true); n < len(b) {
			return string(b[:n])
		}
	}
}
