package kip

import (
	"context"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// saveLogs keeps the logs of all containers of a pod that has ended.
func (l *leading) saveLogs(ctx context.Context, ref apiv1.PodReference, agent agentapi.Conn) error {
	cell, _ := l.cells.ForPod(ref.UID)
	if !cache.WaitForCacheSync(ctx.Done(), func() bool { return l.nodes.Listed(cell.Node) }) {
		return nodes.ErrNotListed
	}
	obj, exists, err := l.nodes.Pods().GetStore().GetByKey(ref.String())
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
	return l.logs.Save(ctx, ref.Namespace, ref.Name, ref.UID, names, podlogs.FromCell(agent, ref.Namespace, ref.Name))
}

const (
	logSweep  = 10 * time.Minute
	logMaxAge = 7 * 24 * time.Hour
)

// sweepLogs removes the saved logs of pods that no longer exist. It needs the list of
// those that do.
func (l *leading) sweepLogs(ctx context.Context) error {
	cache.WaitForCacheSync(ctx.Done(), l.nodes.Pods().HasSynced)
	tick := l.clock.NewTicker(logSweep)
	defer tick.Stop()
	for ctx.Err() == nil {
		exists := map[types.UID]bool{}
		for _, pod := range watches.List(l.nodes.Pods()) {
			exists[pod.UID] = true
		}
		if err := l.logs.Sweep(func(uid types.UID) bool { return exists[uid] }, logMaxAge); err != nil {
			l.Log.Warn("sweep saved logs", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C():
		}
	}
	return nil
}
