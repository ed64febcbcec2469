package metrics

import (
	"time"

	"github.com/elotl/kip/internal/stats"
)

// StatsGathered is told of each gathering of what pods use: it is
// stats.Config.Gathered.
func (m *Metrics) StatsGathered(endpoint string, took time.Duration, missed map[stats.Miss]int) {
	m.statsGathered.WithLabelValues(endpoint).Observe(took.Seconds())
	for why, n := range missed {
		m.statsMissed.WithLabelValues(endpoint, string(why)).Add(float64(n))
	}
}
