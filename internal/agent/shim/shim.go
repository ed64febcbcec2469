// Package shim is upstream's containerd-shim-runc-v2 as a function. It adds
// nothing to it.
package shim

import (
	"context"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

// Run runs the shim's command line, which it reads from os.Args. It ends the
// process by itself when it fails.
func Run() int {
	// The shim starts every plugin that is registered. In a binary that is
	// containerd too these are containerd's: leave only the shim's own.
	registry.Reset()
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			publisher, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			stop, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			return task.NewTaskService(ic.Context, publisher.(shim.Publisher), stop.(shutdown.Service))
		},
	})
	shim.RunShim(context.Background(), manager.NewShimManager("io.containerd.runc.v2"))
	return 0
}
