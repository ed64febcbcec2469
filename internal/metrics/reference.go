package metrics

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"k8s.io/utils/clock"
)

// query is an expression that is worth an alert, or a look.
type query struct{ title, doc, expr string }

var queries = []query{
	{"A cell that does not end",
		"Its instance costs money and nobody uses it. Clouds take under a minute to end one, with a hung shutdown a few. " +
			"Cells that failed pods keep (pod.elotl.co/keep-failed) are Draining, too: where there are some, ask for Terminating alone.",
		`max by (phase) (kip_cells_oldest_age_seconds{phase=~"Draining|Terminating"}) > 900`},
	{"Instances that leak",
		"Instances with Kip's tags and no cell that Kip fails to end; or Kip cannot see its instances at all, and so cannot find any.",
		`sum(increase(kip_sweep_instances_total{result="failed"}[15m])) > 0
or
(sum(rate(kip_cloud_call_duration_seconds_count{call="list",error=""}[10m])) or vector(0)) == 0`},
	{"Pods that wait", "For 10 minutes (`for: 10m`). The pods' events say why.",
		`kip_pods_waiting > 0
or
max by (phase) (kip_cells_oldest_age_seconds{phase=~"Requested|Launching"}) > 600`},
	{"Where the time of a start goes", "The 95th percentile of each phase, by type. `kip_pod_start_duration_seconds` has the whole.",
		`histogram_quantile(0.95, sum by (le, phase, instance_type) (
  rate(kip_cell_phase_duration_seconds_bucket{phase!="running",outcome="success"}[1h])))`},
	{"Cells that fail before they run a pod", "More than a tenth, by type: a broken image, a wrong network, a type that does not boot.",
		`sum by (instance_type) (rate(kip_cell_phase_duration_seconds_count{phase=~"launching|joining|starting",outcome="failed"}[30m]))
  / sum by (instance_type) (rate(kip_cell_phase_duration_seconds_count{phase=~"launching|joining|starting"}[30m])) > 0.1`},
	{"Errors of the cloud", "By kind of call and class of error. No capacity is everyday; missing rights and exceeded quotas need somebody.",
		`sum by (call, error) (rate(kip_cloud_call_duration_seconds_count{error!~"|capacity|cancelled"}[10m])) > 0`},
	{"Cost of the last day by namespace", "In US dollars. A namespace that is new in it is not seen from its first dollar on.",
		`sum by (namespace) (increase(kip_cost_dollars_total[1d]))`},
	{"Cost of the last day", "In US dollars, by type. `rate(…[10m]) * 3600` is what an hour costs now.",
		`sum by (instance_type, launch_type) (increase(kip_cell_cost_dollars_total[1d]))`},
}

// Reference returns docs/metrics.md.
func Reference() string {
	m := New(Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	var b strings.Builder
	b.WriteString(`# Metrics, health and readiness

<!-- Generated from internal/metrics by: go test ./internal/metrics -run TestReference -update -->

Kip serves ` + "`/metrics`" + ` for Prometheus, in its text format, as OpenMetrics, and with
native histograms for servers that ask for them, by HTTPS. Whoever scrapes shows a token
that the API server knows, of a user who may get ` + "`/metrics`" + `: bind the role
` + "`kip-metrics-reader.NODE`" + ` ([deploy](../deploy/README.md)). The certificate is that of
` + "`--metrics-cert-file`" + ` and ` + "`--metrics-key-file`" + `, else that of the kubelet port, if ` + "`APISERVER_CERT_LOCATION`" + `
names one, else one that cannot be verified. Health asks for no token.

A token is for the API server, unless ` + "`--metrics-audience`" + ` names another audience. With
one, such as ` + "`kip-metrics`" + `, who scrapes has a token for Kip alone (a projected volume with
that ` + "`audience`" + `), and who pretends to be Kip gets none that is worth anything at the
API server.

` + "`/healthz`" + ` says whether Kip should be restarted and ` + "`/readyz`" + ` whether it does its
work. Both answer 200 and ` + "`ok`" + `, or 500 and a line for each check, such as
` + "`[-]store failed: …`" + `; ` + "`?verbose`" + ` shows the lines in any case. ` +
		fmt.Sprintf("A check has %s,\nso probes need a `timeoutSeconds` of %d.\n", checkTimeout, int(checkTimeout.Seconds())+1) + `
Counters and histograms begin at zero when Kip starts, except for the cost, which is
kept. A step of a cell that was reached while Kip was not running is not observed. The
usual metrics of the process and of Go (` + "`process_*`, `go_*`" + `) are there too.
`)
	section := ""
	var used []*label
	for _, f := range m.families.list {
		if f.section != section {
			section = f.section
			fmt.Fprintf(&b, "\n## %s\n\n| metric | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n", section)
		}
		var names []string
		for _, l := range f.labels {
			names = append(names, "`"+l.name+"`")
			if !slices.Contains(used, l) {
				used = append(used, l)
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.name, f.kind, f.unit(), strings.Join(names, ", "), f.help)
	}

	b.WriteString("\n## Labels\n\nThe number of series is bounded: no label names a pod, a cell or an instance.\n\n| label | of | meaning | values |\n| --- | --- | --- | --- |\n")
	for _, l := range used {
		var of []string
		for _, f := range m.families.list {
			if slices.Contains(f.labels, l) {
				of = append(of, "`"+f.name+"`")
			}
		}
		if len(of) > 3 {
			of = []string{fmt.Sprintf("%d metrics", len(of))}
		}
		var values []string
		for _, v := range l.values {
			text := "`" + v.name + "`"
			if v.name == "" {
				text = "empty"
			}
			if v.doc != "" {
				text += ": " + v.doc
			}
			values = append(values, text)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", l.name, strings.Join(of, ", "), l.doc, strings.Join(values, "; "))
	}

	b.WriteString("\n## Alerts and queries\n")
	for _, q := range queries {
		fmt.Fprintf(&b, "\n**%s.** %s\n\n```promql\n%s\n```\n", q.title, q.doc, q.expr)
	}
	return b.String()
}
