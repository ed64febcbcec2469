package cloudtest

import (
	"errors"
	"slices"

	"github.com/elotl/kip/internal/cloud"
)

// disks returns the cloud as one that has disks, or skips.
func (t *trial) disks() cloud.Disks {
	t.Helper()
	d := t.cloud.Optional().Disks
	if d == nil {
		t.Skip("this cloud has no disks")
	}
	return d
}

// diskRequest has a token of its own.
func (t *trial) diskRequest(owner string) cloud.DiskRequest {
	t.Helper()
	r := t.request(owner, 1)
	return cloud.DiskRequest{
		Token:     r.Token + "-disk",
		SizeBytes: 1 << 30,
		Zone:      r.Zone,
		Tags:      map[string]string{cloud.TagOwner: owner, cloud.TagVolume: "pvc-1", cloud.TagName: "Kip's cloud tests"},
	}
}

func (t *trial) createDisk(d cloud.Disks, r cloud.DiskRequest) cloud.Disk {
	t.Helper()
	disk, err := d.CreateDisk(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

func (t *trial) listDisks(d cloud.Disks, owner string) []cloud.Disk {
	t.Helper()
	list, err := d.ListDisks(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func makesDisks(t *trial) {
	d := t.disks()
	r := t.diskRequest(Owners[0])
	first := t.createDisk(d, r)
	if first.ID == "" || first.SizeBytes < r.SizeBytes || first.Zone != r.Zone || first.Instance != "" {
		t.Errorf("requested %+v; got %+v", r, first)
	}
	if again := t.createDisk(d, r); again.ID != first.ID {
		t.Errorf("the same token made %s and then %s", first.ID, again.ID)
	}
	other := t.createDisk(d, t.diskRequest(Owners[1]))
	list := t.listDisks(d, Owners[0])
	if len(list) != 1 || list[0].ID != first.ID || list[0].Tags[cloud.TagVolume] != "pvc-1" {
		t.Errorf("listed %+v: want %s and its tags", list, first.ID)
	}
	list[0].Tags[cloud.TagVolume] = "changed"
	if was := t.listDisks(d, Owners[0])[0].Tags[cloud.TagVolume]; was != "pvc-1" {
		t.Errorf("a caller has changed the tag of a disk to %q", was)
	}
	for what, spoil := range map[string]func(*cloud.DiskRequest){
		"no token":        func(r *cloud.DiskRequest) { r.Token = "" },
		"no size":         func(r *cloud.DiskRequest) { r.SizeBytes = 0 },
		"an unknown zone": func(r *cloud.DiskRequest) { r.Zone = "no-such-zone" },
		"no owner":        func(r *cloud.DiskRequest) { r.Tags = nil },
	} {
		bad := t.diskRequest(Owners[0])
		spoil(&bad)
		if disk, err := d.CreateDisk(t.Context(), bad); !errors.Is(err, cloud.ErrRefused) {
			t.Errorf("a request with %s got %+v, %v: want ErrRefused", what, disk, err)
		}
	}
	for range 2 {
		if err := d.DeleteDisk(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
	}
	if list := t.listDisks(d, Owners[0]); len(list) != 0 {
		t.Errorf("listed %+v: want nothing", list)
	}
	if err := d.DeleteDisk(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
}

// holder is the instance that has a disk.
func (t *trial) holder(d cloud.Disks, id string) string {
	t.Helper()
	list := t.listDisks(d, Owners[0])
	n := slices.IndexFunc(list, func(k cloud.Disk) bool { return k.ID == id })
	if n < 0 {
		t.Fatalf("disk %s is not listed: %+v", id, list)
	}
	return list[n].Instance
}

func attachesDisks(t *trial) {
	d := t.disks()
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	a, b := got[0].ID, got[1].ID
	disk := t.createDisk(d, t.diskRequest(Owners[0])).ID

	for range 2 {
		if err := d.AttachDisk(t.Context(), disk, a); err != nil {
			t.Fatal(err)
		}
	}
	if has := t.holder(d, disk); has != a {
		t.Errorf("%s has the disk: want %s", has, a)
	}
	var inUse *cloud.InUseError
	if err := d.AttachDisk(t.Context(), disk, b); !errors.As(err, &inUse) || inUse.Instance != a {
		t.Errorf("a second instance got %v: want an InUseError that names %s", err, a)
	}
	if err := d.DeleteDisk(t.Context(), disk); !errors.Is(err, cloud.ErrInUse) {
		t.Errorf("deleting a disk in use: %v: want ErrInUse", err)
	}
	if err := d.DetachDisk(t.Context(), disk, b); err != nil || t.holder(d, disk) != a {
		t.Errorf("detached from an instance that does not have it: %v; %s has it: want %s", err, t.holder(d, disk), a)
	}
	for range 2 {
		if err := d.DetachDisk(t.Context(), disk, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.AttachDisk(t.Context(), disk, b); err != nil {
		t.Fatal(err)
	}
	if has := t.holder(d, disk); has != b {
		t.Errorf("%s has the disk: want %s", has, b)
	}
	for what, wrong := range map[string][2]string{"an unknown disk": {"disk-0123456789abcdef", a},
		"an unknown instance": {t.createDisk(d, t.diskRequest(Owners[0])).ID, "i-0123456789abcdef0"}} {
		if err := d.AttachDisk(t.Context(), wrong[0], wrong[1]); !errors.Is(err, cloud.ErrNotFound) {
			t.Errorf("attached %s: %v: want ErrNotFound", what, err)
		}
	}
	if err := d.DetachDisk(t.Context(), "disk-0123456789abcdef", a); err != nil {
		t.Errorf("detached an unknown disk: %v", err)
	}
	t.removeDisks(d, got)
}

func growsDisks(t *trial) {
	d, g := t.disks(), t.cloud.Optional().DiskGrower
	if g == nil {
		t.Skip("this cloud grows no disks")
	}
	got := t.launch(t.request(Owners[0], 1))
	t.eventuallyRunning(Owners[0], ids(got))
	r := t.diskRequest(Owners[0])
	disk := t.createDisk(d, r)
	if err := d.AttachDisk(t.Context(), disk.ID, got[0].ID); err != nil {
		t.Fatal(err)
	}
	const larger = 3<<30 - 100
	for _, size := range []int64{larger, larger, 1 << 30} { // nothing of what is there already
		grown, err := g.GrowDisk(t.Context(), disk.ID, size)
		if err != nil {
			t.Fatal(err)
		}
		if grown.ID != disk.ID || grown.SizeBytes < larger || grown.SizeBytes > 3<<30 || grown.Instance != got[0].ID {
			t.Errorf("grown to %d: %+v", size, grown)
		}
	}
	if list := t.listDisks(d, Owners[0]); len(list) != 1 || list[0].SizeBytes < larger {
		t.Errorf("listed %+v: want one disk of %d bytes", list, larger)
	}
	if again := t.createDisk(d, r); again.ID != disk.ID || again.SizeBytes < larger {
		t.Errorf("the token of a disk that has grown made %+v: want %s", again, disk.ID)
	}
	if grown, err := g.GrowDisk(t.Context(), disk.ID, 1<<62); !errors.Is(err, cloud.ErrRefused) {
		t.Errorf("grown without end: %+v, %v: want ErrRefused", grown, err)
	}
	if grown, err := g.GrowDisk(t.Context(), "disk-0123456789abcdef", larger); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("grown an unknown disk: %+v, %v: want ErrNotFound", grown, err)
	}
	t.removeDisks(d, got)
}

func freesDisks(t *trial) {
	d := t.disks()
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	disk := t.createDisk(d, t.diskRequest(Owners[0])).ID
	if err := d.AttachDisk(t.Context(), disk, got[0].ID); err != nil {
		t.Fatal(err)
	}
	t.terminate(got[0].ID)
	t.eventuallyRunning(Owners[0], []string{got[1].ID})
	if err := d.AttachDisk(t.Context(), disk, got[1].ID); err != nil {
		t.Errorf("a disk whose instance is gone: %v", err)
	}
	t.removeDisks(d, got)
}

// removeDisks ends instances, then all disks.
func (t *trial) removeDisks(d cloud.Disks, instances []cloud.Instance) {
	t.Helper()
	t.terminate(ids(instances)...)
	t.eventuallyEmpty(Owners[0])
	for _, disk := range t.listDisks(d, Owners[0]) {
		if disk.Instance != "" {
			t.Errorf("instance %s, which is gone, still has %s", disk.Instance, disk.ID)
		}
		if err := d.DeleteDisk(t.Context(), disk.ID); err != nil {
			t.Fatal(err)
		}
	}
	if left := t.listDisks(d, Owners[0]); len(left) != 0 {
		t.Fatalf("left of all disks: %+v", left)
	}
}
