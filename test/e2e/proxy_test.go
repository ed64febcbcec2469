//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// probed is a pod with all that a kubelet has series of: a limit of CPU, which gives it periods, and a probe.
const probed = `apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeSelector: {type: virtual-kubelet}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 200m, memory: 64Mi}}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
`

// proxied asks a node by the API server's proxy. The answer has its type, without the parameters.
func proxied(ctx context.Context, node, path string) (body, kind string, err error) {
	path, query, _ := strings.Cut(path, "?")
	r := world.Admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + node + "/proxy" + path)
	if name, value, given := strings.Cut(query, "="); given {
		r = r.Param(name, value)
	}
	result := r.Do(ctx).ContentType(&kind)
	data, err := result.Raw()
	kind, _, _ = strings.Cut(kind, ";")
	return string(data), kind, err
}

func TestTheProxyOfTheVirtualNodeAnswersAsThatOfAnOrdinaryNode(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(strings.Replace(probed, "NAME", "cell", 1))
	s.Apply(elsewhere(strings.Replace(probed, "NAME", "plain", 1)))
	s.WaitReady("cell")
	s.WaitReady("plain")
	// Without a reason: as an ordinary node does. With one: it is in the body, since the virtual node has no machine.
	for path, why := range map[string]string{
		"/healthz": "", "/healthz/ping": "", "/healthz/log": "", "/healthz/syncloop": "", "/configz": "", "/pods": "", "/runningpods/": "",
		"/stats/summary": "", "/metrics": "", "/metrics/cadvisor": "", "/metrics/resource": "", "/metrics/probes": "", "/metrics/slis": "",
		"/statusz": "",
		"/flagz":   "has no flags", "/logs/": "is no machine", "/logs/?query=kubelet": "kipctl logs CELL", "/debug/pprof/": "is no machine",
		"/debug/flags/v": "is no machine",
	} {
		_, wanted, plainly := proxied(s.Context(), ordinaryNode, path)
		body, kind, err := proxied(s.Context(), harness.Node, path)
		switch {
		case why != "" && (err == nil || !strings.Contains(body+err.Error(), why)):
			t.Errorf("%s answers %v, %q; want a refusal that says %q", path, err, body, why)
		case why == "" && (err != nil || plainly != nil || kind != wanted):
			t.Errorf("%s answers %v with %q, on an ordinary node %v with %q", path, err, kind, plainly, wanted)
		}
	}
	for _, path := range []string{"/metrics/cadvisor", "/metrics/resource", "/metrics/probes"} {
		s.Eventually(path+" has the same series of both pods", func(ctx context.Context) error {
			plain, err := seriesOf(ctx, ordinaryNode, path, s.NS, "plain")
			if err != nil {
				return err
			}
			cell, err := seriesOf(ctx, harness.Node, path, s.NS, "cell")
			if err != nil {
				return err
			}
			if len(plain) == 0 {
				return errors.New("the ordinary node has none")
			}
			var missing []string
			for one := range plain {
				if !cell[one] {
					missing = append(missing, one)
				}
			}
			if len(missing) > 0 {
				slices.Sort(missing)
				return fmt.Errorf("of %d the virtual node lacks %d:\n%s", len(plain), len(missing), strings.Join(missing, "\n"))
			}
			return nil
		})
	}
}

// seriesOf are the series of a pod that a node tells at a path, each by its name and the names of its labels that have a value,
// by which queries join and select.
func seriesOf(ctx context.Context, node, path, namespace, pod string) (map[string]bool, error) {
	text, _, err := proxied(ctx, node, path)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	series := map[string]bool{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					labels[l.GetName()] = l.GetValue()
				}
			}
			if labels["namespace"] == namespace && labels["pod"] == pod {
				series[name+" "+strings.Join(slices.Sorted(maps.Keys(labels)), ",")] = true
			}
		}
	}
	return series, nil
}

func TestKubectlWatchesCellsComeAndGo(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ctx, stop := context.WithCancel(s.Context())
	out, err := os.Create(filepath.Join(t.TempDir(), "watched"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	watch := s.Command(ctx, "get", "cells", "--watch")
	watch.Stdout = out
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stop()
		_ = watch.Wait() // it was told to end
	}()
	s.Apply(namespace.Sleeper("a"))
	s.WaitReady("a")
	cell := s.CellOf("a").Name
	sees := func(what string, want ...string) {
		s.Eventually(what, func(context.Context) error {
			text, err := os.ReadFile(out.Name())
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				f := strings.Fields(line)
				if len(f) > 3 && f[0] == cell && slices.Contains(want, f[1]) && f[2] == s.NS && f[3] == "a" {
					return nil
				}
			}
			return fmt.Errorf("kubectl prints\n%s", text)
		})
	}
	sees("the cell of the pod begins", "Requested", "Launching", "Booting")
	sees("it runs the pod", "Bound")
	s.Kubectl("delete", "pod", "a", "--wait=false")
	sees("it ends", "Draining", "Terminating", "Gone")
}
