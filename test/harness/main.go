package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Main is a package's TestMain: it starts the world that all tests share, runs them
// by run, ends the world and looks whether anything is left, or Kip had a data
// race. It returns an exit code.
func Main(o Options, world **World, run func() int) int {
	var err error
	if *world, err = Start(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := *world
	code := run()
	fail := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "after the tests: "+format+"\n", args...)
		code = max(code, 1)
	}
	if code == 0 { // else tests have failed that say what is left
		if err := errors.Join(w.Empty(context.Background()), w.noStrays()); err != nil {
			fail("%v", err)
		}
	}
	if err := w.Stop(); err != nil {
		fail("%v", err)
	}
	if races, err := w.Races(); err != nil || races != "" {
		fail("Kip had data races (%v):\n%s", err, races)
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the logs are in %s\n", w.State)
		return code
	}
	// It says what Stop has left, and removes the logs.
	clean := exec.Command(w.Tool("kip-dev"), "clean", "--state", w.State, "--bridge", w.Bridge, "--cidr", o.CIDR)
	if out, err := clean.CombinedOutput(); err != nil || strings.Contains(string(out), "removed") {
		fail("something was left: %v\n%s", err, out)
	}
	return code
}

// Empty waits until there is no cell and no instance, and says which there are.
// It is for when all pods are gone and no pool of standby cells is configured.
func (w *World) Empty(ctx context.Context) error {
	left := ""
	err := w.wait(ctx, "all cells and instances are gone", func(ctx context.Context) (bool, error) {
		left = ""
		cells, err := w.Dynamic.Resource(apiv1.Resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range cells.Items {
			left += " cell " + c.GetName()
		}
		machines, err := os.ReadDir(filepath.Join(w.State, "cloud", "machines"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		for _, m := range machines {
			left += " instance " + m.Name()
		}
		return left == "", nil
	})
	if err != nil {
		return fmt.Errorf("left:%s: %w", left, err)
	}
	return nil
}

// stray is what Kip logs when it ends an instance that it has launched and does not
// know: a leak, or a pod's second cell, which it mends.
const stray = "terminate an instance that has our tags and no cell"

// noStrays fails if the world's own Kip had to end such an instance.
func (w *World) noStrays() error {
	log, err := os.ReadFile(filepath.Join(w.State, "kip.log"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, stray) {
			return fmt.Errorf("Kip had launched an instance that it did not know: %s", strings.TrimSpace(line))
		}
	}
	return nil
}

// Races returns what Kip, and those that RunKip ran, told of data races.
func (w *World) Races() (string, error) {
	files, err := filepath.Glob(w.races + ".*")
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "%s:\n%s\n", file, text)
	}
	return all.String(), nil
}

// forgetRaces removes what earlier worlds of this name told.
func (w *World) forgetRaces() error {
	files, err := filepath.Glob(w.races + ".*")
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}
