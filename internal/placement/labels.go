package placement

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/elotl/kip/internal/catalog"
)

// LabelCapacityType is how an instance is bought; its values are those of LaunchType.
const LabelCapacityType = "karpenter.sh/capacity-type"

// The labels by which others than Kip say of a node which machine it is.
const (
	labelInstance    = "karpenter.k8s.aws/instance-"
	labelNVIDIA      = "nvidia.com/gpu."
	labelAccelerator = "cloud.google.com/gke-accelerator"
)

var (
	instanceLabels = []string{
		corev1.LabelInstanceTypeStable, corev1.LabelInstanceType, LabelCapacityType, labelAccelerator, labelAccelerator + "-count",
		"cloud.google.com/machine-family",
	}
	instanceLabelPrefixes = []string{labelInstance, labelNVIDIA, labelGPU, "karpenter.azure.com/sku-", "karpenter.k8s.gcp/instance-"}
)

// IsInstanceLabel reports whether a label says of a node which machine it is. A node
// with many machines has no value for it: instances are chosen by it.
func IsInstanceLabel(key string) bool {
	return slices.Contains(instanceLabels, key) ||
		slices.ContainsFunc(instanceLabelPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// Beyond reports whether they ask for a label that is neither of known nor of instances:
// others may have written it on the virtual node.
func (r Requirements) Beyond(known map[string]string) bool {
	return slices.ContainsFunc(r.keys(), func(key string) bool {
		_, has := known[key]
		return !has && !IsInstanceLabel(key) && !slices.Contains(archLabels, key) && !slices.Contains(zoneLabels, key)
	})
}

// typeName is the form of names such as c5.large and u-6tb1.metal: the category, and
// the generation.
var typeName = regexp.MustCompile(`^([a-z]+)(?:-[0-9]+tb)?([0-9]+)[^.]*\.`)

// labelsOf are the labels that the type itself has, wherever and however it is bought.
func labelsOf(t *catalog.InstanceType) map[string]string {
	const mib = 1 << 20
	l := map[string]string{labelInstance + "memory": strconv.FormatInt(t.MemoryBytes/mib, 10)}
	for _, key := range []string{corev1.LabelInstanceTypeStable, corev1.LabelInstanceType} {
		l[key] = t.Name
	}
	for _, key := range archLabels {
		l[key] = t.Arch
	}
	if t.MilliCPU%1000 == 0 {
		l[labelInstance+"cpu"] = strconv.FormatInt(t.MilliCPU/1000, 10)
	}
	if parts := typeName.FindStringSubmatch(t.Name); parts != nil {
		l[labelInstance+"category"], l[labelInstance+"generation"] = parts[1], parts[2]
		l[labelInstance+"family"], l[labelInstance+"size"], _ = strings.Cut(t.Name, ".")
	}
	if len(t.GPUs) == 1 { // of several models a label could say one only
		g := t.GPUs[0]
		model, count := strings.ReplaceAll(g.Model, " ", "-"), strconv.FormatInt(g.Count, 10)
		l[labelInstance+"gpu-name"], l[labelNVIDIA+"product"], l[labelAccelerator] = strings.ToLower(model), model, strings.ToLower(model)
		for _, key := range []string{labelInstance + "gpu-count", labelNVIDIA + "count", labelAccelerator + "-count"} {
			l[key] = count
		}
		if g.MemoryBytes > 0 {
			memory := strconv.FormatInt(g.MemoryBytes/mib, 10)
			l[labelInstance+"gpu-memory"], l[labelNVIDIA+"memory"] = memory, memory
		}
	}
	for _, g := range t.GPUs {
		for _, key := range gpuLabels(g.Model) {
			l[key] = ""
		}
	}
	for key, value := range t.Labels { // its cloud knows better
		l[key] = value
	}
	return l
}

// machine is the labels of an instance of a row's type in a zone, and of the virtual
// node that its pod is on.
type machine struct {
	own, node map[string]string
	zone      string
	as        LaunchType
}

var _ labels.Labels = machine{}

func (c *choice) machine(r *row, zone int) machine {
	return machine{
		own:  c.labels[r.typ],
		node: c.nodeLabels,
		zone: c.zones[zone],
		as:   r.launchType,
	}
}

// held reports whether what the pod requires holds for an instance of a row in a zone. It
// is looked for once in a choice, which asks several times.
func (c *choice) held(r *row, zone int) bool {
	kinds := []LaunchType{OnDemand, Spot, Dedicated}
	if c.holds == nil {
		c.holds = make([]int8, len(kinds)*len(c.types)*len(c.zones))
	}
	is := &c.holds[(slices.Index(kinds, r.launchType)*len(c.types)+r.typ)*len(c.zones)+zone]
	if *is == 0 {
		*is = -1
		if c.hold(c.machine(r, zone)) {
			*is = 1
		}
	}
	return *is > 0
}

// hold reports whether what the pod requires holds for a machine. A virtual node that is
// for dedicated instances and on-demand calls itself on-demand.
func (c *choice) hold(m machine) bool {
	if c.requirements.hold(m) {
		return true
	}
	if m.as != Dedicated || m.node[LabelCapacityType] != string(OnDemand) {
		return false
	}
	m.as = OnDemand
	return c.requirements.hold(m)
}

// Lookup returns the value of a label, and whether there is one.
func (m machine) Lookup(key string) (string, bool) {
	switch {
	case key == LabelCapacityType:
		return string(m.as), true
	case slices.Contains(zoneLabels, key):
		return m.zone, true
	}
	if v, ok := m.own[key]; ok {
		return v, true
	}
	v, ok := m.node[key]
	return v, ok
}

// Has reports whether there is a label.
func (m machine) Has(key string) bool {
	_, ok := m.Lookup(key)
	return ok
}

// Get returns the value of a label, or "".
func (m machine) Get(key string) string {
	v, _ := m.Lookup(key)
	return v
}
