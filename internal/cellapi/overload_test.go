package cellapi

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/watches"
)

const leaseURL = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + nodeName

func renewal(c *Cell) int {
	body := `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"` + nodeName + `","namespace":"kube-node-lease"}}`
	code, _, _ := do(context.Background(), c, http.MethodPut, leaseURL, "application/json", []byte(body))
	return code
}

func TestACellThatHasSpentAllBudgetsRenewsItsLease(t *testing.T) {
	now := testingclock.NewFakeClock(time.Now())
	h := newHouseAt(t, now)
	c := h.server.AddCell("c1", info)
	for n := 0; ; n++ {
		if code, _, _ := get(t.Context(), c, "/api/v1/nodes/kip-1"); code == http.StatusTooManyRequests {
			break
		}
		if n > 10*askedBurst {
			t.Fatal("no budget of requests")
		}
	}
	c.budget.wrote(now.Now(), answeredBurst)
	c.budget.wrote(now.Now(), answeredBurst)
	for range openRequests {
		if _, err := c.budget.take(false, bodiesHeld/openRequests, 0); err != nil {
			t.Fatal(err)
		}
	}
	before := c.LastHeartbeat()
	now.Step(time.Second / askedRate / 2) // not enough for a request of another kind
	if code := renewal(c); code != http.StatusOK {
		t.Errorf("the renewal is answered with %d", code)
	}
	if code, _, _ := get(t.Context(), c, leaseURL); code != http.StatusTooManyRequests {
		t.Errorf("reading the lease is answered with %d, want 429: it says nothing of the kubelet's life", code)
	}
	if !c.LastHeartbeat().After(before) {
		t.Error("the renewal is no heartbeat")
	}
}

func TestRenewalsHaveABudgetOfTheirOwn(t *testing.T) {
	now := testingclock.NewFakeClock(time.Now())
	h := newHouseAt(t, now)
	c := h.server.AddCell("c1", info)
	for n := range renewBurst {
		if code := renewal(c); code != http.StatusOK {
			t.Fatalf("renewal %d is answered with %d", n, code)
		}
	}
	if code := renewal(c); code != http.StatusTooManyRequests {
		t.Errorf("one more is answered with %d, want 429", code)
	}
	now.Step(time.Minute)
	for range openRenewals {
		if _, err := c.budget.renew(now.Now(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if code := renewal(c); code != http.StatusTooManyRequests {
		t.Errorf("with %d open another is answered with %d, want 429", openRenewals, code)
	}
	large := strings.Repeat(" ", leaseBody+1)
	other := h.server.AddCell("c2", info)
	for _, sized := range []bool{true, false} {
		r := httptest.NewRequest(http.MethodPut, leaseURL, strings.NewReader(large))
		r.Header.Set("Content-Type", "application/json")
		if !sized {
			r.ContentLength = -1
		}
		w := httptest.NewRecorder()
		other.ServeHTTP(w, r)
		if w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%d bytes, their number told: %v, are answered with %d, want 413", len(large), sized, w.Code)
		}
	}
	h.server.RemoveCell("c2")
	if code := renewal(other); code != http.StatusForbidden {
		t.Errorf("a removed cell's renewal is answered with %d, want 403", code)
	}
}

// A connection that breaks costs a watch for each watch: no list, and no object that
// the kubelet has.
func TestAReconnectCostsNoListAndNoObject(t *testing.T) {
	h := newHouse(t)
	const many = 200
	for n := range many {
		h.up.put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("service-%d", n)},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}})
	}
	h.up.put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}})
	m := newMachine(t, "c1")
	c := h.server.AddCell(m.id, info)
	var mu sync.Mutex
	watching := map[string]int{}
	m.http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cell := m.handler.Load()
		if cell == nil {
			// As a cell's own endpoint answers without its tunnel.
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`)
			return
		}
		mu.Lock()
		watching[r.URL.Path]++
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			watching[r.URL.Path]--
		}()
		cell.ServeHTTP(w, r)
	})
	live := h.bindNew(c, podOn("live"))
	m.join(h)
	client := m.kubelet(t)
	core := client.CoreV1().RESTClient()
	// A reflector takes a watch of less than a second for a fault, and waits after one.
	now := testingclock.NewFakeClock(time.Now())
	soon := func(what string, is func() bool) {
		t.Helper()
		eventually(t, what, func() bool { now.Step(2 * time.Second); return is() })
	}
	services, slices := h.server.watches.Of(watches.Services).Kind, h.server.watches.Of(watches.EndpointSlices).Kind
	mirrors := map[string]*mirror{
		"services":       followAt(t, now, core, services, "", fields.Everything()),
		"nodes":          followAt(t, now, core, nodeKind, "", fields.OneTermEqualSelector("metadata.name", nodeName)),
		"pods":           followAt(t, now, core, podKind, "", onNode),
		"configmaps":     followAt(t, now, core, configMapKind, "shop", fields.OneTermEqualSelector("metadata.name", "settings")),
		"endpointslices": followAt(t, now, client.DiscoveryV1().RESTClient(), slices, "", fields.Everything()),
	}
	connected := func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, open := range watching {
			n += open
		}
		return n == len(mirrors)
	}
	soon("all is seen", func() bool {
		for _, m := range mirrors {
			if m.synced() == 0 {
				return false
			}
		}
		return len(mirrors["services"].List()) == many && mirrors["pods"].has("shop/live") && connected()
	})
	// Each has begun to watch after its list only when it has heard of a change.
	for _, o := range []watches.APIObject{
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "service-0"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "service-0", Labels: map[string]string{discoveryv1.LabelServiceName: "service-0"},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		},
		live.DeepCopy(),
		virtual(),
	} {
		labels := map[string]string{"changed": "once"}
		maps.Copy(labels, o.GetLabels())
		o.SetLabels(labels)
		h.up.put(o)
	}
	for name, m := range mirrors {
		soon("a change is seen of "+name, func() bool { return m.changes.Load() > 0 })
	}
	cut := func() {
		t.Helper()
		now.Step(2 * time.Second) // since the last watch began
		m.cut()
		soon("no watch is left", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, open := range watching {
				if open > 0 {
					return false
				}
			}
			return true
		})
	}
	const breaks = 3
	cut() // what a watch was answered is charged when it ends
	first := c.Usage()
	m.join(h)
	soon("all is watched again", connected)
	for range breaks {
		cut()
		h.up.put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "service-0"},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}})
		m.join(h)
		soon("all is watched again", connected)
	}
	cut()
	for name, m := range mirrors {
		if n := m.synced(); n != 1 {
			t.Errorf("%s were listed %d times, want once, at the start", name, n)
		}
	}
	last := c.Usage()
	requests, bytes := float64(last.Requests-first.Requests)/(breaks+1), float64(last.Answered-first.Answered)/(breaks+1)
	t.Logf("the first connection: %d requests, %d bytes; each later one: %.1f requests, %.0f bytes",
		first.Requests, first.Answered, requests, bytes)
	if int(requests) != len(mirrors) {
		t.Errorf("a reconnect costs %.1f requests, want one for each of %d watches", requests, len(mirrors))
	}
	if bytes > 2000 {
		t.Errorf("a reconnect costs %.0f bytes of answers, want the one Service that has changed", bytes)
	}
}

// A request beyond the budget is work too, and its answer waits.
func TestACellBeyondItsBudgetIsHeldUp(t *testing.T) {
	now := testingclock.NewFakeClock(time.Now())
	h := newHouseAt(t, now)
	held := 0
	h.server.overdraw = func(context.Context) { held++ }
	c := h.server.AddCell("c1", info)
	ask := func() int {
		code, _, _ := get(t.Context(), c, "/api/v1/nodes/kip-1")
		return code
	}
	for range askedBurst {
		if code := ask(); code == http.StatusTooManyRequests {
			t.Fatal("refused within its budget")
		}
	}
	if used := c.Usage(); held != 0 || used.Worked != 0 {
		t.Errorf("within its budget %d answers were held, and %v charged", held, used.Worked)
	}
	const beyond = 10
	for range beyond {
		if code := ask(); code != http.StatusTooManyRequests {
			t.Errorf("answered with %d, want 429", code)
		}
	}
	if used := c.Usage(); held != beyond || used.Worked != beyond*refusalCosts {
		t.Errorf("of %d answers %d were held, and %v charged", beyond, held, used.Worked)
	}
	now.Step(time.Minute)
	h.server.RemoveCell("c1")
	if code := ask(); code != http.StatusForbidden || held != beyond {
		t.Errorf("a removed cell: %d, %d answers held", code, held)
	}
}

// Only a notice that comes too soon after another reaches the API. Its agent is to repeat it.
func TestANoticeTooSoonIsChargedAndToBeRepeated(t *testing.T) {
	h := newHouseAt(t, testingclock.NewFakeClock(time.Now()))
	held := 0
	h.server.overdraw = func(context.Context) { held++ }
	c := h.server.AddCell("c1", info)
	code, _, answer := do(t.Context(), c, http.MethodPut, agentapi.PathNotice, "application/json", []byte(`{"kind":"taken-back"}`))
	if code != http.StatusTooManyRequests || !bytes.Contains(answer, []byte("notice")) {
		t.Errorf("answered with %d: %s", code, answer)
	}
	if used := c.Usage(); held != 1 || used.Requests != 1 || used.Refused != 1 || used.Worked != refusalCosts {
		t.Errorf("%d answers were held, and this is charged: %+v", held, used)
	}
	if code, _, _ := do(t.Context(), c, http.MethodPost, agentapi.PathNotice, "application/json", []byte("{}")); code != http.StatusForbidden {
		t.Errorf("what is no notice is answered with %d", code)
	}
}
