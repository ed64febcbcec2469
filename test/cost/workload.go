package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/elotl/kip/internal/quote"
)

// seed is that of both workloads. Another gives other pods of the same kind.
const seed = 1

// shape is what a pod asks for.
type shape struct{ milliCPU, memory int64 }

func (s shape) workload() quote.Workload {
	pod := &corev1.Pod{}
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU:    *apiresource.NewMilliQuantity(s.milliCPU, apiresource.DecimalSI),
		corev1.ResourceMemory: *apiresource.NewQuantity(s.memory, apiresource.BinarySI),
	}}}}
	return quote.Workload{Replicas: 1, Pod: pod}
}

// anyShape is a pod as people write them: a tenth of a CPU to 16, most of them small, and
// half a GiB to 8 for each CPU, in the round numbers that people like.
func anyShape(rng *rand.Rand) shape {
	cpus := []int64{100, 250, 250, 500, 500, 500, 1000, 1000, 1000, 2000, 2000, 4000, 8000, 16000}
	perCPU := []float64{0.5, 1, 2, 2, 4, 4, 4, 8}
	s := shape{milliCPU: cpus[rng.IntN(len(cpus))]}
	const step = 128 << 20
	memory := float64(s.milliCPU) / 1000 * perCPU[rng.IntN(len(perCPU))] * gib
	s.memory = max(step, int64(memory)/step*step)
	return s
}

func shapes(n int) []shape {
	rng := rand.New(rand.NewPCG(seed, 1))
	all := make([]shape, n)
	for i := range all {
		all[i] = anyShape(rng)
	}
	return all
}

// run is a pod that starts at a time of the day and runs for a while.
type run struct {
	shape
	at, takes time.Duration
}

// day is one of bursts: 20 pods that run all day, and at 24 times of the day, at any
// minute, 5 to 200 that are started at once and take 1 to 30 minutes each.
func day() []run {
	rng := rand.New(rand.NewPCG(seed, 2))
	var all []run
	for range 20 {
		all = append(all, run{anyShape(rng), 0, 24 * time.Hour})
	}
	for range 24 {
		at := time.Duration(rng.IntN(23*60)) * time.Minute
		for range 5 + rng.IntN(196) {
			all = append(all, run{anyShape(rng), at, time.Minute + time.Duration(rng.Int64N(int64(29*time.Minute)))})
		}
	}
	slices.SortStableFunc(all, func(a, b run) int { return cmp.Compare(a.at, b.at) })
	return all
}
