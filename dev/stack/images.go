package stack

import (
	"context"
	"fmt"
	"os/exec"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/elotl/kip/dev/listen"
	"github.com/elotl/kip/dev/registry"
)

// registryPort is preferred; another is taken when it is not free.
const registryPort = 5000

// ExampleImage is what the registry has, under the name that it has on docker.io.
const ExampleImage = "library/busybox:1.36"

// images are those of the stack's registry.
type images struct {
	*site

	Registry *registry.Registry
	example  v1.Image // that under ExampleImage
}

// StartRegistry starts the registry on the bridge and pushes the example image and
// those of Options.Images.
func (s *images) StartRegistry(ctx context.Context) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("find busybox: %w", err)
	}
	if s.example, err = registry.Busybox(ctx, busybox); err != nil {
		return err
	}
	l, err := listen.On(ctx, s.address, registryPort)
	if err != nil {
		return fmt.Errorf("start the registry: %w", err)
	}
	if s.Registry, err = registry.Start(l, s.path("registry"), s.opts.Log); err != nil {
		return err
	}
	if err := s.Registry.Push(ctx, ExampleImage, s.example); err != nil {
		return err
	}
	for _, folder := range s.opts.Images {
		if err := s.Registry.PushLayout(ctx, folder); err != nil {
			return err
		}
	}
	return nil
}
