package notices

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agentapi"
)

// service is a metadata service that says one thing of each path, and takes one token.
type service struct {
	token string
	given int // tokens
	says  map[string]string
	date  string
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["Date"] = []string{s.date}
	said, is := s.says[r.URL.Path]
	switch {
	case r.URL.Path == pathToken && r.Method == http.MethodPut && r.Header.Get(tokenHeader+"-ttl-seconds") == "21600":
		s.given++
		_, _ = w.Write([]byte(s.token))
	case r.Header.Get(tokenHeader) != s.token:
		http.Error(w, "want a token", http.StatusUnauthorized)
	case !is:
		http.NotFound(w, r)
	default:
		_, _ = w.Write([]byte(said))
	}
}

// kip notes what it is told.
type kip struct {
	status int
	told   []agentapi.Notice
}

func (k *kip) RoundTrip(r *http.Request) (*http.Response, error) {
	var n agentapi.Notice
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		return nil, err
	}
	k.told = append(k.told, n)
	return &http.Response{StatusCode: k.status, Status: http.StatusText(k.status), Body: http.NoBody}, nil
}

// watcher is one of a spot machine.
func watcher(t *testing.T, s *service, k *kip, log *bytes.Buffer) *Watcher {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return New(Options{Metadata: server.URL, Kip: k, Clock: clock.RealClock{}, Log: slog.New(slog.NewTextHandler(log, nil))})
}

func TestTheTimeThatIsLeftIsByTheServicesClock(t *testing.T) {
	s := &service{
		token: "a",
		says:  map[string]string{pathAction: `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`},
		date:  "Mon, 18 Sep 2017 08:20:30 GMT",
	}
	k := &kip{status: http.StatusInternalServerError}
	var log bytes.Buffer
	w := watcher(t, s, k, &log)
	if err := w.round(t.Context()); err == nil || !strings.Contains(err.Error(), "tell Kip: it answered") {
		t.Errorf("a Kip that fails: %v", err)
	}
	k.status = http.StatusOK
	s.token = "b" // which the service has forgotten
	if err := w.round(t.Context()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a token that is not taken any more: %v", err)
	}
	for range 3 {
		if err := w.round(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if len(k.told) != 2 || k.told[1] != (agentapi.Notice{Kind: agentapi.NoticeTakenBack, Left: 90 * time.Second}) || s.given != 2 {
		t.Errorf("told %+v with %d tokens", k.told, s.given)
	}
	if !strings.Contains(log.String(), "kind=taken-back left=1m30s") {
		t.Errorf("the log has %q", log.String())
	}
}

func TestANoticeIsRepeatedUntilKipHasIt(t *testing.T) {
	for status, want := range map[int]int{
		http.StatusOK:                 1,
		http.StatusForbidden:          3,
		http.StatusTooManyRequests:    3,
		http.StatusServiceUnavailable: 3,
	} {
		s := &service{token: "a", says: map[string]string{pathAction: `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`}}
		k := &kip{status: status}
		w := watcher(t, s, k, &bytes.Buffer{})
		for range 3 {
			_ = w.round(t.Context())
		}
		if len(k.told) != want {
			t.Errorf("a Kip that answers %d is told %d times, want %d", status, len(k.told), want)
		}
	}
}

func TestWhatIsNoNoticeIsNotTold(t *testing.T) {
	for what, tc := range map[string]struct{ said, want string }{
		"no JSON": {"terminate", "has no time"},
		"no time": {`{"action": "terminate"}`, "has no time"},
		"long":    {strings.Repeat("x", maxAnswer+1), "more than 1024 bytes"},
	} {
		k := &kip{status: http.StatusOK}
		w := watcher(t, &service{token: "a", says: map[string]string{pathAction: tc.said}}, k, &bytes.Buffer{})
		if err := w.round(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) || len(k.told) > 0 {
			t.Errorf("%s: %v, told %v; want %q", what, err, k.told, tc.want)
		}
	}
}

func TestOneNoticeIsToldAtATime(t *testing.T) {
	s := &service{token: "a", says: map[string]string{
		pathAction:    `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`,
		pathRebalance: `{"noticeTime": "2017-09-18T08:20:00Z"}`,
	}}
	k := &kip{status: http.StatusOK}
	w := watcher(t, s, k, &bytes.Buffer{})
	for n := 1; n <= 3; n++ {
		if err := w.round(t.Context()); err != nil || len(k.told) != min(n, 2) {
			t.Errorf("after round %d Kip is told %v: %v", n, k.told, err)
		}
	}
}

func TestAMachineThatNobodyTakesBackIsNotAskedAgain(t *testing.T) {
	for what, says := range map[string]map[string]string{"on demand": {pathLifeCycle: "on-demand"}, "without a word": {}} {
		s := &service{token: "a", says: says}
		ctx, cancel := context.WithCancelCause(t.Context())
		timer := time.AfterFunc(time.Minute, func() { cancel(errors.New("it goes on")) })
		watcher(t, s, &kip{}, &bytes.Buffer{}).Run(ctx)
		timer.Stop()
		if err := context.Cause(ctx); err != nil || s.given != 1 {
			t.Errorf("%s: %v, %d tokens", what, err, s.given)
		}
		cancel(nil)
	}
}
