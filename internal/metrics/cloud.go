package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// Kinds of calls to a cloud.
const (
	callCatalogue = "catalogue"
	callLaunch    = "launch"
	callList      = "list"
	callTerminate = "terminate"
	callStop      = "stop"
	callStart     = "start"

	callCreateDisk = "createDisk"
	callDeleteDisk = "deleteDisk"
	callListDisks  = "listDisks"
	callAttachDisk = "attachDisk"
	callDetachDisk = "detachDisk"
)

// Cloud returns c with its calls measured. It is a cloud.Stopper and a
// cloud.Interrupter exactly where c is; its disks are for Disks; what else c can do, such as being closed,
// is only to be had from c itself.
func (m *Metrics) Cloud(c cloud.Cloud) cloud.Cloud {
	measured := &measuredCloud{Cloud: c, m: m}
	stops, canStop := c.(cloud.Stopper)
	interrupts, canInterrupt := c.(cloud.Interrupter)
	stopper := measuredStopper{stops, m}
	interrupter := measuredInterrupter{interrupts, m}
	switch {
	case canStop && canInterrupt:
		return struct {
			cloud.Cloud
			measuredStopper
			measuredInterrupter
		}{measured, stopper, interrupter}
	case canStop:
		return struct {
			cloud.Cloud
			measuredStopper
		}{measured, stopper}
	case canInterrupt:
		return struct {
			cloud.Cloud
			measuredInterrupter
		}{measured, interrupter}
	}
	return measured
}

type measuredCloud struct {
	cloud.Cloud
	m *Metrics
}

var (
	_ cloud.Cloud       = (*measuredCloud)(nil)
	_ cloud.Stopper     = measuredStopper{}
	_ cloud.Interrupter = measuredInterrupter{}
	_ cloud.Disks       = measuredDisks{}
)

func (c *measuredCloud) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	began := c.m.cfg.Clock.Now()
	types, err := c.Cloud.Catalogue(ctx)
	c.m.called(ctx, callCatalogue, began, err)
	return types, err
}

func (c *measuredCloud) Launch(ctx context.Context, r cloud.LaunchRequest) ([]cloud.Instance, error) {
	began := c.m.cfg.Clock.Now()
	instances, err := c.Cloud.Launch(ctx, r)
	c.m.called(ctx, callLaunch, began, err)
	short := errors.Is(err, cloud.ErrCapacity)
	for i := range instances {
		short = short || err == nil && instances[i].ID == ""
	}
	if short {
		// By what was asked for, which comes from the catalogue: an error may
		// name less.
		c.m.cloudCapacity.WithLabelValues(r.InstanceType, r.Zone, launchTypeOf(r.Spot)).Inc()
	}
	return instances, err
}

func (c *measuredCloud) List(ctx context.Context, owner string) ([]cloud.Instance, error) {
	began := c.m.cfg.Clock.Now()
	instances, err := c.Cloud.List(ctx, owner)
	c.m.called(ctx, callList, began, err)
	return instances, err
}

func (c *measuredCloud) Terminate(ctx context.Context, ids ...string) error {
	began := c.m.cfg.Clock.Now()
	err := c.Cloud.Terminate(ctx, ids...)
	c.m.called(ctx, callTerminate, began, err)
	return err
}

type measuredStopper struct {
	stopper cloud.Stopper
	m       *Metrics
}

func (s measuredStopper) Stop(ctx context.Context, ids ...string) error {
	began := s.m.cfg.Clock.Now()
	err := s.stopper.Stop(ctx, ids...)
	s.m.called(ctx, callStop, began, err)
	return err
}

func (s measuredStopper) Start(ctx context.Context, ids ...string) error {
	began := s.m.cfg.Clock.Now()
	err := s.stopper.Start(ctx, ids...)
	s.m.called(ctx, callStart, began, err)
	if errors.Is(err, cloud.ErrCapacity) {
		var short *cloud.CapacityError
		if !errors.As(err, &short) {
			short = &cloud.CapacityError{}
		}
		launchType := "" // which the error need not say
		if short.Spot != nil {
			launchType = launchTypeOf(*short.Spot)
		}
		s.m.cloudCapacity.WithLabelValues(short.InstanceType, short.Zone, launchType).Inc()
	}
	return err
}

type measuredInterrupter struct {
	interrupter cloud.Interrupter
	m           *Metrics
}

func (i measuredInterrupter) Interruptions(ctx context.Context, notice func(cloud.Interruption)) error {
	return i.interrupter.Interruptions(ctx, func(n cloud.Interruption) {
		i.m.cloudInterruptions.Inc()
		notice(n)
	})
}

// Disks returns the disks of a cloud with their calls measured; nil for a cloud
// without.
func (m *Metrics) Disks(c cloud.Cloud) cloud.Disks {
	d, ok := c.(cloud.Disks)
	if !ok {
		return nil
	}
	return measuredDisks{d, m}
}

type measuredDisks struct {
	disks cloud.Disks
	m     *Metrics
}

func (d measuredDisks) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	began := d.m.cfg.Clock.Now()
	disk, err := d.disks.CreateDisk(ctx, r)
	d.m.called(ctx, callCreateDisk, began, err)
	return disk, err
}

func (d measuredDisks) DeleteDisk(ctx context.Context, id string) error {
	began := d.m.cfg.Clock.Now()
	err := d.disks.DeleteDisk(ctx, id)
	d.m.called(ctx, callDeleteDisk, began, err)
	return err
}

func (d measuredDisks) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	began := d.m.cfg.Clock.Now()
	list, err := d.disks.ListDisks(ctx, owner)
	d.m.called(ctx, callListDisks, began, err)
	return list, err
}

func (d measuredDisks) AttachDisk(ctx context.Context, id, instance string) error {
	began := d.m.cfg.Clock.Now()
	err := d.disks.AttachDisk(ctx, id, instance)
	d.m.called(ctx, callAttachDisk, began, err)
	return err
}

func (d measuredDisks) DetachDisk(ctx context.Context, id, instance string) error {
	began := d.m.cfg.Clock.Now()
	err := d.disks.DetachDisk(ctx, id, instance)
	d.m.called(ctx, callDetachDisk, began, err)
	return err
}

func (m *Metrics) called(ctx context.Context, call string, began time.Time, err error) {
	m.cloudCalls.WithLabelValues(call, errorClass(ctx, err)).Observe(m.cfg.Clock.Since(began).Seconds())
}

// errorClass sorts the errors of a cloud into those that a caller tells apart.
func errorClass(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return errorNone
	case errors.Is(err, cloud.ErrCapacity):
		return errorCapacity
	case errors.Is(err, cloud.ErrQuota):
		return errorQuota
	case errors.Is(err, cloud.ErrThrottled):
		return errorThrottled
	case errors.Is(err, cloud.ErrUnauthorised):
		return errorUnauthorised
	case errors.Is(err, cloud.ErrInUse):
		return errorInUse
	case errors.Is(err, cloud.ErrNotFound):
		return errorNotFound
	case errors.Is(err, cloud.ErrRefused):
		return errorRefused
	case errors.Is(ctx.Err(), context.Canceled):
		return errorCancelled
	}
	return errorUnknown
}
