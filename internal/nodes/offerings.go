package nodes

import (
	"context"
	"errors"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
)

// Choose returns what can be launched for a pod by what its node offers, in a zone if one is given, and why nothing else can. Errors
// that are not of package placement say that Kip cannot tell now.
func (n *Nodes) Choose(ctx context.Context, pod *corev1.Pod, zone string) (chosen placement.Chosen, err error) {
	// A pod that fits nothing waits for long: a label that it asks for may be newer.
	for _, ago := range []time.Duration{n.readsAgain, min(n.readsAgain, readsSoon)} {
		placer, unread := n.placerFor(ctx, pod, ago)
		if unread != nil {
			return placement.Chosen{}, unread
		}
		chosen, err = placer.Choose(placement.InZone(pod, zone), n.c.Shortages.Unavailable)
		if _, fitsNone := errors.AsType[*placement.UnplaceableError](err); !fitsNone {
			break
		}
	}
	return chosen, err
}

// placerFor returns what chooses for a pod on its node, by the node's labels as they were at most so long ago.
func (n *Nodes) placerFor(ctx context.Context, pod *corev1.Pod, ago time.Duration) (*placement.Placer, error) {
	_, placer, err := n.offerings(pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	labels, err := n.labelsFor(ctx, pod, ago)
	if err != nil {
		return nil, err
	}
	return placer.OnNode(labels), nil
}

// offerings returns what a node offers, and what chooses out of that.
func (n *Nodes) offerings(name string) ([]catalog.InstanceType, *placement.Placer, error) {
	entry, _ := n.entryOf(name)
	return n.c.InstanceTypes.OfNode(name, entry.Limit())
}
