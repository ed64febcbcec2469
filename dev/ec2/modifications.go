package ec2

import (
	"context"
	"slices"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud/sim"
)

// change is the last one of a volume's size.
type change struct {
	from  int // GiB; 0 for a volume that was never changed
	began time.Time
	// earlier are when those before it began.
	earlier []time.Time
}

// A volume is changed up to mostChanges times within a rolling window, each time after the last change is completed (EC2 API
// reference, "ModifyVolume", since January 2026).
const (
	mostChanges   = 4
	changesWithin = 24 * time.Hour
)

// after is the next change of a volume, from a size.
func (c change) after(from int, now time.Time) change {
	next := change{from: from, began: now}
	if c.from > 0 {
		next.earlier = append(slices.Clone(c.earlier), c.began)
	}
	return next
}

// nextAt is when the volume can be changed again.
func (c change) nextAt() time.Time {
	all := append(slices.Clone(c.earlier), c.began)
	if c.from == 0 || len(all) < mostChanges {
		return time.Time{}
	}
	return all[len(all)-mostChanges].Add(changesWithin)
}

type modificationXML struct {
	Volume   string `xml:"volumeId"`
	Status   string `xml:"modificationState"`
	Target   int    `xml:"targetSize"`
	Original int    `xml:"originalSize"`
	Progress int    `xml:"progress"`
	Start    string `xml:"startTime"`
}

// changing is the state of the volume's change. EC2 may take a day to optimize, the model a step.
func (v *volume) changing(now time.Time, step time.Duration) string {
	switch {
	case now.Before(v.change.began.Add(step)):
		return "modifying"
	case now.Before(v.change.began.Add(2 * step)):
		return "optimizing"
	}
	return "completed"
}

// shownGiB is the size that descriptions show: the new one once it has taken effect.
func (v *volume) shownGiB(now time.Time, step time.Duration) int {
	if v.change.from > 0 && v.changing(now, step) == "modifying" {
		return v.change.from
	}
	return v.GiB
}

func (v *volume) modification(now time.Time, step time.Duration) modificationXML {
	x := modificationXML{
		Volume:   v.ID,
		Status:   v.changing(now, step),
		Target:   v.GiB,
		Original: v.change.from,
		Start:    wireTime(v.change.began),
	}
	if x.Status == "completed" {
		x.Progress = 100
	}
	return x
}

// modifications are changes of the sizes of volumes.
type modifications struct {
	*base
	volumes *volumes
}

func (m *modifications) modifyVolume(r *request) (any, error) {
	id, size := r.named(), r.number("Size")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.volumes.mayTouchVolume(r, id); err != nil {
		return nil, err
	}
	var made Volume
	var answer modificationXML
	err := m.volumes.touch(r, sim.KindGrowDisk, func(now time.Time, _ map[string]sim.Instance) error {
		v, err := m.volumes.volumeOf(id, now)
		if err != nil {
			return err
		}
		if err := v.changeable(size, now, m.cfg.VolumeStep); err != nil {
			return err
		}
		v.change, v.GiB = v.change.after(v.GiB, now), size
		made, answer = v.Volume, v.modification(now, m.cfg.VolumeStep)
		return nil
	})
	grow := func(ctx context.Context, d cloudmodel.Disks) error { return d.Grow(ctx, made.disk()) }
	if failed := m.volumes.behind(r, made.ID != "", grow); failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	return struct {
		RequestID string          `xml:"requestId"`
		Made      modificationXML `xml:"volumeModification"`
	}{requestID, answer}, nil
}

// changeable refuses a change of the size as EC2 does. It is called with mu held.
func (v *volume) changeable(size int, now time.Time, step time.Duration) error {
	switch status := v.status(now, step); {
	case status != "available" && status != "in-use":
		return bad("IncorrectState", "The volume '%s' is in the '%s' state", v.ID, status)
	case size < v.GiB:
		return bad("InvalidParameterValue", "New size cannot be smaller than existing size")
	case size > mostGiB[v.Kind]:
		return bad("InvalidParameterValue", "Volume of %dGiB is too large for volume type %s; maximum is %dGiB", size, v.Kind, mostGiB[v.Kind])
	case v.change.from == 0:
		return nil
	}
	if state := v.changing(now, step); state != "completed" {
		return bad("IncorrectModificationState", "Cannot modify volume %s, currently in state %s", v.ID, state)
	}
	// The message says when the volume can be changed again. No source has its words.
	if next := v.change.nextAt(); now.Before(next) {
		return bad("VolumeModificationRateExceeded",
			"You've reached the maximum modification rate per volume limit. You can perform your next modification at %s.", wireTime(next))
	}
	return nil
}

func (m *modifications) describeVolumesModifications(r *request) (any, error) {
	ids := r.texts("VolumeId")
	wanted := r.filters("volume-id", "modification-state")
	r.number("MaxResults")
	r.text("NextToken")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.may(r, "ec2:DescribeVolumesModifications", "*", nil); err != nil {
		return nil, err
	}
	var all []modificationXML
	err := m.volumes.touch(r, sim.KindListDisks, func(now time.Time, _ map[string]sim.Instance) error {
		for _, id := range ids {
			if v, err := m.volumes.volumeOf(id, now); err != nil {
				return err
			} else if v.change.from == 0 {
				return bad("InvalidVolumeModification.NotFound", "Modification for volume '%s' does not exist.", id)
			}
		}
		for _, v := range m.volumes.all {
			if v.change.from == 0 || !v.shows(now, m.cfg.VolumeStep) || len(ids) > 0 && !slices.Contains(ids, v.ID) {
				continue
			}
			x := v.modification(now, m.cfg.VolumeStep)
			if wanted.match(func(name string) []string {
				return map[string][]string{"volume-id": {x.Volume}, "modification-state": {x.Status}}[name]
			}) {
				all = append(all, x)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return paged(r, "volumeModificationSet", m.cfg.PageSize, all, func(x modificationXML) string { return x.Volume }), nil
}
