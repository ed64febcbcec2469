package nodes

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/placement"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/clock"
)

// departures are those of pods that leave a node which has nothing for them.
type departures struct {
	nodes        *registry
	offers       *offers
	reads        *reads
	controllerID string
	clock        clock.PassiveClock
	log          *slog.Logger

	turnsFor, turnsAgain time.Duration // those of the constants; under registry.mu
}

// Elsewhere are the nodes, in order of number, that the scheduler may give a pod instead of
// its own, and that are not of spot alone. Its own must be one that pods may leave.
func (d *departures) Elsewhere(ctx context.Context, pod *corev1.Pod) (list []string) {
	own := d.nodes.named(pod.Spec.NodeName)
	if own == nil || !d.mayBeLeft(own) {
		return nil
	}
	selects, log := nodeaffinity.GetRequiredNodeAffinity(pod), logr.FromSlogHandler(d.log.Handler())
	keepsAway := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	for _, s := range d.nodes.all() {
		e, is := d.nodes.entryOf(s.name)
		if !is || e.Removed || e.CapacityType() == config.Spot || d.offers.shortage(s) != "" {
			continue
		}
		there, err := d.reads.node(ctx, s.name, d.reads.again)
		if err != nil || there.Spec.Unschedulable || node.Foreign(there, d.controllerID) != nil {
			continue // it is asked again
		}
		_, bad := schedulinghelpers.FindMatchingUntoleratedTaint(log, there.Spec.Taints, pod.Spec.Tolerations, keepsAway, false)
		if fits, err := selects.Match(there); err == nil && fits && !bad {
			list = append(list, s.name)
		}
	}
	return list
}

// KeptAway returns why a pod that is on no node cannot be placed on any of Kip's that it may be on, where the cause is that these take
// no pods for want of capacity; "" otherwise.
func (d *departures) KeptAway(ctx context.Context, pod *corev1.Pod) (why string) {
	all := d.nodes.all()
	if !slices.ContainsFunc(all, func(s *served) bool { return d.nodes.awayOf(s) != "" }) {
		return ""
	}
	selects, log := nodeaffinity.GetRequiredNodeAffinity(pod), logr.FromSlogHandler(d.log.Handler())
	keepsAway := func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != node.ShortTaint
	}
	short := corev1.Taint{Key: node.ShortTaint, Effect: corev1.TaintEffectNoSchedule}
	if schedulinghelpers.TolerationsTolerateTaint(log, pod.Spec.Tolerations, &short, false) {
		return ""
	}
	for _, s := range all {
		e, _ := d.nodes.entryOf(s.name)
		there, err := d.reads.node(ctx, s.name, d.reads.again)
		if err != nil || e.Removed || there.Spec.Unschedulable || node.Foreign(there, d.controllerID) != nil {
			continue
		}
		_, bad := schedulinghelpers.FindMatchingUntoleratedTaint(log, there.Spec.Taints, pod.Spec.Tolerations, keepsAway, false)
		if fits, err := selects.Match(there); err != nil || !fits || bad {
			continue
		}
		away := d.nodes.awayOf(s)
		if away == "" {
			return ""
		}
		if why == "" {
			why = events.KeptAway(s.name, away)
		}
	}
	return why
}

// mayBeLeft says that pods may leave a node which has nothing for them: one of spot alone, and
// any that has nothing for anybody, as when its zone fails. What one on demand lacks for some
// pods alone is theirs to wait for.
func (d *departures) mayBeLeft(s *served) bool {
	e, _ := d.nodes.entryOf(s.name)
	return e.CapacityType() == config.Spot || d.offers.shortage(s) != ""
}

const (
	// turnsFor is how long a spot node turns pods away which has something for others than
	// those that leave: three looks of each, and the time in which controllers make others.
	turnsFor = 90 * time.Second
	// turnsAgain is how long after the beginning it may again: it has capacity, whatever
	// keeps its pods from leaving, or brings them back.
	turnsAgain = 10 * time.Minute
)

// TurnsAway says that no node of spot alone would get the pod that replaces this one and
// have nothing for it either: its own, others that have nothing for it now, and those that
// such pods have left lately. Each has a taint that the pod does not tolerate. Those that
// have something for others get that of a shortage for a while, for the sake of the pods
// that leave, but not time and again.
func (d *departures) TurnsAway(ctx context.Context, pod *corev1.Pod) bool {
	own, log := d.nodes.named(pod.Spec.NodeName), logr.FromSlogHandler(d.log.Handler())
	short := corev1.Taint{Key: node.ShortTaint, Effect: corev1.TaintEffectNoSchedule}
	if own == nil || !d.mayBeLeft(own) || schedulinghelpers.TolerationsTolerateTaint(log, pod.Spec.Tolerations, &short, false) {
		return false
	}
	take, err := d.wouldTake(ctx, own, pod)
	switch {
	case err != nil:
		return false
	case len(take) > 0:
		d.turn(take)
		return false
	}
	_, lacks := d.hasNothing(ctx, own, pod)
	d.nodes.mu.Lock()
	own.left, own.leftLacks = d.clock.Now(), lacks
	d.nodes.mu.Unlock()
	return true
}

// wouldTake returns the nodes of spot alone that would get the pod that replaces one on its own node and have nothing for it either,
// with what they lack.
func (d *departures) wouldTake(ctx context.Context, own *served, pod *corev1.Pod) (take map[*served]string, err error) {
	selects, log := nodeaffinity.GetRequiredNodeAffinity(pod), logr.FromSlogHandler(d.log.Handler())
	keepsAway := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	take = map[*served]string{}
	for _, s := range d.nodes.all() {
		if s != own && !d.isSpot(s) {
			continue
		}
		there, err := d.reads.node(ctx, s.name, d.reads.soon())
		if err != nil {
			return nil, err
		}
		if _, away := schedulinghelpers.FindMatchingUntoleratedTaint(log, there.Spec.Taints, pod.Spec.Tolerations, keepsAway, false); away {
			continue
		}
		nothing, lacks := d.hasNothing(ctx, s, pod)
		if fits, err := selects.Match(there); s == own || err == nil && fits && nothing {
			take[s] = lacks
		}
	}
	return take, nil
}

// isSpot says that pods are given a node of spot alone.
func (d *departures) isSpot(s *served) bool {
	d.nodes.mu.Lock()
	defer d.nodes.mu.Unlock()
	return s.rights == rightsHeld && !s.entry.Removed && s.entry.CapacityType() == config.Spot
}

// hasNothing says that a node has nothing for a pod of another, or had not lately, and what
// that is: what it lacked is not asked for when no pod waits for it.
func (d *departures) hasNothing(ctx context.Context, s *served, pod *corev1.Pod) (nothing bool, lacks string) {
	d.nodes.mu.Lock()
	left := d.clock.Since(s.left) < 2*d.turnsAgain
	if left {
		lacks = s.leftLacks
	}
	d.nodes.mu.Unlock()
	there := *pod
	there.Spec.NodeName = s.name
	err := d.offers.available(ctx, &there)
	if none, is := errors.AsType[*placement.NoCapacityError](err); is && len(none.Types) > 0 {
		lacks = d.offers.offeringsOf(s, none.Types)
	}
	return left || err != nil, lacks
}

// turn has spot nodes turn pods away together, once all may; each for what it lacks. Any
// other gets its taint for a shortage that it has, and may have no more.
func (d *departures) turn(take map[*served]string) {
	maps.DeleteFunc(take, func(s *served, _ string) bool { return !d.isSpot(s) })
	maps.DeleteFunc(take, func(s *served, _ string) bool { return cmp.Or(d.offers.shortage(s), d.turning(s)) != "" })
	d.nodes.mu.Lock()
	now, all := d.clock.Now(), true
	for s := range take {
		all = all && now.Sub(s.turns) >= d.turnsAgain
	}
	for s, lacks := range take {
		if all {
			s.turns, s.turnsLacks = now, cmp.Or(lacks, "what pods have left the node for")
		}
	}
	d.nodes.mu.Unlock()
	d.nodes.LookSoon()
}

// turning is for want of what a node turns pods away that has something for some; "" if it
// does not.
func (d *departures) turning(s *served) (lacks string) {
	d.nodes.mu.Lock()
	defer d.nodes.mu.Unlock()
	if d.clock.Since(s.turns) < d.turnsFor {
		return s.turnsLacks
	}
	return ""
}
