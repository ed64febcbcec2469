package node

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agentapi"
)

// agentOf answers as an agent does, and says which path it was asked for.
func agentOf(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization")+r.Header.Get("Cookie") != "" {
		http.Error(w, "these are not for a cell", http.StatusTeapot)
		return
	}
	if r.Header.Get("Upgrade") != agentapi.ExecProtocol {
		fmt.Fprintf(w, "%s %s?%s", r.Method, r.URL.Path, r.URL.RawQuery)
		return
	}
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", agentapi.ExecProtocol)
	_, _ = io.Copy(conn, conn)
}

func TestOnlyWhoMayDoSoWithTheCellComesOntoItsMachine(t *testing.T) {
	f := serve(t, agentOf)
	for _, c := range []struct {
		user, method, path string
		code               int
		body               string // what is in it
	}{
		{"operator", "GET", "/cells/c-1/logs/kubelet?tail=5", 200, "GET /v1/logs/kubelet?tail=5"},
		{"looker", "GET", "/cells/c-1/logs/agent", 200, "GET /v1/logs/agent?"},
		{"operator", "GET", "/cells/c-1/logs/..%2F..%2Fexec", 403, "subresource(s)=[proxy]"},
		{"looker", "GET", "/cells/c-2/logs/agent", 403, `user "looker" may not get cells/log (group kip.elotl.co) of cell c-2`},
		{"looker", "POST", "/cells/c-1/exec?command=id", 403, `user "looker" may not create cells/exec (group kip.elotl.co) of cell c-1`},
		{"operator", "POST", "/cells/c-1/exec?command=id", 200, "POST /v1/exec?command=id"},
		{"operator", "GET", "/cells/c-away/logs/agent", 502, "cell c-away cannot be reached: no tunnel"},
		{"operator", "GET", "/cells/none/logs/agent", 404, `cell "none" does not exist`},
		// Who may do anything with the node may do nothing with cells.
		{"admin", "GET", "/cells/c-1/logs/agent", 403, "may not get cells/log"},
		{"admin", "POST", "/cells/c-1/exec", 403, "may not create cells/exec"},
		{"", "POST", "/cells/c-1/exec", 401, "Unauthorized"},
		{"nobody", "GET", "/cells/c-1/exec", 403, "subresource(s)=[proxy]"},
		{"nobody", "GET", "/cells/c-1/../../pods", 403, "subresource(s)="},
	} {
		code, body := f.do(t, c.user, c.method, c.path)
		if code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s %s as %q: %d %s, want %d with %q", c.method, c.path, c.user, code, body, c.code, c.body)
		}
	}
	// Each time the API server is asked, which keeps no answer for another cell or another time.
	asked := func() (n int) {
		f.api.mu.Lock()
		defer f.api.mu.Unlock()
		for _, a := range f.api.asked {
			if attr := a.ResourceAttributes; attr != nil && attr.Resource == "cells" && a.User == "operator" && attr.Name == "c-1" {
				n++
			}
		}
		return n
	}
	before := asked()
	f.do(t, "operator", "GET", "/cells/c-1/logs/kubelet")
	f.do(t, "operator", "GET", "/cells/c-1/logs/kubelet")
	if n := asked() - before; n != 2 {
		t.Errorf("the API server was asked %d times about two requests", n)
	}
}

func TestNobodyComesOntoAMachineByAProxyThatHidesHim(t *testing.T) {
	f := serve(t, agentOf)
	for _, header := range []string{"X-Forwarded-For", "Forwarded"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+f.addr+"/cells/c-1/logs/agent", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer operator")
		r.Header.Set(header, "10.0.0.1")
		resp, err := f.client(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "not known behind a proxy") {
			t.Errorf("with %s: %d %s %v", header, resp.StatusCode, body, err)
		}
	}
}

func TestACommandsConnectionPassesBothWays(t *testing.T) {
	f := serve(t, agentOf)
	conn, err := tls.Dial("tcp", f.addr, f.tls())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /cells/c-1/exec?command=cat HTTP/1.1\r\nHost: kip\r\nAuthorization: Bearer operator\r\nConnection: Upgrade\r\n"+
		"Upgrade: %s\r\n\r\n", agentapi.ExecProtocol)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	if err := agentapi.NewFrames(conn).Send(agentapi.FrameStdin, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	kind, p, err := agentapi.ReadFrame(in, make([]byte, agentapi.MaxFrame))
	if err != nil || kind != agentapi.FrameStdin || string(p) != "hello" {
		t.Errorf("%d %q %v", kind, p, err)
	}
}
