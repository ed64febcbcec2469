package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAPodWaitsForItsVolumesWithoutACell(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.volumeErr = &volumes.UnsupportedError{Volume: "v", Why: "no"}
	for range 2 { // the second is no look
		if again := h.must("a"); again != volumeRetry {
			t.Errorf("looked at again after %s, want %s", again, volumeRetry)
		}
	}
	h.clock.Step(volumeRetry)
	h.volumeErr = &volumes.NotReadyError{Volume: "v", Why: "not bound"}
	if again := h.must("a"); again != 2*volumeRetry {
		t.Errorf("after the second look it is looked at again after %s, want %s", again, 2*volumeRetry)
	}
	h.want("requests", h.cells.requests)
	h.want("events", h.events, "Warning VolumeUnsupported", "Warning VolumeNotReady")

	h.clock.Step(2 * volumeRetry)
	h.volumeErr = errors.New("the API server is down")
	if _, err := h.reconcile("a"); err == nil {
		t.Error("an error that is nobody's fault is not retried")
	}
	h.volumeErr, h.needs.Disks = nil, []volumes.Disk{{ID: "disk-1", Volume: "pvc-1", Zone: "b"}}
	h.must("a")
	h.want("requests", h.cells.requests, "uid-a#1")
	if room := h.placed.Spec.Overhead["kip.elotl.co/disks"]; room.Value() != 1 {
		t.Errorf("placed with room for %s disks, want 1", room.String())
	}
	if want := []cells.Disk{{ID: "disk-1", Volume: "pvc-1"}}; !slices.Equal(h.cells.disks, want) || h.zone != "b" {
		t.Errorf("requested with %v in zone %q: want %v in b", h.cells.disks, h.zone, want)
	}
}

func TestAPodThatFitsNothingIsToldWhereItsDiskIs(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.needs.Disks = []volumes.Disk{{ID: "disk-1", Volume: "pvc-1", Zone: "b"}}
	h.place = func(*corev1.Pod) ([]offering.Offering, error) { return nil, errors.New("no instance type fits") }
	h.must("a")
	if why := h.c.Waiting(pod("a").UID); !strings.HasSuffix(why, "no instance type fits; the disks of its volumes are in zone b") {
		t.Errorf("the pod waits for %q", why)
	}
}

func TestAPodWhoseDiskIsUsedWaitsUntilItIsFree(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.needs.Disks = []volumes.Disk{{ID: "disk-1", Volume: "pvc-1"}}
	h.cells.refuse = fmt.Errorf("request: %w", &cells.DiskInUseError{
		Disk: cells.Disk{ID: "disk-1", Volume: "pvc-1"},
		Pod:  apiv1.PodReference{Namespace: "ns", Name: "b"},
	})
	h.must("a")
	h.must("a")
	h.want("events", h.events, "Warning VolumeInUse")
	h.cells.refuse = nil
	h.clock.Step(volumeRetry)
	h.must("a")
	h.want("requests", h.cells.requests, "uid-a#1")
}

// untilWoken is when the pod is looked at next, if nothing else happens.
func (h *harness) untilWoken(name string) time.Duration {
	return h.c.core.waits.get(pod(name).UID).until.Sub(h.clock.Now())
}

func TestAPodThatWaitsForItsClaimIsLookedAtWhenThatChanges(t *testing.T) {
	h := newHarness(t)
	for name, claim := range map[string]string{"a": "of-a", "b": "of-b"} {
		p := pod(name)
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		h.put(p)
	}
	h.volumeErr = &volumes.NotReadyError{Volume: "v", Why: "not bound"}
	looks := 0
	for range 12 { // hours would be the same
		looks++
		h.must("b")
		h.clock.Step(h.must("a"))
	}
	if again := h.must("a"); again != longestVolumeRetry {
		t.Errorf("after %d looks it is looked at again after %s, want %s", looks, again, longestVolumeRetry)
	}
	h.must("b")
	h.clock.Step(longestVolumeRetry / 2)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod("a").Namespace, Name: "of-a"}}
	h.c.requests.volumes.claimChanged(claim)
	if a, b := h.untilWoken("a"), h.untilWoken("b"); a > 0 || b <= 0 {
		t.Errorf("of a claim that has changed the pod waits another %s, and that of another claim %s", a, b)
	}
	h.must("a") // in vain
	h.c.requests.volumes.claimChanged(claim)
	if got, want := h.untilWoken("a"), longestVolumeRetry/wakeShare; got != want {
		t.Errorf("of a claim that changes at once again the pod waits another %s, want %s", got, want)
	}
	h.volumeErr = nil
	h.clock.Step(longestVolumeRetry / wakeShare)
	h.must("a")
	h.want("requests", h.cells.requests, "uid-a#1")
	h.c.ends.watching.forget(pod("b").UID)
	if len(h.c.core.waits.awaited) != 0 {
		t.Errorf("of pods that wait no more it is known that they wait for %v", h.c.core.waits.awaited)
	}
}

// The cloud is asked about the disk of a pod that has waited for its claim for long: it does not wait as long for the answer.
func TestAPodWaitsForTheAnswerAboutItsDiskWithABackOffOfItsOwn(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.volumeErr = &volumes.NotReadyError{Volume: "v", Why: "not bound"}
	for range 12 {
		h.clock.Step(h.must("a"))
	}
	h.volumeErr = fmt.Errorf("volume v: %w", errors.Join(&volumes.NotReadyError{Volume: "v", Why: "not told"}, volumes.ErrUntold))
	if again := h.must("a"); again != volumeRetry {
		t.Errorf("looked at again after %s, want %s", again, volumeRetry)
	}
	for range 12 {
		h.clock.Step(h.must("a"))
	}
	if again := h.must("a"); again != longestVolumeRetry {
		t.Errorf("after many looks it is looked at again after %s, want %s", again, longestVolumeRetry)
	}
}

// A pod that waits for something else by now is not looked at for its claim.
func TestAClaimWakesNoPodThatWaitsForCapacity(t *testing.T) {
	h := newHarness(t)
	p := pod("a")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	h.put(p)
	h.volumeErr = &volumes.NotReadyError{Volume: "v", Why: "not bound"}
	h.clock.Step(h.must("a"))
	h.volumeErr = nil
	h.place = func(*corev1.Pod) ([]offering.Offering, error) { return nil, errors.New("no instance type fits") }
	h.must("a")
	before := h.untilWoken("a")
	h.c.requests.volumes.claimChanged(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}})
	if after := h.untilWoken("a"); before <= 0 || after != before {
		t.Errorf("it waits another %s, and after a change of its claim %s", before, after)
	}
}

func TestTheEndOfACellWakesThePodThatHasWaitedLongestForItsDisk(t *testing.T) {
	h := newHarness(t)
	disk := cells.Disk{ID: "disk-1", Volume: "pvc-1"}
	h.needs.Disks = []volumes.Disk{{ID: disk.ID, Volume: disk.Volume}}
	h.cells.refuse = &cells.DiskInUseError{Disk: disk, Pod: apiv1.PodReference{Namespace: "ns", Name: "holder"}}
	for _, name := range []string{"a", "b", "c"} {
		h.put(pod(name))
		h.must(name)
		h.clock.Step(time.Second)
	}
	for range 12 {
		for _, name := range []string{"a", "b", "c"} {
			h.must(name)
		}
		h.clock.Step(longestVolumeRetry)
	}
	for _, name := range []string{"a", "b", "c"} {
		h.must(name)
	}
	h.clock.Step(longestVolumeRetry / 2)
	h.c.CellChanged(cells.Cell{Phase: apiv1.Terminating, Wants: cells.Wants{Disks: []cells.Disk{{ID: "disk-2"}, disk}}})
	if a, b, c := h.untilWoken("a"), h.untilWoken("b"), h.untilWoken("c"); a > 0 || b <= 0 || c <= 0 {
		t.Errorf("the pods wait another %s, %s and %s: want the first to wait no more", a, b, c)
	}
}

func TestThePluginsOfAPodsVolumesAreItsCells(t *testing.T) {
	h := newHarness(t)
	p := pod("a")
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")},
	}}}
	h.put(p)
	h.needs.Plugins = []volumes.Plugin{{
		Driver:   "nfs",
		Pod:      []byte("{}"),
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("20Mi")},
	}}
	h.must("a")
	if len(h.cells.plugins) != 1 || h.cells.plugins[0].Driver != "nfs" || string(h.cells.plugins[0].Pod) != "{}" {
		t.Errorf("requested with %+v", h.cells.plugins)
	}
	if got := h.placed.Spec.Overhead.Memory().String(); got != "20Mi" {
		t.Errorf("placed with %s beside the pod: want 20Mi", got)
	}
}
