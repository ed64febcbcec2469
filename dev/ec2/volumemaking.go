package ec2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud/sim"
)

// mostGiB are the largest volumes of each kind. Source: EBS User Guide, "Amazon EBS volume types".
var mostGiB = map[string]int{"gp3": 65536, "gp2": 16384}

// What a gp3 volume may have. Source: EBS User Guide, "General Purpose SSD volumes".
const leastIOPS, mostIOPS, iopsPerGiB = 3000, 80000, 500

// volumeMaking makes volumes, and deletes them.
type volumeMaking struct {
	*base
	networks *networks
	plan     *accountPlan
	volumes  *volumes
}

func (m *volumeMaking) createVolume(r *request) (any, error) {
	v := &volume{Volume: Volume{
		Zone:      r.text("AvailabilityZone"),
		Kind:      cmp.Or(oneOf(r.form, "VolumeType", "gp3", "gp2"), "gp2"),
		GiB:       r.number("Size"),
		Encrypted: r.flag("Encrypted"),
		Tags:      r.tagSpecifications("volume")["volume"],
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
	if !slices.ContainsFunc(m.networks.Subnets(), func(s Subnet) bool { return s.Zone == v.Zone }) {
		return nil, m.model.Arrive(r.ctx, sim.KindCreateDisk, bad("InvalidZone.NotFound", "The zone '%s' does not exist.", v.Zone))
	}
	if err := m.mayMakeVolume(r, v.Tags); err != nil {
		return nil, err
	}
	if dry {
		return nil, dryRun
	}
	var answer volumeXML
	has, plan := m.plan.rootGiB()+m.plan.volumeGiB(), m.plan.currentPlan()
	err := m.volumes.touch(r, sim.KindCreateDisk, func(now time.Time, _ map[string]sim.Instance) error {
		// EC2 counts first, also what the token has made. Source: https://github.com/kubernetes-sigs/aws-ebs-csi-driver,
		// pkg/cloud/cloud.go, at VolumeLimitExceeded.
		if err := plan.storage(has + v.GiB); err != nil {
			return err
		}
		for _, before := range m.volumes.all {
			switch {
			case v.token == "" || before.token != v.token:
				continue
			case before.call != v.call:
				return bad("IdempotentParameterMismatch", "The request uses the same client token as a previous, but non-identical request.")
			}
			v = before // also one that was deleted since
		}
		if v.ID == "" {
			if v.created, v.fate = now, m.volumes.fate; v.Encrypted && !m.mayUseKey(r, key, "ec2", volumeRights) {
				v.fate = FateError
			}
			m.volumes.addVolume(v)
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
func (m *volumeMaking) mayMakeVolume(r *request, set map[string]string) error {
	all, about := m.arn("volume/*"), tagged("RequestTag", set)
	if err := m.may(r, "ec2:CreateVolume", all, about); err != nil || len(set) == 0 {
		return err
	}
	about["ec2:CreateAction"] = []string{"CreateVolume"}
	return m.may(r, "ec2:CreateTags", all, about)
}

func (m *volumeMaking) deleteVolume(r *request) (any, error) {
	id := r.named()
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.volumes.mayTouchVolume(r, id); err != nil {
		return nil, err
	}
	done := false
	err := m.volumes.touch(r, sim.KindDeleteDisk, func(now time.Time, _ map[string]sim.Instance) error {
		v, err := m.volumes.volumeOf(id, now)
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
	if err := errors.Join(err, m.volumes.behind(r, done, remove)); err != nil {
		return nil, err
	}
	return doneXML{requestID, true}, nil
}
