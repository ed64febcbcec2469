package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// disk is one disk. c.mu guards all of it.
type disk struct {
	cloud.Disk
	token string
	asked int64 // the size that the token stands for
}

func (d *disk) public() cloud.Disk {
	p := d.Disk
	p.Tags = maps.Clone(p.Tags)
	return p
}

// disks are those that outlive machines.
type disks struct {
	*base
	calls    *calls
	machines *machines

	all       []*disk      // in the order of their creation
	disksMade int          // ever
	torn      []cloud.Disk // detached while in use
}

// CreateDisk implements cloud.Disks. The token is forgotten with the disk.
func (c *disks) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	r.Tags = maps.Clone(r.Tags)
	var made cloud.Disk
	err := c.calls.do(ctx, Call{Kind: KindCreateDisk}, func(time.Time) error {
		switch {
		case r.Token == "":
			return fmt.Errorf("%w: token is empty", cloud.ErrRefused)
		case r.SizeBytes <= 0:
			return fmt.Errorf("%w: size is %d bytes: want more than 0", cloud.ErrRefused, r.SizeBytes)
		case r.Tags[cloud.TagOwner] == "":
			return fmt.Errorf("%w: tag %s is missing", cloud.ErrRefused, cloud.TagOwner)
		case !c.offered.hasZone(r.Zone):
			return fmt.Errorf("%w: InvalidZone.NotFound: there is no zone %q", cloud.ErrRefused, r.Zone)
		}
		for _, d := range c.all {
			if d.token != r.Token {
				continue
			}
			if d.asked != r.SizeBytes || d.Zone != r.Zone {
				return fmt.Errorf("%w: IdempotentParameterMismatch: token %q has made %s", cloud.ErrRefused, r.Token, d.ID)
			}
			made = d.public()
			return nil
		}
		c.disksMade++
		d := &disk{token: r.Token, asked: r.SizeBytes, Disk: cloud.Disk{
			ID:        fmt.Sprintf("vol-%017x", c.rand("disk", r.Token, c.disksMade).Uint64()),
			SizeBytes: r.SizeBytes,
			Zone:      r.Zone,
			Tags:      r.Tags,
		}}
		c.all = append(c.all, d)
		made = d.public()
		return nil
	})
	if err != nil {
		return cloud.Disk{}, fmt.Errorf("create a disk: %w", err)
	}
	return made, nil
}

func (c *disks) findDisk(id string) *disk {
	for _, d := range c.all {
		if d.ID == id {
			return d
		}
	}
	return nil
}

// DeleteDisk implements cloud.Disks.
func (c *disks) DeleteDisk(ctx context.Context, id string) error {
	err := c.calls.do(ctx, Call{Kind: KindDeleteDisk, IDs: []string{id}}, func(time.Time) error {
		d := c.findDisk(id)
		if d == nil {
			return nil
		}
		if d.Instance != "" {
			return &cloud.InUseError{Disk: id, Instance: d.Instance}
		}
		c.all = slices.DeleteFunc(c.all, func(o *disk) bool { return o == d })
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete disk %s: %w", id, err)
	}
	return nil
}

// ListDisks implements cloud.Disks; it is never late.
func (c *disks) ListDisks(ctx context.Context, owner string) (list []cloud.Disk, err error) {
	err = c.calls.do(ctx, Call{Kind: KindListDisks, Owner: owner}, func(time.Time) error {
		list = nil
		for _, d := range c.all {
			if d.Tags[cloud.TagOwner] == owner {
				list = append(list, d.public())
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the disks of %s in %s: %w", owner, c.cfg.Name, err)
	}
	return list, nil
}

// AttachDisk implements cloud.Disks.
func (c *disks) AttachDisk(ctx context.Context, id, instance string) error {
	err := c.calls.do(ctx, Call{Kind: KindAttachDisk, IDs: []string{id, instance}}, func(now time.Time) error {
		d, m := c.findDisk(id), c.machines.find(instance, now)
		switch {
		case d == nil:
			return fmt.Errorf("%w: InvalidVolume.NotFound: there is no disk %s", cloud.ErrNotFound, id)
		case d.Instance == instance:
			return nil
		case d.Instance != "":
			return &cloud.InUseError{Disk: id, Instance: d.Instance}
		case m == nil || m.State != cloud.Running:
			return fmt.Errorf("%w: IncorrectInstanceState: no instance %s runs", cloud.ErrNotFound, instance)
		case m.Zone != d.Zone:
			return fmt.Errorf("%w: InvalidVolume.ZoneMismatch: the disk is in %s, the instance in %s", cloud.ErrRefused, d.Zone, m.Zone)
		}
		d.Instance = instance
		return nil
	})
	if err != nil {
		return fmt.Errorf("attach disk %s to %s: %w", id, instance, err)
	}
	return nil
}

// DetachDisk implements cloud.Disks. A disk of which Config.Mounted says that the
// instance uses it is torn off all the same, as clouds do; History of that is in
// Torn.
func (c *disks) DetachDisk(ctx context.Context, id, instance string) error {
	err := c.calls.do(ctx, Call{Kind: KindDetachDisk, IDs: []string{id, instance}}, func(time.Time) error {
		d := c.findDisk(id)
		if d == nil || d.Instance != instance {
			return nil
		}
		if c.cfg.Mounted != nil && c.cfg.Mounted(id, instance) {
			c.torn = append(c.torn, d.public())
		}
		d.Instance = ""
		return nil
	})
	if err != nil {
		return fmt.Errorf("detach disk %s from %s: %w", id, instance, err)
	}
	return nil
}

// GrowDisk implements cloud.DiskGrower.
func (c *disks) GrowDisk(ctx context.Context, id string, bytes int64) (grown cloud.Disk, err error) {
	err = c.calls.do(ctx, Call{Kind: KindGrowDisk, IDs: []string{id}}, func(time.Time) error {
		d := c.findDisk(id)
		switch {
		case d == nil:
			return fmt.Errorf("%w: InvalidVolume.NotFound: there is no disk %s", cloud.ErrNotFound, id)
		case bytes > mostBytes:
			return fmt.Errorf("%w: size is %d bytes: want at most %d", cloud.ErrRefused, bytes, int64(mostBytes))
		}
		d.SizeBytes = max(d.SizeBytes, bytes)
		grown = d.public()
		return nil
	})
	if err != nil {
		return cloud.Disk{}, fmt.Errorf("grow disk %s: %w", id, err)
	}
	return grown, nil
}

// mostBytes is the size of the largest disk: 64 TiB, that of EC2's gp3 (EBS User Guide, "General
// Purpose SSD volumes").
const mostBytes = 64 << 40

// freeDisks takes the disks from a machine that has ended.
func (c *disks) freeDisks(instance string) {
	for _, d := range c.all {
		if d.Instance == instance {
			d.Instance = ""
		}
	}
}

// All returns the disks as they truly are.
func (c *disks) All() []cloud.Disk {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []cloud.Disk
	for _, d := range c.all {
		all = append(all, d.public())
	}
	return all
}

// Torn returns the disks that were detached while their instance used them.
func (c *disks) Torn() []cloud.Disk {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.torn)
}
