package stats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/agentapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// begin is later than the samples in testdata.
var begin = time.Date(2026, 11, 21, 10, 30, 0, 0, time.UTC)

// answers of a kubelet with the pod default/a, as one gave them, by path.
func answers(tb testing.TB) map[string]string {
	tb.Helper()
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			tb.Fatal(err)
		}
		return string(data)
	}
	return map[string]string{
		"/metrics/resource": read("resource.txt"), "/metrics/cadvisor": read("cadvisor.txt"), "/metrics/probes": read("probes.txt"),
		"/stats/summary": read("summary.json"),
	}
}

const uidOfA = "37cd335f-b208-4900-9a8c-4e675ae6225c"

// renamed is an answer about another pod than default/a, of its namespace.
func renamed(text, pod string, uid types.UID) string {
	return strings.NewReplacer(`pod="a"`, `pod="`+pod+`"`, `"name": "a"`, `"name": "`+pod+`"`, uidOfA, string(uid)).Replace(text)
}

// tripper is a cell's agent.
type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func respond(body io.Reader) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: io.NopCloser(body)}, nil
}

// says answers each path with a text.
func says(texts map[string]string) tripper {
	return func(r *http.Request) (*http.Response, error) {
		text, ok := texts[strings.TrimPrefix(r.URL.Path, agentapi.PathKubelet)]
		if !ok {
			return &http.Response{StatusCode: http.StatusNotFound, Status: "404 Not Found", Body: http.NoBody}, nil
		}
		return respond(strings.NewReader(text))
	}
}

// fixture is Stats of some cells.
type fixture struct {
	*Stats
	clock *clocktesting.FakeClock

	mu     sync.Mutex
	cells  []Cell
	missed map[string]map[Miss]int // of the last gathering of each endpoint
	rounds int
}

// large is a machine that can have used all that a test's cell says.
var large = Machine{MilliCPU: 256_000, MemoryBytes: 1 << 44, Since: begin.AddDate(-1, 0, 0)}

func newFixture(tb testing.TB, cells ...Cell) *fixture {
	tb.Helper()
	f := &fixture{clock: clocktesting.NewFakeClock(begin), cells: cells, missed: map[string]map[Miss]int{}}
	f.Stats = New(Config{
		NodeName: "kip-0",
		Cells: func() []Cell {
			f.mu.Lock()
			defer f.mu.Unlock()
			all := slices.Clone(f.cells)
			for i := range all {
				if all[i].Machine == (Machine{}) {
					all[i].Machine = large
				}
			}
			return all
		},
		Gathered: func(endpoint string, _ time.Duration, missed map[Miss]int) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.missed[endpoint] = missed
			f.rounds++
		},
		Clock: f.clock, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.Run(ctx)
	}()
	tb.Cleanup(func() {
		cancel()
		<-ended
	})
	for {
		f.Stats.mu.Lock()
		running := f.Stats.ctx != nil
		f.Stats.mu.Unlock()
		if running {
			return f
		}
	}
}

func (f *fixture) get(tb testing.TB, path string) string {
	tb.Helper()
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		tb.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// fresh is get after the last answer has become too old.
func (f *fixture) fresh(tb testing.TB, path string) string {
	tb.Helper()
	f.clock.Step(maxAge)
	return f.get(tb, path)
}

func (f *fixture) families(tb testing.TB, path string) map[string]*dto.MetricFamily {
	tb.Helper()
	return parse(tb, f.fresh(tb, path))
}

func parse(tb testing.TB, text string) map[string]*dto.MetricFamily {
	tb.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		tb.Fatalf("%v in\n%s", err, text)
	}
	return families
}

// series are the label sets of a family, with the label of the pod only.
func podsIn(f *dto.MetricFamily) []string {
	pods := map[string]bool{}
	for _, m := range f.GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "pod" {
				pods[l.GetValue()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(pods))
}

// cell answers as a kubelet with its pod.
func cell(tb testing.TB, pod string) Cell {
	tb.Helper()
	c := Cell{ID: "cell-" + pod, Namespace: "default", Pod: pod, UID: types.UID("uid-" + pod)}
	texts := map[string]string{}
	for path, text := range answers(tb) {
		texts[path] = renamed(text, pod, c.UID)
	}
	c.Conn = says(texts)
	return c
}

func TestEachPodOfTheNodeIsInEachText(t *testing.T) {
	f := newFixture(t, cell(t, "a"), cell(t, "b"), cell(t, "c"))
	for path, names := range map[string][]string{
		"/metrics/resource": {"container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds",
			"pod_cpu_usage_seconds_total"},
		"/metrics/cadvisor": {"container_cpu_usage_seconds_total", "container_network_receive_bytes_total", "container_spec_memory_limit_bytes"},
		"/metrics/probes":   {"prober_probe_total", "prober_probe_duration_seconds"},
	} {
		families := f.families(t, path)
		for _, name := range names {
			if got := podsIn(families[name]); !slices.Equal(got, []string{"a", "b", "c"}) {
				t.Errorf("%s: %s has the pods %v", path, name, got)
			}
		}
		for name, family := range families {
			for _, m := range family.Metric {
				for _, l := range m.Label {
					if l.GetName() == "id" && !strings.HasPrefix(l.GetValue(), "/kubepods/besteffort/pod") {
						t.Errorf("%s: %s shows %s, which is the machine's", path, name, l.GetValue())
					}
				}
			}
		}
	}
}

func TestSamplesKeepTheirTimes(t *testing.T) {
	f := newFixture(t, cell(t, "a"))
	text := f.get(t, "/metrics/resource")
	for _, line := range []string{
		`container_cpu_usage_seconds_total{container="main",namespace="default",pod="a"} 0.60240685 1795256955178`,
		`container_memory_working_set_bytes{container="main",namespace="default",pod="a"} 516096 1795256955178`,
		`container_start_time_seconds{container="main",namespace="default",pod="a"} 1.7952569110531504e+09`,
		`node_cpu_usage_seconds_total 3.556650155 1795256959181`,
		`node_memory_working_set_bytes 6.0690432e+07 1795256959181`,
		`resource_scrape_error 0`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("there is no line %s in\n%s", line, text)
		}
	}
}

// usage is an answer with one number of the node and of the pod.
func usage(pod string, cpu float64, at time.Time) map[string]string {
	return map[string]string{"/metrics/resource": fmt.Sprintf(`# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="default",pod=%q} %g %d
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total %g %d
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1e6 %d
`, pod, cpu, at.UnixMilli(), cpu, at.UnixMilli(), at.UnixMilli())}
}

func TestTheNodesCPUTimeNeverShrinks(t *testing.T) {
	a, b := Cell{ID: "1", Namespace: "default", Pod: "a"}, Cell{ID: "2", Namespace: "default", Pod: "b"}
	a.Conn, b.Conn = says(usage("a", 10, begin)), says(usage("b", 5, begin.Add(-time.Second)))
	f := newFixture(t, a, b)
	want := func(cpu, memory float64, at time.Time) {
		t.Helper()
		families := f.families(t, "/metrics/resource")
		m := families["node_cpu_usage_seconds_total"].Metric[0]
		if m.GetCounter().GetValue() != cpu || m.GetTimestampMs() != at.UnixMilli() {
			t.Errorf("the node has used %g s at %d, want %g s at %d", m.GetCounter().GetValue(), m.GetTimestampMs(), cpu, at.UnixMilli())
		}
		if got := families["node_memory_working_set_bytes"].GetMetric(); memory == 0 && got != nil || memory != 0 &&
			got[0].GetGauge().GetValue() != memory {
			t.Errorf("the node uses %v bytes, want %g", got, memory)
		}
	}
	want(15, 2e6, begin)
	// One cell does not answer.
	f.cells[1].Conn = says(nil)
	f.cells[0].Conn = says(usage("a", 12, begin.Add(2*time.Second)))
	want(17, 1e6, begin.Add(2*time.Second))
	// It does again, and has worked meanwhile; the other was restarted. The time
	// does not go back.
	f.cells[1].Conn = says(usage("b", 9, begin.Add(time.Second)))
	f.cells[0].Conn = says(usage("a", 1, begin.Add(time.Second)))
	want(22, 2e6, begin.Add(2*time.Second))
	// One cell has ended.
	f.cells = f.cells[1:]
	want(22, 1e6, begin.Add(2*time.Second))
	// A cell whose clock is ahead.
	f.cells[0].Conn = says(usage("b", 10, begin.Add(24*time.Hour)))
	want(23, 1e6, f.clock.Now().Add(maxAge))
	// All have.
	f.cells = nil
	want(23, 0, f.clock.Now().Add(maxAge))
}

func TestACellSpeaksForItsOwnPodOnly(t *testing.T) {
	evil := cell(t, "evil")
	evil.Conn = says(map[string]string{
		"/metrics/resource": `# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="default",pod="a"} 1e9 1
container_cpu_usage_seconds_total{container="pod=\"evil\"namespace=\"default\"",namespace="default",pod="a"} 1e9 1
container_cpu_usage_seconds_total{container="main",namespace="kube-system",pod="evil"} 1e9 1
container_cpu_usage_seconds_total{container="main",namespace="default",pod="evil"} 7 1
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total NaN 1
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes -1e30 1
`,
		"/stats/summary": `{"node":{},"pods":[{"podRef":{"name":"a","namespace":"default","uid":"uid-a"},"cpu":{"time":null,"usageNanoCores":1}},
			{"podRef":{"name":"evil","namespace":"default","uid":"uid-a"}}]}`,
	})
	f := newFixture(t, evil, cell(t, "a"))
	families := f.families(t, "/metrics/resource")
	if got := podsIn(families["container_cpu_usage_seconds_total"]); !slices.Equal(got, []string{"a", "evil"}) {
		t.Errorf("the pods are %v", got)
	}
	for _, m := range families["container_cpu_usage_seconds_total"].Metric {
		if v := m.GetCounter().GetValue(); v != 7 && v != 0.60240685 {
			t.Errorf("a cell has told of another's pod: %v", m)
		}
	}
	if v := families["node_cpu_usage_seconds_total"].Metric[0].GetCounter().GetValue(); v != 3.556650155 {
		t.Errorf("the node has used %g s", v)
	}
	var s statsapi.Summary
	if err := json.Unmarshal([]byte(f.get(t, "/stats/summary")), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 1 || s.Pods[0].PodRef.UID != "uid-a" || *s.Pods[0].CPU.UsageNanoCores != 14005316 {
		t.Errorf("the pods are %+v", s.Pods)
	}
}

func TestTheTypeOfMostCellsIsTheFamilys(t *testing.T) {
	evil := cell(t, "evil")
	evil.Conn = says(map[string]string{"/metrics/resource": `# TYPE container_memory_working_set_bytes counter
container_memory_working_set_bytes{container="main",namespace="default",pod="evil"} 7 1
`})
	f := newFixture(t, evil, cell(t, "a"), cell(t, "b"))
	family := f.families(t, "/metrics/resource")["container_memory_working_set_bytes"]
	if got := podsIn(family); family.GetType() != dto.MetricType_GAUGE || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the family is a %s with the pods %v", family.GetType(), got)
	}
}

// TestOneCellsNamesSpoilNoOtherFamily has a cell whose series are called as the samples of the others'
// histogram are, or whose histogram is called as the beginning of theirs is: who reads the answer
// would refuse all of it.
func TestOneCellsNamesSpoilNoOtherFamily(t *testing.T) {
	const histogram = "# TYPE x histogram\nx_bucket{POD,le=\"+Inf\"} 2\nx_sum{POD} 1.5\nx_count{POD} 2\n"
	for _, tc := range []struct{ good, evil, name, not string }{
		{histogram, "# TYPE x_bucket gauge\nx_bucket{POD} 7\n", "x", "x_bucket"},
		{histogram, "x_count{POD} 7\n", "x", "x_count"},
		{histogram, "# TYPE x_sum counter\nx_sum{POD} 7\n", "x", "x_sum"},
		{"# TYPE x_sum gauge\nx_sum{POD} 1\n", histogram, "x_sum", "x"},
		{"# TYPE x_count gauge\nx_count{POD} 1\n", "# TYPE x summary\nx_count{POD} 1\n", "x_count", "x"},
	} {
		var cells []Cell
		for pod, text := range map[string]string{"evil": tc.evil, "a": tc.good, "b": tc.good} {
			c := cell(t, pod)
			c.Conn = all(strings.ReplaceAll(text, "POD", `namespace="default",pod="`+pod+`"`))
			cells = append(cells, c)
		}
		families := newFixture(t, cells...).families(t, "/metrics/probes")
		got := podsIn(families[tc.name])
		if slices.Sort(got); families[tc.not] != nil || !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("beside %q, %s has the pods %v, and %s is %v", tc.evil, tc.name, got, tc.not, families[tc.not])
		}
	}
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestNoCellSpoilsTheRest has cells that behave as badly as they can, behind real
// connections where that matters.
func TestNoCellSpoilsTheRest(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // it takes connections, and never answers
	stalls := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "# TYPE x gauge\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer stalls.Close()
	bad := map[Miss][]agentapi.Conn{
		NotConnected: {nil},
		TimedOut:     {over(t, silent.Addr().String()), over(t, stalls.Listener.Addr().String())},
		Failed: {
			says(nil),
			tripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("the tunnel broke") }),
			tripper(func(*http.Request) (*http.Response, error) {
				return respond(io.MultiReader(strings.NewReader("{"), broken{}))
			}),
		},
		Invalid: {
			all("{\"node\": 7}\n# TYPE x nonsense\nx{pod=\"bad\",namespace=\"default\"} 1"),
			all("x{pod=\"bad\",namespace=\"default\"} what"),
			all("# TYPE x gauge_histogram\nx_count{pod=\"bad\",namespace=\"default\"} 1\n"),
		},
		TooLarge: {tripper(func(*http.Request) (*http.Response, error) { return respond(endless{}) })},
	}
	f := newFixture(t, cell(t, "a"), cell(t, "z"))
	want := map[Miss]int{}
	for why, conns := range bad {
		for i, conn := range conns {
			f.cells = slices.Insert(f.cells, 1, Cell{ID: fmt.Sprint(why, i), Namespace: "default", Pod: "bad", Conn: conn})
			want[why]++
		}
	}
	var done sync.WaitGroup
	for _, path := range []string{"/metrics/resource", "/metrics/cadvisor", "/metrics/probes"} {
		done.Go(func() {
			if families := parse(t, f.get(t, path)); len(families) == 0 {
				t.Errorf("%s: the answer is empty", path)
			} else {
				for name, family := range families {
					if got := podsIn(family); got != nil && !slices.Equal(got, []string{"a", "z"}) {
						t.Errorf("%s: %s has the pods %v", path, name, got)
					}
				}
			}
		})
	}
	done.Wait()
	var s statsapi.Summary
	if err := json.Unmarshal([]byte(f.get(t, "/stats/summary")), &s); err != nil || len(s.Pods) != 2 {
		t.Errorf("%d pods, %v", len(s.Pods), err)
	}
	for _, endpoint := range []string{"resource", "cadvisor", "probes", "summary"} {
		if got := f.missed[endpoint]; !maps.Equal(got, want) {
			t.Errorf("%s missed %v, want %v", endpoint, got, want)
		}
	}
	if used := f.reading.used.Load(); used != 0 {
		t.Errorf("%d bytes are still being read", used)
	}
}

func all(text string) tripper {
	return func(*http.Request) (*http.Response, error) { return respond(strings.NewReader(text)) }
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the stream broke") }

// over leads to an agent at an address.
func over(t *testing.T, addr string) agentapi.Conn {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

func TestCellsThatDidNotAnswerAreAskedLast(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	f := newFixture(t)
	const bad, room = 5, 100
	for i := range maxInFlight + room + bad {
		c := Cell{ID: fmt.Sprintf("cell-%03d", i), Namespace: "default", Pod: fmt.Sprint(i)}
		good := says(usage(c.Pod, 1, begin))
		c.Conn = tripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			asked = append(asked, c.ID)
			mu.Unlock()
			if i < bad {
				return nil, errors.New("the tunnel broke")
			}
			return good(r)
		})
		f.cells = append(f.cells, c)
	}
	f.get(t, "/metrics/resource")
	asked = nil
	f.fresh(t, "/metrics/resource")
	// The last can have begun only when as many had ended as there was no room for.
	for i, id := range asked[:room] {
		if id < fmt.Sprintf("cell-%03d", bad) {
			t.Errorf("%s was asked as the %d. of %d", id, i+1, len(asked))
		}
	}
}

func TestScrapersShareOneGathering(t *testing.T) {
	var asked atomic.Int32
	began, goOn := make(chan struct{}), make(chan struct{})
	good := cell(t, "a").Conn
	f := newFixture(t, Cell{ID: "1", Namespace: "default", Pod: "a", Conn: tripper(func(r *http.Request) (*http.Response, error) {
		if asked.Add(1) == 1 {
			close(began)
			<-goOn
		}
		return good.RoundTrip(r)
	})})
	// The first goes away, and the others get its gathering.
	ctx, cancel := context.WithCancel(t.Context())
	var scrapers sync.WaitGroup
	scrapers.Go(func() {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics/resource", nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("a caller who has gone got %d", w.Code)
		}
	})
	<-began
	cancel()
	scrapers.Wait()
	for range 3 {
		scrapers.Go(func() { f.get(t, "/metrics/resource") })
	}
	close(goOn)
	scrapers.Wait()
	f.clock.Step(maxAge - time.Millisecond)
	f.get(t, "/metrics/resource")
	if n := asked.Load(); n != 1 {
		t.Errorf("the cell was asked %d times", n)
	}
	if f.clock.Step(time.Millisecond); f.sources["/metrics/resource"].lastAnswer() != nil {
		t.Error("an answer that is too old is kept")
	}
	f.get(t, "/metrics/resource")
	if n := asked.Load(); n != 2 {
		t.Errorf("the cell was asked %d times", n)
	}
}

func (src *source) lastAnswer() *gathering {
	src.s.mu.Lock()
	defer src.s.mu.Unlock()
	return src.last
}

func TestNothingIsAnsweredBeforeAndAfterRun(t *testing.T) {
	s := New(Config{
		Cells: func() []Cell { return nil }, Gathered: func(string, time.Duration, map[Miss]int) {},
		Clock: clocktesting.NewFakeClock(begin), Log: slog.New(slog.DiscardHandler),
	})
	code := func() int {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics/resource", nil))
		return w.Code
	}
	if got := code(); got != http.StatusServiceUnavailable {
		t.Errorf("before: %d", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	if got := code(); got != http.StatusServiceUnavailable {
		t.Errorf("after: %d", got)
	}
}

func TestTheSummaryIsOfOneNode(t *testing.T) {
	f := newFixture(t, cell(t, "a"), cell(t, "b"))
	for _, path := range []string{"/stats/summary", "/stats/summary?only_cpu_and_memory=true"} {
		var s statsapi.Summary
		if err := json.Unmarshal([]byte(f.get(t, path)), &s); err != nil {
			t.Fatal(err)
		}
		n := s.Node
		if n.NodeName != "kip-0" || *n.CPU.UsageCoreNanoSeconds != 2*3556650155 || *n.CPU.UsageNanoCores != 2*60599318 ||
			*n.Memory.WorkingSetBytes != 2*60690432 || *n.Fs.CapacityBytes != 2*4227588096 || !n.StartTime.Time.Equal(begin) {
			t.Errorf("%s: the node is %+v", path, n)
		}
		if n.CPU.Time.UTC() != time.Date(2026, 11, 21, 10, 29, 19, 0, time.UTC) {
			t.Errorf("%s: the node's CPU time is of %s", path, n.CPU.Time)
		}
		var names []string
		for _, p := range s.Pods {
			names = append(names, p.PodRef.Name)
			if len(p.Containers) != 1 || *p.Containers[0].Memory.WorkingSetBytes != 516096 || *p.EphemeralStorage.UsedBytes != 32768 ||
				*p.Network.RxBytes != 656 {
				t.Errorf("%s: the pod is %+v", path, p)
			}
		}
		if slices.Sort(names); !slices.Equal(names, []string{"a", "b"}) {
			t.Errorf("%s: the pods are %v", path, names)
		}
	}
	if f.rounds != 2 {
		t.Errorf("%d gatherings, want one for each kind of summary", f.rounds)
	}
}

func TestANodeWithoutCellsAnswers(t *testing.T) {
	f := newFixture(t)
	if text := f.get(t, "/metrics/resource"); !strings.Contains(text, "\nnode_cpu_usage_seconds_total 0 ") {
		t.Errorf("the answer is\n%s", text)
	}
	for _, path := range []string{"/metrics/cadvisor", "/metrics/probes"} {
		if text := f.get(t, path); text != "" {
			t.Errorf("%s: the answer is\n%s", path, text)
		}
	}
	var s statsapi.Summary
	if err := json.Unmarshal([]byte(f.get(t, "/stats/summary")), &s); err != nil || s.Node.NodeName != "kip-0" || s.Pods == nil {
		t.Errorf("%+v, %v", s, err)
	}
}

// BenchmarkGather is one gathering of cells that answer at once, as a kubelet with
// one small pod does, and the writing of the whole answer.
func BenchmarkGather(b *testing.B) {
	sizes := []int{1000, 10_000}
	if testing.Short() {
		sizes = []int{100, 1000} // to see that it works
	}
	for _, n := range sizes {
		cells := make([]Cell, n)
		texts := answers(b)
		for i := range cells {
			c := &cells[i]
			*c = Cell{ID: fmt.Sprint("cell-", i), Namespace: "default", Pod: fmt.Sprintf("pod-%05d", i), UID: types.UID(fmt.Sprint("uid-", i))}
			c.Conn = tripper(func(r *http.Request) (*http.Response, error) {
				// Quicker than renamed, so that it counts less.
				text := strings.ReplaceAll(texts[strings.TrimPrefix(r.URL.Path, agentapi.PathKubelet)], `pod="a"`, `pod="`+c.Pod+`"`)
				if strings.HasPrefix(text, "{") {
					text = renamed(text, c.Pod, c.UID)
				}
				return respond(strings.NewReader(text))
			})
		}
		for _, path := range []string{"/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/stats/summary"} {
			b.Run(fmt.Sprintf("%d%s", n, strings.ReplaceAll(path, "/", "-")), func(b *testing.B) {
				f := newFixture(b, cells...)
				for b.Loop() {
					f.clock.Step(maxAge)
					w := &counted{header: http.Header{}}
					f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
					g := f.sources[path].lastAnswer()
					held := 0
					for _, p := range g.answer.parts {
						if p.pile != nil {
							for _, block := range p.pile.blocks {
								held += len(block)
							}
							held += cap(p.pile.last)
						}
					}
					b.ReportMetric(float64(w.n)/1e6, "MB-answer")
					b.ReportMetric(float64(held)/1e6, "MB-held")
					missed := 0
					for _, m := range f.missed[f.sources[path].endpoint] {
						missed += m
					}
					b.ReportMetric(float64(missed), "missed")
				}
			})
		}
	}
}

type counted struct {
	header http.Header
	n      int
}

func (c *counted) Header() http.Header            { return c.header }
func (c *counted) WriteHeader(int)                {}
func (c *counted) Write(data []byte) (int, error) { c.n += len(data); return len(data), nil }
