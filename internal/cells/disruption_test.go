package cells

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// in has n pods run in a place, and returns their cells' links.
func (b *bubble) in(l location, n int) (links []*modelLink) {
	b.Helper()
	for i := range n {
		r := nano(fmt.Sprintf("%s-%s-%d", l.zone, l.subnet, i))
		r.Offerings[0].Zone, r.Offerings[0].Subnet = l.zone, l.subnet
		if _, err := b.cells.Request(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	b.later(time.Minute)
	for _, cell := range b.cells.List() {
		if o := cell.Offering(); o.Zone == l.zone && o.Subnet == l.subnet {
			links = append(links, b.links.of(cell.ID))
		}
	}
	return links
}

func TestWhenMostCellsOfAPlaceAreSilentNoneOfThemIsEnded(t *testing.T) {
	for want, at := range map[string]struct{ heard, cut location }{
		"most cells in zone b":    {location{zone: "a"}, location{zone: "b"}},
		"most cells in subnet s2": {location{"a", "s1"}, location{"a", "s2"}},
	} {
		t.Run(want, func(t *testing.T) {
			inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
				heard, cut := b.in(at.heard, 8), b.in(at.cut, 4)
				for _, l := range append(cut, heard[0]) {
					l.set(false, errors.New("cut"))
				}
				b.later(10 * time.Minute)
				if n, lost := len(b.cloud.running()), b.said("CellLost"); n != 11 || len(lost) != 1 {
					t.Fatalf("%d of 12 instances are left, lost are %v: want the one that is silent where others are not", n, lost)
				}
				held := fmt.Sprint(b.said("EndHeldBack"))
				if !strings.Contains(held, want) {
					t.Errorf("nobody is told %q why they do not end: %s", want, held)
				}
				for _, l := range cut[1:] {
					l.set(true, nil)
				}
				b.later(80 * time.Second)
				if n := len(b.cloud.running()); n != 11 {
					t.Fatalf("%d instances are left: the last has not had its whole time again", n)
				}
				b.later(time.Minute)
				if n := len(b.cloud.running()); n != 10 {
					t.Errorf("%d instances are left once one of the place is silent, want 10", n)
				}
			})
		})
	}
}

func TestPlacesAreCountedOnceEach(t *testing.T) {
	h := silentCounts{}
	for range 2 {
		h.add(location{}, true) // of a cloud without zones
		h.add(location{zone: "a"}, true)
	}
	h.add(location{zone: "a", subnet: "s"}, true)
	h.add(location{zone: "b", subnet: "t"}, false)
	want := map[location]silentCount{
		{}: {6, 5}, {zone: "a"}: {3, 3}, {zone: "a", subnet: "s"}: {1, 1}, {zone: "b"}: {1, 0}, {zone: "b", subnet: "t"}: {1, 0},
	}
	for place, n := range want {
		if h[place] != n {
			t.Errorf("%v: %+v, want %+v", place, h[place], n)
		}
	}
	if len(h) != len(want) {
		t.Errorf("%+v, want %+v", h, want)
	}
	if d := h.disruptions(); !d[location{}] || !d[location{zone: "a"}] || len(d) != 2 || d.String() != "cells, cells in zone a" {
		t.Errorf("disrupted are %q", d)
	}
}
