package explain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/volumes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// requests is package cells as far as a pod without a cell sees it.
type requests struct {
	made    chan cells.Request
	has     *cells.Cell // of the pod
	standby string      // the cell that would be taken
	trouble string      // with the status of its pod
}

func (r *requests) Request(_ context.Context, q cells.Request) (cells.Cell, error) {
	r.made <- q
	return cells.Cell{ID: "cell-1", Pod: q.Pod, Phase: apiv1.Requested, Offerings: q.Offerings}, nil
}

func (*requests) Release(types.UID, string, bool)                         {}
func (*requests) ReleaseFailed(types.UID, string, time.Duration, int)     {}
func (*requests) ReleaseVanished(context.Context, types.UID, string) bool { return true }
func (*requests) ReleaseUnbound(types.UID, string) bool                   { return true }
func (*requests) Affords(context.Context, cells.Request) error            { return nil }
func (*requests) PodsNamed(cache.ObjectName) []types.UID                  { return nil }
func (*requests) Behind() (string, bool)                                  { return "", true }
func (*requests) EndDuplicates(types.UID, time.Time, bool) (string, bool) {
	return "", true
}
func (r *requests) List() []cells.Cell {
	if r.has == nil {
		return nil
	}
	return []cells.Cell{*r.has}
}
func (*requests) Link(string) (cells.Link, bool) { return cells.Link{}, false }
func (*requests) WaitsFor(string) string         { return "" }
func (r *requests) StatusTrouble(string) string  { return r.trouble }
func (*requests) Standby() []cells.StandbyState  { return nil }
func (r *requests) ForPod(types.UID) (cells.Cell, bool) {
	if r.has == nil {
		return cells.Cell{}, false
	}
	return *r.has, true
}

func (r *requests) WouldTake(q cells.Request) (cells.Cell, bool) {
	return cells.Cell{ID: r.standby}, r.standby != "" && len(q.Offerings) > 0
}

func (*requests) Conn(types.UID) (agentapi.Conn, error) {
	return nil, errors.New("no cell is connected")
}

// old has prices that were told then.
type old struct{}

func (old) PricesTold() time.Time { return oldPrices }

var oldPrices = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// blank are Cell resources that say nothing.
type blank struct{}

func (blank) Status(cells.Cell) apiv1.CellStatus { return apiv1.CellStatus{} }

// kip is the loop and what explains it, with one node, over one catalogue of two zones.
type kip struct {
	*testing.T
	client   kubernetes.Interface
	loop     *pods.Controller
	placer   *placement.Placer
	informer cache.SharedIndexInformer
	explains *Explainer
	requests *requests
	needs    volumes.Needs
	failed   error // of the volumes
	outOf    string
}

func (k *kip) isOut(o offering.Key) bool { return o.InstanceType == k.outOf }

func (k *kip) Choose(_ context.Context, pod *corev1.Pod, zone string) (placement.Chosen, error) {
	return k.placer.Choose(placement.InZone(pod, zone), k.isOut)
}

func (k *kip) Needs(context.Context, *corev1.Pod) (volumes.Needs, error) { return k.needs, k.failed }

func (*kip) Listed(string) bool                              { return true }
func (k *kip) Client(string) kubernetes.Interface            { return k.client }
func (*kip) Elsewhere(context.Context, *corev1.Pod) []string { return nil }
func (k *kip) Rank(_ context.Context, pod *corev1.Pod, zone string, keys []offering.Key) (placement.Ranks, error) {
	return k.placer.Rank(placement.InZone(pod, zone), keys, k.isOut)
}
func (*kip) TurnsAway(context.Context, *corev1.Pod) bool { return false }

// unheard is whom the loop tells of pods.
type unheard struct{}

func (unheard) Event(apiv1.PodReference, events.Event) {}
func (unheard) PodRunning(cells.Cell, time.Time)       {}
func (unheard) PodGone(types.UID)                      {}

func newKip(t *testing.T, pod *corev1.Pod) *kip {
	t.Helper()
	var machines []catalog.InstanceType
	for i, name := range []string{"small", "medium", "large"} {
		t := catalog.InstanceType{Name: name, MilliCPU: 1000, MemoryBytes: 512 << 20 << i, DiskBytes: 8 << 30, Arch: "amd64"}
		for _, zone := range []string{"a", "b"} {
			t.Offerings = append(t.Offerings, catalog.PurchaseOption{Zone: zone, PricePerHour: float64(i + 1)})
		}
		machines = append(machines, t)
	}
	placer, err := placement.New(machines, placement.Config{DefaultArch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	k := &kip{T: t, placer: placer, requests: &requests{made: make(chan cells.Request, 1)}}
	client := fake.NewClientset(pod)
	k.client = client
	informer := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer()
	k.informer = informer
	k.loop, err = pods.New(pods.Config{
		Pods:     informer,
		Nodes:    k,
		Cells:    k.requests,
		Volumes:  k,
		Events:   unheard{},
		Observer: unheard{},
		Clock:    clock.RealClock{},
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	k.explains = New(Config{
		Node:          "kip-0",
		Pods:          informer.GetStore(),
		Loop:          k.loop,
		Cells:         k.requests,
		Mirror:        blank{},
		Shortages:     capacity.New(clock.RealClock{}),
		InstanceTypes: old{},
	})
	if err := informer.GetStore().Add(pod); err != nil {
		t.Fatal(err)
	}
	return k
}

// requested are the candidates with which the loop requests the pod's cell.
func (k *kip) requested() []string {
	k.Helper()
	ctx, cancel := context.WithCancel(k.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { k.informer.RunWithContext(ctx) })
	running.Go(func() {
		if err := k.loop.Run(ctx); err != nil {
			k.Errorf("the loop: %v", err)
		}
	})
	var words []string
	for _, o := range (<-k.requests.made).Offerings {
		words = append(words, fmt.Sprintf("%s in %s at %s: %s", o.InstanceType, o.Zone, apiv1.Price(o.PricePerHour), o.Reason))
	}
	return words
}

func (k *kip) placement(pod *corev1.Pod) *adminapi.Placement {
	k.Helper()
	e, err := k.explains.Why(k.Context(), pod.Namespace, pod.Name)
	if err != nil {
		k.Fatal(err)
	}
	return e.Placement
}

func candidates(p *adminapi.Placement) []string {
	var words []string
	for _, c := range p.Candidates {
		words = append(words, fmt.Sprintf("%s in %s at %s: %s", c.InstanceType, c.Zone, c.PricePerHour, c.Why))
	}
	return words
}

// asking is a pod that asks for memory.
func asking(memory string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-web"},
		Spec: corev1.PodSpec{NodeName: "kip-0", Containers: []corev1.Container{{
			Name:      "c",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func TestWhatIsExplainedIsWhatKipChooses(t *testing.T) {
	disk := []volumes.Disk{{ID: "disk-1", Volume: "pvc-1", Zone: "b"}}
	plugin := []volumes.Plugin{{Driver: "nfs", Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}}}
	for name, tc := range map[string]struct {
		needs volumes.Needs
		outOf string
		want  string // that the first candidate begins with
		not   string // that no candidate says
	}{
		"a pod without volumes":               {want: "small in a"},
		"a volume in a zone":                  {needs: volumes.Needs{Disks: disk}, want: "small in b", not: "in a"},
		"a CSI driver's plugin":               {needs: volumes.Needs{Plugins: plugin}, want: "medium in a", not: "small"},
		"a volume in a zone and a CSI driver": {needs: volumes.Needs{Disks: disk, Plugins: plugin}, want: "medium in b", not: "in a"},
		"and a type that is out of capacity": {
			needs: volumes.Needs{Disks: disk, Plugins: plugin},
			outOf: "medium",
			want:  "large in b",
			not:   "medium",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := asking("450Mi")
			k := newKip(t, pod)
			k.needs, k.outOf = tc.needs, tc.outOf
			told := candidates(k.placement(pod))
			chosen := k.requested()
			if !slices.Equal(told, chosen[:min(len(chosen), apiv1.MaxCandidates)]) {
				t.Errorf("explained\n%s\nand chosen\n%s", strings.Join(told, "\n"), strings.Join(chosen, "\n"))
			}
			if len(chosen) == 0 || !strings.HasPrefix(chosen[0], tc.want) {
				t.Errorf("chosen %q: want %s first", chosen, tc.want)
			}
			for _, c := range chosen {
				if tc.not != "" && strings.Contains(c, tc.not) {
					t.Errorf("chosen %q: want none that says %q", c, tc.not)
				}
			}
		})
	}
}

func TestOfAPodWithACellWhatWasChosenIsToldAndNotAnotherChoice(t *testing.T) {
	pod := asking("450Mi")
	k := newKip(t, pod)
	offerings := []offering.Offering{
		{InstanceType: "gone", Zone: "z", PricePerHour: 9, Reason: "it was cheap"},
		{InstanceType: "other", Zone: "z", PricePerHour: 10, Reason: "the next"},
	}
	best := []offering.Offering{{InstanceType: "small", Zone: "z", PricePerHour: 8, Reason: "cheapest"}, offerings[0], offerings[1]}
	ruledOut := []apiv1.RuledOut{{Types: 3, Why: "have too little memory"}, {Types: 1, Why: "is dear"}}
	small := "small in z at 8: cheapest"
	pooled := "gone in z at 9: a standby cell of p"
	first, next := "gone in z at 9: it was cheap", "other in z at 10: the next"
	for name, tc := range map[string]struct {
		cell cells.Cell
		want []string
	}{
		"requested": {cells.Cell{Phase: apiv1.Requested, Reason: "it was cheap"}, []string{first, next}},
		"bound":     {cells.Cell{Phase: apiv1.Bound, Reason: "it was cheap"}, []string{first}},
		"bound, and what else there was": {
			cells.Cell{Phase: apiv1.Bound, Considered: cells.Considered{Best: best, RuledOut: ruledOut}},
			[]string{first, small, next},
		},
		"ending":     {cells.Cell{Phase: apiv1.Terminating, Reason: "the pod has ended"}, []string{first}},
		"of a pool":  {cells.Cell{Phase: apiv1.Bound, OfPool: cells.OfPool{Standby: "p"}, Reason: "a standby cell of p"}, []string{pooled}},
		"pool, over": {cells.Cell{Phase: apiv1.Terminating, OfPool: cells.OfPool{Standby: "p"}, Reason: "the pod has ended"}, []string{first}},
	} {
		tc.cell.Offerings = offerings
		k.requests.has = &tc.cell
		k.requests.standby = "cell-standby"
		p := k.placement(pod)
		if got := candidates(p); !slices.Equal(got, tc.want) || p.Standby != "" {
			t.Errorf("%s: told %q, standby %q, want %q", name, got, p.Standby, tc.want)
		}
		const counted = "[{3 types have too little memory} {1 type is dear}]"
		if got := fmt.Sprint(p.Rejected); tc.cell.RuledOut != nil && got != counted {
			t.Errorf("%s: told of %s, want %s", name, got, counted)
		}
	}
}

func TestWhatIsRuledOutIsCountedBesideTheCandidates(t *testing.T) {
	pod := asking("900Mi")
	k := newKip(t, pod)
	k.outOf = "medium"
	const want = "[{1 type has too little memory (largest: small with 512Mi)} {1 type has no capacity now}]"
	if p := k.placement(pod); fmt.Sprint(p.Rejected) != want || len(p.Candidates) != 2 || p.Error != "" {
		t.Errorf("explained as %+v, want %s", p, want)
	}
}

func TestAPodThatWaitsIsToldOfTheStandbyCellThatItWouldTake(t *testing.T) {
	pod := asking("450Mi")
	k := newKip(t, pod)
	if p := k.placement(pod); p.Standby != "" {
		t.Errorf("without standby cells it would take %q", p.Standby)
	}
	k.requests.standby = "cell-standby"
	if p := k.placement(pod); p.Standby != "cell-standby" || len(p.Candidates) == 0 || !p.PricesTold.Equal(oldPrices) {
		t.Errorf("it would take %q, and candidates are %v, by prices of %s", p.Standby, p.Candidates, p.PricesTold)
	}
}

func TestWhyNothingCanBeChosenIsExplained(t *testing.T) {
	t.Run("a volume that is not ready", func(t *testing.T) {
		pod := asking("10Mi")
		k := newKip(t, pod)
		k.failed = &volumes.NotReadyError{Volume: "data", Why: "there is no PersistentVolumeClaim data"}
		if p := k.placement(pod); p.Error != "volume data: there is no PersistentVolumeClaim data" || len(p.Candidates) != 0 {
			t.Errorf("explained as %+v", p)
		}
	})
	t.Run("nothing that is large enough where its disk is", func(t *testing.T) {
		pod := asking("100Gi")
		k := newKip(t, pod)
		k.needs.Disks = []volumes.Disk{{ID: "disk-1", Volume: "pvc-1", Zone: "b"}}
		p := k.placement(pod)
		if !strings.HasSuffix(p.Error, "; the disks of its volumes are in zone b") || p.Need == "" || len(p.Rejected) == 0 {
			t.Errorf("explained as %+v", p)
		}
	})
	t.Run("no capacity", func(t *testing.T) {
		pod := asking("1500Mi")
		k := newKip(t, pod)
		k.outOf = "large"
		want := []adminapi.Rejection{{What: "large", Why: "no capacity now"}}
		if p := k.placement(pod); p.Error == "" || p.Need == "" || !slices.Equal(p.Rejected, want) {
			t.Errorf("explained as %+v", p)
		}
	})
	k := newKip(t, asking("10Mi"))
	if _, err := k.explains.Why(t.Context(), "ns", "other"); !errors.Is(err, adminapi.ErrNotFound) {
		t.Errorf("a pod that is not there: %v", err)
	}
}

func TestWhatIsShortIsToldByHowItIsBought(t *testing.T) {
	short := capacity.New(clock.RealClock{})
	for _, s := range []capacity.Shortage{
		{InstanceType: "m5.large", Spot: new(false)}, {InstanceType: "m5.large", Spot: new(false), Pool: catalog.Dedicated},
		{InstanceType: "m5.large", Spot: new(true)}, {Zone: "a"},
	} {
		short.Mark(s)
	}
	x := &Explainer{cfg: Config{Shortages: short}}
	list, err := x.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range list {
		got = append(got, s.InstanceType+" "+s.LaunchType)
	}
	if want := []string{" ", "m5.large On-Demand", "m5.large Dedicated", "m5.large Spot"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWhyACellIsNotOfABetterRankIsTold(t *testing.T) {
	pod := asking("450Mi")
	pod.Annotations = map[string]string{
		placement.AnnotationLaunchType: "spot,on-demand", placement.AnnotationMoveBack: "1h",
	}
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}}
	k := newKip(t, pod)
	bound := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	k.requests.has = &cells.Cell{
		Phase:     apiv1.Bound,
		Offerings: []offering.Offering{{InstanceType: "small", Zone: "a"}},
		Steps:     []apiv1.Step{{Name: apiv1.StepBound, Time: metav1.NewMicroTime(bound)}},
	}
	p := k.placement(pod)
	if p.Rank != 2 || p.Ranks != 2 || !p.MovesBack.Equal(bound.Add(time.Hour)) || len(p.Better) != 1 || p.Better[0].Rank != 1 ||
		!strings.Contains(p.Better[0].Why, "as spot") {
		t.Errorf("told %+v", p)
	}
	k.requests.has.Phase = apiv1.Terminating
	if p = k.placement(pod); p.Rank != 0 {
		t.Errorf("of a cell that ends is told rank %d", p.Rank)
	}
}
