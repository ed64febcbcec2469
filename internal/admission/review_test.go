package admission

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
)

// asking is a question about a pod that is to be made.
func asking(pod string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","operation":"CREATE",` +
		`"resource":{"version":"v1","resource":"pods"},"namespace":"a","object":` + pod + `}}`
}

const podForKip = `{"metadata":{"generateName":"p-"},"spec":{"nodeSelector":{"type":"virtual-kubelet","karpenter.sh/capacity-type":"spot"}}}`

// serve returns the answer to a request.
func serve(h http.Handler, method, path string, body io.Reader) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(patient{w}, httptest.NewRequest(method, path, body))
	return w
}

// patient has bodies that are there already.
type patient struct{ *httptest.ResponseRecorder }

func (patient) SetReadDeadline(time.Time) error { return nil }

func handler() http.Handler {
	return newReviews(rules, func() Defaults { return UpstreamDefaults }, nano, Profiles{}, Sets{}, time.Minute, slog.New(slog.DiscardHandler))
}

func TestQuestionsAreAnswered(t *testing.T) {
	const any = `{"spec":{}}`
	for _, c := range []struct {
		says, path, body string
		patch            string // what it has, "" for none
	}{
		{"a pod for Kip", "/pods", asking(podForKip), "pod.elotl.co/launch-type"},
		{"another pod", "/pods", asking(any), ""},
		{"a pod of a namespace of Kip's", "/namespaced-pods", asking(any), "/spec/nodeSelector"},
		{"what becomes of a pod", "/pods", strings.Replace(asking(podForKip), "CREATE", "UPDATE", 1), ""},
		{"a part of a pod", "/pods", strings.Replace(asking(podForKip), `"namespace"`, `"subResource":"binding","namespace"`, 1), ""},
		{"something else", "/pods", strings.Replace(asking(podForKip), `"pods"`, `"secrets"`, 1), ""},
	} {
		w := serve(handler(), http.MethodPost, c.path, strings.NewReader(c.body))
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK {
			t.Errorf("%s: %d, %v: %s", c.says, w.Code, err, w.Body)
			continue
		}
		r := review.Response
		if r == nil || r.UID != "u-1" || !r.Allowed || review.Kind != "AdmissionReview" || review.APIVersion != "admission.k8s.io/v1" {
			t.Errorf("%s: %s", c.says, w.Body)
			continue
		}
		if got := string(r.Patch); !strings.Contains(got, c.patch) || (c.patch == "") != (r.PatchType == nil) || (c.patch == "") != (got == "") {
			t.Errorf("%s: patch %s, want …%s…", c.says, got, c.patch)
		}
	}
}

func TestBadQuestionsAreRefused(t *testing.T) {
	for _, c := range []struct {
		says, method, path, body string
		want                     int
	}{
		{"a look", http.MethodGet, "/pods", "", http.StatusMethodNotAllowed},
		{"another path", http.MethodPost, "/", asking(podForKip), http.StatusNotFound},
		{"nothing", http.MethodPost, "/pods", "", http.StatusBadRequest},
		{"no question", http.MethodPost, "/pods", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest},
		{"an older one", http.MethodPost, "/pods", strings.Replace(asking(podForKip), "io/v1", "io/v1beta1", 1), http.StatusBadRequest},
		{"no pod", http.MethodPost, "/pods", asking(`[1]`), http.StatusBadRequest},
		{"too much", http.MethodPost, "/pods", asking(`{"x":"` + strings.Repeat("x", bodyLimit) + `"}`), http.StatusRequestEntityTooLarge},
	} {
		if w := serve(handler(), c.method, c.path, strings.NewReader(c.body)); w.Code != c.want {
			t.Errorf("%s: %d, want %d: %.80s", c.says, w.Code, c.want, w.Body)
		}
	}
}
