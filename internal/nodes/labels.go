package nodes

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodeplan"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/provisioner"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// labels are those of nodes: what follows from their configuration and what the cloud offers, and what
// others have written on them.
type labels struct {
	c     Config
	nodes *registry
	reads *reads
}

// described is what the labels of the node of an entry follow from, as a configuration
// has it.
func (l *labels) described(cfg *config.Config, name string, e nodeplan.Entry) (node.Config, error) {
	types, _, err := l.c.InstanceTypes.OfNode(name, e.Limit())
	if err != nil {
		return node.Config{}, err
	}
	zone, arch := e.Zone(types), runtime.GOARCH
	switch only := e.Arch(types); {
	case len(e.Node.Architectures) > 0:
		arch = e.Node.Architectures[0]
	case only != "" && !e.Plain():
		arch = only
	}
	drivers, zoneLabels := l.drivers(e, zone)
	return node.Config{
		Name:         name,
		Drivers:      drivers,
		ZoneLabels:   zoneLabels,
		Labels:       cfg.LabelsOf(e.Node),
		Zone:         zone,
		Region:       cmp.Or(l.c.Region, zone),
		Arch:         arch,
		AnyArch:      len(e.Node.Architectures) > 1,
		CapacityType: e.CapacityType(),
		Controller:   l.c.ControllerID,
	}, nil
}

// drivers are the CSI drivers of whose disks the cells of an entry's node can have some, or not, and the
// labels that say the zone in their words. The volumes of the cloud's own driver select nodes by their zone
// alone: a node that has none, or several, can have none of them.
func (l *labels) drivers(e nodeplan.Entry, zone string) (all []node.Driver, zoneLabels []string) {
	own := node.Driver{Name: volumes.Driver}
	if l.c.HasDisks {
		own.Topology = provisioner.TopologyKeys(apiv1.LabelController, zoneOf(e))
	}
	all = []node.Driver{own}
	if key := l.c.CloudDriver.ZoneKey; l.c.CloudDriver.Name != "" {
		clouds := node.Driver{Name: l.c.CloudDriver.Name}
		if zone != "" {
			clouds.Topology, zoneLabels = []string{key}, []string{key}
		}
		all = append(all, clouds)
	}
	return all, zoneLabels
}

// of are the labels of a node that is served.
func (l *labels) of(name string) (map[string]string, error) {
	entry, _ := l.nodes.entryOf(name)
	c, err := l.described(l.nodes.Configuration(), name, entry)
	if err != nil {
		return nil, err
	}
	return node.Labels(c)
}

// forPod are those by which a pod is placed. Where it requires one that Kip does not set,
// they are also those that others have written on its node, but for what they say of
// instances, which differ; as these were at most so long ago.
func (l *labels) forPod(ctx context.Context, pod *corev1.Pod, ago time.Duration) (map[string]string, error) {
	name := pod.Spec.NodeName
	all, err := l.of(name)
	asked, invalid := placement.ParseAnnotations(pod.Annotations)
	if err != nil || invalid != nil || !asked.Requirements.Beyond(all) { // placement says what is invalid
		return all, err
	}
	there, err := l.reads.node(ctx, name, ago)
	switch {
	case apierrors.IsNotFound(err): // Kip makes it again
		return all, nil
	case err != nil:
		return nil, fmt.Errorf("read the labels of node %s: %w", name, err)
	}
	for key, value := range there.Labels {
		if _, own := all[key]; !own && !placement.IsInstanceLabel(key) {
			all[key] = value
		}
	}
	return all, nil
}
