package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/store"
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
		offering := Offering{InstanceType: "nano", Zone: "z", Spot: true, BootTimeout: time.Minute}
		if _, err := b.cells.Request(b.Context(), Request{Pod: ref(pod), Seen: time.Now(), Offerings: []Offering{offering}}); err != nil {
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
		// What only the cell says does not count against the offering; that the cloud says so does, once.
		if len(o.all()) != 0 {
			t.Errorf("%v count as taken back", o.all())
		}
		for range 2 {
			b.interrupt(cloud.Interruption{InstanceID: cell.Instance.ID, At: cell.Interrupted, Reason: "marked"})
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
		if fmt.Sprint(codes) != "map[200:1 429:99]" { // the API's, which charges the cell
			t.Errorf("of a hundred at once: %v", codes)
		}
	})
}

// lostAnswers lose the next answers of writes of one record. The writes are done.
type lostAnswers struct {
	mu   sync.Mutex
	key  string
	left int
}

func (l *lostAnswers) of(cell Cell) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.key, l.left = keyPrefix+cell.ID, 1
}

func (l *lostAnswers) hook(op, key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if op != "applied" || key != l.key || l.left == 0 {
		return nil
	}
	l.left--
	return errors.New("the answer is lost")
}

// A notice that was stored while the answer was lost is acted on like any other.
func TestANoticeWhoseWriteHadNoAnswerIsActedOn(t *testing.T) {
	for _, who := range []string{"the cloud", "the cell"} {
		t.Run(who, func(t *testing.T) {
			o, lost := &takenBack{}, &lostAnswers{}
			inBubble(t, nil, lost.hook, func(t *testing.T, b *bubble) {
				b.spot("a")
				cell, _ := b.cells.ForPod(ref("a").UID)
				byCloud := cloud.Interruption{InstanceID: cell.Instance.ID, At: time.Now().Add(2 * time.Minute), Reason: "marked"}
				lost.of(cell)
				if who == "the cell" {
					if code := b.notice("a", agentapi.Notice{Kind: agentapi.NoticeTakenBack, Left: 2 * time.Minute}); code != http.StatusOK {
						t.Errorf("Kip answers %d", code)
					}
					b.later(5 * time.Second)
					if len(b.said("interrupted a")) != 1 || len(o.all()) != 0 {
						t.Errorf("%v count as taken back by the cell's word alone; said %v", o.all(), b.events)
					}
					lost.of(cell) // that of the cloud's word, too
				}
				b.interrupt(byCloud)
				b.later(5 * time.Second)
				if lost.left != 0 || len(b.said("interrupted a")) != 1 || len(b.said("Warning Interrupted")) != 1 || len(o.all()) != 1 {
					t.Errorf("%d answers are left to be lost; %v count as taken back; said %v", lost.left, o.all(), b.events)
				}
			}, o)
		})
	}
}

// That a notice was taken back was stored, but the answer was lost: the next one is acted on.
func TestANoticeAfterOneThatWasNotTrueIsActedOn(t *testing.T) {
	o, lost := &takenBack{}, &lostAnswers{}
	inBubble(t, nil, lost.hook, func(t *testing.T, b *bubble) {
		b.spot("a")
		cell, _ := b.cells.ForPod(ref("a").UID)
		for n := 1; n <= 2; n++ {
			b.interrupt(cloud.Interruption{
				InstanceID: cell.Instance.ID,
				At:         time.Now().Add(time.Minute),
				Reason:     "marked",
			})
			b.later(30 * time.Second)
			if len(b.said("interrupted a")) != n || len(b.said("Warning Interrupted")) != n || len(o.all()) != n {
				t.Errorf("notice %d: %v count as taken back; said %v", n, o.all(), b.events)
			}
			lost.of(cell)
			b.later(10 * time.Minute)
			if now, _ := b.cells.ForPod(ref("a").UID); lost.left != 0 || !now.Interrupted.IsZero() || len(b.guard.Held()) != 0 {
				t.Fatalf("long after its time it is still to be taken at %v; held back %v", now.Interrupted, b.guard.Held())
			}
		}
	}, o)
}

// confirming has the cloud give notice in the moment in which a cell's own notice is stored.
type confirming struct {
	Unobserved
	b    *bubble
	once sync.Once
	over chan struct{}
}

func (o *confirming) CellChanged(c Cell) {
	if c.Interrupted.IsZero() {
		return
	}
	o.once.Do(func() {
		go func() {
			defer close(o.over)
			o.b.interrupt(cloud.Interruption{InstanceID: c.Instance.ID, At: c.Interrupted, Reason: "marked"})
		}()
		for range 1000 { // it may have to wait for this write
			runtime.Gosched()
		}
	})
}

func TestWhatTheCloudSaysInTheMomentOfACellsOwnNoticeCounts(t *testing.T) {
	o, racing := &takenBack{}, &confirming{}
	inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
		racing.b, racing.over = b, make(chan struct{})
		b.spot("a")
		b.notice("a", agentapi.Notice{Kind: agentapi.NoticeTakenBack, Left: 2 * time.Minute})
		<-racing.over
		b.later(time.Second)
		if len(o.all()) != 1 || len(b.said("Warning Interrupted")) != 1 || len(b.said("interrupted a")) != 1 {
			t.Errorf("%v count as taken back; said %v", o.all(), b.events)
		}
	}, o, racing)
}

func TestWhatTheCloudSaysAfterARestartCountsIfOnlyTheCellHadSaidIt(t *testing.T) {
	for _, byCell := range []bool{true, false} {
		o := &takenBack{}
		inBubble(t, nil, nil, func(t *testing.T, b *bubble) {
			b.spot("a")
			cell, _ := b.cells.ForPod(ref("a").UID)
			byCloud := cloud.Interruption{InstanceID: cell.Instance.ID, At: time.Now().Add(4 * time.Minute), Reason: "marked"}
			if byCell {
				b.notice("a", agentapi.Notice{Kind: agentapi.NoticeTakenBack, Left: 4 * time.Minute})
			} else {
				b.interrupt(byCloud)
			}
			b.later(time.Second)
			b.stop()
			b.run()
			b.later(10 * time.Second)
			for range 2 {
				b.interrupt(byCloud)
			}
			b.later(time.Second)
			if len(o.all()) != 1 || len(b.said("Warning Interrupted")) != 1 {
				t.Errorf("by the cell %t: %v count as taken back; said %v", byCell, o.all(), b.events)
			}
		}, o)
	}
}

// The agent repeats what Kip has not stored.
func TestANoticeThatIsNotStoredIsNotConfirmed(t *testing.T) {
	for what, refusal := range map[string]error{
		"deposed":          store.ErrNotLeader,
		"written by other": store.ErrConflict,
		"no space":         store.ErrNoSpace,
	} {
		t.Run(what, func(t *testing.T) {
			var refused atomic.Bool
			inBubble(t, nil, func(op, key string) error {
				if refused.Load() && op == "apply" && strings.HasPrefix(key, keyPrefix) {
					return refusal
				}
				return nil
			}, func(t *testing.T, b *bubble) {
				b.spot("a")
				cell, _ := b.cells.ForPod(ref("a").UID)
				refused.Store(true)
				ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second) // the agent waits no longer
				defer cancel()
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(ctx, http.MethodPut, agentapi.PathNotice, strings.NewReader(`{"kind":"taken-back"}`))
				l := b.links.of(cell.ID)
				l.mu.Lock()
				kip := l.kip
				l.mu.Unlock()
				kip.ServeHTTP(w, r)
				if w.Code != http.StatusServiceUnavailable || len(b.said("Interrupted")) != 0 {
					t.Errorf("Kip answers %d: %s; said %v", w.Code, w.Body, b.events)
				}
				if errors.Is(refusal, store.ErrNoSpace) {
					refused.Store(false)
					if code := b.notice("a", agentapi.Notice{Kind: agentapi.NoticeTakenBack, Left: time.Minute}); code != http.StatusOK {
						t.Errorf("once there is space Kip answers %d", code)
					}
					return
				}
				select {
				case err := <-b.ended: // somebody else writes
					b.stop = func() {}
					if !errors.Is(err, refusal) {
						t.Errorf("it ended with %v", err)
					}
				case <-time.After(time.Minute):
					t.Error("it goes on, though somebody else writes its records")
				}
			})
		})
	}
}

func TestAStandbyCellThatIsTakenBackIsReplacedAtOnceAndCounts(t *testing.T) {
	o := &takenBack{}
	inBubble(t, keep(1), nil, func(t *testing.T, b *bubble) {
		b.later(30 * time.Second)
		old := b.cells.List()
		if len(old) != 1 || old[0].Phase != apiv1.Ready {
			t.Fatalf("cells %+v", old)
		}
		b.cells.core.table.mu.Lock()
		e := b.cells.core.table.byID[old[0].ID]
		b.cells.core.table.mu.Unlock()
		if err := b.cells.core.records.save(t.Context(), e, func(cell *Cell) error { cell.Offerings[0].Spot = true; return nil }); err != nil {
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
