package cells

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/credentialproviders"
)

func TestAPodIsToldWhichCredentialProvidersItsCellLacksAndRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		said map[string]string
		want string // of the Event; "" for none
	}{
		"both are there": {map[string]string{"acr": "", "art": ""}, ""},
		"one is not":     {map[string]string{"acr": "", "art": "there is no file /x/art"}, "without them: art (there is no file /x/art)"},
		"older agents":   {nil, "acr (the cell's agent is older than this Kip and has no credential providers); art ("},
	} {
		for kind, standby := range map[string]int{"a cell of its own": 0, "a standby cell": 1} {
			t.Run(name+", "+kind, func(t *testing.T) {
				answers := func(r *http.Request) *http.Response {
					var told agentapi.Configured
					if r.URL.Path == agentapi.PathConfig {
						told.CredentialProviders = tc.said
					}
					b, err := json.Marshal(told)
					if err != nil {
						panic(err)
					}
					return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(b)))}
				}
				with := func(c *setup) {
					keep(standby)(c)
					c.APIs.(*modelLinks).agents = answers
					c.CredentialProviders = []credentialproviders.Provider{{Name: "acr"}, {Name: "art"}}
				}
				inBubble(t, with, nil, func(t *testing.T, b *bubble) {
					b.later(10 * time.Second)
					if _, err := b.cells.Request(b.Context(), nano("a")); err != nil {
						t.Fatal(err)
					}
					b.later(10 * time.Second)
					if got := b.phase("a"); got != apiv1.Bound {
						t.Errorf("the cell is %s, want Bound", got)
					}
					said := b.said("CredentialProviderMissing")
					if tc.want == "" && len(said) > 0 || tc.want != "" && (len(said) != 1 || !strings.Contains(said[0], tc.want)) {
						t.Errorf("the pod is told %q, want %q", said, tc.want)
					}
				})
			})
		}
	}
}

func TestCredentialProvidersThatACellLacksAreReportedAlsoIfItsAgentBreaksOffBefore(t *testing.T) {
	b := newBench(t)
	n := b.connecting()
	e := b.stored(Cell{ID: "c", Pod: ref("a"), Phase: apiv1.Ready, Offerings: nano("a").Offerings})
	s := &credentialProviders{table: b.table, events: b.events, reports: n.reports, some: true}
	if got, err := s.prepare(t.Context(), e); err != nil || got != await(notConnected) {
		t.Errorf("before its agent is configured, the cell is %+v (%v)", got, err)
	}
	s.table.mu.Lock()
	e.change(func(c *connection) { c.configured = true })
	s.reports.noteConfiguredLocked(e, agentapi.Configured{CredentialProviders: map[string]string{"acr": "there is no file"}})
	s.table.mu.Unlock()
	for range 2 {
		if got, err := s.prepare(t.Context(), e); err != nil || got != done {
			t.Errorf("once it has answered, the cell is %+v (%v)", got, err)
		}
	}
	if said := b.said; len(said) != 1 {
		t.Errorf("the pod is told %q", said)
	}
}
