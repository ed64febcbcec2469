package tunnel

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A connection may have maxHeld answers held, again and again. One more closes it, and ends the others.
func TestAConnectionHasSoManyAnswersHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newPipe(t)
		h := &holder{conn: c, lasts: time.Second}
		ctx := context.WithValue(t.Context(), holderKey{}, h)
		for range 2 {
			var held sync.WaitGroup
			for range maxHeld {
				held.Go(func() { Hold(ctx) })
			}
			synctest.Wait()
			if isClosed(c) || h.flood.Load() {
				t.Fatalf("closed with %d answers held", maxHeld)
			}
			held.Wait()
		}
		var held sync.WaitGroup
		began := time.Now()
		for range maxHeld + 1 {
			held.Go(func() { Hold(ctx) })
		}
		held.Wait()
		if took := time.Since(began); !isClosed(c) || !h.flood.Load() || took != 0 {
			t.Errorf("with %d answers held: closed %t, as a flood %t, after %v", maxHeld+1, isClosed(c), h.flood.Load(), took)
		}
	})
}

// A cell that asks on while its answers are held is disconnected and left alone for a
// while. That counts as Kip's doing.
func TestACellThatFloodsIsDisconnectedForAWhile(t *testing.T) {
	w := newWorld(t)
	w.limits.hold, w.limits.calm = time.Hour, 50*time.Millisecond
	var overdrawn atomic.Bool
	overdrawn.Store(true)
	var waiting atomic.Int32
	states := newStates(t)
	m := w.start(t.TempDir(), "", http.NotFoundHandler())
	target := w.target(m.addr)
	target.OnState = states.note
	s := w.keep(w.dialer(w.authority), target, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if overdrawn.Load() {
			waiting.Add(1)
			Hold(r.Context())
		}
		rw.WriteHeader(http.StatusTooManyRequests)
	}))
	states.next("the cell to be connected", isConnected)
	held := s.HeldBack()
	ended := make(chan error, maxHeld+1)
	ask := func() {
		_, _, err := tryGet(m.RoundTripper(), "/")
		ended <- err
	}
	for range maxHeld {
		go ask()
	}
	for deadline := time.Now().Add(testPatience); waiting.Load() < maxHeld; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d answers are held, want %d", waiting.Load(), maxHeld)
		}
	}
	if !s.Connected() {
		t.Errorf("disconnected with %d answers held", maxHeld)
	}
	go ask()
	if st := states.next("the end of the connection", func(s state) bool { return !s.connected }); !errors.Is(st.err, errFlood) {
		t.Errorf("the connection ended with %v", st.err)
	}
	overdrawn.Store(false)
	for range maxHeld + 1 {
		if err := wait(t, "a request to end", ended); err == nil {
			t.Error("a request that was held was answered before its time")
		}
	}
	states.next("the cell to be connected again", isConnected)
	if !s.HeldBack().After(held) {
		t.Error("the time without a connection is held against the cell")
	}
	if code, _ := get(t, m.RoundTripper(), "/"); code != http.StatusTooManyRequests {
		t.Errorf("answered with %d", code)
	}
}
