package pods

import (
	"errors"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
)

// volumeRetry is how often a pod's volumes are looked at while it waits for them:
// nodes may not watch claims and volumes.
const volumeRetry = 2 * time.Second

// waitsForVolume says why a pod gets no cell before its volumes can be had.
func (c *Controller) waitsForVolume(pod *corev1.Pod, err error) (time.Duration, error) {
	reason := events.VolumeNotReady
	var notReady *volumes.NotReadyError
	var unsupported *volumes.UnsupportedError
	switch {
	case errors.As(err, &unsupported):
		reason = events.VolumeUnsupported
	case !errors.As(err, &notReady):
		return 0, err
	}
	c.waits(pod, reason, err.Error(), c.cfg.Clock.Now().Add(volumeRetry))
	return volumeRetry, nil
}

// zoneOf is where disks are, which are all in one zone; "" for none.
func zoneOf(needs volumes.Needs) string {
	for _, d := range needs.Disks {
		return d.Zone
	}
	return ""
}

// withVolumes is the pod with what its volumes take of its machine: their plugins and their disks.
func withVolumes(pod *corev1.Pod, needs volumes.Needs) *corev1.Pod {
	for _, p := range needs.Plugins {
		pod = placement.With(pod, p.Requests)
	}
	return placement.WithDisks(pod, len(needs.Disks))
}

func pluginsOf(needs volumes.Needs) []cells.Plugin {
	var plugins []cells.Plugin
	for _, p := range needs.Plugins {
		plugins = append(plugins, cells.Plugin{Driver: p.Driver, Pod: p.Pod})
	}
	return plugins
}

func disksOf(needs volumes.Needs) []cells.Disk {
	var disks []cells.Disk
	for _, d := range needs.Disks {
		disks = append(disks, cells.Disk{ID: d.ID, Volume: d.Volume})
	}
	return disks
}
