package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/dev/cloudmodel/hardware"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloud/qemu"
)

// Leftovers names what is on this machine of a stack in this folder, when none
// should run: processes, cgroups, network devices, mounts.
func (s *Stack) Leftovers(ctx context.Context) ([]string, error) {
	clouds, err := s.Processes.peerClouds()
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	found, err := s.Proxy.proxyLeftovers(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	masquerades, err := s.masquerading.masqueradeLeftovers()
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	found = append(found, masquerades...)
	rules, err := hardware.Plugged(s.opts.Bridge)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	for _, r := range rules {
		found = append(found, fmt.Sprintf("routing rule %d of bridge %s", r.Priority, r.IifName))
	}
	for _, c := range append(clouds, s.cloud(), s.Nodes.nodesCloud()) {
		left, err := local.Leftovers(ctx, c)
		virtual, virtualErr := qemu.Leftovers(ctx, qemu.Config{Config: c.Config})
		if err := errors.Join(err, virtualErr); err != nil {
			return nil, fmt.Errorf("look for leftovers: %w", err)
		}
		for _, what := range append(left, virtual...) {
			if !slices.Contains(found, what) {
				found = append(found, what)
			}
		}
	}
	pids, err := child.Marked(markVariable + "=" + s.opts.State)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	for _, pid := range pids {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue // it ended meanwhile
		}
		what := fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name)))
		if !slices.Contains(found, what) {
			found = append(found, what)
		}
	}
	return found, nil
}
