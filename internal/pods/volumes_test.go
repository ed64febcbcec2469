package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAPodWaitsForItsVolumesWithoutACell(t *testing.T) {
	h := newHarness(t)
	h.put(pod("a"))
	h.volumeErr = &volumes.UnsupportedError{Volume: "v", Why: "no"}
	for range 2 {
		if again := h.must("a"); again != volumeRetry {
			t.Errorf("looked at again after %s, want %s", again, volumeRetry)
		}
	}
	h.clock.Step(volumeRetry)
	h.volumeErr = &volumes.NotReadyError{Volume: "v", Why: "not bound"}
	h.must("a")
	h.want("requests", h.cells.requests)
	h.want("events", h.events, "Warning VolumeUnsupported", "Warning VolumeNotReady")

	h.clock.Step(volumeRetry)
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
	h.place = func(*corev1.Pod) ([]cells.Offer, error) { return nil, errors.New("no instance type fits") }
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
