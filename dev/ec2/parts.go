package ec2

import (
	"strings"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// mappingXML is a volume that an instance has.
type mappingXML struct {
	Device string `xml:"deviceName"`
	Volume string `xml:"ebs>volumeId"`
	Status string `xml:"ebs>status"`
	At     string `xml:"ebs>attachTime"`
	Delete bool   `xml:"ebs>deleteOnTermination"`
}

// rootVolume is the ID of an instance's root disk, which is not among the model's volumes.
func rootVolume(instance string) string { return "vol-" + strings.TrimPrefix(instance, "i-") }

// mappings are the root disk of an instance and the volumes that are attached to it. EC2 shows no root disk while an instance is
// pending. Sources: aws/aws-sdk-php#2804, kubernetes-sigs/cluster-api-provider-aws#1565; hashicorp/packer#9480 asks again.
func (m *Model) mappings(i sim.Instance, l *launch) []mappingXML {
	var all []mappingXML
	if l.image.RootDevice != "" && i.State != cloud.Pending { // without a root device nobody called RunInstances for it
		all = append(all, mappingXML{l.image.RootDevice, rootVolume(i.ID), "attached", wireTime(i.Launched), true})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		if v.Instance == i.ID {
			all = append(all, mappingXML{v.Device, v.ID, "attached", wireTime(v.attached), false})
		}
	}
	return all
}

// PartTags are the tags of the root disks and network interfaces of all instances, by ID: those of the launch, each kind's own,
// and those that were written later.
func (m *Model) PartTags() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, i := range m.sim.History() {
		l := m.launchOf(i)
		if l.image.RootDevice == "" { // nobody called RunInstances for it: the machines behind the model have its tags
			all[interfaceID(i.ID)] = i.Tags
			continue
		}
		all[rootVolume(i.ID)], all[interfaceID(i.ID)] = l.volumeTags, l.interfaceTags
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, more := range m.partTags {
		all[id] = with(all[id], more)
	}
	return all
}

// isPart says that an ID is of the root disk or the network interface of an instance that has not ended, or of an interface that
// outlived one. A root disk is unknown for a step, as any volume, also where its instance shows it: EC2 may describe a resource
// some time before CreateTags knows it. Source: aws/aws-sdk-ruby#1198, which is of instances; no source says it of volumes.
func (m *Model) isPart(id string) bool {
	for _, i := range m.sim.Truth() {
		if id == rootVolume(i.ID) {
			return !m.Now().Before(i.Launched.Add(m.cfg.VolumeStep))
		}
	}
	for _, p := range m.sim.PartsNow() {
		if id == p.ID {
			return true
		}
	}
	return false
}
