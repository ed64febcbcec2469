package main

import (
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/crd"
)

func crds(k *kipctl) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "crd",
		Short: "Install or update the definition of the Cell resource",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("say what to do: %q", cmd.CommandPath()+" update")
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "update",
		Short: "Install the definition of the Cell resource, or replace an older one",
		Long: "Install the definition of the Cell resource, or replace an older one.\n\n" +
			"The definition comes with kipctl. One in the cluster that is newer stays as it is, and the command succeeds:\n" +
			"an older Kip works with it. It needs the rights to get, create and update customresourcedefinitions.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := k.connect(k.config())
			if err != nil {
				return err
			}
			out, err := crd.Update(cmd.Context(), c.crds)
			if apierrors.IsForbidden(err) {
				return fmt.Errorf("%w: it takes the rights to get, create and update customresourcedefinitions.apiextensions.k8s.io", err)
			}
			if err != nil {
				return err
			}
			return k.print(out, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, described(out))
				return err
			})
		},
	})
	return cmd
}

// described says what was done to the definition.
func described(o crd.Outcome) string {
	switch {
	case !o.Found:
		return fmt.Sprintf("Installed the definition of cells, version %d", o.After)
	case o.Before < o.After:
		return fmt.Sprintf("Updated the definition of cells from version %d to %d", o.Before, o.After)
	case o.Ours:
		return fmt.Sprintf("The definition of cells has version %d already", o.After)
	}
	return fmt.Sprintf("The definition of cells has version %d, newer than this kipctl's: kept it", o.After)
}
