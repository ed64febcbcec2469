package ec2

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud/sim"
)

// onInstance asks the metadata service from an address, and returns the status and the
// answer, with how many hops that travels.
func onInstance(t *testing.T, m *Model, from, method, path string, headers ...string) (status int, body string, hops int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := m.Metadata.Handler()
	var conn net.Conn
	with := server.ConnContext
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		conn = c
		return with(ctx, c)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() {
		_ = server.Close()
		<-done
	}()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+l.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(headers); n += 2 {
		req.Header.Set(headers[n], headers[n+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if hops, err = ipv4.NewConn(conn).TTL(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text), hops
}

const first, second = "127.64.0.4", "127.64.0.5"

func TestMetadataIsToldAsIMDSv2(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	c.model.base.cfg.Pods = netip.MustParsePrefix("127.128.0.0/10") // from which can be asked here
	if code, body := c.ask("RunInstances", run("MaxCount=2", "MetadataOptions.HttpTokens=required",
		"MetadataOptions.HttpPutResponseHopLimit=2", "UserData="+base64.StdEncoding.EncodeToString([]byte("#cloud-config\n")))...); code != "" {
		t.Fatal(body)
	}
	status, token, hops := onInstance(t, c.model, first, "PUT", "/latest/api/token", lifetimeHeader, "60")
	if status != http.StatusOK || hops != 2 {
		t.Fatalf("a token: %d %q, %d hops; want 2", status, token, hops)
	}
	_, others, _ := onInstance(t, c.model, second, "PUT", "/latest/api/token", lifetimeHeader, "60")
	for what, tc := range map[string]struct {
		from, method, path string
		headers            []string
		status             int
		body               string
	}{
		"user data":          {first, "GET", "/latest/user-data", []string{tokenHeader, token}, 200, "#cloud-config\n"},
		"the place":          {first, "GET", "/latest/meta-data/ami-launch-index", []string{tokenHeader, token}, 200, "0"},
		"from a pod's place": {"127.128.0.64", "GET", "/latest/meta-data/local-ipv4", []string{tokenHeader, token}, 200, first},
		"the other's place":  {second, "GET", "/latest/meta-data/ami-launch-index", []string{tokenHeader, others}, 200, "1"},
		"the address":        {first, "GET", "/latest/meta-data/local-ipv4", []string{tokenHeader, token}, 200, first},
		"no interruption":    {first, "GET", "/latest/meta-data/spot/instance-action", []string{tokenHeader, token}, 404, ""},
		"what there is not":  {first, "GET", "/latest/meta-data/nothing", []string{tokenHeader, token}, 404, ""},
		"without a token":    {first, "GET", "/latest/user-data", nil, 401, ""},
		"another's token":    {first, "GET", "/latest/user-data", []string{tokenHeader, others}, 401, ""},
		"a token made up":    {first, "GET", "/latest/user-data", []string{tokenHeader, "x" + token[1:]}, 401, ""},
		"who is no instance": {"127.0.0.1", "GET", "/latest/user-data", []string{tokenHeader, token}, 404, ""},
		"a token by GET":     {first, "GET", "/latest/api/token", []string{lifetimeHeader, "60"}, 405, ""},
		"no life":            {first, "PUT", "/latest/api/token", nil, 400, ""},
		"too long a life":    {first, "PUT", "/latest/api/token", []string{lifetimeHeader, "21601"}, 400, ""},
		"by a proxy":         {first, "PUT", "/latest/api/token", []string{lifetimeHeader, "60", "X-Forwarded-For", "10.0.0.1"}, 403, ""},
	} {
		status, body, _ := onInstance(t, c.model, tc.from, tc.method, tc.path, tc.headers...)
		if status != tc.status || tc.body != "" && body != tc.body {
			t.Errorf("%s: %d %q, want %d %q", what, status, body, tc.status, tc.body)
		}
	}
	if err := c.model.Metadata.Compose(Compose{On: true}); err != nil {
		t.Fatal(err)
	}
	_, composed, _ := onInstance(t, c.model, first, "GET", "/latest/user-data", tokenHeader, token)
	if plain, err := gzip.NewReader(strings.NewReader(composed)); err != nil {
		t.Errorf("user data with what others have: %v", err)
	} else if text, err := io.ReadAll(plain); err != nil || !strings.HasPrefix(string(text), "Content-Type: multipart/mixed; ") ||
		!strings.Contains(string(text), "\r\n#cloud-config\n") || !strings.Contains(string(text), "\r\n#!/bin/sh\n") {
		t.Errorf("user data with what others have: %q, %v", text, err)
	}
	if _, _, hops := onInstance(t, c.model, first, "GET", "/latest/user-data", tokenHeader, token); hops != usualTTL {
		t.Errorf("user data travels %d hops: the limit is the token's alone", hops)
	}
}

func TestTheServiceCanBeTurnedOff(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	if code, body := c.ask("RunInstances", run("MetadataOptions.HttpEndpoint=disabled")...); code != "" {
		t.Fatal(body)
	}
	status, _, hops := onInstance(t, c.model, first, "PUT", "/latest/api/token", lifetimeHeader, "60")
	if status != http.StatusForbidden || hops != 1 {
		t.Errorf("%d, %d hops: want 403, and 1 by default", status, hops)
	}
}

func TestATokenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(Config{Sim: sim.Config{Catalogue: aCatalogue()}})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		s := m.Metadata
		token := s.sign("i-1", m.Now().Add(time.Minute))
		if !s.valid(token, "i-1") || s.valid(token, "i-2") {
			t.Error("want it valid for its instance alone")
		}
		time.Sleep(time.Minute)
		if s.valid(token, "i-1") {
			t.Error("valid after its end")
		}
	})
}

func TestAnInterruptionIsReadOnTheInstance(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	if code, body := c.ask("RunInstances", run()...); code != "" {
		t.Fatal(body)
	}
	c.control("interrupt", cloudmodel.Interruption{Instance: c.model.Machines().Truth()[0].ID, Notice: time.Hour})
	status, body, _ := onInstance(t, c.model, first, "GET", "/latest/meta-data/spot/instance-action")
	var said struct {
		Action string
		Time   time.Time
	}
	if err := json.Unmarshal([]byte(body), &said); err != nil || status != http.StatusOK || said.Action != "terminate" || said.Time.IsZero() {
		t.Errorf("%d %q: %v", status, body, err)
	}
}

// control does something to the model as another process does.
func (c *client) control(what string, body any) int {
	c.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.Fatal(err)
	}
	r := httptest.NewRequestWithContext(c.Context(), http.MethodPost, cloudmodel.ControlPath+what, bytes.NewReader(text))
	w := httptest.NewRecorder()
	c.model.Control().ServeHTTP(w, r)
	return w.Code
}

func (c *client) state() (s State) {
	c.Helper()
	w := httptest.NewRecorder()
	c.model.Control().ServeHTTP(w, httptest.NewRequestWithContext(c.Context(), http.MethodGet, cloudmodel.ControlPath, nil))
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		c.Fatal(err)
	}
	return s
}

func TestACallHangsBeforeOrAfterItsEffect(t *testing.T) {
	for _, after := range []bool{false, true} {
		c := newClient(t, sim.Knobs{})
		if code := c.control("hang", cloudmodel.Hang{Action: "RunInstances", Nth: 2, After: after}); code != http.StatusOK {
			t.Fatal(code)
		}
		if code, body := c.ask("RunInstances", run("ClientToken=a")...); code != "" {
			t.Fatalf("the first: %s", body)
		}
		ctx, kill := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(encode("RunInstances", run("ClientToken=b")...)))
			if err == nil {
				req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				_, err = http.DefaultClient.Do(req)
			}
			done <- err
		}()
		for len(c.state().Hung) == 0 {
			select {
			case err := <-done:
				t.Fatalf("the second does not hang: %v", err)
			default:
			}
		}
		kill()
		if err := <-done; err == nil {
			t.Error("the second was answered")
		}
		want := 1
		if after {
			want = 2
		}
		if n := c.running(); n != want {
			t.Errorf("after its effect %t: %d run, want %d", after, n, want)
		}
		if s := c.state(); s.Calls["RunInstances"] != 2 || len(s.Instances) != want {
			t.Errorf("%+v", s)
		}
		if code, body := c.ask("RunInstances", run("ClientToken=c")...); code != "" {
			t.Errorf("the third: %s", body)
		}
	}
	c := newClient(t, sim.Knobs{})
	if c.control("hang", cloudmodel.Hang{Action: "RunInstances"}) != http.StatusBadRequest ||
		c.control("hang", cloudmodel.Hang{Action: "Run", Nth: 1}) != http.StatusBadRequest ||
		c.control("hang", map[string]string{"Surprise": "1"}) != http.StatusBadRequest {
		t.Error("want what it cannot do refused")
	}
	c.control("capacity", cloudmodel.Capacity{Type: "c5.large", Instances: 0})
	c.control("hang", cloudmodel.Hang{Action: "RunInstances", Nth: 1, After: true}) // which one that fails does not meet
	if code, _ := c.ask("RunInstances", run()...); code != "InsufficientInstanceCapacity" {
		t.Errorf("without capacity: %q", code)
	}
	if hung := c.state().Hung; len(hung) > 0 {
		t.Errorf("%v have hung", hung)
	}
	c = newClient(t, sim.Knobs{})
	c.control("capacity", cloudmodel.Capacity{Type: "c5.large", Instances: 0})
	c.control("capacity", cloudmodel.Capacity{Type: "c5.large", Instances: -1})
	if code, _ := c.ask("RunInstances", run()...); code != "" {
		t.Errorf("with capacity again: %q", code)
	}
}

func TestAnInstanceHasTheCredentialsOfItsProfilesRole(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	c.model.base.cfg.Pods, c.model.base.cfg.Profiles = netip.MustParsePrefix("127.128.0.0/10"), []string{"cells"}
	if code, body := c.ask("RunInstances", run("MaxCount=1", "IamInstanceProfile.Name=nobody")...); code != "InvalidParameterValue" ||
		!strings.Contains(body, "Invalid IAM Instance Profile name") {
		t.Errorf("a profile that there is not: %s: %s", code, body)
	}
	if code, body := c.ask("RunInstances", run("MaxCount=1", "IamInstanceProfile.Name=cells", "ClientToken=other")...); code != "" {
		t.Fatal(code, body)
	}
	const path = "/latest/meta-data/iam/security-credentials/"
	if status, role, _ := onInstance(t, c.model, first, "GET", path); status != http.StatusOK || role != "cells" {
		t.Errorf("its role: %d %q", status, role)
	}
	var given struct{ Code, AccessKeyId string }
	status, text, _ := onInstance(t, c.model, first, "GET", path+"cells")
	if err := json.Unmarshal([]byte(text), &given); status != http.StatusOK || err != nil || given.Code != "Success" ||
		given.AccessKeyId == "" {
		t.Errorf("its credentials: %d %v %q", status, err, text)
	}
	if status, text, _ := onInstance(t, c.model, first, "GET", path+"other"); status != http.StatusNotFound {
		t.Errorf("those of another role: %d %q", status, text)
	}
}
