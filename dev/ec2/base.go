package ec2

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/sim"
)

// base is what all areas of the model share: its configuration, the machines, and the lock of all that it keeps.
type base struct {
	model *cloudmodel.Model

	cfg Config
	sim *sim.Cloud // the Machines
	key [32]byte   // signs the tokens of the metadata service, and seals refusals

	// mu guards what the areas keep. Machines are called under no lock of the model's own: what they call back, such as effects of calls,
	// takes mu while the machines are locked.
	mu   sync.Mutex
	made int // groups, images, snapshots, volumes, file systems, mount targets and associations, ever
}

// partition is the account's, by its region (AWS Fault Isolation Boundaries, "Partitions"), and
// the name of EC2 in it as a service that roles are passed to.
func (m *base) partition() (name, service string) {
	switch {
	case strings.HasPrefix(m.cfg.Region, "cn-"):
		return "aws-cn", "ec2.amazonaws.com.cn"
	case strings.HasPrefix(m.cfg.Region, "us-gov-"):
		return "aws-us-gov", "ec2.amazonaws.com"
	}
	return "aws", "ec2.amazonaws.com"
}

// arn is that of a resource of EC2.
func (m *base) arn(resource string) string {
	return m.arnOf("ec2", m.cfg.Region, m.cfg.Account, resource)
}

// publicARN is that of a resource of EC2 which may be another account's.
func (m *base) publicARN(resource string) string { return m.arnOf("ec2", m.cfg.Region, "", resource) }

func (m *base) arnOf(service, region, account, resource string) string {
	partition, _ := m.partition()
	return strings.Join([]string{"arn", partition, service, region, account, resource}, ":")
}

func (m *base) snapshotARN(id string) string { return m.publicARN("snapshot/" + id) }

// callerARN is who calls, as far as the model tells callers apart.
func (m *base) callerARN() string { return m.arnOf("iam", "", m.cfg.Account, "user/kip") }

// may refuses an action on a resource that the caller's policy does not allow, or the organization denies.
func (m *base) may(r *request, action, resource string, about map[string][]string) error {
	about = maps.Clone(about)
	if about == nil {
		about = map[string][]string{}
	}
	about["aws:RequestedRegion"] = []string{m.cfg.Region}
	forbidden := m.cfg.Organization != nil && m.cfg.Organization.denies(action, resource, about)
	if !forbidden && (r.policy == nil || r.policy.allows(action, resource, about)) {
		return nil
	}
	m.model.CountRefused(r.action)
	return &apiError{http.StatusForbidden, "UnauthorizedOperation", fmt.Sprintf("You are not authorized to perform this operation. "+
		"The caller is not authorized to perform: %s on resource: %s", action, resource) + m.encoded(r, action, resource, about)}
}

// tagged is the context of tags, in a request or on a resource.
func tagged(of string, tags map[string]string) map[string][]string {
	about := map[string][]string{}
	for k, v := range tags {
		about["aws:"+of+"/"+k] = []string{v}
		if of == "ResourceTag" {
			about["ec2:ResourceTag/"+k] = []string{v}
		}
	}
	if of == "RequestTag" {
		about["aws:TagKeys"] = sortedKeys(tags)
	}
	return about
}

// describe lets a describing call of a kind arrive, which no policy limits to some resources.
func (m *base) describe(r *request, kind sim.Kind) error {
	if err := m.may(r, "ec2:"+r.action, "*", nil); err != nil {
		return err
	}
	return m.model.Arrive(r.ctx, kind, nil)
}

// one reads the rest of a describing call, and lets it arrive.
func (m *base) one(r *request) error { return m.listing(r, sim.KindCatalogue) }

// listing does so with a call of that kind.
func (m *base) listing(r *request, kind sim.Kind) error {
	r.number("MaxResults")
	r.text("NextToken")
	if err := r.done(); err != nil {
		return err
	}
	return m.describe(r, kind)
}

// unasked is the most of a page of a list that has pages only where they are asked for.
func (m *base) unasked(r *request, all int) int {
	if r.has("MaxResults") {
		return m.cfg.PageSize
	}
	return all
}

// take lets a call arrive. Its effect has mu, and knows which instances there are.
func (m *base) take(r *request, kind sim.Kind, effect func(living map[string]sim.Instance) error) error {
	living := m.model.Living() // not within the effect, which must not ask
	return m.sim.Take(r.ctx, sim.Call{Kind: kind}, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		return effect(living)
	})
}

// blindZones are those with a service disruption, and whether their network interfaces are hidden as well.
func (m *base) blindZones() (zones []string, hidden bool) {
	// Change is how the knobs are read, too: it never fails where nothing changes.
	_ = m.sim.Change(func(k *sim.Knobs) { zones, hidden = slices.Clone(k.BlindZones), k.HidesBlindOwned })
	return zones, hidden
}

func (m *base) vCPUs(instanceType string) int64 {
	all := m.cfg.Sim.Catalogue
	n := slices.IndexFunc(all, func(t catalog.InstanceType) bool { return t.Name == instanceType })
	if n < 0 {
		return 0
	}
	return all[n].MilliCPU / 1000
}

// prefixOf is the /28 of a machine: the sixteenfold of its place among the addresses of
// pods, in the network of Config.Pods.
func (m *base) prefixOf(pod netip.Addr) netip.Prefix {
	base, own, first := m.cfg.Sim.PodCIDR.Masked().Addr().As4(), pod.As4(), m.cfg.Pods.Masked().Addr().As4()
	number := func(b [4]byte) uint32 { return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]) }
	n := number(first) + (number(own)-number(base))*16
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), 28)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
