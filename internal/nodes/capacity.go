package nodes

import (
	"context"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
)

const (
	// sizeEvery is how often the capacity of a node may change. Each change of a Node goes to all that watch nodes, and cells
	// come and go by the second.
	sizeEvery = time.Minute
	// boundsEvery is how often the cloud is asked for its bounds, which takes it some ten calls. After an error it is asked
	// again with the next size.
	boundsEvery = 5 * time.Minute
)

// Bounder knows how much the machines of an owner may be.
type Bounder interface {
	Bounds(ctx context.Context, owner string) (catalog.Bounds, error)
}

// bounds are what the cloud has said.
type bounds struct {
	held, last catalog.Bounds
	answers    int
	asked      time.Time // when it answered last; zero before the second answer, and after an error
	// refused are the classes of which the cloud has refused a launch for their quota, as long as that holds.
	refused map[catalog.Class]refusal
}

// refusal is that of a launch for the quota of its class.
type refusal struct {
	until time.Time // of the shortage
	most  int64     // how much CPU the class had, and may have had left
	told  int64     // as bounds.told
}

// told is the quota of a class, -1 where the cloud tells none.
func (b *bounds) told(c catalog.Class) int64 {
	if quota, is := b.held.MilliCPU[c]; is {
		return quota
	}
	return -1
}

// sizing determines the capacity of nodes where the configuration leaves that to Kip. Its bounds are those of run alone.
type sizing struct {
	c      Config
	nodes  *registry
	offers *offers
	cells  Cells
	bounds bounds
}

// run keeps the capacity of the nodes where the configuration says auto, until ctx ends.
func (z *sizing) run(ctx context.Context) error {
	ticker := z.c.Clock.NewTicker(sizeEvery)
	defer ticker.Stop()
	for {
		z.c.Watchdog.Track(ctx, "capacity of virtual nodes", z.size)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// size determines the capacity of all nodes.
func (z *sizing) size(ctx context.Context) {
	cfg, all := z.nodes.Configuration(), z.nodes.all()
	if !slices.ContainsFunc(all, func(s *served) bool {
		e, _ := z.nodes.entryOf(s.name)
		_, auto := cfg.CapacityOf(e.Node)
		return len(auto) > 0
	}) || !z.askBounds(ctx) {
		return
	}
	var use nodeplan.Use
	runs, launched := map[catalog.Class]int64{}, map[string]bool{} // the pods for which a machine was launched
	for _, cell := range z.cells.List() {
		if cell.Pod.UID == "" || cell.Launch == nil && cell.Instance == nil || cell.Phase == apiv1.Gone {
			continue
		}
		o := cell.Offering()
		class := catalog.Class{Family: o.Family, Spot: o.Spot}
		use.Add(o.Subnet, class, o.MilliCPU, o.MemoryBytes)
		if cell.Instance != nil {
			runs[class] += o.MilliCPU
		}
		launched[string(cell.Pod.UID)] = true
	}
	left, most := z.refusals(use.MilliCPU, runs)
	for _, s := range all {
		if !z.nodes.pods.Listed(s.name) {
			continue // what they need is not known
		}
		sizing := nodeplan.Sizing{Bounds: z.bounds.held, Use: use, Left: left, Most: most}
		sizing.Needs, sizing.Served = needs(s, launched)
		z.setCapacity(s, sizing)
	}
}

// askBounds asks the cloud for its bounds if it is time, and reports whether they are known: one answer may lack anything, so
// the first two count together. A cloud that has none to tell bounds nothing.
func (z *sizing) askBounds(ctx context.Context) (known bool) {
	b := &z.bounds
	if z.c.Bounder == nil {
		return true
	}
	if now := z.c.Clock.Now(); b.asked.IsZero() || now.Sub(b.asked) >= boundsEvery {
		said, err := z.c.Bounder.Bounds(ctx, z.c.ControllerID)
		switch {
		case err == nil:
			b.held, b.last = nodeplan.Believed(b.held, b.last, said), said
			if b.answers++; b.answers > 1 {
				b.asked = now
			}
		case ctx.Err() == nil:
			b.asked = time.Time{}
			z.c.Log.Warn("read how much can be launched, retrying; the capacity of virtual nodes stays", "err", err)
		}
	}
	return b.answers > 1
}

// refusals are how much CPU classes have left at most of which a launch was refused for their quota lately, and how much those may
// have of which one was refused earlier. A refusal holds until machines run that it ruled out, or the cloud tells a larger quota:
// a node that forgot it after a while would take pods that wait, again and again.
func (z *sizing) refusals(use, runs map[catalog.Class]int64) (left, most map[catalog.Class]int64) {
	left, most = map[catalog.Class]int64{}, map[catalog.Class]int64{}
	b := &z.bounds
	if b.refused == nil {
		b.refused = map[catalog.Class]refusal{}
	}
	for _, s := range z.c.Shortages.List() {
		if s.Family == "" || s.InstanceType != "" || s.Zone != "" || s.Subnet != "" {
			continue
		}
		for _, spot := range []bool{false, true} {
			if s.Spot != nil && *s.Spot != spot {
				continue
			}
			c, rest := catalog.Class{Family: s.Family, Spot: spot}, max(0, s.LeastMilliCPU-1) // as much would have been launched
			if before, has := left[c]; !has || rest < before {
				left[c] = rest
			}
			if s.Until.After(b.refused[c].until) {
				b.refused[c] = refusal{s.Until, use[c] + rest, b.told(c)}
			}
		}
	}
	for c, r := range b.refused {
		if _, lately := left[c]; lately {
			continue
		}
		if runs[c] > r.most || b.told(c) > r.told {
			delete(b.refused, c)
			continue
		}
		most[c] = r.most
	}
	return left, most
}

// needs are what the pods of a node ask for, as the scheduler counts it, and what those of them do that wait for no machine: it was
// launched, or they are of a DaemonSet, and stand without one.
func needs(s *served, launched map[string]bool) (needs, done corev1.ResourceList) {
	needs, done = corev1.ResourceList{}, corev1.ResourceList{}
	for _, pod := range watches.List(s.informer) {
		if watches.Ended(pod) {
			continue
		}
		requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
		requests[corev1.ResourcePods] = *quantity.NewQuantity(1, quantity.DecimalSI)
		add(needs, requests)
		if launched[string(pod.UID)] || ofDaemonSet(pod) {
			add(done, requests)
		}
	}
	return needs, done
}

func add(to, some corev1.ResourceList) {
	for name, q := range some {
		sum := to[name]
		sum.Add(q)
		to[name] = sum
	}
}

// setCapacity gives a node the capacity that follows from a sizing, as far as the configuration leaves that to Kip.
func (z *sizing) setCapacity(s *served, sizing nodeplan.Sizing) {
	types, _, err := z.offers.ofNode(s.name)
	if err != nil {
		z.c.Log.Error("what a virtual node offers cannot be told", "node", s.name, "err", err)
		return
	}
	z.nodes.mu.Lock()
	out := s.out
	z.nodes.mu.Unlock()
	sizing.Types = without(types, out)
	found := sizing.Capacity()
	z.nodes.mu.Lock()
	s.found = found
	// Under one lock: the capacity of an older configuration must not reach the node of a newer one, where it may be fixed.
	cfg, object, e := z.nodes.cfg, s.node, s.entry
	z.nodes.mu.Unlock()
	list, auto := cfg.CapacityOf(e.Node)
	if object == nil || len(auto) == 0 {
		return
	}
	for _, name := range auto {
		list[name] = found[name]
	}
	if object.SetCapacity(list) {
		z.c.Log.Info("the capacity of a virtual node changes", "node", s.name, "cpu", list.Cpu().String(),
			"memory", list.Memory().String(), "pods", list.Pods().String())
	}
}
