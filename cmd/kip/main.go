// Command kip is a Virtual Kubelet provider: it registers virtual nodes, one if nothing else
// is configured, and gives every pod that is scheduled there a cloud instance of its own.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	_ "time/tzdata" // neither Kip's image nor Windows has time zones

	"github.com/elotl/kip/internal/kip"
	"github.com/elotl/kip/internal/version"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

func main() {
	if kip.Child(os.Args[1:]) {
		return
	}
	// Thousands of cells cost Kip more memory than processor.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kip:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:           "kip",
		Short:         "Virtual nodes on which every pod gets a cloud instance of its own",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			slog.SetDefault(o.Log)
			klog.SetSlogLogger(o.Log)
			return kip.Run(cmd.Context(), o.Options)
		},
	}
	o.add(root.Flags())
	root.AddCommand(
		&cobra.Command{
			Use:   "version",
			Short: "Print the version",
			Args:  cobra.NoArgs,
			Run: func(cmd *cobra.Command, _ []string) {
				fmt.Fprintf(cmd.OutOrStdout(), "kip %s, kubelet %s\n", version.String(), version.Kubernetes)
			},
		},
		&cobra.Command{
			Use:   "providers",
			Short: "List the providers that --provider takes",
			Args:  cobra.NoArgs,
			Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), provider) },
		},
	)
	return root
}
