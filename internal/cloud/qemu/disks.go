package qemu

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
)

// A machine has the disk of a volume as a SCSI disk whose serial number is the disk's ID.
// QEMU has it as a device of that name, with a block node of that name.

const (
	// unplugLimit bounds the wait for a device to be gone from a machine, and unplugPoll is
	// how often it is looked for.
	unplugLimit = 3 * time.Second
	unplugPoll  = 20 * time.Millisecond
)

// AttachDisk plugs the disk in.
func (k *kind) AttachDisk(ctx context.Context, p host.Process, d host.Disk) error {
	return withMonitor(ctx, p, func(m *vm.Monitor) error {
		return k.repeat(ctx, m, d.ID, func(node, device bool) (done bool, err error) {
			switch {
			case device:
				return true, nil
			case node:
				return false, m.Do(ctx, "device_add", map[string]any{
					"driver": "scsi-hd", "id": d.ID, "bus": vm.DisksBus, "drive": d.ID, "serial": d.ID, "device_id": d.ID, "werror": "report",
				}, nil)
			}
			// What a machine has flushed is on the host's disk: the volume outlives both.
			err = m.Do(ctx, "blockdev-add", map[string]any{
				"driver":    "raw",
				"node-name": d.ID,
				"discard":   "unmap",
				"file":      map[string]any{"driver": "file", "filename": d.File, "discard": "unmap"},
			}, nil)
			k.cfg.Reached("disk opened")
			return false, err
		})
	})
}

// DetachDisk takes the disk out. That of a machine that has ended is free.
func (k *kind) DetachDisk(ctx context.Context, p host.Process, d host.Disk) error {
	err := withMonitor(ctx, p, func(m *vm.Monitor) error {
		return k.repeat(ctx, m, d.ID, func(node, device bool) (done bool, err error) {
			switch {
			case device:
				return false, m.Do(ctx, "device_del", map[string]any{"id": d.ID}, nil)
			case node:
				k.cfg.Reached("disk unplugged")
				return false, m.Do(ctx, "blockdev-del", map[string]any{"node-name": d.ID}, nil)
			}
			return true, nil
		})
	})
	if errors.Is(err, host.ErrGone) {
		return nil
	}
	return err
}

// GrowDisk has the machine's disk tell its system of its size. One that is not plugged in has
// nobody to tell.
func (k *kind) GrowDisk(ctx context.Context, p host.Process, d host.Disk, bytes int64) error {
	err := withMonitor(ctx, p, func(m *vm.Monitor) error {
		node, _, err := plugged(ctx, m, d.ID)
		if err != nil || !node {
			return err
		}
		k.cfg.Reached("disk growing")
		return m.Do(ctx, "block_resize", map[string]any{"node-name": d.ID, "size": bytes}, nil)
	})
	if errors.Is(err, host.ErrGone) {
		return nil
	}
	return err
}

// repeat takes steps, by what QEMU has of a disk, until that is done. What QEMU refuses is
// tried again for a while: a device goes on using its disk for a moment after it is gone.
func (k *kind) repeat(ctx context.Context, m *vm.Monitor, id string, step func(node, device bool) (done bool, err error)) error {
	limit := k.cfg.Clock.After(unplugLimit)
	for {
		node, device, err := plugged(ctx, m, id)
		done := false
		if err == nil {
			done, err = step(node, device)
		}
		var refused *vm.Refused
		if done || err != nil && !errors.As(err, &refused) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-limit:
			return errors.Join(cloud.ErrInUse, err)
		case <-k.cfg.Clock.After(unplugPoll):
		}
	}
}

// plugged says what a QEMU has of a disk.
func plugged(ctx context.Context, m *vm.Monitor, id string) (node, device bool, err error) {
	var nodes []struct {
		Name string `json:"node-name"`
	}
	if err := m.Do(ctx, "query-named-block-nodes", map[string]any{"flat": true}, &nodes); err != nil {
		return false, false, err
	}
	var devices []struct {
		Name string `json:"name"`
	}
	if err := m.Do(ctx, "qom-list", map[string]any{"path": "/machine/peripheral"}, &devices); err != nil {
		return false, false, err
	}
	for _, n := range nodes {
		node = node || n.Name == id
	}
	return node, slices.ContainsFunc(devices, func(d struct {
		Name string `json:"name"`
	}) bool {
		return d.Name == id
	}), nil
}
