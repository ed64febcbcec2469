package ec2

// Plan is what EC2 sells to the account.
type Plan struct {
	// Free says that the account is on AWS' Free plan.
	Free bool
	// Eligible are the types that the Free plan has. Accounts on the Paid plan are told them, too.
	Eligible []string
	// Sold is how a type is sold: as on-demand, spot or capacity-block. A type that is not here is sold
	// on demand and as spot.
	Sold map[string][]string
	// MostGiB is the quota of all gp3 volumes together, root disks included; none when 0. EC2 counts it in TiB.
	MostGiB int
}

// accountPlan is what EC2 sells to the account, and how much it has of that.
type accountPlan struct {
	*base
	launched *launched
	volumes  *volumes

	sold Plan
}

// currentPlan returns the plan as it is now.
func (m *accountPlan) currentPlan() Plan {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sold
}

// soldAs returns how a type is sold, in EC2's words.
func (p Plan) soldAs(instanceType string) []string {
	if as := p.Sold[instanceType]; as != nil {
		return as
	}
	return []string{"on-demand", "spot"}
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
func (m *accountPlan) rootGiB() (gib int) {
	for _, i := range m.sim.Truth() {
		for _, d := range m.launched.launchOf(i).devices {
			gib += d.GiB
		}
	}
	return gib
}

// volumeGiB is how large all volumes are.
func (m *accountPlan) volumeGiB() (gib int) {
	for _, v := range m.volumes.All() {
		gib += v.GiB
	}
	return gib
}
