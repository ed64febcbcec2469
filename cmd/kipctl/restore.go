package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/leader"
	"github.com/elotl/kip/internal/store"
)

// leaderWait is longer than the lease of a Kip that was killed, which is 8 seconds
// (package leader).
const leaderWait = 15 * time.Second

func restore(k *kipctl) *cobra.Command {
	var file, node string
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "restore FILE --provider-config PATH",
		Short: "Restore a backup into the store of a Kip that does not run",
		Long: "Restore a backup into the store of a Kip that does not run.\n\n" +
			"The store is the one that provider.yaml names. Restore the newest backup, and before Kip starts\n" +
			"on an empty volume: a Kip that has started there has a store of its own, which is replaced only\n" +
			"with --overwrite. Cells that ended since the backup are then found missing, and their pods get\n" +
			"others. Instances that were launched since are unknown: while there are any, Kip launches nothing\n" +
			"and ends only what you ask it to end, until you have looked at them with kipctl generation and had\n" +
			"the store take over with kipctl generation take-over. Then they are terminated, whatever they\n" +
			"run.\n\n" +
			"The cluster's identity is read with your kubeconfig, unless provider.yaml has\n" +
			"testing.controllerID.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("name one backup: FILE; got %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return k.restore(cmd.Context(), args[0], file, node, overwrite)
		},
	}
	cmd.Flags().StringVar(&file, "provider-config", "", "Kip's provider.yaml, a `file`; required")
	cmd.Flags().StringVar(&node, "node", "kip-0", "`name` of Kip's virtual node (its --nodename)")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace the records of a store that is not empty")
	return cmd
}

func (k *kipctl) restore(ctx context.Context, backup, providerConfig, node string, overwrite bool) error {
	if providerConfig == "" {
		return errors.New("--provider-config must name Kip's provider.yaml, which says where the store is")
	}
	cfg, _, err := config.Load(providerConfig)
	if err != nil {
		return fmt.Errorf("--provider-config: %w", err)
	}
	f, err := os.Open(backup)
	if err != nil {
		return err
	}
	defer f.Close()
	summary, err := store.Inspect(f)
	if err != nil {
		return fmt.Errorf("%s: %w", backup, err)
	}
	id, err := k.controllerID(ctx, cfg, node)
	if err != nil {
		return err
	}
	// The lock of an embedded store says itself that a Kip runs.
	c := cfg.Etcd.Client
	st, err := store.Open(ctx, cfg.Etcd.Internal.DataDir, cfg.Etcd.Internal.ConfigFile,
		store.External{
			Endpoints: c.Endpoints,
			CertFile:  c.CertFile,
			KeyFile:   c.KeyFile,
			CAFile:    c.CAFile,
		})
	if err != nil {
		return err
	}
	dropped, err := k.restoreTo(ctx, st.Within(id+"/"), f, overwrite)
	if err = errors.Join(err, st.Close()); err != nil {
		return fmt.Errorf("%s: %w", backup, err)
	}
	fmt.Fprintf(k.out, "Restored %s (records: %s), taken %s (%s ago), schema %d, into the store of controller %s.\n",
		backup, records(summary.Keys), summary.Time.UTC().Format(time.RFC3339), duration.HumanDuration(k.clock.Since(summary.Time)),
		summary.Schema, id)
	if dropped > 0 {
		fmt.Fprintf(k.out, "%d of its cells, on standby or being launched, were taken out: what has become of them since is not known.\n",
			dropped)
	}
	fmt.Fprintln(k.out, "Start Kip now. It takes up the cells that still run. Cells that have ended since are found missing, and\n"+
		"their pods get others. While the cloud has instances that were launched since, Kip launches nothing, and ends\n"+
		"only what you ask it to end: kipctl generation shows them, and kipctl generation take-over ends them.")
	return nil
}

// controllerID is that of the Kip whose store it is.
func (k *kipctl) controllerID(ctx context.Context, cfg *config.Config, node string) (string, error) {
	if id := cfg.Testing.ControllerID; id != "" {
		return id, nil
	}
	c, err := k.connect(k.config())
	if err != nil {
		return "", err
	}
	ns, err := c.kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read namespace %s, whose UID is the cluster's identity: %w", metav1.NamespaceSystem, err)
	}
	return cells.ControllerID(string(ns.UID), node), nil
}

// restoreTo restores into a view, when no Kip uses it, and returns how many cells
// were not worth it.
func (k *kipctl) restoreTo(ctx context.Context, st *store.Store, f io.ReadSeeker, overwrite bool) (dropped int, err error) {
	host, err := os.Hostname()
	if err != nil {
		return 0, err
	}
	waiting, cancel := context.WithTimeout(ctx, k.leaderWait)
	defer cancel()
	log := slog.New(slog.NewTextHandler(k.err, &slog.HandlerOptions{Level: slog.LevelInfo}))
	turn, err := leader.Elect(waiting, st, fmt.Sprintf("kipctl restore on %s", host), log)
	if err != nil {
		if waiting.Err() != nil && ctx.Err() == nil {
			return 0, fmt.Errorf("a Kip uses this store (its name is above): stop all of its replicas first: %w", err)
		}
		return 0, err
	}
	if _, err = f.Seek(0, io.SeekStart); err == nil {
		err = turn.Store().Restore(ctx, f, overwrite)
	}
	if err == nil {
		if dropped, err = cells.Restored(ctx, turn.Store(), k.clock.Now()); err != nil {
			err = fmt.Errorf("restore it again, with --overwrite, before Kip is started: %w", err)
		}
	}
	return dropped, errors.Join(err, turn.Resign(context.WithoutCancel(ctx)))
}

// records counts the records of a store for people, by the first part of their
// keys.
func records(keys []string) string {
	counts := map[string]int{}
	for _, key := range keys {
		kind, _, _ := strings.Cut(key, "/")
		counts[kind]++
	}
	return counted(counts)
}

// counted is as "ca 1, cells 3".
func counted(counts map[string]int) string {
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}
