package ec2

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Volume is an EBS volume that outlives instances. The root disks of instances are not
// among the model's volumes.
type Volume struct {
	ID, Zone, Kind string
	GiB            int
	Encrypted      bool
	// MultiAttach says that several instances may have it, of which the model gives it to one.
	MultiAttach bool
	Tags        map[string]string
	// Instance has the volume, or is being given it, as Device; both are empty for none.
	Instance, Device string
}

// disk is what stands behind it.
func (v Volume) disk() cloudmodel.Disk {
	return cloudmodel.Disk{ID: v.ID, Zone: v.Zone, GiB: v.GiB, Instance: v.Instance}
}

// volume is one as EC2 knows it.
type volume struct {
	Volume
	token, call string // of the call that made it; the call is what it asked for
	created     time.Time
	deleted     time.Time // when its deletion began; zero for none
	attached    time.Time // when its attachment began
	// left is the instance that the volume is being detached from since then.
	left     string
	detached time.Time
	fate     Fate
	change   change
}

// Fate is what becomes of a volume that EC2 has accepted.
type Fate int

// Fates. EC2 looks at the KMS key of a volume when it has accepted it: "the action can appear to
// complete, but eventually fails" (EC2 API reference, "CreateVolume"). It does not say how that shows.
const (
	FateWhole Fate = iota
	FateError      // it goes to state error, and stays there
	FateNever      // nothing ever shows it
)

// volumes are the EBS volumes but root disks.
type volumes struct {
	*base

	all    []*volume // that ever were
	hidden bool      // from descriptions
	fate   Fate      // of those that are made
}

// Fail lets the volumes that are made from now on have a fate.
func (m *volumes) Fail(fate Fate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fate = fate
}

// Age lets the volumes that there are have been made earlier by d.
func (m *volumes) Age(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		v.created = v.created.Add(-d)
	}
}

// shows says whether calls know the volume: one that was just made, or is deleted, is unknown.
func (v *volume) shows(now time.Time, step time.Duration) bool {
	return v.fate != FateNever && !now.Before(v.created.Add(step)) && (v.deleted.IsZero() || now.Before(v.deleted.Add(step)))
}

// status is the volume's.
func (v *volume) status(now time.Time, step time.Duration) string {
	switch {
	case !v.deleted.IsZero():
		return "deleting"
	case now.Before(v.created.Add(2 * step)):
		return "creating"
	case v.fate == FateError:
		return "error"
	case v.Instance != "" || v.leaving(now, step):
		return "in-use"
	}
	return "available"
}

// leaving says that the volume is being detached.
func (v *volume) leaving(now time.Time, step time.Duration) bool {
	return v.left != "" && now.Before(v.detached.Add(step))
}

// All are those that exist, as they truly are.
func (m *volumes) All() (all []Volume) {
	living := m.model.Living()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free(living)
	for _, v := range m.all {
		if v.deleted.IsZero() && v.fate != FateNever {
			one := v.Volume
			one.Tags = maps.Clone(one.Tags)
			all = append(all, one)
		}
	}
	return all
}

// Add makes a volume that somebody else has made, such as a driver of Kubernetes'.
func (m *volumes) Add(v Volume) (id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.addVolume(&volume{Volume: v})
}

// addVolume is called with mu held.
func (m *volumes) addVolume(v *volume) (id string) {
	m.made++
	v.ID, v.Tags = fmt.Sprintf("vol-%017x", m.made), maps.Clone(v.Tags)
	m.all = append(m.all, v)
	return v.ID
}

// ForgetTokens lets the tokens of volumes be as good as new: EC2 does not say for how long
// it keeps them.
func (m *volumes) ForgetTokens() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		v.token = ""
	}
}

// Hide has descriptions show none of what there is, as they may for a while, or all of
// it again.
func (m *volumes) Hide(hide bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hidden = hide
}

// free takes the volumes from the instances that have ended. It is called with mu held.
func (m *volumes) free(living map[string]sim.Instance) {
	for _, v := range m.all {
		if _, lives := living[v.Instance]; v.Instance != "" && !lives {
			v.Instance, v.Device = "", ""
		}
	}
}

// touch lets a call about volumes arrive. Its effect has mu, and knows which instances there are.
func (m *volumes) touch(r *request, kind sim.Kind, effect func(now time.Time, living map[string]sim.Instance) error) error {
	now := m.model.Now()
	return m.take(r, kind, func(living map[string]sim.Instance) error {
		m.free(living)
		return effect(now, living)
	})
}

// behind does with what stands behind a volume what a call has done with that, also where
// the answer to the call is lost.
func (m *volumes) behind(r *request, done bool, do func(context.Context, cloudmodel.Disks) error) error {
	if m.cfg.Disks == nil || !done {
		return nil
	}
	return do(context.WithoutCancel(r.ctx), m.cfg.Disks)
}

// volumeOf returns a volume that calls know. It is called with mu held.
func (m *volumes) volumeOf(id string, now time.Time) (*volume, error) {
	for _, v := range m.all {
		if v.ID == id && v.shows(now, m.cfg.VolumeStep) {
			return v, nil
		}
	}
	return nil, bad("InvalidVolume.NotFound", "The volume '%s' does not exist.", id)
}

// mayTouchVolume asks the policy about a volume, also one that calls do not know yet. One that is
// not there is nobody's.
func (m *volumes) mayTouchVolume(r *request, id string) error {
	m.mu.Lock()
	n := slices.IndexFunc(m.all, func(v *volume) bool { return v.ID == id })
	var set map[string]string
	if n >= 0 {
		set = maps.Clone(m.all[n].Tags)
	}
	m.mu.Unlock()
	if n < 0 {
		return nil
	}
	return m.may(r, "ec2:"+r.action, m.arn("volume/"+id), tagged("ResourceTag", set))
}

var volumeID = regexp.MustCompile(`^vol-[0-9a-f]{8,17}$`)

// named reads the parameter with a volume's ID.
func (r *request) named() string {
	id := r.text("VolumeId")
	if !volumeID.MatchString(id) {
		r.bad("InvalidParameterValue", "Value (%s) for parameter volumeId is invalid. Expected: 'vol-...'.", id)
	}
	return id
}

// AgeChanges lets the changes that there were have been made earlier by d.
func (m *volumes) AgeChanges(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.all {
		v.change.began = v.change.began.Add(-d)
		for n, at := range v.change.earlier {
			v.change.earlier[n] = at.Add(-d)
		}
	}
}
