package stats

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Two good cells, for the type of most cells is the answer's, and one that may answer
// anything.
var (
	goodA = Cell{ID: "a", Namespace: "default", Pod: "a", UID: uidOfA, Machine: large}
	goodB = Cell{ID: "b", Namespace: "default", Pod: "b", UID: "uid-b", Machine: large}
	evil  = Cell{ID: "evil", Namespace: "default", Pod: "evil", UID: "uid-evil", Machine: large}
)

// What each good cell answers, for its own pod: small, for it is parsed often.
const (
	goodText = `# HELP container_cpu_usage_seconds_total CPU time
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="default",pod="a"} 0.5 1795256955178
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="main",namespace="default",pod="a"} 1.7952569110531504e+09
# TYPE probe histogram
probe_bucket{namespace="default",pod="a",le="0.5"} 1
probe_bucket{namespace="default",pod="a",le="+Inf"} 2
probe_sum{namespace="default",pod="a"} 1.5
probe_count{namespace="default",pod="a"} 2
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 3.5 1795256959181
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 6e+07 1795256959181
# TYPE scrape_error gauge
scrape_error 0
# TYPE container_scrape_error gauge
container_scrape_error 0
`
	goodSummary = `{"node":{"nodeName":"x","startTime":"2026-11-21T10:00:00Z","cpu":{"time":"2026-11-21T10:29:19Z","usageNanoCores":5,` +
		`"usageCoreNanoSeconds":7000},"memory":{"time":"2026-11-21T10:29:19Z","workingSetBytes":100}},"pods":[{"podRef":{"name": "a",` +
		`"namespace":"default","uid":"` + uidOfA + `"},"startTime":"2026-11-21T10:00:00Z","containers":[{"name":"main",` +
		`"startTime":"2026-11-21T10:00:00Z","cpu":{"time":"2026-11-21T10:29:18Z","usageCoreNanoSeconds":6000}}]}]}`
)

// merged is what a gathering of the good cells answers, and of evil if body is not nil.
func merged(t *testing.T, m merger, good string, evilFirst bool, body []byte) []byte {
	t.Helper()
	cells := []Cell{goodA, goodB}
	if body != nil && evilFirst {
		_ = m.add(&evil, bytes.Clone(body))
	}
	for _, c := range cells {
		if err := m.add(&c, []byte(renamed(good, c.Pod, c.UID))); err != nil {
			t.Fatal(err)
		}
	}
	if body != nil {
		if !evilFirst {
			_ = m.add(&evil, bytes.Clone(body))
		}
		cells = append(cells, evil)
	}
	a, err := m.end(cells)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := a.writeTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// byPod are the series of each pod as text, sorted, those of the node under "".
func byPod(t *testing.T, families map[string]*dto.MetricFamily) map[string][]string {
	t.Helper()
	series := map[string][]string{}
	for name, f := range families {
		for _, metric := range f.Metric {
			pod, namespace := "", ""
			for _, l := range metric.Label {
				switch l.GetName() {
				case "pod":
					pod = l.GetValue()
				case "namespace":
					namespace = l.GetValue()
				}
			}
			if pod != "" || namespace != "" {
				pod = namespace + "/" + pod
			}
			series[pod] = append(series[pod], fmt.Sprintf("%s %v %v", name, f.GetType(), metric))
		}
	}
	for _, all := range series {
		slices.Sort(all)
	}
	return series
}

// readable is what Prometheus' own reader takes, which is less than the library's for clients does: see the
// lexer of its model/textparse.
var readable = regexp.MustCompile(`^(# (HELP|TYPE) [a-zA-Z_:][a-zA-Z0-9_:]* [^\x00\n]*|` +
	`[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\x00\n]|\\[^\x00\n])*",?)*\})? [^ \x00\n]+( [0-9]+)?)\n$`)

// checkLine says that Prometheus can read a line of an answer, and metrics-server takes it for its own pod's.
func checkLine(t *testing.T, line []byte) {
	t.Helper()
	if !readable.Match(line) {
		t.Fatalf("Prometheus reads no line %q", line)
	}
	for label, want := range map[string][]string{"pod": {"a", "b", "evil"}, "namespace": {"default"}} {
		_, value, has := bytes.Cut(line, []byte(label+`="`))
		if value, _, _ = bytes.Cut(value, []byte(`"`)); has && line[0] != '#' && !slices.Contains(want, string(value)) {
			t.Fatalf("metrics-server reads the %s %q in %q", label, value, line)
		}
	}
}

// FuzzATextOfOneCellSpoilsNothing merges whatever a cell answers with the answers of
// good ones.
func FuzzATextOfOneCellSpoilsNothing(f *testing.F) {
	endpoints := []textEndpoint{resource, cadvisor, probes}
	label := `{container="main",namespace="default",pod="evil"} `
	for _, text := range []string{
		renamed(goodText, "evil", evil.UID),
		"# TYPE container_cpu_usage_seconds_total gauge\ncontainer_cpu_usage_seconds_total" + label + "1\n",
		"container_cpu_usage_seconds_total" + label + "NaN 1\ncontainer_cpu_usage_seconds_total{pod=\"a\",namespace=\"default\"} 1\n",
		"# TYPE x histogram\nx_bucket{namespace=\"default\",pod=\"evil\",le=\"1\"} 1\nx_sum" + label + "+Inf\nx_count" + label + "1\n",
		"x{namespace=\"default\",pod=\"a\",xpod=\"evil\"} 1\n",
		"x{namespace=\"other\",pod=\"evil\",xnamespace=\"default\"} 1\n",
		"x{xpod=\"evil\",xnamespace=\"default\"} 1\n",
		"# TYPE x summary\nx{namespace=\"default\",pod=\"evil\",quantile=\"0.5\"} -Inf\n",
		"x{namespace=\"default\",pod=\"evil\",pod=\"a\"} 1\n",
		"x{namespace=\"default\",pod=\"evil\",a=\"pod=\\\"a\\\"\\n\"} 1\n",
		"# HELP x a\\nb\\\\\xff\n# TYPE x counter\nx" + label + "-1\n",
		"# TYPE container_memory_working_set_bytes histogram\n# TYPE container_cpu_usage_seconds_total summary\n",
		"# TYPE container_start_time_seconds_bucket gauge\ncontainer_start_time_seconds_bucket" + label + "1\n",
		"node_cpu_usage_seconds_total -5 1\nnode_memory_working_set_bytes NaN\nscrape_error 7\n",
		"node_cpu_usage_seconds_total +Inf 9223372036854775807\nnode_memory_working_set_bytes -1\nnode_swap_usage_bytes -Inf\n",
		"# TYPE node_memory_working_set_bytes summary\nnode_memory_working_set_bytes_sum 5\nnode_memory_working_set_bytes_count 5\n",
		"node_cpu_usage_seconds_total{pod=\"a\",namespace=\"default\"} 5\n",
		"node_cpu_usage_seconds_total{pod=\"evil\",namespace=\"default\"} 5\n",
		"container_scrape_error 1e300\n",
		"x" + label + "1 -1\n",
		"x{apod=\"a\",namespace=\"default\",pod=\"evil\"} 1\n",
		"# HELP x a\x00b\n# TYPE x gauge\nx" + label + "1\n",
	} {
		for i := range endpoints {
			f.Add(byte(i), i == 0, []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, endpoint byte, evilFirst bool, body []byte) {
		e := endpoints[int(endpoint)%len(endpoints)]
		parse := func(out []byte) map[string]*dto.MetricFamily {
			parser := expfmt.NewTextParser(model.LegacyValidation)
			families, err := parser.TextToMetricFamilies(bytes.NewReader(out))
			if err != nil {
				t.Fatalf("the answer cannot be parsed: %v\n%s", err, out)
			}
			if !utf8.Valid(out) {
				t.Fatalf("the answer is not all text: %q", out)
			}
			for line := range bytes.Lines(out) {
				checkLine(t, line)
			}
			return families
		}
		fair := parse(merged(t, newTexts(e).begin(begin), goodText, evilFirst, nil))
		without := byPod(t, fair)
		all := newTexts(e)
		out := merged(t, all.begin(begin), goodText, evilFirst, body)
		families := parse(out)
		with := byPod(t, families)
		for pod := range with {
			if !slices.Contains([]string{"", "default/a", "default/b", "default/evil"}, pod) {
				t.Fatalf("the answer has a pod %q:\n%s", pod, out)
			}
		}
		for _, pod := range []string{"default/a", "default/b"} {
			if !slices.Equal(with[pod], without[pod]) {
				t.Fatalf("pod %s has %v, without the other cell %v", pod, with[pod], without[pod])
			}
		}
		later := parse(merged(t, all.begin(begin), goodText, false, []byte("node_cpu_usage_seconds_total 0.25\n")))
		names := 0
		for _, s := range e.node {
			value := func(families map[string]*dto.MetricFamily) float64 {
				f := families[s.name]
				if f == nil {
					return 0
				}
				if len(f.Metric) != 1 || len(f.Metric[0].Label) != 0 {
					t.Fatalf("the node's %s is %v", s.name, f)
				}
				return f.Metric[0].GetCounter().GetValue() + f.Metric[0].GetGauge().GetValue()
			}
			v := value(families)
			if !(v >= value(fair)) || math.IsInf(v, 0) {
				t.Fatalf("the node's %s is %v, without the other cell %v", s.name, v, value(fair))
			}
			if s.how == counts && value(later) < v {
				t.Fatalf("the node's %s fell from %v to %v", s.name, v, value(later))
			}
			if families[s.name] != nil {
				names++
			}
		}
		if names != len(with[""]) {
			t.Fatalf("there are series of no pod:\n%s", out)
		}
	})
}

// FuzzASummaryOfOneCellSpoilsNothing does so with summaries.
func FuzzASummaryOfOneCellSpoilsNothing(f *testing.F) {
	ref := `"podRef":{"name":"evil","namespace":"default","uid":"uid-evil"}`
	for _, text := range []string{
		renamed(goodSummary, "evil", evil.UID),
		`null`,
		`{"pods":[{` + ref + `},{` + ref + `}]}`,
		`{"pods":[{"podRef":{"name":"a","namespace":"default","uid":"` + uidOfA + `"}}]}`,
		`{"pods":[{"podRef":{"name":"a","namespace":"default","uid":"uid-evil"}}]}`,
		`{"pods":[{"podRef":{"name":"evil","namespace":"other","uid":"uid-evil"}}]}`,
		`{"pods":[{"podRef":{"name":"evil","namespace":"default","uid":"uid-other"}}]}`,
		`{"pods":[{` + ref + `,"startTime":"9999-12-31T23:59:59-23:00"}]}`,
		`{"pods":[{` + ref + `,"containers":[{"name":"x","startTime":"0000-01-01T00:00:00+01:00"}]}]}`,
		`{"node":{"cpu":{"time":"9999-12-31T23:59:59-23:00","usageNanoCores":18446744073709551615,"usageCoreNanoSeconds":18446744073709551615}}}`,
		`{"node":{"memory":{"time":"0000-01-01T00:00:00+23:00","workingSetBytes":18446744073709551615},"swap":{},"fs":{"inodes":1},"runtime":{"imageFs":{}}}}`,
		`{"node":{"cpu":{"usageCoreNanoSeconds":0},"memory":{"workingSetBytes":0}}}`,
		`{"node":{"nodeName":"evil","startTime":"2020-01-01T00:00:00Z","systemContainers":[{"name":"x"}],"network":{"name":"x"}}}`,
	} {
		f.Add(false, []byte(text))
		f.Add(true, []byte(text))
	}
	f.Fuzz(func(t *testing.T, evilFirst bool, body []byte) {
		parse := func(out []byte) (s statsapi.Summary) {
			if err := json.Unmarshal(out, &s); err != nil {
				t.Fatalf("the answer cannot be parsed: %v\n%s", err, out)
			}
			return s
		}
		without := parse(merged(t, newSummaries("kip-0", begin).begin(begin), goodSummary, evilFirst, nil))
		all := newSummaries("kip-0", begin)
		out := merged(t, all.begin(begin), goodSummary, evilFirst, body)
		with := parse(out)
		pods := map[string]statsapi.PodStats{}
		for _, pod := range with.Pods {
			if _, twice := pods[pod.PodRef.Name]; twice || !slices.ContainsFunc([]Cell{goodA, goodB, evil}, func(c Cell) bool {
				return pod.PodRef == statsapi.PodReference{Name: c.Pod, Namespace: c.Namespace, UID: string(c.UID)}
			}) {
				t.Fatalf("the answer has a pod %v:\n%s", pod.PodRef, out)
			}
			pods[pod.PodRef.Name] = pod
		}
		for _, pod := range without.Pods {
			if !reflect.DeepEqual(pods[pod.PodRef.Name], pod) {
				t.Fatalf("pod %v has %v, without the other cell %v", pod.PodRef, pods[pod.PodRef.Name], pod)
			}
		}
		if n := with.Node; n.NodeName != "kip-0" || !n.StartTime.Time.Equal(begin) || n.SystemContainers != nil || n.Network != nil {
			t.Fatalf("the node is %+v", n)
		}
		used := func(s statsapi.Summary) uint64 { return *s.Node.CPU.UsageCoreNanoSeconds }
		later := parse(merged(t, all.begin(begin), goodSummary, false, []byte(`{"node":{"cpu":{"usageCoreNanoSeconds":1}}}`)))
		if used(with) < used(without) || used(later) < used(with) {
			t.Fatalf("the node's CPU time is %d without the other cell, %d with it, and %d later", used(without), used(with), used(later))
		}
		for _, at := range []time.Time{with.Node.CPU.Time.Time, with.Node.Memory.Time.Time} {
			if at.Before(without.Node.CPU.Time.Time) && at.Before(without.Node.Memory.Time.Time) {
				t.Fatalf("the node's time went back to %v", at)
			}
		}
	})
}
