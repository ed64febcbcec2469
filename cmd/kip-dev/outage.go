package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/cloud/host"
)

func outageCommand() *cobra.Command {
	var state string
	var over bool
	cmd := &cobra.Command{
		Use:   "outage ZONE",
		Short: "Rehearse that a zone of the local cloud has no capacity, until --over",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return host.Outage(host.Config{StateDir: filepath.Join(state, "cloud")}, args[0], !over)
		},
	}
	cmd.Flags().StringVar(&state, "state", ".kip", "`folder` of the running stack")
	cmd.Flags().BoolVar(&over, "over", false, "the zone has capacity again")
	return cmd
}
