package provisioner

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/volumes"
)

const (
	// settles is how long the cloud's list may not show a disk that was made, besides the lag
	// that the cloud tells; clocks differ, too.
	settles = time.Minute
	// notOursFor is how long it is remembered for pods that the cloud shows no such disk.
	notOursFor = 10 * time.Second
	// patience is how long those who ask whose a disk is wait for the cloud: they have other
	// pods to serve. The question goes on, and whoever asks again is told.
	patience = time.Second
	// listTimeout bounds it.
	listTimeout = 2 * time.Minute
	// absentFor is how long it is kept that a disk was not shown, or was removed.
	absentFor = time.Hour
)

// disks are those of this Kip that the cloud has told of. What a disk is tagged with when
// it is made does not change.
type disks struct {
	asking singleflight.Group

	mu     sync.Mutex
	known  map[string]known
	absent map[string]absence
	asked  time.Time // when the question began that the cloud has not answered; zero for none
	// wanted are those that somebody has asked for and that no list has answered yet, and
	// since when: who asked does not wait for a slow one.
	wanted map[string]time.Time
}

// known is a disk, and when this process has made it; zero if the cloud's list showed it.
type known struct {
	disk cloud.Disk
	made time.Time
}

// absence is what is known of a disk that the cloud does not show.
type absence struct {
	// last is when the latest list began that did not show it, and counted the first that
	// cannot have been too early to do so.
	last, counted time.Time
	told          time.Time // when that list had come
	removed       time.Time // by this process; zero if it was not
}

func (d *disks) get(id string) (disk cloud.Disk, is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, is := d.known[id]
	return k.disk, is
}

func (d *disks) made(disk cloud.Disk, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[string]known{}
	}
	d.known[disk.ID] = known{disk: disk, made: now}
	delete(d.absent, disk.ID)
}

func (d *disks) removed(id string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, id)
	d.note(id, absence{removed: now})
}

// note is under mu.
func (d *disks) note(id string, a absence) {
	if d.absent == nil {
		d.absent = map[string]absence{}
	}
	d.absent[id] = a
}

// become takes a list that began then, and may be late by lag: what was made or removed since
// stays so.
func (d *disks) become(list []cloud.Disk, began time.Time, lag time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	since := began.Add(-lag)
	now := make(map[string]known, len(list))
	for id, k := range d.known {
		if !k.made.Before(since) {
			now[id] = k
		}
	}
	for _, disk := range list {
		if d.absent[disk.ID].removed.Before(since) {
			now[disk.ID] = known{disk: disk, made: now[disk.ID].made}
			delete(d.absent, disk.ID)
		}
	}
	d.known = now
	maps.DeleteFunc(d.absent, func(_ string, a absence) bool {
		return a.last.Before(began.Add(-absentFor)) && a.removed.Before(began.Add(-absentFor))
	})
}

// want notes that somebody asks for a disk, unless somebody has before.
func (d *disks) want(id string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted == nil {
		d.wanted = map[string]time.Time{}
	}
	if _, is := d.wanted[id]; !is {
		d.wanted[id] = now
	}
}

// answered notes of the disks that were asked for whether the list showed them that began
// then and has come now. It says nothing of those that were asked for since it began: they
// may be younger.
func (d *disks) answered(began, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, since := range d.wanted {
		if _, shown := d.known[id]; !shown {
			if began.Before(since) {
				continue
			}
			a := d.absent[id]
			a.last, a.told = began, now
			d.note(id, a)
		}
		delete(d.wanted, id)
	}
}

// missing says that the cloud does not show a disk, as was found since then.
func (d *disks) missing(id string, since time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, is := d.absent[id]
	return is && a.told.After(since)
}

// gone says that a disk which a list has just missed is there no more: this process removed
// it, or two lists have missed it that were so far apart, and so long after its volume was made.
func (d *disks) gone(id string, volume time.Time, lag time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.absent[id]
	switch {
	case !a.removed.IsZero():
		return true
	case a.last.Before(volume.Add(lag)):
		return false
	case a.counted.IsZero():
		a.counted = a.last
		d.absent[id] = a
		return false
	}
	return a.last.Sub(a.counted) >= lag
}

// setAsked notes when a question began, or that none is open.
func (d *disks) setAsked(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = at
}

// patience is how long to wait for the answer to the question that is open, or to a new one.
func (d *disks) patience(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked.IsZero() {
		return patience
	}
	return d.asked.Add(patience).Sub(now)
}

// lag is how late the cloud's list may be.
func (p *Provisioner) lag() time.Duration { return p.cfg.ListLag + settles }

// Owned says whether the disk that a volume names was made for it: a
// *[volumes.ForeignDiskError] if not. It does not wait for a cloud that is slow: the error
// is [volumes.ErrUntold] then. Other errors are the cloud's.
func (p *Provisioner) Owned(ctx context.Context, pv *corev1.PersistentVolume) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.disks.patience(p.cfg.Clock.Now()), volumes.ErrUntold)
	defer cancel()
	if p.disks.missing(pv.Spec.CSI.VolumeHandle, p.cfg.Clock.Now().Add(-notOursFor)) {
		return &volumes.ForeignDiskError{Volume: pv.Name, Disk: pv.Spec.CSI.VolumeHandle}
	}
	disk, err := p.diskOf(ctx, pv)
	if err == nil && disk == nil {
		err = &volumes.ForeignDiskError{Volume: pv.Name, Disk: pv.Spec.CSI.VolumeHandle}
	}
	return err
}

// Others says that the disk which a volume of another driver names is none of this Kip's: a
// *[volumes.ForeignDiskError] if it is. Who may make volumes of that driver could have anybody's data
// by it otherwise. The other errors are those of Owned.
func (p *Provisioner) Others(ctx context.Context, pv *corev1.PersistentVolume) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.disks.patience(p.cfg.Clock.Now()), volumes.ErrUntold)
	defer cancel()
	if p.disks.missing(pv.Spec.CSI.VolumeHandle, p.cfg.Clock.Now().Add(-absentFor)) {
		return nil // nor will it be: a cloud gives no ID twice
	}
	disk, err := p.diskOf(ctx, pv)
	if err == nil && disk != nil {
		err = &volumes.ForeignDiskError{Volume: pv.Name, Disk: disk.ID}
	}
	return err
}

// diskOf returns the disk that a volume names; nil if this Kip has no such disk. The
// error is a *[volumes.ForeignDiskError] where the disk was made for another volume, or
// for a claim of another namespace.
func (p *Provisioner) diskOf(ctx context.Context, pv *corev1.PersistentVolume) (*cloud.Disk, error) {
	id := pv.Spec.CSI.VolumeHandle
	disk, is := p.disks.get(id)
	asked := p.cfg.Clock.Now()
	if !is {
		p.disks.want(id, asked)
	}
	for !is {
		began, err := p.list(ctx)
		if err != nil {
			return nil, err
		}
		if disk, is = p.disks.get(id); is {
			break
		}
		if !began.Before(asked) { // else it was another's question, perhaps older than the disk
			return nil, nil
		}
	}
	if ref := pv.Spec.ClaimRef; ref == nil || disk.Tags[cloud.TagOwner] != p.cfg.ControllerID || disk.Tags[cloud.TagVolume] != pv.Name ||
		disk.Tags[cloud.TagNamespace] != ref.Namespace {
		return nil, &volumes.ForeignDiskError{Volume: pv.Name, Disk: id}
	}
	return &disk, nil
}

// list asks the cloud for its disks, one question at a time: each names all disks. It returns
// when that which was answered began. A question outlives those who have asked it.
func (p *Provisioner) list(ctx context.Context) (began time.Time, err error) {
	answer := p.disks.asking.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(p.lifetime, listTimeout)
		defer cancel()
		began := p.cfg.Clock.Now()
		p.disks.setAsked(began)
		defer p.disks.setAsked(time.Time{})
		list, err := p.cfg.Disks.ListDisks(ctx, p.cfg.ControllerID)
		if err == nil {
			p.disks.become(list, began, p.lag())
			p.disks.answered(began, p.cfg.Clock.Now())
		}
		return began, err
	})
	select {
	case a := <-answer:
		return a.Val.(time.Time), a.Err
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}
