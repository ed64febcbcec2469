package provisioner

import (
	"context"
	"sync"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/volumes"
)

// disks are those of this Kip that the cloud has told of. What a disk is tagged with when
// it is made does not change.
type disks struct {
	asking singleflight.Group

	mu    sync.Mutex
	known map[string]cloud.Disk
}

func (d *disks) get(id string) (cloud.Disk, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	disk, is := d.known[id]
	return disk, is
}

func (d *disks) made(disk cloud.Disk) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[string]cloud.Disk{}
	}
	d.known[disk.ID] = disk
}

func (d *disks) removed(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, id)
}

func (d *disks) become(list []cloud.Disk) {
	known := make(map[string]cloud.Disk, len(list))
	for _, disk := range list {
		known[disk.ID] = disk
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known = known
}

// Owned says whether the disk that a volume names was made for it: a
// *[volumes.ForeignDiskError] if not. Other errors are the cloud's.
func (p *Provisioner) Owned(ctx context.Context, pv *corev1.PersistentVolume) error {
	disk, err := p.diskOf(ctx, pv)
	if err == nil && disk == nil {
		err = &volumes.ForeignDiskError{Volume: pv.Name, Disk: pv.Spec.CSI.VolumeHandle}
	}
	return err
}

// diskOf returns the disk that a volume names; nil if this Kip has no such disk. The
// error is a *[volumes.ForeignDiskError] where the disk was made for another volume, or
// for a claim of another namespace.
func (p *Provisioner) diskOf(ctx context.Context, pv *corev1.PersistentVolume) (*cloud.Disk, error) {
	id := pv.Spec.CSI.VolumeHandle
	disk, is := p.disks.get(id)
	if !is {
		// One question at a time: each names all disks.
		_, err, _ := p.disks.asking.Do("", func() (any, error) {
			list, err := p.cfg.Disks.ListDisks(ctx, p.cfg.ControllerID)
			if err == nil {
				p.disks.become(list)
			}
			return nil, err
		})
		if err != nil {
			return nil, err
		}
		if disk, is = p.disks.get(id); !is {
			return nil, nil
		}
	}
	if ref := pv.Spec.ClaimRef; ref == nil || disk.Tags[cloud.TagOwner] != p.cfg.ControllerID || disk.Tags[cloud.TagVolume] != pv.Name ||
		disk.Tags[cloud.TagNamespace] != ref.Namespace {
		return nil, &volumes.ForeignDiskError{Volume: pv.Name, Disk: id}
	}
	return &disk, nil
}
