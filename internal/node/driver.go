package node

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// keepDriver shows the drivers of the cloud's disks in the node's CSINode, each time that
// the node is registered, until ctx ends. A node is of use without: what fails is retried.
func (n *Node) keepDriver(ctx context.Context) {
	if len(n.c.Drivers) == 0 {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.there:
		}
		err := n.showDriver(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		n.c.Log.Warn("the disks of the virtual node are not shown, retrying", "node", n.c.Name, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-n.c.Clock.After(registerRetry):
			soon(n.there)
		}
	}
}

// showDriver makes the node's CSINode what it is to be: as its kubelet would, as the
// node. What others say there of other drivers stays.
func (n *Node) showDriver(ctx context.Context) error {
	all := n.c.Node.StorageV1().CSINodes()
	fail := func(err error) error { return fmt.Errorf("CSINode %s: %w", n.c.Name, err) }
	current, err := all.Get(ctx, n.c.Name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		current = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.c.Name}}
	} else if err != nil {
		return fail(err)
	}
	var driver []storagev1.CSINodeDriver
	for _, d := range n.c.Drivers {
		if len(d.Topology) > 0 {
			driver = append(driver, storagev1.CSINodeDriver{Name: d.Name, NodeID: n.c.Name, TopologyKeys: d.Topology})
		}
	}
	is, others := n.drivers(current)
	wanted := current.DeepCopy()
	n.mu.Lock()
	wanted.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       n.c.Name,
		UID:        n.uid, // it goes with the node
	}}
	n.mu.Unlock()
	wanted.Spec.Drivers = slices.Concat(others, driver)
	switch {
	case missing && len(driver) == 0, reflect.DeepEqual(is, driver) && reflect.DeepEqual(wanted.OwnerReferences, current.OwnerReferences):
		return nil
	case missing:
		_, err = all.Create(ctx, wanted, metav1.CreateOptions{})
	default:
		if len(is) > 0 && len(driver) > 0 && !reflect.DeepEqual(is, driver) { // a driver that is there cannot be changed
			current.Spec.Drivers = others
			if current, err = all.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
				return fail(err)
			}
			wanted.ResourceVersion = current.ResourceVersion
		}
		_, err = all.Update(ctx, wanted, metav1.UpdateOptions{})
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// drivers parts what a CSINode says of the cloud's disks from the rest. Kip says nothing of
// how many disks the node can have: each cell is a machine, and a bound would be one for
// all of them together.
func (n *Node) drivers(of *storagev1.CSINode) (is, others []storagev1.CSINodeDriver) {
	for _, d := range of.Spec.Drivers {
		if slices.ContainsFunc(n.c.Drivers, func(own Driver) bool { return own.Name == d.Name }) {
			is = append(is, d)
		} else {
			others = append(others, d)
		}
	}
	return is, others
}
