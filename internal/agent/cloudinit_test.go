package agent

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloudconfig"
)

// setUp puts a cloud-init file.
func setUp(t *testing.T, a *Agent, file string) *httptest.ResponseRecorder {
	t.Helper()
	body, err := json.Marshal(agentapi.CloudInit{Document: []byte(file)})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, agentapi.PathCloudInit, bytes.NewReader(body))
	a.Handler().ServeHTTP(w, r)
	return w
}

// isSetUp asks for the outcome of a cloud-init file, by its digest.
func isSetUp(t *testing.T, a *Agent, digest string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	target := agentapi.PathCloudInit + "?" + agentapi.ParamDigest + "=" + digest
	a.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	return w
}

func TestAnAgentCarriesOutACloudInitFileOnceAndAnswersWhenItIsDone(t *testing.T) {
	m := newMachine(t)
	m.file("etc/hosts", "", 0o644)
	const file = "#cloud-config\nhostname: cell-7\nusers: [ann]\nwrite_files: [{path: /etc/x, content: x, append: true, owner: '%'}]\n"
	good := strings.Replace(strings.Replace(file, "users: [ann]\n", "", 1), ", owner: '%'", "", 1)
	own := m.agent(false)
	stop := m.run(own)
	if w := setUp(t, own, file); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "write_files[0].owner") {
		t.Errorf("one that is wrong: %d %s", w.Code, w.Body)
	}
	digest := cloudconfig.Digest([]byte(good))
	if w := isSetUp(t, own, digest); w.Code != http.StatusNotFound {
		t.Errorf("asked for one that it was not given: %d %s", w.Code, w.Body)
	}
	last := setUp(t, own, good)
	eventually(t, "it is done", func() bool { last = isSetUp(t, own, digest); return last.Code != http.StatusServiceUnavailable })
	if w := setUp(t, own, good); w.Code != last.Code || w.Body.String() != last.Body.String() {
		t.Errorf("given it again it answered %d %s, asked by its digest %d %s", w.Code, w.Body, last.Code, last.Body)
	}
	name, _ := os.ReadFile(m.path("name"))
	if last.Code != http.StatusOK || strings.TrimSpace(last.Body.String()) != "{}" && !strings.Contains(last.Body.String(), "file /etc/x") ||
		string(name) != "cell-7" {
		t.Errorf("it answered %d %s, the name is %q", last.Code, last.Body, name)
	}
	stop()
	again := m.agent(false)
	m.run(again)
	if w := isSetUp(t, again, digest); w.Code != http.StatusOK || w.Body.String() != last.Body.String() {
		t.Errorf("another agent answered %d %s", w.Code, w.Body)
	}
	if w := isSetUp(t, again, cloudconfig.Digest([]byte(file))); w.Code != http.StatusNotFound {
		t.Errorf("asked for another: %d %s", w.Code, w.Body)
	}
	if text, err := os.ReadFile(m.path("etc/x")); err != nil || string(text) != "x" {
		t.Errorf("the file is %q: %v", text, err)
	}
}

func TestAnAgentOfKipsOwnImageRefusesUsers(t *testing.T) {
	m := newMachine(t)
	a := m.agent(true)
	w := setUp(t, a, "#cloud-config\nusers: [ann]\n")
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "nobody can log in on Kip's own image") {
		t.Errorf("it answered %d %s", w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPut, agentapi.PathCloudInit, strings.NewReader(`{"document": "sesame`)))
	if w.Code != http.StatusBadRequest || strings.Contains(w.Body.String(), "sesame") {
		t.Errorf("no JSON: %d %s", w.Code, w.Body)
	}
}
