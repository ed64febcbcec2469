package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/elotl/kip/dev/cluster"
	"github.com/elotl/kip/internal/cloud/local"
)

// stopTimeout bounds an orderly stop; a healthy one takes two or three seconds.
const stopTimeout = time.Minute

func clusterCommand() *cobra.Command {
	var state, bridge, cidr string
	cmd := &cobra.Command{Use: "cluster", RunE: func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		state, err := filepath.Abs(state)
		if err != nil {
			return err
		}
		lc := local.Config{StateDir: filepath.Join(state, "cloud"), Bridge: bridge, CIDR: netip.MustParsePrefix(cidr), Log: log}
		if err := local.EnsureBridge(ctx, lc); err != nil {
			return err
		}
		gw, err := lc.Gateway()
		if err != nil {
			return err
		}
		began := time.Now()
		c, err := cluster.Start(ctx, cluster.Options{StateDir: state, Address: gw, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), NodeName: "kip-0", Log: log})
		if err != nil {
			return errors.Join(err, local.Destroy(context.Background(), lc))
		}
		fmt.Println("READY", c.AdminKubeconfig(), time.Since(began))
		select {
		case <-ctx.Done():
		case err = <-c.Failed():
		}
		began = time.Now()
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err = errors.Join(err, c.Stop(sctx), local.Destroy(sctx, lc))
		fmt.Println("STOPPED", time.Since(began))
		return err
	}}
	fs := cmd.Flags()
	_ = pflag.NewFlagSet
	fs.StringVar(&state, "state", ".kip", "")
	fs.StringVar(&bridge, "bridge", "kip0", "")
	fs.StringVar(&cidr, "cidr", "10.110.0.0/16", "")
	return cmd
}
