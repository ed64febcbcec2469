package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/cloud/host"
)

func interruptCommand() *cobra.Command {
	var state string
	var in time.Duration
	cmd := &cobra.Command{
		Use:   "interrupt INSTANCE",
		Short: "Rehearse that the cloud takes a cell's machine back, after a notice",
		Long: `Give Kip notice that a machine will be taken back, and take it at that time.
kubectl get cells -o wide names the instances.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at := time.Now().Add(in)
			if err := host.Interrupt(host.Config{StateDir: filepath.Join(state, "cloud")}, args[0], at); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is taken at %s\n", args[0], at.Format(time.TimeOnly))
			return nil
		},
	}
	cmd.Flags().StringVar(&state, "state", ".kip", "`folder` of the running stack")
	cmd.Flags().DurationVar(&in, "in", host.DefaultNotice, "how long before it is taken")
	return cmd
}
