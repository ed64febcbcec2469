package ec2

// Plan is what EC2 sells to the account.
type Plan struct {
	// MostGiB is the quota of all gp3 volumes together, root disks included; none when 0. EC2 counts it in TiB.
	MostGiB int
}

// currentPlan returns the plan as it is now.
func (m *Model) currentPlan() Plan {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sold
}

// sells refuses a launch of what the account cannot buy. A dry run tells nothing of that.
func (m *Model) sells(l *launch, most int) error {
	gib := 0
	for _, d := range l.devices {
		gib += d.GiB * most
	}
	return m.currentPlan().storage(m.rootGiB() + m.volumeGiB() + gib)
}

// storage refuses to have so many GiB. Message: https://github.com/openshift/hive/pull/1946.
func (p Plan) storage(gib int) error {
	if p.MostGiB == 0 || gib <= p.MostGiB {
		return nil
	}
	return bad("VolumeLimitExceeded", "You have exceeded your maximum gp3 storage limit of %d GiB in this region. Please contact AWS"+
		" Support to request an Elastic Block Store service limit increase.", p.MostGiB)
}

// rootGiB is how large the root disks are of all instances that have not ended.
func (m *Model) rootGiB() (gib int) {
	for _, i := range m.sim.Truth() {
		for _, d := range m.launchOf(i).devices {
			gib += d.GiB
		}
	}
	return gib
}

// volumeGiB is how large all volumes are.
func (m *Model) volumeGiB() (gib int) {
	for _, v := range m.Volumes() {
		gib += v.GiB
	}
	return gib
}
