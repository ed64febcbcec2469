package cells

import (
	"context"
	"maps"
	"slices"

	"github.com/elotl/kip/internal/events"
)

// credentialProviders reports the operator's credential providers that ready cells lack. No cell waits for them, only for its agent's
// answer: most pods need none.
type credentialProviders struct {
	table    *table
	events   *reporter
	reports  *connectionReports
	some     bool          // there are such providers
	reported perCell[bool] // of their workers
}

var _ preparation = (*credentialProviders)(nil)

// prepare reports, once and on its pod, what the cell's kubelet does without.
func (s *credentialProviders) prepare(_ context.Context, e *entry) (progress, error) {
	reported := s.reported.of(e)
	if !s.some || *reported || e.cell().Pod.UID == "" {
		return done, nil
	}
	s.table.mu.Lock()
	configured, said := e.connection().configured, s.reports.answerLocked(e).CredentialProviders
	s.table.mu.Unlock()
	if !configured {
		return await(notConnected), nil // the tunnel wakes the cell
	}
	*reported = true
	var lacks []string
	for _, name := range slices.Sorted(maps.Keys(said)) {
		if why := said[name]; why != "" {
			lacks = append(lacks, name+" ("+why+")")
		}
	}
	if len(lacks) > 0 {
		s.events.report(e.cell(), events.NewCredentialProviderMissing(e.id, lacks))
	}
	return done, nil
}
