package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// bodyLimit is above what the API server accepts of an object, 3 MiB.
	bodyLimit = 4 << 20
	// reviewsAtOnce bounds the memory that bodies take, with bodyLimit.
	reviewsAtOnce = 16
	// turnTimeout is how long a question waits for its turn: longer than the API server
	// does.
	turnTimeout = 3 * time.Second
)

// The paths at which is asked about the pods of each scope.
const (
	selectingPath   = "/pods"
	inNamespacePath = "/namespaced-pods"
)

// reviews answers the API server's questions. Whoever reaches it may ask: what it tells
// follows from the question, and it keeps nothing.
type reviews struct {
	rules    func() Rules
	defaults func() Defaults
	turns    chan struct{}
	log      *slog.Logger
}

func newReviews(rules func() Rules, defaults func() Defaults, log *slog.Logger) http.Handler {
	rs := &reviews{
		rules:    rules,
		defaults: defaults,
		turns:    make(chan struct{}, reviewsAtOnce),
		log:      log,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+selectingPath, rs.serve(Selecting))
	mux.HandleFunc("POST "+inNamespacePath, rs.serve(InNamespace))
	return mux
}

func (rs *reviews) serve(scope Scope) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		turn := time.NewTimer(turnTimeout)
		defer turn.Stop()
		select {
		case rs.turns <- struct{}{}:
			defer func() { <-rs.turns }()
		case <-turn.C:
			http.Error(w, "too many questions at once", http.StatusServiceUnavailable)
			return
		case <-r.Context().Done():
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		answer, err := rs.answer(body, scope)
		if err != nil {
			rs.log.Debug("a question about a pod cannot be answered", "err", err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // a caller who has gone is no error of ours
	}
}

// answer is the answer to a question, both AdmissionReviews in JSON.
func (rs *reviews) answer(body []byte, scope Scope) ([]byte, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("read the AdmissionReview: %w", err)
	}
	asked := review.Request
	if asked == nil || review.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview") {
		return nil, errors.New("this is no AdmissionReview of admission.k8s.io/v1 with a request")
	}
	response := &admissionv1.AdmissionResponse{UID: asked.UID, Allowed: true}
	if asked.Operation == admissionv1.Create && asked.SubResource == "" &&
		asked.Resource == (metav1.GroupVersionResource{Version: "v1", Resource: "pods"}) {
		var pod corev1.Pod
		if err := json.Unmarshal(asked.Object.Raw, &pod); err != nil {
			return nil, fmt.Errorf("read the pod: %w", err)
		}
		patch, warnings := rs.rules().Patch(&pod, scope, rs.defaults())
		response.Warnings = warnings
		if len(patch) > 0 {
			var err error
			if response.Patch, err = json.Marshal(patch); err != nil {
				return nil, fmt.Errorf("write the patch: %w", err)
			}
			kind := admissionv1.PatchTypeJSONPatch
			response.PatchType = &kind
			rs.log.Debug("a pod is changed before it is made", "pod", asked.Namespace+"/"+nameOf(&pod), "operations", len(patch))
		}
	}
	return json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}

// nameOf is what a pod is called before it has a name.
func nameOf(pod *corev1.Pod) string {
	if pod.Name == "" {
		return pod.GenerateName
	}
	return pod.Name
}
