package ec2

import (
	"slices"

	"github.com/elotl/kip/internal/cloud"
)

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

// currentPlan returns the plan as it is now.
func (m *Model) currentPlan() Plan {
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

// sells refuses a launch of what the account cannot buy. A dry run tells nothing of that.
func (m *Model) sells(l *launch, spec cloud.LaunchSpec, most int) error {
	p, as := m.currentPlan(), "on-demand"
	if spec.Spot() {
		as = "spot"
	}
	gib := 0
	for _, d := range l.devices {
		gib += d.GiB * most
	}
	switch {
	// Source: https://github.com/LinkedInLearning/learning-terraform-3087701/issues/345.
	case p.Free && !slices.Contains(p.Eligible, spec.InstanceType):
		return bad("InvalidParameterCombination", "The specified instance type is not eligible for Free Tier. For a list of Free Tier"+
			" instance types, run 'describe-instance-types' with the filter 'free-tier-eligible=true'.")
	// Source: https://github.com/terraform-aws-modules/terraform-aws-ec2-instance/pull/404, of a Capacity Block that is
	// used on demand. No source says what EC2 answers of a type without that block.
	case !l.block && !slices.Contains(p.soldAs(spec.InstanceType), as):
		return bad("InvalidParameterValue", "The market type (purchasing) option is not valid. Choose a different market type and try again.")
	}
	return p.storage(m.rootGiB() + m.volumeGiB() + gib)
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
