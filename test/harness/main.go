package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Main is a package's TestMain: it starts the world that all tests share, runs them
// by run, ends the world and looks whether anything is left. It returns an exit code.
func Main(o Options, world **World, run func() int) int {
	var err error
	if *world, err = Start(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := *world
	code := run()
	if err := w.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = 1
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the logs are in %s\n", w.State)
		return code
	}
	// It says what Stop has left, and removes the logs.
	clean := exec.Command(w.Tool("kip-dev"), "clean", "--state", w.State, "--bridge", w.Bridge, "--cidr", o.CIDR)
	if out, err := clean.CombinedOutput(); err != nil || strings.Contains(string(out), "removed") {
		fmt.Fprintf(os.Stderr, "after the tests something was left: %v\n%s", err, out)
		code = 1
	}
	return code
}
