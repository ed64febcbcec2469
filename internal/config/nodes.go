package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/placement"
)

// MaxNodes is how many virtual nodes one Kip has at most, and the greatest number in
// the name of one: the ClusterRole of deploy/ lists the names.
const MaxNodes = 64

// What stands for a list of nodes: one for all zones and one for each, or one for each zone, architecture and capacity type.
const (
	NodesZones = "zones"
	NodesAuto  = "auto"
)

// Launch types of a Node.
const (
	OnDemand  = "on-demand"
	Spot      = "spot"
	Dedicated = "dedicated"
)

var (
	nodeArchs       = []string{"amd64", "arm64"}
	nodeLaunchTypes = []string{OnDemand, Spot, Dedicated}
	taintEffects    = []string{
		string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute),
	}
	// kipLabels are those that Kip gives each virtual node, by what it is.
	kipLabels = []string{
		"type", corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
		"kubernetes.io/role", "karpenter.sh/capacity-type", "kip.elotl.co/controller", corev1.LabelNodeExcludeBalancers,
	}
)

// Problem is an *Error about a key of the file, or about the nearest one around it.
func (c *Config) Problem(key, format string, args ...any) error {
	return &Error{
		File:    c.at.file,
		Line:    c.at.of(key),
		Key:     key,
		Problem: fmt.Sprintf(format, args...),
	}
}

// AutoResources are those whose capacity Kip can find out, sorted.
var AutoResources = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceEphemeralStorage, corev1.ResourceMemory, corev1.ResourcePods,
}

// AutoIfNamed are extended resources and huge pages whose capacity Kip can find out if the configuration names them, sorted. auto for
// all resources leaves them out: machines with devices are dear, and who does not name huge pages has pods with them elsewhere.
var AutoIfNamed = slices.Sorted(slices.Values(slices.Concat(placement.DeviceNames(), placement.HugePageNames())))

// CapacityOf is what the scheduler may place on a virtual node, and the resources of which Kip finds that out: the list has
// what holds of them before it is known.
func (c *Config) CapacityOf(n Node) (all corev1.ResourceList, auto []corev1.ResourceName) {
	all = c.Kubelet.Capacity.DeepCopy()
	maps.Copy(all, n.Capacity.DeepCopy())
	for _, name := range slices.Concat(AutoResources, AutoIfNamed) {
		_, named := n.Capacity[name]
		if slices.Contains(n.AutoCapacity, name) || slices.Contains(c.Kubelet.AutoCapacity, name) && !named {
			auto = append(auto, name)
		}
	}
	return all, auto
}

// LabelsOf are those of a virtual node, but for Kip's own.
func (c *Config) LabelsOf(n Node) map[string]string {
	all := map[string]string{}
	maps.Copy(all, c.Kubelet.Labels)
	maps.Copy(all, n.Labels)
	return all
}

func (d *decoder) nodes(c *Config) {
	if c.Nodes != nil && len(c.Nodes) == 0 {
		d.bad("nodes", "the list is empty: want virtual nodes, auto, zones, or no such key, for one node")
	}
	if n := len(c.Nodes); n > MaxNodes {
		d.bad("nodes", "there are %d: want at most %d", n, MaxNodes)
	}
	if v, has := c.Kubelet.Labels[corev1.LabelTopologyZone]; has && (c.AutoNodes != "" || len(c.Nodes) > 0) {
		d.bad("kubelet.labels."+corev1.LabelTopologyZone, "%q is not valid: each of nodes says its own zone", v)
	}
	suffixes := map[int]int{}
	for i, n := range c.Nodes {
		key := fmt.Sprintf("nodes[%d]", i)
		if s := n.Suffix; s != nil {
			d.check(*s >= 0 && *s <= MaxNodes, key+".suffix", fmt.Sprint(*s), fmt.Sprintf("0 to %d", MaxNodes))
			if first, twice := suffixes[*s]; twice {
				d.bad(key+".suffix", "nodes[%d] has %d too: want another", first, *s)
			} else {
				suffixes[*s] = i
			}
		}
		d.words(key+".zones", n.Zones, nil)
		if in, zones := c.Cloud.hostZones(); zones != nil {
			for j, zone := range n.Zones {
				d.check(slices.Contains(zones, zone), fmt.Sprintf("%s.zones[%d]", key, j), zone,
					"one of "+in+": "+strings.Join(zones, ", "))
			}
		}
		d.words(key+".architectures", n.Architectures, nodeArchs)
		d.words(key+".launchTypes", n.LaunchTypes, nodeLaunchTypes)
		d.words(key+".instanceTypes", n.InstanceTypes, nil)
		d.labels(key+".labels", n.Labels)
		for _, name := range kipLabels {
			if v, has := n.Labels[name]; has {
				d.bad(key+".labels."+name, "%q is not valid: Kip sets this label by what the node is", v)
			}
		}
		d.taints(key+".taints", n.Taints)
		d.capacity(key+".capacity", n.Capacity)
		d.sameNode(c.Nodes[:i], key, n)
	}
}

// sameNode notes an entry that another before it is the same as.
func (d *decoder) sameNode(before []Node, key string, n Node) {
	for i, other := range before {
		same := inOrder(other)
		same.Suffix = n.Suffix
		switch {
		case reflect.DeepEqual(same, inOrder(n)):
			d.bad(key, "is the same as nodes[%d]: want one of them, or one that differs", i)
		case n.Suffix == nil && other.Suffix == nil && n.Offers() == other.Offers():
			d.bad(key, "offers the same as nodes[%d]: want a suffix for one of them at least, by which Kip knows it", i)
		default:
			continue
		}
		return
	}
}

// inOrder is a node with its lists sorted whose order means nothing.
func inOrder(n Node) Node {
	for _, list := range []*[]string{&n.Zones, &n.Architectures, &n.InstanceTypes} {
		*list = slices.Sorted(slices.Values(*list))
	}
	return n
}

// Offers says, in words that are the same for the same, what machines a node offers.
func (n Node) Offers() string {
	part := func(name string, list []string) string {
		list = slices.Clone(list)
		slices.Sort(list)
		return name + "=" + strings.Join(list, ",")
	}
	return strings.Join([]string{
		part("zones", n.Zones), part("architectures", n.Architectures),
		part("launchTypes", n.LaunchTypes), part("instanceTypes", n.InstanceTypes),
	}, ";")
}

// words checks a list of words, none of which is there twice; of allowed, if that is not nil.
func (d *decoder) words(key string, list, allowed []string) {
	for i, word := range list {
		at := fmt.Sprintf("%s[%d]", key, i)
		d.require(at, word)
		d.check(!slices.Contains(list[:i], word), at, word, "each once")
		if allowed != nil {
			d.check(slices.Contains(allowed, word), at, word, strings.Join(allowed, ", "))
		}
	}
}

func (d *decoder) taints(key string, list []Taint) {
	for i, t := range list {
		at := fmt.Sprintf("%s[%d]", key, i)
		d.require(at+".key", t.Key)
		for _, problem := range validation.IsQualifiedName(t.Key) {
			d.bad(at+".key", "%q is no key of a taint: %s", t.Key, problem)
		}
		for _, problem := range validation.IsValidLabelValue(t.Value) {
			d.bad(at+".value", "%q is no value of a taint: %s", t.Value, problem)
		}
		d.check(slices.Contains(taintEffects, t.Effect), at+".effect", t.Effect, strings.Join(taintEffects, ", "))
		for j, other := range list[:i] {
			if other.Key == t.Key && other.Effect == t.Effect {
				d.bad(at, "taints[%d] has the same key and effect: want one of them", j)
			}
		}
	}
}

func (d *decoder) labels(key string, labels map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		v, at := labels[name], key+"."+name
		for _, problem := range validation.IsQualifiedName(name) {
			d.bad(at, "%q is no name of a label: %s", name, problem)
		}
		for _, problem := range validation.IsValidLabelValue(v) {
			d.bad(at, "%q is no value of a label: %s", v, problem)
		}
	}
}

func (d *decoder) capacity(key string, list corev1.ResourceList) {
	// In order, for an error about one name silences those about names that it begins.
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q, at := list[name], key+"."+string(name)
		for _, problem := range validation.IsQualifiedName(string(name)) {
			d.bad(at, "%q is no name of a resource: %s", name, problem)
		}
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			if names := placement.HugePageNames(); !slices.Contains(names, name) {
				report := d.bad
				if q.IsZero() { // which offers nothing
					report = d.warn
				}
				report(at, "no cell has huge pages of this size: want one of %q", names)
			}
		}
		d.check(q.Sign() >= 0, at, q.String(), "0 or more")
		if whole := q.Value(); name != corev1.ResourceCPU && name != corev1.ResourceMemory && q.CmpInt64(whole) != 0 {
			d.check(false, at, q.String(), "a whole number")
		}
	}
}

// noPages warns of huge pages that virtual nodes offer, and cells of a cloud do not have.
func (d *decoder) noPages(c *Config) {
	if c.Cloud.Local == nil {
		return
	}
	warn := func(key string, has corev1.ResourceList, auto []corev1.ResourceName) {
		for _, name := range placement.HugePageNames() {
			if _, named := has[name]; named || slices.Contains(auto, name) {
				d.warn(key+"."+string(name), "cells of cloud.local share the kernel of their host, and have no huge pages")
			}
		}
	}
	warn("kubelet.capacity", c.Kubelet.Capacity, c.Kubelet.AutoCapacity)
	for i, n := range c.Nodes {
		warn(fmt.Sprintf("nodes[%d].capacity", i), n.Capacity, n.AutoCapacity)
	}
}

// hostZones checks the zones of a cloud on this host.
func (d *decoder) hostZones(key string, zones []string) {
	const most = 16
	if len(zones) == 0 || len(zones) > most {
		d.bad(key, "there are %d: want 1 to %d", len(zones), most)
	}
	d.words(key, zones, nil)
	for i, zone := range zones {
		for _, problem := range validation.IsDNS1123Label(zone) {
			d.bad(fmt.Sprintf("%s[%d]", key, i), "%q is no name of a zone: %s; such as %s", zone, problem, sizes.Zone)
		}
	}
}
