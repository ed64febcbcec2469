// Kipctl shows what Kip does: cells, the pods on them, and why a pod is where it
// is. It asks the Kubernetes API and, where it can, Kip's local socket; cleanup and doctor can ask the cloud. It changes
// nothing, but that migrate --write rewrites a provider.yaml, restore writes Kip's store, eks deploy installs Kip, exec runs
// what its user wants on a machine, cleanup and uninstall end all that Kip has made, crd update installs a definition, and try
// runs pods of its own and removes them.
// Installed as kubectl-kip it is `kubectl kip`.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	_ "time/tzdata" // neither Kip's image nor Windows has time zones

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/bootimages"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	k := &kipctl{
		in:             os.Stdin,
		out:            os.Stdout,
		err:            os.Stderr,
		clock:          clock.RealClock{},
		waits:          clock.RealClock{},
		connect:        connect,
		fallbackSocket: defaultSocket,
		leaderWait:     leaderWait,
		consolePause:   consolePause,
		releases:       bootimages.Published,
	}
	root := newRoot(k, displayName(os.Args[0]))
	err := root.ExecuteContext(ctx)
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.status)
	case err != nil:
		os.Exit(1) // the error has been printed
	}
}

// displayName is how the command is called, by the name of its file.
func displayName(file string) string {
	name := strings.TrimSuffix(filepath.Base(file), ".exe")
	if name == "kubectl-kip" {
		return "kubectl kip"
	}
	return "kipctl"
}
