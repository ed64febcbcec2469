package provisioner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/fairqueue"
	"github.com/elotl/kip/internal/volumes"
)

const (
	// expanders is how many disks are made larger at a time.
	expanders = 8
	// notYetRetry is between two tries while the cloud does not say how long it changes no size.
	notYetRetry = time.Minute
	// refusedRetry is between two tries of what the cloud has refused: it goes on refusing until
	// the claim asks for less, which is seen at once, or an operator mends the rights.
	refusedRetry = time.Hour
	// maxWhy bounds what a condition says of the cloud's answer, in bytes.
	maxWhy = 1 << 10
)

// expansions makes the disks of this node's claims larger, as the external-resizer does
// those of CSI drivers: what it writes of a claim, and in which order, is what kubelets go by.
//
//	allocatedResources: the size, ControllerResizeInProgress, the condition Resizing
//	→ the disk, the volume's capacity
//	→ NodeResizePending, the condition FileSystemResizePending: the rest is the kubelet's
//
// Each step may be repeated, and begins with what the one before has written. A block
// volume has no file system, and is finished with the disk.
type expansions struct {
	p               *Provisioner
	claims, volumes cache.Store
	recorder        record.EventRecorder
	queue           workqueue.TypedRateLimitingInterface[string] // names of claims, with their namespaces
}

// watch returns informers of volumes and claims, for the provisioner too. run runs
// them, volumes first, and expands claims until ctx ends and nothing of it is left.
func (p *Provisioner) watch() (claims, pvs cache.SharedIndexInformer, run func(context.Context), err error) {
	factory := informers.NewSharedInformerFactory(p.cfg.Client, controller.DefaultResyncPeriod)
	pvs, claims = factory.Core().V1().PersistentVolumes().Informer(), factory.Core().V1().PersistentVolumeClaims().Informer()
	broadcaster := record.NewBroadcaster()
	e := &expansions{
		p:       p,
		claims:  claims.GetStore(),
		volumes: pvs.GetStore(),
		recorder: broadcaster.NewRecorder(newScheme(),
			corev1.EventSource{Component: volumes.Driver, Host: p.cfg.Node}),
		queue: newQueue(p.cfg),
	}
	if _, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { e.look(nil, o) }, UpdateFunc: e.look,
	}); err != nil {
		return nil, nil, nil, fmt.Errorf("watch claims: %w", err)
	}
	return claims, pvs, func(ctx context.Context) {
		defer broadcaster.Shutdown()
		broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: p.cfg.Client.CoreV1().Events("")})
		var all sync.WaitGroup
		defer all.Wait()
		defer e.queue.ShutDown()
		all.Go(func() { pvs.RunWithContext(ctx) })
		if cache.WaitForCacheSync(ctx.Done(), pvs.HasSynced) {
			for range expanders {
				all.Go(func() {
					for e.next(ctx) {
					}
				})
			}
			claims.RunWithContext(ctx)
		}
	}, nil
}

func newQueue(cfg Config) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(backoff.Items[string](firstRetry, longestRetry, nil),
		fairqueue.InTurns(workqueue.TypedRateLimitingQueueConfig[string]{Name: "expansions", MetricsProvider: cfg.Queues, Clock: cfg.Clock},
			func(claim string) string {
				namespace, _, _ := strings.Cut(claim, "/")
				return namespace
			}))
}

// look notes a claim that may have to be expanded. What this process itself writes of a claim
// is no reason to look again: the cloud would be asked at once what it has just refused.
func (e *expansions) look(before, now any) {
	claim, ok := now.(*corev1.PersistentVolumeClaim)
	if !ok || !wanting(claim) {
		return
	}
	key := cache.MetaObjectToName(claim).String()
	old, ok := before.(*corev1.PersistentVolumeClaim)
	switch infeasible := corev1.PersistentVolumeClaimNodeResizeInfeasible; {
	case !ok, !requested(old).Equal(requested(claim)), !capacity(old).Equal(capacity(claim)), old.Status.Phase != claim.Status.Phase:
		e.queue.Add(key)
	case resizeStatus(claim) == infeasible && resizeStatus(old) != infeasible:
		e.queue.AddAfter(key, notYetRetry) // a cell may say so as often as it likes
	}
}

func requested(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[corev1.ResourceStorage]
}

func capacity(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Status.Capacity[corev1.ResourceStorage]
}

func allocated(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Status.AllocatedResources[corev1.ResourceStorage]
}

func resizeStatus(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// wanting says whether a claim asks for more than it has.
func wanting(claim *corev1.PersistentVolumeClaim) bool {
	wants := requested(claim)
	return claim.Status.Phase == corev1.ClaimBound && wants.Cmp(capacity(claim)) > 0
}

// next expands the next claim; false when there is none any more.
func (e *expansions) next(ctx context.Context) bool {
	key, quit := e.queue.Get()
	if quit {
		return false
	}
	defer e.queue.Done(key)
	again, err := e.expand(ctx, key)
	switch {
	case err == nil, ctx.Err() != nil:
		e.queue.Forget(key)
	case again > 0:
		e.queue.Forget(key)
		e.queue.AddAfter(key, again)
	default:
		e.queue.AddRateLimited(key)
	}
	return true
}

// expand gives a claim what it asks for. After an error it is tried again: after a while, or,
// where that is 0, after one that grows.
func (e *expansions) expand(ctx context.Context, key string) (again time.Duration, err error) {
	claim, pv, err := e.find(ctx, key)
	if err != nil || pv == nil {
		return 0, err
	}
	wants, given := requested(claim), allocated(claim)
	most := rounded(wants)
	shrunk := most.Cmp(given) < 0
	switch status := resizeStatus(claim); status {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if has := pv.Spec.Capacity[corev1.ResourceStorage]; has.Cmp(given) >= 0 {
			if shrunk {
				e.tellShrunk(claim, given)
			}
			return 0, nil // the kubelet is to finish it before the next size is begun
		}
	}
	if claim, err = e.begin(ctx, claim); err != nil {
		return 0, err
	}
	disk, err := e.grow(ctx, pv, wants)
	if err != nil {
		return e.failed(ctx, claim, err)
	}
	size := wants
	if disk.SizeBytes != wants.Value() {
		size = *resource.NewQuantity(disk.SizeBytes, resource.BinarySI)
	}
	if shrunk && size.Cmp(given) >= 0 {
		e.tellShrunk(claim, size)
	}
	if err := e.raise(ctx, pv, size); err != nil {
		e.report(claim, events.NewExpansionNotRecorded(size.String(), err))
		return 0, err
	}
	return 0, e.finish(ctx, claim, pv, size)
}

// rounded is a size as clouds round it up, to whole GiB: a disk that has it is as was asked for.
func rounded(size resource.Quantity) resource.Quantity {
	const gib = 1 << 30
	return *resource.NewQuantity((size.Value()+gib-1)/gib*gib, resource.BinarySI)
}

// tellShrunk tells of a claim that asks for less than its disk has got already.
func (e *expansions) tellShrunk(claim *corev1.PersistentVolumeClaim, has resource.Quantity) {
	wants := requested(claim)
	e.report(claim, events.NewNotShrunk(wants.String(), has.String()))
}

func (e *expansions) report(claim *corev1.PersistentVolumeClaim, event events.Event) {
	e.recorder.Event(claim, event.Type, event.Reason, event.Message)
}

// find returns a claim that asks for more than it has, and its volume; nil where this node has
// no such claim.
func (e *expansions) find(ctx context.Context, key string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	o, exists, err := e.claims.GetByKey(key)
	if err != nil || !exists {
		return nil, nil, err
	}
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || !wanting(claim) {
		return nil, nil, nil
	}
	o, exists, err = e.volumes.GetByKey(claim.Spec.VolumeName)
	if err != nil {
		return nil, nil, err
	}
	pv, ok := o.(*corev1.PersistentVolume)
	if !exists || !ok {
		return nil, nil, fmt.Errorf("claim %s has volume %s, which is not known yet", key, claim.Spec.VolumeName)
	}
	if ref := pv.Spec.ClaimRef; !e.p.ShouldDelete(ctx, pv) || ref == nil || ref.Namespace != claim.Namespace || ref.Name != claim.Name ||
		ref.UID != claim.UID {
		return nil, nil, nil
	}
	return claim, pv, nil
}

// begin records what is to be allocated, before it is.
func (e *expansions) begin(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	wants := requested(claim)
	if wants.Equal(allocated(claim)) {
		switch resizeStatus(claim) {
		case corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimControllerResizeInfeasible:
			return claim, nil
		}
	}
	return e.patch(ctx, claim, progress{
		allocated:  wants,
		status:     corev1.PersistentVolumeClaimControllerResizeInProgress,
		conditions: e.conditions(claim, corev1.PersistentVolumeClaimResizing, ""),
	})
}

// grow makes a volume's disk larger, if it was made for that volume.
func (e *expansions) grow(ctx context.Context, pv *corev1.PersistentVolume, wants resource.Quantity) (cloud.Disk, error) {
	if e.p.cfg.Grower == nil {
		return cloud.Disk{}, cloud.No(cloud.ErrRefused, cloud.Scope{},
			errors.New("this cloud makes no disk larger; copy the data to a larger claim"))
	}
	switch disk, err := e.p.diskOf(ctx, pv); {
	case err != nil:
		return cloud.Disk{}, err
	case disk == nil:
		return cloud.Disk{}, &volumes.ForeignDiskError{Volume: pv.Name, Disk: pv.Spec.CSI.VolumeHandle}
	}
	disk, err := e.p.cfg.Grower.GrowDisk(ctx, pv.Spec.CSI.VolumeHandle, wants.Value())
	if err == nil && disk.SizeBytes < wants.Value() {
		err = fmt.Errorf("grow disk %s: the cloud says that it has %d bytes: want at least %d", disk.ID, disk.SizeBytes, wants.Value())
	}
	return disk, err
}

// failed tells the claim's owner why its disk is not larger, and says when to try again.
func (e *expansions) failed(ctx context.Context, claim *corev1.PersistentVolumeClaim, why error) (again time.Duration, err error) {
	if ctx.Err() != nil {
		return 0, why
	}
	wants := requested(claim)
	e.report(claim, events.NewExpansionFailed(wants.String(), why))
	state := progress{allocated: wants, status: corev1.PersistentVolumeClaimControllerResizeInProgress}
	said, _ := errors.AsType[*cloud.Error](why)
	switch notYet := errors.Is(why, cloud.ErrNotYet); {
	case cloud.Refused(why):
		again = refusedRetry
		state.status = corev1.PersistentVolumeClaimControllerResizeInfeasible
		state.conditions = e.conditions(claim, corev1.PersistentVolumeClaimControllerResizeError, why.Error())
	case notYet && said != nil && said.RetryAfter > 0: // it may be hours: an Event is gone before
		again = said.RetryAfter
		state.conditions = e.conditions(claim, corev1.PersistentVolumeClaimResizing, why.Error())
	case notYet:
		return notYetRetry, why
	default:
		return 0, why
	}
	if _, err := e.patch(ctx, claim, state); err != nil {
		return 0, errors.Join(why, err)
	}
	return again, why
}

// raise gives a volume the capacity of its disk.
func (e *expansions) raise(ctx context.Context, pv *corev1.PersistentVolume, size resource.Quantity) error {
	if has := pv.Spec.Capacity[corev1.ResourceStorage]; has.Cmp(size) >= 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pv.UID},
		"spec":     map[string]any{"capacity": map[string]any{string(corev1.ResourceStorage): size}},
	})
	if err != nil {
		return fmt.Errorf("encode the capacity of volume %s: %w", pv.Name, err)
	}
	pvs := e.p.cfg.Client.CoreV1().PersistentVolumes()
	if _, err := pvs.Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set the capacity of volume %s to %s: %w", pv.Name, size.String(), err)
	}
	e.p.cfg.Log.Info("expanded a disk", "disk", pv.Spec.CSI.VolumeHandle, "volume", pv.Name, "bytes", size.Value())
	return nil
}

// finish leaves the rest to the kubelet of the claim's pod, now or when there is one. What is
// allocated is the disk's size then, which may be more than was asked for: quotas count it.
func (e *expansions) finish(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	size resource.Quantity) error {
	state := progress{allocated: size, conditions: e.conditions(claim, "", "")}
	done := events.NewExpanded(size.String())
	if mode := pv.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		state.capacity = size
	} else {
		done = events.NewFileSystemResizeRequired(size.String())
		state.status = corev1.PersistentVolumeClaimNodeResizePending
		state.conditions = e.conditions(claim, corev1.PersistentVolumeClaimFileSystemResizePending,
			"Waiting for a pod to mount the volume, whose kubelet makes the file system larger.")
	}
	if _, err := e.patch(ctx, claim, state); err != nil {
		return err
	}
	e.report(claim, done)
	return nil
}

// progress is how far the expansion of a claim is.
type progress struct {
	capacity, allocated resource.Quantity // zero leaves the capacity as it is
	status              corev1.ClaimResourceStatus
	conditions          []corev1.PersistentVolumeClaimCondition
}

// conditions are those of a claim whose only one about its size is of this type; "" for none.
func (e *expansions) conditions(claim *corev1.PersistentVolumeClaim, of corev1.PersistentVolumeClaimConditionType,
	message string) []corev1.PersistentVolumeClaimCondition {
	next := corev1.PersistentVolumeClaimCondition{
		Type:               of,
		Status:             corev1.ConditionTrue,
		Message:            message[:min(len(message), maxWhy)],
		LastTransitionTime: metav1.NewTime(e.p.cfg.Clock.Now()),
	}
	kept := []corev1.PersistentVolumeClaimCondition{}
	for _, c := range claim.Status.Conditions {
		if c.Type == of && c.Status == next.Status {
			next.LastTransitionTime = c.LastTransitionTime
		}
		if !slices.Contains(volumes.ResizeConditions, c.Type) {
			kept = append(kept, c)
		}
	}
	if of != "" {
		kept = append(kept, next)
	}
	return kept
}

// patch writes how far a claim is, unless it says so, or has changed meanwhile: then it is
// looked at again.
func (e *expansions) patch(ctx context.Context, claim *corev1.PersistentVolumeClaim, to progress) (*corev1.PersistentVolumeClaim, error) {
	storage := string(corev1.ResourceStorage)
	status := map[string]any{
		"allocatedResources":        map[string]any{storage: to.allocated},
		"allocatedResourceStatuses": map[string]any{storage: nil},
		"conditions":                to.conditions,
	}
	if to.status != "" {
		status["allocatedResourceStatuses"] = map[string]any{storage: to.status}
	}
	if !to.capacity.IsZero() {
		status["capacity"] = map[string]any{storage: to.capacity}
	}
	if to.capacity.IsZero() && to.allocated.Equal(allocated(claim)) && to.status == resizeStatus(claim) &&
		equality.Semantic.DeepEqual(to.conditions, claim.Status.Conditions) {
		return claim, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status":   status,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	next, err := e.p.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		e.p.cfg.Log.Warn("the status of a claim was not written, retrying", "claim", claim.Namespace+"/"+claim.Name, "err", err)
	}
	if err != nil {
		return nil, fmt.Errorf("write the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return next, nil
}
