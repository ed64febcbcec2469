package provisioner

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"

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
		disk, err := c.Disks.CreateDisk(ctx, cloud.DiskRequest{Token: what, SizeBytes: 1 << 30, Zone: "a", Tags: tags})
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
	fresh := &Provisioner{cfg: p.cfg, lifetime: p.lifetime}
	all := len(c.Disks.All())
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
			if len(c.Disks.All()) != all {
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
	unknown := &Provisioner{cfg: p.cfg, lifetime: p.lifetime}
	_, is := errors.AsType[*volumes.ForeignDiskError](unknown.Delete(ctx, pv))
	if is || len(c.Disks.All()) != all {
		t.Errorf("a cloud that does not answer is taken for a no, or %d of %d disks are left", len(c.Disks.All()), all)
	}
	if err := p.Delete(ctx, pv); err != nil || len(c.Disks.All()) != all-1 {
		t.Errorf("deleting its own: %v, %d disks left", err, len(c.Disks.All()))
	}
	if err := p.Owned(ctx, pv); err == nil {
		t.Error("a disk that was deleted is handed out")
	}
}

// The cloud's own driver attaches no disk that Kip made for another claim, and no disk of the
// driver's is held up by a cloud that does not answer, once it has said that it is none of Kip's.
func TestAVolumeOfAnotherDriverGetsNoDiskOfKips(t *testing.T) {
	p, c := provisioner(t)
	ctx := t.Context()
	pv, _, err := p.Provision(ctx, options())
	if err != nil {
		t.Fatal(err)
	}
	named := func(volume, disk string) *corev1.PersistentVolume {
		other := pv.DeepCopy()
		other.Name, other.Spec.CSI.Driver, other.Spec.CSI.VolumeHandle = volume, "disks.clouds.example.com", disk
		other.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
		return other
	}
	theirs, err := c.Disks.CreateDisk(ctx, cloud.DiskRequest{
		Token:     "theirs",
		SizeBytes: 1 << 30,
		Zone:      "a",
		Tags:      map[string]string{cloud.TagOwner: "you"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Provisioner{p, {cfg: p.cfg, lifetime: p.lifetime}} {
		for _, volume := range []string{"pv", "pvc-1"} { // also of the name for which it was made
			if _, is := errors.AsType[*volumes.ForeignDiskError](p.Others(ctx, named(volume, pv.Spec.CSI.VolumeHandle))); !is {
				t.Errorf("volume %s gets a disk of Kip's", volume)
			}
		}
		if err := p.Others(ctx, named("pv", theirs.ID)); err != nil {
			t.Errorf("a disk of the driver's: %v", err)
		}
		c.FailNth(sim.KindListDisks, 1, sim.Fault{Before: sim.ErrLost})
		if err := p.Others(ctx, named("pv", theirs.ID)); err != nil {
			t.Errorf("a disk of the driver's, while the cloud is away: %v", err)
		}
		if err := p.Others(ctx, named("pv", "another")); err == nil {
			t.Error("a disk that nobody has looked for is handed out while the cloud is away")
		}
	}
}

// late are disks whose list does not show what hidden says, and counts.
type late struct {
	cloud.Disks
	hidden map[string]bool
	lists  int
	during func() // a list, after it was made
}

func (l *late) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	l.lists++
	list, err := l.Disks.ListDisks(ctx, owner)
	if l.during != nil {
		l.during()
	}
	return slices.DeleteFunc(list, func(d cloud.Disk) bool { return l.hidden[d.ID] }), err
}

// A volume that is let go while its disk is there leaves a disk that is paid for until
// somebody looks.
func TestAVolumeIsLetGoOnlyWhenItsDiskIsSurelyGone(t *testing.T) {
	p, c := provisioner(t)
	now := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	list := &late{Disks: c.Disks, hidden: map[string]bool{}}
	p.cfg.Clock, p.cfg.Disks, p.cfg.ListLag = now, list, 30*time.Second
	ctx := t.Context()
	pv, _, err := p.Provision(ctx, options())
	if err != nil {
		t.Fatal(err)
	}
	id := pv.Spec.CSI.VolumeHandle
	pv.CreationTimestamp = metav1.NewTime(now.Now())
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}

	// Another Kip leads, whose cloud shows the disk late, for longer than it says.
	p = &Provisioner{cfg: p.cfg, lifetime: p.lifetime}
	list.hidden[id] = true
	for range 8 {
		if err := p.Delete(ctx, pv); err == nil || len(c.Disks.All()) != 1 {
			t.Fatalf("a volume is let go %s after it was made: %v", now.Since(pv.CreationTimestamp.Time), err)
		}
		now.Step(20 * time.Second)
	}
	list.hidden[id] = false
	if err := p.Delete(ctx, pv); err != nil || len(c.Disks.All()) != 0 {
		t.Fatalf("the disk that is shown at last is not removed: %v", err)
	}
	if err := p.Delete(ctx, pv); err != nil {
		t.Errorf("a volume whose disk Kip has removed: %v", err)
	}
	// Somebody else has removed the disk.
	p = &Provisioner{cfg: p.cfg, lifetime: p.lifetime}
	now.Step(time.Hour)
	if err := p.Delete(ctx, pv); err == nil {
		t.Error("one list is enough to let a volume go")
	}
	now.Step(p.lag())
	if err := p.Delete(ctx, pv); err != nil {
		t.Errorf("a volume whose disk is gone is kept: %v", err)
	}
}

func TestADiskThatIsMadeWhileTheCloudAnswersIsKnown(t *testing.T) {
	p, c := provisioner(t)
	list := &late{Disks: c.Disks}
	p.cfg.Disks = list
	ctx := t.Context()
	var pv *corev1.PersistentVolume
	list.during = func() {
		list.during = nil
		made, _, err := p.Provision(ctx, options())
		if err != nil {
			t.Error(err)
		}
		pv = made
	}
	other := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: volumes.Driver, VolumeHandle: "nobody's"},
	}}}
	for range 10 {
		if _, foreign := errors.AsType[*volumes.ForeignDiskError](p.Owned(ctx, other)); !foreign {
			t.Error("a disk that is not there is handed out")
		}
	}
	if list.lists != 1 {
		t.Errorf("the cloud is asked %d times in a second for a disk that it does not have", list.lists)
	}
	if _, is := p.disks.get(pv.Spec.CSI.VolumeHandle); !is {
		t.Error("the list that began before forgets the disk")
	}
}

// stuck are disks whose list hangs until it is open.
type stuck struct {
	cloud.Disks
	open chan struct{}
}

func (s stuck) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	select {
	case <-s.open:
		return s.Disks.ListDisks(ctx, owner)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Pods without disks are served by those who ask, too.
func TestACloudThatHangsHoldsUpNobodyWhoAsksWhoseADiskIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := provisioner(t)
		pv, _, err := p.Provision(t.Context(), options())
		if err != nil {
			t.Fatal(err)
		}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
		open := make(chan struct{})
		p = &Provisioner{cfg: p.cfg, lifetime: p.lifetime} // which knows no disk
		p.cfg.Disks = stuck{c.Disks, open}
		began := time.Now() // of virtual time
		for range 100 {
			if err := p.Owned(t.Context(), pv); !errors.Is(err, volumes.ErrUntold) {
				t.Fatalf("while the cloud does not answer: %v", err)
			}
		}
		if took := time.Since(began); took > patience {
			t.Errorf("100 questions in a row took %s: want no more than one of %s", took, patience)
		}
		close(open)
		synctest.Wait()
		if err := p.Owned(t.Context(), pv); err != nil {
			t.Errorf("when it has answered: %v", err)
		}
	})
}

// slow are disks whose list takes longer than anybody waits for it.
type slow struct {
	cloud.Disks
	takes time.Duration
}

func (s slow) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	select {
	case <-time.After(s.takes):
		return s.Disks.ListDisks(ctx, owner)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestAForeignDiskIsCalledSoHoweverSlowTheCloudLists(t *testing.T) {
	for _, takes := range []time.Duration{2 * patience, 3 * notOursFor} {
		synctest.Test(t, func(t *testing.T) {
			p, c := provisioner(t)
			p.cfg.Disks = slow{c.Disks, takes}
			pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: volumes.Driver, VolumeHandle: "nobody's"},
			}}}
			for began := time.Now(); ; time.Sleep(notOursFor / 2) {
				err := p.Owned(t.Context(), pv)
				if _, foreign := errors.AsType[*volumes.ForeignDiskError](err); foreign {
					break
				}
				if !errors.Is(err, volumes.ErrUntold) {
					t.Fatalf("while the cloud lists for %s: %v", takes, err)
				}
				if time.Since(began) > 3*takes+notOursFor {
					t.Fatalf("a list of %s never tells that the disk is foreign", takes)
				}
			}
			synctest.Wait()
			time.Sleep(listTimeout)
		})
	}
}
