package kip

import (
	"context"
	"log/slog"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/podlogs"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// savedLogs are those of pods that have ended.
type savedLogs struct {
	nodes *nodes.Nodes
	saver *podlogs.Saver
	log   *slog.Logger
}

var _ cells.Logs = savedLogs{}

// SaveLogs keeps the logs of all containers of a cell's pod.
func (s savedLogs) SaveLogs(ctx context.Context, cell cells.Cell, agent agentapi.Conn) error {
	listing, cancel := context.WithTimeout(ctx, podlogs.SaveTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(listing.Done(), func() bool { return s.nodes.Listed(cell.Node) }) {
		return nodes.ErrNotListed
	}
	ref := cell.Pod
	obj, exists, err := s.nodes.Pods().GetStore().GetByKey(ref.String())
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
	return s.saver.Save(ctx, ref.Namespace, ref.Name, ref.UID, names, podlogs.FromCell(agent, ref.Namespace, ref.Name))
}

// HasStreams implements cells.Logs.
func (s savedLogs) HasStreams(pod types.UID) bool { return s.saver.HasStreams(pod) }

// Finish implements cells.Logs.
func (s savedLogs) Finish(ctx context.Context, pod types.UID) { s.saver.Finish(ctx, pod) }

// forget removes the saved logs of a pod that no longer exists.
func (s savedLogs) forget(pod types.UID) {
	if err := s.saver.Remove(pod); err != nil {
		s.log.Warn("remove the saved logs of a pod", "uid", pod, "err", err)
	}
}

const (
	logSweep  = 10 * time.Minute
	logMaxAge = 7 * 24 * time.Hour
)

// sweep removes the saved logs of pods that no longer exist, until ctx ends. It needs the list of
// those that do.
func (s savedLogs) sweep(ctx context.Context, clock clock.WithTicker) error {
	cache.WaitForCacheSync(ctx.Done(), s.nodes.Pods().HasSynced)
	tick := clock.NewTicker(logSweep)
	defer tick.Stop()
	for ctx.Err() == nil {
		exists := map[types.UID]bool{}
		for _, pod := range watches.List(s.nodes.Pods()) {
			exists[pod.UID] = true
		}
		if err := s.saver.Sweep(func(uid types.UID) bool { return exists[uid] }, logMaxAge); err != nil {
			s.log.Warn("sweep saved logs", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C():
		}
	}
	return nil
}
