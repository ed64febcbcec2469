package agent

import (
	"context"
	"sync"
	"time"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/gpus"
	"github.com/elotl/kip/internal/agent/supervise"
)

// Periods of looking for GPUs on a machine that has shown none: a driver takes seconds to
// find its own, and may be set up by what the operator's cloud-init file runs.
const (
	gpuLook     = time.Second
	gpuLookLong = 30 * time.Second // after gpuSoon
	gpuSoon     = 2 * time.Minute
)

// startOffering has offerGPUs run until the returned function is called, which waits for its end.
func (a *Agent) startOffering(background context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(background)
	var task sync.WaitGroup
	task.Go(func() { a.offerGPUs(ctx) })
	return func() {
		cancel()
		task.Wait()
	}
}

// offerGPUs runs the plugin that offers the machine's GPUs to the kubelet, from when there
// may be any until ctx ends.
func (a *Agent) offerGPUs(ctx context.Context) {
	began := a.o.Clock.Now()
	for !a.gpus().Present() {
		wait := gpuLook
		if a.o.Clock.Since(began) > gpuSoon {
			wait = gpuLookLong
		}
		timer := a.o.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
	p, err := a.process(supervise.Spec{
		Name: configs.DevicePlugin,
		Path: a.o.Containerd,
		Args: []string{"--root=" + a.o.Root},
	})
	if err != nil {
		a.o.Log.Error("offer the machine's GPUs to the kubelet", "err", err)
		return
	}
	defer p.Close()
	a.mu.Lock()
	a.devicePlugin = p
	a.mu.Unlock()
	p.Run(ctx)
}

func (a *Agent) gpus() gpus.Machine { return gpus.Machine{Root: a.o.Root} }
