package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/elotl/kip/test/harness"
)

// peerPods is how many pods both products provide for.
const peerPods = 500

// measured is what test/bench/karpenter prints of one product.
type measured struct {
	WallSeconds     float64 `json:"wall_seconds"`
	OtherCPUSeconds float64 `json:"other_cpu_seconds"`
	Processes       map[string]struct {
		CPUSeconds      float64 `json:"cpu_seconds"`
		PeakMemoryBytes float64 `json:"peak_memory_bytes"`
	} `json:"processes"`
	APIRequests struct {
		Clients []struct {
			User     string `json:"user"`
			Agent    string `json:"agent"`
			Requests int    `json:"requests"`
		} `json:"clients"`
	} `json:"api_requests"`
}

// requests are those of the clients whose user or agent has one of the words.
func (m measured) requests(words ...string) (n float64) {
	for _, c := range m.APIRequests.Clients {
		for _, w := range words {
			if strings.Contains(c.User, w) || strings.Contains(c.Agent, w) {
				n += float64(c.Requests)
				break
			}
		}
	}
	return n
}

// peers measures Karpenter with its kwok provider and then Kip with hollow cells,
// one machine a pod, each on a fresh cluster of the same kind.
func peers(ctx context.Context) error {
	tools := os.Getenv("KIP_BENCH_TOOLS")
	if tools == "" {
		return errors.New("KIP_BENCH_TOOLS is not set: `make bench` builds karpenter and kwok into that folder")
	}
	dir, err := os.MkdirTemp("", "kip-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	karpenter, err := measureKarpenter(ctx, tools, filepath.Join(dir, "karpenter-audit.log"))
	if err != nil {
		return fmt.Errorf("measure karpenter: %w", err)
	}
	kip, err := measureKip(ctx, tools, filepath.Join(dir, "kip-audit.log"))
	if err != nil {
		return fmt.Errorf("measure kip: %w", err)
	}
	for _, figure := range []struct {
		name, unit     string
		kip, karpenter float64
	}{
		{"wall", "s", kip.WallSeconds, karpenter.WallSeconds},
		{"cpu", "s", kip.Processes["kip"].CPUSeconds, karpenter.Processes["karpenter"].CPUSeconds},
		{"control_plane_cpu", "s", kip.Processes["control-plane"].CPUSeconds, karpenter.Processes["control-plane"].CPUSeconds},
		{"memory", "B", kip.Processes["kip"].PeakMemoryBytes, karpenter.Processes["karpenter"].PeakMemoryBytes},
		{"api_requests", "requests", kip.requests("kip"), karpenter.requests("karpenter", "kwok")},
		{"other_cpu", "s", kip.OtherCPUSeconds, karpenter.OtherCPUSeconds},
	} {
		print("kip_500_"+figure.name, figure.kip, figure.unit)
		print("karpenter_500_"+figure.name, figure.karpenter, figure.unit)
		if figure.name != "other_cpu" {
			print("karpenter_ratio_"+figure.name, figure.kip/figure.karpenter, "")
		}
	}
	return nil
}

func measureKarpenter(ctx context.Context, tools, audit string) (m measured, err error) {
	w, err := harness.Start(ctx, harness.Options{Name: "kippeer0", CIDR: "10.115.0.0/16", Stderr: os.Stderr, AuditLog: audit, ClusterOnly: true, Fsync: true})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	return drive(ctx, tools, w, audit,
		"--karpenter", filepath.Join(tools, "karpenter"), "--kwok", filepath.Join(tools, "kwok"))
}

func measureKip(ctx context.Context, tools, audit string) (m measured, err error) {
	s, err := simulate(ctx, 0, harness.Options{Name: "kippeer0", CIDR: "10.115.0.0/16", Stderr: os.Stderr, AuditLog: audit, Fsync: true})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	pid, err := s.KipPID()
	if err != nil {
		return m, err
	}
	return drive(ctx, tools, s.World, audit, "--process", "kip="+strconv.Itoa(pid), "--node-selector", "type=virtual-kubelet")
}

// drive runs the measure that is the same for both.
func drive(ctx context.Context, tools string, w *harness.World, audit string, args ...string) (m measured, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(tools, "side-by-side"), append([]string{
		"--kubeconfig", w.Kubeconfig, "--audit-log", audit, "--process", "control-plane=" + strconv.Itoa(w.ClusterPID()),
		"--pods", strconv.Itoa(peerPods), "--until", "running",
	}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return m, fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	if err := json.Unmarshal(out, &m); err != nil {
		return m, fmt.Errorf("read what %s printed: %w", cmd.Path, err)
	}
	return m, nil
}
