package provisioner

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/volumes"
)

// expansions tells the owners of claims on this node's disks that ask for more than
// they have that nobody will give it to them: Kubernetes only says that it waits
// for somebody.
type expansions struct {
	p        *Provisioner
	volumes  cache.Store
	recorder record.EventRecorder
}

// watch returns informers of volumes and claims, for the provisioner too. run runs
// them, volumes first, and tells of claims until ctx ends and nothing of it is left.
func (p *Provisioner) watch() (claims, pvs cache.SharedIndexInformer, run func(context.Context), err error) {
	factory := informers.NewSharedInformerFactory(p.cfg.Client, controller.DefaultResyncPeriod)
	pvs, claims = factory.Core().V1().PersistentVolumes().Informer(), factory.Core().V1().PersistentVolumeClaims().Informer()
	broadcaster := record.NewBroadcaster()
	e := &expansions{p: p, volumes: pvs.GetStore(), recorder: broadcaster.NewRecorder(newScheme(),
		corev1.EventSource{Component: volumes.Driver, Host: p.cfg.Node})}
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
		all.Go(func() { pvs.RunWithContext(ctx) })
		if cache.WaitForCacheSync(ctx.Done(), pvs.HasSynced) {
			claims.RunWithContext(ctx)
		}
	}, nil
}

// look tells of a claim whose request has grown above what it has.
func (e *expansions) look(before, now any) {
	claim, ok := now.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Status.Phase != corev1.ClaimBound {
		return
	}
	wants, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if old, ok := before.(*corev1.PersistentVolumeClaim); ok && old.Status.Phase == corev1.ClaimBound &&
		wants.Equal(old.Spec.Resources.Requests[corev1.ResourceStorage]) {
		return // it was told
	}
	o, exists, err := e.volumes.GetByKey(claim.Spec.VolumeName)
	if err != nil || !exists || wants.Cmp(has) <= 0 {
		return
	}
	if pv, ok := o.(*corev1.PersistentVolume); ok && e.p.ShouldDelete(context.Background(), pv) {
		e.recorder.Eventf(claim, corev1.EventTypeWarning, events.VolumeNotExpanded,
			"The claim asks for %s and stays at %s: this Kip does not expand disks. Copy the data to a larger claim", wants.String(), has.String())
	}
}
