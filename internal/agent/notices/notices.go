package notices

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agent/userdata"
	"github.com/elotl/kip/internal/agentapi"
)

const (
	// every is how often EC2 asks to be asked (EC2 User Guide, "Spot Instance interruption notices").
	every = 5 * time.Second
	// answerLimit bounds one answer of the metadata service, which is on the host, and kipLimit
	// one of Kip.
	answerLimit, kipLimit = 2 * time.Second, 10 * time.Second
	// maxAnswer bounds an answer in bytes.
	maxAnswer = 1 << 10
	// tokenLife is how long a token is asked for; it is used for half of that.
	tokenLife = 6 * time.Hour
	// failuresTold is after how many rounds in a row that fail this is told.
	failuresTold = 12
)

// What is asked for (EC2 User Guide, "Instance metadata categories").
const (
	pathToken     = "/latest/api/token"
	pathLifeCycle = "/latest/meta-data/instance-life-cycle"
	pathAction    = "/latest/meta-data/spot/instance-action"
	pathRebalance = "/latest/meta-data/events/recommendations/rebalance"

	tokenHeader = "X-aws-ec2-metadata-token"
	spot        = "spot"
)

// Options of a Watcher. All are required.
type Options struct {
	// Metadata is the URL of the metadata service, without a path.
	Metadata string
	// Kip sends requests to Kip, whatever host their URLs name.
	Kip   http.RoundTripper
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Watcher asks as long as it runs.
type Watcher struct {
	o      Options
	client *http.Client

	token string
	until time.Time // the token is used no longer
	// told are the answers that Kip has.
	told map[agentapi.NoticeKind]string
}

// New returns one that has asked nothing yet.
func New(o Options) *Watcher {
	return &Watcher{
		o:      o,
		client: userdata.Client(answerLimit),
		told:   map[agentapi.NoticeKind]string{},
	}
}

// Run asks until ctx ends. It ends early on a machine that was not bought as spot, which is
// never taken back so.
func (w *Watcher) Run(ctx context.Context) {
	defer w.client.CloseIdleConnections()
	ticker := w.o.Clock.NewTicker(every)
	defer ticker.Stop()
	isSpot, failed := false, 0
	for {
		var err error
		if !isSpot {
			var kind string
			if kind, _, err = w.ask(ctx, pathLifeCycle); err == nil && kind != spot || errors.Is(err, errNone) {
				return
			}
			isSpot = err == nil
		}
		if isSpot {
			err = w.round(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if failed++; err == nil {
			failed = 0
		} else if failed%failuresTold == 0 {
			w.o.Log.Warn("ask whether the cloud takes this machine back, retrying", "failed", failed, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// round asks for each notice, and tells Kip of one that it does not know. Another is told in the
// next round: Kip takes one at a time.
func (w *Watcher) round(ctx context.Context) error {
	told, err := w.look(ctx, agentapi.NoticeTakenBack, pathAction)
	if !told && err == nil {
		_, err = w.look(ctx, agentapi.NoticeAtRisk, pathRebalance)
	}
	return err
}

// errNone is that of what the service does not have.
var errNone = errors.New("the metadata service has none")

// look asks for one, and says whether Kip was told of it now.
func (w *Watcher) look(ctx context.Context, kind agentapi.NoticeKind, path string) (told bool, err error) {
	said, now, err := w.ask(ctx, path)
	switch {
	case errors.Is(err, errNone):
		delete(w.told, kind)
		return false, nil
	case err != nil || w.told[kind] == said:
		return false, err
	}
	n := agentapi.Notice{Kind: kind}
	if kind == agentapi.NoticeTakenBack {
		var action struct{ Time time.Time }
		if err := json.Unmarshal([]byte(said), &action); err != nil || action.Time.IsZero() {
			return false, fmt.Errorf("%s: the answer %.100q has no time", path, said)
		}
		n.Left = action.Time.Sub(now)
	}
	if err := w.tell(ctx, n); err != nil {
		return false, err
	}
	w.o.Log.Warn("the cloud gives notice of this machine", "kind", kind, "left", n.Left.String())
	w.told[kind] = said
	return true, nil
}

// ask asks for a path, and returns the answer with the time of the service's clock.
func (w *Watcher) ask(ctx context.Context, path string) (said string, now time.Time, err error) {
	if w.token == "" || !w.o.Clock.Now().Before(w.until) {
		asked := w.o.Clock.Now()
		token, _, err := w.request(ctx, http.MethodPut, pathToken, tokenHeader+"-ttl-seconds", strconv.Itoa(int(tokenLife/time.Second)))
		if err != nil {
			return "", time.Time{}, err
		}
		w.token, w.until = token, asked.Add(tokenLife/2)
	}
	return w.request(ctx, http.MethodGet, path, tokenHeader, w.token)
}

func (w *Watcher) request(ctx context.Context, method, path, header, value string) (said string, now time.Time, err error) {
	req, err := http.NewRequestWithContext(ctx, method, w.o.Metadata+path, nil)
	if err != nil {
		return "", now, err
	}
	req.Header.Set(header, value)
	resp, err := w.client.Do(req)
	if err != nil {
		return "", now, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return "", now, fmt.Errorf("%s: %w", path, errNone)
	case http.StatusUnauthorized:
		w.token = ""
		fallthrough
	default:
		return "", now, fmt.Errorf("%s: %s", path, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil || len(body) > maxAnswer {
		return "", now, errors.Join(fmt.Errorf("%s: the answer is cut off, or has more than %d bytes", path, maxAnswer), err)
	}
	if now, err = http.ParseTime(resp.Header.Get("Date")); err != nil {
		now = w.o.Clock.Now() // the machine's own clock, then
	}
	return strings.TrimSpace(string(body)), now, nil
}

// tell tells Kip.
func (w *Watcher) tell(ctx context.Context, n agentapi.Notice) error {
	ctx, cancel := context.WithTimeout(ctx, kipLimit)
	defer cancel()
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://kip"+agentapi.PathNotice, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.o.Kip.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("tell Kip: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("tell Kip: it answered %s", resp.Status)
	}
	return nil
}
