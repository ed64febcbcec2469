package ec2

import (
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud/sim"
)

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

func (m *volumes) describeVolumes(r *request) (any, error) {
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
		for _, v := range m.all {
			if m.hidden || !v.shows(now, m.cfg.VolumeStep) || len(ids) > 0 && !slices.Contains(ids, v.ID) {
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
