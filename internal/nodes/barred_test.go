package nodes

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/watches"
)

// machine gives a name of Kip's to a machine, with a pod.
func (w *town) machine(name, owner string) {
	w.Helper()
	if err := w.cluster.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "machine"}}); err != nil {
		w.Fatal(err)
	}
	w.createPod(name, "web", owner)
}

// leavesAlone says whether Kip goes on without the pods of a machine.
func (w *town) leavesAlone(name string) {
	w.Helper()
	w.serves.Registered(w.Context())
	for _, pod := range watches.List(w.nodes.pods) {
		w.Errorf("pod %s of the machine is followed", pod.Name)
	}
	for _, n := range w.nodes.Own() {
		if n.Name == name {
			w.Errorf("Kip takes for its own node %s", name)
		}
	}
	if n := w.node(name); len(n.Labels)+len(n.Spec.Taints) != 0 || n.Spec.Unschedulable {
		w.Errorf("the machine's node was changed: %+v", n)
	}
}

func TestPodsOfAMachineAreNeverFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, owner := range []string{"DaemonSet", "ReplicaSet"} {
			w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
			w.machine("kip-0-2", owner)
			w.start()
			w.eventually("the other node is Ready", func() bool { return w.ready("kip-0-1") })
			w.eventually("it says which is not served", func() bool { return w.log.Says("a virtual node cannot be served") })
			w.leavesAlone("kip-0-2")
			w.eventually("what is served is registered", func() bool { return w.serves.AllRegistered() == nil })
			w.stop()
			w.write("nodes: [{zones: [a]}]") // as it was told
			w.start()
			w.eventually("the other node is Ready", func() bool { return w.ready("kip-0-1") })
			w.leavesAlone("kip-0-2")
			w.eventually("the entry is dropped", func() bool { return w.nodes.named("kip-0-2") == nil })
			w.stop()
		}
	})
}

func TestPodsOfAMachineAreNotFollowedWhileTheAPIServerDoesNotSayWhoseTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}]")
		w.machine("kip-0-2", "ReplicaSet")
		var away atomic.Bool
		w.react("get", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return away.Load() && a.(clienttesting.GetAction).GetName() == "kip-0-2", nil, errors.New("connection refused")
		})
		w.start()
		w.eventually("the first node is Ready", func() bool { return w.ready("kip-0-1") })
		away.Store(true)
		w.write("nodes: [{zones: [a]}, {zones: [b]}]")
		w.eventually("it is asked", func() bool { return w.log.Says("whether Kip may serve a virtual node is not known") })
		if got := watches.List(w.nodes.pods); len(got) > 0 {
			t.Errorf("%d pods are followed", len(got))
		}
		away.Store(false)
		w.eventually("the node is left out", func() bool { return w.log.Says("a virtual node cannot be served") })
		w.leavesAlone("kip-0-2")
	})
}

func TestRightsAreAskedForUntilSomebodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		var asked atomic.Int64
		w.react("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
			return asked.Add(1) <= 5, nil, errors.New("connection refused")
		})
		w.denied = "kip-0-2"
		w.start()
		w.eventually("the other node is Ready", func() bool { return w.ready("kip-0-1") })
		w.eventually("the second is left out", func() bool { return w.nodes.rightsOf(w.nodes.named("kip-0-2")) == rightsMissing })
		w.eventually("pods are known", w.nodes.pods.HasSynced)
	})
}

func TestWhatFailsOfANodeEndsKip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "")
		w.machine("kip-0", "")
		ended := w.start()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "not a virtual node") {
				t.Errorf("Kip ends with %v", err)
			}
		case <-time.After(patience):
			t.Error("Kip runs on as a machine's node")
		}
	})
}

func TestATakeoverTakesTheFileAsItIsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}]")
		old, _, err := config.Load(w.file) // of a replica that has stood by since
		if err != nil {
			t.Fatal(err)
		}
		w.start()
		w.eventually("the node is Ready", func() bool { return w.ready("kip-0-1") })
		w.write(inTwoZones)
		w.eventually("both nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		w.stop()
		w.loaded = old
		w.start()
		w.eventually("they are registered", func() bool { return w.serves.AllRegistered() == nil })
		if e, is := w.nodes.entryOf("kip-0-2"); !is || e.Removed {
			t.Error("the replica goes back to the configuration that it began with")
		}
		w.stop()

		// What the file says of all nodes is as new.
		w.write(inTwoZones + "\nkubelet: {labels: {tier: front}}")
		w.start()
		w.eventually("the label is there", func() bool { n := w.node("kip-0-1"); return n != nil && n.Labels["tier"] == "front" })
		w.stop()

		// A file that is wrong by now changes nothing.
		w.write("nodes: [{zones: [mars]}]")
		w.start()
		w.eventually("it is told", func() bool { return w.log.Says("the virtual nodes are those of before") })
		w.eventually("they are registered", func() bool { return w.serves.AllRegistered() == nil })
		if e, is := w.nodes.entryOf("kip-0-2"); !is || e.Removed {
			t.Error("a file that is wrong takes a node away")
		}
	})
}

func TestAnEmptyNodeIsCordonedBeforeItGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		w.start()
		w.eventually("both nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		var steps []string
		note := func(step string) clienttesting.ReactionFunc {
			return func(a clienttesting.Action) (bool, runtime.Object, error) {
				n, is := a.(interface{ GetName() string })
				p, patches := a.(clienttesting.PatchAction)
				if is && n.GetName() == "kip-0-2" && a.GetResource().Resource == "nodes" &&
					(!patches || strings.Contains(string(p.GetPatch()), `"unschedulable":true`)) {
					w.mu.Lock()
					steps = append(steps, step)
					w.mu.Unlock()
				}
				return false, nil, nil
			}
		}
		w.react("patch", "nodes", note("cordon"))
		w.react("delete", "nodes", note("delete"))
		w.write("nodes: [{zones: [a]}]")
		w.eventually("it is gone", func() bool { return w.node("kip-0-2") == nil && w.nodes.named("kip-0-2") == nil })
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(steps) < 2 || steps[0] != "cordon" || steps[len(steps)-1] != "delete" {
			t.Errorf("the node went by %q, want it cordoned, and deleted later", steps)
		}
	})
}

func TestATaintOfTheEnvironmentIsNotTheFilesFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Setenv(node.TaintEffectEnv, "Never")
		w := newTown(t, "nodes: [{zones: [a]}]")
		if err := <-w.start(); err == nil || !strings.HasPrefix(err.Error(), node.TaintEffectEnv) {
			t.Errorf("Kip ends with %v", err)
		}
	})
}

func TestWhichNodeOffersAStandbyCell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{launchTypes: [spot]}]")
		w.start()
		w.eventually("the node is Ready", func() bool { return w.ready("kip-0-1") })
		for spot, want := range map[bool]bool{true: true, false: false} {
			o := offering.Offering{InstanceType: "small", Zone: "b", Spot: spot}
			if name, is := w.nodes.NodeWith(o); is != want {
				t.Errorf("a standby cell, spot %t, is of %s: %t, want %t", spot, name, is, want)
			}
		}
	})
}

func TestANodeSaysTheArchitectureOfItsTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		was := sold
		defer func() { sold = was }()
		sold = append(slices.Clone(sold), catalog.InstanceType{
			Name:        "arm",
			Arch:        "arm64",
			MilliCPU:    1000,
			MemoryBytes: 1 << 30,
			Offerings:   []catalog.PurchaseOption{{Zone: "a", PricePerHour: 2}},
		})
		w := newTown(t, "nodes: [{instanceTypes: [arm]}, {instanceTypes: [small]}]")
		w.start()
		w.eventually("the nodes are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		for name, want := range map[string]string{"kip-0-1": "arm64", "kip-0-2": "amd64"} {
			if got := w.node(name).Labels[corev1.LabelArchStable]; got != want {
				t.Errorf("node %s says %s, want %s", name, got, want)
			}
		}
	})
}

// What only the whole of a node's configuration shows is told like what each key shows.
func TestANodeThatCannotBeIsNamedAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for entry, why := range map[string]string{
			"{zones: [b], capacity: {cpu: 0}}": "capacity of node kip-0-2: cpu must be set and greater than 0",
			"{zones: [b], taints: [{key: virtual-kubelet.io/provider, value: x}]}": "taint virtual-kubelet.io/provider:NoSchedule: " +
				"the node has it twice, as all of Kip's have it",
			"{zones: [b], taints: [{key: kip.elotl.co/no-capacity, effect: NoExecute}]}": "taint kip.elotl.co/no-capacity: " +
				"Kip sets it and takes it off",
		} {
			w := newTown(t, "nodes:\n- {zones: [a]}\n- "+entry)
			if err := <-w.start(); err == nil || !strings.Contains(err.Error(), "provider.yaml:6: nodes[1]: "+why) {
				t.Errorf("%s: Kip ends with %v, want file, line, key and %q", entry, err, why)
			}
			w.stop()
			w.write("nodes: [{zones: [a]}]") // as it was told
			w.start()
			w.eventually("Kip works with the mended file", func() bool { return w.ready("kip-0-1") && len(w.nodes.all()) == 1 })
			w.stop()
		}
	})
}

func TestANodeThatBecomesAMachinesIsLeftAndTheOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, "nodes: [{zones: [a]}, {zones: [b]}]")
		ended := w.start()
		w.eventually("both are Ready", func() bool { return w.ready("kip-0-1") && w.ready("kip-0-2") })
		if err := w.cluster.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "kip-0-2"); err != nil {
			t.Fatal(err)
		}
		w.machine("kip-0-2", "ReplicaSet")
		w.nodes.named("kip-0-2").node.Short("something to register") // it meets the machine
		w.eventually("the node is left", func() bool { return w.nodes.rightsOf(w.nodes.named("kip-0-2")) == rightsForeign })
		w.leavesAlone("kip-0-2")
		if !w.ready("kip-0-1") {
			t.Error("the other node is not Ready any more")
		}
		select {
		case err := <-ended:
			t.Errorf("Kip ends: %v", err)
		default:
		}
	})
}
