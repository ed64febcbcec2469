//go:build e2e

package neighbours

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// apps are Deployments that run on both nodes. busy uses more CPU than it may, calm is probed over the network, crash fails.
var apps = map[string]string{
	"busy":  "command: [sh, -c, 'while :; do :; done'], resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 100m, memory: 32Mi}}",
	"calm":  "command: [httpd, -f, -p, '8080'], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}",
	"crash": "command: [sh, -c, 'exit 1']",
}

const appOnANode = `apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      nodeSelector: {kubernetes.io/hostname: NODE}
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: 'busybox:1.36', CONTAINER}]
---
`

// side is a node and what runs there, of two nodes that are compared.
type side struct {
	name, node string
	address    string // of its kubelet
}

func (s *space) side(name, node string) *side {
	s.Helper()
	var manifest strings.Builder
	for app, container := range apps {
		_, err := strings.NewReplacer("NAME", app+"-"+name, "NODE", node, "CONTAINER", container).WriteString(&manifest, appOnANode)
		if err != nil {
			s.Fatal(err)
		}
	}
	s.Apply(manifest.String())
	n, err := world.Admin.CoreV1().Nodes().Get(s.Context(), node, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	d := &side{name: name, node: node}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			d.address = net.JoinHostPort(a.Address, strconv.Itoa(int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)))
		}
	}
	return d
}

// own are labels whose values each container, pod or machine has for itself.
var own = []string{"id", "name", "uid", "pod_uid", "device", "pod_ip", "host_ip"}

// notOfCells is what the virtual node does not ask its cells for, by docs/pod-metrics.md.
const notOfCells = "kubelet_container_log_filesystem_used_bytes"

// text is a series as it would be on any node, and whether it is about this one.
func (d *side) text(labels map[string]string) (text string, mine bool) {
	var b strings.Builder
	b.WriteString(labels["__name__"])
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		v := labels[name]
		app, rest, found := strings.Cut(v, "-"+d.name)
		switch {
		case name == "__name__":
			continue
		case slices.Contains(own, name):
			v = "*"
		case v == d.node:
			v, mine = "NODE", true
		case v == d.address:
			v, mine = "ADDRESS", true
		case found && apps[app] != "" && (rest == "" || rest[0] == '-'):
			v, mine = app, true
		}
		fmt.Fprintf(&b, " %s=%q", name, v)
	}
	return b.String(), mine
}

// of returns the series about a node by their texts, with their values.
func (d *side) of(all []sample) map[string]float64 {
	found := map[string]float64{}
	for _, s := range all {
		if text, mine := d.text(s.Labels); mine {
			if v, err := s.value(); err == nil {
				found[text] = v
			}
		}
	}
	return found
}

// lacks says which of some series others do not have.
func lacks[A, B any](of map[string]A, others map[string]B) error {
	var missing []string
	for _, one := range slices.Sorted(maps.Keys(of)) {
		if _, has := others[one]; !has {
			missing = append(missing, one)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("of %d series %d:\n%s", len(of), len(missing), strings.Join(missing, "\n"))
}

func differ[A any](cell, plain map[string]A) error {
	if len(cell) == 0 || len(plain) == 0 {
		return fmt.Errorf("%d series on Kip's node, %d on the ordinary one", len(cell), len(plain))
	}
	var errs []error
	if err := lacks(plain, cell); err != nil {
		errs = append(errs, fmt.Errorf("only the ordinary node has %w", err))
	}
	if err := lacks(cell, plain); err != nil {
		errs = append(errs, fmt.Errorf("only Kip's node has %w", err))
	}
	return errors.Join(errs...)
}

// expressions are of kube-prometheus' dashboards, and some that show what its alerts compare. The values on both nodes are between
// least and most. NS is the namespace.
var expressions = []struct {
	text        string
	least, most float64
}{
	{`up{job="kubelet"}`, 1, 1},
	// Twice its limit would be a container that is counted twice.
	{`node_namespace_pod_container:container_cpu_usage_seconds_total:sum_rate5m{namespace="NS", pod=~"busy-.*", container!=""}`, 0.005, 0.2},
	{`sum(node_namespace_pod_container:container_cpu_usage_seconds_total:sum_rate5m{namespace="NS", pod=~"busy-.*"}
		* on (namespace, pod) group_left(workload, workload_type) namespace_workload_pod:kube_pod_owner:relabel{namespace="NS"}
		) by (workload, workload_type)`, 0.005, 0.2},
	{`sum(node_namespace_pod_container:container_memory_working_set_bytes{namespace="NS", pod=~"busy-.*", container!=""}) by (pod, node)`,
		1, 32 << 20},
	{`cluster:namespace:pod_cpu:active:kube_pod_container_resource_requests{namespace="NS"}`, 0.05, 0.05},
	{`sum(increase(container_cpu_cfs_throttled_periods_total{job="kubelet", metrics_path="/metrics/cadvisor", namespace="NS",
		container!=""}[5m])) by (pod, container)
		/ sum(increase(container_cpu_cfs_periods_total{job="kubelet", metrics_path="/metrics/cadvisor", namespace="NS",
		container!=""}[5m])) by (pod, container)`, 0.25, 1},
	{`sum(8 * rate(container_network_receive_bytes_total{job="kubelet", metrics_path="/metrics/cadvisor", namespace="NS",
		pod=~"calm-.*"}[5m])) by (pod)`, 1, 1e9},
	{`8 * rate(container_network_transmit_bytes_total{namespace="NS", pod=~"calm-.*", metrics_path="/metrics/cadvisor"}[5m])
		* on (cluster, namespace, pod) group_left () topk by (cluster, namespace, pod) (
		1, max by (cluster, namespace, pod) (kube_pod_info{host_network="false"}))`, 1, 1e9},
	{`sum(rate(prober_probe_total{namespace="NS", pod=~"calm-.*", result="successful"}[5m])) by (pod, container, probe_type)`, 0.01, 2},
	// What a kubelet counts, less what the API has.
	{`max by (instance) (kubelet_running_pods{job="kubelet", metrics_path="/metrics"}) * on (instance) group_left(node)
		max by (instance, node) (kubelet_node_name{job="kubelet", metrics_path="/metrics"})
		- on (node) group_left() count by (node) (kube_pod_info and on (namespace, pod) kube_pod_status_phase{phase="Running"} == 1)`, 0, 0},
}

// Alone in its world: it compares how many pods there are.
func TestPrometheusSeesPodsOnCellsAsThoseOfAnOrdinaryNode(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	p := s.runPrometheus()
	cell, plain := s.side("cell", harness.Node), s.side("plain", ordinary)
	for _, app := range []string{"busy", "calm"} {
		s.readyPods(app+"-cell", 1)
		s.readyPods(app+"-plain", 1)
	}
	for _, e := range expressions {
		expression := strings.ReplaceAll(e.text, "NS", s.NS)
		p.check("the same on both nodes: "+expression, func(ctx context.Context) error {
			all, err := p.query(ctx, expression)
			if err != nil {
				return err
			}
			onCell, onPlain := cell.of(all), plain.of(all)
			for text, v := range onCell {
				if v < e.least || v > e.most {
					return fmt.Errorf("%s is %v, want %v to %v", text, v, e.least, e.most)
				}
			}
			return differ(onCell, onPlain)
		})
	}
	for _, app := range []string{"busy", "calm"} {
		p.check("the same series of both pods of "+app, func(ctx context.Context) error {
			return differ(p.seriesOf(ctx, app, cell), p.seriesOf(ctx, app, plain))
		})
	}
	p.firesTheSame(cell, plain)
	p.allRulesWork()
	p.dropsNothing()
}

// check waits until f returns nil. A test goes on after one that fails, and waits no longer for the others.
func (p *prometheus) check(what string, f func(context.Context) error) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), p.patience)
	defer cancel()
	if err := namespace.Poll(ctx, f); err != nil {
		p.Errorf("%s: %v", what, err)
		p.patience = 10 * time.Second
	}
}

// seriesOf are what a node says of an app's pod.
func (p *prometheus) seriesOf(ctx context.Context, app string, d *side) map[string]bool {
	var all []map[string]string
	match := fmt.Sprintf(`{job="kubelet", namespace=%q, pod=~"%s-%s-.*", __name__!~"ALERTS.*|%s"}`, p.NS, app, d.name, notOfCells)
	if err := p.get(ctx, "/api/v1/series?"+url.Values{"match[]": {match}}.Encode(), &all); err != nil {
		return nil
	}
	found := map[string]bool{}
	for _, labels := range all {
		text, _ := d.text(labels)
		found[text] = true
	}
	return found
}

// firesTheSame waits for the alerts about busy and crash on both nodes, and wants no other about Kip's than about the ordinary one,
// now or before, and none about the cluster.
func (p *prometheus) firesTheSame(cell, plain *side) {
	p.Helper()
	p.check("the same alerts on both nodes", func(ctx context.Context) error {
		all, err := p.query(ctx, `max_over_time(ALERTS{alertstate="firing"}[1h])`)
		if err != nil {
			return err
		}
		onCell, onPlain := cell.of(all), plain.of(all)
		for alert, app := range map[string]string{"CPUThrottlingHigh": "busy", "KubePodCrashLooping": "crash"} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(onCell)), func(text string) bool {
				return strings.Contains(text, fmt.Sprintf("alertname=%q", alert)) && strings.Contains(text, fmt.Sprintf("pod=%q", app))
			}) {
				return fmt.Errorf("%s of %s is not among %v", alert, app, onCell)
			}
		}
		for _, one := range all {
			if one.Labels["pod"] == "" && one.Labels["instance"] != plain.address {
				return fmt.Errorf("an alert fires: %v", one.Labels)
			}
		}
		return differ(onCell, onPlain)
	})
}

func (p *prometheus) allRulesWork() {
	p.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := p.get(p.Context(), "/api/v1/rules", &rules); err != nil {
		p.Fatal(err)
	}
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if n++; r.Health != "ok" {
				p.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if n == 0 {
		p.Error("there are no rules")
	}
}

// dropsNothing wants every sample of every scrape to be taken.
func (p *prometheus) dropsNothing() {
	p.Helper()
	for _, why := range []string{"duplicate_timestamp", "out_of_order", "out_of_bounds"} {
		all, err := p.query(p.Context(), "prometheus_target_scrapes_sample_"+why+"_total")
		if err != nil || len(all) != 1 {
			p.Errorf("%d series of samples that were dropped (%s), %v", len(all), why, err)
			continue
		}
		if v, err := all[0].value(); err != nil || v != 0 {
			p.Errorf("%v samples were dropped: %s (%v)", v, why, err)
		}
	}
}
