package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/singleflight"
)

// checkTimeout is how long one check may take. A probe must allow a little more;
// the kubelet's default of a second is too short.
const checkTimeout = 2 * time.Second

// scrapesAtOnce bounds the scrapes that are served at the same time: each reads
// all cells.
const scrapesAtOnce = 5

// Check is one condition of health or readiness.
type Check struct {
	// Name is one word, as `?verbose` shows it.
	Name string
	// Func returns what is wrong, which anybody who reaches the port may read.
	// It is called at most once at a time, and its context ends after two seconds.
	Func func(context.Context) error
}

// Metrics serves the metrics.
func (m *Metrics) Metrics() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            promLog{m.cfg.Log},
		ErrorHandling:       promhttp.ContinueOnError,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: scrapesAtOnce,
	})
}

// Handler serves what metrics does at /metrics, /healthz and /readyz: 200 where all
// checks of the list pass, else 500 and a line for each check, which `?verbose` shows
// in any case. A check that does not answer is reported by its name.
func Handler(metrics http.Handler, live, ready []Check) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /healthz", newProbe("healthz", live))
	mux.Handle("GET /readyz", newProbe("readyz", ready))
	return mux
}

// promLog is what promhttp says, in our log.
type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) {
	l.log.Warn("serve metrics", "err", oneLine(fmt.Sprint(v...)))
}

// probe answers for a list of checks.
type probe struct {
	name   string
	checks []Check
	// flights has one for each check: whoever asks while it runs waits for the
	// same answer, so that a check that is stuck costs one goroutine, not one
	// for each probe.
	flights []singleflight.Group
}

func newProbe(name string, checks []Check) *probe {
	return &probe{name, checks, make([]singleflight.Group, len(checks))}
}

func (p *probe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	answers := make([]<-chan singleflight.Result, len(p.checks))
	for i, c := range p.checks {
		answers[i] = p.flights[i].DoChan("", func() (any, error) {
			// Others may wait for it too when this request has gone.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
			defer cancel()
			return nil, c.Func(ctx)
		})
	}
	var lines strings.Builder
	failed := false
	for i, c := range p.checks {
		if err := wait(ctx, answers[i]); err != nil {
			failed = true
			fmt.Fprintf(&lines, "[-]%s failed: %s\n", c.Name, oneLine(err.Error()))
		} else {
			fmt.Fprintf(&lines, "[+]%s ok\n", c.Name)
		}
	}

	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case failed:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "%s%s check failed\n", &lines, p.name)
	case r.URL.Query().Has("verbose"):
		fmt.Fprintf(w, "%s%s check passed\n", &lines, p.name)
	default:
		fmt.Fprint(w, "ok")
	}
}

// wait returns a check's answer, or that there is none.
func wait(ctx context.Context, answer <-chan singleflight.Result) error {
	select {
	case a := <-answer:
		return a.Err
	case <-ctx.Done():
	}
	select {
	case a := <-answer: // both were there
		return a.Err
	default:
		return fmt.Errorf("no answer within %s", checkTimeout)
	}
}

// oneLine keeps what others wrote from looking like a line of ours.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
