package stats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"
)

// summaryOf is what a cell's kubelet says: the pod's CPU time, in seconds of a core, and memory.
func summaryOf(cpu, memory float64) string {
	nanos, bytes := uint64(cpu*1e9), uint64(memory)
	text, err := json.Marshal(statsapi.Summary{Pods: []statsapi.PodStats{{
		PodRef: statsapi.PodReference{Namespace: "default", Name: "a", UID: uidOfA},
		CPU:    &statsapi.CPUStats{UsageCoreNanoSeconds: &nanos},
		Memory: &statsapi.MemoryStats{WorkingSetBytes: &bytes},
	}}})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestTheMeterTellsHowMuchOfAMachineStoodIdle(t *testing.T) {
	const gib = 1 << 30
	twoCores := Machine{MilliCPU: 2000, MemoryBytes: gib}
	for name, tc := range map[string]struct {
		says     []string // what its kubelet answers, a minute each; empty for nothing
		machine  Machine
		measured float64
		idle     float64
	}{
		// The first covers two minutes: the pod was given the cell a minute before.
		"half a core of two":            {[]string{summaryOf(120, 0), summaryOf(180, 0)}, twoCores, 180, 90},
		"memory, of which it uses more": {[]string{summaryOf(12, gib/2), summaryOf(18, gib/4)}, twoCores, 180, 60 + 45},
		"a lie is no more than all":     {[]string{summaryOf(1e12, 0), summaryOf(1e9, 1e15)}, twoCores, 180, 0},
		"a counter that began anew":     {[]string{summaryOf(120, 0), summaryOf(60, 0)}, twoCores, 180, 60 + 30},
		"a minute without an answer":    {[]string{summaryOf(120, 0), "", summaryOf(240, 0)}, twoCores, 240, 60 + 60},
		"no answer":                     {[]string{"", "nonsense", "{}"}, twoCores, 0, 0},
		"another's pod":                 {[]string{strings.ReplaceAll(summaryOf(120, 0), uidOfA, "other")}, twoCores, 0, 0},
		"a machine of unknown size":     {[]string{summaryOf(120, 0)}, Machine{}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				round := 0
				cell := Cell{ID: "c", Namespace: "default", Pod: "a", UID: uidOfA, Machine: tc.machine, Given: time.Now().Add(-time.Minute)}
				cell.Conn = tripper(func(*http.Request) (*http.Response, error) {
					if text := tc.says[min(round, len(tc.says))-1]; text != "" {
						return respond(strings.NewReader(text))
					}
					return nil, fmt.Errorf("it does not answer")
				})
				var left atomic.Bool
				uses := NewUses()
				m := NewMeter(Config{
					Cells: func() []Cell {
						if left.Load() {
							return nil
						}
						round++
						return []Cell{cell}
					},
					Clock: clock.RealClock{},
					Log:   slog.New(slog.DiscardHandler),
				}, uses)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- m.Run(ctx) }()
				time.Sleep(time.Duration(len(tc.says))*meterPeriod + time.Second)
				got := uses.Use("c")
				if math.Abs(got.Measured-tc.measured) > 0.01 || math.Abs(got.Idle-tc.idle) > 0.01 {
					t.Errorf("%+v, want %v s measured, %v s idle", got, tc.measured, tc.idle)
				}
				if other := uses.Use("d"); other != (Use{}) {
					t.Errorf("of a cell that is not there: %+v", other)
				}
				left.Store(true)
				time.Sleep(meterKept - meterPeriod)
				if still := uses.Use("c"); still != got {
					t.Errorf("before its cost is final it is forgotten: %+v", still)
				}
				time.Sleep(3 * meterPeriod)
				if still := uses.Use("c"); still != (Use{}) {
					t.Errorf("of a cell that is long gone: %+v", still)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
