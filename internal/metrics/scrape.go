package metrics

import (
	"iter"
	"maps"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/guard"
	"github.com/prometheus/client_golang/prometheus"
)

// scrape collects what is read when somebody asks.
type scrape struct {
	cfg Config

	cells, age, standby, waiting, tunnels, held, behind, aside, caEnds, unmoved *prometheus.Desc
	seconds, dollars, spent, idle, unpriced, prices                             *prometheus.Desc
}

var _ prometheus.Collector = (*scrape)(nil)

func (s *scrape) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.cells, s.age, s.standby, s.waiting, s.tunnels, s.held, s.behind, s.aside, s.caEnds, s.unmoved,
		s.seconds, s.dollars, s.spent, s.idle, s.unpriced, s.prices,
	} {
		descs <- d
	}
}

func (s *scrape) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if s.cfg.Read == nil {
		return
	}
	now := s.cfg.Read()
	s.collectCells(&now, gauge)
	for _, node := range nodesOf(&now, maps.Keys(now.Waiting)) {
		gauge(s.waiting, float64(now.Waiting[node]), node)
	}
	gauge(s.tunnels, float64(now.Tunnels))
	held := map[guard.Reason]int{}
	for _, h := range now.Held {
		held[h.Reason]++
	}
	for _, r := range labelHeld.values { // also where there is none: an alarm is to end
		gauge(s.held, float64(held[guard.Reason(r.name)]), r.name)
	}
	gauge(s.behind, oneIf(now.Behind))
	gauge(s.aside, oneIf(now.Aside))
	// Summed, since two metrics of the same labels would spoil the scrape.
	type kind struct {
		instanceType string
		capacityType cloud.CapacityType
	}
	if !now.CA.Ends.IsZero() {
		gauge(s.caEnds, float64(now.CA.Ends.Unix()))
	}
	gauge(s.unmoved, float64(now.CA.Unmoved))
	if !now.PricesTold.IsZero() {
		gauge(s.prices, s.cfg.Clock.Since(now.PricesTold).Seconds())
	}
	sums := map[kind]Cost{}
	for _, c := range now.Ledger {
		k := kind{c.InstanceType, c.CapacityType()}
		sum := sums[k]
		sum.Seconds += c.Seconds
		sum.Dollars += c.Dollars
		sums[k] = sum
	}
	for k, sum := range sums {
		to <- prometheus.MustNewConstMetric(s.seconds, prometheus.CounterValue, sum.Seconds, k.instanceType, launchTypeOf(k.capacityType))
		to <- prometheus.MustNewConstMetric(s.dollars, prometheus.CounterValue, sum.Dollars, k.instanceType, launchTypeOf(k.capacityType))
	}
	for namespace, sum := range now.Spent {
		to <- prometheus.MustNewConstMetric(s.spent, prometheus.CounterValue, sum.Dollars, namespace)
		to <- prometheus.MustNewConstMetric(s.idle, prometheus.CounterValue, sum.IdleDollars, namespace)
		to <- prometheus.MustNewConstMetric(s.unpriced, prometheus.CounterValue, sum.Unpriced, namespace)
	}
}

func (s *scrape) collectCells(r *Reading, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	type standby struct{ instanceType, state string }
	count, oldest, waiting := map[string]map[apiv1.Phase]int{}, map[apiv1.Phase]time.Duration{}, map[standby]int{}
	now := s.cfg.Clock.Now()
	for i := range r.Cells {
		c := &r.Cells[i]
		node := r.NodeOf(*c)
		if count[node] == nil {
			count[node] = map[apiv1.Phase]int{}
		}
		count[node][c.Phase]++
		if n := len(c.Steps); n > 0 {
			oldest[c.Phase] = max(oldest[c.Phase], now.Sub(c.Steps[n-1].Time.Time))
		}
		if c.Standby != "" && c.Pod.UID == "" && c.Live() {
			waiting[standby{c.Offering().InstanceType, standbyState(c)}]++
		}
	}
	nodes := nodesOf(r, maps.Keys(count))
	for _, p := range livePhases {
		for _, node := range nodes {
			gauge(s.cells, float64(count[node][p]), node, string(p))
		}
		gauge(s.age, oldest[p].Seconds(), string(p))
	}
	for k, n := range waiting {
		gauge(s.standby, float64(n), k.instanceType, k.state)
	}
}

// nodesOf are the virtual nodes, also those without anything, and those that something is of.
func nodesOf(r *Reading, of iter.Seq[string]) []string {
	all := slices.AppendSeq(slices.Clone(r.Nodes), of)
	slices.Sort(all)
	return slices.Compact(all)
}

func standbyState(c *cells.Cell) string {
	switch {
	case c.Stopped && c.Instance != nil && c.Instance.State == cloud.Stopped:
		return standbyStopped
	case c.Stopped:
		return standbyStopping
	case c.Phase == apiv1.Ready:
		return standbyReady
	}
	return standbyBooting
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
