package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/version"
)

// versions are those of both sides.
type versions struct {
	Kipctl adminapi.Version  `json:"kipctl"`
	Kip    *adminapi.Version `json:"kip,omitempty"`
}

func showVersion(k *kipctl) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of kipctl, and of the Kip behind the local socket",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Kipctl: adminapi.Version{Version: version.String(), Kubernetes: version.Kubernetes, Go: runtime.Version()}}
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
					_, err = fmt.Fprintln(w, "kip:    not asked:", err)
					return err
				}
				_, err := fmt.Fprintln(w, "kip:   ", text(*v.Kip))
				return err
			})
		},
	}
}
