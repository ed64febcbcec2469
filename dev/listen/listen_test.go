package listen

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/elotl/kip/test/loopback"
)

// own is no other process's: a port that was free there is free again once it is closed.
var own = loopback.Own()

func open(t *testing.T, port uint16) net.Listener {
	t.Helper()
	l, err := On(t.Context(), own, port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestOnTakesAnotherPortWhenThePreferredOneIsTaken(t *testing.T) {
	first := open(t, 0).Addr().(*net.TCPAddr)
	second := open(t, uint16(first.Port)).Addr().(*net.TCPAddr)
	if second.Port == first.Port {
		t.Errorf("both listen on port %d", first.Port)
	}
}

func TestOnNamesAnAddressThatThisHostDoesNotHave(t *testing.T) {
	if l, err := On(t.Context(), netip.MustParseAddr("192.0.2.1"), 0); err == nil {
		l.Close()
		t.Error("listening on 192.0.2.1 (TEST-NET-1) succeeded")
	}
}

func TestOnAllTakesOnePortThatIsFreeOnEachAddress(t *testing.T) {
	other := netip.MustParseAddr("127.0.0.2")
	// Free on the first address and taken on the second.
	taken, err := On(t.Context(), other, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	preferred := taken.Addr().(*net.TCPAddr).AddrPort().Port()
	all, err := OnAll(t.Context(), preferred, own, other)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		t.Cleanup(func() { l.Close() })
	}
	if len(all) != 2 {
		t.Fatalf("%d listeners, want 2", len(all))
	}
	a, b := all[0].Addr().(*net.TCPAddr).AddrPort(), all[1].Addr().(*net.TCPAddr).AddrPort()
	if a.Addr() != own || b.Addr() != other || a.Port() != b.Port() || a.Port() == preferred {
		t.Errorf("listening on %s and %s; port %d was taken", a, b, preferred)
	}
	// The first listener of the attempt that failed is closed.
	again, err := net.Listen("tcp", netip.AddrPortFrom(own, preferred).String())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if all, err := OnAll(t.Context(), 0, own, netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Errorf("listening on 192.0.2.1 (TEST-NET-1) succeeded: %v", all)
	}
}

func TestJoinedServesEveryAddressUntilClosed(t *testing.T) {
	a, b := open(t, 0), open(t, 0)
	j := Join(a, b)
	if j.Addr() != a.Addr() {
		t.Errorf("address is %s, want that of the first, %s", j.Addr(), a.Addr())
	}
	served := make(chan error, 1)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Host)
	})}
	go func() { served <- srv.Serve(j) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, l := range []net.Listener{a, b, a} {
		host := l.Addr().String()
		resp, err := client.Get("http://" + host)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != host {
			t.Errorf("GET %s: %q, %v", host, body, err)
		}
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve ended with %v", err)
	}
	for _, l := range []net.Listener{a, b} {
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
			t.Errorf("%s still accepts after Close", l.Addr())
		}
	}
	if _, err := j.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}
