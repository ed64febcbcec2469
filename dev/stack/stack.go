package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/dev/cloudmodel/hardware"
	"github.com/elotl/kip/dev/leftovers"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/qemu"
)

// Stack is what runs, or is left, in one state folder. Each part of it is a struct with the few others that it depends on.
type Stack struct {
	*site
	lock *Lock

	ControlPlane *controlPlane
	masquerading *masquerading
	Images       *images
	Roots        *roots
	Nodes        *nodes
	Model        *model
	Processes    *processes
	Proxy        *proxying
	Installation *installing
	Jobs         *jobs
}

// wire makes the parts, each of those that it depends on.
func wire(at *site) *Stack {
	s := &Stack{site: at}
	s.masquerading = &masquerading{at}
	s.ControlPlane = &controlPlane{site: at, masquerading: s.masquerading}
	s.Images = &images{site: at}
	s.Roots = &roots{at}
	s.Nodes = &nodes{site: at, controlPlane: s.ControlPlane, images: s.Images, roots: s.Roots}
	s.Model = &model{site: at, controlPlane: s.ControlPlane, images: s.Images, nodes: s.Nodes}
	configuring := &configuring{site: at, images: s.Images, model: s.Model}
	s.Processes = &processes{site: at, controlPlane: s.ControlPlane, model: s.Model, configuring: configuring}
	s.Proxy = &proxying{site: at, controlPlane: s.ControlPlane}
	s.Installation = &installing{site: at, controlPlane: s.ControlPlane, configuring: configuring}
	s.Jobs = &jobs{site: at, controlPlane: s.ControlPlane}
	return s
}

// HostError says what this machine lacks.
type HostError struct{ Problems []Problem }

func (e *HostError) Error() string {
	lines := []string{"this machine cannot run cells:"}
	for _, p := range e.Problems {
		lines = append(lines, "  - "+p.String())
	}
	return strings.Join(lines, "\n")
}

// Open claims the state folder. It fails with *HeldError when another
// process has it, and with *HostError when this machine lacks something.
func Open(o Options) (*Stack, error) {
	paths := []*string{&o.State, &o.Bin, &o.CellRoot}
	for _, p := range []*string{&o.AuditLog, &o.Kip, &o.Chart} {
		if *p != "" {
			paths = append(paths, p)
		}
	}
	o.Images = slices.Clone(o.Images)
	for i := range o.Images {
		paths = append(paths, &o.Images[i])
	}
	for _, p := range paths {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return nil, fmt.Errorf("folder %s: %w", *p, err)
		}
		*p = abs
	}
	if problems := checkHost(o.State); len(problems) > 0 {
		return nil, &HostError{Problems: problems}
	}
	if o.CIDR.Overlaps(o.ServiceCIDR) {
		return nil, fmt.Errorf("the cells' network %s and the Services' %s overlap: choose others with --cidr or --service-cidr", o.CIDR,
			o.ServiceCIDR)
	}
	if o.EKS {
		o.CellRoot = filepath.Join(filepath.Dir(o.CellRoot), "eks-"+filepath.Base(o.CellRoot)) // which gets a file of its own
	}
	if err := o.checkIPv6(); err != nil {
		return nil, err
	}
	if err := o.checkCloud(); err != nil {
		return nil, err
	}
	kips, err := plan(o)
	if err != nil {
		return nil, err
	}
	s := wire(&site{opts: o, kips: kips, address: kips[0].address})
	if o.Nodes < 0 {
		return nil, fmt.Errorf("--nodes %d: want the number of ordinary nodes, from 0", o.Nodes)
	}
	if o.Nodes > 0 {
		if _, err := podCIDR(s.Nodes.nodesCloud(), o.Nodes-1); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(o.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	s.lock, err = acquire(s.path("lock"), Holder{PID: os.Getpid(), Command: o.Command, Since: time.Now()})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// thrownAway is what goes from the state folder with a run. What helps to
// understand it (the logs) and what makes the next one faster (the cells' root)
// stays; what others put there is not ours to remove.
var thrownAway = []string{
	"pki", "etcd", "registry", "kip", "cloud", "ami", "nodes", "kip.json", "provider.yaml", peersFolder,
	"values.yaml", "helm",
	"Corefile", "coredns.json", "coredns.kubeconfig", "kubeconfig", "kip.kubeconfig", "controller-manager.kubeconfig", "scheduler.kubeconfig",
}

// Clean ends and removes what an earlier run left, however it ended. It says
// what there was.
func (s *Stack) Clean(ctx context.Context) ([]string, error) {
	found, err := s.Leftovers(ctx)
	if err != nil {
		return nil, err
	}
	for _, record := range []string{s.KipRecord(), s.path("coredns.json")} {
		if err := child.KillRecorded(ctx, record); err != nil {
			return found, fmt.Errorf("clean up after an earlier run: %w", err)
		}
	}
	if err := errors.Join(s.masquerading.stopMasquerade(ctx), s.Proxy.stopProxy(ctx), s.Nodes.stopNodes(ctx),
		hardware.Unplug(s.opts.Bridge)); err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	if err := errors.Join(s.Processes.killPeers(ctx), s.destroyClouds(ctx)); err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	if err := s.removeState(); err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	logs, err := filepath.Glob(s.peerLog("*"))
	if err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	for _, log := range append(logs, s.KipLog(), s.ControlPlane.DNSLog(), s.Proxy.ProxyLog(), s.path("control-plane.log")) {
		if err := os.Remove(log); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, fmt.Errorf("remove an earlier run's log: %w", err)
		}
	}
	left, err := s.Leftovers(ctx)
	if err == nil && len(left) > 0 {
		err = &leftovers.Error{Left: left}
	}
	if err != nil {
		return found, fmt.Errorf("clean up after an earlier run: %w", err)
	}
	return found, nil
}

// destroyClouds ends and removes all machines and bridges.
func (s *Stack) destroyClouds(ctx context.Context) error {
	clouds, err := s.Processes.peerClouds()
	errs := []error{err}
	for _, c := range append(clouds, s.cloud()) {
		// An earlier run may have had another cloud in the same folder.
		errs = append(errs, qemu.Destroy(ctx, qemu.Config{Config: c.Config}), local.Destroy(ctx, c))
	}
	return errors.Join(errs...)
}

func (s *Stack) removeState() error {
	for _, name := range thrownAway {
		if err := os.RemoveAll(s.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// Failed waits until a part ends that nobody stopped, and says which. It
// returns nil when ctx ends first.
func (s *Stack) Failed(ctx context.Context) error {
	var kip <-chan struct{}
	if s.Processes.Kip != nil {
		kip = s.Processes.Kip.Done()
	}
	var registry <-chan error
	if s.Images.Registry != nil {
		registry = s.Images.Registry.Failed()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var proxy <-chan struct{}
	if s.Proxy.process != nil {
		proxy = s.Proxy.process.Done()
	}
	var ec2 <-chan error
	if s.Model.ec2 != nil {
		ec2 = s.Model.ec2.Failed()
	}
	peer := make(chan error, 1)
	go func() { peer <- s.Processes.peerEnded(ctx) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.ControlPlane.Cluster.Failed():
		return err
	case <-s.ControlPlane.DNS.Done():
		return s.ControlPlane.DNS.End()
	case err := <-registry:
		return err
	case err := <-ec2:
		return err
	case err := <-peer:
		return err
	case <-proxy:
		return fmt.Errorf("kube-proxy ended: %w; its last words:\n%s", endOf(s.Proxy.process), Tail(s.Proxy.ProxyLog(), 5))
	case <-kip:
		return fmt.Errorf("kip ended: %w", endOf(s.Processes.Kip))
	}
}

// Stop ends everything in order and removes it, with all of the state folder that
// a later run does not use. It is for a stack that was started in
// part too, and can be called twice.
func (s *Stack) Stop(ctx context.Context) error {
	var errs []error
	if s.Processes.Kip != nil {
		errs = append(errs, s.Processes.Kip.Stop(ctx))
		if s.Processes.ready {
			errs = append(errs, unasked(s.kips[0].node, s.Processes.Kip))
		}
	}
	errs = append(errs, s.Nodes.stopNodes(ctx), s.Processes.stopPeers(ctx), s.Proxy.stopProxy(ctx))
	if s.Model.ec2 != nil {
		errs = append(errs, s.Model.ec2.Close())
		s.Model.ec2 = nil
	}
	// The machines go once Kip cannot launch more, and while the bridge is
	// still used: it goes with them in the end.
	if s.Images.Registry != nil {
		errs = append(errs, s.Images.Registry.Stop())
	}
	if s.ControlPlane.DNS != nil {
		errs = append(errs, s.ControlPlane.DNS.Stop(ctx))
	}
	if s.ControlPlane.Cluster != nil {
		errs = append(errs, s.ControlPlane.Cluster.Stop(ctx))
	}
	errs = append(errs, s.masquerading.stopMasquerade(ctx), s.destroyClouds(ctx))
	if err := s.removeState(); err != nil {
		errs = append(errs, fmt.Errorf("empty the state folder: %w", err))
	}
	s.Processes.Kip, s.Images.Registry, s.ControlPlane.DNS, s.ControlPlane.Cluster = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Close gives the state folder up.
func (s *Stack) Close() error { return s.lock.Release() }
