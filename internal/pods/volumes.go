package pods

import (
	"errors"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// A pod that waits for its volumes is looked at again after volumeRetry, and then after twice as long each time, up to
// longestVolumeRetry. A change of one of its claims, and the end of the cell that has its disk, bring the next look forward,
// but leave wakeShare of the wait: who changes a claim again and again has its pods looked at that often and no more. Nothing
// wakes a pod whose disk another node lets go of, or whose CSI driver is installed, so that the longest wait is short.
const (
	volumeRetry        = 2 * time.Second
	longestVolumeRetry = 15 * time.Second
	wakeShare          = 8
)

// awaited are the pods that wait for a claim or a disk, by its key.
type awaited map[string]map[types.UID]cache.ObjectName

func claimKey(namespace, name string) string { return "claim/" + namespace + "/" + name }

func diskKey(id string) string { return "disk/" + id }

// waitsForVolume says why a pod gets no cell before its volumes can be had.
func (c *Controller) waitsForVolume(pod *corev1.Pod, err error) (time.Duration, error) {
	said := events.NewVolumeNotReady(err)
	var notReady *volumes.NotReadyError
	var unsupported *volumes.UnsupportedError
	switch {
	case errors.As(err, &unsupported):
		said = events.NewVolumeUnsupported(err)
	case !errors.As(err, &notReady):
		return 0, err
	}
	var keys []string
	for i := range pod.Spec.Volumes {
		if name := volumes.ClaimOf(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, claimKey(pod.Namespace, name))
		}
	}
	return c.waitsForVolumes(pod, said, err, keys...), nil
}

// waitsForVolumes notes and reports that a pod waits for claims or disks, and returns for how long.
func (c *Controller) waitsForVolumes(pod *corev1.Pod, e events.Event, why error, keys ...string) time.Duration {
	now, wait := c.cfg.Clock.Now(), volumeRetry
	c.note(apiv1.Ref(pod), func(w *waiting) {
		w.looked = now
		if errors.Is(why, volumes.ErrUntold) {
			w.untold++
			wait = c.cfg.Random.After(w.untold+1, firstBackoff, longestVolumeRetry)
			return
		}
		w.looks, w.untold = w.looks+1, 0
		wait = w.volumeWait(c.cfg.Random)
	})
	c.waits(pod, e, why.Error(), now.Add(wait), keys...)
	return wait
}

// volumeWait is how long the pod waits after so many looks.
func (w *waiting) volumeWait(random backoff.Random) time.Duration {
	return random.After(w.looks+1, firstBackoff, longestVolumeRetry)
}

// awaits notes what a pod waits for, instead of what it waited for before. The caller holds mu.
func (c *Controller) awaits(uid types.UID, pod cache.ObjectName, keys ...string) {
	w := c.pods[uid]
	if w == nil {
		return
	}
	for _, key := range w.awaits {
		if delete(c.awaited[key], uid); len(c.awaited[key]) == 0 {
			delete(c.awaited, key)
		}
	}
	w.awaits = keys
	for _, key := range keys {
		if c.awaited[key] == nil {
			c.awaited[key] = map[types.UID]cache.ObjectName{}
		}
		c.awaited[key][uid] = pod
	}
}

// claimChanged wakes the pods that wait for a claim.
func (c *Controller) claimChanged(obj any) {
	name, err := cache.ObjectToName(obj)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, pod := range c.awaited[claimKey(name.Namespace, name.Name)] {
		c.wakeForVolumes(pod, c.pods[uid])
	}
}

// disksFreed wakes of those that wait for a disk which no live cell has any more the pod that has waited longest.
func (c *Controller) disksFreed(disks []cells.Disk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range disks {
		var first types.UID
		waiting := c.awaited[diskKey(d.ID)]
		for uid := range waiting {
			if first == "" || c.pods[uid].seen.Before(c.pods[first].seen) {
				first = uid
			}
		}
		if first != "" {
			c.wakeForVolumes(waiting[first], c.pods[first])
		}
	}
}

// wakeForVolumes brings the next look at a pod's volumes forward. The caller holds mu.
func (c *Controller) wakeForVolumes(pod cache.ObjectName, w *waiting) {
	now := c.cfg.Clock.Now()
	soon := w.looked.Add(w.volumeWait(c.cfg.Random) / wakeShare)
	if soon.Before(now) {
		soon = now
	}
	if w.until.After(soon) {
		w.until = soon
		c.queue.AddAfter(pod, soon.Sub(now))
	}
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
