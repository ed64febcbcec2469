package admission

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/deploy"
)

// nano has one pod on a nano of the local cloud.
func nano(_ context.Context, pod types.UID) (Machine, bool, error) {
	if pod == "lost" {
		return Machine{}, false, errors.New("the store does not answer")
	}
	return Machine{Type: "nano", MilliCPU: 250, MemoryBytes: 192 << 20}, pod == "ours", nil
}

// resizing is a question about a resize of a pod's spec.
func resizing(uid, before, after string) string {
	object := func(spec string) string { return `{"metadata":{"name":"p","uid":"` + uid + `"},"spec":` + spec + `}` }
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","operation":"UPDATE","subResource":"resize",` +
		`"resource":{"version":"v1","resource":"pods"},"namespace":"a","object":` + object(after) + `,"oldObject":` + object(before) + `}}`
}

func TestAResizeBeyondTheMachineIsRefused(t *testing.T) {
	container := func(cpu, memory string) string {
		return `{"resources":{"requests":{"cpu":"` + cpu + `","memory":"` + memory + `"},"limits":{"cpu":"100"}}}`
	}
	one := func(cpu, memory string) string { return `{"containers":[` + container(cpu, memory) + `]}` }
	small := one("100m", "64Mi")
	for says, c := range map[string]struct {
		uid, before, after string
		refusal            string // what it says, "" for none
	}{
		"within the machine":          {"ours", small, one("250m", "192Mi"), ""},
		"more CPU":                    {"ours", small, one("100", "64Mi"), "cpu, requested: 100, available: 250m"},
		"more memory":                 {"ours", small, one("100m", "193Mi"), "memory, requested: 193Mi, available: 192Mi"},
		"both":                        {"ours", small, one("251m", "1Ti"), "cpu, requested: 251m, available: 250m; memory, requested: 1Ti"},
		"more of all containers":      {"ours", small, `{"containers":[` + container("200m", "1Mi") + "," + container("100m", "1Mi") + `]}`, "cpu, requested: 300m"},
		"more of a sidecar":           {"ours", small, `{"containers":[` + container("200m", "1Mi") + `],"initContainers":[{"restartPolicy":"Always","resources":{"requests":{"cpu":"100m"}}}]}`, "cpu, requested: 300m"},
		"an init container that ends": {"ours", small, `{"containers":[` + container("200m", "1Mi") + `],"initContainers":[{"resources":{"requests":{"cpu":"100m"}}}]}`, ""},
		"with overhead":               {"ours", small, `{"containers":[` + container("200m", "1Mi") + `],"overhead":{"cpu":"100m"}}`, "cpu, requested: 300m"},
		"of the pod as a whole":       {"ours", small, `{"containers":[` + container("1m", "1Mi") + `],"resources":{"requests":{"cpu":"2"}}}`, "cpu, requested: 2"},
		"a limit alone":               {"ours", `{"containers":[{"resources":{"requests":{"cpu":"1m"}}}]}`, `{"containers":[{"resources":{"requests":{"cpu":"1m"},"limits":{"cpu":"9"}}}]}`, ""},
		"what it had":                 {"ours", one("8", "1Gi"), one("8", "1Gi"), ""},
		"a pod of another node":       {"another's", small, one("100", "1Ti"), ""},
		"a machine that is unknown":   {"lost", small, one("100", "1Ti"), ""},
	} {
		w := serve(handler(), http.MethodPost, "/resizes", strings.NewReader(resizing(c.uid, c.before, c.after)))
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK || review.Response.Patch != nil {
			t.Errorf("%s: %d, %v: %s", says, w.Code, err, w.Body)
			continue
		}
		if r := review.Response; r.Allowed != (c.refusal == "") {
			t.Errorf("%s: allowed: %t, %+v", says, r.Allowed, r.Result)
		} else if !r.Allowed && (r.Result.Code != http.StatusForbidden || !strings.Contains(r.Result.Message, c.refusal) ||
			!strings.Contains(r.Result.Message, "(nano)") || r.Result.Details.Causes[0].Type != "NodeCapacity") {
			t.Errorf("%s: refused with %+v, want %q", says, r.Result, c.refusal)
		}
	}
}

// The API server waits timeoutSeconds. A resize whose machine cannot be read is answered before, and so is a pod that is to
// be made meanwhile.
func TestAMachineThatIsNotReadHoldsUpNobodyForLong(t *testing.T) {
	var waits time.Duration
	for _, found := range regexp.MustCompile(`timeoutSeconds: (\d+)`).FindAllSubmatch(deploy.Webhook, -1) {
		seconds, err := strconv.Atoi(string(found[1]))
		if err != nil {
			t.Fatal(err)
		}
		if s := time.Duration(seconds) * time.Second; waits == 0 || s < waits {
			waits = s
		}
	}
	synctest.Test(t, func(t *testing.T) {
		h := newReviews(rules, func() Defaults { return UpstreamDefaults }, func(ctx context.Context, _ types.UID) (Machine, bool, error) {
			<-ctx.Done()
			return Machine{}, false, ctx.Err()
		}, Profiles{}, Sets{}, time.Hour, slog.New(slog.DiscardHandler))
		began := time.Now()
		var all sync.WaitGroup
		ask := func(says, path, body string) {
			all.Go(func() {
				w := serve(h, http.MethodPost, path, strings.NewReader(body))
				var review admissionv1.AdmissionReview
				if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK || !review.Response.Allowed {
					t.Errorf("%s: %d, %v: %s", says, w.Code, err, w.Body)
				}
				if took := time.Since(began); took >= waits {
					t.Errorf("%s is answered after %v, and the API server waits %v", says, took, waits)
				}
			})
		}
		for range reviewsAtOnce {
			ask("a resize", resizesPath, resizing("ours", "{}", `{"containers":[{"resources":{"requests":{"cpu":"1"}}}]}`))
		}
		synctest.Wait()
		ask("a pod that is made", selectingPath, asking(podForKip))
		all.Wait()
	})
}

// Nobody is asked about what is no resize, and a forged one takes little memory and time.
func TestAForgedResizeIsLeftAlone(t *testing.T) {
	asked := false
	h := newReviews(rules, func() Defaults { return UpstreamDefaults }, func(context.Context, types.UID) (Machine, bool, error) {
		asked = true
		return Machine{}, false, nil
	}, Profiles{}, Sets{}, time.Minute, slog.New(slog.DiscardHandler))
	many := `{"containers":[` + strings.Repeat("{},", bodyLimit/4) + `{}]}`
	for says, c := range map[string]struct {
		body string
		code int
	}{
		"another subresource": {strings.Replace(resizing("ours", "{}", "{}"), `"resize"`, `"status"`, 1), 200},
		"a pod that is made":  {asking(`{"spec":{}}`), 200},
		"many containers":     {resizing("ours", "{}", many), 200},
		"an exponent":         {resizing("ours", "{}", `{"containers":[{"resources":{"requests":{"cpu":"1e-999999999"}}}]}`), 400},
		"no pod":              {resizing("ours", "[]", "[]"), 400},
	} {
		var code int
		if took := allocated(func() {
			w := serve(h, http.MethodPost, "/resizes", strings.NewReader(c.body))
			code = w.Code
		}); took > 12*bodyLimit {
			t.Errorf("%s: %d MiB", says, took>>20)
		}
		if code != c.code || asked {
			t.Errorf("%s: %d, want %d; asked about a machine: %t", says, code, c.code, asked)
		}
	}
}
