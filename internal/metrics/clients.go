package metrics

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/elotl/kip/internal/store"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/workqueue"
)

// WorkqueueProvider returns what measures the work queues that it is given to, in
// workqueue.TypedRateLimitingQueueConfig with a name.
func (m *Metrics) WorkqueueProvider() workqueue.MetricsProvider { return queues{m} }

type queues struct{ m *Metrics }

var _ workqueue.MetricsProvider = queues{}

func (q queues) NewDepthMetric(name string) workqueue.GaugeMetric {
	return q.m.queueDepth.WithLabelValues(name)
}

func (q queues) NewAddsMetric(name string) workqueue.CounterMetric {
	return q.m.queueAdds.WithLabelValues(name)
}

func (q queues) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return q.m.queueLatency.WithLabelValues(name)
}

func (q queues) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return q.m.queueWork.WithLabelValues(name)
}

func (q queues) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.m.queueUnfinished.WithLabelValues(name)
}

func (q queues) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.m.queueLongest.WithLabelValues(name)
}

func (q queues) NewRetriesMetric(name string) workqueue.CounterMetric {
	return q.m.queueRetries.WithLabelValues(name)
}

// WrapTransport returns what measures the requests of a client of the API server:
// give it to rest.Config.Wrap. The name tells as whom the client asks, such as kip
// or node.
func (m *Metrics) WrapTransport(client string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return &requests{next, client, m} }
}

type requests struct {
	next   http.RoundTripper
	client string
	m      *Metrics
}

// client-go looks below it for what it has to close.
var _ utilnet.RoundTripperWrapper = (*requests)(nil)

func (r *requests) WrappedRoundTripper() http.RoundTripper { return r.next }

func (r *requests) RoundTrip(request *http.Request) (*http.Response, error) {
	verb := verbOf(request)
	began := r.m.cfg.Clock.Now()
	response, err := r.next.RoundTrip(request)
	r.m.restDuration.WithLabelValues(r.client, verb).Observe(r.m.cfg.Clock.Since(began).Seconds())
	code := codeError
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	r.m.restRequests.WithLabelValues(r.client, verb, code).Inc()
	return response, err
}

func verbOf(r *http.Request) string {
	switch r.Method {
	case "", http.MethodGet:
		if strings.Contains(r.URL.RawQuery, "watch=true") || strings.Contains(r.URL.RawQuery, "watch=1") {
			return "WATCH"
		}
		return http.MethodGet
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return r.Method
	}
	return other
}

// StoreObserver is told of each write to the store: what it was (put, delete,
// apply), how long it took, and how it ended.
func (m *Metrics) StoreObserver(operation string, took time.Duration, err error) {
	switch operation {
	case "put", "delete", "apply":
	default:
		operation = other
	}
	result := resultSuccess
	switch {
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotLeader):
		result = resultConflict
	case err != nil:
		result = resultError
	}
	m.storeWrites.WithLabelValues(operation, result).Observe(took.Seconds())
}
