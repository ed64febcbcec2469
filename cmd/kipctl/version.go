package main

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/version"
)

// versions are those of both sides.
type versions struct {
	Kipctl adminapi.Version  `json:"kipctl"`
	Kip    *adminapi.Version `json:"kip,omitempty"`
	// Catalogues are the dates of the prices that kipctl has, by cloud.
	Catalogues map[string]string `json:"catalogues"`
}

func showVersion(k *kipctl) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of kipctl, and of the Kip behind the local socket",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			v := versions{Kipctl: adminapi.Version{Version: version.String(), Kubernetes: version.Kubernetes, Go: runtime.Version()}}
			if v.Catalogues, err = pricelists.Dates(); err != nil {
				return err
			}
			path, named := k.socketPath()
			kip, err := adminapi.NewClient(path).Version(cmd.Context())
			if err == nil {
				v.Kip = &kip
			} else if named {
				return err
			}
			return k.print(v, func(w io.Writer) error {
				text := func(v adminapi.Version) string {
					return fmt.Sprintf("%s (Kubernetes %s, %s)", v.Version, v.Kubernetes, v.Go)
				}
				fmt.Fprintln(w, "kipctl:", text(v.Kipctl))
				if v.Kip == nil {
					fmt.Fprintln(w, "kip:    not asked:", err)
				} else {
					fmt.Fprintln(w, "kip:   ", text(*v.Kip))
				}
				var dates []string
				for _, cloud := range slices.Sorted(maps.Keys(v.Catalogues)) {
					dates = append(dates, cloud+" "+v.Catalogues[cloud])
				}
				_, err := fmt.Fprintln(w, "prices:", strings.Join(dates, ", "))
				return err
			})
		},
	}
}
