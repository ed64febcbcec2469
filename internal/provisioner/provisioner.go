package provisioner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/volumes"
)

// Config of a Provisioner. All fields are required unless they say otherwise.
type Config struct {
	// Node is the name of the virtual nodes for which disks are made, without a number. It
	// says whose a volume is.
	Node string
	// ControllerID owns them in the cloud, and is the value of NodeLabel, which all these
	// nodes carry.
	ControllerID, NodeLabel string
	// NameTag is for people who read the bill.
	NameTag string
	Disks   cloud.Disks
	// Checker is nil where the cloud cannot tell before whether a disk can be attached.
	Checker cloud.DiskChecker
	// Grower is nil where the cloud makes no disk larger.
	Grower cloud.DiskGrower
	// ListLag is that of the cloud's capabilities. It may be 0.
	ListLag time.Duration
	// Nodes are the virtual nodes.
	Nodes Nodes
	// Client acts as the provisioner: Kip itself and nodes may not do any of this.
	Client kubernetes.Interface
	// Queues measures the work queue. Optional.
	Queues workqueue.MetricsProvider
	Clock  clock.WithTicker
	Log    *slog.Logger
}

// Nodes is what this package needs of the virtual nodes.
type Nodes interface {
	// Zones are where the pods of a virtual node can be, the preferred one first; only is
	// set where its label says which, and ours is false for a node that is not Kip's.
	Zones(node string) (list []string, only string, ours bool)
}

// Provisioner makes and removes disks.
type Provisioner struct {
	cfg        Config
	controller *controller.ProvisionController
	watching   func(context.Context)
	lifetime   context.Context // that of New
	disks      disks
	checks     checks
}

var (
	_ controller.BlockProvisioner = (*Provisioner)(nil)
	_ controller.Qualifier        = (*Provisioner)(nil)
	_ controller.DeletionGuard    = (*Provisioner)(nil)
)

// New returns a provisioner, which sends events and asks the cloud until ctx ends; Run starts it.
func New(ctx context.Context, cfg Config) (*Provisioner, error) {
	p := &Provisioner{cfg: cfg, lifetime: ctx}
	claims, pvs, run, err := p.watch()
	if err != nil {
		return nil, err
	}
	p.watching = run
	p.controller = controller.NewProvisionController(ctx, cfg.Client, volumes.Driver, p,
		controller.ClaimsInformer(claims), controller.VolumesInformer(pvs),
		controller.LeaderElection(false), // Kip leads, or does not run this
		controller.AddFinalizer(true),    // else a volume that is deleted before its claim leaves its disk behind
		controller.FailedProvisionThreshold(0), controller.FailedDeleteThreshold(0),
		controller.Threadiness(workers),
		controller.RateLimiter(backoff.Items[string](firstRetry, longestRetry, nil)),
	)
	return p, nil
}

const (
	// workers is how many claims, and volumes to delete, are under way at a time: a cloud takes
	// seconds for each, and its budget of calls bounds them all.
	workers = 32
	// Between two tries of a claim or a volume.
	firstRetry, longestRetry = time.Second, 2 * time.Minute
	// parameterZone of a StorageClass is where its disks are.
	parameterZone = "zone"
	// selectedNode is the scheduler's choice for a claim that waits for its first
	// consumer.
	selectedNode = "volume.kubernetes.io/selected-node"
)

// Run provisions until ctx ends.
func (p *Provisioner) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { p.watching(ctx) })
	p.controller.Run(ctx)
	return nil
}

// ShouldProvision says whether a claim is for this node: the scheduler has chosen
// it. A claim of a class that binds immediately has no node, and is nobody's.
func (p *Provisioner) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	_, _, ours := p.cfg.Nodes.Zones(claim.Annotations[selectedNode])
	return ours
}

// ShouldDelete says whether a volume's disk is this node's.
func (p *Provisioner) ShouldDelete(_ context.Context, pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == volumes.Driver && pv.Spec.CSI.VolumeAttributes[volumes.AttributeNode] == p.cfg.Node
}

// SupportsBlock says that claims may have the device itself.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// Provision makes the disk of a claim. It is idempotent by the volume's name, which
// follows from the claim's UID.
func (p *Provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume,
	controller.ProvisioningState, error) {
	zone, err := p.check(o)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	size := o.PVC.Spec.Resources.Requests[corev1.ResourceStorage]
	disk, err := p.cfg.Disks.CreateDisk(ctx, cloud.DiskRequest{
		Token:     o.PVName,
		SizeBytes: size.Value(),
		Zone:      zone,
		Tags: map[string]string{
			cloud.TagOwner: p.cfg.ControllerID, cloud.TagVolume: o.PVName, cloud.TagNamespace: o.PVC.Namespace, cloud.TagNameTag: p.cfg.NameTag,
			cloud.TagName: "Kip volume " + p.cfg.NameTag + " " + o.PVC.Namespace + "/" + o.PVC.Name,
		},
	})
	failed, lost := errors.AsType[*cloud.FailedDiskError](err)
	switch {
	case lost:
		state, err := p.discard(ctx, o, failed, err)
		return nil, state, err
	case cloud.Refused(err):
		return nil, controller.ProvisioningFinished, err
	case err != nil: // it may have been made
		return nil, controller.ProvisioningInBackground, err
	}
	p.disks.made(disk, p.cfg.Clock.Now())
	p.cfg.Log.Info("made a disk", "disk", disk.ID, "volume", o.PVName, "claim", o.PVC.Namespace+"/"+o.PVC.Name, "bytes", disk.SizeBytes,
		"zone", disk.Zone)
	filesystem := corev1.PersistentVolumeFilesystem
	mode := o.PVC.Spec.VolumeMode
	if mode == nil {
		mode = &filesystem
	}
	source := &corev1.CSIPersistentVolumeSource{
		Driver: volumes.Driver, VolumeHandle: disk.ID,
		VolumeAttributes: map[string]string{volumes.AttributeZone: disk.Zone, volumes.AttributeNode: p.cfg.Node},
	}
	if *mode == filesystem {
		source.FSType = volumes.FileSystem
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(disk.SizeBytes, resource.BinarySI)},
			AccessModes:                   o.PVC.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			MountOptions:                  o.StorageClass.MountOptions,
			VolumeMode:                    mode,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: source},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: p.where(o.SelectedNodeName),
			}}}},
		},
	}, controller.ProvisioningFinished, nil
}

// discard deletes a disk that the cloud could not make. The next try of its claim, which waits longer
// each time, makes another. The error is for the claim's Event.
func (p *Provisioner) discard(ctx context.Context, o controller.ProvisionOptions, failed *cloud.FailedDiskError,
	why error) (controller.ProvisioningState, error) {
	if err := p.cfg.Disks.DeleteDisk(ctx, failed.Disk); err != nil {
		return controller.ProvisioningInBackground, fmt.Errorf("%w; it is to be deleted before another is made: %w", why, err)
	}
	p.disks.removed(failed.Disk, p.cfg.Clock.Now())
	p.cfg.Log.Warn("deleted a disk that the cloud could not make", "disk", failed.Disk, "state", failed.State, "volume", o.PVName,
		"claim", o.PVC.Namespace+"/"+o.PVC.Name)
	return controller.ProvisioningFinished, fmt.Errorf("%w; it is deleted, and another is made for the claim", why)
}

// where selects the nodes whose pods can have a disk that was made for one of them: the
// virtual nodes of its zone, whichever they will be. One that stands for machines in many
// zones, or that was there before nodes had zones, has none to select by: the zone is in
// the attributes, for placement.
func (p *Provisioner) where(node string) (all []corev1.NodeSelectorRequirement) {
	_, zone, _ := p.cfg.Nodes.Zones(node)
	values := map[string]string{p.cfg.NodeLabel: p.cfg.ControllerID, corev1.LabelTopologyZone: zone, corev1.LabelHostname: node}
	for _, key := range TopologyKeys(p.cfg.NodeLabel, zone) {
		all = append(all, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{values[key]}})
	}
	return all
}

// TopologyKeys are the labels by which the volumes of a virtual node select nodes. zone is
// where the node says that it is, or "".
func TopologyKeys(nodeLabel, zone string) []string {
	if zone == "" {
		return []string{corev1.LabelHostname}
	}
	return []string{nodeLabel, corev1.LabelTopologyZone}
}

// check refuses what cannot be made, and returns the zone of what can.
func (p *Provisioner) check(o controller.ProvisionOptions) (zone string, err error) {
	zones, _, _ := p.cfg.Nodes.Zones(o.SelectedNodeName)
	if len(zones) == 0 {
		return "", errors.New("the cloud has no zones for the node that was chosen")
	}
	zone = zones[0]
	for key, value := range o.StorageClass.Parameters {
		switch {
		case key != parameterZone:
			return "", fmt.Errorf("StorageClass %s: parameters.%s is unknown: want %s, or none", o.StorageClass.Name, key, parameterZone)
		case !slices.Contains(zones, value):
			return "", fmt.Errorf("StorageClass %s: parameters.%s is %q: want one of %s", o.StorageClass.Name, key, value,
				strings.Join(zones, ", "))
		}
		zone = value
	}
	for _, mode := range o.PVC.Spec.AccessModes {
		if mode != corev1.ReadWriteOnce && mode != corev1.ReadWriteOncePod {
			return "", fmt.Errorf("spec.accessModes has %s: a disk is on one machine at a time, want ReadWriteOnce or ReadWriteOncePod", mode)
		}
	}
	switch {
	case o.PVC.Spec.Selector != nil:
		return "", errors.New("spec.selector is set: a disk that is made for the claim has nothing to select by")
	case o.PVC.Spec.DataSource != nil || o.PVC.Spec.DataSourceRef != nil:
		return "", errors.New("spec.dataSource is set: disks are made blank, not of snapshots or other claims")
	}
	return zone, nil
}

// Delete removes the disk of a volume that is released, with its data.
func (p *Provisioner) Delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	if !p.ShouldDelete(ctx, pv) {
		return &controller.IgnoredError{Reason: "it is the disk of another Kip"}
	}
	disk, err := p.diskOf(ctx, pv)
	if err != nil {
		return err
	}
	if id := pv.Spec.CSI.VolumeHandle; disk == nil && !p.disks.gone(id, pv.CreationTimestamp.Time, p.lag()) {
		return fmt.Errorf("the cloud does not show disk %s: asking again before volume %s is let go, since its list may be late", id, pv.Name)
	}
	if disk == nil { // it has been removed, or was never Kip's
		p.cfg.Log.Info("a volume whose disk Kip does not have is let go", "disk", pv.Spec.CSI.VolumeHandle, "volume", pv.Name)
		return nil
	}
	if err := p.cfg.Disks.DeleteDisk(ctx, disk.ID); err != nil {
		return err // while its cell ends it is in use, and is tried again
	}
	p.disks.removed(disk.ID, p.cfg.Clock.Now())
	p.cfg.Log.Info("removed a disk", "disk", pv.Spec.CSI.VolumeHandle, "volume", pv.Name)
	return nil
}
