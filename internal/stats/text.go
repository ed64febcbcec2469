package stats

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// textEndpoint is one that answers in Prometheus' text format.
type textEndpoint struct {
	name string
	// node are the series of the node as a whole. All others must be a pod's.
	node []nodeSeries
}

// nodeSeries is a series of the node, made of those of its cells.
type nodeSeries struct {
	name, help string
	how        how
}

type how int

const (
	counts how = iota // a counter: the sum of CPU time, which only grows
	sums              // a gauge: the sum of now, of memory
	worst             // a gauge: 1 if any has 1
)

// The kubelet's endpoints: k8s.io/kubernetes/pkg/kubelet/metrics/collectors and
// cAdvisor have these series.
var (
	resource = textEndpoint{name: "resource", node: []nodeSeries{
		{"node_cpu_usage_seconds_total", "Cumulative CPU time of the cells in core-seconds, of those that are gone too", counts},
		{"node_memory_working_set_bytes", "Current working set of the cells in bytes", sums},
		{"node_swap_usage_bytes", "Current swap usage of the cells in bytes", sums},
		{"resource_scrape_error", "1 if a cell had an error while getting container metrics, 0 otherwise", worst},
		{"scrape_error", "1 if a cell had an error while getting container metrics, 0 otherwise", worst},
	}}
	cadvisor = textEndpoint{name: "cadvisor", node: []nodeSeries{
		{"container_scrape_error", "1 if a cell had an error while getting container metrics, 0 otherwise", worst},
	}}
	probes = textEndpoint{name: "probes"}
)

var textFormat = string(expfmt.NewFormat(expfmt.TypeTextPlain))

// texts merges texts; between gatherings it keeps the node's counters.
type texts struct {
	textEndpoint
	counters map[string]*count
	newest   int64 // milliseconds since 1970: the time of the node's samples
}

func newTexts(e textEndpoint) *texts {
	t := &texts{textEndpoint: e, counters: map[string]*count{}}
	for _, s := range e.node {
		if s.how == counts {
			t.counters[s.name] = &count{}
		}
	}
	return t
}

func (t *texts) begin(now time.Time) merger {
	return &textMerger{
		texts:    t,
		now:      now,
		families: map[string]*family{},
		node:     map[string]*float64{},
	}
}

// textMerger merges the texts of one gathering.
type textMerger struct {
	*texts
	now  time.Time
	size atomic.Int64

	mu       sync.Mutex
	families map[string]*family
	node     map[string]*float64
	latest   int64 // of the cells' samples of the node, milliseconds since 1970
}

// family is what cells call by one name, by the type that they give it. The type
// of most cells is the answer's, so that one cell cannot spoil the others' part.
type family struct {
	types map[dto.MetricType]*typed
}

type typed struct {
	help  string
	cells int
	pile  pile
}

func (m *textMerger) held() int { return int(m.size.Load()) }

func (m *textMerger) add(c *Cell, body []byte) error {
	families, lines, err := m.read(c, body, parseText)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, text := range lines {
		f := families[name]
		m.size.Add(int64(m.typed(name, f.GetType(), f.GetHelp()).add(text.Bytes())))
	}
	for _, s := range m.textEndpoint.node {
		if f := families[s.name]; f != nil {
			m.addNode(c, s, f.Metric[0])
		}
	}
	return nil
}

type textParser func(io.Reader) (map[string]*dto.MetricFamily, error)

func parseText(text io.Reader) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(text)
}

// read parses what a cell answers. It returns its families, and by name the lines of those that have
// series of its pod. The parser panics over some texts, and a cell must not end Kip with one.
func (m *textMerger) read(c *Cell, body []byte, parse textParser) (families map[string]*dto.MetricFamily,
	lines map[string]*bytes.Buffer, err error,
) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the parser gave up: %v", errInvalid, p)
		}
	}()
	kept, err := m.ownLines(c, body)
	if err != nil {
		return nil, nil, err
	}
	families, err = parse(bytes.NewReader(kept))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	lines = make(map[string]*bytes.Buffer, len(families))
	for name, f := range families {
		if slices.ContainsFunc(m.textEndpoint.node, func(s nodeSeries) bool { return s.name == name }) {
			continue
		}
		if f.GetType() == dto.MetricType_GAUGE_HISTOGRAM { // Prometheus' format has none, and it would refuse the answer
			return nil, nil, fmt.Errorf("%w: family %s is a gauge histogram", errInvalid, name)
		}
		own := slices.DeleteFunc(f.Metric, func(metric *dto.Metric) bool { return !ofPod(metric, c) })
		if len(own) == 0 {
			continue
		}
		var text bytes.Buffer
		if _, err := expfmt.MetricFamilyToText(&text, &dto.MetricFamily{Name: f.Name, Type: f.Type, Metric: own}); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errInvalid, err)
		}
		if _, err := text.ReadBytes('\n'); err != nil { // the line with the type
			return nil, nil, fmt.Errorf("%w: family %s: %w", errInvalid, name, err)
		}
		lines[name] = &text
	}
	if len(lines) > mostFamilies {
		return nil, nil, fmt.Errorf("%w: it has more than %d families", errInvalid, mostFamilies)
	}
	return families, lines, nil
}

// ofPod says whether a series is one of the cell's pod.
func ofPod(metric *dto.Metric, c *Cell) bool {
	pod, namespace := false, false
	for _, l := range metric.Label {
		switch l.GetName() {
		case "pod":
			pod = l.GetValue() == c.Pod
		case "namespace":
			namespace = l.GetValue() == c.Namespace
		}
	}
	return pod && namespace
}

// familySize is what is kept of a family beside its lines, its name and its help, in bytes: some
// entries of maps, and its part of the answer.
const familySize = 512

// typed finds, under mu, where the lines of a family belong.
func (m *textMerger) typed(name string, t dto.MetricType, help string) *pile {
	f := m.families[name]
	if f == nil {
		f = &family{types: map[dto.MetricType]*typed{}}
		m.families[name] = f
	}
	of := f.types[t]
	if of == nil {
		of = &typed{help: help}
		f.types[t] = of
		m.size.Add(int64(familySize + 2*len(name) + 2*len(help)))
	}
	of.cells++
	return &of.pile
}

// addNode adds, under mu, what a cell says of itself. A number that is none
// would stay one in all that is added to it.
func (m *textMerger) addNode(c *Cell, s nodeSeries, metric *dto.Metric) {
	v := 0.0
	switch {
	case metric.Counter != nil:
		v = metric.GetCounter().GetValue()
	case metric.Gauge != nil:
		v = metric.GetGauge().GetValue()
	case metric.Untyped != nil:
		v = metric.GetUntyped().GetValue()
	}
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || s.how == sums && v > c.Machine.memory() {
		return
	}
	m.latest = max(m.latest, metric.GetTimestampMs())
	if s.how == counts {
		m.counters[s.name].add(c.ID, v, c.Machine.coreSeconds(m.now))
		return
	}
	if m.node[s.name] == nil {
		m.node[s.name] = new(float64)
	}
	if sum := m.node[s.name]; s.how == worst {
		*sum = max(*sum, min(v, 1))
	} else {
		*sum += v
	}
}

func (m *textMerger) end(cells []Cell) (*answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The clock of a cell is not believed where it is ahead, or the node's time
	// would stand still until it has come.
	if now := m.now.UnixMilli(); m.latest == 0 || m.latest > now {
		m.latest = now
	}
	m.newest = max(m.newest, m.latest)
	node := map[string][]byte{}
	for _, s := range m.textEndpoint.node {
		text, err := m.nodeText(s, cells)
		if err != nil {
			return nil, err
		}
		if text != nil {
			node[s.name] = text
		}
	}
	m.keepApart()
	a := &answer{contentType: textFormat}
	names := slices.AppendSeq(slices.Collect(maps.Keys(m.families)), maps.Keys(node)) // none is in both
	slices.Sort(names)
	for _, name := range names {
		if text := node[name]; text != nil {
			a.parts = append(a.parts, part{head: text})
			continue
		}
		a.parts = append(a.parts, m.families[name].part(name))
	}
	return a, nil
}

// nodeText is a series of the node with its comments, nil if no cell has it.
func (m *textMerger) nodeText(s nodeSeries, cells []Cell) ([]byte, error) {
	metric := &dto.Metric{}
	f := &dto.MetricFamily{Name: &s.name, Help: &s.help, Metric: []*dto.Metric{metric}}
	switch sum := m.node[s.name]; {
	case s.how == counts:
		c := m.counters[s.name]
		c.forget(cells)
		f.Type, metric.Counter, metric.TimestampMs = dto.MetricType_COUNTER.Enum(), &dto.Counter{Value: &c.total}, &m.newest
	case sum == nil:
		return nil, nil
	default:
		f.Type, metric.Gauge = dto.MetricType_GAUGE.Enum(), &dto.Gauge{Value: sum}
		if s.how == sums {
			metric.TimestampMs = &m.newest
		}
	}
	var text bytes.Buffer
	if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
		return nil, fmt.Errorf("write %s: %w", s.name, err)
	}
	return text.Bytes(), nil
}

// keepApart leaves out, under mu, families that are called as the samples of a histogram or a summary
// are: who reads the answer would take them for these, and all of it for wrong. What more cells have stays,
// and where as many have both, the histogram.
func (m *textMerger) keepApart() {
	for _, name := range slices.Sorted(maps.Keys(m.families)) {
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			of, is := strings.CutSuffix(name, suffix)
			if !is || m.families[of] == nil {
				continue
			}
			t := m.families[of].most()
			if t != dto.MetricType_HISTOGRAM && (t != dto.MetricType_SUMMARY || suffix == "_bucket") {
				continue
			}
			if alone := m.families[name]; alone.types[alone.most()].cells > m.families[of].types[t].cells {
				delete(m.families, of)
			} else {
				delete(m.families, name)
			}
			break
		}
	}
}

// most is the type that most cells give the family.
func (f *family) most() (most dto.MetricType) {
	for _, t := range slices.Sorted(maps.Keys(f.types)) {
		if of, best := f.types[t], f.types[most]; best == nil || of.cells > best.cells {
			most = t
		}
	}
	return most
}

// part is the family as most cells have it.
func (f *family) part(name string) part {
	most := f.most()
	of := f.types[most]
	var head bytes.Buffer
	if of.help != "" {
		fmt.Fprintf(&head, "# HELP %s %s\n", name, strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(of.help))
	}
	fmt.Fprintf(&head, "# TYPE %s %s\n", name, strings.ToLower(most.String()))
	return part{head: head.Bytes(), pile: &of.pile}
}
