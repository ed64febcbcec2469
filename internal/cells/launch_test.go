package cells

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
)

func TestACellIsLaunchedOnceAndTerminatedWhenItsPodLetsGo(t *testing.T) {
	w := newWorld(t)
	w.request("a", "nano")
	w.until("booting", w.reached("a", apiv1.Booting))
	if got := w.cloud.running(); len(got) != 1 {
		t.Fatalf("instances %v, want one", got)
	}
	_, err := w.cells.Request(t.Context(), Request{Pod: ref("a"), Attempt: 2, Offers: []Offer{{InstanceType: "nano"}}})
	if !errors.Is(err, ErrHasCell) {
		t.Fatalf("a second cell for the pod: %v, want ErrHasCell", err)
	}
	w.cells.Release(ref("a").UID, "done", false)
	w.until("gone", w.reached("a", apiv1.Gone))
	want := []apiv1.Phase{apiv1.Requested, apiv1.Launching, apiv1.Booting, apiv1.Terminating, apiv1.Gone}
	if !slices.Equal(w.phases["a"], want) {
		t.Fatalf("phases %v, want %v", w.phases["a"], want)
	}
	if got := w.cloud.running(); len(got) != 0 {
		t.Fatalf("instances %v are left", got)
	}
	if list := w.cells.List(); len(list) != 0 {
		t.Fatalf("cells %v are left", list)
	}
}

func TestWithoutCapacityTheNextOfferIsTriedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.cloud.fail = func(r cloud.LaunchRequest) (error, bool) {
		if r.InstanceType != "large" {
			return cloud.No(cloud.ErrCapacity, cloud.Scope{InstanceType: r.InstanceType, Zone: r.Zone}, errors.New("sold out")), false
		}
		return nil, false
	}
	w.request("a", "nano", "small", "large")
	w.until("booting, and said so", func() bool { return w.reached("a", apiv1.Booting)() && len(w.events) == 3 })
	cell, _ := w.cells.ForPod(ref("a").UID)
	if cell.Offer().InstanceType != "large" || !slices.Equal(w.cooled, []string{"nano", "small"}) {
		t.Fatalf("launched %s; remembered %v", cell.Offer(), w.cooled)
	}
	if want := []string{"Warning NoCapacity", "Warning NoCapacity", "Normal CellLaunched"}; !slices.Equal(w.events, want) {
		t.Fatalf("events %v, want %v", w.events, want)
	}
}

func TestACellThatNoOfferCanServeIsGoneAndSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.cloud.fail = func(cloud.LaunchRequest) (error, bool) { return cloud.ErrQuota, false }
	w.request("a", "nano", "small")
	w.until("gone, and said so", func() bool { return w.reached("a", apiv1.Gone)() && len(w.events) == 2 })
	if len(w.cloud.launches) != 2 || len(w.cells.List()) != 0 {
		t.Fatalf("%d launches, cells %v", len(w.cloud.launches), w.cells.List())
	}
	if want := []string{"Warning CellNotLaunched", "Warning CellNotLaunched"}; !slices.Equal(w.events, want) {
		t.Fatalf("events %v, want %v", w.events, want)
	}
}

func TestAnAnswerThatIsLostAfterItsEffectStartsNoSecondInstance(t *testing.T) {
	w := newWorld(t)
	lost := 3
	w.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
		if lost--; lost >= 0 {
			return errors.New("connection reset by peer"), true
		}
		return nil, false
	}
	w.request("a", "nano", "small")
	w.until("booting", w.reached("a", apiv1.Booting))
	if got := w.cloud.running(); len(got) != 1 || slices.Contains(w.cloud.launches, "small") || len(w.cloud.launches) != 4 {
		t.Fatalf("instances %v after launches %v", got, w.cloud.launches)
	}
}

func TestALaunchThatNobodyCanExplainIsGivenUpWithoutALeak(t *testing.T) {
	inBubble(t, func(c *setup) { c.ListLag = 20 * time.Second }, nil, func(t *testing.T, b *bubble) {
		b.cloud.fail = func(r cloud.LaunchRequest) (error, bool) { return errors.New("InternalError"), true }
		b.request("a", "nano")
		b.later(30 * time.Second)
		if b.phase("a") != apiv1.Launching || len(b.said("LaunchDelayed")) != 1 {
			t.Fatalf("it is %q, said %v", b.phase("a"), b.events)
		}
		b.later(5 * time.Minute)
		if b.phase("a") != "" || len(b.cloud.running()) != 0 || !slices.Contains(b.cooled, "nano") {
			t.Fatalf("it is %q, instances %v, cooled %v", b.phase("a"), b.cloud.running(), b.cooled)
		}
	})
}

func TestARefusalAfterAnUnknownOutcomeIsNotBelieved(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		calls := 0
		b.cloud.fail = func(cloud.LaunchRequest) (error, bool) {
			if calls++; calls == 1 {
				return errors.New("connection reset"), true // it did start
			}
			return cloud.ErrUnauthorised, false
		}
		b.request("a", "nano", "small")
		b.later(time.Minute)
		if n := len(b.cloud.running()); n != 0 || slices.Contains(b.cloud.launches, "small") {
			t.Fatalf("%d instances, launches %v", n, b.cloud.launches)
		}
		if b.phase("a") != "" {
			t.Fatalf("it is %q", b.phase("a"))
		}
	})
}

func TestALaunchThatIsTooBigForTheStoreIsSentInParts(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.later(time.Second)
		// The options stand in each record: 40 of them are more than a transaction takes.
		big := Options{Image: map[string]string{"name": strings.Repeat("x", store.MaxBytes/30)}}
		var pods []string
		for n := range 40 {
			pods = append(pods, fmt.Sprint("p", n))
			b.ask(pods[n], big, "nano")
		}
		b.later(time.Minute)
		for _, pod := range pods {
			if b.phase(pod) != apiv1.Bound {
				t.Fatalf("the cell of %s is %s", pod, b.phase(pod))
			}
		}
		if n := len(b.cloud.running()); n != len(pods) {
			t.Errorf("%d instances", n)
		}
	})
}
