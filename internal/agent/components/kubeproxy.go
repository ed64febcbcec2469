package components

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-proxy/app"
)

// KubeProxy runs kube-proxy's command line, which it reads from os.Args, and
// returns its exit code.
func KubeProxy() int {
	return cli.Run(app.NewProxyCommand())
}
