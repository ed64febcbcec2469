package machine

import (
	"context"

	"github.com/elotl/kip/internal/agent/readahead"
)

// programs are those of the image (image/boot/build.go) that each cell starts, in their order. A
// program that is not read ahead is read by page faults, one after another.
var programs = []string{"/usr/bin/itzo-containerd", "/usr/bin/itzo-components", "/usr/bin/runc"}

// aheadShare is the part of a machine's memory that programs may fill ahead: one byte of so many.
const aheadShare = 4

// readAhead reads the programs before the agent starts them, until ctx ends. Nothing waits for it.
func (m *machine) readAhead(ctx context.Context) {
	total, err := memory()
	if err != nil {
		m.console.Say("%v", err)
		return
	}
	// A step that fails is told, and the programs are read when they are started.
	_ = m.console.Step("read containerd, kubelet and runc ahead", func() error {
		return readahead.Files(ctx, total/aheadShare, programs...)
	})
}
