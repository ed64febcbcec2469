package metrics

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
)

var _ pipe.Meter = (*Metrics)(nil)

// Intercept implements pipe.Meter. It times the call, and counts how it ends.
func (m *Metrics) Intercept(ctx context.Context, call pipe.Call, next pipe.Send) []pipe.Answer {
	began := m.cfg.Clock.Now()
	answers := next(ctx, call)
	took := m.cfg.Clock.Since(began)
	err := pipe.Err(answers)
	short := errors.Is(err, cloud.ErrCapacity)
	switch {
	case call.Launch != nil && short:
		// By what was asked for, which comes from the catalogue: an error may name less.
		r := call.Launch
		m.cloudCapacity.WithLabelValues(r.InstanceType, r.Zone, launchTypeOf(r.CapacityType)).Inc()
		if slices.ContainsFunc(answers, func(a pipe.Answer) bool { return a.Err == nil }) {
			err = nil // a launch in part is an answer: what it lacks is counted as a shortage
		}
	case call.Kind == cloud.CallStart && short:
		scope := cloud.ScopeOf(err)
		launchType := "" // which the error need not say
		switch {
		case scope.Spot == nil:
		case *scope.Spot:
			launchType = launchSpot
		default:
			launchType = launchOnDemand
		}
		m.cloudCapacity.WithLabelValues(scope.InstanceType, scope.Zone, launchType).Inc()
	}
	m.cloudCalls.WithLabelValues(string(call.Kind), errorClass(ctx, err)).Observe(took.Seconds())
	return answers
}

// InstanceInterrupted implements pipe.Meter.
func (m *Metrics) InstanceInterrupted() { m.cloudInterruptions.Inc() }

// CallWaits implements pipe.Meter.
func (m *Metrics) CallWaits(kind cloud.Call) { m.callsWaiting.WithLabelValues(string(kind)).Inc() }

// CallWaited implements pipe.Meter.
func (m *Metrics) CallWaited(kind cloud.Call, d time.Duration) {
	m.callsWaiting.WithLabelValues(string(kind)).Dec()
	m.callWaits.WithLabelValues(string(kind)).Observe(d.Seconds())
}

// errorClass sorts the errors of a cloud into those that a caller tells apart.
func errorClass(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return errorNone
	case errors.Is(err, cloud.ErrCapacity), errors.Is(err, cloud.ErrTogether):
		return errorCapacity
	case errors.Is(err, cloud.ErrQuota):
		return errorQuota
	case errors.Is(err, cloud.ErrThrottled):
		return errorThrottled
	case errors.Is(err, cloud.ErrUnauthorised):
		return errorUnauthorised
	case errors.Is(err, cloud.ErrMismatch):
		return errorMismatch
	case errors.Is(err, cloud.ErrInUse):
		return errorInUse
	case errors.Is(err, cloud.ErrNotFound):
		return errorNotFound
	case errors.Is(err, cloud.ErrRefused), errors.Is(err, cloud.ErrStale), errors.Is(err, cloud.ErrNotYet), errors.Is(err, cloud.ErrUnfit):
		return errorRefused
	case errors.Is(ctx.Err(), context.Canceled):
		return errorCancelled
	}
	return errorUnknown
}
