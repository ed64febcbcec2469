package provisioner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/volumes"
)

// testPatience is how long a test waits for what must come. It only tells a hang from a slow machine.
const testPatience = 5 * time.Minute

// The steps of an expansion, as a claim shows them.
const (
	allocating = corev1.PersistentVolumeClaimControllerResizeInProgress
	infeasible = corev1.PersistentVolumeClaimControllerResizeInfeasible
	onNode     = corev1.PersistentVolumeClaimNodeResizePending
)

// grown is a claim of 1 GiB on a disk of the simulated cloud, and who makes it larger.
type grown struct {
	*testing.T
	*expansions
	cloud  *sim.Cloud
	client *fake.Clientset
	clock  *clocktesting.FakeClock
	told   *record.FakeRecorder
	disk   string
}

// newGrown makes the disk, its volume and its claim; change is of these two.
func newGrown(t *testing.T, change ...func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)) *grown {
	t.Helper()
	p, c := provisioner(t)
	g := &grown{
		T:     t,
		cloud: c,
		clock: clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		told:  record.NewFakeRecorder(100),
	}
	p.cfg.Clock, p.cfg.Grower = g.clock, c.Disks
	pv, _, err := p.Provision(t.Context(), options())
	if err != nil {
		t.Fatal(err)
	}
	g.disk = pv.Spec.CSI.VolumeHandle
	pv.UID = "uid of the volume"
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid of the claim"}
	claim := options().PVC
	claim.UID, claim.ResourceVersion, claim.Spec.VolumeName = "uid of the claim", "1", pv.Name
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: claim.Spec.Resources.Requests.DeepCopy()}
	for _, f := range change {
		f(pv, claim)
	}
	g.client = fake.NewClientset(pv, claim)
	// As an API server, which patches no other version and no other object than it is told.
	g.client.PrependReactor("patch", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch := a.(k8stesting.PatchAction)
		for _, o := range []metav1.Object{g.claim(), g.volume()} {
			body := string(patch.GetPatch())
			if o.GetName() == patch.GetName() && (!strings.Contains(body, fmt.Sprintf(`"uid":%q`, o.GetUID())) ||
				strings.Contains(body, `"resourceVersion"`) && !strings.Contains(body, fmt.Sprintf(`"resourceVersion":%q`, o.GetResourceVersion()))) {
				return true, nil, apierrors.NewConflict(corev1.Resource(a.GetResource().Resource), patch.GetName(), errors.New("it is another"))
			}
		}
		return false, nil, nil
	})
	p.cfg.Client = g.client
	g.expansions = &expansions{
		p:        p,
		claims:   cache.NewStore(cache.MetaNamespaceKeyFunc),
		volumes:  cache.NewStore(cache.MetaNamespaceKeyFunc),
		recorder: g.told,
	}
	return g
}

func (g *grown) claim() *corev1.PersistentVolumeClaim {
	g.Helper()
	claim, err := g.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), "ns", "data")
	if err != nil {
		g.Fatal(err)
	}
	return claim.(*corev1.PersistentVolumeClaim)
}

func (g *grown) volume() *corev1.PersistentVolume {
	g.Helper()
	pv, err := g.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "pvc-1")
	if err != nil {
		g.Fatal(err)
	}
	return pv.(*corev1.PersistentVolume)
}

// asks changes what the claim asks for.
func (g *grown) asks(size string) {
	g.Helper()
	claim := g.claim().DeepCopy()
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	if err := g.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"); err != nil {
		g.Fatal(err)
	}
}

// try expands the claim as it is now.
func (g *grown) try() (time.Duration, error) {
	g.Helper()
	if err := errors.Join(g.claims.Add(g.claim()), g.volumes.Add(g.volume())); err != nil {
		g.Fatal(err)
	}
	return g.expand(g.Context(), "ns/data")
}

// is compares the sizes of disk, volume and claim, what is allocated, and how far the claim is.
func (g *grown) is(disk, volume, capacity, given string, status corev1.ClaimResourceStatus,
	conditions ...corev1.PersistentVolumeClaimConditionType) {
	g.Helper()
	claim := g.claim()
	var has []corev1.PersistentVolumeClaimConditionType
	for _, c := range claim.Status.Conditions {
		if has = append(has, c.Type); c.Status != corev1.ConditionTrue || c.LastTransitionTime.IsZero() {
			g.Errorf("the condition is %+v", c)
		}
	}
	size := resource.NewQuantity(g.cloud.Disks.All()[0].SizeBytes, resource.BinarySI)
	reserved := allocated(claim)
	got := fmt.Sprintf("%v %v %v %v %q %v", size, g.volume().Spec.Capacity.Storage(), claim.Status.Capacity.Storage(), &reserved,
		resizeStatus(claim), has)
	if want := fmt.Sprintf("%v %v %v %v %q %v", disk, volume, capacity, given, status, conditions); got != want {
		g.Errorf("disk, volume, claim, allocated and status are %s, want %s", got, want)
	}
}

// tells looks for an Event, and that there is no other.
func (g *grown) tells(want string) {
	g.Helper()
	select {
	case got := <-g.told.Events:
		if !strings.Contains(got, want) {
			g.Errorf("told %q, want %q", got, want)
		}
	default:
		if want != "" {
			g.Errorf("told nothing, want %q", want)
		}
	}
	if want != "" {
		g.tells("")
	}
}

func (g *grown) calls() int {
	n := 0
	for key, times := range g.cloud.Calls() {
		if key.Kind == sim.KindGrowDisk {
			n += times
		}
	}
	return n
}

func TestAnExpandedDiskIsLeftToTheKubelet(t *testing.T) {
	g := newGrown(t)
	if _, err := g.try(); err != nil || g.calls() != 0 {
		t.Errorf("a claim that has what it asks for: %v, %d calls", err, g.calls())
	}
	g.asks("2Gi")
	if _, err := g.try(); err != nil {
		t.Fatal(err)
	}
	g.is("2Gi", "2Gi", "1Gi", "2Gi", onNode, corev1.PersistentVolumeClaimFileSystemResizePending)
	g.tells("Normal FileSystemResizeRequired The disk has 2Gi")

	// While the kubelet has not finished, nothing more is done and nothing is written.
	g.asks("3Gi")
	before := len(g.client.Actions())
	if _, err := g.try(); err != nil || g.calls() != 1 || len(g.client.Actions()) != before {
		t.Errorf("before the kubelet has finished: %v, %d calls, %v", err, g.calls(), g.client.Actions()[before:])
	}
	g.tells("")
	claim := g.claim().DeepCopy()
	claim.Status.Capacity[corev1.ResourceStorage], claim.Status.AllocatedResourceStatuses, claim.Status.Conditions =
		resource.MustParse("2Gi"), nil, []corev1.PersistentVolumeClaimCondition{{
			Type: "Theirs", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(g.clock.Now()),
		}}
	if err := g.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.try(); err != nil {
		t.Fatal(err)
	}
	g.is("3Gi", "3Gi", "2Gi", "3Gi", onNode, "Theirs", corev1.PersistentVolumeClaimFileSystemResizePending)
}

func TestABlockVolumeIsFinishedWithItsDisk(t *testing.T) {
	g := newGrown(t, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
		pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	})
	g.asks("2Gi")
	if _, err := g.try(); err != nil {
		t.Fatal(err)
	}
	g.is("2Gi", "2Gi", "2Gi", "2Gi", "")
	g.tells("Normal VolumeResizeSuccessful The disk has 2Gi")
}

// wholeGiB is a cloud whose disks have whole GiB.
type wholeGiB struct{ cloud.DiskGrower }

func (w wholeGiB) GrowDisk(ctx context.Context, id string, bytes int64) (cloud.Disk, error) {
	return w.DiskGrower.GrowDisk(ctx, id, (bytes+1<<30-1)>>30<<30)
}

func TestAClaimHasWhatItsDiskHas(t *testing.T) {
	g := newGrown(t)
	g.p.cfg.Grower = wholeGiB{g.cloud.Disks}
	g.asks("1500Mi")
	if _, err := g.try(); err != nil {
		t.Fatal(err)
	}
	g.is("2Gi", "2Gi", "1Gi", "2Gi", onNode, corev1.PersistentVolumeClaimFileSystemResizePending)
}

func TestAnExpansionGoesOnWhereItWasBrokenOff(t *testing.T) {
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		fail  func(g *grown)
		steps int // tries that fail
	}{
		"the cloud's answer is lost": {func(g *grown) { g.cloud.FailNth(sim.KindGrowDisk, 1, sim.Fault{After: sim.ErrLost}) }, 1},
		"the cloud is not reached":   {func(g *grown) { g.cloud.FailNth(sim.KindGrowDisk, 1, sim.Fault{Before: lost}) }, 1},
		"no write of the API server is answered the first time": {func(g *grown) {
			seen := map[string]bool{}
			g.client.PrependReactor("patch", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
				body := string(a.(k8stesting.PatchAction).GetPatch())
				step := a.GetResource().Resource
				for _, s := range []string{string(allocating), string(onNode)} {
					if strings.Contains(body, s) {
						step += s
					}
				}
				if !seen[step] {
					seen[step] = true
					return true, nil, lost
				}
				return false, nil, nil
			})
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGrown(t)
			g.asks("2Gi")
			c.fail(g)
			for n := range c.steps {
				if again, err := g.try(); err == nil || again != 0 {
					t.Fatalf("try %d: %v, %v", n, again, err)
				}
			}
			if _, err := g.try(); err != nil {
				t.Fatal(err)
			}
			g.is("2Gi", "2Gi", "1Gi", "2Gi", onNode, corev1.PersistentVolumeClaimFileSystemResizePending)
		})
	}
}

// says is a cloud that answers so.
type says struct {
	cloud.DiskGrower
	err error
}

func (s says) GrowDisk(context.Context, string, int64) (cloud.Disk, error) {
	return cloud.Disk{}, s.err
}

func TestAnExpansionThatTheCloudDoesNotMakeIsToldAndTriedLater(t *testing.T) {
	hours := cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("changed an hour ago"))
	hours.RetryAfter = 5 * time.Hour
	resizing, failed := corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimControllerResizeError
	for name, c := range map[string]struct {
		err       error
		again     time.Duration
		status    corev1.ClaimResourceStatus
		condition corev1.PersistentVolumeClaimConditionType
		message   string
	}{
		"for hours":         {hours, 5 * time.Hour, allocating, resizing, "changed an hour ago"},
		"for a while":       {cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("changing")), time.Minute, allocating, resizing, ""},
		"at all":            {cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("too large")), time.Hour, infeasible, failed, "too large"},
		"for want of right": {cloud.No(cloud.ErrUnauthorised, cloud.Scope{}, errors.New("denied")), time.Hour, infeasible, failed, "denied"},
		"by an odd error":   {errors.New("changed"), 0, allocating, resizing, ""},
		"throttled":         {&cloud.Error{Cause: cloud.ErrThrottled, RetryAfter: time.Hour}, 0, allocating, resizing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGrown(t)
			g.p.cfg.Grower = says{g.cloud.Disks, fmt.Errorf("grow: %w", c.err)}
			g.asks("2Gi")
			var settled int
			for n := range 3 {
				if again, err := g.try(); !errors.Is(err, c.err) || again != c.again {
					t.Errorf("again after %v: %v; want %v", again, err, c.again)
				}
				g.is("1Gi", "1Gi", "1Gi", "2Gi", c.status, c.condition)
				g.tells("Warning VolumeResizeFailed Failed to expand the disk to 2Gi: grow: ")
				g.clock.Step(time.Hour)
				if n == 0 {
					settled = len(g.client.Actions())
				}
			}
			if got := g.claim().Status.Conditions[0].Message; !strings.Contains(got, c.message) || c.message == "" && got != "" {
				t.Errorf("the condition says %q, want %q", got, c.message)
			}
			if more := g.client.Actions()[settled:]; len(more) > 0 {
				t.Errorf("nothing has changed, and is written: %v", more)
			}
			// Less is another question, and what the cloud said of more is forgotten.
			g.p.cfg.Grower = g.cloud.Disks
			g.asks("1500Mi")
			if _, err := g.try(); err != nil {
				t.Fatal(err)
			}
			g.is("1500Mi", "1500Mi", "1Gi", "1500Mi", onNode, corev1.PersistentVolumeClaimFileSystemResizePending)
		})
	}
	g := newGrown(t)
	g.p.cfg.Grower = nil
	g.asks("2Gi")
	if again, err := g.try(); !errors.Is(err, cloud.ErrRefused) || again != time.Hour {
		t.Errorf("a cloud that cannot: %v, %v", again, err)
	}
	g.tells("this cloud makes no disk larger")
}

func TestNoDiskIsMadeSmaller(t *testing.T) {
	g := newGrown(t)
	g.asks("4Gi")
	g.cloud.FailNth(sim.KindGrowDisk, 1, sim.Fault{After: sim.ErrLost})
	if _, err := g.try(); err == nil {
		t.Fatal("the answer was not lost")
	}
	g.tells("VolumeResizeFailed")
	g.asks("2Gi")
	if _, err := g.try(); err != nil {
		t.Fatal(err)
	}
	g.is("4Gi", "4Gi", "1Gi", "4Gi", onNode, corev1.PersistentVolumeClaimFileSystemResizePending)
	if got := <-g.told.Events; !strings.Contains(got, "Warning VolumeResizeFailed The claim asks for 2Gi, but its disk has 4Gi already") {
		t.Errorf("told %q", got)
	}
	g.tells("FileSystemResizeRequired The disk has 4Gi")
	// Before its file system has grown it is told, too.
	g.asks("3Gi")
	if _, err := g.try(); err != nil || g.calls() != 2 {
		t.Errorf("%v, %d calls", err, g.calls())
	}
	g.tells("The claim asks for 3Gi, but its disk has 4Gi already")
}

func TestOnlyTheDiskThatWasMadeForTheVolumeIsExpanded(t *testing.T) {
	type change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)
	for name, c := range map[string]struct {
		change change
		told   string
	}{
		"of another Kip": {func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.CSI.VolumeAttributes["node"] = "kip-1"
		}, ""},
		"of another driver": {func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.CSI.Driver = "nfs.csi.k8s.io"
		}, ""},
		"of another claim": {func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { pv.Spec.ClaimRef.UID = "another" }, ""},
		"of nobody":        {func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { pv.Spec.ClaimRef = nil }, ""},
		"of a claim not bound": {func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimPending
		}, ""},
		"of a disk of another volume": {func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.CSI.VolumeHandle = "disk-of-somebody"
		}, "disk-of-somebody"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGrown(t, c.change)
			g.asks("2Gi")
			_, err := g.try()
			if foreign := errors.As(err, new(*volumes.ForeignDiskError)); foreign != (c.told != "") || !foreign && err != nil || g.calls() != 0 {
				t.Errorf("%v, %d calls", err, g.calls())
			}
			g.tells(c.told)
		})
	}
}

// A namespace with many claims that grow must not keep the claim of another waiting for the cloud's answers to all.
func TestNamespacesTakeTurnsAtExpansions(t *testing.T) {
	g := newGrown(t)
	q := newQueue(g.p.cfg)
	defer q.ShutDown()
	for _, claim := range []string{"large/1", "large/2", "large/3", "small/1"} {
		q.Add(claim)
	}
	for _, want := range []string{"large/1", "small/1"} {
		if got, _ := q.Get(); got != want {
			t.Errorf("the next claim is %s, want %s", got, want)
		}
	}
}

// The parts together: what is watched, what is waited for, and what ends.
func TestClaimsAreExpandedAsTheyAreSeenAndWhenTheirTimeHasCome(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g := newGrown(t)
	g.asks("2Gi") // while Kip was away
	hours := cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("changed an hour ago"))
	hours.RetryAfter = 5 * time.Hour
	g.cloud.FailNth(sim.KindGrowDisk, 1, sim.Fault{Before: hours})
	claims, _, run, err := g.p.watch()
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	eventually := func(what string, is func() bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(ctx, time.Millisecond, testPatience, true, func(context.Context) (bool, error) {
			return is(), nil
		}); err != nil {
			t.Fatalf("never: %s; the claim is %+v", what, g.claim().Status)
		}
	}
	const tickers = 1 // of a queue, from its making on
	running.Go(func() { run(ctx) })
	eventually("the cloud is asked, and the claim waits for it", func() bool { return g.calls() == 1 && g.clock.Waiters() > tickers })
	eventually("the claim says so", func() bool {
		c := g.claim().Status.Conditions
		return len(c) == 1 && strings.Contains(c[0].Message, "changed an hour ago")
	})
	g.clock.Step(5*time.Hour - time.Second)
	g.is("1Gi", "1Gi", "1Gi", "2Gi", allocating, corev1.PersistentVolumeClaimResizing)
	g.clock.Step(time.Second)
	eventually("it is expanded when its time has come", func() bool { return resizeStatus(g.claim()) == onNode })
	if g.calls() != 2 {
		t.Errorf("the cloud was asked %d times", g.calls())
	}
	if !claims.HasSynced() {
		t.Error("the provisioner would wait for ever for the claims")
	}
	eventually("it is told", func() bool {
		list, err := g.client.CoreV1().Events("ns").List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 2
	})
}
