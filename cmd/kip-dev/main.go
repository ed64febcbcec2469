// Command kip-dev runs Kip on one machine: an embedded Kubernetes control
// plane, a registry, kubectl, and Kip itself with the local cloud.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	// Under the name kubectl, or as its subcommand, this is kubectl and nothing
	// else: its flags are its own.
	if filepath.Base(os.Args[0]) == "kubectl" {
		os.Exit(kubectl(os.Args))
	}
	if len(os.Args) > 1 && os.Args[1] == "kubectl" {
		os.Exit(kubectl(os.Args[1:]))
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kip-dev:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "kip-dev",
		Short:         "Kip on one machine, with a Kubernetes control plane of its own",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(runCommand(), upCommand(), clusterCommand(), cleanCommand(), interruptCommand(), outageCommand(), kubectlCommand())
	return cmd
}
