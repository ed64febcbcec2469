package podlogs

import (
	"testing"
	"time"
)

// Each bound of what is kept, where it comes from, and the largest that a node does. That a log of a node's size is kept
// whole, TestALogOfANodesSizeIsKeptWhole tries, and that its reader may lag, TestAReaderThatLagsGetsTheWholeLog.
func TestEachBoundLeavesRoomForWhatANodeDoes(t *testing.T) {
	const (
		rotated = 10 << 20 // ContainerLogMaxSize, pkg/kubelet/apis/config/v1beta1/defaults.go
		maxPods = 110      // MaxPods, the same file
	)
	for _, b := range []struct {
		name          string
		bound, honest int64
		source        string
	}{
		{"DefaultMaxBytesPerContainer", DefaultMaxBytesPerContainer, rotated, "ContainerLogMaxSize"},
		{"DefaultMaxBytesPerContainer", DefaultMaxBytesPerContainer, 89_000 * (109 + 31), "9.7 MB in lines, as a node showed them"},
		{"DefaultMaxBytesPerPod", DefaultMaxBytesPerPod, 2 * 50 * rotated, "50 containers that log without end, and their runs before"},
		{"DefaultMaxBytesTotal", DefaultMaxBytesTotal, 2 * maxPods * rotated, "a node full of pods that log without end"},
		{"SaveTimeout", int64(SaveTimeout), int64(10 * time.Second), "a kubelet that was started anew and lists its pod"},
		{"leastRate", int64(time.Second) * rotated / leastRate, int64(10 * time.Second), "a log of a node's size by a link of 10 Mbit/s has 10 s more"},
	} {
		if b.bound < b.honest {
			t.Errorf("%s is %d, and a node does %d: %s", b.name, b.bound, b.honest, b.source)
		}
	}
}
