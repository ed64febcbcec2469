//go:build e2e

package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/holder"
	"github.com/elotl/kip/test/harness"
)

// leaseDuration is how long a kubelet's lease is good for without a renewal.
const leaseDuration = 40 * time.Second

// Media types of patches.
const (
	plainJSON = "application/json"
	strategic = "application/strategic-merge-patch+json"
	merge     = "application/merge-patch+json"
)

// Paths of what a cell has of its own.
const (
	nodePath  = "/api/v1/nodes/" + harness.Node
	leasePath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + harness.Node
	csiPath   = "/apis/storage.k8s.io/v1/csinodes/" + harness.Node
)

// large is the ConfigMap that the attacker's pod names, with about largeBytes.
const (
	large      = "large"
	largeBytes = 900_000
)

// createLarge makes it.
func createLarge(t *testing.T, s *space) {
	t.Helper()
	if _, err := world.Admin.CoreV1().ConfigMaps(s.NS).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: large},
		Data:       map[string]string{"x": strings.Repeat("x", largeBytes)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// namesLarge is a pod that names it.
func namesLarge(name string) string {
	return sleeper(name, "", "  volumes: [{name: large, configMap: {name: "+large+"}}]\n")
}

// shot is one request of an attack, and what it may be answered beside 429, which says
// that the cell's budget is spent.
type shot struct {
	method, path, contentType, body string
	codes                           []int
}

// fire sends shots, a few at the same time, as long as the context lives, and each of
// them so many times at least. What is answered otherwise than it may be fails the test.
func (a *attacker) fire(t *testing.T, ctx context.Context, answers *counts, least, atOnce int, shots ...shot) {
	var wg sync.WaitGroup
	var met sync.Map // the shots that were answered as they are to be
	turns := make(chan int)
	for range atOnce {
		wg.Go(func() {
			for n := range turns {
				s := shots[n%len(shots)]
				code, text, err := a.ask(t.Context(), s.method, s.path, s.contentType, strings.NewReader(s.body), int64(len(s.body)))
				switch {
				case err != nil:
					t.Errorf("%s %s: %v", s.method, s.path, err)
				case slices.Contains(s.codes, code):
					met.Store(n%len(shots), true)
				case code != http.StatusTooManyRequests:
					t.Errorf("%s %s with %.120q of %d bytes is answered %d: %s; want %v",
						s.method, s.path, s.body, len(s.body), code, text, s.codes)
				}
				answers.add(fmt.Sprint("answered ", code))
			}
		})
	}
	missing := func() (n int) {
		for i, s := range shots {
			if _, ok := met.Load(i); !ok && len(s.codes) > 0 {
				n++
			}
		}
		return n
	}
	// What only 429 has answered is asked again: the budget fills.
	for n := 0; (n < least*len(shots) || ctx.Err() == nil || missing() > 0) && !t.Failed(); n++ {
		turns <- n
	}
	close(turns)
	wg.Wait()
}

// tokens is a request for a token of the pod's service account.
func tokens(pod *corev1.Pod, seconds int64, audiences ...string) string {
	body, err := json.Marshal(map[string]any{
		"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
		"spec": map[string]any{
			"expirationSeconds": seconds,
			"audiences":         audiences,
			"boundObjectRef":    map[string]any{"kind": "Pod", "apiVersion": "v1", "name": pod.Name, "uid": pod.UID},
		},
	})
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return string(body)
}

// event is an Event about the pod.
func event(pod *corev1.Pod, name string, bytes int) string {
	body, err := json.Marshal(&corev1.Event{
		TypeMeta:       metav1.TypeMeta{Kind: "Event", APIVersion: "v1"},
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: pod.Namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Reason:         "Hostile",
		Type:           corev1.EventTypeWarning,
		Message:        strings.Repeat("x", bytes),
	})
	if err != nil {
		panic(err) // text
	}
	return string(body)
}

// One attack of each kind: what else a cell may not ask, the tests of internal/cellapi prove.
func TestRootOnACellHarmsNobodyByWhatItAsks(t *testing.T) {
	s, b := begin(t, "")
	createLarge(t, s)
	s.Apply(namesLarge("a"))
	before := s.WaitReady("a")
	nodeBefore, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := attack(t, s, "a")
	renewed := a.renewLease(t)

	status := "/api/v1/namespaces/" + s.NS + "/pods/a/status"
	token := "/api/v1/namespaces/" + s.NS + "/serviceaccounts/default/token"
	events := "/api/v1/namespaces/" + s.NS + "/events"
	conditions := `{"status":{"conditions":[` + strings.TrimSuffix(strings.Repeat(`{"type":"t"},`, 200_000), ",") + `]}}`
	refused, tooLarge := []int{http.StatusUnprocessableEntity}, []int{http.StatusRequestEntityTooLarge}
	forbidden := []int{http.StatusForbidden}
	patch := func(path, body string, codes []int) shot { return shot{http.MethodPatch, path, strategic, body, codes} }
	// First, while the cell has all of its budget.
	t.Run("a thousand bodies of 3 MiB that do not end", func(t *testing.T) {
		b.while(t, "a thousand bodies of 3 MiB that do not end", func(ctx context.Context, answers *counts) {
			a.hold(t, ctx, answers, 1000, 3<<20, status)
		})
	})
	for _, attack := range []struct {
		name          string
		least, atOnce int
		shots         []shot
	}{
		{"a quantity that is written out", 20, 4, []shot{
			patch(nodePath+"/status", `{"status":{"capacity":{"cpu":"1e1500000000"}}}`, refused),
		}},
		{"200,000 conditions of its node", 10, 2, []shot{patch(nodePath+"/status", conditions, tooLarge)}},
		// It is taken, as all that the cell says of itself: see the real lease below.
		{"another Kip's mark on the node's lease", 5, 2, []shot{
			{http.MethodPatch, leasePath, merge, `{"metadata":{"annotations":{"` + holder.Annotation + `":"{\"id\":\"hostile\",\"renewed\":7}"}}}`,
				[]int{http.StatusOK}},
		}},
		{"metadata in its pod's status", 5, 2, []shot{
			patch(status, `{"metadata":{"finalizers":["hostile.example.com/stay"]},"status":{"message":"hostile"}}`, refused),
		}},
		{"another's address as its pod's", 5, 2, []shot{
			patch(status, `{"status":{"podIP":"`+b.pod.Status.PodIP+`","podIPs":[{"ip":"`+b.pod.Status.PodIP+`"}]}}`, refused),
		}},
		{"tokens that no volume asks for", 5, 2, []shot{{http.MethodPost, token, plainJSON, tokens(before, 3607, "vault"), forbidden}}},
		// It is stored once, cut; a second one of the name is in conflict.
		{"events of 60 KB", 10, 4, []shot{
			{http.MethodPost, events, plainJSON, event(before, "hostile", 60_000), []int{http.StatusCreated, http.StatusConflict}},
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			b.while(t, attack.name, func(ctx context.Context, answers *counts) {
				a.fire(t, ctx, answers, attack.least, attack.atOnce, attack.shots...)
			})
		})
	}
	// Fuzzed renewals have the lease's own budget, and keep the cell alive.
	renewed()
	t.Run("fuzzed requests", func(t *testing.T) {
		name := fmt.Sprintf("fuzzed requests (HOSTILE_SEED=%d)", seed)
		b.while(t, name, func(ctx context.Context, answers *counts) { a.fuzz(t, ctx, answers, before) })
	})
	// Last, since the cell owes for what it is answered.
	t.Run("reads without a pause", func(t *testing.T) {
		b.while(t, "reads without a pause", func(ctx context.Context, answers *counts) {
			// More than the burst, what 32 are answered meanwhile, and what the cell may wait for.
			a.fire(t, ctx, answers, 300, 32,
				shot{http.MethodGet, "/api/v1/namespaces/" + s.NS + "/configmaps/" + large, "", "", []int{http.StatusOK}},
				shot{http.MethodGet, "/api/v1/services", "", "", []int{http.StatusOK}})
			if !answers.has("answered 429") {
				t.Errorf("Kip answers whatever it is asked, and asks for no pause: %s", answers)
			}
		})
	})

	after, err := s.Pod(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	delete(after.Annotations, "hostile")
	delete(before.Annotations, "hostile")
	if fmt.Sprint(after.Annotations, after.Finalizers, after.Labels, after.Status.PodIP, after.Status.PodIPs) !=
		fmt.Sprint(before.Annotations, before.Finalizers, before.Labels, before.Status.PodIP, before.Status.PodIPs) {
		t.Errorf("the attacker's pod was\n%+v\nand is\n%+v", before, after)
	}
	nodeAfter, err := world.Admin.CoreV1().Nodes().Get(t.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := func(n *corev1.Node) string {
		annotations := maps.Clone(n.Annotations)
		delete(annotations, "virtual-kubelet.io/last-applied-node-status") // heartbeats are in it
		return fmt.Sprint(n.Status.Capacity, annotations)
	}
	if was, is := has(nodeBefore), has(nodeAfter); was != is {
		t.Errorf("the virtual node has %s, and had %s", is, was)
	}
	lease, err := world.Admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if mark := lease.Annotations[holder.Annotation]; mark == "" || strings.Contains(mark, "hostile") {
		t.Errorf("the mark on the node's lease is %q", mark)
	}
	stored, err := world.Admin.CoreV1().Events(s.NS).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, e := range stored.Items {
		seen = seen || e.Name == "hostile"
		if e.Size() > 12<<10 || // a message of 8 KiB, as long as a kubelet's may be, and names
			e.InvolvedObject.Name == b.pod.Name && e.Reason == "Hostile" {
			t.Errorf("event %s of %d bytes about %s is stored", e.Name, e.Size(), e.InvolvedObject.Name)
		}
	}
	if !seen {
		t.Errorf("of the attacker's events none is stored: that they are small shows nothing")
	}
}

// renewLease keeps the cell alive, as one would that has more in mind, until what it returns is called. That fails the
// test if a renewal was refused, or if the lease had run out in between: whatever else a cell does, its lease says that it
// lives. Kip disconnects a cell that floods, and its renewals too, for less time than a lease lasts.
func (a *attacker) renewLease(t *testing.T) (end func()) {
	lease := `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"` + harness.Node + `","namespace":"kube-node-lease"}}`
	ctx, cancel := context.WithCancel(t.Context())
	var answers counts
	var longest time.Duration // without a renewal
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		renewed := time.Now()
		defer func() { longest = max(longest, time.Since(renewed)) }()
		every := time.NewTicker(5 * time.Second) // a kubelet's are ten
		defer every.Stop()
		for {
			code, text, err := a.ask(ctx, http.MethodPut, leasePath, plainJSON, strings.NewReader(lease), int64(len(lease)))
			switch {
			case ctx.Err() != nil:
				return
			case err != nil: // who floods is disconnected, with all that it asks
				answers.add("cut off")
			case code != http.StatusOK && code != http.StatusConflict:
				t.Errorf("the renewal of its lease is answered %d: %s", code, text)
			default:
				answers.add("renewed")
				longest = max(longest, time.Since(renewed))
				renewed = time.Now()
			}
			select {
			case <-every.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	end = sync.OnceFunc(func() {
		cancel()
		<-ended
		if longest > leaseDuration {
			t.Errorf("the cell could not renew its lease for %v: a lease lasts %v", longest, leaseDuration)
		}
		fmt.Printf("the attacker's own lease, meanwhile: %s; longest time without a renewal %v\n", &answers, longest.Round(time.Millisecond))
	})
	t.Cleanup(end)
	return end
}

// slow is a body whose last byte does not come before the context ends.
type slow struct {
	ctx  context.Context
	left int
}

func (s *slow) Read(p []byte) (int, error) {
	if s.left <= 1 {
		<-s.ctx.Done()
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), s.left-1)
	copy(p, bytes.Repeat([]byte{' '}, n))
	s.left -= n
	return n, nil
}

// hold sends bodies that do not end, of which Kip is not told how long they are.
func (a *attacker) hold(t *testing.T, ctx context.Context, answers *counts, bodies, size int, path string) {
	var wg sync.WaitGroup
	for range bodies {
		wg.Go(func() {
			code, text, err := a.ask(t.Context(), http.MethodPatch, path, strategic, &slow{ctx: ctx, left: size}, -1)
			switch {
			case err != nil:
				// The body was cut off, by whoever was first.
				answers.add("cut off")
			case code != http.StatusTooManyRequests && code != http.StatusRequestEntityTooLarge:
				t.Errorf("a body that does not end is answered %d: %s", code, text)
			default:
				answers.add(fmt.Sprint("answered ", code))
			}
		})
	}
	wg.Wait()
}

// fuzzed are what requests are made of; each is one that a kubelet could send.
func fuzzed(pod *corev1.Pod) []shot {
	ns := "/api/v1/namespaces/" + pod.Namespace
	return []shot{
		{method: http.MethodPatch, path: nodePath + "/status", contentType: strategic,
			body: `{"metadata":{"annotations":{"a":"b"}},"status":{"capacity":{"cpu":"2","memory":"1Gi"},"conditions":[{"type":"Ready","status":"True"}],"images":[{"names":["a"],"sizeBytes":1}]}}`},
		{method: http.MethodPatch, path: nodePath, contentType: merge, body: `{"metadata":{"labels":{"a":"b"},"annotations":{"a":null}}}`},
		{method: http.MethodPut, path: leasePath, contentType: plainJSON,
			body: `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"kip-0","namespace":"kube-node-lease"},"spec":{"leaseDurationSeconds":40,"renewTime":"2026-01-01T00:00:00.000000Z"}}`},
		{method: http.MethodPut, path: csiPath, contentType: plainJSON,
			body: `{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"kip-0"},"spec":{"drivers":[{"name":"a","nodeID":"b","topologyKeys":["c"],"allocatable":{"count":1}}]}}`},
		{method: http.MethodPatch, path: ns + "/pods/" + pod.Name + "/status", contentType: strategic,
			body: `{"metadata":{"uid":"` + string(pod.UID) + `"},"status":{"conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"main","ready":true,"restartCount":0,"resources":{"limits":{"cpu":"1"}}}]}}`},
		{method: http.MethodPost, path: ns + "/events", contentType: plainJSON, body: event(pod, "fuzzed", 20)},
		{method: http.MethodPost, path: ns + "/serviceaccounts/default/token", contentType: plainJSON, body: tokens(pod, 3607)},
	}
}

// values are what a field is mutated to, and pieces what is put anywhere: what costs, or
// steers, where it is believed.
var (
	values = []string{
		`1e1500000000`, `"1e1500000000"`, `-1`, `9223372036854775808`, `1e400`, `null`, `{}`, `[]`, `""`, `true`, `"\u001b[2J"`, `[{},null,1]`,
		`{"$patch":"replace"}`, `"` + strings.Repeat("9", 5000) + `"`, "[" + strings.Repeat(`{"type":"t"},`, 500) + "{}]",
	}
	pieces = []string{
		`"$patch":"replace",`, `"$retainKeys":["a"],`, "\x00", "\xff\xfe", "k8s\x00",
		strings.Repeat("[", 10_000), strings.Repeat(`{"a":`, 10_000),
	}
)

// mutate changes a body at a few places.
func mutate(r *rand.Rand, body string) string {
	for range 1 + r.IntN(4) {
		at := r.IntN(len(body) + 1)
		to := min(len(body), at+r.IntN(12))
		switch r.IntN(8) {
		case 0:
			body = body[:at] + body[to:]
		case 1:
			body = body[:at] + pieces[r.IntN(len(pieces))] + body[at:]
		default: // the value of a field
			from := strings.Index(body[at:], `":`)
			if from < 0 {
				continue
			}
			head, rest := body[:at+from+2], body[at+from+2:]
			if end := strings.IndexAny(rest, ",}]"); end >= 0 {
				body = head + values[r.IntN(len(values))] + rest[end:]
			}
		}
	}
	return body
}

// fuzz sends requests of all kinds with mutated bodies, one after the other so that
// the seed says which. None may be answered as if Kip were at fault.
func (a *attacker) fuzz(t *testing.T, ctx context.Context, answers *counts, pod *corev1.Pod) {
	const requests = 300
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	shots := fuzzed(pod)
	// No faster than a cell may ask, or most of the requests were never read.
	pace := rate.NewLimiter(20, 100)
	types := []string{
		plainJSON, strategic, merge, "application/vnd.kubernetes.protobuf", "application/json-patch+json", "application/cbor", "",
	}
	for n := 0; n < requests && !t.Failed() || ctx.Err() == nil; n++ {
		if err := pace.Wait(t.Context()); err != nil {
			t.Errorf("request %d: %v", n, err)
			return
		}
		s := shots[r.IntN(len(shots))]
		body := mutate(r, s.body)
		contentType := s.contentType
		if r.IntN(8) == 0 {
			contentType = types[r.IntN(len(types))]
		}
		code, text, err := a.ask(t.Context(), s.method, s.path, contentType, strings.NewReader(body), int64(len(body)))
		switch {
		case err != nil:
			t.Errorf("request %d, %s %s, %q: %v", n, s.method, s.path, body, err)
			return
		case code >= 500:
			t.Errorf("request %d, %s %s with %s %.300q is answered %d: %s", n, s.method, s.path, contentType, body, code, text)
			return
		}
		answers.add(fmt.Sprint("answered ", code))
	}
}
