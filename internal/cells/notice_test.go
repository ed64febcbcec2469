package cells

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

// says has a pod's cell tell Kip something, and returns the status of the answer.
func (b *bubble) says(pod, method, path, body string) int {
	b.Helper()
	cell, has := b.cells.ForPod(ref(pod).UID)
	if !has {
		b.Fatalf("pod %s has no cell", pod)
	}
	return b.cellSays(cell, method, path, body)
}

func (b *bubble) cellSays(cell Cell, method, path, body string) int {
	b.Helper()
	l := b.links.of(cell.ID)
	l.mu.Lock()
	kip := l.kip
	l.mu.Unlock()
	w := httptest.NewRecorder()
	kip.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), method, path, strings.NewReader(body)))
	return w.Code
}

// notice has a pod's cell give one.
func (b *bubble) notice(pod string, n agentapi.Notice) int {
	b.Helper()
	text, err := json.Marshal(n)
	if err != nil {
		b.Fatal(err)
	}
	return b.says(pod, http.MethodPut, agentapi.PathNotice, string(text))
}

// spot gives pods bound cells that were bought as spot.
func (b *bubble) spot(pods ...string) {
	b.Helper()
	b.later(time.Second)
	for _, pod := range pods {
		offer := Offer{InstanceType: "nano", Zone: "z", Spot: true, BootTimeout: time.Minute}
		if _, err := b.cells.Request(b.Context(), Request{Pod: ref(pod), Seen: time.Now(), Offers: []Offer{offer}}); err != nil {
			b.Fatal(err)
		}
	}
	b.later(10 * time.Second)
	for _, pod := range pods {
		if b.phase(pod) != apiv1.Bound {
			b.Fatalf("the cell of %s is %q", pod, b.phase(pod))
		}
	}
}

func TestACellThatIsToldThatItIsTakenBackHasItsPodMoved(t *testing.T) {
	o := &takenBack{}
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.spot("a", "b")
		if code := b.notice("a", agentapi.Notice{Kind: agentapi.NoticeTakenBack, Left: 2 * time.Minute}); code != http.StatusOK {
			t.Fatalf("Kip answers %d", code)
		}
		b.later(time.Second)
		cell, _ := b.cells.ForPod(ref("a").UID)
		other, _ := b.cells.ForPod(ref("b").UID)
		if left := time.Until(cell.Interrupted); left > 2*time.Minute || left < 110*time.Second || !other.Interrupted.IsZero() {
			t.Errorf("it is taken in %s, the other at %v", left, other.Interrupted)
		}
		if len(b.said("interrupted a")) != 1 || len(b.said("interrupted b")) != 0 ||
			len(b.said("Warning Interrupted", "it was told so itself")) != 1 {
			t.Errorf("said %v", b.events)
		}
		// What only the cell says does not count against the offer; that the cloud says so does, once.
		if len(o.all()) != 0 {
			t.Errorf("%v count as taken back", o.all())
		}
		for range 2 {
			b.cells.interrupt(t.Context(), cloud.Interruption{InstanceID: cell.Instance.ID, At: cell.Interrupted, Reason: "marked"})
		}
		b.later(time.Second)
		if len(o.all()) != 1 || len(b.said("Warning Interrupted")) != 1 {
			t.Errorf("%v count as taken back; said %v", o.all(), b.events)
		}
	}, o)
}

func TestACellThatLiesMovesItsOwnPodAndNoOther(t *testing.T) {
	o := &takenBack{}
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.spot("liar", "other")
		for _, left := range []time.Duration{-time.Hour, 0, 1 << 62} {
			if code := b.notice("liar", agentapi.Notice{Kind: agentapi.NoticeTakenBack, Left: left}); code != http.StatusOK {
				t.Errorf("Kip answers %d", code)
			}
			cell, _ := b.cells.ForPod(ref("liar").UID)
			if is := time.Until(cell.Interrupted); is < 0 || is > longestNotice {
				t.Errorf("with %s left it is taken in %s", left, is)
			}
			b.later(10 * time.Minute) // it is heard all the while, so that the notice is forgotten
		}
		if b.phase("other") != apiv1.Bound || len(b.said("interrupted other")) > 0 || len(o.all()) > 0 || len(b.cooled) > 0 {
			t.Errorf("the other is %q; %v count as taken back, %v as short; said %v", b.phase("other"), o.all(), b.cooled, b.events)
		}
	}, o)
}

func TestWhatIsNotBoughtAsSpotIsNotTakenBackByItsOwnWord(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		pod := b.bound(1)[0]
		for _, kind := range []agentapi.NoticeKind{agentapi.NoticeTakenBack, agentapi.NoticeAtRisk} {
			if code := b.notice(pod, agentapi.Notice{Kind: kind, Left: time.Minute}); code != http.StatusOK {
				t.Errorf("Kip answers %d", code)
			}
			b.later(agentapi.NoticePause)
		}
		cell, _ := b.cells.ForPod(ref(pod).UID)
		if said := append(b.said("Interrupted"), b.said("RebalanceRecommended")...); !cell.Interrupted.IsZero() || len(said) > 0 {
			t.Errorf("it is taken at %v; said %v", cell.Interrupted, b.events)
		}
	})
}

func TestThatACellIsAtRiskIsToldOnceAndMovesNothing(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.spot("a")
		for range 3 {
			b.notice("a", agentapi.Notice{Kind: agentapi.NoticeAtRisk})
			b.later(time.Minute)
		}
		cell, _ := b.cells.ForPod(ref("a").UID)
		if len(b.said("Normal RebalanceRecommended")) != 1 || len(b.said("interrupted a")) > 0 || !cell.Interrupted.IsZero() {
			t.Errorf("it is taken at %v; said %v", cell.Interrupted, b.events)
		}
	})
}

func TestNoticesAreBounded(t *testing.T) {
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		b.spot("a")
		for what, tc := range map[string]struct {
			method, path, body string
			want               int
		}{
			"another method": {http.MethodPost, agentapi.PathNotice, "{}", http.StatusForbidden},
			"no JSON":        {http.MethodPut, agentapi.PathNotice, "taken-back", http.StatusBadRequest},
			"too long":       {http.MethodPut, agentapi.PathNotice, `{"x":"` + strings.Repeat("x", maxNotice) + `"}`, http.StatusBadRequest},
			"no kind":        {http.MethodPut, agentapi.PathNotice, "{}", http.StatusBadRequest},
			"another kind":   {http.MethodPut, agentapi.PathNotice, `{"kind":"ended"}`, http.StatusBadRequest},
			"no time":        {http.MethodPut, agentapi.PathNotice, `{"kind":"taken-back","left":"soon"}`, http.StatusBadRequest},
			"another path":   {http.MethodPut, agentapi.PathNotice + "/x", "{}", http.StatusForbidden},
		} {
			if code := b.says("a", tc.method, tc.path, tc.body); code != tc.want {
				t.Errorf("%s: %d, want %d", what, code, tc.want)
			}
			b.later(agentapi.NoticePause)
		}
		codes := map[int]int{}
		for range 100 {
			codes[b.notice("a", agentapi.Notice{Kind: agentapi.NoticeAtRisk})]++
		}
		if fmt.Sprint(codes) != "map[200:1 403:99]" { // the API's, which charges the cell
			t.Errorf("of a hundred at once: %v", codes)
		}
	})
}

func TestAStandbyCellThatIsTakenBackIsReplacedAtOnceAndCounts(t *testing.T) {
	o := &takenBack{}
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.later(30 * time.Second)
		old := b.cells.List()
		if len(old) != 1 || old[0].Phase != apiv1.Ready {
			t.Fatalf("cells %+v", old)
		}
		b.cells.mu.Lock()
		e := b.cells.cells[old[0].ID]
		b.cells.mu.Unlock()
		if err := b.cells.save(t.Context(), e, func(cell *Cell) error { cell.Offers[0].Spot = true; return nil }); err != nil {
			t.Fatal(err)
		}
		if code := b.cellSays(old[0], http.MethodPut, agentapi.PathNotice, `{"kind":"taken-back","left":120000000000}`); code != http.StatusOK {
			t.Fatalf("Kip answers %d", code)
		}
		b.later(time.Minute)
		now := b.cells.List()
		if len(now) != 1 || now[0].ID == old[0].ID || len(o.all()) != 1 {
			t.Errorf("cells %+v; %v count as taken back", now, o.all())
		}
	}, o)
}
