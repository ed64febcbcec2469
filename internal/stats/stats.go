package stats

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agentapi"
)

const (
	// cellTimeout is how long one cell may take, and gatherTimeout how long all
	// of them together. metrics-server waits 10 s for a node (its flag
	// --kubelet-request-timeout), Prometheus too (scrape_timeout).
	cellTimeout, gatherTimeout = 2 * time.Second, 7 * time.Second
	// maxAge is how old an answer may be that another caller gets too, from the
	// beginning of its gathering. A kubelet looks at its containers each 10 s
	// (housekeeping-interval): half of that hides nothing.
	maxAge = 5 * time.Second
	// maxInFlight is how many cells are asked at the same time. One that is
	// asked costs a stream and a goroutine, until it answers or its time is up.
	maxInFlight = 256
	// maxBody bounds the answer of one cell, in bytes: a kubelet's with one small
	// pod has 110 KiB, and 25 KiB for each further container.
	maxBody = 8 << 20
	// maxReading bounds the answers that are being read, and maxHeld what is
	// kept of one gathering, compressed, in bytes. Answers larger than largeBody, which
	// no honest cell needs with few containers, have half of each, and one processor: the
	// rest is for the others, however many cells answer much.
	maxReading, maxHeld = 128 << 20, 256 << 20
	largeBody           = 256 << 10
)

// Cell is a cell that runs a pod of the node.
type Cell struct {
	ID             string
	Namespace, Pod string
	UID            types.UID
	// Machine bounds what is believed of the cell's share in the node's numbers.
	Machine Machine
	// Given is when the pod was given the cell.
	Given time.Time
	// Claims are those of the pod's volumes.
	Claims []string
	// Conn leads to the agent; it is nil when the cell is not connected.
	Conn agentapi.Conn
}

// Machine is how large a cell's machine is, by those who launched it. Of the zero
// Machine nothing is believed.
type Machine struct {
	MilliCPU    int64
	MemoryBytes int64
	Since       time.Time // no later than its launch
}

const (
	// slack is how much more than its size a machine may say that it uses, since
	// sizes are round, and skew how much longer than its time, in seconds.
	slack, skew = 1.25, 60
	// maxDisk and maxInodes are more than a machine of any cloud has.
	maxDisk, maxInodes = 1 << 52, 1 << 42
)

// cores is how many it may use at once.
func (m Machine) cores() float64 { return float64(m.MilliCPU) / 1000 * slack }

// coreSeconds is the most CPU time that it can have used until now.
func (m Machine) coreSeconds(now time.Time) float64 {
	return m.cores() * max(now.Sub(m.Since).Seconds()+skew, 0)
}

// memory is the most that it may say of its memory, in bytes.
func (m Machine) memory() float64 { return float64(m.MemoryBytes) * slack }

// Miss is why a cell is not in an answer.
type Miss string

const (
	NotConnected Miss = "not_connected" // there is no tunnel to it now
	TimedOut     Miss = "timeout"       // it did not answer in time
	Failed       Miss = "error"         // it answered with an error, or the tunnel broke
	Invalid      Miss = "invalid"       // what it answered cannot be parsed
	TooLarge     Miss = "too_large"     // it answered too much, or all cells did
)

// Misses are all there are.
var Misses = []Miss{NotConnected, TimedOut, Failed, Invalid, TooLarge}

// Endpoints are what is gathered for: the last parts of the paths that are answered, and volumes.
var Endpoints = []string{summaryName, resource.name, cadvisor.name, probes.name, volumesName}

// Config of Stats. All fields are required.
type Config struct {
	NodeName string
	// Cells returns those that run a pod of the node now.
	Cells func() []Cell
	// Gathered is told of each gathering: how long it took, and how many cells
	// it lacks.
	Gathered func(endpoint string, took time.Duration, missed map[Miss]int)
	Clock    clock.WithDelayedExecution
	Log      *slog.Logger
}

// Stats answers requests for what the pods of the node use.
type Stats struct {
	c       Config
	since   time.Time
	reading budget
	parsing chan struct{}      // as many as there are processors
	largest chan struct{}      // one, of a large answer
	held    int                // maxHeld
	sources map[string]*source // by path
	volumes *source

	mu      sync.Mutex
	ctx     context.Context // of gatherings; nil when they may not begin
	running sync.WaitGroup
}

var _ http.Handler = (*Stats)(nil)

// New returns Stats that answer while Run runs.
func New(c Config) *Stats {
	s := &Stats{
		c:       c,
		since:   c.Clock.Now(),
		reading: budget{most: maxReading},
		parsing: make(chan struct{}, runtime.GOMAXPROCS(0)),
		largest: make(chan struct{}, 1),
		held:    maxHeld,
	}
	s.sources = map[string]*source{
		summaryPath:           newSource(s, summaryName, summaryPath, newSummaries(c.NodeName, s.since)),
		summaryPath + onlyCPU: newSource(s, summaryName, summaryPath+onlyCPU, newSummaries(c.NodeName, s.since)),
	}
	for _, e := range []textEndpoint{resource, cadvisor, probes} {
		path := "/metrics/" + e.name
		s.sources[path] = newSource(s, e.name, path, newTexts(e))
	}
	s.volumes = newSource(s, volumesName, summaryPath, volumes{})
	s.volumes.cells = s.withClaims
	return s
}

// Run lets requests be answered until ctx ends.
func (s *Stats) Run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.ctx = nil
	for _, src := range s.sources {
		src.forget(src.last)
	}
	s.volumes.forget(s.volumes.last)
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

var errNotRunning = errors.New("statistics are not served: Kip is starting or stopping")

// ServeHTTP answers a request for one of the paths of a kubelet.
func (s *Stats) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if path == summaryPath && r.URL.Query().Get(onlyCPUParameter) == "true" {
		path += onlyCPU
	}
	src := s.sources[path]
	if src == nil {
		http.NotFound(w, r)
		return
	}
	a, err := src.get(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", a.contentType)
	if r.Method == http.MethodHead {
		return
	}
	if err := a.writeTo(w); err != nil {
		s.c.Log.Debug("the caller has gone", "path", r.URL.Path, "err", err)
	}
}

// gathering is one round of asking all cells; its answer is there when done is
// closed.
type gathering struct {
	began  time.Time
	done   chan struct{}
	answer *answer
	expire clock.Timer
}

// source gathers for one path.
type source struct {
	s              *Stats
	endpoint, path string
	merging        merging
	cells          func() []Cell // that are asked

	last *gathering // under Stats.mu

	// late are the cells that the next gathering asks last: they took long, answered
	// much, or not what they should. One that the others left nothing for is none of
	// them. Only a gathering uses it, of which there is one at a time.
	late map[string]bool
}

// merging makes one answer of the answers of many cells, one gathering after the
// other.
type merging interface {
	begin(now time.Time) merger
}

type merger interface {
	// add takes the answer of one cell. It is called from many goroutines.
	add(c *Cell, body []byte) error
	// held is how many bytes are kept.
	held() int
	// end returns the whole. cells are all that there are, also those that did
	// not answer.
	end(cells []Cell) (*answer, error)
}

func newSource(s *Stats, endpoint, path string, m merging) *source {
	return &source{
		s:        s,
		endpoint: endpoint,
		path:     path,
		merging:  m,
		cells:    s.c.Cells,
	}
}

// get returns the answer of the gathering that is going on, that of the last one
// while it is young enough, or that of a new one.
func (src *source) get(ctx context.Context) (*answer, error) {
	s := src.s
	s.mu.Lock()
	if s.ctx == nil {
		s.mu.Unlock()
		return nil, errNotRunning
	}
	g := src.last
	if g == nil || g.ended() && s.c.Clock.Since(g.began) >= maxAge {
		src.forget(g)
		g = &gathering{began: s.c.Clock.Now(), done: make(chan struct{})}
		src.last = g
		ctx := s.ctx // not the caller's: others wait for it too
		s.running.Go(func() { src.run(ctx, g) })
	}
	s.mu.Unlock()
	select {
	case <-g.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if g.answer == nil {
		return nil, errNotRunning
	}
	return g.answer, nil
}

func (g *gathering) ended() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// forget drops an answer, under Stats.mu.
func (src *source) forget(g *gathering) {
	if g == nil || src.last != g {
		return
	}
	if g.expire != nil {
		g.expire.Stop()
	}
	src.last = nil
}

func (src *source) run(ctx context.Context, g *gathering) {
	s := src.s
	a, missed, err := src.gather(ctx)
	switch {
	case ctx.Err() != nil: // it lacks what it was too late for
	case err != nil:
		s.c.Log.Error("gather what pods use", "endpoint", src.endpoint, "err", err)
	default:
		g.answer = a
		s.c.Gathered(src.endpoint, s.c.Clock.Since(g.began), missed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx != nil && src.last == g {
		left := maxAge - s.c.Clock.Since(g.began)
		if g.answer == nil || left <= 0 {
			src.forget(g)
		} else {
			g.expire = s.c.Clock.AfterFunc(left, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				if src.last == g {
					src.last = nil
				}
			})
		}
	}
	close(g.done)
}
