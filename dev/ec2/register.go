package ec2

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"github.com/elotl/kip/internal/cloud/sim"
)

// imageName is what an image may be called. Source: EC2 API reference, RegisterImage.
var imageName = regexp.MustCompile(`^[A-Za-z0-9()\[\]. /\-'@_]{3,128}$`)

type registerXML struct {
	RequestID string `xml:"requestId"`
	ID        string `xml:"imageId"`
}

// registerImage makes an image of a snapshot of a root disk.
func (m *images) registerImage(r *request) (any, error) {
	i := Image{
		Name:         r.text("Name"),
		Owner:        "self",
		Architecture: cmp.Or(oneOf(r.form, "Architecture", "i386", "x86_64", "arm64", "x86_64_mac", "arm64_mac"), "i386"),
		BootMode:     oneOf(r.form, "BootMode", "legacy-bios", "uefi", "uefi-preferred"),
		IMDS:         oneOf(r.form, "ImdsSupport", "v2.0"),
		ENA:          r.flag("EnaSupport"),
		RootDevice:   r.text("RootDeviceName"),
		fresh:        true,
	}
	if d := r.text("Description"); len(d) > 255 {
		r.bad("InvalidParameterValue", "The description has %d characters", len(d))
	}
	hardware := cmp.Or(oneOf(r.form, "VirtualizationType", "hvm", "paravirtual"), "paravirtual")
	i.Tags = r.tagSpecifications("image", "snapshot")["image"]
	devices := r.each("BlockDeviceMapping")
	for _, d := range devices {
		e := d.at("Ebs")
		e.flag("DeleteOnTermination")
		oneOf(e, "VolumeType", "gp2", "gp3")
		if name := d.text("DeviceName"); name != i.RootDevice {
			r.bad("InvalidBlockDeviceMapping", "The model has images of a root disk only, not of %s", name)
		}
		i.Snapshot, i.GiB = e.text("SnapshotId"), e.number("VolumeSize")
	}
	switch {
	case !imageName.MatchString(i.Name):
		r.bad("InvalidAMIName.Malformed", "AMI names must be between 3 and 128 characters long, and may contain letters, numbers and ()[] ./-'@_")
	case i.RootDevice == "" || len(devices) != 1 || i.Snapshot == "":
		r.bad("InvalidBlockDeviceMapping", "The root device '%s' needs a snapshot", i.RootDevice)
	case i.Architecture == "arm64" && (i.BootMode != "" && i.BootMode != "uefi" || hardware != "hvm"):
		r.bad("InvalidParameterCombination", "arm64 images boot by UEFI, as hvm")
	case hardware != "hvm" && (i.BootMode != "" || i.ENA):
		r.bad("InvalidParameterCombination", "Paravirtual images have neither a boot mode nor ENA")
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.mayRegister(r, i); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.snapshots.byID[i.Snapshot]
	switch {
	case s == nil:
		return nil, bad("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", i.Snapshot)
	case s.State != "completed":
		return nil, bad("IncorrectState", "Snapshot is in invalid state - %s", s.State)
	case i.GiB != 0 && i.GiB < s.GiB:
		return nil, bad("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot, expect size >= %dGB", i.GiB, s.GiB)
	case slices.ContainsFunc(m.all, func(o Image) bool { return o.Name == i.Name && o.Owner == i.Owner }):
		return nil, bad("InvalidAMIName.Duplicate", "AMI name %s is already in use", i.Name)
	}
	m.made++
	i.ID, i.GiB, i.Created = fmt.Sprintf("ami-%017x", m.made), cmp.Or(i.GiB, s.GiB), wireTime(m.model.Now())
	m.all = append(m.all, i)
	return registerXML{requestID, i.ID}, nil
}

// mayRegister asks the policy about what the image is made of, and its tags.
func (m *images) mayRegister(r *request, i Image) error {
	resource := m.publicARN("image/*")
	if err := m.may(r, "ec2:RegisterImage", resource, tagged("RequestTag", i.Tags)); err != nil {
		return err
	}
	if err := m.may(r, "ec2:RegisterImage", m.snapshotARN(i.Snapshot),
		tagged("ResourceTag", m.snapshots.snapshotTags(i.Snapshot))); err != nil {
		return err
	}
	if len(i.Tags) > 0 {
		about := tagged("RequestTag", i.Tags)
		about["ec2:CreateAction"] = []string{"RegisterImage"}
		if err := m.may(r, "ec2:CreateTags", resource, about); err != nil {
			return err
		}
	}
	return m.model.Arrive(r.ctx, sim.KindCatalogue, nil)
}

// deregisterImage leaves the instances of the image and its snapshot alone.
func (m *images) deregisterImage(r *request) (any, error) {
	id := r.text("ImageId")
	if err := r.done(); err != nil {
		return nil, err
	}
	var tags map[string]string
	for _, i := range m.All() {
		if i.ID == id {
			tags = i.Tags
		}
	}
	if err := m.may(r, "ec2:DeregisterImage", m.publicARN("image/"+id), tagged("ResourceTag", tags)); err != nil {
		return nil, err
	}
	if err := m.model.Arrive(r.ctx, sim.KindCatalogue, nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := slices.IndexFunc(m.all, func(i Image) bool { return i.ID == id })
	if n < 0 {
		return nil, bad("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
	}
	if owner := m.all[n].Owner; owner != "self" && owner != m.cfg.Account {
		return nil, bad("AuthFailure", "Not authorized for image:%s", id)
	}
	m.all = slices.Delete(m.all, n, n+1)
	return doneXML{requestID, true}, nil
}

func (m *images) deleteSnapshot(r *request) (any, error) {
	id := r.text("SnapshotId")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.may(r, "ec2:DeleteSnapshot", m.snapshotARN(id), tagged("ResourceTag", m.snapshots.snapshotTags(id))); err != nil {
		return nil, err
	}
	if err := m.model.Arrive(r.ctx, sim.KindCatalogue, nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.snapshots.byID[id] == nil {
		return nil, bad("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", id)
	}
	for _, i := range m.all {
		if i.Snapshot == id {
			return nil, bad("InvalidSnapshot.InUse", "The snapshot %s is currently in use by %s", id, i.ID)
		}
	}
	delete(m.snapshots.byID, id)
	return doneXML{requestID, true}, nil
}
