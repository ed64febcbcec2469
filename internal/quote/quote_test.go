package quote

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/placement"
)

// of is a list of one region, whose disks cost $0.0001 a GiB and hour.
func of(region string) *catalog.PriceList {
	return &catalog.PriceList{
		Cloud: "c",
		Types: []catalog.InstanceType{
			{Name: "arm", Arch: "arm64", MilliCPU: 1000, MemoryBytes: 2 * gib},
			{Name: "burst", Arch: "amd64", MilliCPU: 2000, BaselineMilliCPU: 500, CreditPerCPUHour: 0.05, MemoryBytes: 2 * gib},
			{Name: "large", Arch: "amd64", MilliCPU: 4000, MemoryBytes: 16 * gib},
			{Name: "unpriced", Arch: "amd64", MilliCPU: 64000, MemoryBytes: 64 * gib},
		},
		Regions: map[string]catalog.Region{region: {
			Rates:      catalog.Rates{DiskPerGiBMonth: 0.073, AddressPerHour: 0.005},
			ZoneGroups: [][]string{{"z"}},
			Sold: []catalog.Sold{{Type: 0, Price: 0.02}, {Type: 1, Price: 0.03, Spot: new(0.01)}, {Type: 2, Price: 0.2, Spot: new(float64)},
				{Type: 3}},
		}},
	}
}

func near(a *float64, b float64) bool {
	if a == nil || math.IsNaN(b) {
		return a == nil && math.IsNaN(b)
	}
	return math.Abs(*a-b) < 1e-9
}

func quoted(t *testing.T, region string, o Options, manifest string) Quote {
	t.Helper()
	p, err := In(of(region), region, o)
	if err != nil {
		t.Fatal(err)
	}
	all, err := Read("f", "d", []byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	return p.Of(all)
}

func TestAPodCostsTheSumOfItsParts(t *testing.T) {
	unknown := math.NaN()
	pod := func(annotations, requests string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {" + annotations + "}}\n" +
			"spec: {containers: [{name: c, resources: {requests: {" + requests + "}}}]}"
	}
	o := Options{Arch: "amd64", DiskBytes: 10 * gib}
	private := o
	private.PrivateIPOnly = true
	for _, c := range []struct {
		about, manifest   string
		options           Options
		instanceType      string
		hour, spot, month float64
		fargate           float64
		reason            string
	}{
		{"a burstable type", pod("", "cpu: 1, memory: 1Gi"), o, "burst", 0.03 + 0.025 + 0.001 + 0.005, 0.01 + 0.025 + 0.006, 0.061 * 730,
			0.04048 + 2*0.004445, "; $0.0300 for the machine, $0.0010 for a disk of 10Gi, $0.0050 for a public address"},
		{"no public address", pod("", "cpu: 1, memory: 1Gi"), private, "burst", 0.056, 0.036, 0.056 * 730, 0.04937, "a disk of 10Gi"},
		{"none, by annotation", pod(`pod.elotl.co/private-ip-only: "true"`, "cpu: 1, memory: 1Gi"), o,
			"burst", 0.056, 0.036, 0.056 * 730, 0.04937, ""},
		{"a larger disk", pod("pod.elotl.co/volume-size: 110Gi", "cpu: 500m"), o, "burst", 0.03 + 0.011 + 0.005, 0.026, 0.046 * 730,
			0.02024 + 0.004445, "a disk of 110Gi"},
		{"an unknown price of spot", pod("", "cpu: 3"), o, "large", 0.206, unknown, 0.206 * 730, 4*0.04048 + 8*0.004445, ""},
		{"spot of unknown price, asked for", pod("pod.elotl.co/launch-type: spot", "cpu: 3"), o, "large", unknown, unknown, unknown,
			4*0.04048 + 8*0.004445, "price is not known"},
		{"an unknown price", pod("", "cpu: 20"), o, "unpriced", unknown, unknown, unknown, unknown, "price is not known"},
		{"arm64", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nodeSelector: {kubernetes.io/arch: arm64}, containers: [{name: c, " +
			"resources: {requests: {cpu: 1}}}]}", o, "arm", 0.026, unknown, 0.026 * 730, 0.03238 + 2*0.00356, ""},
	} {
		q := quoted(t, "us-east-1", c.options, c.manifest).Pods[0]
		if q.InstanceType != c.instanceType || !near(q.PricePerHour, c.hour) || !near(q.SpotPricePerHour, c.spot) ||
			!near(q.PricePerMonth, c.month) || !near(q.FargatePricePerHour, c.fargate) || !strings.Contains(q.Reason, c.reason) {
			text, _ := json.Marshal(q)
			t.Errorf("%s: %s, want %+v", c.about, text, c)
		}
	}
	if q := quoted(t, "elsewhere", o, pod("", "cpu: 1")).Pods[0]; q.FargatePricePerHour != nil {
		t.Errorf("Fargate costs %v in a region whose prices are not known", *q.FargatePricePerHour)
	}
	none := quoted(t, "us-east-1", o, pod("", "cpu: 100")).Pods[0]
	if !none.Failed || none.InstanceType != "" || none.PricePerHour != nil ||
		!strings.Contains(none.Reason, "too little cpu (largest: unpriced with 64)") {
		t.Errorf("what no type has: %+v", none)
	}
}

func TestAMonthOfRunsNeedsToKnowHowLongARunTakes(t *testing.T) {
	const cron = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec:\n  schedule: '0 0 1 * *'\n" +
		"  jobTemplate: {spec: {parallelism: 3, template: {spec: {containers: [{name: c, resources: {requests: {cpu: 3}}}]}}}}"
	const job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: c}\n" +
		"spec: {template: {spec: {containers: [{name: c, resources: {requests: {cpu: 3}}}]}}}"
	for _, c := range []struct {
		manifest    string
		hours, want float64
	}{
		{cron, 0, math.NaN()}, {cron, 2, 0.206 * 2 * 3}, {cron, 1.0 / 3600, 0.206 / 60 * 3}, {job, 0, math.NaN()}, {job, 0.5, 0.103},
	} {
		q := quoted(t, "us-east-1", Options{Arch: "amd64", DiskBytes: 10 * gib, RunHours: c.hours}, c.manifest).Pods[0]
		if !near(q.PricePerMonth, c.want) {
			t.Errorf("with %v hours a run: %v a month, want %v", c.hours, q.PricePerMonth, c.want)
		}
	}
}

func TestAQuoteHasTheseFieldsAndNoOther(t *testing.T) {
	text, err := json.Marshal(quoted(t, "us-east-1", Options{Arch: "amd64"}, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: "+podSpec))
	if err != nil {
		t.Fatal(err)
	}
	var q map[string][]map[string]any
	if err := json.Unmarshal(text, &q); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range q["pods"][0] {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{"fargatePricePerHour", "instanceType", "launchType", "name", "namespace", "owner", "pricePerHour", "reason", "replicas",
		"spotPricePerHour", "zone"}
	if !slices.Equal(names, want) || len(q) != 1 {
		t.Errorf("fields %v, want %v", names, want)
	}
}

func TestATotalIsUnknownWhereOnePriceIs(t *testing.T) {
	dear, cheap := 2.0, 1.0
	q := Quote{Pods: []Pod{{Replicas: 2, PricePerHour: &dear, FargatePricePerHour: &cheap}, {Replicas: 3, PricePerHour: &cheap},
		{NotOnKip: true}, {Replicas: 0}}}
	got := q.Total()
	if !near(got.PricePerHour, 7) || got.FargatePricePerHour != nil || got.Unknown != 1 {
		t.Errorf("%+v", got)
	}
}

func TestFargateSellsTheCheapestSizeThatHasEnough(t *testing.T) {
	if n := len(FargateSizes()); n != 74 {
		t.Errorf("%d sizes, want 74", n)
	}
	for _, c := range []struct {
		arch string
		r    placement.Resources
		want float64 // 0 for none
	}{
		{"amd64", placement.Resources{}, 0.25*0.04048 + 0.5*0.004445},
		{"amd64", placement.Resources{MilliCPU: 250, MemoryBytes: 2*gib + 1}, 0.5*0.04048 + 3*0.004445},
		{"amd64", placement.Resources{MilliCPU: 251, MemoryBytes: gib}, 0.5*0.04048 + 0.004445},
		{"amd64", placement.Resources{MilliCPU: 16000, MemoryBytes: 120 * gib}, 16*0.04048 + 120*0.004445},
		{"arm64", placement.Resources{MilliCPU: 1000, MemoryBytes: gib}, 0.03238 + 2*0.00356},
		{"amd64", placement.Resources{DiskBytes: 30 * gib}, 0.25*0.04048 + 0.5*0.004445 + 10*0.000111},
		{"amd64", placement.Resources{MilliCPU: 16001}, 0},
		{"amd64", placement.Resources{GPUs: 1}, 0},
		{"amd64", placement.Resources{DiskBytes: 201 * gib}, 0},
		{"riscv64", placement.Resources{}, 0},
	} {
		got, ok := Fargate(c.arch, c.r)
		if ok != (c.want > 0) || ok && math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s %+v: %v, %t, want %v", c.arch, c.r, got, ok, c.want)
		}
	}
}

func TestRegionsAreComparedTheCheapestFirst(t *testing.T) {
	all, err := Read("f", "d", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: "+podSpec))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Compare(pricelists.Clouds(), all, Options{Arch: "amd64", DiskBytes: 5 * gib, ReservedMemoryBytes: 64 << 20})
	if err != nil || len(got) != 133 {
		t.Fatalf("%d regions, %v", len(got), err)
	}
	known := 0
	for i, r := range got {
		if r.PricePerHour != nil {
			known++
		}
		if i > 0 && (got[i-1].PricePerHour == nil && r.PricePerHour != nil ||
			r.PricePerHour != nil && *r.PricePerHour < *got[i-1].PricePerHour) {
			t.Errorf("%+v comes before %+v", got[i-1], r)
		}
		if (r.PricePerHour == nil) != (r.Unknown == 1) || r.Region == "eu-west-1" && r.PricePerHour != nil {
			t.Errorf("%+v", r)
		}
	}
	if known != 103 { // 57 of Azure, 43 of Google, 3 of AWS
		t.Errorf("%d regions have a price, want 103", known)
	}
	if _, err := Compare([]string{"nowhere"}, all, Options{}); err == nil {
		t.Error("a cloud without a catalogue is compared")
	}
	if _, err := In(of("east"), "eats", Options{}); err == nil || !strings.HasSuffix(err.Error(), "which has east; did you mean east?") {
		t.Errorf("another region: %v", err)
	}
}

func TestWhatAPodSelectsOfItsInstanceHoldsAsInACluster(t *testing.T) {
	o := Options{Arch: "amd64", DiskBytes: 10 * gib}
	pod := func(spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {a: b}}\n" +
			"spec: {" + spec + ", containers: [{name: c, resources: {requests: {cpu: 100m}}}]}"
	}
	affinity := func(key, value string) string {
		return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: " +
			"[{key: " + key + ", operator: In, values: [" + value + "]}]}]}}}"
	}
	for _, c := range []struct{ spec, want, launchType, reason string }{
		{"nodeSelector: {other.example/team: a}", "burst", "on-demand", "cheapest"},
		{"nodeSelector: {node.kubernetes.io/instance-type: large}", "large", "on-demand", ""},
		{affinity("karpenter.k8s.aws/instance-cpu", `"4"`), "large", "on-demand", ""},
		{"nodeSelector: {karpenter.sh/capacity-type: spot}", "burst", "spot", ""},
		{"nodeSelector: {karpenter.k8s.aws/instance-cpu: '3'}", "", "", "ruled out by pod.elotl.co/instance-requirements"},
		{"nodeName: n", "burst", "on-demand", ""},
	} {
		got := quoted(t, "us-east-1", o, pod(c.spec)).Pods[0]
		if got.InstanceType != c.want || got.LaunchType != c.launchType || !strings.Contains(got.Reason, c.reason) {
			t.Errorf("%s: %+v, want %s, %s", c.spec, got, c.want, c.launchType)
		}
	}
}
