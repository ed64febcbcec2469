package ec2

// parts are the root disks and network interfaces of instances.
type parts struct {
	*base
	launched  *launched
	instances *instances

	tags map[string]map[string]string // that were written later, by ID
}

// Tags are the tags of the root disks and network interfaces of all instances, by ID: those of the launch, each kind's own,
// and those that were written later.
func (m *parts) Tags() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, i := range m.sim.History() {
		l := m.launched.launchOf(i)
		if l.image.RootDevice == "" { // nobody called RunInstances for it: the machines behind the model have its tags
			all[interfaceID(i.ID)] = i.Tags
			continue
		}
		all[rootVolume(i.ID)], all[interfaceID(i.ID)] = l.volumeTags, l.interfaceTags
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, more := range m.tags {
		all[id] = with(all[id], more)
	}
	return all
}

// isPart says that an ID is of the root disk or the network interface of an instance that has not ended, or of an interface that
// outlived one. A root disk is unknown for a step, as any volume, also where its instance shows it: EC2 may describe a resource
// some time before CreateTags knows it. Source: aws/aws-sdk-ruby#1198, which is of instances; no source says it of volumes.
func (m *parts) isPart(id string) bool {
	for _, i := range m.sim.Truth() {
		if id == rootVolume(i.ID) {
			return !m.model.Now().Before(i.Launched.Add(m.cfg.VolumeStep))
		}
	}
	for _, p := range m.sim.OwnedResources.OwnedNow() {
		if id == p.ID {
			return true
		}
	}
	return false
}
