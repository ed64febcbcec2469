package components

import (
	"context"
	"os"
	"strings"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app"

	"github.com/elotl/kip/internal/agent/configs"
)

// Kubelet runs the kubelet's command line, which it reads from os.Args, and
// returns its exit code. With configs.KubeProxyFlag as its first argument
// kube-proxy runs in the same process: a Go runtime, and what Kubernetes' packages
// make at the start of a process, are there once and not twice. When either ends,
// so does the process.
func Kubelet() int {
	ctx := context.Background()
	if len(os.Args) > 1 {
		if config, ok := strings.CutPrefix(os.Args[1], configs.KubeProxyFlag); ok {
			os.Args = append(os.Args[:1:1], os.Args[2:]...)
			// Klog must not be set up while somebody logs. The kubelet does it again,
			// with these same defaults.
			logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
			if err := logsapi.ValidateAndApply(logsapi.NewLoggingConfiguration(), utilfeature.DefaultFeatureGate); err != nil {
				klog.ErrorS(err, "Cannot set up logging")
				return 1
			}
			go func() {
				klog.ErrorS(runKubeProxy(ctx, config), "kube-proxy ended, and the kubelet with it")
				klog.FlushAndExit(klog.ExitFlushTimeout, 1)
			}()
		}
	}
	return cli.Run(app.NewKubeletCommand(ctx))
}
