package machines

import (
	"context"
	"errors"
	"fmt"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
)

var _ ec2.Disks = (*EC2)(nil)

// Attach implements ec2.Disks: the disk of the machine has the volume's ID, by which its agent finds it.
func (e *EC2) Attach(ctx context.Context, v ec2.Volume) error {
	machine := e.machineOf(v.Instance)
	if machine == "" {
		return fmt.Errorf("attach volume %s: no machine stands behind instance %s", v.ID, v.Instance)
	}
	if _, err := e.machines.CreateDiskAs(ctx, v.ID, cloud.DiskRequest{
		Token:     v.ID,
		SizeBytes: int64(v.GiB) * gib,
		Zone:      v.Zone,
		Tags:      map[string]string{cloud.TagOwner: "ec2", cloud.TagName: v.ID},
	}); err != nil {
		return err
	}
	return e.machines.AttachDisk(ctx, v.ID, machine)
}

// Detach implements ec2.Disks.
func (e *EC2) Detach(ctx context.Context, volume, instance string) error {
	return e.machines.DetachDisk(ctx, volume, e.machineOf(instance))
}

// Grow implements ec2.Disks. A volume that no machine has had yet has no disk.
func (e *EC2) Grow(ctx context.Context, v ec2.Volume) error {
	_, err := e.machines.GrowDisk(ctx, v.ID, int64(v.GiB)*gib)
	if errors.Is(err, cloud.ErrNotFound) {
		return nil
	}
	return err
}

// Delete implements ec2.Disks.
func (e *EC2) Delete(ctx context.Context, volume string) error {
	return e.machines.DeleteDisk(ctx, volume)
}

func (e *EC2) machineOf(instance string) string {
	one := e.instance(instance)
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.machine
}
