package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

// KernelSettings are what a pod asks of its machine's kernel.
type KernelSettings = agentapi.KernelSettings

// Sysctl is one of them.
type Sysctl = agentapi.Sysctl

const (
	// kernelPoll is after how long an agent is asked again that is not ready for them.
	kernelPoll = 100 * time.Millisecond
	// kernelSilence is how long it may take before its pod is told.
	kernelSilence = 20 * time.Second
)

// kernels give ready cells the kernel settings of their pods.
type kernels struct {
	loop   *loop
	agents *asking
	ends   *cellEnds
	waits  *bindWaits
	set    perCell[bool] // the kernel has them; of their workers
}

var _ preparation = (*kernels)(nil)

// prepare has a ready cell's kernel set as its pod asks, before its kubelet sees the pod. A cell whose machine refuses that ends.
func (s *kernels) prepare(ctx context.Context, e *entry) (progress, error) {
	cell, set := e.cell(), s.set.of(e)
	if cell.Kernel == nil || *set {
		return done, nil
	}
	session := e.session()
	if !session.connected() {
		return await(notConnected), nil // the tunnel wakes the cell
	}
	got, err := s.loop.async(ctx, e, setsKernel, func(ctx context.Context) error {
		return s.agents.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) error { return agent.PutKernel(ctx, *cell.Kernel) })
	})
	switch {
	case !got.isDone():
		return got, nil
	case err == nil:
		*set = true
		s.waits.over(ctx, e)
		return done, nil
	case errors.Is(err, agentapi.ErrNotYet):
		return s.waits.wait(ctx, e, bindWait{
			by:       s,
			progress: waitFor(waitsOfOps[setsKernel], kernelPoll),
			event:    events.NewHostSettingsNotReady(e.id, err),
			silence:  kernelSilence,
		})
	case answered(err, http.StatusBadRequest, http.StatusNotFound):
		s.refused(e, err)
		return leave, nil
	}
	return progress{}, fmt.Errorf("set the kernel of cell %s: %w", e.id, err)
}

// refused ends a cell whose agent has refused its pod's settings.
func (s *kernels) refused(e *entry, refusal error) {
	why := "its agent is older than this Kip and knows neither host-sysctls nor host-modules"
	if answer, is := errors.AsType[*agentapi.StatusError](refusal); is && answer.Code == http.StatusBadRequest {
		why = answer.Text
	}
	s.ends.begin(e, cellEnd{CauseKernelRefused, why, events.NewHostSettingsRefused(e.id, why)})
}
