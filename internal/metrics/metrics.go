package metrics

import (
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/version"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Config of Metrics.
type Config struct {
	// Read returns what is told of the moment. It is called at each scrape, from any
	// goroutine. Optional: without it the moment is left out.
	Read  func() Reading
	Clock clock.PassiveClock // required
	Log   *slog.Logger       // required
}

// CA is what is told of the CA of the cells.
type CA struct {
	Ends    time.Time
	Unmoved int // cells that know Kip by the CA before
}

// Reading is what is told of a moment; the zero one is that of a process that does not lead.
type Reading struct {
	// Cells are all that are not Gone, Tunnels how many of them are connected.
	Cells   []cells.Cell
	Tunnels int
	// Nodes are the names of the virtual nodes, at most config.MaxNodes and one.
	Nodes []string
	// NodeOf returns the name of the virtual node of a cell. Required with Cells.
	NodeOf func(cells.Cell) string
	// Waiting is how many pods have no cell and a reason for it, by virtual node.
	Waiting map[string]int
	// Held are the ends that are held back.
	Held []guard.Held
	// Behind says that the store does not know of all instances.
	Behind bool
	// Aside says that this process does nothing, since another Kip, with another store,
	// holds the node.
	Aside bool
	// Ledger is what all cells have cost until now, those that are gone included. It must
	// not decrease, also not over restarts.
	Ledger []Cost
	// Spent is the same by namespace. They are a bounded number.
	Spent map[string]Amount
	// CA is that of the cells.
	CA CA
	// PricesTold is when prices on demand were last told; zero in a process that does not lead.
	PricesTold time.Time
}

// Cost is what cells of one kind have cost.
type Cost = cells.Cost

// Amount is what cells have cost.
type Amount = cells.Amount

// Metrics has all metrics of one Kip, in a registry of its own. Its methods are
// safe for concurrent use and do not block.
type Metrics struct {
	cells.Unobserved

	cfg      Config
	registry *prometheus.Registry
	families families

	phaseDuration   *prometheus.HistogramVec
	podStart        *prometheus.HistogramVec
	cellsEnded      *prometheus.CounterVec
	standbyRequests *prometheus.CounterVec
	sweep           *prometheus.CounterVec
	sweepParts      *prometheus.CounterVec

	cloudCalls         *prometheus.HistogramVec
	callsWaiting       *prometheus.GaugeVec
	callWaits          *prometheus.HistogramVec
	cloudCapacity      *prometheus.CounterVec
	cloudInterruptions prometheus.Counter

	queueDepth, queueUnfinished, queueLongest *prometheus.GaugeVec
	queueAdds, queueRetries                   *prometheus.CounterVec
	queueLatency, queueWork                   *prometheus.HistogramVec
	restRequests                              *prometheus.CounterVec
	restDuration                              *prometheus.HistogramVec
	storeWrites                               *prometheus.HistogramVec
	statsGathered                             *prometheus.HistogramVec
	statsMissed                               *prometheus.CounterVec
	cellRefusals                              *prometheus.CounterVec

	cellRequests, cellSent, cellAnswered, cellWork prometheus.Counter

	mu      sync.Mutex
	tracked map[string]tracked // by cell ID
	// again are pods that have had a cell before and were started then, in two
	// generations, so that they are forgotten some time.
	again, againOld map[types.UID]struct{}
}

// Buckets of histograms, in seconds.
var (
	// A local cell joins in tens of milliseconds, a cloud's in a minute, bare
	// metal in a quarter of an hour; pods run for days.
	lifeBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600, 6 * 3600, 24 * 3600}
	// A call is given a minute.
	callBuckets = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	// The store has ten seconds; a disk that syncs well needs a millisecond.
	storeBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	queueBuckets = []float64{.0001, .001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120}
)

// Native histograms, for the servers that ask for them: at most this many buckets
// for a series, each at most a tenth wider than the one before.
const (
	nativeFactor  = 1.1
	nativeBuckets = 100
	nativeReset   = time.Hour
)

// New returns metrics that count from zero.
func New(cfg Config) *Metrics {
	return newWith(cfg, prometheus.NewRegistry())
}

func newWith(cfg Config, registry *prometheus.Registry) *Metrics {
	m := &Metrics{
		cfg:      cfg,
		registry: registry,
		tracked:  map[string]tracked{},
		again:    map[types.UID]struct{}{},
		families: families{registry: registry},
	}
	s := &scrape{cfg: cfg}
	m.addCells(s)
	m.addStandby(s)
	m.addCost(s)
	m.addCloud(s)
	m.addStats()
	m.addInside()
	m.countFromZero()
	registry.MustRegister(s, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// addCells makes what is told of cells, and of what they ask of their API.
func (m *Metrics) addCells(s *scrape) {
	f := &m.families
	f.section = "Cells"
	m.phaseDuration = f.histogram("kip_cell_phase_duration_seconds",
		"Time from one step of a cell's life to the next, observed when the next is reached.", lifeBuckets,
		labelDurationPhase, labelInstanceType, labelLaunchType, labelOutcome)
	m.podStart = f.histogram("kip_pod_start_duration_seconds",
		"Time from Kip's first sight of a pod until its start has reached a stage, all attempts included. Only the first start of a pod counts.", lifeBuckets,
		labelStage, labelSource, labelInstanceType, labelLaunchType)
	m.cellsEnded = f.counter("kip_cells_ended_total",
		"Cells that are gone.", labelInstanceType, labelLaunchType, labelEndReason)
	s.cells = f.scraped(gauge, "kip_cells", "Cells that exist now.", labelNode, labelCellPhase)
	s.age = f.scraped(gauge, "kip_cells_oldest_age_seconds",
		"Time since the last step of the cell that has waited longest in its phase; 0 without one.", labelCellPhase)
	s.waiting = f.scraped(gauge, "kip_pods_waiting", "Pods that have no cell, for a reason that their events tell.", labelNode)
	s.tunnels = f.scraped(gauge, "kip_tunnels_connected", "Cells that Kip has a connection to.")

	m.cellRefusals = f.counter("kip_cell_requests_refused_total",
		"Requests of cells to their API that were refused: what a kubelet does not ask, too much, or too often. A few are usual.", labelRefusal)
	m.cellRequests = f.counter("kip_cell_requests_total", "Requests of cells to their API.").WithLabelValues()
	m.cellSent = f.counter("kip_cell_sent_bytes_total", "Bytes of the bodies of these requests, as they are charged.").WithLabelValues()
	m.cellAnswered = f.counter("kip_cell_answered_bytes_total", "Bytes that cells were answered.").WithLabelValues()
	m.cellWork = f.counter("kip_cell_work_seconds_total", "Time that Kip has worked on these requests.").WithLabelValues()
}

// addStandby makes what is told of standby cells.
func (m *Metrics) addStandby(s *scrape) {
	f := &m.families
	f.section = "Standby cells"
	s.standby = f.scraped(gauge, "kip_standby_cells", "Cells that wait for a pod.", labelInstanceType, labelState)
	m.standbyRequests = f.counter("kip_standby_requests_total",
		"Cells that pods have asked for. Without standby pools all are misses.", labelRequestResult)
}

// addCost makes what is told of the cells' cost.
func (m *Metrics) addCost(s *scrape) {
	f := &m.families
	f.section = "Cost"
	s.seconds = f.scraped(counter, "kip_cell_seconds_total",
		"Time that instances have run since Kip's state began, also before this process; those that run now up to now.", labelInstanceType,
		labelLaunchType)
	s.dollars = f.scraped(counter, "kip_cell_cost_dollars_total", "The same in US dollars, by the price at which each cell was chosen.",
		labelInstanceType, labelLaunchType)
	s.spent = f.scraped(counter, "kip_cost_dollars_total",
		"The same by the namespace of the pod, since Kip has kept it by day: `kipctl cost` shows more of it.", labelCostNamespace)
	s.idle = f.scraped(counter, "kip_cost_idle_dollars_total",
		"What of these dollars was paid for CPU and memory that pods did not use, whichever they used more of, as far as it was measured: "+
			"of a pod when its cell is gone, without one up to now.", labelCostNamespace)
	s.unpriced = f.scraped(counter, "kip_cost_unpriced_seconds_total",
		"Time that instances have run whose price is not known: it is in no dollars.", labelCostNamespace)
	s.prices = f.scraped(gauge, "kip_prices_age_seconds",
		"Time since prices on demand were last told that pods are placed by: by the cloud, or in a list that was built into Kip.")
}

// addCloud makes what is told of the cloud, of what is held back, and of the CA of the cells.
func (m *Metrics) addCloud(s *scrape) {
	f := &m.families
	f.section = "Cloud"
	m.cloudCalls = f.histogram("kip_cloud_call_duration_seconds",
		"Calls to the cloud and how long they took.", callBuckets, labelCall, labelError)
	m.callsWaiting = f.gauge("kip_cloud_calls_waiting",
		"Calls that wait for the cloud's budget of their kind, or for the end of a back-off. Those that name instances and wait together count once.",
		labelCall)
	m.callWaits = f.histogram("kip_cloud_call_wait_seconds",
		"Time that calls to the cloud have waited for their turn, before they were sent or given up.", callBuckets, labelCall)
	m.cloudCapacity = f.counter("kip_cloud_capacity_errors_total",
		"Calls for which the cloud had no capacity, or not for all instances of the call.", labelInstanceType, labelZone, labelShortLaunchType)
	m.cloudInterruptions = f.counter("kip_cloud_interruption_notices_total",
		"Notices that the cloud takes an instance back. A cloud may repeat them.").WithLabelValues()
	m.sweep = f.counter("kip_sweep_instances_total",
		"Instances with Kip's tags that no cell has, by what became of them.", labelSweepResult)
	m.sweepParts = f.counter("kip_sweep_parts_total",
		"Network interfaces, addresses and the like that an instance has left, by what became of them.", labelPartResult)

	s.held = f.scraped(gauge, "kip_ends_held_back",
		"Instances that are not ended, although they count as lost or have no cell, since so many may be a mistake: kipctl allow shows them.", labelHeld)

	s.behind = f.scraped(gauge, "kip_store_behind",
		"1 while the store does not know of all instances, and Kip launches and sweeps nothing until a person decides: kipctl generation.")

	s.aside = f.scraped(gauge, "kip_node_held_by_another",
		"1 while another Kip, with another store, holds the virtual node, and this one does nothing.")

	s.caEnds = f.scraped(gauge, "kip_ca_end_timestamp_seconds",
		"When the CA ends by which cells know Kip: kipctl ca rotate makes another. Of the Kip that leads.")
	s.unmoved = f.scraped(gauge, "kip_ca_unmoved_cells",
		"Cells that know Kip by the old CA while it is being rotated: kipctl ca shows them.")
}

// addStats makes what is told of the pods' own metrics.
func (m *Metrics) addStats() {
	f := &m.families
	f.section = "Pods' metrics"
	m.statsGathered = f.histogram("kip_stats_gathering_duration_seconds",
		"Gatherings of what the pods use, from all cells, and how long they took.", callBuckets, labelEndpoint)
	m.statsMissed = f.counter("kip_stats_cells_missed_total",
		"Cells that a gathering had to do without.", labelEndpoint, labelMiss)
}

// addInside makes what is told of Kip itself.
func (m *Metrics) addInside() {
	f := &m.families
	f.section = "Inside Kip"
	m.storeWrites = f.histogram("kip_store_write_duration_seconds",
		"Writes to the store and how long they took.", storeBuckets, labelOperation, labelWriteResult)
	f.gauge("kip_build_info", "Always 1; the labels tell what runs.", labelVersion, labelKubernetesVersion, labelGoVersion).
		WithLabelValues(version.String(), version.Kubernetes, runtime.Version()).Set(1)
	m.queueDepth = f.gauge("workqueue_depth", "Items that wait in a work queue.", labelQueue)
	m.queueAdds = f.counter("workqueue_adds_total", "Items that were added to a work queue.", labelQueue)
	m.queueLatency = f.histogram("workqueue_queue_duration_seconds", "Time that items wait in a work queue.", queueBuckets, labelQueue)
	m.queueWork = f.histogram("workqueue_work_duration_seconds", "Time that one item takes.", queueBuckets, labelQueue)
	m.queueUnfinished = f.gauge("workqueue_unfinished_work_seconds", "Time that the items in work have taken so far, summed.", labelQueue)
	m.queueLongest = f.gauge("workqueue_longest_running_processor_seconds", "Time that the longest item in work has taken so far.", labelQueue)
	m.queueRetries = f.counter("workqueue_retries_total", "Items that were added again with a back-off.", labelQueue)
	m.restRequests = f.counter("rest_client_requests_total", "Requests to the API server.", labelClient, labelVerb, labelCode)
	m.restDuration = f.histogram("rest_client_request_duration_seconds", "Time from a request to the API server until its response begins.",
		callBuckets, labelClient, labelVerb)
}

// countFromZero begins the counters whose labels are known, so that an increase from
// nothing is seen as one.
func (m *Metrics) countFromZero() {
	for _, r := range labelSweepResult.values {
		m.sweep.WithLabelValues(r.name)
	}
	for _, r := range labelPartResult.values {
		m.sweepParts.WithLabelValues(r.name)
	}
	for _, e := range stats.Endpoints {
		for _, why := range stats.Misses {
			m.statsMissed.WithLabelValues(e, string(why))
		}
	}
	for _, why := range CellRefusals() {
		m.cellRefusals.WithLabelValues(why)
	}
	for _, r := range labelRequestResult.values {
		m.standbyRequests.WithLabelValues(r.name)
	}
}

// kind is a Prometheus type, as the reference and the exposition name it.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// family is one metric as the reference lists it.
type family struct {
	section, name string
	kind          kind
	help          string
	labels        []*label
}

// unit is what the values of a family are, which by Prometheus' conventions its
// name tells.
func (f family) unit() string {
	switch name := strings.TrimSuffix(f.name, "_total"); {
	case strings.HasSuffix(name, "_seconds"):
		return "seconds"
	case strings.HasSuffix(name, "_dollars"):
		return "US dollars"
	}
	return "number"
}

// families makes metrics and remembers what it made, so that the reference cannot
// differ.
type families struct {
	registry *prometheus.Registry
	section  string
	list     []family
}

func (f *families) add(k kind, name, help string, labels []*label) []string {
	f.list = append(f.list, family{f.section, name, k, help, labels})
	names := make([]string, len(labels))
	for i, l := range labels {
		names[i] = l.name
	}
	return names
}

func (f *families) histogram(name, help string, buckets []float64, labels ...*label) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:                            name,
		Help:                            help,
		Buckets:                         buckets,
		NativeHistogramBucketFactor:     nativeFactor,
		NativeHistogramMaxBucketNumber:  nativeBuckets,
		NativeHistogramMinResetDuration: nativeReset,
	}, f.add(histogram, name, help, labels))
	f.registry.MustRegister(v)
	return v
}

func (f *families) counter(name, help string, labels ...*label) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, f.add(counter, name, help, labels))
	f.registry.MustRegister(v)
	return v
}

func (f *families) gauge(name, help string, labels ...*label) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, f.add(gauge, name, help, labels))
	f.registry.MustRegister(v)
	return v
}

// scraped describes a family whose values are read at the scrape.
func (f *families) scraped(k kind, name, help string, labels ...*label) *prometheus.Desc {
	return prometheus.NewDesc(name, help, f.add(k, name, help, labels), nil)
}
