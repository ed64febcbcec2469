package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/elotl/kip/internal/adminapi"
)

func generation(k *kipctl) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "generation",
		Short: "Show whether Kip's store knows of all instances that the cloud shows",
		Long: "Show whether Kip's store knows of all instances that the cloud shows.\n\n" +
			"Each launch raises the generation of the store, and its instances are tagged with it. A store that\n" +
			"does not know of an instance is empty, or older than the instance, or another Kip has the same\n" +
			"identity. Kip then launches nothing and ends nothing that nobody has asked to end, until a person\n" +
			"decides: kipctl generation take-over.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			g, err := adminapi.NewClient(path).Generation(cmd.Context())
			if err != nil {
				return err
			}
			return k.printGeneration(g)
		},
	}
	cmd.AddCommand(takeOver(k))
	return cmd
}

func takeOver(k *kipctl) *cobra.Command {
	var yes string
	cmd := &cobra.Command{
		Use:   "take-over [--yes SHOWN]",
		Short: "Have Kip go by its store, and end the instances that it does not know of",
		Long: "Have Kip go by its store, and end the instances that it does not know of, whatever they run.\n\n" +
			"Without --yes it lists them, says what --yes is to have, and changes nothing. If others are there by\n" +
			"then, or while a zone is not shown, nothing is done: they would end, and you have not seen them.\n" +
			"Make sure first that no other Kip has the same identity: a copy of the cluster, or a second store\n" +
			"for the same node name, with the same account of the cloud. Its cells would end. Where there is a newer backup, or the lost volume, restore that\n" +
			"instead: then nothing has to end.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			client := adminapi.NewClient(path)
			ask := client.Generation
			if yes != "" {
				ask = func(ctx context.Context) (adminapi.Generation, error) { return client.TakeOver(ctx, yes) }
			}
			g, err := ask(cmd.Context())
			if err != nil {
				return err
			}
			if err := k.printGeneration(g); err != nil {
				return err
			}
			what := fmt.Sprintf("%s that the store does not know of", adminapi.Count(len(g.Unknown), "instance"))
			switch {
			case yes != "":
				fmt.Fprintf(k.err, "Kip goes by its store now. %s will be ended, at most cells.endLimit at a time: see kipctl allow.\n", what)
			case g.Behind == "":
				fmt.Fprintln(k.err, "There is nothing to take over.")
			case g.Incomplete != "":
				return fmt.Errorf("nothing was done, and nothing can be yet: %s", g.Incomplete)
			default:
				return fmt.Errorf("nothing was done: --yes %s ends %s, and whatever runs on them; their pods get others", g.Shown, what)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&yes, "yes", "", "do it, for the list of this name: `SHOWN`")
	return cmd
}

// printGeneration prints what the store knows of.
func (k *kipctl) printGeneration(g adminapi.Generation) error {
	return k.print(g, func(w io.Writer) error {
		t := table(w, "STORE", "GENERATION", "BEHIND")
		t.row(g.Store, fmt.Sprint(g.Number), orNone(g.Behind))
		if err := t.w.Flush(); err != nil || len(g.Unknown) == 0 {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		t = table(w, "INSTANCE", "GENERATION", "POD", "AGE")
		for _, i := range g.Unknown {
			t.row(i.Instance, orNone(i.Generation), orNone(podOf(i.Pod)), duration.HumanDuration(k.clock.Since(i.Launched)))
		}
		return t.w.Flush()
	})
}
