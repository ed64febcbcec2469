package node

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

// csiNodes counts what is written of CSINodes, and lets no driver be changed, as the API
// server does.
func (c *cluster) csiNodes(t *testing.T) (written func() int) {
	count := 0
	c.node.PrependReactor("*", "csinodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "get" {
			return false, nil, nil
		}
		count++
		if a.GetVerb() != "update" {
			return false, nil, nil
		}
		old, err := c.own.StorageV1().CSINodes().Get(t.Context(), testNode, metav1.GetOptions{})
		if err != nil {
			return true, nil, err
		}
		for _, d := range a.(clienttesting.UpdateAction).GetObject().(*storagev1.CSINode).Spec.Drivers {
			if slices.ContainsFunc(old.Spec.Drivers, func(was storagev1.CSINodeDriver) bool {
				return was.Name == d.Name && !reflect.DeepEqual(was, d)
			}) {
				return true, nil, apierrors.NewBadRequest("a driver is immutable")
			}
		}
		return false, nil, nil
	})
	return func() int { return count }
}

func TestTheDisksOfTheCloudAreInTheNodesCSINode(t *testing.T) {
	c := newCluster()
	written := c.csiNodes(t)
	const driver = "disks.example.com"
	other := storagev1.CSINodeDriver{Name: "other.example.com", NodeID: "n", TopologyKeys: []string{"x"}}
	show := func(when, uid string, writes int, keys ...string) {
		t.Helper()
		cfg := config(c.own, c.node)
		cfg.Drivers = []Driver{{Name: driver, Topology: keys}}
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		n.uid = "uid-" + testNode
		if uid != "" {
			n.uid = "another"
		}
		before := written()
		if err := n.showDriver(t.Context()); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got := written() - before; got != writes {
			t.Errorf("%s: %d are written, want %d", when, got, writes)
		}
		is, err := c.own.StorageV1().CSINodes().Get(t.Context(), testNode, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && writes == 0 && keys == nil {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		var want []storagev1.CSINodeDriver
		if slices.ContainsFunc(is.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == other.Name }) {
			want = append(want, other)
		}
		if keys != nil {
			want = append(want, storagev1.CSINodeDriver{Name: driver, NodeID: testNode, TopologyKeys: keys})
		}
		if !reflect.DeepEqual(is.Spec.Drivers, want) {
			t.Errorf("%s: the drivers are %+v, want %+v", when, is.Spec.Drivers, want)
		}
		if o := is.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].APIVersion != "v1" || o[0].Name != testNode || o[0].UID != n.uid {
			t.Errorf("%s: it goes with %+v, want the node", when, o)
		}
	}
	show("a cloud without disks", "", 0)
	show("at first", "", 1, "zone")
	show("nothing has changed", "", 0, "zone")
	show("other keys", "", 2, "owner", "zone")
	show("the node was made again", "another", 1, "owner", "zone")
	is, err := c.own.StorageV1().CSINodes().Get(t.Context(), testNode, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	is.Spec.Drivers = append(is.Spec.Drivers, other)
	if _, err := c.own.StorageV1().CSINodes().Update(t.Context(), is, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	show("beside another's", "another", 2, "host")
	show("no disks any more", "another", 1)
	if is, err = c.own.StorageV1().CSINodes().Get(t.Context(), testNode, metav1.GetOptions{}); err != nil ||
		!reflect.DeepEqual(is.Spec.Drivers, []storagev1.CSINodeDriver{other}) {
		t.Errorf("of another's driver is left %+v, %v", is, err)
	}
}

// A node that is of one zone says so in the words of each driver whose disks its cells can have,
// and says nothing of them once it is of several.
func TestTheDriverOfTheCloudIsShownWithItsZone(t *testing.T) {
	c := newCluster()
	const key = "topology.clouds.example.com/zone"
	own := Driver{Name: "disks.example.com", Topology: []string{"kubernetes.io/hostname"}}
	show := func(drivers []Driver, labels ...string) (registered map[string]string, names []string) {
		t.Helper()
		cfg := config(c.own, c.node)
		cfg.Drivers, cfg.ZoneLabels, cfg.Zone = drivers, labels, "z1"
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		object, err := n.register(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n.uid = object.UID
		// With it the attach-detach controller would attach volumes to the node, which is no machine.
		if is, has := object.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"]; has {
			t.Errorf("the node is managed by the attach-detach controller: %q", is)
		}
		if err := n.showDriver(t.Context()); err != nil {
			t.Fatal(err)
		}
		shown, err := c.own.StorageV1().CSINodes().Get(t.Context(), testNode, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range shown.Spec.Drivers {
			names = append(names, d.Name+" "+strings.Join(d.TopologyKeys, ","))
			if d.NodeID != testNode || d.Allocatable != nil {
				t.Errorf("the driver is %+v", d)
			}
		}
		return object.Labels, names
	}
	labels, names := show([]Driver{own, {Name: "clouds.example.com", Topology: []string{key}}}, key)
	want := []string{"disks.example.com kubernetes.io/hostname", "clouds.example.com " + key}
	if labels[key] != "z1" || !slices.Equal(names, want) {
		t.Errorf("labels %v, drivers %q", labels, names)
	}
	if labels, names = show([]Driver{own, {Name: "clouds.example.com"}}); len(names) != 1 || labels[key] != "" {
		t.Errorf("of several zones: labels %v, drivers %q", labels, names)
	}
}

// The node is kept whatever becomes of its CSINode, which is made again with it.
func TestACSINodeThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	c := newCluster()
	failed := make(chan struct{}, 100)
	fails := 1
	c.node.PrependReactor("create", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if fails--; fails >= 0 {
			failed <- struct{}{}
			return true, nil, errors.New("no answer")
		}
		return false, nil, nil
	})
	clock := clocktesting.NewFakeClock(time.Now())
	cfg := config(c.own, c.node)
	cfg.Clock, cfg.Drivers = clock, []Driver{{Name: "disks.example.com", Topology: []string{"zone"}}}
	n, _ := start(t, cfg)
	waitReady(t, n)
	eventually(t, "it is tried", func() bool { return len(failed) > 0 })
	there := func() bool {
		clock.Step(registerRetry)
		_, err := c.own.StorageV1().CSINodes().Get(t.Context(), testNode, metav1.GetOptions{})
		return err == nil
	}
	eventually(t, "the CSINode is there", there)
	if err := c.own.StorageV1().CSINodes().Delete(t.Context(), testNode, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.register(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is there again", there)
}
