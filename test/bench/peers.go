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

// peerQPS and peerBurst limit the requests of both products' own clients: Kip's
// defaults, five times Karpenter's. What Kip passes on for its cells is not limited so.
const peerQPS, peerBurst = 1000, 2000

// peerCluster is how both clusters differ from those of the other parts: their
// scheduler and controller manager have the limits of a user's cluster.
var peerCluster = []string{"--upstream-limits"}

// measured is what test/bench/karpenter prints of one product.
type measured struct {
	BoundSeconds    float64 `json:"bound_seconds"`
	WallSeconds     float64 `json:"wall_seconds"`
	LostPods        int     `json:"lost_pods"`
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

// kipFirst says which product is measured first in a pair: they take turns.
func kipFirst(pair int) bool { return pair%2 == 0 }

// ratios are those of pairs.
func ratios(these, those []float64) (all []float64) {
	for i := range these {
		all = append(all, these[i]/those[i])
	}
	return all
}

// peers measures Kip with hollow cells and Karpenter with its kwok provider, one
// machine a pod, so many times, in turns, each on a fresh cluster of the same kind.
// What fails ends it: no run is left out.
func peers(ctx context.Context, pairs int) error {
	tools := os.Getenv("KIP_BENCH_TOOLS")
	if tools == "" {
		return errors.New("KIP_BENCH_TOOLS is not set: `make bench` builds karpenter and kwok into that folder")
	}
	dir, err := os.MkdirTemp("", "kip-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	note("both products may ask the API server %d times a second, %d at once", peerQPS, peerBurst)
	type product struct {
		name    string
		measure func(ctx context.Context, tools, audit string) (measured, error)
		runs    []measured
	}
	kip, karpenter := &product{name: "kip", measure: measureKip}, &product{name: "karpenter", measure: measureKarpenter}
	for pair := range pairs {
		order := []*product{kip, karpenter}
		if !kipFirst(pair) {
			order = []*product{karpenter, kip}
		}
		for _, p := range order {
			progress("measuring %s, run %d of %d", p.name, pair+1, pairs)
			m, err := p.measure(ctx, tools, filepath.Join(dir, fmt.Sprintf("%s-%d-audit.log", p.name, pair)))
			if err != nil {
				return fmt.Errorf("measure %s, run %d: %w", p.name, pair+1, err)
			}
			p.runs = append(p.runs, m)
		}
	}
	figures := []struct {
		name, unit     string
		kip, karpenter func(measured) float64
		ratio          string // the name of the figure that compares them; none where that says nothing
	}{
		{
			name:      "wall",
			unit:      "s",
			kip:       measured.wall,
			karpenter: measured.wall,
			ratio:     "karpenter_ratio_wall",
		},
		{
			name:      "bound",
			unit:      "s",
			kip:       measured.bound,
			karpenter: measured.bound,
		},
		{
			name:      "cpu",
			unit:      "s",
			kip:       cpuOf("kip"),
			karpenter: cpuOf("karpenter"),
			ratio:     "karpenter_ratio_cpu",
		},
		{
			name:      "control_plane_cpu",
			unit:      "s",
			kip:       cpuOf("control-plane"),
			karpenter: cpuOf("control-plane"),
			ratio:     "karpenter_ratio_control_plane_cpu",
		},
		{
			name:      "memory",
			unit:      "B",
			kip:       memoryOf("kip"),
			karpenter: memoryOf("karpenter"),
			ratio:     "karpenter_ratio_memory",
		},
		{
			name:      "api_requests",
			unit:      "requests",
			kip:       requestsOf("kip"),
			karpenter: requestsOf("karpenter", "kwok"),
			ratio:     "karpenter_ratio_api_requests",
		},
		{
			name:      "api_requests_without_kwok",
			unit:      "requests",
			kip:       requestsOf("kip"),
			karpenter: requestsOf("karpenter"),
			ratio:     "karpenter_ratio_api_requests_without_kwok",
		},
		{
			name:      "other_cpu",
			unit:      "s",
			kip:       measured.otherCPU,
			karpenter: measured.otherCPU,
		},
		{
			name:      "lost_pods",
			unit:      "pods",
			kip:       measured.lost,
			karpenter: measured.lost,
		},
	}
	for _, f := range figures {
		of := func(p *product, figure func(measured) float64) (values []float64) {
			for i, m := range p.runs {
				values = append(values, figure(m))
				note("run %d: %s_%d_%s %s %s", i+1, p.name, peerPods, f.name, number(figure(m)), f.unit)
			}
			return values
		}
		these, those := of(kip, f.kip), of(karpenter, f.karpenter)
		printAll(fmt.Sprintf("kip_%d_%s", peerPods, f.name), these, f.unit)
		printAll(fmt.Sprintf("karpenter_%d_%s", peerPods, f.name), those, f.unit)
		if f.ratio != "" {
			printAll(f.ratio, ratios(these, those), "")
		}
	}
	return nil
}

func (m measured) wall() float64     { return m.WallSeconds }
func (m measured) bound() float64    { return m.BoundSeconds }
func (m measured) otherCPU() float64 { return m.OtherCPUSeconds }
func (m measured) lost() float64     { return float64(m.LostPods) }

func cpuOf(process string) func(measured) float64 {
	return func(m measured) float64 { return m.Processes[process].CPUSeconds }
}

func memoryOf(process string) func(measured) float64 {
	return func(m measured) float64 { return m.Processes[process].PeakMemoryBytes }
}

func requestsOf(words ...string) func(measured) float64 {
	return func(m measured) float64 { return m.requests(words...) }
}

func measureKarpenter(ctx context.Context, tools, audit string) (m measured, err error) {
	w, err := harness.Start(ctx, harness.Options{
		Name:        "kippeer0",
		CIDR:        "10.115.0.0/16",
		Stderr:      os.Stderr,
		AuditLog:    audit,
		ClusterOnly: true,
		Fsync:       true,
		DevArgs:     peerCluster,
	})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	return drive(ctx, tools, w, audit,
		"--karpenter", filepath.Join(tools, "karpenter"), "--kwok", filepath.Join(tools, "kwok"),
		"--karpenter-qps", strconv.Itoa(peerQPS), "--karpenter-burst", strconv.Itoa(peerBurst))
}

func measureKip(ctx context.Context, tools, audit string) (m measured, err error) {
	s, err := simulate(ctx, 0, harness.Options{
		Name:     "kippeer0",
		CIDR:     "10.115.0.0/16",
		Stderr:   os.Stderr,
		AuditLog: audit,
		Fsync:    true,
		DevArgs:  peerCluster,
		KipArgs:  []string{fmt.Sprintf("--kube-api-qps=%d", peerQPS), fmt.Sprintf("--kube-api-burst=%d", peerBurst)},
	})
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
