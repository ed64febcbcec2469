package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/adminapi"
)

func cleanupOf(k *kipctl) *cobra.Command {
	var o outside
	cmd := &cobra.Command{
		Use:   "cleanup --yes",
		Short: "End all pods, cells and instances of this Kip, and remove its node: before Kip is uninstalled",
		Long: "End all that this Kip has made, and prove that nothing is left.\n\n" +
			"It DELETES EVERY POD on Kip's virtual node, each with its grace period and without regard to\n" +
			"PodDisruptionBudgets; pods of a Deployment and the like wait for another node. It terminates every\n" +
			"cell, standby cells too, and every instance in the cloud that has this Kip's tags, and removes the\n" +
			"Cell resources, the node and its lease.\n\n" +
			"Without --yes it says what there is and changes nothing. It can be interrupted and run again: until\n" +
			"then Kip stays as it is, makes no cells, and its node takes no pods. To keep Kip after all, restart\n" +
			"it and `kubectl uncordon` the node. What is left in Kip's store is for you to remove. The exit\n" +
			"status is not 0 if anything is left, or if it is not known whether anything is.\n\n" +
			"With -f it needs no Kip that runs: use it if Kip is gone. It asks the cloud that a provider.yaml names,\n" +
			"with your credentials, and lists the controller IDs of the Kips that have instances, their parts or\n" +
			"disks there. With --controller it lists what one of them has there and in the cluster of your\n" +
			"kubeconfig, and with --yes it ends the instances and removes their parts. It refuses if it sees that\n" +
			"this Kip runs. It needs --kip-gone if the cluster cannot tell, or if a pod or a workload of Kip is left.\n" +
			"It never ends disks of volumes, and removes nothing in the cluster.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.timeout <= 0 {
				return fmt.Errorf("--timeout is %s: it must be above 0", o.timeout)
			}
			if err := o.check(); err != nil {
				return err
			}
			if o.file != "" {
				return k.cleanupOutside(cmd.Context(), o)
			}
			path, _ := k.socketPath()
			client := adminapi.NewClient(path)
			if !o.yes {
				h, err := client.Holdings(cmd.Context())
				if err != nil {
					return err
				}
				if err := k.print(h, func(w io.Writer) error { return holdings(w, h) }); err != nil {
					return err
				}
				if len(h.Left()) == 0 {
					fmt.Fprintln(k.err, "There is nothing to clean up.")
					return nil
				}
				return errors.New("nothing was done: --yes ends all of this, and deletes the pods")
			}
			h, err := client.Cleanup(cmd.Context(), o.timeout, func(p adminapi.Progress) {
				fmt.Fprintf(k.err, "%s %s\n", p.Time.Local().Format(time.TimeOnly), p.Message)
			})
			if h.Node != "" {
				if err := k.print(h, func(w io.Writer) error { return holdings(w, h) }); err != nil {
					return err
				}
			}
			if cmd.Context().Err() != nil {
				return fmt.Errorf("interrupted: Kip makes no cells and its node takes no pods; run it again, or restart Kip and uncordon the node: %w", err)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(k.err,
				"Clean: nothing of this Kip is left in the cloud, but the disks of volumes, or in the cluster. It makes nothing new until it is\n"+
					"started again: stop it, and remove it.\n")
			return nil
		},
	}
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do it")
	cmd.Flags().StringVarP(&o.file, "provider-config", "f", "", "Kip's provider.yaml, a `file`, - for standard input: ask its cloud, and no Kip")
	cmd.Flags().StringVar(&o.controller, "controller", "", "`ID` of the Kip, with -f")
	cmd.Flags().BoolVar(&o.kipGone, "kip-gone", false, "end the instances although no cluster says that this Kip has stopped, with -f")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 10*time.Minute, "how `long` it may take")
	return cmd
}

// holdings writes what there is of a Kip.
func holdings(w io.Writer, h adminapi.Holdings) error {
	t := table(w, "WHAT", "COUNT", "NAMES")
	for _, part := range []struct {
		what  string
		names []string
	}{{"pods", h.Pods}, {"cells", h.Cells}, {"instances", h.Instances}, {"Cell resources", h.CellResources}} {
		t.row(part.what, strconv.Itoa(len(part.names)), cmp.Or(adminapi.Some(part.names), "-"))
	}
	if len(h.Parts) > 0 { // which not every cloud has
		t.row("parts of instances", strconv.Itoa(len(h.Parts)), adminapi.Some(h.Parts))
	}
	there := func(is bool) string {
		if is {
			return "there"
		}
		return "gone"
	}
	t.row("node", there(h.NodeExists), h.Node)
	t.row("node lease", there(h.NodeLease), h.Node)
	if err := t.w.Flush(); err != nil {
		return err
	}
	if len(h.Disks) > 0 {
		if _, err := fmt.Fprintf(w, "\nDisks of volumes, which stay with their data:\n  %s\n"+
			"Delete their claims while Kip runs, or remove them in the cloud.\n", strings.Join(h.Disks, "\n  ")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\nRecords of Kip's store, which stay: %s\nThey are %s\n", counted(h.Records), h.Store)
	return err
}
