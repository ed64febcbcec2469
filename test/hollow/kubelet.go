package hollow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// requestTimeout bounds each request but watches.
	requestTimeout = 30 * time.Second
	// leaseSeconds is the lease's duration that Kip configures.
	leaseSeconds = 40
	// jitter is the part of an interval that it is longer at random, so that
	// many cells do not report at once; the kubelet's own for its lease.
	jitter = 0.04
	// maxAnswer bounds what is read of an answer, several times a large pod.
	maxAnswer = 4 << 20
)

// job is one thing that a kubelet does later.
type job int

const (
	renewing   job = iota
	reporting      // the node
	stepping       // the pod's next step
	retrying       // the pod's report
	refreshing     // the pod's token
	jobs
)

// kubelet is the part of a cell that speaks to the cell API, for one life of its
// agent. Beside its watch it has no goroutine that waits: what it does later, a
// timer starts.
type kubelet struct {
	m     *machine
	kip   http.RoundTripper
	clock clock.WithDelayedExecution
	ctx   context.Context // of this life

	// reports holds a value while the pod is reported: once at a time. A mutex
	// that is held over a request would block a bubble of testing/synctest.
	reports chan struct{}

	mu       sync.Mutex
	timers   [jobs]clock.Timer
	ended    bool
	tasks    sync.WaitGroup
	nodeName string
	leaseUID types.UID // of the lease that this kubelet knows
}

func newKubelet(ctx context.Context, m *machine, kip http.RoundTripper) *kubelet {
	return &kubelet{
		m:       m,
		kip:     kip,
		clock:   m.fleet.cfg.Clock,
		ctx:     ctx,
		reports: make(chan struct{}, 1),
	}
}

// run is the kubelet's life, until its context ends.
func (k *kubelet) run() {
	defer k.stop()
	select {
	case <-k.m.arrived:
	case <-k.ctx.Done():
		return
	}
	k.m.mu.Lock()
	k.nodeName = k.m.config.NodeName
	k.m.mu.Unlock()
	if k.whole() {
		for _, w := range otherWatches() {
			k.spawn(func() { k.follow(k.ctx, w, nil) })
		}
		k.createNode()
	}
	for k.register() != nil {
		if !k.pause() {
			return
		}
	}
	if k.whole() {
		k.spawn(k.announceNode)
		k.createCSINode()
		k.createLease()
	}
	k.renew()
	k.later(reporting, k.m.fleet.cfg.NodeInterval, k.report)
	k.resume()
	pods := podWatch{k: k}
	k.follow(k.ctx, podsWatch, pods.see)
}

func (k *kubelet) whole() bool { return k.m.fleet.cfg.Whole }

// pause waits before a retry.
func (k *kubelet) pause() bool { return sleep(k.ctx, k.clock, retryAfter) }

// later does f after d, instead of what was planned under the same name.
func (k *kubelet) later(j job, d time.Duration, f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return
	}
	if t := k.timers[j]; t != nil {
		t.Stop()
	}
	// Not at once: a simulated clock calls what is due while it is locked.
	k.timers[j] = k.clock.AfterFunc(d, func() { go k.spawn(f) })
}

// never takes back what is planned.
func (k *kubelet) never(j job) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.timers[j]; t != nil {
		t.Stop()
		k.timers[j] = nil
	}
}

// spawn does f in a goroutine of the kubelet's.
func (k *kubelet) spawn(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ended {
		k.tasks.Go(f)
	}
}

// stop ends the kubelet, whose context has ended.
func (k *kubelet) stop() {
	k.mu.Lock()
	k.ended = true
	for j, t := range k.timers {
		if t != nil {
			t.Stop()
			k.timers[j] = nil
		}
	}
	k.mu.Unlock()
	k.tasks.Wait()
}

// jittered is d and a little more.
func jittered(d time.Duration) time.Duration {
	return d + time.Duration(rand.Float64()*jitter*float64(d))
}

// answerError is an answer that is not a success.
type answerError struct {
	code int
	text string
}

func (e *answerError) Error() string {
	return fmt.Sprintf("the cell API answered %d: %s", e.code, e.text)
}

// refused returns the code of the answer that err is, or 0.
func refused(err error) int {
	var a *answerError
	if errors.As(err, &a) {
		return a.code
	}
	return 0
}

const (
	mergePatch = string(types.StrategicMergePatchType)
	jsonBody   = "application/json"
)

// userAgents are as long as client-go makes them.
var userAgents = map[string]string{
	byKubelet:   "kubelet/v0.0.0 (linux/" + runtime.GOARCH + ") kubernetes/hollow0",
	byKubeProxy: "kube-proxy/v0.0.0 (linux/" + runtime.GOARCH + ") kubernetes/hollow0",
}

// send sends a request of one of the cell's parts. The caller closes the body of
// the answer, which is a success if there is no error.
func (k *kubelet) send(ctx context.Context, by, accept, method, path string, query url.Values, mediaType string,
	body any) (*http.Response, error) {
	req := (&http.Request{
		Method: method, Header: http.Header{"Accept": {accept}, "User-Agent": {userAgents[by]}, "Accept-Encoding": {"gzip"}},
		URL: &url.URL{
			Scheme:   "https",
			Host:     "kip",
			Path:     path,
			RawQuery: query.Encode(),
		},
	}).WithContext(ctx)
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("%s %s: encode the body: %w", method, path, err)
		}
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		req.Header["Content-Type"] = []string{mediaType}
	}
	resp, err := k.kip.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // as much as there is
	return nil, fmt.Errorf("%s %s: %w", method, path, &answerError{resp.StatusCode, string(text)})
}

// ask sends a request of the kubelet's and reads the answer into into, unless that
// is nil.
func (k *kubelet) ask(ctx context.Context, method, path, mediaType string, body, into any) error {
	return k.askAs(ctx, byKubelet, method, path, mediaType, body, into)
}

func (k *kubelet) askAs(ctx context.Context, by, method, path, mediaType string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := k.send(ctx, by, jsonBody, method, path, nil, mediaType, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer := io.LimitReader(resp.Body, maxAnswer)
	if into == nil {
		_, err = io.Copy(io.Discard, answer)
	} else {
		err = json.NewDecoder(answer).Decode(into)
	}
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return nil
}

// hollowDigest is as long as one.
const hollowDigest = "0000000000000000000000000000000000000000000000000000000000000000"

func (k *kubelet) nodePath() string { return "/api/v1/nodes/" + k.nodeName }

// register reads the node and reports it.
func (k *kubelet) register() error {
	if err := k.ask(k.ctx, http.MethodGet, k.nodePath(), "", nil, nil); err != nil {
		k.m.log.Debug("node not read", "err", err)
		return err
	}
	if k.whole() {
		if err := k.labelNode(); err != nil {
			k.m.log.Debug("node not labelled", "err", err)
			return err
		}
	}
	return k.reportNode()
}

// report reports the node, and goes on to.
func (k *kubelet) report() {
	defer k.later(reporting, jittered(k.m.fleet.cfg.NodeInterval), k.report)
	_ = k.reportNode() // is logged, and the next is soon
}

// reportNode patches the node's status. Capacity stays what Kip said it is.
func (k *kubelet) reportNode() error {
	now := metav1.NewTime(k.clock.Now().Truncate(time.Second))
	condition := func(t corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type:               t,
			Status:             status,
			Reason:             reason,
			Message:            message,
			LastHeartbeatTime:  now,
			LastTransitionTime: now,
		}
	}
	ready := condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
	if k.m.faults.NeverReady {
		ready = condition(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "container runtime network not ready")
	}
	patch := map[string]any{"status": map[string]any{
		"conditions": []corev1.NodeCondition{
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
			ready,
		},
		"nodeInfo": corev1.NodeSystemInfo{
			MachineID:               k.m.instanceID,
			SystemUUID:              k.m.instanceID,
			BootID:                  k.m.instanceID,
			KernelVersion:           "0.0.0-hollow",
			OSImage:                 "a hollow cell",
			KubeletVersion:          "v0.0.0-hollow",
			ContainerRuntimeVersion: "hollow://0",
			OperatingSystem:         "linux",
			Architecture:            runtime.GOARCH,
		},
		"daemonEndpoints": corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		// Of two images, one of them the pod's, whether it is there yet or not.
		"images": []corev1.ContainerImage{
			{Names: []string{"kip.elotl.co/pause@sha256:" + hollowDigest, "kip.elotl.co/pause:1"}, SizeBytes: 300 << 10},
			{Names: []string{"registry.example/hollow@sha256:" + hollowDigest, "registry.example/hollow:1"}, SizeBytes: 1 << 20},
		},
		"runtimeHandlers": []corev1.NodeRuntimeHandler{
			{Features: &corev1.NodeRuntimeHandlerFeatures{}},
			{Name: "runc", Features: &corev1.NodeRuntimeHandlerFeatures{}},
		},
	}}
	if err := k.ask(k.ctx, http.MethodPatch, k.nodePath()+"/status", mergePatch, patch, nil); err != nil {
		k.m.log.Debug("node not reported", "err", err)
		return err
	}
	return nil
}

// renew renews the lease, and goes on to.
func (k *kubelet) renew() {
	defer k.later(renewing, jittered(k.m.fleet.cfg.LeaseInterval), k.renew)
	seconds, now := int32(leaseSeconds), metav1.NewMicroTime(k.clock.Now())
	// What does not exist, the cell API makes: one request for both.
	lease := coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: k.nodeName, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &k.nodeName, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	var stored struct{ Metadata struct{ UID types.UID } }
	path := leasesPath + "/" + k.nodeName
	if err := k.ask(k.ctx, http.MethodPut, path, jsonBody, lease, &stored); err != nil {
		k.m.log.Debug("lease not renewed", "err", err)
		return
	}
	k.mu.Lock()
	isNew := k.leaseUID != "" && k.leaseUID != stored.Metadata.UID
	k.leaseUID = stored.Metadata.UID
	k.mu.Unlock()
	if isNew {
		// Another Kip, which has neither lease nor conditions of before, and
		// wants the node read before it is reported. A kubelet sees that by its
		// watch of the node.
		if k.register() != nil {
			k.mu.Lock()
			k.leaseUID = unknownLease // the next renewal tries again
			k.mu.Unlock()
		}
	}
}

// unknownLease is the UID of no lease.
const unknownLease types.UID = "unknown"

// errRelist says that a watch cannot go on from where it was.
var errRelist = errors.New("the watch begins anew")

// follow watches until its context ends: at first, and when it must, from the
// objects on, which a bookmark ends, else from where it was. see may be nil.
func (k *kubelet) follow(ctx context.Context, w watch, see func(watched) error) {
	version := ""
	for ctx.Err() == nil {
		began := k.clock.Now()
		err := k.watch(ctx, w, &version, see)
		switch {
		case err == nil && k.clock.Since(began) >= retryAfter:
			continue // its time was over
		case err == nil:
			k.m.log.Debug("watch ended at once", "path", w.path)
		case errors.Is(err, errRelist), refused(err) == http.StatusGone, refused(err) == http.StatusGatewayTimeout:
			version = ""
		case refused(err) == 0, refused(err) == http.StatusTooManyRequests:
			// Not connected, or told to repeat: from where it was.
			k.m.log.Debug("watch broke off", "path", w.path, "err", err)
		default:
			k.m.log.Debug("not watched", "path", w.path, "err", err)
		}
		if !sleep(ctx, k.clock, retryAfter) {
			return
		}
	}
}

// watch is one request of follow.
func (k *kubelet) watch(ctx context.Context, w watch, version *string, see func(watched) error) error {
	if see == nil {
		see = func(watched) error { return nil }
	}
	q := w.query(k.nodeName)
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	// As long as client-go's: 5 to 10 minutes.
	q.Set("timeoutSeconds", strconv.Itoa(300+rand.IntN(300)))
	if *version == "" {
		q.Set("sendInitialEvents", "true")
		q.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
	} else {
		q.Set("resourceVersion", *version)
	}
	resp, err := k.send(ctx, w.by, w.accept(), http.MethodGet, w.path, q, "", nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	// Until the objects have all come, the next request must ask for them again.
	complete := *version != ""
	if !complete {
		if err := see(watched{Type: listing}); err != nil {
			return err
		}
	}
	in := newEvents(resp.Body, w.protobuf)
	defer in.release()
	for {
		e, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", w.path, err)
		}
		if e.Type == "ERROR" {
			return fmt.Errorf("watch %s: %q: %w", w.path, e.Object, errRelist)
		}
		if e.initialEnd {
			complete, e.Type = true, listed
		}
		if err := see(e); err != nil {
			return err
		}
		if complete {
			*version = e.version
		}
	}
}

// listing and listed are types, of follow only, of what comes before and after the
// objects that a watch begins with.
const listing, listed = "LISTING", "LISTED"
