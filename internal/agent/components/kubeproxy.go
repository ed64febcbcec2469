package components

import (
	"context"

	"github.com/spf13/pflag"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-proxy/app"
)

// KubeProxy runs kube-proxy's command line, which it reads from os.Args, and
// returns its exit code.
func KubeProxy() int {
	return cli.Run(app.NewProxyCommand())
}

// runKubeProxy runs kube-proxy with the configuration in a file, in a process that
// has set up its logs. It returns when kube-proxy has failed.
func runKubeProxy(ctx context.Context, config string) error {
	o := app.NewOptions()
	flags := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	o.AddFlags(flags)
	o.ConfigFile = config
	if err := o.Complete(flags); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	return o.Run(ctx)
}
