package provisioner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/volumes"
)

// checker answers after a while.
type checker struct {
	takes time.Duration
	err   error

	mu    sync.Mutex
	asked []string
}

// all are the questions so far.
func (c *checker) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

func (c *checker) CheckDisk(ctx context.Context, id, zone string) error {
	c.mu.Lock()
	c.asked = append(c.asked, id+" in "+zone)
	c.mu.Unlock()
	select {
	case <-time.After(c.takes):
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestADiskIsLookedAtBeforeItsInstanceIsLaunched(t *testing.T) {
	no := errors.New("it is another's")
	disk := volumes.Disk{ID: "disk-1", Volume: "pv", Zone: "a"}
	for what, tc := range map[string]struct {
		takes time.Duration
		// waits is how long the first who asks waits, of whom first is what he is told.
		waits time.Duration
		first error
		then  error // two seconds later
	}{
		"at once":              {0, 0, no, no},
		"in a while":           {patience / 2, patience / 2, no, no},
		"while nobody waits":   {2 * patience, patience, volumes.ErrUntold, no},
		"not in time, for all": {time.Hour, patience, volumes.ErrUntold, volumes.ErrUntold},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &checker{takes: tc.takes, err: no}
				p := &Provisioner{lifetime: t.Context(), cfg: Config{Checker: c, Clock: clock.RealClock{}}}
				began := time.Now()
				if err := p.Attachable(t.Context(), disk); !errors.Is(err, tc.first) || time.Since(began) != tc.waits {
					t.Errorf("after %s: %v, want %v after %s", time.Since(began), err, tc.first, tc.waits)
				}
				time.Sleep(2 * time.Second) // when its pod is looked at again
				began = time.Now()
				if err := p.Attachable(t.Context(), disk); !errors.Is(err, tc.then) || time.Since(began) != 0 {
					t.Errorf("again, after %s: %v, want %v at once", time.Since(began), err, tc.then)
				}
				if asked := c.all(); !slices.Equal(asked, []string{"disk-1 in a"}) {
					t.Errorf("asked %q: want one question for both", asked)
				}
				time.Sleep(checkTimeout + checkedLateFor)
				_ = p.Attachable(t.Context(), disk)
				time.Sleep(checkTimeout) // until all questions have ended
				synctest.Wait()
				p.checks.mu.Lock()
				defer p.checks.mu.Unlock()
				if asked := c.all(); len(asked) != 2 || len(p.checks.told) > 1 || len(p.checks.began) > 0 {
					t.Errorf("later: asked %q, kept %v and %v", asked, p.checks.told, p.checks.began)
				}
			})
		})
	}
}

func TestManyDisksOfACloudThatIsSlowAreWaitedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &checker{takes: 2 * patience}
		p := &Provisioner{lifetime: t.Context(), cfg: Config{Checker: c, Clock: clock.RealClock{}}}
		disk := func(n int) volumes.Disk { return volumes.Disk{ID: fmt.Sprint("disk-", n), Volume: "pv", Zone: "a"} }
		began := time.Now()
		for n := range 100 {
			if err := p.Attachable(t.Context(), disk(n)); !errors.Is(err, volumes.ErrUntold) {
				t.Fatalf("disk %d: %v", n, err)
			}
		}
		if waited := time.Since(began); waited != patience {
			t.Errorf("who asks about one disk after the other waits %s, want %s", waited, patience)
		}
		time.Sleep(2*patience + time.Millisecond)
		began = time.Now()
		for n := range 100 {
			if err := p.Attachable(t.Context(), disk(n)); err != nil {
				t.Errorf("disk %d is not told of when the cloud has answered: %v", n, err)
			}
		}
		if len(c.all()) != 100 || time.Since(began) != 0 {
			t.Errorf("%d questions about 100 disks; %s until all was told", len(c.all()), time.Since(began))
		}
		// A cloud that answers in time again is waited for again, as soon as it has shown that.
		time.Sleep(checkedLateFor)
		c.takes = patience / 2
		_ = p.Attachable(t.Context(), disk(200))
		time.Sleep(patience)
		if err := p.Attachable(t.Context(), disk(201)); err != nil {
			t.Errorf("it answers in time, and is not waited for: %v", err)
		}
	})
}

// A pod of three disks is looked at again after 2 s, 4, 8 and then 15, by a cloud that takes as long for each of them as it may.
func TestAPodWithSeveralDisksIsToldOfAllHoweverSlowTheCloudIs(t *testing.T) {
	var objects []runtime.Object
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	for _, name := range []string{"data", "wal", "log"} {
		objects = append(objects, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
			Spec: corev1.PersistentVolumeSpec{
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}},
				ClaimRef:     &corev1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID(name)},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: volumes.Driver, VolumeHandle: "disk-" + name, FSType: "ext4",
					VolumeAttributes: map[string]string{volumes.AttributeZone: "a"}}},
			},
		}, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
	for _, takes := range []time.Duration{
		// Not just patience: whether an answer comes in time is open then.
		patience / 2, patience + 100*time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond, 4 * time.Second, 9 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &checker{takes: takes}
			p := &Provisioner{lifetime: t.Context(), cfg: Config{Checker: c, Clock: clock.RealClock{}}}
			r := volumes.Resolver{
				Client:      fake.NewClientset(objects...).CoreV1(),
				Owned:       func(context.Context, *corev1.PersistentVolume) error { return nil },
				Attachable:  p.Attachable,
				OurInstance: func(string) bool { return false },
			}
			var err error
			for _, wait := range []time.Duration{0, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second} {
				time.Sleep(wait)
				var needs volumes.Needs
				if needs, err = r.Needs(t.Context(), pod); err == nil && len(needs.Disks) != 3 {
					t.Errorf("needs %v", needs.Disks)
				}
				if err == nil {
					break
				}
				if !errors.Is(err, volumes.ErrUntold) {
					t.Fatalf("where the cloud takes %s: %v", takes, err)
				}
			}
			if err != nil || len(c.all()) != 3 {
				t.Errorf("where the cloud takes %s it is asked %d times, and the last look says: %v", takes, len(c.all()), err)
			}
			time.Sleep(checkTimeout)
		})
	}
}

func TestACloudThatCannotCheckDisksIsNotAsked(t *testing.T) {
	if err := (&Provisioner{}).Attachable(t.Context(), volumes.Disk{ID: "disk-1"}); err != nil {
		t.Error(err)
	}
}

func TestWhatTheCloudSaysOfADiskIsSaidOfItsVolume(t *testing.T) {
	inUse := fmt.Errorf("check: %w", &cloud.InUseError{Disk: "d", Instance: "i"})
	held, is := errors.AsType[*volumes.HeldDiskError](inVolumes("disk-1", inUse))
	if !is || held.Instance != "i" || held.Disk != "disk-1" {
		t.Errorf("held: %+v", held)
	}
	refusal := cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("no"))
	unusable, is := errors.AsType[*volumes.UnusableDiskError](inVolumes("disk-1", refusal))
	if !is || unusable.Why != error(refusal) {
		t.Errorf("refused: %+v", unusable)
	}
	for _, err := range []error{nil, cloud.ErrNotFound, cloud.No(cloud.ErrNotYet, cloud.Scope{}, nil)} {
		if got := inVolumes("disk-1", err); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
}
