package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/cloud/host"
)

func outageCommand() *cobra.Command {
	var state string
	var over, machines bool
	cmd := &cobra.Command{
		Use:   "outage ZONE",
		Short: "Rehearse that a zone of the local cloud fails: it has no capacity until --over",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := host.Config{StateDir: filepath.Join(state, "cloud")}
			if err := host.Outage(cfg, args[0], !over); err != nil || !machines {
				return err
			}
			n, err := host.FailMachines(cfg, args[0])
			fmt.Fprintf(cmd.OutOrStdout(), "%d machines of zone %s have failed\n", n, args[0])
			return err
		},
	}
	cmd.Flags().StringVar(&state, "state", ".kip", "`folder` of the running stack")
	cmd.Flags().BoolVar(&over, "over", false, "the zone has capacity again")
	cmd.Flags().BoolVar(&machines, "machines", false, "those that run in the zone fail, too")
	cmd.MarkFlagsMutuallyExclusive("over", "machines")
	return cmd
}
