package admission

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/elotl/kip/internal/sources"
)

// dialled is a listener to which connections come from any address.
type dialled struct {
	conns chan net.Conn
	ended chan struct{}
}

func (l *dialled) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *dialled) Addr() net.Addr { return &net.TCPAddr{} }

func (l *dialled) Close() error {
	close(l.ended)
	return nil
}

type connFrom struct {
	net.Conn
	from net.Addr
}

func (c connFrom) RemoteAddr() net.Addr { return c.from }

func (l *dialled) dial(from string) net.Conn {
	here, there := net.Pipe()
	l.conns <- connFrom{there, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 1234))}
	return here
}

// serving has a handler served until the test ends, without TLS.
func serving(t *testing.T, h http.Handler) *dialled {
	l := &dialled{conns: make(chan net.Conn), ended: make(chan struct{})}
	server := newServer(h, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(&sources.Listener{Listener: l, OfOne: connectionsOfOne, All: connectionLimit})
	}()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l
}

// asks sends a question, of which so many bytes do not come.
func asks(t *testing.T, c net.Conn, missing int) {
	t.Helper()
	body := asking(podForKip)
	const head = "POST /pods HTTP/1.1\r\nHost: kip\r\nContent-Length: "
	if _, err := fmt.Fprintf(c, "%s%d\r\n\r\n%s", head, len(body), body[:len(body)-missing]); err != nil {
		t.Error(err)
	}
}

// code is that of the answer; 0 if there is none.
func code(c net.Conn) int {
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return 0
	}
	return r.StatusCode
}

func TestBodiesThatDoNotComeKeepOutNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serving(t, handler())
		var silent []net.Conn
		for range 2 * bodiesOfOne {
			c := l.dial("10.0.0.1")
			asks(t, c, 1)
			silent = append(silent, c)
		}
		synctest.Wait()
		began := time.Now()
		other := l.dial("10.0.0.2")
		asks(t, other, 0)
		if got := code(other); got != http.StatusOK || !time.Now().Equal(began) {
			t.Errorf("beside bodies of another that do not come: %d after %v", got, time.Since(began))
		}
		for i, c := range silent {
			if got := code(c); got != http.StatusRequestTimeout {
				t.Errorf("body %d that does not come: %d, want 408", i, got)
			}
		}
		if took := time.Since(began); took != 2*bodyTimeout {
			t.Errorf("they have ended after %v, want %v", took, 2*bodyTimeout)
		}
	})
}

func TestBodiesAreFewAtOnceWhereverTheyComeFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serving(t, handler())
		for i := range bodiesAtOnce {
			asks(t, l.dial(fmt.Sprintf("10.0.%d.1", i)), 1)
		}
		synctest.Wait()
		began := time.Now()
		late := l.dial("10.1.0.1")
		asks(t, late, 0)
		if got, took := code(late), time.Since(began); got != http.StatusOK || took != bodyTimeout {
			t.Errorf("beside %d bodies that do not come: %d after %v", bodiesAtOnce, got, took)
		}
	})
}

// Anybody who reaches the webhook can have the API server asked, of namespaces of which nothing is known.
func TestQuestionsThatWaitForTheAPIServerKeepOutNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		var most, now atomic.Int64
		profiles := profilesOf(Profile{Name: "p", NamespaceLabels: selector(t, "a=b"), Mode: Only})
		profiles.LabelsOf = func(context.Context, string) (labels.Set, error) {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer now.Add(-1)
			<-asked
			return labels.Set{"a": "b"}, nil
		}
		l := serving(t, newReviews(rules, func() Defaults { return UpstreamDefaults }, nano, profiles, Sets{}, turnTimeout,
			slog.New(slog.DiscardHandler)))
		ask := func(c net.Conn) {
			body := asking(podForKip)
			if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: kip\r\nContent-Length: %d\r\n\r\n%s", profiledPath, len(body), body); err != nil {
				t.Error(err)
			}
		}
		var waiting []net.Conn
		for range bodiesOfOne {
			c := l.dial("10.0.0.1")
			ask(c)
			waiting = append(waiting, c)
		}
		synctest.Wait()
		other := l.dial("10.0.0.2")
		asks(t, other, 0)
		began := time.Now()
		if got := code(other); got != http.StatusOK || time.Since(began) > 0 {
			t.Errorf("beside questions that wait for the API server: %d after %v", got, time.Since(began))
		}
		if n := most.Load(); n != questionsOfOne {
			t.Errorf("%d of one source ask the API server at once, want %d", n, questionsOfOne)
		}
		close(asked)
		for _, c := range waiting {
			if got := code(c); got != http.StatusOK {
				t.Errorf("when the API server answers: %d", got)
			}
		}
	})
}

// What nobody waits for any more is not computed.
func TestQuestionsAreReadFewAtOnceAndForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var computed atomic.Int64
		slow := func() Rules {
			computed.Add(1)
			<-goOn
			return rules()
		}
		l := serving(t, newReviews(slow, func() Defaults { return UpstreamDefaults }, nano, Profiles{}, Sets{}, turnTimeout,
			slog.New(slog.DiscardHandler)))
		var first []net.Conn
		for range reviewsAtOnce {
			c := l.dial("10.0.0.1")
			asks(t, c, 0)
			first = append(first, c)
		}
		synctest.Wait()
		gone := l.dial("10.0.0.2")
		asks(t, gone, 0)
		synctest.Wait()
		if err := gone.Close(); err != nil {
			t.Fatal(err)
		}
		late := l.dial("10.0.0.2")
		asks(t, late, 0)
		if got := code(late); got != http.StatusServiceUnavailable {
			t.Errorf("without a turn: %d, want 503", got)
		}
		close(goOn)
		for _, c := range first {
			if got := code(c); got != http.StatusOK {
				t.Errorf("in its turn: %d", got)
			}
		}
		if n := computed.Load(); n != reviewsAtOnce {
			t.Errorf("%d questions were computed, want %d", n, reviewsAtOnce)
		}
	})
}

func TestConnectionsOfOneSourceLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serving(t, handler())
		closed := func(c net.Conn) bool {
			synctest.Wait()
			err := c.SetReadDeadline(time.Now())
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			return errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF)
		}
		var of []net.Conn
		for range connectionsOfOne {
			of = append(of, l.dial("2001:db8::1"))
		}
		if !closed(l.dial("2001:db8::2")) {
			t.Errorf("connection %d of a network is taken", connectionsOfOne+1)
		}
		var others []net.Conn
		for i := range connectionLimit - connectionsOfOne {
			others = append(others, l.dial(fmt.Sprintf("10.0.%d.1", i)))
		}
		one := l.dial("10.1.0.1")
		if !closed(of[0]) || closed(of[1]) || closed(others[0]) {
			t.Error("the connection that went is not the oldest of who has most")
		}
		asks(t, one, 0)
		if got := code(one); got != http.StatusOK {
			t.Errorf("beside as many connections as there may be: %d", got)
		}
		// What is closed leaves room.
		if err := of[2].Close(); err != nil {
			t.Fatal(err)
		}
		again := l.dial("2001:db8::1")
		asks(t, again, 0)
		if got := code(again); got != http.StatusOK {
			t.Errorf("in the room of one that was closed: %d", got)
		}
	})
}
