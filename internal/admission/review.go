package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/sources"
	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/hostports"
)

const (
	// bodyLimit is above what the API server accepts of an object, 3 MiB.
	bodyLimit = 4 << 20
	// bodyTimeout is how long a body may take to come: half of what the API server waits.
	bodyTimeout = time.Second
	// bodiesAtOnce bounds the memory that bodies take, with bodyLimit, and bodiesOfOne
	// what one source has of it: a body of the API server is here in no time.
	bodiesAtOnce, bodiesOfOne = 32, 4
	// reviewsAtOnce bounds the memory that reading them takes, which is several times as
	// much.
	reviewsAtOnce = 2
	// questionsAtOnce bounds how many ask the API server at the same time to be answered, and questionsOfOne those of one source.
	questionsAtOnce, questionsOfOne = 8, 2
	// turnTimeout is how long a question waits for its turns: longer than the API server
	// does.
	turnTimeout = 3 * time.Second
)

// The paths at which is asked about the pods of each scope, about resizes, and about DaemonSets.
const (
	selectingPath   = "/pods"
	inNamespacePath = "/namespaced-pods"
	profiledPath    = "/profiled-pods"
	resizesPath     = "/resizes"
	bindingsPath    = "/bindings"
	daemonSetsPath  = "/daemonsets"
)

// Scopes of pods that are made already.
const (
	// Resizing: pods that are on a node.
	Resizing Scope = "resizing"
	// Binding: pods that are bound to a node.
	Binding Scope = "binding"
)

// reviews answers the API server's questions. Whoever reaches it may ask: what it tells
// follows from the question, or is the size of the machine of a pod whose UID is known, and
// it keeps nothing.
type reviews struct {
	rules    func() Rules
	defaults func() Defaults
	machines Machines
	profiles Profiles
	sets     Sets
	bodies   *keyed.Places[sources.Source]
	asking   *keyed.Places[sources.Source]
	turns    *semaphore.Weighted
	patience time.Duration
	log      *slog.Logger
}

func newReviews(rules func() Rules, defaults func() Defaults, machines Machines, profiles Profiles, sets Sets, patience time.Duration,
	log *slog.Logger) http.Handler {
	rs := &reviews{
		rules:    rules,
		defaults: defaults,
		machines: machines,
		profiles: profiles,
		sets:     sets,
		bodies:   keyed.NewPlaces[sources.Source](bodiesAtOnce, bodiesOfOne),
		asking:   keyed.NewPlaces[sources.Source](questionsAtOnce, questionsOfOne),
		turns:    semaphore.NewWeighted(reviewsAtOnce),
		patience: patience,
		log:      log,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+selectingPath, rs.serve(Selecting))
	mux.HandleFunc("POST "+inNamespacePath, rs.serve(InNamespace))
	mux.HandleFunc("POST "+profiledPath, rs.serve(Profiled))
	mux.HandleFunc("POST "+resizesPath, rs.serve(Resizing))
	mux.HandleFunc("POST "+bindingsPath, rs.serve(Binding))
	mux.HandleFunc("POST "+daemonSetsPath, rs.serve(Templates))
	return mux
}

func (rs *reviews) serve(scope Scope) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), rs.patience)
		defer cancel()
		from := sources.Of(r.RemoteAddr)
		leave, err := rs.bodies.Take(ctx, from)
		if err != nil {
			http.Error(w, "too many questions at once", http.StatusServiceUnavailable)
			return
		}
		defer leave()
		body, err := read(w, r)
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		case err != nil:
			http.Error(w, "the question did not come: "+err.Error(), http.StatusRequestTimeout)
			return
		}
		// Who has gone is not answered: the context has ended.
		mine := turn{turns: rs.turns, asking: rs.asking, from: from}
		if err := mine.take(ctx); err != nil {
			http.Error(w, "too many questions at once", http.StatusServiceUnavailable)
			return
		}
		defer mine.leave()
		asks := *rs
		asks.profiles = rs.profiles.around(mine.aside)
		answer, err := asks.answer(ctx, body, scope)
		if err != nil {
			rs.log.Debug("a question about a pod cannot be answered", "err", err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // a caller who has gone is no error of ours
	}
}

// turn is that of one question among those that are read at once.
type turn struct {
	turns  *semaphore.Weighted
	asking *keyed.Places[sources.Source]
	from   sources.Source
	held   bool
}

func (t *turn) take(ctx context.Context) error {
	err := t.turns.Acquire(ctx, 1)
	t.held = err == nil
	return err
}

func (t *turn) leave() {
	if t.held {
		t.turns.Release(1)
		t.held = false
	}
}

// aside has the API server asked while others have the turn, since its answer may take long.
func (t *turn) aside(ctx context.Context, ask func() error) error {
	t.leave()
	leave, err := t.asking.Take(ctx, t.from)
	if err == nil {
		err = ask()
		leave()
	}
	if again := t.take(ctx); again != nil {
		return again
	}
	return err
}

// read returns a body that comes in time.
func read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	if err != nil {
		return nil, err
	}
	return body, control.SetReadDeadline(time.Time{}) // else the context ends then
}

// answer is the answer to a question, both AdmissionReviews in JSON.
func (rs *reviews) answer(ctx context.Context, body []byte, scope Scope) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var review question
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("read the AdmissionReview: %w", err)
	}
	asked := review.Request
	if asked == nil || review.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview") {
		return nil, errors.New("this is no AdmissionReview of admission.k8s.io/v1 with a request")
	}
	response := &admissionv1.AdmissionResponse{UID: asked.UID, Allowed: true}
	ofPods := asked.Resource == (metav1.GroupVersionResource{Version: "v1", Resource: "pods"})
	var err error
	what := "the pod"
	switch {
	case asked.Resource == daemonSetsResource && scope == Templates && asked.SubResource == "" &&
		(asked.Operation == admissionv1.Create || asked.Operation == admissionv1.Update):
		what = "the DaemonSet"
		err = rs.fit(response, asked.Object, asked.Namespace)
	case ofPods && scope == Resizing && asked.Operation == admissionv1.Update && asked.SubResource == "resize":
		err = rs.resizeOf(ctx, response, asked.Object, asked.OldObject)
	case ofPods && scope == Binding && asked.Operation == admissionv1.Create && asked.SubResource == "binding":
		err = rs.bound(ctx, response, asked.Object, asked.Namespace)
	case ofPods && scope == Profiled && asked.Operation == admissionv1.Create && asked.SubResource == "":
		err = rs.profiled(ctx, response, asked.Object, asked.Namespace)
	case ofPods && (scope == Selecting || scope == InNamespace) && asked.Operation == admissionv1.Create && asked.SubResource == "":
		err = rs.made(ctx, response, asked.Object, asked.Namespace, scope)
	}
	var tooMany *tooManyError
	if errors.As(err, &tooMany) {
		response.Warnings = []string{"Kip leaves " + what + " as it is: " + tooMany.Error()}
	} else if err != nil {
		return nil, err
	}
	return json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}

// made answers about a pod that is to be made.
func (rs *reviews) made(ctx context.Context, response *admissionv1.AdmissionResponse, object []byte, namespace string, scope Scope) error {
	pod, host, err := podOf(object)
	if err != nil {
		return fmt.Errorf("read the pod: %w", err)
	}
	return rs.patch(ctx, response, pod, host, namespace, scope)
}

// patch adds to a response what is to be changed of a pod.
func (rs *reviews) patch(ctx context.Context, response *admissionv1.AdmissionResponse, pod *corev1.Pod, host ofHost, namespace string,
	scope Scope) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rules := rs.rules()
	patch, warnings := rules.Patch(pod, scope, rs.defaults())
	if rules.takes(pod, scope) {
		hidden, warned := host.patch(hostports.NewMark())
		patch, warnings = append(patch, hidden...), append(warnings, warned...)
	}
	response.Warnings = warnings
	return rs.change(response, patch, pod, namespace)
}

// profiled answers about a pod that is to be made, and that a profile may choose.
func (rs *reviews) profiled(ctx context.Context, response *admissionv1.AdmissionResponse, object []byte, namespace string) error {
	pod, host, err := podOf(object)
	if err != nil {
		return fmt.Errorf("read the pod: %w", err)
	}
	says, err := saidBy(object)
	if err != nil {
		return fmt.Errorf("read the pod: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	rules := rs.rules()
	p, err := rs.profiles.of(ctx, candidate{pod: pod, namespace: namespace, says: says, forKip: rules.forKip(&pod.Spec)})
	if err != nil {
		rs.log.Warn("failed to choose a profile for a pod; it is made as it is", "pod", namespace+"/"+nameOf(pod), "err", err)
		response.Warnings = []string{"Kip leaves the pod as it is, whatever its profiles say: " + err.Error()}
		return nil
	}
	if p == nil {
		return nil
	}
	patch, warnings := rules.PatchProfiled(pod, says.shape, p, rs.defaults())
	if rules.toKip(pod, p) {
		hidden, warned := host.patch(hostports.NewMark())
		patch, warnings = append(patch, hidden...), append(warnings, warned...)
	}
	response.Warnings = warnings
	return rs.change(response, patch, pod, namespace)
}

// change adds to a response what is to be changed of a pod.
func (rs *reviews) change(response *admissionv1.AdmissionResponse, patch []Operation, pod *corev1.Pod, namespace string) error {
	if len(patch) > 0 {
		rs.log.Debug("a pod is changed before it is made", "pod", namespace+"/"+nameOf(pod), "operations", len(patch))
	}
	return respond(response, patch)
}

// respond adds a patch to a response.
func respond(response *admissionv1.AdmissionResponse, patch []Operation) error {
	if len(patch) == 0 {
		return nil
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("write the patch: %w", err)
	}
	kind := admissionv1.PatchTypeJSONPatch
	response.Patch, response.PatchType = text, &kind
	return nil
}

// nameOf is what a pod is called before it has a name.
func nameOf(pod *corev1.Pod) string {
	if pod.Name == "" {
		return pod.GenerateName
	}
	return pod.Name
}
