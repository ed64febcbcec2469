package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
)

// kubectl runs upstream's kubectl with args, of which the first is its name,
// and returns its exit code.
func kubectl(args []string) int {
	os.Args = args // upstream reads them there to find its plugins
	return cli.Run(kubectlcmd.NewDefaultKubectlCommand())
}

// kubectlCommand is only what `kip-dev help` shows: main sees the subcommand
// before cobra does, since its flags are kubectl's.
func kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl",
		Short:              "kubectl, for machines that have none",
		DisableFlagParsing: true,
		Run:                func(_ *cobra.Command, args []string) { os.Exit(kubectl(append([]string{"kubectl"}, args...))) },
	}
}
