package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agent/cgroups"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/supervise"
)

const (
	// components is the program that is the kubelet and kube-proxy.
	components = "/bin/itzo-components"
	// containerdProgram is the one that is containerd, and asks it.
	containerdProgram = "/bin/itzo-containerd"
	// shim is the program that is containerd's shim.
	shim = "/bin/itzo"
	// pauseArchive is the image of pods' sandboxes.
	pauseArchive = "/usr/share/kip/pause.tar"
	logDir       = "/var/log"
	// VolumeDir is for a volume on the node's own disk.
	VolumeDir = "/var/lib/volume"
	// logBytes bounds a part's log file; it and one rotated one are kept.
	logBytes = 64 << 20
	// stopTimeout is what a part has from SIGTERM to SIGKILL.
	stopTimeout = 5 * time.Second
	// importRetry is the pause after a failed import of the pause image.
	importRetry = time.Second
)

// Run is the first process of a node's machine. It runs the node until ctx ends.
func Run(ctx context.Context, c Config, log *slog.Logger) error {
	if err := cgroups.Enter("system"); err != nil {
		log.Warn("separate the node's own parts from pods", "err", err)
	}
	if err := prepare(c); err != nil {
		return err
	}
	n := &node{
		config:   c,
		log:      log,
		reaper:   supervise.NewReaper(log),
		imported: make(chan struct{}),
	}
	if err := n.write(); err != nil {
		return err
	}
	containerd, err := n.part(supervise.Spec{Name: "containerd", Path: containerdProgram,
		Args: []string{"--config=" + configs.ContainerdConfig}})
	if err != nil {
		return err
	}
	kubelet, err := n.part(supervise.Spec{
		Name:     "kubelet",
		Path:     components,
		Args:     c.kubeletArgs(),
		WaitsFor: "containerd and its pause image",
		Ready: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-n.imported:
				return nil
			}
		},
	})
	if err != nil {
		return err
	}
	proxy, err := n.part(supervise.Spec{Name: "kube-proxy", Path: components, Args: []string{"--config=" + proxyConfig}})
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	all.Go(func() { n.reaper.Reap(ctx) })
	all.Go(func() { n.importPause(ctx) })
	for _, p := range []*supervise.Process{containerd, kubelet, proxy} {
		all.Go(func() { defer p.Close(); p.Run(ctx) })
	}
	log.Info("the node runs", "node", c.Name, "ip", c.IP, "pods", c.PodCIDR)
	all.Wait()
	return nil
}

type node struct {
	config   Config
	log      *slog.Logger
	reaper   *supervise.Reaper
	imported chan struct{} // closed when containerd serves and has the pause image
}

// write writes all configuration, and the name by which containerd finds its
// shim.
func (n *node) write() error {
	host, err := configs.InspectHost("/")
	if err != nil {
		return err
	}
	_, err = os.Stat("/" + PluginDir + "/portmap")
	files, err := n.config.files(host, configs.PauseImage, err == nil)
	if err != nil {
		return err
	}
	if err := write(files); err != nil {
		return err
	}
	if err := os.MkdirAll(binDir, 0o755); err != nil {
		return fmt.Errorf("make the folder of links: %w", err)
	}
	if err := os.Symlink(shim, filepath.Join(binDir, "containerd-shim-runc-v2")); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("link containerd's shim: %w", err)
	}
	return nil
}

func (n *node) env() []string {
	return []string{"PATH=" + binDir + ":" + os.Getenv("PATH"), "HOME=/root"}
}

// part prepares a supervised process, whose path the caller has set.
func (n *node) part(s supervise.Spec) (*supervise.Process, error) {
	log, err := supervise.OpenLog(filepath.Join(logDir, s.Name+".log"), logBytes)
	if err != nil {
		return nil, err
	}
	s.Env, s.StopTimeout, s.Log = n.env(), stopTimeout, log
	return supervise.New(s, supervise.Options{
		Reaper: n.reaper,
		Clock:  clock.RealClock{},
		Log:    n.log,
	}), nil
}

// importPause loads the pause image once containerd serves.
func (n *node) importPause(ctx context.Context) {
	for ctx.Err() == nil {
		cmd := &exec.Cmd{
			Path:        containerdProgram,
			Args:        []string{"import-images", pauseArchive},
			Env:         n.env(),
			Stdout:      os.Stderr,
			Stderr:      os.Stderr,
			Dir:         "/",
			SysProcAttr: &unix.SysProcAttr{Setpgid: true},
		}
		err := n.reaper.Run(ctx, cmd)
		if err == nil {
			close(n.imported)
			return
		}
		n.log.Warn("import the pause image", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(importRetry):
		}
	}
}

// prepare makes the machine a node of its name, whose neighbours find its pods.
func prepare(c Config) error {
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := os.MkdirAll(VolumeDir, 0o755); err != nil {
		return fmt.Errorf("make the folder of a volume: %w", err)
	}
	for _, s := range []struct{ key, value string }{
		{"net/ipv4/ip_forward", "1"},
		// The node answers ARP for what it routes to another device than it was
		// asked on: its pods, and of those only the ones that are there.
		{"net/ipv4/conf/eth0/proxy_arp", "1"},
		// At once, and not after up to 0.8 s of politeness.
		{"net/ipv4/neigh/eth0/proxy_delay", "0"},
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys", s.key), []byte(s.value), 0o644); err != nil {
			return fmt.Errorf("set sysctl %s: %w", s.key, err)
		}
	}
	return nil
}
