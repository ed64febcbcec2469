package ec2

import (
	"cmp"
	"net/http"
	"slices"
	"time"
)

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

// images are the AMIs.
type images struct {
	*base
	snapshots *snapshots
	plan      *accountPlan

	all []Image
}

// All are those that there are.
func (m *images) All() []Image {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

// describeImages shows an image that was just registered as pending once.
func (m *images) describeImages(r *request) (any, error) {
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
	for n, i := range m.all {
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
			m.all[n].fresh = false
		}
	}
	return paged(r, "imagesSet", m.unasked(r, len(all)), all, func(i imageXML) string { return i.ID }), nil
}

// hides reports whether DescribeImages leaves out an image that its owner has deprecated, or shares no more. Its
// owner sees what is deprecated, as do those who name its ID, or ask for what is deprecated. Sources: EC2 API
// reference, "DescribeImages"; https://github.com/hashicorp/packer-plugin-amazon/issues/261.
func (m *images) hides(i Image, ids []string, deprecated bool) bool {
	since, err := time.Parse(time.RFC3339, i.Deprecated)
	old := err == nil && !m.model.Now().Before(since)
	own := i.Owner == "self" || i.Owner == m.cfg.Account
	return i.Withdrawn && !i.Listed || old && !own && !deprecated && !slices.Contains(ids, i.ID)
}

// checkImages refuses IDs of images that there are not, or not for this account.
func (m *images) checkImages(ids []string) error {
	for _, id := range ids {
		if !slices.ContainsFunc(m.all, func(i Image) bool { return i.ID == id && !m.hides(i, ids, true) }) {
			return bad("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
		}
	}
	return nil
}

// mayUse refuses a launch of an image that the account may not use.
func (m *images) mayUse(i Image) error {
	switch p := m.plan.currentPlan(); {
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

// imageTags are those of an image of the account's own. Tags of others' images are not shared with it. Sources: Service Authorization
// Reference, "Actions, resources, and condition keys for Amazon EC2", RunInstances (image: aws:ResourceTag); EC2 User Guide, "Share an
// AMI with specific AWS accounts".
func (m *images) imageTags(id string) map[string]string {
	for _, i := range m.All() {
		if i.ID == id && (i.Owner == "self" || i.Owner == m.cfg.Account) {
			return i.Tags
		}
	}
	return nil
}
