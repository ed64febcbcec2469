package nodes

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/offering"
)

const burst = "admission: {profiles: [{name: all, mode: burst, namespaces: [team]}]}\n"

// lacks is the node's condition of what it has no capacity for, in words; "" before there is one.
func (w *town) lacks(name string) string {
	n := w.node(name)
	if n == nil {
		return ""
	}
	for _, c := range n.Status.Conditions {
		if c.Type == node.ShortageCondition {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// none notes that an offering, or all of which the fields are not empty, cannot be had.
func (w *town) none(s capacity.Shortage) { w.missing.Mark(s) }

func TestANodeSaysWhichKindsAreOutOfCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "")
		gpus := catalog.InstanceType{
			Name: "gpus", Arch: "amd64", MilliCPU: 4000, MemoryBytes: 16 << 30, GPUs: []catalog.GPU{{Model: "T4", Count: 1}},
			Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 5}},
		}
		w.sells = append(slices.Clone(sold), gpus)
		w.start()
		available := "False CapacityAvailable: as far as Kip knows, the cloud has capacity for each kind of what the node offers"
		w.eventually("it lacks nothing", func() bool { return w.lacks("kip-0") == available })
		const kinds = "True SomeUnavailable: the cloud has no capacity now for any offering of the node of these kinds: "
		for _, step := range []struct {
			what  string
			short []capacity.Shortage
			want  string
		}{
			{"one offering of several", []capacity.Shortage{{InstanceType: "small", Zone: "b", Spot: new(false)}}, available},
			{"GPUs", []capacity.Shortage{{InstanceType: "gpus"}}, kinds + "nvidia.com/gpu"},
			{"and spot", []capacity.Shortage{{Spot: new(true)}}, kinds + "nvidia.com/gpu, spot, zone b"}, // the zone's other offering is out
			{"everything", []capacity.Shortage{{}}, "True NothingAvailable: the cloud has no capacity now for any of its 4 offerings"},
		} {
			for _, s := range step.short {
				w.none(s)
			}
			if step.want == available {
				time.Sleep(time.Minute)
			}
			w.eventually(step.what, func() bool { return w.lacks("kip-0") == step.want })
		}
		if w.isShort("kip-0") {
			t.Error("the only node turns pods away, which could be nowhere else")
		}
		w.clock.Step(capacity.Cooldown)
		w.eventually("it is back", func() bool { return w.lacks("kip-0") == available })
	})
}

func TestTheNodeOfAKipThatHasNoOtherTurnsAwayPodsThatMayBeOnOrdinaryNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, burst)
		w.start()
		w.eventually("the node is Ready", func() bool { return w.ready("kip-0") })
		w.none(capacity.Shortage{})
		w.eventually("the taint is there", func() bool { return w.isShort("kip-0") })
		w.said("Warning NodeOutOfCapacity The node takes no new pods for now: the cloud has no capacity now for any of its 3 offerings")
		w.clock.Step(capacity.Cooldown)
		w.eventually("the taint is gone", func() bool { return !w.isShort("kip-0") })
	})
}

func TestNodesThatAllLackCapacityTurnNobodyAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, inTwoZones)
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		w.none(capacity.Shortage{Zone: "b"})
		w.eventually("the second turns pods away", func() bool { return w.isShort("kip-0-2") })
		pod := func(zone string) *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{
				NodeSelector: map[string]string{corev1.LabelTopologyZone: zone},
				Tolerations:  []corev1.Toleration{{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists}},
			}}
		}
		why := "node kip-0-2 takes no new pods for now: the cloud has no capacity now for any of the 1 offerings of the node (zone b, spot)"
		w.eventually("a pod that needs the second is told", func() bool { return w.nodes.KeptAway(t.Context(), pod("b")) == why })
		all, tolerant := pod("b"), pod("b")
		all.Spec.NodeSelector = nil
		tolerant.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		for what, p := range map[string]*corev1.Pod{"of zone a": pod("a"), "of any zone": all, "that tolerates all": tolerant,
			"of no zone": pod("c")} {
			if got := w.nodes.KeptAway(t.Context(), p); got != "" {
				t.Errorf("a pod %s is kept away: %s", what, got)
			}
		}
		w.none(capacity.Shortage{Zone: "a"})
		w.eventually("pods wait on the nodes, since they can be nowhere else", func() bool {
			return !w.isShort("kip-0-1") && !w.isShort("kip-0-2") &&
				strings.HasPrefix(w.lacks("kip-0-1"), "True NothingAvailable") && strings.HasPrefix(w.lacks("kip-0-2"), "True NothingAvailable")
		})
		if got := w.nodes.KeptAway(t.Context(), pod("b")); got != "" {
			t.Errorf("a pod is kept away of a node that takes pods: %s", got)
		}
	})
}

// launches are cells that come.
type launches struct {
	mu  sync.Mutex
	all []cells.Cell
}

func (l *launches) List() []cells.Cell {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func (l *launches) NodeOf(cells.Cell) string { return "kip-0-2" }
func (l *launches) NodesChanged()            {}

func (l *launches) launch(o offering.Offering) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, cells.Cell{Offerings: []offering.Offering{o}, Phase: apiv1.Bound, Instance: &cloud.Instance{Launched: time.Now()}})
}

func TestATaintThatComesBackStaysForLongerUnlessALaunchWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, l := newTown(t, inTwoZones), &launches{}
		w.cells = l
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		spot := offering.Offering{InstanceType: "small", Zone: "b", Spot: true}
		stays := func() time.Duration {
			w.none(capacity.Shortage{Zone: "b"})
			w.eventually("the taint is there", func() bool { return w.isShort("kip-0-2") })
			l.launch(offering.Offering{InstanceType: "small", Zone: "a"}) // proves nothing
			w.clock.Step(capacity.Cooldown)
			began := time.Now()
			for w.isShort("kip-0-2") && time.Since(began) < time.Hour {
				time.Sleep(LookEvery)
			}
			return time.Since(began)
		}
		if got := stays(); got > time.Minute {
			t.Errorf("the first shortage counts for %s longer than what is known of it", got)
		}
		last := time.Duration(0)
		for range 4 {
			got := stays()
			if got < firstHold/2 || got > longestHold+time.Minute || got < last*3/4 {
				t.Errorf("after %s a shortage that comes back counts for %s", last, got)
			}
			last = got
		}
		if last < longestHold*3/4 {
			t.Errorf("a shortage that has come back four times counts for %s", last)
		}
		w.none(capacity.Shortage{Zone: "b"})
		w.eventually("the taint is there", func() bool { return w.isShort("kip-0-2") })
		l.launch(spot)
		w.clock.Step(capacity.Cooldown)
		time.Sleep(time.Minute)
		if !w.isShort("kip-0-2") {
			t.Error("a launch before the shortage was over ends it")
		}
		l.launch(spot)
		w.eventually("a launch proves that it is over", func() bool { return !w.isShort("kip-0-2") })
		time.Sleep(soonAgain + time.Minute)
		if got := stays(); got > time.Minute {
			t.Errorf("much later a shortage counts for %s longer than what is known of it", got)
		}
	})
}

// Both are held for longer than the cloud is out, since it has been out again and again.
func TestNodesWhoseShortagesAreOverDoNotTurnPodsAwayToEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, inTwoZones)
		w.cells = &launches{}
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		for range 3 {
			w.none(capacity.Shortage{})
			w.eventually("both lack everything", func() bool {
				return strings.HasPrefix(w.lacks("kip-0-1"), "True NothingAvailable") && strings.HasPrefix(w.lacks("kip-0-2"), "True NothingAvailable")
			})
			w.clock.Step(capacity.Cooldown)
			for range 10 {
				time.Sleep(LookEvery)
				if w.isShort("kip-0-1") && w.isShort("kip-0-2") {
					t.Fatal("each node turns pods away, though as far as Kip knows nothing is short")
				}
			}
			time.Sleep(longestHold + time.Minute)
		}
	})
}

func TestTheCapacityOfANodeLeavesOutWhatTheCloudHasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := newTown(t, "kubelet: {capacity: {cpu: auto, pods: auto, nvidia.com/gpu: auto}}"), &said{}
		w.bounder = s
		w.sells = []catalog.InstanceType{
			{
				Name: "small", Arch: "amd64", Family: "standard", MilliCPU: 1000, MemoryBytes: 1 << 30,
				Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 1}, {Zone: "b", PricePerHour: 1}},
			},
			{
				Name: "gpus", Arch: "amd64", Family: "g", MilliCPU: 4000, MemoryBytes: 16 << 30, GPUs: []catalog.GPU{{Model: "T4", Count: 2}},
				Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 5}},
			},
		}
		s.bounds = catalog.Bounds{MilliCPU: map[catalog.Class]int64{{Family: "standard"}: 8000, {Family: "g"}: 12_000}}
		w.start()
		takes := func(pods, gpus int64) func() bool {
			return func() bool {
				q := w.node("kip-0").Status.Allocatable["nvidia.com/gpu"]
				return w.takes("kip-0") == pods && q.Value() == gpus
			}
		}
		w.eventually("the node is there", func() bool { return w.ready("kip-0") })
		w.eventually("it is that of the quotas", takes(11, 6))
		w.none(capacity.Shortage{InstanceType: "gpus"})
		w.eventually("GPUs are out", takes(8, 0))
		w.none(capacity.Shortage{})
		w.eventually("everything is", func() bool { return strings.HasPrefix(w.lacks("kip-0"), "True NothingAvailable") })
		time.Sleep(2 * sizeEvery)
		if !takes(8, 0)() {
			t.Errorf("it takes %d pods, which can be nowhere else", w.takes("kip-0"))
		}
		w.clock.Step(capacity.Cooldown)
		w.eventually("all is back", takes(11, 6))
	})
}

func TestANodeKeepsWhatItLacksOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "")
		w.start()
		w.none(capacity.Shortage{Spot: new(true)})
		lacks := func() bool { return strings.HasSuffix(w.lacks("kip-0"), ": spot") }
		w.eventually("it lacks spot", lacks)
		since := func() metav1.Time {
			for _, c := range w.node("kip-0").Status.Conditions {
				if c.Type == node.ShortageCondition {
					return c.LastTransitionTime
				}
			}
			return metav1.Time{}
		}
		before := since()
		w.stop()
		time.Sleep(time.Minute)
		w.start()
		time.Sleep(time.Minute)
		if now := since(); !lacks() || !now.Equal(&before) {
			t.Errorf("the next Kip's node says %q since %s, want since %s", w.lacks("kip-0"), now, before)
		}
	})
}
