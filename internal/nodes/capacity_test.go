package nodes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	testclock "k8s.io/utils/clock/testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/offering"
)

// said is what a cloud says of its bounds.
type said struct {
	mu     sync.Mutex
	bounds catalog.Bounds
	err    error
	asked  int
	owner  string
}

func (s *said) Bounds(_ context.Context, owner string) (catalog.Bounds, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.owner = owner
	return s.bounds, s.err
}

// say has it say this from now on, of quotas in CPUs.
func (s *said) say(onDemand, spot int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.bounds = catalog.Bounds{MilliCPU: map[catalog.Class]int64{
		{Family: "standard"}: onDemand * 1000, {Family: "standard", Spot: true}: spot * 1000,
	}}
}

func (s *said) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// sized is a town whose cloud says its bounds. All of its types share a quota.
func sized(t *testing.T, nodes string) (*town, *said) {
	t.Helper()
	w, s := newTown(t, nodes), &said{}
	w.sells = slices.Clone(sold)
	w.sells[0].Family = "standard"
	w.bounder = s
	return w, s
}

// takes is how many pods the API server knows that a node takes.
func (w *town) takes(name string) int64 {
	n := w.node(name)
	if n == nil {
		return -1
	}
	return n.Status.Allocatable.Pods().Value()
}

// asksAgain waits until the cloud was asked so often, and what came of that is written.
func (w *town) asksAgain(s *said, times int) {
	w.Helper()
	for before := s.times(); s.times() < before+times; time.Sleep(sizeEvery) {
		if s.times() == before {
			time.Sleep(boundsEvery)
		}
	}
	time.Sleep(2 * sizeEvery)
}

func TestTheCapacityOfANodeFollowsTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := sized(t, "kubelet: {capacity: {cpu: auto, memory: auto, pods: auto, example.com/x: 3}}")
		s.say(8, 2, nil)
		w.start()
		w.eventually("it is that of the quotas", func() bool { return w.takes("kip-0") == 10 })
		n := w.node("kip-0")
		x, disk := n.Status.Allocatable["example.com/x"], n.Status.Allocatable[corev1.ResourceEphemeralStorage]
		cpu, memory := n.Status.Capacity.Cpu(), n.Status.Allocatable.Memory()
		if cpu.Value() != 10 || memory.Value() != 10<<30 || x.Value() != 3 || disk.String() != "100Gi" {
			t.Errorf("its capacity is %v", n.Status.Capacity)
		}
		if got := w.serves.kubelets.maxPods(w.nodes.named("kip-0")); got != 10 || s.owner != "me" {
			t.Errorf("the kubelet port tells of %d pods; %q was asked for", got, s.owner)
		}

		s.say(0, 0, errors.New("the cloud is away"))
		w.asksAgain(s, 3)
		if got := w.takes("kip-0"); got != 10 {
			t.Errorf("after errors it takes %d pods", got)
		}
		w.addPod("kip-0", "web", "")
		w.createPod("kip-0", "api", "")
		before := s.times()
		s.say(0, 0, nil)
		w.eventually("it is asked again, as each minute after an error", func() bool { return s.times() > before })
		time.Sleep(2 * sizeEvery)
		if got := w.takes("kip-0"); got != 10 {
			t.Errorf("after one answer of nothing it takes %d pods", got)
		}
		w.asksAgain(s, 1)
		w.eventually("it takes the pods that it has", func() bool { return w.takes("kip-0") == 2 })
		s.say(30, 2, nil)
		w.asksAgain(s, 1)
		w.eventually("it is that of a quota that was raised", func() bool { return w.takes("kip-0") == 32 })
	})
}

// running are cells.
type running []cells.Cell

func (r *running) List() []cells.Cell     { return *r }
func (*running) NodeOf(cells.Cell) string { return "kip-0" }
func (*running) NodesChanged()            {}

func TestWhatPodsHaveCountsAsWhatTheyAskFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := sized(t, "kubelet: {capacity: auto}")
		s.say(8, 0, nil)
		offerings := []offering.Offering{{InstanceType: "large", Zone: "a", Family: "standard", MilliCPU: 3000}}
		w.cells = &running{
			{Pod: apiv1.PodReference{UID: "uid-1"}, Offerings: offerings, Launch: &cells.Launch{}},
			{Pod: apiv1.PodReference{UID: "elsewhere"}, Offerings: offerings, Instance: &cloud.Instance{}},
			{Pod: apiv1.PodReference{UID: "waits"}, Offerings: offerings},                                                 // not launched
			{Offerings: offerings, Instance: &cloud.Instance{}},                                                           // a standby cell
			{Pod: apiv1.PodReference{UID: "ended"}, Offerings: offerings, Phase: apiv1.Gone, Instance: &cloud.Instance{}}, // its quota is free
		}
		w.start()
		w.eventually("the node is Ready", func() bool { return w.ready("kip-0") })
		w.addPod("kip-0", "web", "")
		w.eventually("it is what is left of the quota, and the pod", func() bool { return w.takes("kip-0") == 3 })
		if cpu := w.node("kip-0").Status.Allocatable.Cpu(); cpu.Value() != 2 {
			t.Errorf("it has %s CPUs: of 8, two machines have 3 each, and the pod asks for none", cpu)
		}
	})
}

func TestARefusalForAQuotaCountsUntilItIsDisproved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := sized(t, "kubelet: {capacity: auto}")
		s.say(8, 2, nil)
		w.start()
		w.eventually("it is that of the quotas", func() bool { return w.takes("kip-0") == 10 })
		w.missing.Mark(capacity.Shortage{Family: "standard", Spot: new(false), LeastMilliCPU: 2000})
		w.missing.Mark(capacity.Shortage{InstanceType: "small", Zone: "b", Spot: new(true)}) // no quota, but all that there is of spot
		w.eventually("the quota has one CPU left, and there is no spot", func() bool { return w.takes("kip-0") == 1 })
		w.clock.Step(capacity.Cooldown)
		time.Sleep(2 * sizeEvery)
		if got := w.takes("kip-0"); got != 3 {
			t.Errorf("after the cooldown it takes %d pods", got)
		}
		s.say(9, 2, nil)
		w.asksAgain(s, 1)
		w.eventually("the quota was raised", func() bool { return w.takes("kip-0") == 11 })
	})
}

func TestALaunchThatIsAlwaysRefusedKeepsTheNodeSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := sized(t, "kubelet: {capacity: auto}") // the cloud tells no quota
		w.start()
		w.eventually("the node takes a thousand pods", func() bool { return w.takes("kip-0") == 1000 })
		refuse := func() { w.missing.Mark(capacity.Shortage{Family: "standard", LeastMilliCPU: 1000}) }
		refuse()
		w.eventually("it takes one pod, whose Events tell", func() bool { return w.takes("kip-0") == 1 })
		for passed := time.Duration(0); passed < 20*time.Minute; passed += sizeEvery {
			time.Sleep(sizeEvery)
			if got := w.takes("kip-0"); got > 2 { // one on demand and one of spot are tried
				t.Fatalf("after %v it takes %d pods", passed, got)
			}
			if w.clock.Step(sizeEvery); passed%(2*capacity.Cooldown) == 0 {
				refuse()
			}
		}
	})
}

func TestALaunchThatARefusalRuledOutEndsIt(t *testing.T) {
	n := &sizing{c: Config{Shortages: capacity.New(testclock.NewFakePassiveClock(time.Now()))}}
	standard := catalog.Class{Family: "standard"}
	n.bounds.refused = map[catalog.Class]refusal{standard: {most: 3999, told: -1}}
	of := func(milliCPU int64) map[catalog.Class]int64 { return map[catalog.Class]int64{standard: milliCPU} }
	if _, most := n.refusals(of(6000), of(2000)); most[standard] != 3999 {
		t.Errorf("while a launch is under way at most %v runs", most)
	}
	if _, most := n.refusals(of(6000), of(6000)); len(most) > 0 {
		t.Errorf("once more runs, at most %v does", most)
	}
}

func TestAKipThatStartsKeepsTheCapacityUntilTheCloudAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := sized(t, "kubelet: {capacity: auto}")
		s.say(0, 0, errors.New("the cloud is away"))
		w.start()
		w.eventually("the node is Ready", func() bool { return w.ready("kip-0") })
		w.asksAgain(s, 2)
		if got := w.takes("kip-0"); got != 20 {
			t.Errorf("before the cloud has ever answered the node takes %d pods", got)
		}
		s.say(50, 0, nil)
		w.eventually("it is that of the quotas", func() bool { return w.takes("kip-0") == 50 })
		w.stop()
		s.say(0, 0, errors.New("the cloud is away"))
		w.start()
		w.asksAgain(s, 2)
		if got := w.takes("kip-0"); got != 50 || !w.ready("kip-0") {
			t.Errorf("the next Kip's node takes %d pods", got)
		}
		before := s.times()
		s.say(0, 0, nil)
		w.eventually("it has answered", func() bool { return s.times() > before })
		time.Sleep(sizeEvery / 2)
		if got := w.takes("kip-0"); got != 50 {
			t.Errorf("after a first answer of nothing the next Kip's node takes %d pods", got)
		}
		s.say(60, 0, nil)
		w.eventually("two answers count", func() bool { return w.takes("kip-0") == 60 })
	})
}

func TestOnlyTheCapacityThatIsAutoIsFoundOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := sized(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		s.say(8, 2, nil)
		w.start()
		w.eventually("both are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		time.Sleep(3 * boundsEvery)
		if s.times() > 0 {
			t.Errorf("the cloud was asked %d times", s.times())
		}
		w.write("nodes: [{zones: [a]}, {zones: [b], capacity: auto}]")
		w.eventually("the second has what the cloud offers there", func() bool { return w.takes("kip-0-2") == 10 })
		if got := w.takes("kip-0-1"); got != 20 {
			t.Errorf("the first takes %d pods", got)
		}
		w.write("nodes: [{zones: [a]}, {zones: [b], capacity: auto, labels: {team: x}}]")
		w.eventually("the second is made anew", func() bool { n := w.node("kip-0-2"); return n != nil && n.Labels["team"] == "x" })
		if got := w.takes("kip-0-2"); got != 10 {
			t.Errorf("it takes %d pods then", got)
		}
	})
}

func TestACloudThatKnowsNoBoundsHasThoseOfTheDocuments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "kubelet: {capacity: auto}")
		w.start()
		w.eventually("the node takes a thousand pods", func() bool { return w.takes("kip-0") == 1000 })
	})
}
