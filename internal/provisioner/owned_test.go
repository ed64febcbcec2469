package provisioner

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/volumes"
)

// Who makes a volume, or changes one, names any disk. Kip gives it to nobody, and deletes
// it for nobody, but those for whom it was made.
func TestADiskIsOnlyForTheVolumeThatItWasMadeFor(t *testing.T) {
	p, c := provisioner(t)
	ctx := t.Context()
	pv, _, err := p.Provision(ctx, options())
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
	foreign := map[string]string{}
	for what, tags := range map[string]map[string]string{
		"another Kip's":              {cloud.TagOwner: "you", cloud.TagVolume: "pvc-1", cloud.TagNamespace: "ns"},
		"another volume's":           {cloud.TagOwner: "me", cloud.TagVolume: "pvc-2", cloud.TagNamespace: "ns"},
		"another namespace's":        {cloud.TagOwner: "me", cloud.TagVolume: "pvc-1", cloud.TagNamespace: "bank"},
		"that of something else":     {cloud.TagOwner: "me"},
		"that of another controller": {cloud.TagOwner: "m", cloud.TagVolume: "pvc-1", cloud.TagNamespace: "ns"},
	} {
		disk, err := c.CreateDisk(ctx, cloud.DiskRequest{Token: what, SizeBytes: 1 << 30, Zone: "a", Tags: tags})
		if err != nil {
			t.Fatal(err)
		}
		foreign[what] = disk.ID
	}
	names := func(disk, namespace string) *corev1.PersistentVolume {
		other := pv.DeepCopy()
		other.Spec.CSI.VolumeHandle = disk
		other.Spec.ClaimRef.Namespace = namespace
		return other
	}
	// Also of a Kip that has just begun, which must ask the cloud.
	fresh := &Provisioner{cfg: p.cfg}
	all := len(c.Disks())
	for _, p := range []*Provisioner{p, fresh} {
		foreign["its own, for another claim"] = pv.Spec.CSI.VolumeHandle
		for what, disk := range foreign {
			namespace := "ns"
			if disk == pv.Spec.CSI.VolumeHandle {
				namespace = "bank"
			}
			is, err := errors.AsType[*volumes.ForeignDiskError](p.Owned(ctx, names(disk, namespace)))
			if !err || is.Disk != disk || is.Volume != "pvc-1" {
				t.Errorf("%s is handed out: %v", what, is)
			}
			_ = p.Delete(ctx, names(disk, namespace))
			if len(c.Disks()) != all {
				t.Fatalf("%s was deleted", what)
			}
		}
		if err := p.Owned(ctx, pv); err != nil {
			t.Errorf("its own: %v", err)
		}
	}
	// What is known is not asked again.
	c.FailNth(sim.KindListDisks, 1, sim.Fault{Before: sim.ErrLost})
	if err := fresh.Owned(ctx, pv); err != nil {
		t.Errorf("its own, while the cloud is away: %v", err)
	}
	unknown := &Provisioner{cfg: p.cfg}
	_, is := errors.AsType[*volumes.ForeignDiskError](unknown.Delete(ctx, pv))
	if is || len(c.Disks()) != all {
		t.Errorf("a cloud that does not answer is taken for a no, or %d of %d disks are left", len(c.Disks()), all)
	}
	if err := p.Delete(ctx, pv); err != nil || len(c.Disks()) != all-1 {
		t.Errorf("deleting its own: %v, %d disks left", err, len(c.Disks()))
	}
	if err := p.Owned(ctx, pv); err == nil {
		t.Error("a disk that was deleted is handed out")
	}
}
