package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

// modelDisks are the disks of a model cloud. They write down what is done with
// them, agents' part included.
type modelDisks struct {
	cloud.Disks
	cloud *modelCloud

	mu     sync.Mutex
	holder map[string]string
	did    []string
	busy   bool // agents cannot unmount
	fail   error
	// hangs says that a disk is never attached.
	hangs func(disk string) bool
}

func (d *modelDisks) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); len(d.did) == 0 || d.did[len(d.did)-1] != s {
		d.did = append(d.did, s)
	}
}

func (d *modelDisks) AttachDisk(ctx context.Context, id, instance string) error {
	if d.hangs != nil && d.hangs(id) {
		<-ctx.Done()
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	running := d.cloud.running()
	if d.fail != nil {
		return d.fail
	}
	if has := d.holder[id]; has != "" && has != instance && slices.Contains(running, has) {
		return &cloud.InUseError{Disk: id, Instance: has}
	}
	if !slices.Contains(running, instance) {
		return cloud.ErrNotFound
	}
	d.holder[id] = instance
	d.note("attach %s %s", id, instance)
	return nil
}

func (d *modelDisks) DetachDisk(_ context.Context, id, instance string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holder[id] == instance {
		delete(d.holder, id)
	}
	d.note("detach %s %s", id, instance)
	return nil
}

// agents answers for the agents of all cells.
func (d *modelDisks) agents(r *http.Request) *http.Response {
	d.mu.Lock()
	defer d.mu.Unlock()
	code := http.StatusOK
	if r.URL.Path == agentapi.PathDisks {
		var list agentapi.Disks
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			panic(err)
		}
		if len(list.Disks) == 0 && d.busy {
			code = http.StatusServiceUnavailable
		} else {
			d.note("agent has %v", list.Disks)
		}
	}
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(""))}
}

func (d *modelDisks) done() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.did)
}

func withDisks(t *testing.T, f func(t *testing.T, b *bubble, d *modelDisks)) {
	t.Helper()
	withDisksAndStore(t, nil, f)
}

func withDisksAndStore(t *testing.T, hook func(op, key string) error, f func(t *testing.T, b *bubble, d *modelDisks)) {
	t.Helper()
	d := &modelDisks{holder: map[string]string{}}
	inBubble(t, func(c *setup) {
		d.cloud = c.Cloud.(*modelCloud)
		c.Disks = d
		links := c.APIs.(*modelLinks)
		links.agents = d.agents
		links.binds = func(id string) { d.mu.Lock(); d.note("shown"); d.mu.Unlock() }
	}, hook, func(t *testing.T, b *bubble) { f(t, b, d) })
}

func (b *bubble) requestDisk(pod, disk string) error {
	r := nano(pod)
	r.Disks = []Disk{{ID: disk, Volume: "pv-" + disk}}
	_, err := b.cells.Request(b.Context(), r)
	return err
}

func TestDisksAreThereBeforeThePodAndGoAfterIt(t *testing.T) {
	for name, restart := range map[string]bool{"": false, "with a restart in between": true} {
		t.Run(name, func(t *testing.T) {
			withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
				if err := b.requestDisk("a", "d"); err != nil {
					t.Fatal(err)
				}
				b.later(10 * time.Second)
				if restart {
					b.stop()
					b.run()
					b.later(10 * time.Second)
				}
				if got := b.phase("a"); got != apiv1.Bound {
					t.Fatalf("the cell is %s; it was said %q", got, b.said())
				}
				b.cells.Release(ref("a").UID, "done", true)
				b.later(10 * time.Second)
				want := []string{"attach d i-0", "agent has [d]", "shown", "agent has []", "detach d i-0"}
				if restart { // it is shown before its agent is told anything, or its kubelet would miss it
					want = []string{"attach d i-0", "agent has [d]", "shown", "agent has [d]", "agent has []", "detach d i-0"}
				}
				if got := d.done(); !slices.Equal(got, want) {
					t.Errorf("done %q: want %q", got, want)
				}
				if left := b.cloud.running(); len(left) != 0 {
					t.Errorf("%v are left", left)
				}
			})
		})
	}
}

func TestADiskIsOnePodsAtATime(t *testing.T) {
	withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
		if err := b.requestDisk("a", "d"); err != nil {
			t.Fatal(err)
		}
		var inUse *DiskInUseError
		if err := b.requestDisk("b", "d"); !errors.As(err, &inUse) || inUse.Pod != ref("a") {
			t.Errorf("a second pod got %v: want a DiskInUseError that names the first", err)
		}
		b.later(10 * time.Second)
		if err := b.requestDisk("b", "d"); !errors.As(err, &inUse) {
			t.Errorf("a second pod got %v while the first is bound", err)
		}
		// It ends, and its file systems cannot be unmounted: it is free with its end.
		d.mu.Lock()
		d.busy = true
		d.mu.Unlock()
		b.cells.Release(ref("a").UID, "done", true)
		b.later(time.Second)
		if err := b.requestDisk("b", "d"); err != nil {
			t.Fatalf("a second pod while the first ends: %v", err)
		}
		b.later(10 * time.Second)
		if got := b.phase("b"); got != apiv1.Ready {
			t.Errorf("the second cell is %s: want Ready, without its disk", got)
		}
		cell, _ := b.cells.ForPod(ref("b").UID)
		if waits := b.cells.WaitsFor(cell.ID); !strings.Contains(waits, "until the cell of pod ns/a (Draining) no longer has volume pv-d") {
			t.Errorf("the second cell waits for %q: want the disk that the first has", waits)
		}
		if said := b.said("Warning VolumeInUse", "pv-d", "ns/a"); len(said) != 1 {
			t.Errorf("that the volume is in use was said as %q", said)
		}
		b.later(time.Minute)
		if got := b.phase("b"); got != apiv1.Bound {
			t.Errorf("the second cell is %s: want Bound", got)
		}
		for _, did := range d.done() {
			if did == "detach d i-0" {
				t.Error("a disk was detached while it was mounted")
			}
		}
	})
}

// A cell that is to end, and whose record does not say so yet, is a live one to
// the next Kip.
func TestADiskIsAPodsUntilTheRecordOfItsCellSaysThatItEnds(t *testing.T) {
	for name, answers := range map[string]bool{"its request got no answer": true, "its end cannot be stored": false} {
		t.Run(name, func(t *testing.T) {
			var failing atomic.Bool
			hook := func(did, key string) error {
				// A cell that has not begun has its record deleted at its end, else it is put.
				if failing.Load() && (did == "applied") == answers && strings.HasPrefix(key, keyPrefix) {
					return errors.New("request timed out")
				}
				return nil
			}
			withDisksAndStore(t, hook, func(t *testing.T, b *bubble, d *modelDisks) {
				failing.Store(answers)
				if err := b.requestDisk("a", "d"); (err != nil) != failing.Load() {
					t.Fatalf("the request for the first pod: %v", err)
				}
				failing.Store(true)
				b.cells.Release(ref("a").UID, "done", true)
				var inUse *DiskInUseError
				if err := b.requestDisk("b", "d"); !errors.As(err, &inUse) || inUse.Pod != ref("a") {
					t.Errorf("a second pod got %v: want a DiskInUseError that names the first", err)
				}
				b.stop()
				failing.Store(false)
				b.run()
				b.cells.Release(ref("a").UID, "done", true)
				b.later(time.Minute)
				if err := b.requestDisk("b", "d"); err != nil {
					t.Errorf("a second pod when the first cell is gone: %v", err)
				}
				b.later(10 * time.Second)
				if got := b.phase("b"); got != apiv1.Bound {
					t.Errorf("the second cell is %s: want Bound", got)
				}
			})
		})
	}
}

// A cell whose disk surely does not come is paid for, and of no use.
func TestACellThatTheCloudGivesNoDiskIsEnded(t *testing.T) {
	for what, tc := range map[string]struct {
		fail  error
		after time.Duration // 0 if it is never ended
	}{
		"refused":      {cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("ZoneMismatch")), refusedTimeout},
		"not there":    {fmt.Errorf("attach: %w", cloud.ErrNotFound), refusedTimeout},
		"another's":    {&cloud.InUseError{Disk: "d", Instance: "i-foreign"}, heldTimeout},
		"not yet":      {cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("it is being made")), 0},
		"not answered": {errors.New("internal error"), 0},
	} {
		t.Run(what, func(t *testing.T) {
			withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
				d.fail = tc.fail
				if err := b.requestDisk("a", "d"); err != nil {
					t.Fatal(err)
				}
				b.later(refusedTimeout - 20*time.Second)
				if got := b.phase("a"); got != apiv1.Ready {
					t.Fatalf("the cell is %s: want Ready", got)
				}
				b.later(max(tc.after, refusedTimeout) + 40*time.Second)
				left := len(b.cloud.running())
				said := b.said("Warning FailedAttachVolume", "Kip ends cell", "the cloud did not attach volume pv-d")
				if ended := tc.after > 0; ended == (left > 0) || ended != (len(said) == 1) {
					t.Errorf("%d instances are left, said %q", left, said)
				}
			})
		})
	}
}

func TestWhatSaysNothingOfADiskSetsNoTimeBack(t *testing.T) {
	refused := cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New("ZoneMismatch"))
	for what, tc := range map[string]struct {
		between error
		ended   bool
	}{
		"throttled":    {&cloud.Error{Cause: cloud.ErrThrottled}, true},
		"not answered": {errors.New("internal error"), true},
		"not yet":      {cloud.No(cloud.ErrNotYet, cloud.Scope{}, errors.New("it is being made")), false},
	} {
		t.Run(what, func(t *testing.T) {
			withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
				d.fail = refused
				if err := b.requestDisk("a", "d"); err != nil {
					t.Fatal(err)
				}
				b.later(refusedTimeout / 2)
				for _, err := range []error{tc.between, refused} { // for less than the time of a refusal
					d.mu.Lock()
					d.fail = err
					d.mu.Unlock()
					b.later(refusedTimeout - 5*time.Second)
				}
				if said := b.said("Warning FailedAttachVolume", "Kip ends cell"); tc.ended != (len(said) == 1) {
					t.Errorf("%d instances are left, said %q", len(b.cloud.running()), said)
				}
			})
		})
	}
}

func TestAPodIsToldForHowLongItWaitsForADiskThatIsAnothers(t *testing.T) {
	withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
		d.fail = &cloud.InUseError{Disk: "d", Instance: "i-foreign"}
		if err := b.requestDisk("a", "d"); err != nil {
			t.Fatal(err)
		}
		b.later(20 * time.Second)
		want := "waits until instance i-foreign no longer has volume pv-d. After 2m0s Kip ends the pod's cell"
		if said := b.said("Warning VolumeInUse", want); len(said) != 1 {
			t.Errorf("said %q", b.said())
		}
	})
}

// What a cell that ends still has is free soon, however long that takes.
func TestADiskOfACellThatEndsIsWaitedFor(t *testing.T) {
	withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
		if err := b.requestDisk("a", "d"); err != nil {
			t.Fatal(err)
		}
		b.later(10 * time.Second)
		b.cloud.mu.Lock()
		b.cloud.keep = map[string]error{"i-0": errors.New("not now")}
		b.cloud.mu.Unlock()
		b.cells.Release(ref("a").UID, "done", false)
		b.later(time.Second)
		d.mu.Lock()
		d.fail = &cloud.InUseError{Disk: "d", Instance: "i-0"}
		d.mu.Unlock()
		if err := b.requestDisk("b", "d"); err != nil {
			t.Fatal(err)
		}
		b.later(2 * heldTimeout)
		if got := b.phase("b"); got != apiv1.Ready {
			t.Errorf("the second cell is %s, the first %s: %q", got, b.phase("a"), b.said())
		}
		b.cloud.mu.Lock()
		b.cloud.keep = nil
		b.cloud.mu.Unlock()
		b.later(10 * time.Minute)
	})
}

func TestAPodThatIsDeletedWhileItsDiskCannotBeAttachedIsLetGo(t *testing.T) {
	withDisks(t, func(t *testing.T, b *bubble, d *modelDisks) {
		d.fail = errors.New("internal error")
		if err := b.requestDisk("a", "d"); err != nil {
			t.Fatal(err)
		}
		b.later(time.Minute)
		if got := b.phase("a"); got != apiv1.Ready {
			t.Fatalf("the cell is %s: want Ready", got)
		}
		if said := b.said("Warning FailedAttachVolume", "internal error"); len(said) != 1 {
			t.Errorf("why it is not attached was said as %q", said)
		}
		if !b.cells.ReleaseUnbound(ref("a").UID, "deleted") {
			t.Fatal("a cell that waits for its disk counts as bound")
		}
		b.later(10 * time.Second)
		if left := b.cloud.running(); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
	})
}
