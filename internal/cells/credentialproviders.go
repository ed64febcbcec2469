package cells

import (
	"context"
	"maps"
	"slices"

	"github.com/elotl/kip/internal/events"
)

// credentialProviders reports the operator's credential providers that ready cells lack. No cell waits for them: most pods need none.
type credentialProviders struct {
	table    *table
	events   *reporter
	reports  *connectionReports
	reported perCell[bool] // of their workers
}

var _ preparation = (*credentialProviders)(nil)

// prepare reports, once and on its pod, what the cell's kubelet does without.
func (s *credentialProviders) prepare(_ context.Context, e *entry) (progress, error) {
	reported := s.reported.of(e)
	if *reported || e.cell().Pod.UID == "" {
		return done, nil
	}
	s.table.mu.Lock()
	configured, said := e.connection().configured, s.reports.answerLocked(e).CredentialProviders
	s.table.mu.Unlock()
	if !configured {
		return done, nil // it is asked again before it binds, unless its agent breaks off just now
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
