package ec2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// deviceName is what EC2 takes for a volume that is not the root. Source: EC2 User Guide,
// "Device names for volumes on Amazon EC2 instances", of HVM.
var deviceName = regexp.MustCompile(`^/dev/(sd[b-z]|xvd[b-z]|xvd[a-d][a-z])$`)

// attaching attaches volumes to instances, and detaches them.
type attaching struct {
	*base
	volumes *volumes
}

func (m *attaching) attachVolume(r *request) (any, error) {
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
	err := m.volumes.touch(r, sim.KindAttachDisk, func(now time.Time, living map[string]sim.Instance) error {
		v, err := m.volumes.volumeOf(id, now)
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
	if failed := m.volumes.behind(r, made.ID != "", attach); failed != nil {
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
func (m *attaching) undo(made Volume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes.all {
		if v.ID == made.ID && v.Instance == made.Instance {
			v.Instance, v.Device = "", ""
		}
	}
}

// attachable refuses an attachment as EC2 does. It is called with mu held.
func (m *attaching) attachable(v *volume, i sim.Instance, device string, now time.Time) error {
	has := 0
	for _, other := range m.volumes.all {
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
func (m *attaching) mostVolumes(instanceType string) int {
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
func (m *attaching) mayMove(r *request, id, instance string) error {
	if unknown := m.model.Unknown(instance); len(unknown) > 0 {
		return m.model.Arrive(r.ctx, sim.KindAttachDisk, notFound(unknown), instance)
	}
	if err := m.may(r, "ec2:"+r.action, m.arn("instance/"+instance), tagged("ResourceTag", m.model.TagsOf(instance))); err != nil {
		return err
	}
	return m.volumes.mayTouchVolume(r, id)
}

func (m *attaching) detachVolume(r *request) (any, error) {
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
	err := m.volumes.touch(r, sim.KindDetachDisk, func(now time.Time, _ map[string]sim.Instance) error {
		v, err := m.volumes.volumeOf(id, now)
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
	err = errors.Join(err, m.volumes.behind(r, done, func(ctx context.Context, d cloudmodel.Disks) error {
		return d.Detach(ctx, id, instance)
	}))
	if err != nil {
		return nil, err
	}
	answer.RequestID = requestID
	return answer, nil
}
