package metrics

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/guard"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var nodeNames = []string{"kip-0-1", "kip-0-2"}

func nodeOf(c cells.Cell) string { return cmp.Or(c.Node, nodeNames[0]) }

type fixture struct {
	*Metrics
	clock *testingclock.FakeClock
	cells []cells.Cell
	log   bytes.Buffer
}

// newFixture's registry checks that what is collected is what was described.
func newFixture(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	f := &fixture{clock: testingclock.NewFakeClock(t0)}
	cfg := Config{
		Read:  func() Reading { return Reading{Cells: f.cells, Nodes: nodeNames, NodeOf: nodeOf} },
		Clock: f.clock,
		Log:   slog.New(slog.NewTextHandler(&f.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	f.Metrics = newWith(cfg, prometheus.NewPedanticRegistry())
	return f
}

// samples returns the values of a family by its labels, written k=v,k=v in order
// of name; a histogram is "count sum".
func (f *fixture) samples(t testing.TB, name string) map[string]string {
	t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, mf := range families {
		if mf.GetName() != name {
			continue
		}
		for _, m := range mf.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := ""
			switch {
			case m.Histogram != nil:
				v = fmt.Sprintf("%d %g", m.Histogram.GetSampleCount(), math.Round(m.Histogram.GetSampleSum()*1e6)/1e6)
			case m.Counter != nil:
				v = fmt.Sprint(m.Counter.GetValue())
			default:
				v = fmt.Sprint(m.Gauge.GetValue())
			}
			got[strings.Join(labels, ",")] = v
		}
	}
	return got
}

func (f *fixture) want(t testing.TB, name string, want map[string]string) {
	t.Helper()
	got := f.samples(t, name)
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s{%s} is %q, want %q", name, k, got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s{%s} is %q and should not be there", name, k, v)
		}
	}
}

// life makes a cell that takes steps, each told to the metrics.
type life struct {
	f    *fixture
	cell cells.Cell
}

func (f *fixture) life(id string, spot bool) *life {
	return &life{f, cells.Cell{ID: id, Attempt: 1, Phase: apiv1.Requested,
		Pod:       apiv1.PodReference{Namespace: "ns", Name: id, UID: types.UID("pod-of-" + id)},
		Offerings: []offering.Offering{{InstanceType: "c5.large", Zone: "z", Spot: spot}}}}
}

func (l *life) steps(at time.Duration, phase apiv1.Phase, names ...string) *life {
	for _, n := range names {
		l.cell.Steps = append(slices.Clip(l.cell.Steps), apiv1.Step{Name: n, Time: metav1.NewMicroTime(t0.Add(at))})
	}
	l.cell.Phase = phase
	l.f.CellChanged(l.cell)
	return l
}

const spotLabels = "instance_type=c5.large,launch_type=spot"

func TestEachStepIsObservedOnce(t *testing.T) {
	f := newFixture(t, nil)
	l := f.life("a", true)
	l.cell.Steps = []apiv1.Step{{Name: apiv1.StepSeen, Time: metav1.NewMicroTime(t0)}}
	l.steps(2*time.Second, apiv1.Requested, apiv1.StepPlaced)
	l.steps(0, apiv1.Launching) // no step
	l.steps(5*time.Second, apiv1.Booting, apiv1.StepLaunched)
	l.steps(35*time.Second, apiv1.Booting, apiv1.StepJoined)
	l.steps(36*time.Second, apiv1.Ready, apiv1.StepReady)
	l.steps(36500*time.Millisecond, apiv1.Bound, apiv1.StepBound)
	f.CellChanged(l.cell) // the same again
	f.PodRunning(l.cell, t0.Add(38*time.Second))
	f.PodRunning(l.cell, t0.Add(50*time.Second))
	l.cell.PodEnded = true
	l.steps(100*time.Second, apiv1.Draining, apiv1.StepEnded)
	l.steps(101*time.Second, apiv1.Draining, apiv1.StepLogsSaved)
	l.steps(0, apiv1.Terminating)
	l.steps(111*time.Second, apiv1.Gone, apiv1.StepTerminated)
	f.CellChanged(l.cell) // gone twice

	f.want(t, "kip_cell_phase_duration_seconds", map[string]string{
		spotLabels + ",outcome=success,phase=placing":     "1 2",
		spotLabels + ",outcome=success,phase=launching":   "1 3",
		spotLabels + ",outcome=success,phase=joining":     "1 30",
		spotLabels + ",outcome=success,phase=starting":    "1 1",
		spotLabels + ",outcome=success,phase=binding":     "1 0.5",
		spotLabels + ",outcome=success,phase=running":     "1 63.5",
		spotLabels + ",outcome=success,phase=saving_logs": "1 1",
		spotLabels + ",outcome=success,phase=terminating": "1 10",
	})
	f.want(t, "kip_pod_start_duration_seconds", map[string]string{
		spotLabels + ",source=launched,stage=bound":   "1 36.5",
		spotLabels + ",source=launched,stage=running": "1 38",
	})
	f.want(t, "kip_cells_ended_total", map[string]string{spotLabels + ",reason=pod_ended": "1"})
	f.want(t, "kip_standby_requests_total", map[string]string{"result=hit": "0", "result=miss": "1"})
	if len(f.tracked) != 0 || len(f.again) != 0 {
		t.Errorf("%d cells and %d pods are remembered after the end", len(f.tracked), len(f.again))
	}
}

func TestWhatHappenedBeforeARestartIsNotObservedAgain(t *testing.T) {
	before := newFixture(t, nil)
	l := before.life("a", false).
		steps(0, apiv1.Requested, apiv1.StepSeen).steps(time.Second, apiv1.Requested, apiv1.StepPlaced).
		steps(2*time.Second, apiv1.Booting, apiv1.StepLaunched)
	bound := before.life("b", false).
		steps(0, apiv1.Requested, apiv1.StepSeen, apiv1.StepPlaced).steps(time.Second, apiv1.Bound, apiv1.StepLaunched, apiv1.StepJoined,
		apiv1.StepReady, apiv1.StepBound)

	after := newFixture(t, nil)
	after.Known([]cells.Cell{l.cell, bound.cell})
	l.f, bound.f = after, after
	after.CellChanged(l.cell)
	after.PodRunning(bound.cell, t0.Add(time.Hour)) // when Kip looks, not when it started
	l.steps(12*time.Second, apiv1.Booting, apiv1.StepJoined)
	bound.cell.PodEnded = true
	bound.steps(61*time.Second, apiv1.Draining, apiv1.StepEnded)

	const od = "instance_type=c5.large,launch_type=on-demand"
	after.want(t, "kip_cell_phase_duration_seconds", map[string]string{
		od + ",outcome=success,phase=joining": "1 10",
		od + ",outcome=success,phase=running": "1 60",
	})
	after.want(t, "kip_pod_start_duration_seconds", nil)
	after.want(t, "kip_standby_requests_total", map[string]string{"result=hit": "0", "result=miss": "0"})
}

func TestADedicatedCellIsNotToldAsOnDemand(t *testing.T) {
	f := newFixture(t, nil)
	l := f.life("a", false)
	l.cell.Offerings[0].Dedicated = true
	l.steps(0, apiv1.Requested, apiv1.StepSeen, apiv1.StepPlaced).steps(time.Second, apiv1.Booting, apiv1.StepLaunched).
		steps(3*time.Second, apiv1.Booting, apiv1.StepJoined)
	const dedicated = "instance_type=c5.large,launch_type=dedicated,outcome=success,phase="
	f.want(t, "kip_cell_phase_duration_seconds", map[string]string{
		dedicated + "placing": "1 0", dedicated + "launching": "1 1", dedicated + "joining": "1 2",
	})
}

func TestACellThatEndsEarlyFailsInThePhaseItWasIn(t *testing.T) {
	start := []string{apiv1.StepSeen, apiv1.StepPlaced}
	boot := append(slices.Clip(start), apiv1.StepLaunched)
	ready := append(slices.Clip(boot), apiv1.StepJoined, apiv1.StepReady)
	bound := append(slices.Clip(ready), apiv1.StepBound)
	for _, tc := range []struct {
		name           string
		had            []string
		last           string
		change         func(*cells.Cell)
		said           cells.Cause // by Config.cells.Cause
		phase, outcome string
		reason         cells.Cause
	}{
		{"nothing launched", start, apiv1.StepTerminated, nil, "", phaseLaunching, outcomeFailed, cells.CauseNotLaunched},
		{"launch given up", start, apiv1.StepEnded, nil, "", phaseLaunching, outcomeFailed, cells.CauseNotLaunched},
		{"deleted while launching", start, apiv1.StepTerminated, nil, cells.CausePodDeleted, phaseLaunching, outcomeCancelled,
			cells.CausePodDeleted},
		{"never joined", boot, apiv1.StepEnded, nil, "", phaseJoining, outcomeFailed, cells.CauseNotReady},
		{"kubelet never ready", append(slices.Clip(boot), apiv1.StepJoined), apiv1.StepEnded, nil, "", phaseStarting, outcomeFailed,
			cells.CauseNotReady},
		{"let go when ready", ready, apiv1.StepEnded, nil, "", phaseBinding, outcomeCancelled, cells.CauseOther},
		{"lost", bound, apiv1.StepEnded, nil, cells.CauseLost, phaseRunning, outcomeFailed, cells.CauseLost},
		{"interrupted", bound, apiv1.StepEnded, func(c *cells.Cell) { c.Interrupted = t0 }, "", phaseRunning, outcomeFailed,
			cells.CauseInterrupted},
		{"pod deleted", bound, apiv1.StepEnded, nil, cells.CausePodDeleted, phaseRunning, outcomeSuccess, cells.CausePodDeleted},
		{"nobody said why", bound, apiv1.StepEnded, nil, "nonsense", phaseRunning, outcomeCancelled, cells.CauseOther},
		{"standby retired", []string{apiv1.StepPlaced, apiv1.StepLaunched, apiv1.StepJoined, apiv1.StepReady}, apiv1.StepEnded,
			func(c *cells.Cell) { c.Standby, c.Pod = "pool", apiv1.PodReference{} }, "", phaseStandby, outcomeCancelled, cells.CauseStandbyRetired},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, nil)
			l := f.life("a", true)
			l.cell.Cause = tc.said
			if tc.change != nil {
				tc.change(&l.cell)
			}
			l.cell.Attempt = 2 // placing is not observed
			l.steps(0, apiv1.Requested, tc.had...)
			has := len(f.samples(t, "kip_cell_phase_duration_seconds"))
			l.steps(7*time.Second, apiv1.Terminating, tc.last)
			got := f.samples(t, "kip_cell_phase_duration_seconds")
			key := spotLabels + ",outcome=" + tc.outcome + ",phase=" + tc.phase
			if got[key] != "1 7" || len(got) != has+1 {
				t.Errorf("it has %v, want one more, %s", got, key)
			}
			if tc.last == apiv1.StepEnded {
				l.steps(9*time.Second, apiv1.Gone, apiv1.StepTerminated)
				if v := f.samples(t, "kip_cell_phase_duration_seconds")[spotLabels+",outcome=success,phase=terminating"]; v != "1 2" {
					t.Errorf("terminating is %q", v)
				}
			} else {
				l.steps(0, apiv1.Gone)
			}
			f.want(t, "kip_cells_ended_total", map[string]string{spotLabels + ",reason=" + string(tc.reason): "1"})
		})
	}
}

func TestAStandbyCellStartsAPodFromWhenThePodWasSeen(t *testing.T) {
	f := newFixture(t, nil)
	l := f.life("a", true)
	pod := l.cell.Pod
	l.cell.Pod, l.cell.Standby = apiv1.PodReference{}, "pool"
	l.steps(0, apiv1.Requested, apiv1.StepPlaced).steps(4*time.Second, apiv1.Booting, apiv1.StepLaunched).
		steps(34*time.Second, apiv1.Ready, apiv1.StepJoined, apiv1.StepReady)
	l.cell.Pod = pod
	l.steps(94*time.Second, apiv1.Ready, apiv1.StepSeen)
	l.steps(94200*time.Millisecond, apiv1.Bound, apiv1.StepBound)
	f.want(t, "kip_cell_phase_duration_seconds", map[string]string{
		spotLabels + ",outcome=success,phase=launching": "1 4",
		spotLabels + ",outcome=success,phase=joining":   "1 30",
		spotLabels + ",outcome=success,phase=starting":  "1 0",
		spotLabels + ",outcome=success,phase=standby":   "1 60",
		spotLabels + ",outcome=success,phase=binding":   "1 0.2",
	})
	f.want(t, "kip_pod_start_duration_seconds", map[string]string{spotLabels + ",source=standby,stage=bound": "1 0.2"})
	f.want(t, "kip_standby_requests_total", map[string]string{"result=hit": "1", "result=miss": "0"})

	// A pod that was seen before its cell was ready has not waited for it longer.
	early := f.life("b", true)
	early.cell.Pod, early.cell.Standby = pod, "pool"
	early.cell.Steps = []apiv1.Step{{Name: apiv1.StepReady, Time: metav1.NewMicroTime(t0.Add(100 * time.Second))}}
	f.Known([]cells.Cell{early.cell})
	early.steps(50*time.Second, apiv1.Ready, apiv1.StepSeen).steps(101*time.Second, apiv1.Bound, apiv1.StepBound)
	if v := f.samples(t, "kip_cell_phase_duration_seconds"); v[spotLabels+",outcome=success,phase=binding"] != "2 1.2" ||
		v[spotLabels+",outcome=success,phase=standby"] != "2 60" {
		t.Errorf("binding and standby are %v", v)
	}
}

func TestTheNextCellOfAStartedPodIsNoStart(t *testing.T) {
	f := newFixture(t, nil)
	all := []string{apiv1.StepPlaced, apiv1.StepLaunched, apiv1.StepJoined, apiv1.StepReady, apiv1.StepBound}
	l := f.life("a", true).steps(0, apiv1.Requested, apiv1.StepSeen).steps(time.Second, apiv1.Bound, all...).
		steps(time.Hour, apiv1.Gone, apiv1.StepEnded, apiv1.StepTerminated)
	next := f.life("b", true)
	next.cell.Pod, next.cell.Attempt = l.cell.Pod, 2
	next.steps(0, apiv1.Requested, apiv1.StepSeen).steps(2*time.Hour, apiv1.Bound, all...)
	f.PodRunning(next.cell, t0.Add(3*time.Hour))
	f.want(t, "kip_pod_start_duration_seconds", map[string]string{spotLabels + ",source=launched,stage=bound": "1 1"})
	// Nor has it waited for placement since it was first seen.
	if v := f.samples(t, "kip_cell_phase_duration_seconds")[spotLabels+",outcome=success,phase=placing"]; v != "1 1" {
		t.Errorf("placing is %q, want that of the first cell alone", v)
	}

	// What is remembered of pods is bounded.
	for i := range 3 * againMax {
		f.rememberAgain(types.UID(fmt.Sprint(i)))
	}
	if n := len(f.again) + len(f.againOld); n > 2*againMax {
		t.Errorf("%d pods are remembered", n)
	}
}

func TestCellsAreReadAtTheScrape(t *testing.T) {
	var f *fixture
	f = newFixture(t, func(c *Config) {
		c.Read = func() Reading {
			return Reading{
				Cells:   f.cells,
				Nodes:   nodeNames,
				NodeOf:  nodeOf,
				Tunnels: 7,
				Waiting: map[string]int{"kip-0-1": 3, "kip-0-9": 1},
				Behind:  true,
				Aside:   true,
				CA:      CA{Ends: time.Unix(1800000000, 0), Unmoved: 4},
				Held:    []guard.Held{{Reason: guard.ByLimit}, {Reason: guard.ByLease}, {Reason: guard.ByLimit}},
				Ledger: []Cost{
					{InstanceType: "c5.large", Spot: true, Seconds: 7200, Dollars: .5},
					{InstanceType: "c5.large", Seconds: 60, Dollars: .01},
					{InstanceType: "c5.large", Spot: true, Seconds: 3600, Dollars: .25},
					{InstanceType: "c5.large", Dedicated: true, Seconds: 30, Dollars: .02},
				},
				Spent: map[string]Amount{"web": {Seconds: 7200, Dollars: .5, IdleDollars: .125}, "(no pod)": {Seconds: 60, Unpriced: 50}},

				PricesTold: t0.Add(-time.Hour),
			}
		}
	})
	cell := func(phase apiv1.Phase, age time.Duration, change func(*cells.Cell)) {
		l := f.life(fmt.Sprint(len(f.cells)), false)
		l.cell.Phase = phase
		l.cell.Steps = []apiv1.Step{{Name: apiv1.StepSeen, Time: metav1.NewMicroTime(t0)},
			{Name: apiv1.StepPlaced, Time: metav1.NewMicroTime(t0.Add(time.Hour - age))}}
		if change != nil {
			change(&l.cell)
		}
		f.cells = append(f.cells, l.cell)
	}
	f.clock.SetTime(t0.Add(time.Hour))
	standby := func(stopped bool, in cloud.State) func(*cells.Cell) {
		return func(c *cells.Cell) {
			c.Standby, c.Pod, c.Stopped, c.Instance = "pool", apiv1.PodReference{}, stopped, &cloud.Instance{State: in}
		}
	}
	cell(apiv1.Bound, time.Minute, nil)
	cell(apiv1.Bound, 3*time.Minute, func(c *cells.Cell) { c.Node = "kip-0-2" })
	cell(apiv1.Bound, 2*time.Minute, func(c *cells.Cell) { c.Standby = "pool" }) // taken
	cell(apiv1.Terminating, time.Second, standby(false, cloud.Running))          // no longer waiting
	cell(apiv1.Booting, time.Second, standby(false, cloud.Pending))
	cell(apiv1.Ready, time.Second, standby(false, cloud.Running))
	cell(apiv1.Ready, time.Second, standby(true, cloud.Running))
	cell(apiv1.Ready, time.Second, standby(true, cloud.Stopped))

	f.want(t, "kip_cells", map[string]string{
		"node=kip-0-1,phase=Requested": "0", "node=kip-0-1,phase=Launching": "0", "node=kip-0-1,phase=Booting": "1",
		"node=kip-0-1,phase=Ready": "3", "node=kip-0-1,phase=Bound": "2", "node=kip-0-1,phase=Draining": "0",
		"node=kip-0-1,phase=Terminating": "1",
		"node=kip-0-2,phase=Requested":   "0", "node=kip-0-2,phase=Launching": "0", "node=kip-0-2,phase=Booting": "0",
		"node=kip-0-2,phase=Ready": "0", "node=kip-0-2,phase=Bound": "1", "node=kip-0-2,phase=Draining": "0",
		"node=kip-0-2,phase=Terminating": "0",
	})
	f.want(t, "kip_cells_oldest_age_seconds", map[string]string{
		"phase=Requested": "0", "phase=Launching": "0", "phase=Booting": "1", "phase=Ready": "1", "phase=Bound": "180", "phase=Draining": "0",
		"phase=Terminating": "1",
	})
	f.want(t, "kip_prices_age_seconds", map[string]string{"": "7200"})
	f.want(t, "kip_standby_cells", map[string]string{
		"instance_type=c5.large,state=booting": "1", "instance_type=c5.large,state=ready": "1",
		"instance_type=c5.large,state=stopping": "1", "instance_type=c5.large,state=stopped": "1",
	})
	f.want(t, "kip_tunnels_connected", map[string]string{"": "7"})
	f.want(t, "kip_pods_waiting", map[string]string{"node=kip-0-1": "3", "node=kip-0-2": "0", "node=kip-0-9": "1"})
	f.want(t, "kip_store_behind", map[string]string{"": "1"})
	f.want(t, "kip_node_held_by_another", map[string]string{"": "1"})
	f.want(t, "kip_ca_end_timestamp_seconds", map[string]string{"": "1.8e+09"})
	f.want(t, "kip_ca_unmoved_cells", map[string]string{"": "4"})
	f.want(t, "kip_ends_held_back", map[string]string{"reason=limit": "2", "reason=lease": "1", "reason=store": "0", "reason=doubt": "0"})
	f.want(t, "kip_cell_seconds_total", map[string]string{
		spotLabels: "10800", "instance_type=c5.large,launch_type=on-demand": "60", "instance_type=c5.large,launch_type=dedicated": "30",
	})
	f.want(t, "kip_cell_cost_dollars_total", map[string]string{
		spotLabels: "0.75", "instance_type=c5.large,launch_type=on-demand": "0.01", "instance_type=c5.large,launch_type=dedicated": "0.02",
	})

	f.want(t, "kip_cost_dollars_total", map[string]string{"namespace=web": "0.5", "namespace=(no pod)": "0"})
	f.want(t, "kip_cost_idle_dollars_total", map[string]string{"namespace=web": "0.125", "namespace=(no pod)": "0"})
	f.want(t, "kip_cost_unpriced_seconds_total", map[string]string{"namespace=web": "0", "namespace=(no pod)": "50"})

	bare := newFixture(t, func(c *Config) { c.Read = nil })
	for _, name := range []string{
		"kip_cells", "kip_tunnels_connected", "kip_cell_seconds_total", "kip_cost_dollars_total", "kip_pods_waiting", "kip_ends_held_back",
	} {
		bare.want(t, name, nil)
	}
}

// call is made by the metrics, and takes a quarter of a second. Its IDs, or its machines, have these errors.
func (f *fixture) call(ctx context.Context, call pipe.Call, errs ...error) {
	want := make([]pipe.Answer, len(errs))
	for n, err := range errs {
		want[n] = pipe.Answer{Value: n, Err: err}
	}
	got := f.Intercept(ctx, call, func(got context.Context, sent pipe.Call) []pipe.Answer {
		if got != ctx || sent.Kind != call.Kind || !slices.Equal(sent.IDs, call.IDs) {
			panic(fmt.Sprintf("%+v was sent as %+v", call, sent))
		}
		f.clock.Step(250 * time.Millisecond)
		return want
	})
	if !slices.Equal(got, want) {
		panic(fmt.Sprintf("%s was answered %v, want %v", call.Kind, got, want))
	}
}

func TestCloudCallsAreCountedAndPassedOn(t *testing.T) {
	f := newFixture(t, nil)
	ctx := t.Context()
	launch := func(m cloud.CapacityType, errs ...error) {
		f.call(ctx, pipe.Call{Kind: cloud.CallLaunch, Launch: &cloud.LaunchRequest{
			LaunchSpec: cloud.LaunchSpec{InstanceType: "c5.large", Zone: "z", CapacityType: m},
			Machines:   make([]cloud.Machine, len(errs)),
		}}, errs...)
	}
	launch(cloud.Spot, nil)
	launch(cloud.Spot, nil, cloud.ErrCapacity, cloud.ErrCapacity) // one call that was short
	launch(cloud.Spot, cloud.No(cloud.ErrCapacity, cloud.Scope{}, cloud.ErrRefused))
	launch(cloud.Dedicated, cloud.No(cloud.ErrCapacity, cloud.Scope{}, cloud.ErrRefused))
	for _, err := range []error{
		cloud.ErrQuota, cloud.ErrUnauthorised, fmt.Errorf("wrapped: %w", cloud.ErrThrottled), cloud.ErrRefused, cloud.ErrStale,
		&cloud.Error{Cause: cloud.ErrMismatch}, errors.New("what?"),
	} {
		launch(cloud.Spot, err)
	}
	onDemand := false
	f.call(ctx, pipe.Call{Kind: cloud.CallStart, IDs: []string{"i-1", "i-2"}}, nil,
		cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: "m5.large", Zone: "y", Spot: &onDemand}, errors.New("none")))
	stopping, cancel := context.WithCancel(ctx)
	cancel()
	terminate := pipe.Call{Kind: cloud.CallTerminate, IDs: []string{"i-1", "i-2"}}
	f.call(ctx, terminate, nil, nil)
	f.call(stopping, terminate, nil, context.Canceled)
	f.call(ctx, terminate, context.DeadlineExceeded, nil)
	f.call(ctx, pipe.Call{Kind: cloud.CallCatalogue}, nil)
	f.call(ctx, pipe.Call{Kind: cloud.CallCreateDisk}, cloud.ErrCapacity)
	f.call(ctx, pipe.Call{Kind: cloud.CallDetachDisk, IDs: []string{"d"}}, &cloud.InUseError{Disk: "d", Instance: "i"})
	f.call(ctx, pipe.Call{Kind: cloud.CallGrowDisk, IDs: []string{"d"}}, cloud.ErrNotFound)
	f.InstanceInterrupted()

	f.want(t, "kip_cloud_call_duration_seconds", map[string]string{
		"call=launch,error=": "2 0.5", "call=launch,error=capacity": "2 0.5", "call=launch,error=quota": "1 0.25",
		"call=launch,error=throttled":    "1 0.25",
		"call=launch,error=unauthorised": "1 0.25", "call=launch,error=refused": "2 0.5", "call=launch,error=mismatch": "1 0.25",
		"call=launch,error=unknown": "1 0.25",
		"call=start,error=capacity": "1 0.25",
		"call=terminate,error=":     "1 0.25", "call=terminate,error=cancelled": "1 0.25", "call=terminate,error=unknown": "1 0.25",
		"call=catalogue,error=":          "1 0.25",
		"call=createDisk,error=capacity": "1 0.25", "call=detachDisk,error=in_use": "1 0.25", "call=growDisk,error=not_found": "1 0.25",
	})
	f.want(t, "kip_cloud_capacity_errors_total", map[string]string{
		"instance_type=c5.large,launch_type=spot,zone=z": "2", "instance_type=m5.large,launch_type=on-demand,zone=y": "1",
		"instance_type=c5.large,launch_type=dedicated,zone=z": "1",
	})
	f.want(t, "kip_cloud_interruption_notices_total", map[string]string{"": "1"})
}

func TestCallsThatWaitAreCountedAndTimed(t *testing.T) {
	f := newFixture(t, nil)
	f.CallWaits(cloud.CallLaunch)
	f.CallWaits(cloud.CallLaunch)
	f.CallWaited(cloud.CallLaunch, 2*time.Second)
	f.want(t, "kip_cloud_calls_waiting", map[string]string{"call=launch": "1"})
	f.want(t, "kip_cloud_call_wait_seconds", map[string]string{"call=launch": "1 2"})
}

func TestAQueueIsMeasuredByItsName(t *testing.T) {
	f := newFixture(t, nil)
	clock := f.clock
	q := workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Hour, time.Hour),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "cells", MetricsProvider: f.WorkqueueProvider(), Clock: clock})
	defer q.ShutDown()
	q.Add("a")
	q.Add("b")
	clock.Step(2 * time.Second)
	item, _ := q.Get()
	clock.Step(3 * time.Second)
	q.Done(item)
	q.AddRateLimited(item)
	f.want(t, "workqueue_depth", map[string]string{"name=cells": "1"})
	f.want(t, "workqueue_adds_total", map[string]string{"name=cells": "2"})
	f.want(t, "workqueue_queue_duration_seconds", map[string]string{"name=cells": "1 2"})
	f.want(t, "workqueue_work_duration_seconds", map[string]string{"name=cells": "1 3"})
	f.want(t, "workqueue_retries_total", map[string]string{"name=cells": "1"})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return r(q) }

func TestRequestsToTheAPIServerAreCounted(t *testing.T) {
	f := newFixture(t, nil)
	code := 200
	rt := f.WrapTransport("node")(roundTripper(func(*http.Request) (*http.Response, error) {
		f.clock.Step(time.Second)
		if code == 0 {
			return nil, errors.New("refused")
		}
		return &http.Response{StatusCode: code, Body: http.NoBody}, nil
	}))
	send := func(method, url string, answer int) {
		code = answer
		resp, err := rt.RoundTrip(httptest.NewRequest(method, url, nil))
		if (err != nil) != (answer == 0) || err == nil && resp.StatusCode != answer {
			t.Errorf("%s %s: %v, %v", method, url, resp, err)
		}
	}
	send("GET", "/api/v1/pods?limit=500", 200)
	send("GET", "/api/v1/pods?resourceVersion=1&watch=true", 200)
	send("PATCH", "/api/v1/pods/x", 409)
	send("PATCH", "/api/v1/pods/x", 0)
	send("BREW", "/", 405)
	f.want(t, "rest_client_requests_total", map[string]string{
		"client=node,code=200,verb=GET": "1", "client=node,code=200,verb=WATCH": "1", "client=node,code=409,verb=PATCH": "1",
		"client=node,code=<error>,verb=PATCH": "1", "client=node,code=405,verb=other": "1",
	})
	f.want(t, "rest_client_request_duration_seconds", map[string]string{
		"client=node,verb=GET": "1 1", "client=node,verb=WATCH": "1 1", "client=node,verb=PATCH": "2 2", "client=node,verb=other": "1 1",
	})
}

func TestStoreWritesAndSweeps(t *testing.T) {
	f := newFixture(t, nil)
	f.StoreObserver("put", 2*time.Millisecond, nil)
	f.StoreObserver("apply", time.Millisecond, fmt.Errorf("write x: %w", store.ErrConflict))
	f.StoreObserver("apply", time.Millisecond, store.ErrNotLeader)
	f.StoreObserver("delete", time.Second, errors.New("timeout"))
	f.StoreObserver("cells/cell-x", time.Second, nil)
	f.want(t, "kip_store_write_duration_seconds", map[string]string{
		"operation=put,result=success": "1 0.002", "operation=apply,result=conflict": "2 0.002", "operation=delete,result=error": "1 1",
		"operation=other,result=success": "1 1",
	})
	f.StatsGathered("resource", 2*time.Second, map[stats.Miss]int{stats.TimedOut: 3})
	f.StatsGathered("resource", time.Second, nil)
	f.want(t, "kip_stats_gathering_duration_seconds", map[string]string{"endpoint=resource": "2 3"})
	want := map[string]string{}
	for _, e := range stats.Endpoints {
		for _, why := range stats.Misses {
			want["endpoint="+e+",reason="+string(why)] = "0"
		}
	}
	want["endpoint=resource,reason=timeout"] = "3"
	f.want(t, "kip_stats_cells_missed_total", want)
	f.CellRefused(refusedTooLarge)
	refused := map[string]string{}
	for _, r := range CellRefusals() {
		refused["reason="+r] = "0"
	}
	refused["reason=too_large"] = "1"
	f.want(t, "kip_cell_requests_refused_total", refused)
	f.CellAsked()
	f.CellSent(7)
	f.CellAnswered(8)
	f.CellWorked(9 * time.Second)
	for name, want := range map[string]string{"requests": "1", "sent_bytes": "7", "answered_bytes": "8", "work_seconds": "9"} {
		f.want(t, "kip_cell_"+name+"_total", map[string]string{"": want})
	}
	for range 3 {
		f.OrphanFound()
	}
	f.OrphanEnded(nil)
	f.OrphanEnded(nil)
	f.OrphanEnded(errors.New("no"))
	f.want(t, "kip_sweep_instances_total", map[string]string{"result=orphan": "3", "result=terminated": "2", "result=failed": "1"})
	f.OwnedLeft()
	f.OwnedLeft()
	f.OwnedDeleted(nil)
	f.OwnedDeleted(errors.New("no"))
	f.want(t, "kip_sweep_parts_total", map[string]string{"result=left": "2", "result=deleted": "1", "result=failed": "1"})
}

func get(h http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
	return w
}

func TestProbesNameWhatIsWrong(t *testing.T) {
	ok := func(context.Context) error { return nil }
	fault := errors.New("etcd is\n[+]fake ok")
	f := newFixture(t, nil)
	h := Handler(f.Metrics.Metrics(), []Check{{"ping", ok}}, []Check{{"pods", ok}, {"store", func(context.Context) error { return fault }}})
	for _, tc := range []struct {
		target string
		code   int
		body   string
	}{
		{"/healthz", 200, "ok"},
		{"/healthz?verbose", 200, "[+]ping ok\nhealthz check passed\n"},
		{"/readyz", 500, "[+]pods ok\n[-]store failed: etcd is [+]fake ok\nreadyz check failed\n"},
		{"/readyz?verbose=1", 500, "[+]pods ok\n[-]store failed: etcd is [+]fake ok\nreadyz check failed\n"},
		{"/else", 404, "404 page not found\n"},
	} {
		if w := get(h, tc.target); w.Code != tc.code || w.Body.String() != tc.body {
			t.Errorf("%s: %d %q, want %d %q", tc.target, w.Code, w.Body, tc.code, tc.body)
		}
	}
	if w := get(Handler(f.Metrics.Metrics(), nil, nil), "/readyz"); w.Code != 200 || w.Body.String() != "ok" {
		t.Errorf("without checks: %d %q", w.Code, w.Body)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/healthz", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST /healthz: %d", w.Code)
	}
}

func TestAStuckCheckIsNamedAndRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		calls, ended := 0, false
		h := Handler(newFixture(t, nil).Metrics.Metrics(), nil, []Check{
			{"stuck", func(context.Context) error { calls++; <-release; return nil }},
			{"slow", func(ctx context.Context) error {
				<-ctx.Done()
				ended = true
				return fmt.Errorf("read: %w", ctx.Err())
			}},
			{"store", func(context.Context) error { return nil }},
		})
		for range 3 {
			began := time.Now()
			body := get(h, "/readyz").Body.String()
			for _, want := range []string{"[-]stuck failed: no answer within 2s\n", "[-]slow failed: ", "[+]store ok\n"} {
				if !strings.Contains(body, want) {
					t.Errorf("%q lacks %q", body, want)
				}
			}
			if took := time.Since(began); took != checkTimeout { // the bubble's clock
				t.Errorf("it took %s", took)
			}
			synctest.Wait()
			if !ended {
				t.Error("the context of a check did not end")
			}
		}
		if calls != 1 {
			t.Errorf("the stuck check was called %d times", calls)
		}
		close(release)
		synctest.Wait()
		if body := get(h, "/readyz").Body.String(); !strings.Contains(body, "[+]stuck ok") || calls != 2 {
			t.Errorf("after %d calls: %q", calls, body)
		}
	})
}

func TestACheckOutlivesTheRequestThatBeganIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checkErr error
		h := Handler(newFixture(t, nil).Metrics.Metrics(), []Check{{"store", func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				checkErr = ctx.Err()
			case <-time.After(time.Second):
			}
			return checkErr
		}}}, nil)
		ctx, cancel := context.WithCancel(context.Background())
		first := make(chan struct{})
		go func() {
			defer close(first)
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/healthz", nil))
		}()
		synctest.Wait()
		cancel()
		<-first
		if w := get(h, "/healthz"); w.Code != 200 || checkErr != nil {
			t.Errorf("the second request got %d %q", w.Code, w.Body)
		}
	})
}

func TestMetricsAreServed(t *testing.T) {
	f := newFixture(t, nil)
	h := Handler(f.Metrics.Metrics(), nil, nil)
	w := get(h, "/metrics")
	for _, want := range []string{"\nkip_build_info{", "\nkip_cells{node=\"kip-0-1\",phase=\"Bound\"} 0\n", "\ngo_goroutines ",
		"\nprocess_start_time_seconds "} {
		if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%d, and no %q", w.Code, want)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "application/openmetrics-text") || !strings.HasSuffix(w.Body.String(), "# EOF\n") {
		t.Errorf("OpenMetrics came as %s", w.Header().Get("Content-Type"))
	}

	// What cannot be collected is logged, and the rest served.
	if err := f.registry.Register(broken{}); err != nil {
		t.Fatal(err)
	}
	if w := get(h, "/metrics"); w.Code != 200 || !strings.Contains(w.Body.String(), "kip_build_info") {
		t.Errorf("with a broken collector: %d", w.Code)
	}
	if !strings.Contains(f.log.String(), "out of order") {
		t.Errorf("the log is %q", f.log.String())
	}
}

type broken struct{}

var brokenDesc = prometheus.NewDesc("kip_broken", "Broken.", nil, nil)

func (broken) Describe(to chan<- *prometheus.Desc) { to <- brokenDesc }
func (broken) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.NewInvalidMetric(brokenDesc, errors.New("out of order"))
}

// everything has a value in every family.
func everything(t *testing.T) *fixture {
	var f *fixture
	f = newFixture(t, func(c *Config) {
		c.Read = func() Reading {
			return Reading{
				Cells:   f.cells,
				NodeOf:  nodeOf,
				Tunnels: 1,
				CA:      CA{Ends: time.Unix(1800000000, 0), Unmoved: 1},
				Waiting: map[string]int{"kip-0-1": 1},
				Held:    []guard.Held{{Reason: guard.ByLimit}},
				Ledger:  []Cost{{InstanceType: "c5.large", Seconds: 1, Dollars: 1}},
				Spent:   map[string]Amount{"web": {Seconds: 1, Dollars: 1}},

				PricesTold: t0,
			}
		}
	})
	l := f.life("a", false).steps(0, apiv1.Requested, apiv1.StepSeen, apiv1.StepPlaced).
		steps(0, apiv1.Bound, apiv1.StepLaunched, apiv1.StepJoined, apiv1.StepReady, apiv1.StepBound)
	f.PodRunning(l.cell, t0)
	l.steps(0, apiv1.Gone, apiv1.StepEnded, apiv1.StepLogsSaved, apiv1.StepTerminated)
	idle := f.life("b", true)
	idle.cell.Pod, idle.cell.Standby = apiv1.PodReference{}, "pool"
	f.cells = []cells.Cell{idle.cell}
	f.StatsGathered("resource", time.Second, nil)
	f.CallWaits(cloud.CallLaunch)
	f.CallWaited(cloud.CallLaunch, time.Second)
	f.call(t.Context(), pipe.Call{Kind: cloud.CallLaunch, Launch: &cloud.LaunchRequest{
		LaunchSpec: cloud.LaunchSpec{InstanceType: "c5.large", Zone: "z"},
	}}, cloud.ErrCapacity)
	f.InstanceInterrupted()
	p := f.WorkqueueProvider()
	p.NewDepthMetric("q")
	p.NewAddsMetric("q")
	p.NewLatencyMetric("q")
	p.NewWorkDurationMetric("q")
	p.NewUnfinishedWorkSecondsMetric("q")
	p.NewLongestRunningProcessorSecondsMetric("q")
	p.NewRetriesMetric("q")
	f.WrapTransport("kip")(roundTripper(func(*http.Request) (*http.Response, error) {
		return nil,
			errors.New("no")
	})).RoundTrip(httptest.NewRequest("GET", "/", nil))
	f.StoreObserver("put", 0, nil)
	return f
}

func TestNamesFollowTheConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(everything(t).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestTheReferenceIsWhatIsServed(t *testing.T) {
	f := everything(t)
	served, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]family{}
	for _, l := range f.families.list {
		left[l.name] = l
		if !strings.HasSuffix(l.help, ".") {
			t.Errorf("%s: help %q is no sentence", l.name, l.help)
		}
	}
	types := map[dto.MetricType]kind{dto.MetricType_COUNTER: counter, dto.MetricType_GAUGE: gauge, dto.MetricType_HISTOGRAM: histogram}
	for _, mf := range served {
		name := mf.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		l, ok := left[name]
		if !ok || l.kind != types[mf.GetType()] || l.help != mf.GetHelp() {
			t.Errorf("%s (%s) is listed as %+v", name, mf.GetType(), l)
		}
		delete(left, name)
		for _, m := range mf.Metric {
			if len(m.Label) != len(l.labels) {
				t.Errorf("%s has %d labels, listed are %d", name, len(m.Label), len(l.labels))
			}
			for _, pair := range m.Label {
				i := slices.IndexFunc(l.labels, func(l *label) bool { return l.name == pair.GetName() })
				if i < 0 {
					t.Errorf("%s has the label %s, which is not listed", name, pair.GetName())
					continue
				}
				if d := l.labels[i]; d.doc == "" || len(d.values) > 0 && !slices.ContainsFunc(d.values,
					func(v value) bool { return v.name == pair.GetValue() }) {
					t.Errorf("%s has %s=%q, which is not listed", name, d.name, pair.GetValue())
				}
			}
		}
	}
	for name := range left {
		t.Errorf("%s is listed and not served", name)
	}

	// Queries name metrics, and only labels and values that those have.
	selector := regexp.MustCompile(`\b((?:kip|workqueue|rest_client)_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher := regexp.MustCompile(`^(\w+)(=|!=|=~|!~)"([^"]*)"$`)
	for _, q := range queries {
		found := selector.FindAllStringSubmatch(q.expr, -1)
		if len(found) == 0 {
			t.Errorf("%s: no metric of ours in %s", q.title, q.expr)
		}
		for _, s := range found {
			i := slices.IndexFunc(f.families.list, func(l family) bool {
				return s[1] == l.name || l.kind == histogram && (s[1] == l.name+"_bucket" || s[1] == l.name+"_count" || s[1] == l.name+"_sum")
			})
			if i < 0 {
				t.Errorf("%s: there is no %s", q.title, s[1])
				continue
			}
			if s[2] == "" {
				continue
			}
			for _, part := range strings.Split(s[2], ",") {
				m := matcher.FindStringSubmatch(part)
				if m == nil {
					t.Errorf("%s: %s is no matcher", q.title, part)
					continue
				}
				n := slices.IndexFunc(f.families.list[i].labels, func(l *label) bool { return l.name == m[1] })
				if n < 0 {
					t.Errorf("%s: %s has no label %s", q.title, s[1], m[1])
					continue
				}
				for _, want := range strings.Split(m[3], "|") {
					if !slices.ContainsFunc(f.families.list[i].labels[n].values, func(v value) bool { return v.name == want }) {
						t.Errorf("%s: %s never has %s=%q", q.title, s[1], m[1], want)
					}
				}
			}
		}
	}
}

func TestEveryEndReasonIsListed(t *testing.T) {
	for _, r := range causes {
		if !slices.ContainsFunc(labelEndReason.values, func(v value) bool { return v.name == string(r) }) {
			t.Errorf("%s is not listed", r)
		}
	}
	if len(causes) != len(labelEndReason.values) {
		t.Errorf("%d reasons, %d listed", len(causes), len(labelEndReason.values))
	}
}

// TestReference fails when the page is not what the code says; -update mends it.
func TestReference(t *testing.T) {
	const page = "../../docs/metrics.md"
	want := Reference()
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is out of date: go test ./internal/metrics -run TestReference -update", page)
	}
}

func TestManyAtOnce(t *testing.T) {
	f := newFixture(t, nil)
	all := []string{apiv1.StepSeen, apiv1.StepPlaced, apiv1.StepLaunched, apiv1.StepJoined, apiv1.StepReady, apiv1.StepBound,
		apiv1.StepEnded, apiv1.StepTerminated}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			l := f.life(fmt.Sprint(i), false)
			for n, s := range all {
				phase := apiv1.Booting
				if n == len(all)-1 {
					phase = apiv1.Gone
				}
				l.steps(time.Duration(n)*time.Second, phase, s)
			}
		})
	}
	for range 10 {
		if _, err := f.registry.Gather(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if v := f.samples(t, "kip_cells_ended_total"); v["instance_type=c5.large,launch_type=on-demand,reason=other"] != "64" {
		t.Errorf("ended: %v", v)
	}
}

// BenchmarkCellChanged is a whole life of eight changes, each with a step; a
// change is an eighth of it.
func BenchmarkCellChanged(b *testing.B) {
	all := []string{apiv1.StepSeen, apiv1.StepPlaced, apiv1.StepLaunched, apiv1.StepJoined, apiv1.StepReady, apiv1.StepBound,
		apiv1.StepEnded, apiv1.StepTerminated}
	lifeOf := func(f *fixture) (snapshots []cells.Cell) {
		l := f.life("cell-abcdefghijklmnop", false)
		l.cell.PodEnded = true
		for n, s := range all {
			l.cell.Steps = append(slices.Clip(l.cell.Steps), apiv1.Step{Name: s, Time: metav1.NewMicroTime(t0.Add(time.Duration(n) * time.Second))})
			if n == len(all)-1 {
				l.cell.Phase = apiv1.Gone
			}
			snapshots = append(snapshots, l.cell)
		}
		return snapshots
	}
	b.Run("step", func(b *testing.B) {
		f := newFixture(b, nil)
		snapshots := lifeOf(f)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			f.CellChanged(snapshots[i%len(snapshots)])
		}
	})
	b.Run("nothing-new", func(b *testing.B) {
		f := newFixture(b, nil)
		snapshots := lifeOf(f)
		f.CellChanged(snapshots[4])
		b.ReportAllocs()
		for b.Loop() {
			f.CellChanged(snapshots[4])
		}
	})
}

// BenchmarkScrape is a scrape with 10,000 cells.
func BenchmarkScrape(b *testing.B) {
	f := newFixture(b, nil)
	for i := range 10000 {
		l := f.life(fmt.Sprint(i), false)
		l.cell.Phase = apiv1.Bound
		l.cell.Steps = []apiv1.Step{{Name: apiv1.StepBound, Time: metav1.NewMicroTime(t0)}}
		f.cells = append(f.cells, l.cell)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}
