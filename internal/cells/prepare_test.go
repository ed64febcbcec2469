package cells

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestACellIsPreparedInOrderUntilItWaitsOrLeaves(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		first   stage
		ends    bool // before
		ending  bool // while it is prepared
		stopped bool
		asked   []string
		want    progress
		err     error
	}{
		"nothing is left":              {first: stage{got: done}, asked: []string{"first", "second"}, want: done},
		"the first waits":              {first: stage{got: waitFor("", time.Second)}, asked: []string{"first"}, want: waitFor("", time.Second)},
		"the first fails":              {first: stage{got: done, err: broken}, asked: []string{"first"}, want: done, err: broken},
		"it leaves by the first":       {first: stage{got: leave}, asked: []string{"first"}, want: leave},
		"it is to end":                 {first: stage{got: done}, ends: true, want: leave},
		"it is to end meanwhile":       {first: stage{got: done}, ending: true, asked: []string{"first"}, want: leave},
		"it is stopped":                {first: stage{got: done}, stopped: true, asked: []string{"first"}, want: leave},
		"it is stopped, and waits":     {first: stage{}, stopped: true, asked: []string{"first"}},
		"it is to end, and is stopped": {first: stage{got: done}, stopped: true, ends: true, want: leave},
	} {
		b := newBench(t)
		var asked []string
		e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Ready, OfPool: OfPool{Stopped: tc.stopped}})
		end := func() { b.end(e, CausePodDeleted) }
		if tc.first.name, tc.first.asked = "first", &asked; tc.ending {
			tc.first.then = end
		}
		if tc.ends {
			end()
		}
		got, err := b.prepared(&tc.first, unlessStopped{}, &stage{name: "second", asked: &asked, got: done}).prepare(t.Context(), e)
		if got != tc.want || !errors.Is(err, tc.err) || !slices.Equal(asked, tc.asked) {
			t.Errorf("%s: %+v (%v), asked %v", name, got, err, asked)
		}
	}
}

// words are a preparation that knows what cells wait for.
type words string

func (words) prepare(context.Context, *entry) (progress, error) { return done, nil }

func (w words) waitsForLocked(*entry) string { return string(w) }

func TestACellWaitsForWhatTheFirstPreparationSaysThatKnows(t *testing.T) {
	silent := unlessStopped{}
	for want, list := range map[string][]preparation{
		"":       {silent, words("")},
		"a disk": {silent, words(""), words("a disk"), words("a route")},
	} {
		if got := (preparations{list: list}).waitsForLocked(nil); got != want {
			t.Errorf("it waits for %q, want %q", got, want)
		}
	}
}

// stage is a preparation that notes when it is asked.
type stage struct {
	name  string
	asked *[]string
	got   progress
	err   error
	then  func() // nil for nothing
}

func (s *stage) prepare(context.Context, *entry) (progress, error) {
	*s.asked = append(*s.asked, s.name)
	if s.then != nil {
		s.then()
	}
	return s.got, s.err
}
