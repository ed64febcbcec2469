package cells

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/pulse"
	"github.com/elotl/kip/internal/tunnel"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// podsPerCell is what a cell's kubelet says it can run. Its one pod is all that
// it is shown; the rest leaves room for a pod that is being replaced by itself.
const podsPerCell = 2

// dialled brings up the cell's API and its tunnel in this process. It returns what
// gives the agent its configuration, where that is to be done and can be.
func (s *connections) dialled(ctx context.Context, e *entry) (configure func(context.Context) error, err error) {
	if e.session == nil {
		offering := e.cell().Offering()
		capacity := corev1.ResourceList{
			corev1.ResourceCPU:              *resource.NewMilliQuantity(offering.MilliCPU, resource.DecimalSI),
			corev1.ResourceMemory:           *resource.NewQuantity(offering.MemoryBytes, resource.BinarySI),
			corev1.ResourceEphemeralStorage: *resource.NewQuantity(offering.DiskBytes, resource.BinarySI),
			corev1.ResourcePods:             *resource.NewQuantity(podsPerCell, resource.DecimalSI),
		}
		allocatable := capacity.DeepCopy()
		allocatable[corev1.ResourceMemory] = *resource.NewQuantity(offering.MemoryBytes-s.config.ReservedMemoryBytes, resource.BinarySI)
		node := s.nodeNames.of(e.cell())
		api := s.apis.AddCell(e.id, cellapi.CellInfo{
			Node:        node,
			Capacity:    capacity,
			Allocatable: allocatable,
			NodeIP:      e.cell().Instance.ManagementIP,
			NodeIPv6:    e.cell().Instance.ManagementIPv6,
			PodIP:       e.cell().Instance.PodIP,
			PodIPv6:     e.cell().Instance.PodIPv6,
		})
		s.table.mu.Lock()
		e.api, e.node = api, node
		s.table.mu.Unlock()
		// Before the tunnel: a kubelet that hears that its pod is not there kills
		// the pod.
		if err := e.show(); err != nil {
			return nil, err
		}
		session, err := s.dial(ctx, e, hearing{api, s.notices, e})
		if err != nil {
			return nil, err
		}
		wait, stop := context.WithCancel(ctx)
		s.loop.running.Go(func() {
			select {
			case <-api.NodeReady():
				s.loop.queue.Add(e.id)
			case <-wait.Done():
			}
		})
		s.table.mu.Lock()
		e.session, e.stopWait, e.connecting = session, stop, s.loop.clock.Now()
		s.table.mu.Unlock()
	}
	if err := e.show(); err != nil {
		return nil, err
	}
	s.tellAway(ctx, e)
	dns, connected, bound := s.clusterDNS(), e.session.Connected(), e.cell().Pod.UID != ""
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	e.configured = e.configured && connected
	if !connected || e.configured && (bound || slices.Equal(e.dns, dns)) {
		return nil, nil
	}
	session, breaks, config := e.session, e.breaks, s.agentConfig(e.cell(), e.node, dns)
	return func(ctx context.Context) error { return s.configure(ctx, e, session, config, breaks) }, nil
}

// tellsAway is how long a machine may not answer before observers look anew at why, and then at another reason: most machines
// answer sooner.
const tellsAway = time.Minute

// tellAway tells observers that a booting cell waits for what WaitsFor says now: its agent does not answer, for another reason
// than they know of.
func (s *connections) tellAway(ctx context.Context, e *entry) {
	err, now := e.session.LastError(), s.loop.clock.Now()
	since := e.connecting
	if e.awayTold.After(since) {
		since = e.awayTold
	}
	if err == nil || e.session.Connected() || e.cell().Phase != apiv1.Booting || err.Error() == e.away || now.Sub(since) < tellsAway {
		return
	}
	e.away, e.awayTold = err.Error(), now
	s.records.tell(ctx, e)
}

// show lets the kubelet of a bound cell see its pod.
func (e *entry) show() error {
	cell := e.cell()
	if e.shown || cell.Phase != apiv1.Bound && cell.Phase != apiv1.Draining {
		return nil
	}
	err := e.api.Bind(cell.Pod.Namespace, cell.Pod.Name, cell.Pod.UID)
	e.shown = err == nil
	return err
}

// dial starts the tunnel to the cell.
func (s *connections) dial(ctx context.Context, e *entry, api http.Handler) (Session, error) {
	cell := e.cell()
	target := tunnel.Target{
		CellID:  cell.JoinID(),
		Addr:    netip.AddrPortFrom(cell.Instance.DialIP(s.calls.Traits().DialPublic), agentapi.Port),
		KeyHash: cell.KeyHash,
		CA:      cell.CA,
		Rank:    e.rank,
		OnState: func(connected bool, _ error) {
			if !connected {
				// Noted here: when the worker looks, the session may be connected
				// again, to an agent that has started anew.
				s.table.mu.Lock()
				e.configured = false
				e.breaks++
				s.table.mu.Unlock()
			}
			s.loop.queue.Add(cell.ID)
		},
	}
	if cell.Token != "" {
		var err error
		if target.Token, err = pki.ParseToken(cell.Token); err != nil {
			return nil, fmt.Errorf("read the join token of cell %s: %w", cell.ID, err)
		}
	}
	return s.tunnels.Keep(ctx, target, api, func(ctx context.Context, keyHash string) error { return s.spend(ctx, e, keyHash) })
}

// rank is who is connected first where not all can be at once: who runs a pod, then
// who is to run one, then who stands by.
func (e *entry) rank() int {
	switch cell := e.cell(); {
	case cell.Pod.UID == "":
		return 2
	case cell.Phase == apiv1.Booting, cell.Phase == apiv1.Ready:
		return 1
	}
	return 0
}

// spend records who spent the cell's token, before the certificate leaves Kip.
// The token is kept until the first session with that certificate: after a crash
// in between, the same machine proves once more that it has the token. A machine that
// comes too late is refused, whatever keeps the cell's worker from ending it.
func (s *connections) spend(ctx context.Context, e *entry, keyHash string) error {
	s.table.mu.Lock()
	session := e.session
	s.table.mu.Unlock()
	return s.records.save(ctx, e, func(cell *Cell) error {
		if left, what := s.bootTime(e, cell, session); cell.KeyHash == "" && left <= 0 {
			return fmt.Errorf("cell %s was not %s in time", cell.ID, what)
		}
		if cell.KeyHash != "" && cell.KeyHash != keyHash {
			return fmt.Errorf("the token of cell %s is spent on another key", cell.ID)
		}
		cell.KeyHash = keyHash
		return nil
	})
}

// disconnect closes what this process holds for a cell.
func (s *connections) disconnect(e *entry) {
	s.table.mu.Lock()
	session, stopWait, api := e.session, e.stopWait, e.api
	e.session, e.stopWait, e.api, e.shown, e.configured, e.disksGiven.shown = nil, nil, nil, false, false, false
	e.breaks++ // what is asked on this session yet says nothing of the next one
	s.table.mu.Unlock()
	if stopWait != nil {
		stopWait()
	}
	if session != nil {
		session.Close()
	}
	if api != nil {
		s.apis.RemoveCell(e.id)
	}
}

// kubeletReady says that the kubelet of a cell is ready, with the configuration that the
// agent has from this process: one that an earlier process gave it may be of another node.
func (s *connections) kubeletReady(e *entry) bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	select {
	case <-e.api.NodeReady():
		return e.configured
	default:
		return false
	}
}

// addressed says that an instance has all the addresses that Kip needs.
func (s *connections) addressed(i *cloud.Instance) bool {
	return i.ManagementIP.IsValid() && i.PodIP.IsValid() && i.DialIP(s.calls.Traits().DialPublic).IsValid()
}

// reach waits until a cell that is being drained is connected, if that is worth a
// wait.
func (s *connections) reach(ctx context.Context, e *entry) error {
	if err := s.connectNow(ctx, e); err != nil && e.session == nil {
		return err
	}
	if !e.session.Connected() {
		// After a restart, Kip may still be dialling. A lost cell is not waited for.
		if !patient(e) {
			return ErrNotConnected
		}
		if !e.ready(ctx) {
			return ErrNotConnected
		}
	}
	return nil
}

// ready waits until the cell's session is connected, or ctx ends: false.
func (e *entry) ready(ctx context.Context) bool {
	defer pulse.Wait(ctx, pulse.Cell)()
	select {
	case <-e.session.Ready():
		return true
	case <-ctx.Done():
		return false
	}
}
