package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/volumes"
)

// nodes are the one that stands for all, and one in zone b.
type nodes struct{}

func (nodes) Zones(node string) (list []string, only string, ours bool) {
	switch node {
	case "kip-0":
		return []string{"a", "b"}, "", true
	case "kip-0-2":
		return []string{"b"}, "b", true
	}
	return nil, "", false
}

func provisioner(t *testing.T) (*Provisioner, *sim.Cloud) {
	t.Helper()
	c, err := sim.New(sim.Config{Catalogue: []catalog.InstanceType{{
		Name: "nano", MilliCPU: 1000, MemoryBytes: 1 << 30, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: "a"}, {Zone: "b"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	cfg := Config{Node: "kip-0", ControllerID: "me", NodeLabel: "whose", NameTag: "tag", Disks: c.Disks, Nodes: nodes{},
		Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}
	return &Provisioner{cfg: cfg, lifetime: t.Context()}, c
}

func options(change ...func(*controller.ProvisionOptions)) controller.ProvisionOptions {
	o := controller.ProvisionOptions{
		PVName: "pvc-1", SelectedNodeName: "kip-0",
		StorageClass: &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "kip"},
			ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimRetain), MountOptions: []string{"noatime"}},
		PVC: &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}},
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

func TestAClaimGetsOneDiskHoweverOftenItIsTried(t *testing.T) {
	p, c := provisioner(t)
	// The first answer is lost.
	c.FailNth(sim.KindCreateDisk, 1, sim.Fault{After: sim.ErrLost})
	if _, state, err := p.Provision(t.Context(), options()); err == nil || state != controller.ProvisioningInBackground {
		t.Errorf("a lost answer is %s, %v: want it to be in the background", state, err)
	}
	var pv *corev1.PersistentVolume
	for range 2 {
		var err error
		if pv, _, err = p.Provision(t.Context(), options()); err != nil {
			t.Fatal(err)
		}
	}
	disks := c.Disks.All()
	if len(disks) != 1 || disks[0].Tags[cloud.TagOwner] != "me" || disks[0].Tags[cloud.TagVolume] != "pvc-1" || disks[0].Zone != "a" ||
		disks[0].SizeBytes != 1<<30 {
		t.Fatalf("made %+v", disks)
	}
	s := pv.Spec
	if s.CSI == nil || s.CSI.Driver != volumes.Driver || s.CSI.VolumeHandle != disks[0].ID || s.CSI.FSType != "ext4" ||
		s.CSI.VolumeAttributes["zone"] != "a" || s.CSI.VolumeAttributes["node"] != "kip-0" {
		t.Errorf("the source is %+v", s.CSI)
	}
	if s.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || len(s.MountOptions) != 1 ||
		s.Capacity.Storage().Value() != 1<<30 || *s.VolumeMode != corev1.PersistentVolumeFilesystem {
		t.Errorf("the volume is %+v", s)
	}
	if r := s.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]; r.Key != corev1.LabelHostname || r.Values[0] != "kip-0" {
		t.Errorf("it selects nodes by %+v", r)
	}
}

// brittle is a cloud whose disks come to nothing while fails is above 0.
type brittle struct {
	cloud.Disks
	fails int
}

func (b *brittle) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	disk, err := b.Disks.CreateDisk(ctx, r)
	if err == nil && b.fails > 0 {
		b.fails--
		return cloud.Disk{}, fmt.Errorf("create: %w", &cloud.FailedDiskError{Disk: disk.ID, State: "error", Why: "want a key"})
	}
	return disk, err
}

func TestADiskThatTheCloudCouldNotMakeIsToldDeletedAndMadeAnew(t *testing.T) {
	p, c := provisioner(t)
	p.cfg.Disks = &brittle{c.Disks, 2}
	c.FailNth(sim.KindDeleteDisk, 1, sim.Fault{Before: errors.New("not now")})
	for n, want := range []struct {
		state controller.ProvisioningState
		left  int
	}{
		{controller.ProvisioningInBackground, 1}, // it is not forgotten when its claim is deleted meanwhile
		{controller.ProvisioningFinished, 0},
	} {
		_, state, err := p.Provision(t.Context(), options())
		if err == nil || !strings.Contains(err.Error(), `in state "error"`) || state != want.state || len(c.Disks.All()) != want.left {
			t.Errorf("try %d: %s, %v, with %+v", n, state, err, c.Disks.All())
		}
	}
	pv, _, err := p.Provision(t.Context(), options())
	if err != nil {
		t.Fatal(err)
	}
	if all := c.Disks.All(); len(all) != 1 || all[0].ID != pv.Spec.CSI.VolumeHandle {
		t.Errorf("the volume is on %s of %+v", pv.Spec.CSI.VolumeHandle, all)
	}
}

func TestWhatCannotBeMadeIsRefusedForGood(t *testing.T) {
	for want, spoil := range map[string]func(*controller.ProvisionOptions){
		`StorageClass kip: parameters.size is unknown: want zone`: func(o *controller.ProvisionOptions) {
			o.StorageClass.Parameters = map[string]string{"size": "1"}
		},
		`parameters.zone is "c": want one of a, b`: func(o *controller.ProvisionOptions) {
			o.StorageClass.Parameters = map[string]string{"zone": "c"}
		},
		`spec.accessModes has ReadWriteMany`: func(o *controller.ProvisionOptions) {
			o.PVC.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		`spec.selector is set`:   func(o *controller.ProvisionOptions) { o.PVC.Spec.Selector = &metav1.LabelSelector{} },
		`spec.dataSource is set`: func(o *controller.ProvisionOptions) { o.PVC.Spec.DataSource = &corev1.TypedLocalObjectReference{} },
	} {
		p, c := provisioner(t)
		_, state, err := p.Provision(t.Context(), options(spoil))
		if err == nil || !strings.Contains(err.Error(), want) || state != controller.ProvisioningFinished || len(c.Disks.All()) != 0 {
			t.Errorf("got %s, %v, disks %v: want %q, and no disk", state, err, c.Disks.All(), want)
		}
	}
	p, c := provisioner(t)
	pv, _,
		err := p.Provision(t.Context(),
		options(func(o *controller.ProvisionOptions) { o.StorageClass.Parameters = map[string]string{"zone": "b"} }))
	if err != nil || pv.Spec.CSI.VolumeAttributes["zone"] != "b" || c.Disks.All()[0].Zone != "b" {
		t.Errorf("zone b: %v, %v", c.Disks.All(), err)
	}
}

func TestOneKipLeavesTheDisksOfAnotherAlone(t *testing.T) {
	p, c := provisioner(t)
	ctx := context.Background()
	for node, want := range map[string]bool{"kip-0": true, "kip-1": false, "": false} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{selectedNode: node}}}
		if got := p.ShouldProvision(ctx, claim); got != want {
			t.Errorf("a claim for node %q is ours: %t, want %t", node, got, want)
		}
	}
	pv, _, err := p.Provision(ctx, options())
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"} // as the library writes it
	other := pv.DeepCopy()
	other.Spec.CSI.VolumeAttributes[volumes.AttributeNode] = "kip-1"
	var ignored *controller.IgnoredError
	if err := p.Delete(ctx, other); !errors.As(err, &ignored) || len(c.Disks.All()) != 1 {
		t.Errorf("deleting another's: %v, %d disks left", err, len(c.Disks.All()))
	}
	for range 2 {
		if err := p.Delete(ctx, pv); err != nil || len(c.Disks.All()) != 0 {
			t.Errorf("deleting ours: %v, %d disks left", err, len(c.Disks.All()))
		}
	}
}

func TestTheDiskOfANodeWithAZoneIsOfThatZone(t *testing.T) {
	p, _ := provisioner(t)
	for node, ours := range map[string]bool{"kip-0": true, "kip-0-2": true, "kip-0-3": false, "": false} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{selectedNode: node}}}
		if got := p.ShouldProvision(t.Context(), claim); got != ours {
			t.Errorf("a claim for node %q is ours: %t", node, got)
		}
	}
	for node, want := range map[string]struct{ zone, selects string }{
		"kip-0":   {"a", "kubernetes.io/hostname=kip-0"},
		"kip-0-2": {"b", "whose=me topology.kubernetes.io/zone=b"},
	} {
		o := controller.ProvisionOptions{
			PVName: "pvc-" + node, SelectedNodeName: node,
			StorageClass: &storagev1.StorageClass{ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete)},
			PVC: &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}},
		}
		pv, _, err := p.Provision(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		var selects []string
		for _, r := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions {
			selects = append(selects, r.Key+"="+strings.Join(r.Values, ","))
		}
		attributes, is := pv.Spec.CSI.VolumeAttributes, strings.Join(selects, " ")
		if attributes[volumes.AttributeZone] != want.zone || is != want.selects || attributes[volumes.AttributeNode] != "kip-0" {
			t.Errorf("the volume of node %s is in %v, for %v: want %+v", node, attributes, selects, want)
		}
	}
}
