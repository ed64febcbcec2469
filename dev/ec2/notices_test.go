package ec2

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/agent/notices"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/sim"
)

// kipOf is a Kip that notes what a cell tells it, and answers with a status.
type kipOf struct {
	mu     sync.Mutex
	status int // 0: it is not there
	told   []agentapi.Notice
	odd    []string
}

func (k *kipOf) set(status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status = status
}

func (k *kipOf) RoundTrip(r *http.Request) (*http.Response, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var n agentapi.Notice
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil || r.Method != http.MethodPut || r.URL.Path != agentapi.PathNotice {
		k.odd = append(k.odd, r.Method+" "+r.URL.String())
	}
	if k.status == 0 {
		return nil, errors.New("no connection")
	}
	k.told = append(k.told, n)
	return &http.Response{StatusCode: k.status, Status: http.StatusText(k.status), Body: http.NoBody}, nil
}

func (k *kipOf) kinds() (kinds []agentapi.NoticeKind, left time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.told {
		kinds = append(kinds, n.Kind)
		left = max(left, n.Left)
	}
	return kinds, left
}

// instanceWorld is an instance with an agent that watches for notices.
type instanceWorld struct {
	*client
	kip   *kipOf
	clock *testclock.FakeClock
	asked chan string // paths that were asked for
	ended chan struct{}
	began time.Time // for this clock; that of the model goes on
}

func newInstanceWorld(t *testing.T, more ...string) *instanceWorld {
	t.Helper()
	w := &instanceWorld{
		client: newClient(t, sim.Knobs{}),
		kip:    &kipOf{status: http.StatusOK},
		clock:  testclock.NewFakeClock(time.Now()),
		asked:  make(chan string, 1000),
		ended:  make(chan struct{}),
		began:  time.Now(),
	}
	if code, body := w.ask("RunInstances", run(append(more, "MetadataOptions.HttpTokens=required")...)...); code != "" {
		t.Fatal(body)
	}
	service := w.model.Metadata.Handler().Handler
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = first + ":1" // who asks is known by the address
		service.ServeHTTP(rw, r)
		w.asked <- r.URL.Path
	}))
	t.Cleanup(server.Close)
	watcher := notices.New(notices.Options{
		Metadata: server.URL,
		Kip:      w.kip,
		Clock:    w.clock,
		Log:      slog.New(slog.DiscardHandler),
	})
	go func() { defer close(w.ended); watcher.Run(t.Context()) }()
	return w
}

// until has rounds begin until something is so.
func (w *instanceWorld) until(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("it is never so that %s", what)
		}
		if w.clock.HasWaiters() {
			w.clock.Step(5 * time.Second)
		}
	}
}

// rounds has some begin and end.
func (w *instanceWorld) rounds(n int) (asked []string) {
	w.Helper()
	w.until("it was asked for notices", func() bool {
		for {
			select {
			case path := <-w.asked:
				asked = append(asked, path)
				if path == actionPath {
					n--
				}
			default:
				return n < 0 // those before have ended
			}
		}
	})
	return asked
}

const actionPath = "/latest/meta-data/spot/instance-action"

var asSpot = []string{"InstanceMarketOptions.MarketType=spot", "InstanceMarketOptions.SpotOptions.SpotInstanceType=one-time",
	"InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior=terminate"}

func TestACellTellsKipOnceThatItIsTakenBackOrLikelyTo(t *testing.T) {
	w := newInstanceWorld(t, asSpot...)
	asked := w.rounds(3)
	times := map[string]int{}
	for _, path := range asked {
		times[path]++
	}
	// A token is of use for hours, which may pass here.
	tokens, cycles := times["/latest/api/token"], times["/latest/meta-data/instance-life-cycle"]
	if cycles != 1 || tokens == 0 || tokens >= times[actionPath] {
		t.Errorf("asked %v: want the life cycle once, and a token for several notices", times)
	}
	if kinds, _ := w.kip.kinds(); len(kinds) > 0 {
		t.Fatalf("told %v without a notice", kinds)
	}
	id := w.model.Machines().Truth()[0].ID
	if w.control("rebalance", Rebalance{Instance: id}) != http.StatusOK ||
		w.control("rebalance", Rebalance{Instance: "i-none"}) != http.StatusBadRequest {
		t.Fatal("the model gives no recommendation, or gives one to nobody")
	}
	told := func(n int) func() bool {
		return func() bool { kinds, _ := w.kip.kinds(); return len(kinds) == n }
	}
	w.until("Kip was told of the risk", told(1))
	w.kip.set(0) // Kip is away for a while
	w.control("interrupt", cloudmodel.Interruption{Instance: id, Notice: 2 * time.Minute})
	w.rounds(3)
	w.kip.set(http.StatusOK)
	w.until("Kip was told of the end", told(2))
	w.rounds(3)
	kinds, left := w.kip.kinds()
	want := []agentapi.NoticeKind{agentapi.NoticeAtRisk, agentapi.NoticeTakenBack}
	if !slices.Equal(kinds, want) || left < 30*time.Second || left > 2*time.Minute+time.Since(w.began) || len(w.kip.odd) > 0 {
		t.Errorf("told %v with %s left, and %v; want %v once each, with two minutes left at most", kinds, left, w.kip.odd, want)
	}
}

func TestAnOnDemandInstanceIsAskedNothingMore(t *testing.T) {
	w := newInstanceWorld(t)
	<-w.ended
	if n := len(w.asked); n != 2 {
		t.Errorf("asked %d times: want a token and the life cycle", n)
	}
}
