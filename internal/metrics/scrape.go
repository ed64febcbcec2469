package metrics

import (
	"iter"
	"maps"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/gate"
	"github.com/prometheus/client_golang/prometheus"
)

// scrape collects what is read when somebody asks.
type scrape struct {
	cfg Config

	cells, age, standby, waiting, tunnels, held, behind, seconds, dollars, spent, unpriced *prometheus.Desc
}

var _ prometheus.Collector = (*scrape)(nil)

func (s *scrape) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.cells, s.age, s.standby, s.waiting, s.tunnels, s.held, s.behind, s.seconds, s.dollars, s.spent, s.unpriced,
	} {
		descs <- d
	}
}

func (s *scrape) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if s.cfg.Cells != nil {
		s.collectCells(gauge)
	}
	if s.cfg.Waiting != nil {
		count := s.cfg.Waiting()
		for _, node := range s.nodes(maps.Keys(count)) {
			gauge(s.waiting, float64(count[node]), node)
		}
	}
	if s.cfg.Tunnels != nil {
		gauge(s.tunnels, float64(s.cfg.Tunnels()))
	}
	if s.cfg.Held != nil {
		count := map[gate.Reason]int{}
		for _, h := range s.cfg.Held() {
			count[h.Reason]++
		}
		for _, r := range labelHeld.values { // also where there is none: an alarm is to end
			gauge(s.held, float64(count[gate.Reason(r.name)]), r.name)
		}
	}
	if s.cfg.Behind != nil {
		is := 0.0
		if s.cfg.Behind() {
			is = 1
		}
		gauge(s.behind, is)
	}
	if s.cfg.Ledger != nil {
		// Summed, since two metrics of the same labels would spoil the scrape.
		type kind struct {
			instanceType string
			spot         bool
		}
		sums := map[kind]Cost{}
		for _, c := range s.cfg.Ledger() {
			k := kind{c.InstanceType, c.Spot}
			sum := sums[k]
			sum.Seconds += c.Seconds
			sum.Dollars += c.Dollars
			sums[k] = sum
		}
		for k, sum := range sums {
			to <- prometheus.MustNewConstMetric(s.seconds, prometheus.CounterValue, sum.Seconds, k.instanceType, launchTypeOf(k.spot))
			to <- prometheus.MustNewConstMetric(s.dollars, prometheus.CounterValue, sum.Dollars, k.instanceType, launchTypeOf(k.spot))
		}
	}
	if s.cfg.Spent != nil {
		for namespace, sum := range s.cfg.Spent() {
			to <- prometheus.MustNewConstMetric(s.spent, prometheus.CounterValue, sum.Dollars, namespace)
			to <- prometheus.MustNewConstMetric(s.unpriced, prometheus.CounterValue, sum.Unpriced, namespace)
		}
	}
}

func (s *scrape) collectCells(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	type standby struct{ instanceType, state string }
	count, oldest, waiting := map[string]map[apiv1.Phase]int{}, map[apiv1.Phase]time.Duration{}, map[standby]int{}
	list := s.cfg.Cells()
	now := s.cfg.Clock.Now()
	for i := range list {
		c := &list[i]
		node := s.cfg.NodeOf(*c)
		if count[node] == nil {
			count[node] = map[apiv1.Phase]int{}
		}
		count[node][c.Phase]++
		if n := len(c.Steps); n > 0 {
			oldest[c.Phase] = max(oldest[c.Phase], now.Sub(c.Steps[n-1].Time.Time))
		}
		if c.Standby != "" && c.Pod.UID == "" && c.Live() {
			waiting[standby{c.Offer().InstanceType, standbyState(c)}]++
		}
	}
	for _, p := range livePhases {
		for _, node := range s.nodes(maps.Keys(count)) {
			gauge(s.cells, float64(count[node][p]), node, string(p))
		}
		gauge(s.age, oldest[p].Seconds(), string(p))
	}
	for k, n := range waiting {
		gauge(s.standby, float64(n), k.instanceType, k.state)
	}
}

// nodes are the virtual nodes, also those without anything, and those that something is of.
func (s *scrape) nodes(of iter.Seq[string]) []string {
	all := slices.Collect(of)
	if s.cfg.Nodes != nil {
		all = append(all, s.cfg.Nodes()...)
	}
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
