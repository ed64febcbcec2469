package stats

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

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
