package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agent/upgrade"
	"github.com/elotl/kip/internal/agentapi"
)

// another is the program of another agent: it says its version.
const another = "#!/bin/sh\n[ \"$*\" = version ] && echo v2\n"

// servedAgent serves a program, and says which agent it is by the digest of text.
func servedAgent(t *testing.T, program, text string) agentapi.Agent {
	t.Helper()
	sum := sha256.Sum256([]byte(text))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, program) }))
	t.Cleanup(server.Close)
	return agentapi.Agent{Version: "v2", URL: server.URL, SHA256: map[string]string{runtime.GOARCH: hex.EncodeToString(sum[:])}}
}

// impatient lets an agent pause less between its tries to fetch another one.
func impatient(m *machine, a *Agent) *Agent {
	a.upgrade = upgrade.New(upgrade.Options{
		Dir:   UpgradeDir(m.path("state")),
		Self:  a.o.Self,
		Try:   a.versionOf,
		Log:   a.o.Log,
		Limit: time.Minute,
		Pause: time.Millisecond,
	})
	return a
}

func putAgent(t *testing.T, a *Agent, wanted agentapi.Agent) *httptest.ResponseRecorder {
	t.Helper()
	body, err := json.Marshal(wanted)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPut, agentapi.PathAgent, strings.NewReader(string(body))))
	return w
}

func TestAnAgentEndsForAnotherOneThatKipWants(t *testing.T) {
	m := newMachine(t)
	a := m.agent(true)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	eventually(t, "containerd starts", m.didIt("containerd started"))
	eventually(t, "the agent runs", func() bool { return running(a) })
	wanted := servedAgent(t, another, another)
	if w := putAgent(t, a, wanted); w.Code != http.StatusServiceUnavailable {
		t.Fatalf("it answered %d %s", w.Code, w.Body)
	}
	err := <-ended
	next, is := errors.AsType[*ReplacedError](err)
	if !is {
		t.Fatalf("it ended with %v", err)
	}
	text, err := os.ReadFile(next.Program)
	if err != nil || string(text) != another || !strings.HasPrefix(next.Program, UpgradeDir(m.path("state"))+"/") {
		t.Errorf("%s has %q, %v", next.Program, text, err)
	}
	// The other one starts a containerd of its own, which two cannot be.
	if did := m.did(); !slices.Contains(did, "containerd stopped") {
		t.Errorf("it did %q", did)
	}
}

// A pod may run from the configuration on: whoever took it is replaced no more.
func TestNoConfigurationIsTakenWhileAnotherAgentIsFetched(t *testing.T) {
	for name, tc := range map[string]struct {
		served   string
		replaced bool
	}{
		"that comes":         {another, true},
		"that does not come": {"changed on the way", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.file("serving", "", 0o444)
			a := impatient(m, m.agent(true))
			wanted := servedAgent(t, another, another)
			if w := putAgent(t, a, wanted); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "starting") {
				t.Errorf("before it has read what it has: %d %s", w.Code, w.Body)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- a.Run(ctx) }()
			eventually(t, "the agent runs", func() bool { return running(a) })
			comes := make(chan struct{})
			slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				<-comes
				_, _ = io.WriteString(w, tc.served)
			}))
			t.Cleanup(slow.Close)
			wanted.URL = slow.URL
			if w := putAgent(t, a, wanted); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "is being fetched") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if w := put(t, a, config()); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "another agent") {
				t.Errorf("a configuration meanwhile: %d %s", w.Code, w.Body)
			}
			close(comes)
			if !tc.replaced {
				eventually(t, "a configuration is taken", func() bool { return put(t, a, config()).Code == http.StatusOK })
				stop()
			}
			err := <-ended
			stop()
			if errors.As(err, new(*ReplacedError)) != tc.replaced {
				t.Errorf("it ended with %v", err)
			}
			if did := slices.Contains(m.did(), "kubelet started"); did && tc.replaced {
				t.Errorf("it did %q", m.did())
			}
		})
	}
}

func TestAnAgentSaysWhichOneItIsNotReplacedBy(t *testing.T) {
	m := newMachine(t)
	m.file("serving", "", 0o444)
	a := impatient(m, m.agent(false))
	m.run(a)
	self, err := os.ReadFile(m.path("itzo"))
	if err != nil {
		t.Fatal(err)
	}
	if w := putAgent(t, a, servedAgent(t, "nothing", string(self))); w.Code != http.StatusOK {
		t.Errorf("of itself: %d %s", w.Code, w.Body)
	}
	other := servedAgent(t, "changed on the way", another)
	var last *httptest.ResponseRecorder
	eventually(t, "it says what is wrong", func() bool { last = putAgent(t, a, other); return last.Code != http.StatusServiceUnavailable })
	if last.Code != http.StatusBadRequest || !strings.Contains(last.Body.String(), "it is another file, or was changed") {
		t.Errorf("another file: %d %s", last.Code, last.Body)
	}
	// It goes on, and is no other from then on.
	w := put(t, a, config())
	sum := sha256.Sum256(self)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"sha256":"`+hex.EncodeToString(sum[:])) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w := putAgent(t, a, servedAgent(t, another, another)); w.Code != http.StatusBadRequest ||
		!strings.Contains(w.Body.String(), "has its configuration") {
		t.Errorf("with its configuration: %d %s", w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPut, agentapi.PathAgent, strings.NewReader("{")))
	if w.Code != http.StatusBadRequest {
		t.Errorf("no JSON: %d %s", w.Code, w.Body)
	}
}

func TestAProgramThatIsNoAgentIsNotGoneOverTo(t *testing.T) {
	m := newMachine(t)
	a := m.agent(false)
	m.run(a)
	const fails = "#!/bin/sh\necho of another machine; exit 3\n"
	wanted := servedAgent(t, fails, fails)
	var last *httptest.ResponseRecorder
	eventually(t, "it says what is wrong", func() bool { last = putAgent(t, a, wanted); return last.Code != http.StatusServiceUnavailable })
	if last.Code != http.StatusBadRequest || !strings.Contains(last.Body.String(), "no agent for this machine") ||
		!strings.Contains(last.Body.String(), "of another machine") {
		t.Errorf("%d %s", last.Code, last.Body)
	}
}
