// Package command is Kip's command line: its flags and commands. What they start is in internal/kip.
package command

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	_ "time/tzdata" // neither Kip's image nor Windows has time zones

	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/kip"
	"github.com/elotl/kip/internal/version"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// Main runs the command line of a Kip that can open these clouds. It returns the exit code.
func Main(known clouds.Set) int {
	if kip.Child(os.Args[1:]) {
		return 0
	}
	// Thousands of cells cost Kip more memory than processor.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(known).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kip:", err)
		return 1
	}
	return 0
}

func command(known clouds.Set) *cobra.Command {
	o := options{Options: kip.Options{Clouds: known}}
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
