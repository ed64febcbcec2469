package stats

import (
	"context"
	"slices"
	"sync"
	"time"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const volumesName = "volumes"

// Volume is what the kubelet of a cell says of a volume of its pod's claim. What it does not
// say is nil.
type Volume struct {
	Namespace, Claim string

	CapacityBytes, AvailableBytes, UsedBytes *uint64
	Inodes, InodesFree, InodesUsed           *uint64
	Abnormal                                 *bool
}

// Volumes returns the volumes of the claims of the node's pods, each once. It asks the cells
// of pods with claims only.
func (s *Stats) Volumes(ctx context.Context) ([]Volume, error) {
	a, err := s.volumes.get(ctx)
	if err != nil {
		return nil, err
	}
	return a.volumes, nil
}

// withClaims are the cells whose pods have claims.
func (s *Stats) withClaims() []Cell {
	return slices.DeleteFunc(s.c.Cells(), func(c Cell) bool { return len(c.Claims) == 0 })
}

// volumes merges what summaries say of claims.
type volumes struct{}

func (volumes) begin(now time.Time) merger { return &volumeMerger{of: map[claim]Volume{}} }

type claim struct{ namespace, name string }

type volumeMerger struct {
	mu sync.Mutex
	of map[claim]Volume
}

// volumeSize is what is kept of a volume, in bytes, beside its names.
const volumeSize = 256

func (m *volumeMerger) held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return volumeSize * len(m.of)
}

// add takes what a cell says of the claims of its own pod. A claim may be of several pods: each
// kubelet says the same of it, and one of them is believed.
func (m *volumeMerger) add(c *Cell, body []byte) error {
	s, err := readSummary(body)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range s.Pods {
		if ref := s.Pods[i].PodRef; ref.Namespace != c.Namespace || ref.Name != c.Pod || ref.UID != string(c.UID) {
			continue
		}
		for _, v := range s.Pods[i].VolumeStats {
			if v.PVCRef == nil || v.PVCRef.Namespace != c.Namespace || !slices.Contains(c.Claims, v.PVCRef.Name) {
				continue
			}
			of := claim{c.Namespace, v.PVCRef.Name}
			if _, told := m.of[of]; !told {
				m.of[of] = volumeOf(of, &v)
			}
		}
		break // a cell has one pod
	}
	return nil
}

func volumeOf(of claim, v *statsapi.VolumeStats) Volume {
	is := Volume{
		Namespace:      of.namespace,
		Claim:          of.name,
		CapacityBytes:  v.CapacityBytes,
		AvailableBytes: v.AvailableBytes,
		UsedBytes:      v.UsedBytes,
		Inodes:         v.Inodes,
		InodesFree:     v.InodesFree,
		InodesUsed:     v.InodesUsed,
	}
	if v.VolumeHealthStats != nil {
		is.Abnormal = &v.VolumeHealthStats.Abnormal
	}
	return is
}

func (m *volumeMerger) end([]Cell) (*answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &answer{}
	for _, v := range m.of {
		a.volumes = append(a.volumes, v)
	}
	return a, nil
}
