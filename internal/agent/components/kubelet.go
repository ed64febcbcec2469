package components

import (
	"context"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	"k8s.io/kubernetes/cmd/kubelet/app"
)

// Kubelet runs the kubelet's command line, which it reads from os.Args, and
// returns its exit code.
func Kubelet() int {
	return cli.Run(app.NewKubeletCommand(context.Background()))
}
