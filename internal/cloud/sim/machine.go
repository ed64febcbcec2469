package sim

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/cloud"
)

// machine is one instance. c.mu guards all of it.
type machine struct {
	Instance // the truth

	offering offering
	vcpus    int64
	userData []byte
	known    time.Time // when Terminate, Stop and Start know it

	slot    int  // of the address plan; 0 when it holds no address
	holds   bool // takes capacity and quota
	charge  *charge
	charged time.Time // since when it is paid for; zero when it is not

	starts, shows, terminations int

	ran bool // it has booted once

	events   map[*event]bool
	stopBoot context.CancelFunc
	views    []view // what lists show, oldest first

	interruption time.Time // when the cloud takes it back, once decided
}

// view is what List shows of a machine from a time on.
type view struct {
	from     time.Time
	instance cloud.Instance
	gone     bool
}

// event is something that happens to a machine later. The value in
// machine.events says whether it belongs to its course, which the next Stop,
// Start or Terminate replaces.
type event struct{ timer clock.Timer }

func clone(i cloud.Instance) cloud.Instance {
	i.Tags = maps.Clone(i.Tags)
	return i
}

// public is the machine as an answer tells it.
func (m *machine) public() cloud.Instance {
	i := clone(m.Instance.Instance)
	if !m.Ended.IsZero() {
		i.ManagementIP, i.PodIP = netip.Addr{}, netip.Addr{} // perhaps another's by now
	}
	return i
}

// seen returns what lists showed at a time, nil for nothing.
func (m *machine) seen(at time.Time) *view {
	for i := len(m.views) - 1; i >= 0; i-- {
		if !m.views[i].from.After(at) {
			return &m.views[i]
		}
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// cancelEvents lets none of the machine's events happen, or none of its course.
func (m *machine) cancelEvents(courseOnly bool) {
	for e, course := range m.events {
		if course || !courseOnly {
			e.timer.Stop()
			delete(m.events, e)
		}
	}
}
