package cloudmodel

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestServersServeUntilTheyAreClosedAndTellWhyOneFailed(t *testing.T) {
	// Whoever has a server for tests has its certificate.
	model := httptest.NewTLSServer(nil)
	certificate, client := model.TLS.Certificates[0], model.Client()
	model.Close()
	s := NewServers("Other", slog.New(slog.DiscardHandler))
	here := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	for scheme, by := range map[string]*tls.Certificate{"http": nil, "https": &certificate} {
		at, err := s.Listen(t.Context(), here, 0, hello, by)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if answer.Body.Close(); err != nil || string(text) != "hello" {
			t.Errorf("by %s: %q, %v", scheme, text, err)
		}
	}
	for range 3 { // which nobody reads, but for the first
		s.Go(func() error { return errors.New("the bridge is gone") })
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.Wait()
	if err := <-s.Failed(); err == nil || !strings.Contains(err.Error(), "serve Other: the bridge is gone") {
		t.Errorf("it failed with %v", err)
	}
	select {
	case err := <-s.Failed():
		t.Errorf("that they were closed counts as a failure: %v", err)
	default:
	}
}
