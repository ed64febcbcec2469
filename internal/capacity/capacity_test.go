package capacity

import (
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

func TestAnOfferingIsUnavailableForTheCooldownOnly(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	s := New(clk)
	if s.Unavailable("m5.large", "a", false) {
		t.Error("an offering that nobody marked is unavailable")
	}
	until := s.Mark("m5.large", "a", false)
	if want := time.Unix(1000, 0).Add(Cooldown); !until.Equal(want) {
		t.Errorf("Mark = %v, want %v", until, want)
	}
	clk.SetTime(until.Add(-time.Nanosecond))
	if !s.Unavailable("m5.large", "a", false) {
		t.Error("available again before the cooldown is over")
	}
	clk.SetTime(until)
	if s.Unavailable("m5.large", "a", false) {
		t.Error("still unavailable after the cooldown")
	}
}

func TestTypeZoneAndSpotAreToldApart(t *testing.T) {
	s := New(testclock.NewFakePassiveClock(time.Unix(1000, 0)))
	s.Mark("m5.large", "a", true)
	for _, o := range []offering{{"m5.large", "a", false}, {"m5.large", "b", true}, {"c5.large", "a", true}} {
		if s.Unavailable(o.instanceType, o.zone, o.spot) {
			t.Errorf("%+v is unavailable, though only spot m5.large in a was marked", o)
		}
	}
}

func TestMarkingAgainStartsTheCooldownAgain(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	s := New(clk)
	first := s.Mark("m5.large", "a", false)
	clk.SetTime(first.Add(-time.Second))
	s.Mark("m5.large", "a", false)
	clk.SetTime(first.Add(time.Second))
	if !s.Unavailable("m5.large", "a", false) {
		t.Error("the second mark did not extend the first")
	}
}

func TestWhatIsOverIsForgotten(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	s := New(clk)
	for _, zone := range []string{"a", "b", "c"} {
		s.Mark("m5.large", zone, false)
	}
	clk.SetTime(time.Unix(1000, 0).Add(Cooldown))
	s.Mark("m5.large", "d", false)
	if len(s.until) != 1 {
		t.Errorf("%d offerings are kept, want the last one only", len(s.until))
	}
}

func TestConcurrentUse(t *testing.T) {
	s := New(testclock.NewFakePassiveClock(time.Unix(1000, 0)))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s.Mark("m5.large", string(rune('a'+i)), false)
			if !s.Unavailable("m5.large", string(rune('a'+i)), false) {
				t.Errorf("zone %c is not unavailable after Mark", 'a'+i)
			}
		})
	}
	wg.Wait()
}
