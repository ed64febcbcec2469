package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/elotl/kip/internal/adminapi"
)

func allow(k *kipctl) *cobra.Command {
	var yes string
	cmd := &cobra.Command{
		Use:   "allow [--yes TIME]",
		Short: "Let end what Kip holds back, since so many ends may be a mistake",
		Long: "Let end the instances that Kip holds back: of cells that count as lost while many others do as well,\n" +
			"or that were heard a moment ago, and of instances with Kip's tags that no cell has.\n\n" +
			"Without --yes it lists them, with why each is to end and why it does not, changes nothing, and says the\n" +
			"TIME of the list. With --yes TIME those of the list may end once; what is held back since is asked for\n" +
			"again. Make sure first that they are lost in fact: that the cloud's account, region and API are the\n" +
			"right ones, and that it is not Kip that is cut off. What runs on them ends with them.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			client := adminapi.NewClient(path)
			ask := client.Held
			if yes != "" {
				seen, err := time.Parse(time.RFC3339Nano, yes)
				if err != nil {
					return fmt.Errorf("--yes: %w: it is the time that kipctl allow says with its list", err)
				}
				ask = func(ctx context.Context) ([]adminapi.HeldEnd, error) { return client.Allow(ctx, seen) }
			}
			held, err := ask(cmd.Context())
			if err != nil {
				return err
			}
			if err := k.print(held, func(w io.Writer) error { return k.heldTable(w, held) }); err != nil {
				return err
			}
			switch {
			case len(held) == 0:
				fmt.Fprintln(k.err, "Nothing is held back.")
			case yes == "":
				last := slices.MaxFunc(held, func(a, b adminapi.HeldEnd) int { return a.Since.Compare(b.Since) }).Since
				return fmt.Errorf("nothing was done: --yes %s lets all of this end", last.UTC().Format(time.RFC3339Nano))
			default:
				fmt.Fprintf(k.err, "%s may end.\n", adminapi.Count(len(held), "instance"))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&yes, "yes", "", "do it, for the list of this `TIME`")
	return cmd
}

func (k *kipctl) heldTable(w io.Writer, held []adminapi.HeldEnd) error {
	if len(held) == 0 {
		return nil
	}
	t := table(w, "INSTANCE", "CELL", "POD", "HELD FOR", "WHY", "HELD BACK")
	for _, h := range held {
		t.row(h.Instance, h.Cell, podOf(h.Pod), duration.HumanDuration(k.clock.Since(h.Since)), h.Why, h.HeldBack)
	}
	return t.w.Flush()
}
