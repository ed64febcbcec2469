package pods

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/offering"
	corev1 "k8s.io/api/core/v1"
)

func TestAPodOverItsNamespacesBudgetWaitsAndIsToldOnce(t *testing.T) {
	h := newHarness(t)
	h.put(pod("p"))
	over := func(running int) error {
		return fmt.Errorf("request: %w", &cells.BudgetError{
			Budget:   cells.Budget{PerHour: 1},
			Offering: offering.Offering{InstanceType: "nano", Zone: "local"},
			For:      "ns",
			Cell:     0.25,
			Cells:    0.25 * float64(running),
			Running:  running,
		})
	}
	for running := 4; running < 7; running++ {
		h.cells.refuse = over(running)
		if again := h.must("p"); again != budgetRetry {
			t.Errorf("it is looked at again after %s", again)
		}
		want := fmt.Sprintf("its %d cells cost $%v, and nano in local would add $0.25 an hour", running, 0.25*float64(running))
		if why := h.c.Waiting("uid-p"); !strings.HasPrefix(why, "namespace ns may cost $1 an hour") || !strings.HasSuffix(why, want) {
			t.Errorf("it waits for %q, want the figures of now: %q", why, want)
		}
		h.clock.Step(budgetRetry + time.Second)
	}
	if want := []string{"Warning BudgetExceeded"}; !slices.Equal(h.events, want) {
		t.Errorf("events are %v, want %v", h.events, want)
	}
	h.cells.refuse = nil
	h.must("p")
	if len(h.cells.requests) != 1 || h.c.Waiting("uid-p") != "" {
		t.Errorf("requested %v, waiting for %q", h.cells.requests, h.c.Waiting("uid-p"))
	}
	h.cells.gone("uid-p")
	h.clock.Step(time.Hour)
	h.cells.refuse = over(4)
	h.must("p")
	if n := len(h.events); n != 3 || h.events[n-1] != "Warning BudgetExceeded" {
		t.Errorf("after it had a cell the events are %v", h.events)
	}
}

func TestAPodIsToldOfTheOfferThatItsBudgetLeaves(t *testing.T) {
	h := newHarness(t)
	h.place = func(*corev1.Pod) ([]offering.Offering, error) {
		return []offering.Offering{
			{InstanceType: "large", Zone: "local", Reason: "spot is preferred"},
			{InstanceType: "nano", Zone: "local", Reason: "cheapest"},
		}, nil
	}
	h.cells.beyond = "large"
	h.put(pod("p"))
	h.must("p")
	told := strings.Join(h.messages, "\n")
	if !strings.HasPrefix(told, "Requested cell cell-0 (nano in local") || !strings.HasSuffix(told, ": cheapest") {
		t.Errorf("told %q, and the cell is a nano", told)
	}
}

func TestAPodIsRequestedForByWhatItsBudgetLeavesAndWaitsWhereThatIsNothing(t *testing.T) {
	for offerings, want := range map[string]string{"large nano": "nano", "nano large": "nano", "large": ""} {
		h := newHarness(t)
		h.place = func(*corev1.Pod) (list []offering.Offering, err error) {
			for _, name := range strings.Fields(offerings) {
				list = append(list, offering.Offering{InstanceType: name, Zone: "local"})
			}
			return list, nil
		}
		h.cells.beyond = "large"
		h.put(pod("p"))
		again := h.must("p")
		if cell, has := h.cells.ForPod("uid-p"); has != (want != "") || has && cell.Offering().InstanceType != want || len(cell.Offerings) > 1 {
			t.Errorf("of %s it gets %+v, want %q", offerings, cell.Offerings, want)
		}
		if want == "" && again != budgetRetry {
			t.Errorf("of %s it is looked at again after %s", offerings, again)
		}
	}
}
