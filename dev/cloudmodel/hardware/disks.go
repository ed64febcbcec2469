package hardware

import (
	"context"
	"errors"
	"fmt"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud"
)

const gib = 1 << 30

var _ cloudmodel.Disks = (*Machines)(nil)

// Attach implements cloudmodel.Disks: the disk of the machine has the same ID, by which its agent finds it.
func (m *Machines) Attach(ctx context.Context, d cloudmodel.Disk) error {
	machine := m.machineOf(d.Instance)
	if machine == "" {
		return fmt.Errorf("attach disk %s: no machine stands behind instance %s", d.ID, d.Instance)
	}
	if _, err := m.of.CreateDiskAs(ctx, d.ID, cloud.DiskRequest{
		Token:     d.ID,
		SizeBytes: int64(d.GiB) * gib,
		Zone:      d.Zone,
		Tags:      map[string]string{cloud.TagOwner: m.cfg.Owner, cloud.TagName: d.ID},
	}); err != nil {
		return err
	}
	return m.of.AttachDisk(ctx, d.ID, machine)
}

// Detach implements cloudmodel.Disks.
func (m *Machines) Detach(ctx context.Context, disk, instance string) error {
	return m.of.DetachDisk(ctx, disk, m.machineOf(instance))
}

// Grow implements cloudmodel.Disks. One that no machine has had yet is not there.
func (m *Machines) Grow(ctx context.Context, d cloudmodel.Disk) error {
	_, err := m.of.GrowDisk(ctx, d.ID, int64(d.GiB)*gib)
	if errors.Is(err, cloud.ErrNotFound) {
		return nil
	}
	return err
}

// Delete implements cloudmodel.Disks.
func (m *Machines) Delete(ctx context.Context, disk string) error {
	return m.of.DeleteDisk(ctx, disk)
}

func (m *Machines) machineOf(instance string) string {
	one := m.instance(instance)
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.machine
}
