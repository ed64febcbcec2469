package stats

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// machine is one of two cores and 4 GiB that runs for an hour.
var machine = Machine{MilliCPU: 2000, MemoryBytes: 4 << 30, Since: begin.Add(-time.Hour)}

// Whatever a cell says of itself, it adds to the node's numbers no more than its
// machine can have used since it began, and takes nothing away.
func TestTheNodesNumbersAreBoundedByTheMachines(t *testing.T) {
	said := map[string]map[string]string{}
	cellOf := func(name string) Cell {
		said[name] = map[string]string{}
		return Cell{ID: name, Namespace: "default", Pod: name, Machine: machine, Conn: says(said[name])}
	}
	f := newFixture(t, cellOf("honest"), cellOf("liar"))
	tell := func(name, seconds, nanoseconds, bytes, at string, ms int64) {
		said[name]["/metrics/resource"] = fmt.Sprintf("node_cpu_usage_seconds_total %s %d\nnode_memory_working_set_bytes %s %d\nscrape_error %s\n",
			seconds, ms, bytes, ms, bytes)
		said[name]["/stats/summary"] = fmt.Sprintf(`{"node":{"cpu":{"time":%[3]q,"usageNanoCores":%[1]s,"usageCoreNanoSeconds":%[1]s},
			"memory":{"time":%[3]q,"workingSetBytes":%[2]s,"usageBytes":%[2]s},"fs":{"time":%[3]q,"capacityBytes":%[2]s,"inodes":%[2]s}}}`, nanoseconds, bytes, at)
	}
	past := begin.Add(-time.Minute)
	honest := func(seconds int) {
		tell("honest", fmt.Sprint(seconds), fmt.Sprint(seconds*1e9), "1024", past.Format(time.RFC3339), past.UnixMilli())
	}
	const most = 2 * 1.25 * (3600 + 60 + 60) // a core-second each, with what passes in this test
	total := func() (seconds float64, s statsapi.Summary) {
		t.Helper()
		text := f.fresh(t, "/metrics/resource")
		families := parse(t, text)
		metric := families["node_cpu_usage_seconds_total"].Metric[0]
		if at := time.UnixMilli(metric.GetTimestampMs()); at.After(f.clock.Now()) || at.Before(past) {
			t.Errorf("the sample is of %v", at)
		}
		if v := families["node_memory_working_set_bytes"].Metric[0].GetGauge().GetValue(); v < 1024 || v > 1024+machine.memory() {
			t.Errorf("the working set is %g", v)
		}
		if v := families["scrape_error"].Metric[0].GetGauge().GetValue(); v != 1 {
			t.Errorf("scrape_error is %g", v)
		}
		if err := json.Unmarshal([]byte(f.get(t, "/stats/summary")), &s); err != nil {
			t.Fatal(err)
		}
		for what, at := range map[string]time.Time{"cpu": s.Node.CPU.Time.Time, "memory": s.Node.Memory.Time.Time, "fs": s.Node.Fs.Time.Time} {
			if at.After(f.clock.Now()) || at.Before(past.Truncate(time.Second)) {
				t.Errorf("%s is of %v", what, at)
			}
		}
		return metric.GetCounter().GetValue(), s
	}
	honest(100)
	before := 0.0
	for i, lie := range []struct{ seconds, nanoseconds, bytes, at string }{
		{"1e308", "18446744073709551615", "18446744073709551615", "9999-01-01T00:00:00Z"},
		{"0", "0", "18446744073709551615", "9999-12-31T23:59:59Z"},
		{"NaN", "9223372036854775808", "9007199254740993", "0001-01-01T00:00:00Z"},
		{"+Inf", "1", "18446744073709551615", "1000-01-01T00:00:00Z"},
		{"7000", "7000000000000", "18446744073709551615", "2027-01-01T00:00:00Z"},
		{"0", "0", "18446744073709551615", "1970-01-01T00:00:00Z"},
		{"7000", "7000000000000", "18446744073709551615", "2026-11-21T10:30:00Z"},
		{"-1", "0", "18446744073709551615", "2026-11-21T10:30:00Z"},
	} {
		tell("liar", lie.seconds, lie.nanoseconds, lie.bytes, lie.at, math.MaxInt64)
		seconds, s := total()
		if seconds < before || seconds < 100 || seconds > 100+most {
			t.Errorf("%d: %g core-seconds after %g", i, seconds, before)
		}
		before = seconds
		if n := float64(*s.Node.CPU.UsageCoreNanoSeconds) / 1e9; n < 100 || n > 100+most {
			t.Errorf("%d: %g core-seconds in the summary", i, n)
		}
		if n := *s.Node.Memory.WorkingSetBytes; n != 1024 {
			t.Errorf("%d: %d bytes in the summary", i, n)
		}
		if n := *s.Node.Fs.CapacityBytes; n > 1024+maxDisk {
			t.Errorf("%d: a capacity of %d bytes", i, n)
		}
		if n := s.Node.CPU.UsageNanoCores; n != nil && float64(*n) > 100e9+1e9*machine.cores() {
			t.Errorf("%d: %d nanocores", i, *n)
		}
	}
	// What is honest is counted on.
	tell("liar", "0", "0", "1", "2026-11-21T10:30:00Z", 1)
	at, _ := total()
	honest(150)
	if now, _ := total(); math.Abs(now-at-50) > 1e-6 {
		t.Errorf("the honest cell's 50 core-seconds made %g of %g", now, at)
	}
	if text := f.fresh(t, "/metrics/resource"); strings.Contains(text, "e+308") || strings.Contains(text, "Inf") {
		t.Errorf("the answer has\n%s", text)
	}
}

// Each is left out, and what the cell says beside it stays.
func TestALineThatNoKubeletWritesIsLeftOut(t *testing.T) {
	const own = `namespace="default",pod="evil"`
	manyLabels := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,l%d=""`, i)
		}
		return b.String()
	}
	for name, line := range map[string]string{
		"a time before 1970":          `x{` + own + `} 1 -1`,
		"a time with a sign":          `x{` + own + `} 1 +1`,
		"a time that is none":         `x{` + own + `} 1 1.5`,
		"what follows the time":       `x{` + own + `} 1 1 # {a="b"} 1`,
		"no value":                    `x{` + own + `} `,
		"its name among its labels":   `{"x",` + own + `} 1`,
		"spaces":                      `x {` + own + `} 1`,
		"a label in quotes":           `x{"a"="b",` + own + `} 1`,
		"an unknown escape":           `x{a="\t",` + own + `} 1`,
		"a quote left open":           `x{` + own + `,a="} 1`,
		"a control character":         "x{a=\"\x00\"," + own + `} 1`,
		"no text":                     "x{a=\"\xff\"," + own + `} 1`,
		"more labels than any has":    `x{` + own + manyLabels(mostLabels-1) + `} 1`,
		"a line longer than any is":   `x{` + own + `,a="` + strings.Repeat("b", mostLine) + `"} 1`,
		"another's pod, for some":     `x{apod="a",` + own + `} 1`,
		"another's namespace":         `x{anamespace="kube-system",` + own + `} 1`,
		"another's container":         `x{acontainer="main",container="main",` + own + `} 1`,
		"another's pod, at the end":   `x{` + own + `,_pod="a"} 1`,
		"the end of a value like one": `x{a="pod=",` + own + `} 1`,
	} {
		t.Run(name, func(t *testing.T) {
			good := `y{container="main",` + own + manyLabels(mostLabels-3) + "} 1 0\n"
			out := string(merged(t, newTexts(cadvisor).begin(begin), goodText, true, []byte(line+"\n"+good)))
			if families := parse(t, out); families["x"] != nil || families["y"] == nil {
				t.Errorf("of %q the answer has\n%s", line, out)
			}
		})
	}
}

// The parser of Prometheus' library panics over some texts, of which a line that begins with its labels is one.
func TestAParserThatPanicsIsAnErrorOfItsCell(t *testing.T) {
	m := newTexts(cadvisor).begin(begin).(*textMerger)
	const text = "# TYPE y gauge\n{namespace=\"default\",pod=\"evil\"} 0\n"
	if kept, err := m.ownLines(&evil, []byte(text)); err != nil || strings.Contains(string(kept), "evil") {
		t.Errorf("of %q there is %q: %v", text, kept, err)
	}
	panics := func(io.Reader) (map[string]*dto.MetricFamily, error) { panic("as it does") }
	if _, _, err := m.read(&evil, []byte(text), panics); !errors.Is(err, errInvalid) {
		t.Errorf("a panic is %v", err)
	}
}

func TestHelpThatSomeCannotReadIsLeftOut(t *testing.T) {
	for _, help := range []string{"a\x00b", "a\xffb", strings.Repeat("a", mostHelp)} {
		body := "# HELP x " + help + "\n# TYPE x gauge\nx{namespace=\"default\",pod=\"evil\"} 1\n"
		out := string(merged(t, newTexts(cadvisor).begin(begin), goodText, true, []byte(body)))
		if f := parse(t, out)["x"]; f == nil || f.GetHelp() != "" {
			t.Errorf("the family is %v", f)
		}
	}
}

// What a cell makes Kip keep counts, also where it is no line.
func TestFamiliesAreBounded(t *testing.T) {
	text := func(families int, help string) []byte {
		var b strings.Builder
		for n := range families {
			fmt.Fprintf(&b, "# HELP x%d %s\n# TYPE x%d gauge\n", n, help, n)
			fmt.Fprintf(&b, "x%d{namespace=\"default\",pod=\"evil\"} 1\n", n)
		}
		return []byte(b.String())
	}
	m := newTexts(cadvisor).begin(begin)
	for _, body := range [][]byte{
		text(mostFamilies+1, ""),
		[]byte(strings.ReplaceAll(string(text(mostFamilies+1, "")), "#", "##")), // none of the comments counts
	} {
		if err := m.add(&evil, body); !errors.Is(err, errInvalid) || m.held() != 0 {
			t.Errorf("of too many families there are %d bytes, and the error is %v", m.held(), err)
		}
	}
	help := strings.Repeat("a", 900)
	if err := m.add(&evil, text(mostFamilies, help)); err != nil || m.held() < mostFamilies*(familySize+len(help)) {
		t.Errorf("%d families count as %d bytes: %v", mostFamilies, m.held(), err)
	}
}

func TestASummaryOfManyValuesIsNotRead(t *testing.T) {
	for what, body := range map[string]string{
		"pods":       `{"pods":[` + strings.Repeat("{},", mostValues) + `{}]}`,
		"nothings":   `{"pods":[` + strings.Repeat("null,", mostValues) + `null]}`,
		"containers": `{"pods":[{"containers":[` + strings.Repeat("{},", mostValues) + `{}]}]}`,
	} {
		for name, m := range map[string]merger{
			"summary": newSummaries("kip-0", begin).begin(begin),
			"meter":   NewUses().begin(begin),
		} {
			if err := m.add(&evil, []byte(body)); !errors.Is(err, errTooLarge) {
				t.Errorf("%s of many %s: %v", name, what, err)
			}
		}
	}
}
