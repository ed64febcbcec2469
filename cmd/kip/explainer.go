package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/agentapi"
	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/control"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/pods"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// explainer tells the local socket what Kip knows.
type explainer struct {
	node      string
	pods      cache.SharedIndexInformer
	cells     *cells.Controller
	loop      *pods.Controller
	mirror    *cells.Mirror
	placer    *placement.Placer
	shortages *capacity.Shortages
}

var _ control.Explainer = (*explainer)(nil)

// Why puts together what Kip knows of where a pod stands. Events are not Kip's to
// read: who asks adds them.
func (x *explainer) Why(ctx context.Context, namespace, name string) (control.Explanation, error) {
	obj, exists, err := x.pods.GetStore().GetByKey(namespace + "/" + name)
	if err != nil {
		return control.Explanation{}, err
	}
	if !exists {
		return control.Explanation{}, fmt.Errorf("pod %s/%s on node %s: %w", namespace, name, x.node, control.ErrNotFound)
	}
	pod := obj.(*corev1.Pod)
	e := control.Explanation{
		Pod: apiv1.Ref(pod), Node: pod.Spec.NodeName, PodPhase: string(pod.Status.Phase),
		Placement: x.placement(pod), Waiting: x.loop.Waiting(pod.UID),
	}
	if cell, has := x.cells.ForPod(pod.UID); has {
		c := x.cell(cell)
		e.Cell = &c
		if e.Waiting == "" {
			e.Waiting = x.waiting(pod, cell)
		}
		if cell.Phase == apiv1.Booting && c.Tunnel != nil && c.Tunnel.Connected {
			c.Agent = x.agent(ctx, cell)
		}
	}
	return e, nil
}

// waiting says what a pod with a cell waits for, "" if for nothing.
func (x *explainer) waiting(pod *corev1.Pod, cell cells.Cell) string {
	if cell.Phase != apiv1.Bound {
		return fmt.Sprintf("its cell %s (%s) is %s: %s", cell.ID, cell.Offer(), cell.Phase, x.cells.WaitsFor(cell.ID))
	}
	var parts []string
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			parts = append(parts, strings.TrimSuffix(fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, w.Message), ": "))
		}
	}
	return strings.Join(parts, "; ")
}

func (x *explainer) placement(pod *corev1.Pod) *control.Placement {
	candidates, err := x.placer.Candidates(pod, x.shortages.Unavailable)
	p := &control.Placement{}
	for _, c := range candidates {
		p.Candidates = append(p.Candidates, control.Candidate{
			InstanceType: c.InstanceType.Name, Zone: c.Offering.Zone, LaunchType: launchType(c.Offering.Spot),
			PricePerHour: apiv1.Price(c.Offering.PricePerHour), Why: c.Reason,
		})
	}
	if err != nil {
		p.Error = err.Error()
	}
	var unplaceable *placement.UnplaceableError
	if errors.As(err, &unplaceable) {
		p.Need = unplaceable.Need
		for _, r := range unplaceable.Rejections {
			p.Rejected = append(p.Rejected, control.Rejection{What: fmt.Sprintf("%d types", r.Types), Why: r.Why})
		}
	}
	var none *placement.NoCapacityError
	if errors.As(err, &none) {
		p.Need = none.Need
		for _, t := range none.Types {
			p.Rejected = append(p.Rejected, control.Rejection{What: t, Why: "no capacity now"})
		}
	}
	return p
}

// Cells returns every cell with what Kip alone knows of it.
func (x *explainer) Cells(context.Context) ([]control.Cell, error) {
	all := x.cells.List()
	list := make([]control.Cell, 0, len(all))
	for _, c := range all {
		list = append(list, x.cell(c))
	}
	return list, nil
}

func (x *explainer) cell(c cells.Cell) control.Cell {
	shown := control.Cell{Name: c.ID, Status: x.mirror.Status(c)}
	if link, ok := x.cells.Link(c.ID); ok {
		shown.Tunnel = &control.Tunnel{Connected: link.Connected}
		if !link.LastHeard.IsZero() {
			shown.Tunnel.LastHeard = &link.LastHeard
		}
		if link.LastError != nil {
			shown.Tunnel.Error = link.LastError.Error()
		}
	}
	return shown
}

// agentTimeout bounds the question to the agent of a cell that is not ready.
const agentTimeout = 2 * time.Second

// agent asks the agent of a cell how the parts of its system fare.
func (x *explainer) agent(ctx context.Context, cell cells.Cell) *control.Agent {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	link, err := x.cells.RoundTripper(cell.Pod.UID)
	if err != nil {
		return &control.Agent{Error: err.Error()}
	}
	return askAgent(ctx, link, cell.ID)
}

func askAgent(ctx context.Context, link http.RoundTripper, cell string) *control.Agent {
	failed := func(err error) *control.Agent {
		return &control.Agent{Error: fmt.Sprintf("ask the agent of cell %s: %v", cell, err)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+cell+agentapi.PathStatus, nil)
	if err != nil {
		return failed(err)
	}
	resp, err := link.RoundTrip(req)
	if err != nil {
		return failed(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return failed(errors.New(resp.Status))
	}
	var status agentapi.Status
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&status); err != nil {
		return failed(err)
	}
	a := &control.Agent{}
	for _, c := range status.Components {
		a.Components = append(a.Components, control.Component{Name: c.Name, PID: c.PID, Restarts: c.Restarts, Waiting: c.Waiting})
	}
	return a
}

// Standby returns how the standby pools fare.
func (x *explainer) Standby(context.Context) ([]control.Pool, error) {
	var list []control.Pool
	for _, s := range x.cells.Standby() {
		list = append(list, control.Pool{Name: s.Name, Want: s.Want, Ready: s.Ready, Booting: s.Booting, Why: s.Why})
	}
	return list, nil
}

// Capacity returns what is out of capacity now.
func (x *explainer) Capacity(context.Context) ([]control.Shortage, error) {
	var list []control.Shortage
	for _, s := range x.shortages.List() {
		one := control.Shortage{InstanceType: s.InstanceType, Zone: s.Zone, Subnet: s.Subnet, Until: s.Until, Why: s.Why}
		if s.Spot != nil {
			one.LaunchType = launchType(*s.Spot)
		}
		list = append(list, one)
	}
	return list, nil
}

func launchType(spot bool) string {
	if spot {
		return "Spot"
	}
	return "On-Demand"
}
