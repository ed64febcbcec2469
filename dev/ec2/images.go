package ec2

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud/sim"
)

// imageName is what an image may be called. Source: EC2 API reference, RegisterImage.
var imageName = regexp.MustCompile(`^[A-Za-z0-9()\[\]. /\-'@_]{3,128}$`)

type imageXML struct {
	ID           string           `xml:"imageId"`
	Name         string           `xml:"name"`
	Owner        string           `xml:"imageOwnerId"`
	State        string           `xml:"imageState"`
	Created      string           `xml:"creationDate"`
	Architecture string           `xml:"architecture"`
	BootMode     string           `xml:"bootMode,omitempty"`
	ENA          bool             `xml:"enaSupport"`
	IMDS         string           `xml:"imdsSupport,omitempty"`
	RootDevice   string           `xml:"rootDeviceName"`
	Deprecated   string           `xml:"deprecationTime,omitempty"`
	Free         bool             `xml:"freeTierEligible"`
	Devices      []imageDeviceXML `xml:"blockDeviceMapping>item"`
	Tags         []tagXML         `xml:"tagSet>item"`
}

type imageDeviceXML struct {
	Name     string `xml:"deviceName"`
	GiB      int    `xml:"ebs>volumeSize"`
	Snapshot string `xml:"ebs>snapshotId,omitempty"`
	Ends     bool   `xml:"ebs>deleteOnTermination"`
}

// Images are all that there are.
func (m *Model) Images() []Image {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.images)
}

// describeImages shows an image that was just registered as pending once.
func (m *Model) describeImages(r *request) (any, error) {
	// Nobody but the account itself may launch what it has.
	owners, users := r.texts("Owner"), r.texts("ExecutableBy")
	ids, deprecated := r.texts("ImageId"), r.flag("IncludeDeprecated")
	wanted := r.filters("image-id", "name", "state", "tag:", "tag-key", "architecture")
	if err := m.one(r); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.checkImages(ids); err != nil {
		return nil, err
	}
	var all []imageXML
	for n, i := range m.images {
		if m.hides(i, ids, deprecated) || len(ids) > 0 && !slices.Contains(ids, i.ID) {
			continue
		}
		owner := i.Owner
		if owner == m.cfg.Account {
			owner = "self"
		}
		if len(users) > 0 && !slices.Contains(users, "self") {
			continue
		}
		if len(owners) > 0 && !slices.Contains(owners, owner) && !slices.Contains(owners, i.Owner) {
			continue
		}
		state := "available"
		if i.fresh {
			state = "pending"
		}
		x := imageXML{
			ID:           i.ID,
			Name:         i.Name,
			Owner:        i.Owner,
			State:        state,
			Created:      i.Created,
			Architecture: cmp.Or(i.Architecture, "x86_64"),
			BootMode:     i.BootMode,
			ENA:          i.ENA,
			IMDS:         i.IMDS,
			RootDevice:   i.RootDevice,
			Deprecated:   i.Deprecated,
			Free:         !i.Paid && !i.CalledPaid,
			Devices:      []imageDeviceXML{{i.RootDevice, i.GiB, i.Snapshot, true}},
			Tags:         tagSet(i.Tags),
		}
		if i.Further != "" {
			x.Devices = append(x.Devices, imageDeviceXML{i.Further, i.GiB, "", i.Ends})
		}
		if wanted.match(func(name string) []string {
			switch name {
			case "image-id":
				return []string{x.ID}
			case "name":
				return []string{x.Name}
			case "state":
				return []string{x.State}
			case "architecture":
				return []string{x.Architecture}
			}
			return tagValues(i.Tags, name)
		}) {
			all = append(all, x)
			m.images[n].fresh = false
		}
	}
	return paged(r, "imagesSet", m.unasked(r, len(all)), all, func(i imageXML) string { return i.ID }), nil
}

// hides reports whether DescribeImages leaves out an image that its owner has deprecated, or shares no more. Its
// owner sees what is deprecated, as do those who name its ID, or ask for what is deprecated. Sources: EC2 API
// reference, "DescribeImages"; https://github.com/hashicorp/packer-plugin-amazon/issues/261.
func (m *Model) hides(i Image, ids []string, deprecated bool) bool {
	since, err := time.Parse(time.RFC3339, i.Deprecated)
	old := err == nil && !m.Now().Before(since)
	own := i.Owner == "self" || i.Owner == m.cfg.Account
	return i.Withdrawn && !i.Listed || old && !own && !deprecated && !slices.Contains(ids, i.ID)
}

// checkImages refuses IDs of images that there are not, or not for this account.
func (m *Model) checkImages(ids []string) error {
	for _, id := range ids {
		if !slices.ContainsFunc(m.images, func(i Image) bool { return i.ID == id && !m.hides(i, ids, true) }) {
			return bad("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
		}
	}
	return nil
}

// mayUse refuses a launch of an image that the account may not use.
func (m *Model) mayUse(i Image) error {
	switch p := m.currentPlan(); {
	// Source: https://github.com/Orange-Cyberdefense/GOAD/issues/304, the status included.
	case i.Withdrawn:
		return bad("AuthFailure", "Not authorized for images: [%s]", i.ID)
	// Source: https://github.com/awslabs/harmonix/issues/22, the status included.
	case i.Product != "":
		return &apiError{http.StatusUnauthorized, "OptInRequired", "In order to use this AWS Marketplace product you need to accept terms and" +
			" subscribe. To do so please visit https://aws.amazon.com/marketplace/pp?sku=" + i.Product}
	// Source: https://github.com/bitnami/vms/issues/1838, which lacks the code.
	case p.Free && i.Paid:
		return bad("InvalidParameterCombination", "The specified image is not eligible for Free Tier. For a list of Free Tier images, run"+
			" 'describe-images' with the filter 'free-tier-eligible=true'.")
	}
	return nil
}

// unasked is the most of a page of a list that has pages only where they are asked for.
func (m *Model) unasked(r *request, all int) int {
	if r.has("MaxResults") {
		return m.cfg.PageSize
	}
	return all
}

type registerXML struct {
	RequestID string `xml:"requestId"`
	ID        string `xml:"imageId"`
}

// registerImage makes an image of a snapshot of a root disk.
func (m *Model) registerImage(r *request) (any, error) {
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
	i.Tags = m.tagSpecifications(r.form, "image", "snapshot")["image"]
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
	s := m.snapshots[i.Snapshot]
	switch {
	case s == nil:
		return nil, bad("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", i.Snapshot)
	case s.State != "completed":
		return nil, bad("IncorrectState", "Snapshot is in invalid state - %s", s.State)
	case i.GiB != 0 && i.GiB < s.GiB:
		return nil, bad("InvalidBlockDeviceMapping", "Volume of size %dGB is smaller than snapshot, expect size >= %dGB", i.GiB, s.GiB)
	case slices.ContainsFunc(m.images, func(o Image) bool { return o.Name == i.Name && o.Owner == i.Owner }):
		return nil, bad("InvalidAMIName.Duplicate", "AMI name %s is already in use", i.Name)
	}
	m.made++
	i.ID, i.GiB, i.Created = fmt.Sprintf("ami-%017x", m.made), cmp.Or(i.GiB, s.GiB), wireTime(m.Now())
	m.images = append(m.images, i)
	return registerXML{requestID, i.ID}, nil
}

// mayRegister asks the policy about what the image is made of, and its tags.
func (m *Model) mayRegister(r *request, i Image) error {
	resource := m.publicARN("image/*")
	if err := m.may(r, "ec2:RegisterImage", resource, tagged("RequestTag", i.Tags)); err != nil {
		return err
	}
	if err := m.may(r, "ec2:RegisterImage", m.snapshotARN(i.Snapshot), tagged("ResourceTag", m.snapshotTags(i.Snapshot))); err != nil {
		return err
	}
	if len(i.Tags) > 0 {
		about := tagged("RequestTag", i.Tags)
		about["ec2:CreateAction"] = []string{"RegisterImage"}
		if err := m.may(r, "ec2:CreateTags", resource, about); err != nil {
			return err
		}
	}
	return m.Arrive(r.ctx, sim.KindCatalogue, nil)
}

// imageTags are those of an image of the account's own. Tags of others' images are not shared with it. Sources: Service Authorization
// Reference, "Actions, resources, and condition keys for Amazon EC2", RunInstances (image: aws:ResourceTag); EC2 User Guide, "Share an
// AMI with specific AWS accounts".
func (m *Model) imageTags(id string) map[string]string {
	for _, i := range m.Images() {
		if i.ID == id && (i.Owner == "self" || i.Owner == m.cfg.Account) {
			return i.Tags
		}
	}
	return nil
}

// deregisterImage leaves the instances of the image and its snapshot alone.
func (m *Model) deregisterImage(r *request) (any, error) {
	id := r.text("ImageId")
	if err := r.done(); err != nil {
		return nil, err
	}
	var tags map[string]string
	for _, i := range m.Images() {
		if i.ID == id {
			tags = i.Tags
		}
	}
	if err := m.may(r, "ec2:DeregisterImage", m.publicARN("image/"+id), tagged("ResourceTag", tags)); err != nil {
		return nil, err
	}
	if err := m.Arrive(r.ctx, sim.KindCatalogue, nil); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := slices.IndexFunc(m.images, func(i Image) bool { return i.ID == id })
	if n < 0 {
		return nil, bad("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
	}
	if owner := m.images[n].Owner; owner != "self" && owner != m.cfg.Account {
		return nil, bad("AuthFailure", "Not authorized for image:%s", id)
	}
	m.images = slices.Delete(m.images, n, n+1)
	return doneXML{requestID, true}, nil
}
