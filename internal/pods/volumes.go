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
	"k8s.io/utils/clock"
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

// volumeWaits has pods wait for their volumes.
type volumeWaits struct {
	loop   *loop
	waits  *waits
	random backoff.Random
	clock  clock.PassiveClock
}

func claimKey(namespace, name string) string { return "claim/" + namespace + "/" + name }

func diskKey(id string) string { return "disk/" + id }

// waitsForVolume reports why a pod gets no cell before its volumes can be had.
func (s *volumeWaits) waitsForVolume(pod *corev1.Pod, err error) (time.Duration, error) {
	event := events.NewVolumeNotReady(err)
	var notReady *volumes.NotReadyError
	var unsupported *volumes.UnsupportedError
	switch {
	case errors.As(err, &unsupported):
		event = events.NewVolumeUnsupported(err)
	case !errors.As(err, &notReady):
		return 0, err
	}
	var keys []string
	for i := range pod.Spec.Volumes {
		if name := volumes.ClaimOf(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, claimKey(pod.Namespace, name))
		}
	}
	return s.waitsForVolumes(pod, event, err, keys...), nil
}

// waitsForVolumes notes and reports that a pod waits for claims or disks, and returns for how long.
func (s *volumeWaits) waitsForVolumes(pod *corev1.Pod, e events.Event, why error, keys ...string) time.Duration {
	now, wait := s.clock.Now(), volumeRetry
	s.waits.note(apiv1.Ref(pod), func(w *waiting) {
		w.looked = now
		if errors.Is(why, volumes.ErrUntold) {
			w.unknown++
			wait = s.random.After(w.unknown+1, firstBackoff, longestVolumeRetry)
			return
		}
		w.looks, w.unknown = w.looks+1, 0
		wait = w.volumeWait(s.random)
	})
	s.waits.report(pod, otherCause, e, why.Error(), now.Add(wait), keys...)
	return wait
}

// volumeWait is how long the pod waits after so many looks.
func (w *waiting) volumeWait(random backoff.Random) time.Duration {
	return random.After(w.looks+1, firstBackoff, longestVolumeRetry)
}

// claimChanged wakes the pods that wait for a claim.
func (s *volumeWaits) claimChanged(obj any) {
	name, err := cache.ObjectToName(obj)
	if err != nil {
		return
	}
	s.waits.registry.mu.Lock()
	defer s.waits.registry.mu.Unlock()
	for uid, pod := range s.waits.awaited[claimKey(name.Namespace, name.Name)] {
		s.wakeForVolumes(pod, s.waits.of[uid])
	}
}

// disksFreed wakes, for each disk that no live cell has any more, the pod that has waited for it longest.
func (s *volumeWaits) disksFreed(disks []cells.Disk) {
	s.waits.registry.mu.Lock()
	defer s.waits.registry.mu.Unlock()
	seen := s.waits.registry.seen
	for _, d := range disks {
		var first types.UID
		waiting := s.waits.awaited[diskKey(d.ID)]
		for uid := range waiting {
			if first == "" || seen[uid].Before(seen[first]) {
				first = uid
			}
		}
		if first != "" {
			s.wakeForVolumes(waiting[first], s.waits.of[first])
		}
	}
}

// wakeForVolumes brings the next look at a pod's volumes forward. The caller holds the registry's mu.
func (s *volumeWaits) wakeForVolumes(pod cache.ObjectName, w *waiting) {
	now := s.clock.Now()
	soon := w.looked.Add(w.volumeWait(s.random) / wakeShare)
	if soon.Before(now) {
		soon = now
	}
	if w.until.After(soon) {
		w.until = soon
		s.loop.wakeAfter(pod, soon.Sub(now))
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
		plugins = append(plugins, cells.Plugin{Driver: p.Driver, Beside: p.Beside, Pod: p.Pod})
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
