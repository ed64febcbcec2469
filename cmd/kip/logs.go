package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/pods"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// logSaver keeps the logs of all containers of a pod that has ended.
func logSaver(informer cache.SharedIndexInformer, logs *podlogs.Saver) func(context.Context, apiv1.PodReference, http.RoundTripper) error {
	return func(ctx context.Context, ref apiv1.PodReference, cell http.RoundTripper) error {
		obj, exists, err := informer.GetStore().GetByKey(ref.String())
		if err != nil || !exists {
			return err // a pod that no longer exists has nobody to read its logs
		}
		pod := obj.(*corev1.Pod)
		if pod.UID != ref.UID {
			return nil
		}
		var names []string
		for _, c := range pod.Spec.InitContainers {
			names = append(names, c.Name)
		}
		for _, c := range pod.Spec.Containers {
			names = append(names, c.Name)
		}
		for _, c := range pod.Spec.EphemeralContainers {
			names = append(names, c.Name)
		}
		return logs.Save(ctx, ref.Namespace, ref.Name, ref.UID, names, podlogs.FromCell(cell, ref.Namespace, ref.Name))
	}
}

const (
	logSweep  = 10 * time.Minute
	logMaxAge = 7 * 24 * time.Hour
)

// sweepLogs removes the saved logs of pods that no longer exist.
func sweepLogs(ctx context.Context, logs *podlogs.Saver, informer cache.SharedIndexInformer, clock clock.WithTicker, log *slog.Logger) error {
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil
	}
	tick := clock.NewTicker(logSweep)
	defer tick.Stop()
	for {
		exists := map[types.UID]bool{}
		for _, pod := range podsOf(informer) {
			exists[pod.UID] = true
		}
		if err := logs.Sweep(func(uid types.UID) bool { return exists[uid] }, logMaxAge); err != nil {
			log.Warn("sweep saved logs", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// wayToCells finds the cell of a pod for the kubelet port.
type wayToCells struct {
	pods  cache.SharedIndexInformer
	cells *cells.Controller
	loop  *pods.Controller
}

var _ node.Cells = wayToCells{}

func (w wayToCells) RoundTripper(namespace, name string, uid types.UID) (http.RoundTripper, error) {
	obj, exists, err := w.pods.GetStore().GetByKey(namespace + "/" + name)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, node.ErrPodNotFound
	}
	pod := obj.(*corev1.Pod)
	if uid != "" && pod.UID != uid {
		return nil, node.ErrPodNotFound
	}
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	cell, has := w.cells.ForPod(pod.UID)
	switch {
	case has && (cell.Phase == apiv1.Bound || cell.Phase == apiv1.Draining):
		return w.cells.RoundTripper(pod.UID)
	case ended:
		return nil, &node.EndedError{UID: pod.UID, Phase: pod.Status.Phase}
	case !has:
		why := w.loop.Waiting(pod.UID)
		if why == "" {
			why = "no cell has been requested yet"
		}
		return nil, &node.WaitingError{Why: why}
	}
	return nil, &node.WaitingError{Why: fmt.Sprintf("cell %s (%s) is %s", cell.ID, cell.Offer(), cell.Phase)}
}
