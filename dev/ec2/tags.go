package ec2

import (
	"cmp"
	"maps"
	"strings"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// tagging writes tags.
type tagging struct {
	*base
	groups *groups
	parts  *parts
}

// createTags adds to the tags of instances, their root disks and interfaces, and groups, or changes them.
func (m *tagging) createTags(r *request) (any, error) {
	ids, set := r.texts("ResourceId"), tags(r.form)
	if err := r.done(); err != nil {
		return nil, err
	}
	var instances []string
	for _, id := range ids {
		if strings.HasPrefix(id, "i-") {
			instances = append(instances, id)
		}
	}
	if unknown := m.model.Unknown(instances...); len(unknown) > 0 {
		return nil, m.model.Arrive(r.ctx, sim.KindTag, notFound(unknown), instances...)
	}
	for _, id := range ids {
		kind, has, unknown := m.taggable(id)
		if unknown != nil && (!m.cfg.RightsFirst || kind == "") {
			return nil, unknown
		}
		about := tagged("RequestTag", set)
		maps.Copy(about, tagged("ResourceTag", has))
		if err := cmp.Or(m.may(r, "ec2:CreateTags", m.arn(kind+"/"+id), about), unknown); err != nil {
			return nil, err
		}
	}
	var taggings []cloud.Tagging
	for _, id := range instances {
		taggings = append(taggings, cloud.Tagging{ID: id, Tags: set})
	}
	if err := m.sim.Tagger.Tag(r.ctx, taggings...).Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if n := m.groups.groupAt(id); n >= 0 {
			m.groups.all[n].Tags = with(m.groups.all[n].Tags, set)
		}
		if strings.HasPrefix(id, "vol-") || strings.HasPrefix(id, "eni-") {
			m.parts.tags[id] = with(m.parts.tags[id], set)
		}
	}
	return doneXML{requestID, true}, nil
}

// taggable says what kind of resource an ID is of, and which tags that has.
func (m *tagging) taggable(id string) (kind string, has map[string]string, err error) {
	switch prefix, _, _ := strings.Cut(id, "-"); prefix {
	case "i":
		return "instance", m.model.TagsOf(id), nil
	case "sg":
		g, there := m.groups.group(id)
		if !there {
			return "", nil, noGroup(id)
		}
		return "security-group", g.Tags, nil
	case "vol":
		if !m.parts.isPart(id) {
			return "volume", nil, bad("InvalidVolume.NotFound", "The volume '%s' does not exist.", id)
		}
		return "volume", m.parts.Tags()[id], nil
	case "eni":
		if !m.parts.isPart(id) {
			return "", nil, bad("InvalidNetworkInterfaceID.NotFound", "The networkInterface ID '%s' does not exist", id)
		}
		return "network-interface", m.parts.Tags()[id], nil
	}
	return "", nil, bad("InvalidID", "The ID '%s' is not valid: the model tags instances, their root disks and interfaces, and groups", id)
}

// with are tags with more of them, which win.
func with(tags, more map[string]string) map[string]string {
	all := maps.Clone(tags)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, more)
	return all
}
