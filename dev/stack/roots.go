package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/elotl/kip/dev/node"
	"github.com/elotl/kip/image"
)

// roots are the trees that machines start from.
type roots struct{ *site }

// BuildCellRoot makes the tree that all cells start from, where it is missing
// or made of other programs. Virtual machines have theirs in their image.
func (s *roots) BuildCellRoot(ctx context.Context) error {
	if s.opts.Virtual() {
		return nil
	}
	o, err := s.rootOptions()
	if err != nil {
		return err
	}
	return image.Build(ctx, o)
}

// rootOptions are what a cell's root is made of.
func (s *roots) rootOptions() (image.Options, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return image.Options{}, fmt.Errorf("find busybox: %w", err)
	}
	programs, err := image.HostPrograms()
	if err != nil {
		return image.Options{}, err
	}
	certificates := image.HostCertificates
	if _, err := os.Stat(certificates); errors.Is(err, fs.ErrNotExist) {
		certificates = "" // the cells then pull from our registry only
	}
	bin := func(name string) string { return filepath.Join(s.opts.Bin, name) }
	programs[image.Portmap] = bin("portmap")
	return image.Options{
		Dir:            s.opts.CellRoot,
		Itzo:           bin("itzo"),
		ItzoContainerd: bin("itzo-containerd"),
		ItzoLite:       bin("itzo-lite"),
		Runc:           bin("runc"),
		Pause:          bin("pause"),
		Busybox:        busybox,
		Certificates:   certificates,
		Programs:       programs,
	}, nil
}

// nodeRoot is the tree that ordinary nodes start from, beside that of the cells.
func (s *roots) nodeRoot() string { return filepath.Join(filepath.Dir(s.opts.CellRoot), "node-root") }

// BuildNodeRoot makes the tree that ordinary nodes start from, if there are any.
func (s *roots) BuildNodeRoot(ctx context.Context) error {
	if s.opts.Nodes == 0 {
		return nil
	}
	o, err := s.rootOptions()
	if err != nil {
		return err
	}
	o.Dir = s.nodeRoot()
	o.Programs[nodeInit] = filepath.Join(s.opts.Bin, "kip-node")
	for _, plugin := range []string{"ptp", "host-local"} {
		o.Programs[filepath.Join(node.PluginDir, plugin)] = filepath.Join(s.opts.Bin, plugin)
	}
	return image.Build(ctx, o)
}
