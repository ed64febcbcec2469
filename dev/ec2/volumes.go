package ec2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
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

// FailVolumes lets the volumes that are made from now on have a fate.
func (m *Model) FailVolumes(fate Fate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fate = fate
}

// AgeVolumes lets the volumes that there are have been made earlier by d.
func (m *Model) AgeVolumes(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		v.created = v.created.Add(-d)
	}
}

type volumeXML struct {
	RequestID   string          `xml:"requestId,omitempty"`
	ID          string          `xml:"volumeId"`
	GiB         int             `xml:"size"`
	Zone        string          `xml:"availabilityZone"`
	Status      string          `xml:"status"`
	Created     string          `xml:"createTime"`
	Attachments []attachmentSet `xml:"attachmentSet>item"`
	Tags        []tagXML        `xml:"tagSet>item"`
	Kind        string          `xml:"volumeType"`
	Encrypted   bool            `xml:"encrypted"`
	MultiAttach bool            `xml:"multiAttachEnabled"`
}

// attachmentSet is an attachment of a volume, and the answer to AttachVolume and DetachVolume.
type attachmentSet struct {
	RequestID string `xml:"requestId,omitempty"`
	Volume    string `xml:"volumeId"`
	Instance  string `xml:"instanceId"`
	Device    string `xml:"device"`
	Status    string `xml:"status"`
	At        string `xml:"attachTime"`
	Delete    bool   `xml:"deleteOnTermination"`
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

func (v *volume) xml(now time.Time, step time.Duration) volumeXML {
	x := volumeXML{
		ID:        v.ID,
		GiB:       v.shownGiB(now, step),
		Zone:      v.Zone,
		Status:    v.status(now, step),
		Created:   wireTime(v.created),
		Tags:      tagSet(v.Tags),
		Kind:      v.Kind,
		Encrypted: v.Encrypted,

		MultiAttach: v.MultiAttach,
	}
	switch {
	case v.Instance != "":
		status := "attached"
		if now.Before(v.attached.Add(step)) {
			status = "attaching"
		}
		x.Attachments = []attachmentSet{v.attachment(v.Instance, status)}
	case v.leaving(now, step):
		x.Attachments = []attachmentSet{v.attachment(v.left, "detaching")}
	}
	return x
}

func (v *volume) attachment(instance, status string) attachmentSet {
	return attachmentSet{
		Volume:   v.ID,
		Instance: instance,
		Device:   v.Device,
		Status:   status,
		At:       wireTime(v.attached),
	}
}

// Volumes are those that exist, as they truly are.
func (m *Model) Volumes() (all []Volume) {
	living := m.Living()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free(living)
	for _, v := range m.volumes {
		if v.deleted.IsZero() && v.fate != FateNever {
			one := v.Volume
			one.Tags = maps.Clone(one.Tags)
			all = append(all, one)
		}
	}
	return all
}

// AddVolume makes a volume that somebody else has made, such as a driver of Kubernetes'.
func (m *Model) AddVolume(v Volume) (id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.addVolume(&volume{Volume: v})
}

// addVolume is called with mu held.
func (m *Model) addVolume(v *volume) (id string) {
	m.made++
	v.ID, v.Tags = fmt.Sprintf("vol-%017x", m.made), maps.Clone(v.Tags)
	m.volumes = append(m.volumes, v)
	return v.ID
}

// ForgetTokens lets the tokens of volumes be as good as new: EC2 does not say for how long
// it keeps them.
func (m *Model) ForgetTokens() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		v.token = ""
	}
}

// HideVolumes has descriptions show none of what there is, as they may for a while, or all of
// it again.
func (m *Model) HideVolumes(hide bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hideVolumes = hide
}

// free takes the volumes from the instances that have ended. It is called with mu held.
func (m *Model) free(living map[string]sim.Instance) {
	for _, v := range m.volumes {
		if _, lives := living[v.Instance]; v.Instance != "" && !lives {
			v.Instance, v.Device = "", ""
		}
	}
}

// touch lets a call about volumes arrive. Its effect has mu, and knows which instances there are.
func (m *Model) touch(r *request, kind sim.Kind, effect func(now time.Time, living map[string]sim.Instance) error) error {
	living := m.Living() // not within the effect, which must not ask
	now := m.Now()
	return m.sim.Take(r.ctx, sim.Call{Kind: kind}, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.free(living)
		return effect(now, living)
	})
}

// behind does with what stands behind a volume what a call has done with that, also where
// the answer to the call is lost.
func (m *Model) behind(r *request, done bool, do func(context.Context, cloudmodel.Disks) error) error {
	if m.cfg.Disks == nil || !done {
		return nil
	}
	return do(context.WithoutCancel(r.ctx), m.cfg.Disks)
}

// volumeOf returns a volume that calls know. It is called with mu held.
func (m *Model) volumeOf(id string, now time.Time) (*volume, error) {
	for _, v := range m.volumes {
		if v.ID == id && v.shows(now, m.cfg.VolumeStep) {
			return v, nil
		}
	}
	return nil, bad("InvalidVolume.NotFound", "The volume '%s' does not exist.", id)
}

// mayTouchVolume asks the policy about a volume, also one that calls do not know yet. One that is
// not there is nobody's.
func (m *Model) mayTouchVolume(r *request, id string) error {
	m.mu.Lock()
	n := slices.IndexFunc(m.volumes, func(v *volume) bool { return v.ID == id })
	var set map[string]string
	if n >= 0 {
		set = maps.Clone(m.volumes[n].Tags)
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

// mostGiB are the largest volumes of each kind. Source: EBS User Guide, "Amazon EBS volume types".
var mostGiB = map[string]int{"gp3": 65536, "gp2": 16384}

// What a gp3 volume may have. Source: EBS User Guide, "General Purpose SSD volumes".
const leastIOPS, mostIOPS, iopsPerGiB = 3000, 80000, 500

func (m *Model) createVolume(r *request) (any, error) {
	v := &volume{Volume: Volume{
		Zone:      r.text("AvailabilityZone"),
		Kind:      cmp.Or(oneOf(r.form, "VolumeType", "gp3", "gp2"), "gp2"),
		GiB:       r.number("Size"),
		Encrypted: r.flag("Encrypted"),
		Tags:      m.tagSpecifications(r.form, "volume")["volume"],
	}}
	iops, shared, dry := r.number("Iops"), r.flag("MultiAttachEnabled"), r.flag("DryRun")
	v.token = r.text("ClientToken")
	key := r.text("KmsKeyId")
	v.call = fmt.Sprint(v.Zone, v.Kind, v.GiB, v.Encrypted, iops, key, v.Tags) // maps are printed in the order of their keys
	switch {
	case shared:
		r.bad("InvalidParameterCombination", "Multi-Attach is only supported for volume types io1 and io2, not %s", v.Kind)
	case iops != 0 && v.Kind != "gp3":
		r.bad("InvalidParameterCombination", "The parameter iops is not supported for %s volumes.", v.Kind)
	case iops > mostIOPS:
		r.bad("InvalidParameterValue", "Volume iops of %d is too high; maximum is %d.", iops, mostIOPS)
	case iops != 0 && iops < leastIOPS:
		r.bad("InvalidParameterValue", "Volume iops of %d is too low; minimum is %d.", iops, leastIOPS)
	case iops > max(leastIOPS, iopsPerGiB*v.GiB):
		r.bad("InvalidParameterCombination", "Iops to volume size ratio of %d is too high; maximum is %d.", iops/max(1, v.GiB), iopsPerGiB)
	case v.GiB < 1 || v.GiB > mostGiB[v.Kind]:
		r.bad("InvalidParameterValue", "Volume of %dGiB is not of 1 to %dGiB, as those of type %s are", v.GiB, mostGiB[v.Kind], v.Kind)
	case len(v.token) > 64:
		r.bad("InvalidParameterValue", "The client token has more than 64 characters")
	case key != "" && !v.Encrypted:
		r.bad("InvalidParameterDependency", "The parameter KmsKeyId requires the parameter Encrypted to be set.")
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(m.Subnets(), func(s Subnet) bool { return s.Zone == v.Zone }) {
		return nil, m.Arrive(r.ctx, sim.KindCreateDisk, bad("InvalidZone.NotFound", "The zone '%s' does not exist.", v.Zone))
	}
	if err := m.mayMakeVolume(r, v.Tags); err != nil {
		return nil, err
	}
	if dry {
		return nil, dryRun
	}
	var answer volumeXML
	has, plan := m.rootGiB()+m.volumeGiB(), m.currentPlan()
	err := m.touch(r, sim.KindCreateDisk, func(now time.Time, _ map[string]sim.Instance) error {
		// EC2 counts first, also what the token has made. Source: https://github.com/kubernetes-sigs/aws-ebs-csi-driver,
		// pkg/cloud/cloud.go, at VolumeLimitExceeded.
		if err := plan.storage(has + v.GiB); err != nil {
			return err
		}
		for _, before := range m.volumes {
			switch {
			case v.token == "" || before.token != v.token:
				continue
			case before.call != v.call:
				return bad("IdempotentParameterMismatch", "The request uses the same client token as a previous, but non-identical request.")
			}
			v = before // also one that was deleted since
		}
		if v.ID == "" {
			if v.created, v.fate = now, m.fate; v.Encrypted && !m.mayUseKey(r, key, "ec2", volumeRights) {
				v.fate = FateError
			}
			m.addVolume(v)
		}
		answer = v.xml(now, m.cfg.VolumeStep)
		return nil
	})
	if err != nil {
		return nil, err
	}
	answer.RequestID = requestID
	return answer, nil
}

// mayMakeVolume asks the policy about a volume, and its tags.
func (m *Model) mayMakeVolume(r *request, set map[string]string) error {
	all, about := m.arn("volume/*"), tagged("RequestTag", set)
	if err := m.may(r, "ec2:CreateVolume", all, about); err != nil || len(set) == 0 {
		return err
	}
	about["ec2:CreateAction"] = []string{"CreateVolume"}
	return m.may(r, "ec2:CreateTags", all, about)
}

func (m *Model) deleteVolume(r *request) (any, error) {
	id := r.named()
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.mayTouchVolume(r, id); err != nil {
		return nil, err
	}
	done := false
	err := m.touch(r, sim.KindDeleteDisk, func(now time.Time, _ map[string]sim.Instance) error {
		v, err := m.volumeOf(id, now)
		if err != nil {
			return err
		}
		switch status := v.status(now, m.cfg.VolumeStep); status {
		case "in-use":
			return bad("VolumeInUse", "Volume %s is currently attached to %s", id, cmp.Or(v.Instance, v.left))
		case "creating":
			return bad("IncorrectState", "Volume %s is in the '%s' state", id, status)
		}
		if v.deleted.IsZero() {
			v.deleted = now
		}
		done = true
		return nil
	})
	remove := func(ctx context.Context, d cloudmodel.Disks) error { return d.Delete(ctx, id) }
	if err := errors.Join(err, m.behind(r, done, remove)); err != nil {
		return nil, err
	}
	return doneXML{requestID, true}, nil
}

func (m *Model) describeVolumes(r *request) (any, error) {
	ids := r.texts("VolumeId")
	wanted := r.filters("tag:", "tag-key", "volume-id", "status", "availability-zone", "attachment.instance-id")
	r.unpaged(ids, "volumesSet")
	r.number("MaxResults")
	r.text("NextToken")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.may(r, "ec2:DescribeVolumes", "*", nil); err != nil {
		return nil, err
	}
	var all []volumeXML
	err := m.touch(r, sim.KindListDisks, func(now time.Time, _ map[string]sim.Instance) error {
		for _, id := range ids {
			if _, err := m.volumeOf(id, now); err != nil {
				return err
			}
		}
		for _, v := range m.volumes {
			if m.hideVolumes || !v.shows(now, m.cfg.VolumeStep) || len(ids) > 0 && !slices.Contains(ids, v.ID) {
				continue
			}
			if x := v.xml(now, m.cfg.VolumeStep); wanted.match(x.valuesOf(v.Tags)) {
				all = append(all, x)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return paged(r, "volumeSet", m.cfg.PageSize, all, func(v volumeXML) string { return v.ID }), nil
}

// valuesOf are what a volume has for a filter.
func (x volumeXML) valuesOf(set map[string]string) func(name string) []string {
	return func(name string) []string {
		switch name {
		case "volume-id":
			return []string{x.ID}
		case "status":
			return []string{x.Status}
		case "availability-zone":
			return []string{x.Zone}
		case "attachment.instance-id":
			var all []string
			for _, a := range x.Attachments {
				all = append(all, a.Instance)
			}
			return all
		}
		return tagValues(set, name)
	}
}

// deviceName is what EC2 takes for a volume that is not the root. Source: EC2 User Guide,
// "Device names for volumes on Amazon EC2 instances", of HVM.
var deviceName = regexp.MustCompile(`^/dev/(sd[b-z]|xvd[b-z]|xvd[a-d][a-z])$`)

func (m *Model) attachVolume(r *request) (any, error) {
	id, instance, device := r.named(), r.text("InstanceId"), r.text("Device")
	if !deviceName.MatchString(device) {
		r.bad("InvalidParameterValue", "Value (%s) for parameter device is invalid. %s is not a valid EBS device name.", device, device)
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.mayMove(r, id, instance); err != nil {
		return nil, err
	}
	var answer attachmentSet
	var made Volume
	err := m.touch(r, sim.KindAttachDisk, func(now time.Time, living map[string]sim.Instance) error {
		v, err := m.volumeOf(id, now)
		if err != nil {
			return err
		}
		if err := m.attachable(v, living[instance], device, now); err != nil {
			return err
		}
		v.Instance, v.Device, v.attached, v.left = instance, device, now, ""
		made = v.Volume
		answer = v.xml(now, m.cfg.VolumeStep).Attachments[0]
		answer.Status = "attaching"
		return nil
	})
	attach := func(ctx context.Context, d cloudmodel.Disks) error { return d.Attach(ctx, made.disk()) }
	if failed := m.behind(r, made.ID != "", attach); failed != nil {
		m.undo(made)
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, err
	}
	answer.RequestID = requestID
	return answer, nil
}

// undo takes a volume back that its instance was not given.
func (m *Model) undo(made Volume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		if v.ID == made.ID && v.Instance == made.Instance {
			v.Instance, v.Device = "", ""
		}
	}
}

// attachable refuses an attachment as EC2 does. It is called with mu held.
func (m *Model) attachable(v *volume, i sim.Instance, device string, now time.Time) error {
	has := 0
	for _, other := range m.volumes {
		if i.ID == "" || other.Instance != i.ID && (other.left != i.ID || !other.leaving(now, m.cfg.VolumeStep)) {
			continue
		}
		has++
		if other.Device == device && other != v {
			return bad("InvalidParameterValue", "Invalid value '%s' for unixDevice. Attachment point %s is already in use", device, device)
		}
	}
	switch status := v.status(now, m.cfg.VolumeStep); {
	case status == "in-use":
		return bad("VolumeInUse", "%s is already attached to an instance", v.ID)
	case status != "available":
		return bad("IncorrectState", "%s is not 'available'.", v.ID)
	case i.State != cloud.Running:
		return bad("IncorrectState", "Instance '%s' is not 'running'.", i.ID)
	case i.Zone != v.Zone:
		return bad("InvalidVolume.ZoneMismatch", "The volume '%s' is not in the same availability zone as instance '%s'", v.ID, i.ID)
	case has >= m.mostVolumes(i.InstanceType):
		return bad("AttachmentLimitExceeded", "Instance '%s' has %d volumes attached, and its type takes no more", i.ID, has)
	}
	return nil
}

// mostVolumes are how many a type takes besides its root disk.
func (m *Model) mostVolumes(instanceType string) int {
	for _, t := range m.cfg.Sim.Catalogue {
		if t.Name == instanceType {
			most, _ := attachments(t)
			return int(most) - 1
		}
	}
	return 0
}

// attachments returns how many volumes a type takes, the root disk included, and how EC2 calls that limit. A shared
// one is of 28 for volumes, interfaces and the machine's own disks and accelerators; EC2 tells it without those, and
// without one interface. Source: https://github.com/kubernetes-sigs/aws-ebs-csi-driver, pkg/cloud/limits, which is
// made of EC2's answers: c5.large has 27, and g4dn.xlarge, with a GPU and a disk, 25. Types of the model have no disks.
func attachments(t catalog.InstanceType) (most int64, limit string) {
	if t.MaxDisks > 0 {
		return t.MaxDisks + 1, "dedicated"
	}
	most = 27
	for _, g := range t.GPUs {
		most -= g.Count
	}
	return most, "shared"
}

// mayMove refuses a call about a volume and an instance that the caller may not make, or that names
// an instance which is not there.
func (m *Model) mayMove(r *request, id, instance string) error {
	if unknown := m.Unknown(instance); len(unknown) > 0 {
		return m.Arrive(r.ctx, sim.KindAttachDisk, notFound(unknown), instance)
	}
	if err := m.may(r, "ec2:"+r.action, m.arn("instance/"+instance), tagged("ResourceTag", m.TagsOf(instance))); err != nil {
		return err
	}
	return m.mayTouchVolume(r, id)
}

func (m *Model) detachVolume(r *request) (any, error) {
	id, instance := r.named(), r.text("InstanceId")
	if r.flag("Force") {
		r.bad("InvalidParameterValue", "The model tears nothing off")
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.mayMove(r, id, instance); err != nil {
		return nil, err
	}
	var answer attachmentSet
	done := false
	err := m.touch(r, sim.KindDetachDisk, func(now time.Time, _ map[string]sim.Instance) error {
		v, err := m.volumeOf(id, now)
		switch {
		case err != nil:
			return err
		case v.Instance == "":
			return bad("IncorrectState", "Volume '%s' is in the '%s' state.", id, v.status(now, m.cfg.VolumeStep))
		case v.Instance != instance:
			return &apiError{
				http.StatusBadRequest, "InvalidAttachment.NotFound",
				fmt.Sprintf("The volume '%s' is not attached to instance '%s'.", id, instance),
			}
		}
		v.left, v.detached, v.Instance = v.Instance, now, ""
		answer, done = v.attachment(instance, "detaching"), true
		return nil
	})
	err = errors.Join(err, m.behind(r, done, func(ctx context.Context, d cloudmodel.Disks) error { return d.Detach(ctx, id, instance) }))
	if err != nil {
		return nil, err
	}
	answer.RequestID = requestID
	return answer, nil
}
