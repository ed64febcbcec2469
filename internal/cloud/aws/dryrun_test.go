package aws

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/finding"
)

func TestWhatAnAPIWithoutDryRunsLaunchesIsEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		status int // of the answer to the end
		says   string
	}{
		"it ends":             {http.StatusOK, "it launched i-1, which are being ended"},
		"it may not be ended": {http.StatusBadRequest, "it launched i-1, and does not end them: "},
	} {
		var ended []string
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch action := r.FormValue("Action"); action {
			case "RunInstances":
				fmt.Fprint(w, `<RunInstancesResponse><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></RunInstancesResponse>`)
			case "TerminateInstances":
				ended = append(ended, r.FormValue("InstanceId.1"))
				w.WriteHeader(tc.status)
				fmt.Fprint(w, `<Response><Errors><Error><Code>UnsupportedOperation</Code></Error></Errors></Response>`)
			default:
				t.Errorf("%s is called", action)
			}
		}))
		defer api.Close()
		cfg := settings(api.URL)
		cfg.EndsOnly = true
		c, err := New(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := &accountChecks{c: c, net: &network{}}
		got := a.tried(t.Context(), []dry{{"RunInstances", func(ctx context.Context) error {
			return a.dryLaunch(ctx, a.launch("t3.small", "", image{}, nil))
		}}})
		if len(got) != 1 || got[0].Outcome != finding.Failed || !strings.Contains(got[0].Message, tc.says) ||
			!strings.Contains(got[0].Cure, "terminate-instances --instance-ids i-1") || len(ended) == 0 || ended[0] != "i-1" {
			t.Errorf("%s: %+v; ended: %v", name, got, ended)
		}
	}
}
