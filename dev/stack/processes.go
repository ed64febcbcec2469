package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/cloud/local"
	kipnode "github.com/elotl/kip/internal/node"
)

// markVariable is in the environment of all that a stack starts, with the state
// folder as its value, so that what is left of it is found.
const markVariable = "KIP_DEV_STATE"

// processes are those of all Kips.
type processes struct {
	*site
	controlPlane *controlPlane
	model        *model
	configuring  *configuring

	Kip   *child.Process // of the first
	ready bool           // all were up once, so that they can end well
}

// WriteProviderConfig writes the provider.yaml of the first Kip and returns its
// path; a test may change it before Kip is started again.
func (s *processes) WriteProviderConfig() (string, error) {
	return s.kips[0].path("provider.yaml"), s.writeProviderConfig(s.kips[0])
}

func (s *processes) writeProviderConfig(k *kip) error {
	data, err := yaml.Marshal(s.configuring.providerConfig(k))
	if err != nil {
		return fmt.Errorf("make provider.yaml of %s: %w", k.node, err)
	}
	data = append([]byte("# Written by kip-dev, for this run.\n"), data...)
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", k.node, err)
	}
	if err := os.WriteFile(k.path("provider.yaml"), data, 0o600); err != nil {
		return fmt.Errorf("write provider.yaml: %w", err)
	}
	return nil
}

// command is how a Kip is run in this stack: its path and arguments, and what
// its environment has besides.
func (s *processes) command(k *kip) (path string, args, env []string) {
	args = []string{
		"--kubeconfig=" + s.controlPlane.Cluster.KipKubeconfig(),
		"--provider-config=" + k.path("provider.yaml"),
		"--nodename=" + k.node,
		"--node-ip=" + k.nodeIP(),
		"--metrics-addr=" + net.JoinHostPort(k.address.String(), "10255"),
	}
	env = []string{markVariable + "=" + s.opts.State}
	if s.model.ec2 != nil {
		env = append(env, awsEnvironment...)
	}
	if s.opts.Nodes == 0 {
		args = append(args, "--disable-taint")
	} else {
		// Pods that do not choose go to ordinary nodes; those that choose Kip
		// need no toleration, with ordinary nodes or without.
		env = append(env, kipnode.TaintEffectEnv+"="+string(corev1.TaintEffectPreferNoSchedule))
	}
	if s.opts.Verbose {
		args = append(args, "--v=1")
	}
	args = append(args, s.opts.KipArgs...)
	return cmp.Or(s.opts.Kip, filepath.Join(s.opts.Bin, "kip")), args, env
}

// StartKip starts the first Kip. It can be called again when that has ended.
func (s *processes) StartKip() error {
	path, args, env := s.command(s.kips[0])
	var err error
	s.Kip, err = child.Start(child.Spec{
		Path:    path,
		Args:    args,
		Env:     env,
		LogFile: s.KipLog(),
		Record:  s.KipRecord(),
	})
	return err
}

func (s *processes) start(k *kip) error {
	if err := s.writeProviderConfig(k); err != nil {
		return err
	}
	path, args, env := s.command(k)
	var err error
	k.process, err = child.Start(child.Spec{
		Path:    path,
		Args:    args,
		Env:     env,
		LogFile: s.peerLog(k.node),
		Record:  k.path("kip.json"),
	})
	return err
}

// StartPeers starts all Kips but the first.
func (s *processes) StartPeers() error {
	for _, k := range s.kips[1:] {
		if err := s.start(k); err != nil {
			return err
		}
	}
	return nil
}

// NodeReady waits until the virtual nodes of all Kips are Ready and take pods, or
// a Kip ends.
func (s *processes) NodeReady(ctx context.Context) error {
	for _, k := range s.kips {
		process := k.process
		if k == s.kips[0] {
			process = s.Kip
		}
		for _, name := range s.opts.nodeNames(k) {
			if err := s.controlPlane.nodeReady(ctx, name, process); err != nil {
				return err
			}
		}
	}
	s.ready = true
	return nil
}

// KillKip ends the first Kip as a crash would, if it runs. That it had died by
// itself a moment before is an error.
func (s *processes) KillKip() error {
	if s.Kip == nil {
		return nil
	}
	err := errors.Join(s.Kip.Kill(), unasked(s.kips[0].node, s.Kip))
	s.Kip = nil
	return err
}

// unasked says that a Kip has ended otherwise than as it was asked to.
func unasked(node string, p *child.Process) error {
	if err := p.Unasked(); err != nil {
		return fmt.Errorf("kip of node %s did not end as it was asked to: %w", node, err)
	}
	return nil
}

func endOf(p *child.Process) error {
	if err := p.Err(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// stopPeers ends all Kips but the first.
func (s *processes) stopPeers(ctx context.Context) error {
	var errs []error
	for _, k := range s.kips[1:] {
		if k.process != nil {
			errs = append(errs, k.process.Stop(ctx))
			if s.ready {
				errs = append(errs, unasked(k.node, k.process))
			}
			k.process = nil
		}
	}
	return errors.Join(errs...)
}

// peerEnded waits until a Kip after the first ends, and says which. It returns nil
// when ctx ends first.
func (s *processes) peerEnded(ctx context.Context) error {
	ended := make(chan error, len(s.kips))
	for _, k := range s.kips[1:] {
		if p := k.process; p != nil {
			go func() {
				select {
				case <-p.Done():
					ended <- fmt.Errorf("kip of node %s ended: %w", k.node, endOf(p))
				case <-ctx.Done():
				}
			}()
		}
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// killPeers ends the Kips but the first that a killed run left.
func (s *processes) killPeers(ctx context.Context) error {
	records, err := filepath.Glob(filepath.Join(s.path(peersFolder), "*", "kip.json"))
	if err != nil {
		return err
	}
	for _, r := range records {
		if err := child.KillRecorded(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// peersFolder, in the state folder, has a folder for each Kip but the first.
const peersFolder = "peers"

// peerClouds are the clouds of all Kips but the first that the state folder holds,
// also those of an earlier run that had more.
func (s *processes) peerClouds() ([]local.Config, error) {
	entries, err := os.ReadDir(s.path(peersFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var clouds []local.Config
	for _, e := range entries {
		dir := filepath.Join(s.path(peersFolder), e.Name(), "cloud")
		data, err := os.ReadFile(filepath.Join(dir, "bridge.json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it never had one, or it is removed
		}
		if err != nil {
			return nil, err
		}
		var record struct {
			Bridge string
			CIDR   netip.Prefix
		}
		if err := json.Unmarshal(data, &record); err != nil {
			return nil, fmt.Errorf("read the record of the bridge of %s: %w", e.Name(), err)
		}
		clouds = append(clouds, local.Config{Config: host.Config{
			StateDir: dir,
			Bridge:   record.Bridge,
			CIDR:     record.CIDR,
			Log:      s.opts.Log,
		}})
	}
	return clouds, nil
}
