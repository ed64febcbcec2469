package components

import (
	"context"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	"k8s.io/kubernetes/cmd/kubelet/app"
)

// Kubelet runs the upstream kubelet's command line and returns its exit code.
// It reads the arguments from os.Args.
func Kubelet() int {
	return cli.Run(app.NewKubeletCommand(context.Background()))
}
