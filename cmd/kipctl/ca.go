package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/elotl/kip/internal/adminapi"
)

func ca(k *kipctl) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Show the CA by which cells know Kip, and how far its rotation is",
		Long: "Show the CA by which cells know Kip, and how far its rotation is.\n\n" +
			"While it is being rotated there are two. The new one signs; cells that know Kip by the old one yet\n" +
			"are listed, with what each waits for. When there is none any more, and after cells.caOverlap,\n" +
			"Kip drops the old one by itself.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			is, err := adminapi.NewClient(path).CA(cmd.Context())
			if err != nil {
				return err
			}
			if err := k.printCA(is); err != nil {
				return err
			}
			k.sayCA(is)
			return nil
		},
	}
	cmd.AddCommand(rotateCA(k), dropCA(k))
	return cmd
}

func rotateCA(k *kipctl) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Begin to rotate the CA: make another, and move cells to it while they run",
		Long: "Begin to rotate the CA: make another, and move cells to it while they run.\n\n" +
			"Kip connects to all cells anew, as when it is started again: pods run on, exec and port-forward end.\n" +
			"Standby cells are replaced one by one. kipctl ca shows how far it is. Take a backup when it is over:\n" +
			"cells do not obey a Kip that is restored from one of before.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			is, err := adminapi.NewClient(path).RotateCA(cmd.Context())
			if err != nil {
				return err
			}
			if err := k.printCA(is); err != nil {
				return err
			}
			fmt.Fprintln(k.err, "The rotation has begun: kipctl ca shows how far it is.")
			return nil
		},
	}
}

func dropCA(k *kipctl) *cobra.Command {
	var yes string
	cmd := &cobra.Command{
		Use:   "drop [--yes SHOWN]",
		Short: "Have the old CA dropped, and end the cells that know Kip by nothing else",
		Long: "Have the old CA dropped, and end the cells that know Kip by nothing else: those that were not reached\n" +
			"since the rotation began, or whose agent is too old for it.\n\n" +
			"Without --yes it lists them, says what --yes is to have, and changes nothing. If others are there by\n" +
			"then nothing is done. What runs on them ends with them, all at once; pods get other cells as their\n" +
			"owners and restart policies say. Without haste it is better to wait, or to delete those pods one by\n" +
			"one: a cell that is new has the new CA.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, _ := k.socketPath()
			client := adminapi.NewClient(path)
			if yes != "" {
				ended, err := client.EndUnmoved(cmd.Context(), yes)
				if err != nil {
					return err
				}
				if err := k.print(ended, func(w io.Writer) error { return unmovedTable(w, ended) }); err != nil {
					return err
				}
				fmt.Fprintf(k.err, "%s will be ended. Kip drops the old CA when they are gone.\n", adminapi.Count(len(ended), "cell"))
				return nil
			}
			is, err := client.CA(cmd.Context())
			if err != nil {
				return err
			}
			if err := k.printCA(is); err != nil {
				return err
			}
			if is.Before == nil || len(is.Unmoved) == 0 {
				k.sayCA(is)
				return nil
			}
			return fmt.Errorf("nothing was done: --yes %s ends %s, and whatever runs on them; their pods get others", is.Shown,
				adminapi.Count(len(is.Unmoved), "cell"))
		},
	}
	cmd.Flags().StringVar(&yes, "yes", "", "do it, for the list of this name: `SHOWN`")
	return cmd
}

// sayCA says where a rotation stands.
func (k *kipctl) sayCA(is adminapi.CA) {
	switch {
	case is.Before == nil && is.Untold > 0:
		fmt.Fprintf(k.err, "The CA is not being rotated. %s may trust one of before yet, and will be told when Kip reaches them.\n",
			adminapi.Count(is.Untold, "cell"))
	case is.Before == nil:
		fmt.Fprintln(k.err, "The CA is not being rotated.")
	case is.Waits != "":
		fmt.Fprintf(k.err, "The old CA is not dropped yet: %s.\n", is.Waits)
	default:
		fmt.Fprintln(k.err, "The old CA is dropped in a moment.")
	}
}

// printCA prints the CAs, and the cells that wait.
func (k *kipctl) printCA(is adminapi.CA) error {
	return k.print(is, func(w io.Writer) error {
		t := table(w, "CA", "SIGNS", "AGE", "ENDS")
		row := func(a adminapi.Authority, signs string) {
			t.row(a.Hash, signs, duration.HumanDuration(k.clock.Since(a.Made)), a.Ends.UTC().Format(time.DateOnly))
		}
		row(is.Signs, "yes")
		if is.Before != nil {
			row(*is.Before, "no")
		}
		if err := t.w.Flush(); err != nil || len(is.Unmoved) == 0 {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		return unmovedTable(w, is.Unmoved)
	})
}

func unmovedTable(w io.Writer, all []adminapi.UnmovedCell) error {
	t := table(w, "CELL", "POD", "WAITS")
	for _, u := range all {
		t.row(u.Cell, orNone(podOf(u.Pod)), u.Why)
	}
	return t.w.Flush()
}
