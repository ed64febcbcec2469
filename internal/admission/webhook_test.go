package admission

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	ktesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/pki"
)

// configured leads to a Service, and to an address.
func configured() *admissionregistrationv1.MutatingWebhookConfiguration {
	url := "https://127.0.0.9:9443/namespaced-pods"
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "kip-0"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			{Name: "a", ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Namespace: "kip-system", Name: "kip-webhook"}}},
			{Name: "b", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url}},
		},
	}
}

// running is a Webhook that runs, with what it was given.
type running struct {
	api         *fake.FakeDynamicClient
	clock       *clocktesting.FakeClock
	authorities atomic.Pointer[pki.Authorities]
	looked      chan struct{} // each time that it has read its configuration
	listened    atomic.Int64
	listener    net.Listener
	ended       chan error
	stop        context.CancelFunc
}

func run(t *testing.T, objects ...runtime.Object) *running {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	r := &running{
		api:      fake.NewSimpleDynamicClient(scheme.Scheme, objects...),
		clock:    clocktesting.NewFakeClock(time.Now()),
		looked:   make(chan struct{}, 100),
		listener: l,
		ended:    make(chan error, 1),
	}
	r.api.PrependReactor("get", "mutatingwebhookconfigurations", func(ktesting.Action) (bool, runtime.Object, error) {
		r.looked <- struct{}{}
		return false, nil, nil
	})
	// The API server adds its tolerations.
	r.api.PrependReactor("create", "pods", func(action ktesting.Action) (bool, runtime.Object, error) {
		create := action.(ktesting.CreateActionImpl)
		asked := create.GetObject().(*unstructured.Unstructured)
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(asked.Object, pod); err != nil {
			return true, nil, err
		}
		if len(create.CreateOptions.DryRun) != 1 || pod.Annotations[corev1.MirrorPodAnnotationKey] == "" || pod.OwnerReferences[0].UID != "n-1" {
			return true, nil, errors.New("nodes make no such pods")
		}
		ten := int64(10)
		pod.Spec.Tolerations = []corev1.Toleration{
			toleration(corev1.TaintNodeNotReady, &ten), toleration(corev1.TaintNodeUnreachable, &ten),
		}
		answer, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
		return true, &unstructured.Unstructured{Object: answer}, err
	})
	w := New(Config{
		Name: "kip-0",
		Own:  r.api,
		// The first is not there, as that without a number beside several.
		Nodes: func(context.Context) ([]Node, error) {
			return []Node{{Name: "kip-9", As: r.api}, {Name: "kip-0", As: r.api}}, nil
		},
		Listen: func(context.Context) (net.Listener, error) {
			r.listened.Add(1)
			return r.listener, nil
		},
		Authorities: func(context.Context) (pki.Authorities, error) {
			if a := r.authorities.Load(); a != nil {
				return *a, nil
			}
			return pki.Authorities{}, nil
		},
		Rules: rules,
		Clock: r.clock,
		Log:   slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	go func() { r.ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})
	return r
}

// look lets the webhook look once more, and waits until it has.
func (r *running) look(t *testing.T) {
	t.Helper()
	for !r.clock.HasWaiters() {
		if t.Context().Err() != nil {
			t.Fatal("it does not wait")
		}
	}
	for len(r.looked) > 0 {
		<-r.looked
	}
	r.clock.Step(lookEvery)
	<-r.looked
	for !r.clock.HasWaiters() {
		if t.Context().Err() != nil {
			t.Fatal("it does not wait")
		}
	}
}

func (r *running) lead(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	r.authorities.Store(&pki.Authorities{Signing: a})
	return a
}

// trusted are the CAs that the API server is to trust.
func (r *running) trusted(t *testing.T) (cas []string) {
	t.Helper()
	have, err := r.api.Resource(configurations).Get(t.Context(), "kip-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configs, err := clientConfigs(have)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs {
		bundle, _, err := unstructured.NestedString(c, "caBundle")
		if err != nil {
			t.Fatal(err)
		}
		ca, err := base64.StdEncoding.DecodeString(bundle)
		if err != nil {
			t.Fatal(err)
		}
		cas = append(cas, string(ca))
	}
	return cas
}

// ask asks as the API server does that trusts a CA, and calls by a name.
func (r *running) ask(t *testing.T, ca []byte, name string) (string, error) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	body := strings.Replace(asking(podForKip), `"spec":{`, `"spec":{"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists",`+
		`"effect":"NoExecute","tolerationSeconds":10}],`, 1)
	url := "https://" + r.listener.Addr().String() + "/pods"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(text, &review); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return resp.Proto + " " + string(review.Response.Patch), nil
}

func TestTheAPIServerIsToldWhomToTrustAndIsAnswered(t *testing.T) {
	r := run(t, configured(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kip-0", UID: "n-1"}})
	r.look(t)
	if n := r.listened.Load(); n != 0 {
		t.Errorf("it listens %d times before there is a CA", n)
	}
	first := r.lead(t)
	r.look(t)
	trusts := func(ca *pki.Authority) {
		t.Helper()
		if want := string(ca.CertificatePEM()); !slices.Equal(r.trusted(t), []string{want, want}) {
			t.Fatalf("trusted is %q, want %q twice", r.trusted(t), want)
		}
		for _, name := range []string{"kip-webhook.kip-system.svc", "127.0.0.9"} {
			// The API server's own ten seconds are told from a user's.
			answer, err := r.ask(t, ca.CertificatePEM(), name)
			if err != nil || !strings.HasPrefix(answer, "HTTP/2.0 ") || !strings.Contains(answer, "/spec/tolerations/0/tolerationSeconds") {
				t.Errorf("asked as %s: %s, %v", name, answer, err)
			}
		}
		if _, err := r.ask(t, ca.CertificatePEM(), "kubernetes.default.svc"); err == nil {
			t.Error("it answers as another")
		}
	}
	trusts(first)

	all := r.api.Resource(configurations)
	have, err := all.Get(t.Context(), "kip-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed, err := trusting(have, []byte("another's"))
	if err != nil || changed == nil {
		t.Fatal(changed, err)
	}
	changed.Object["new"] = "of a newer API server"
	if _, err := all.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.look(t)
	trusts(first)
	second := r.lead(t)
	r.look(t)
	trusts(second)
	if _, err := r.ask(t, first.CertificatePEM(), "127.0.0.9"); err == nil {
		t.Error("it still answers by the CA of before")
	}

	if have, err = all.Get(t.Context(), "kip-0", metav1.GetOptions{}); err != nil || have.Object["new"] == nil {
		t.Errorf("what Kip does not know is lost: %v, %v", have, err)
	}
	r.api.ClearActions()
	r.look(t)
	for _, a := range r.api.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("nothing has changed, and it does %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	if n := r.listened.Load(); n != 1 {
		t.Errorf("it has listened %d times", n)
	}
}

// API servers trust the new CA before it is shown, and trust the old one as long as any
// replica may show it.
func TestTheAPIServerIsAnsweredAtEachMomentOfARotation(t *testing.T) {
	r := run(t, configured())
	first := r.lead(t)
	r.look(t)
	both, err := pki.Authorities{Signing: first}.Rotated()
	if err != nil {
		t.Fatal(err)
	}
	shows := func(when string, a *pki.Authority) {
		t.Helper()
		for _, ca := range []*pki.Authority{first, both.Signing} {
			if _, err := r.ask(t, ca.CertificatePEM(), "127.0.0.9"); (err == nil) != (ca == a) {
				t.Errorf("%s: a client that trusts %s alone: %v", when, ca.Hash(), err)
			}
		}
		if _, err := r.ask(t, []byte(r.trusted(t)[0]), "127.0.0.9"); err != nil {
			t.Errorf("%s: the API server does not trust what it is shown: %v", when, err)
		}
	}
	r.authorities.Store(&both)
	r.look(t)
	shows("when it was told of the new one", first)
	r.look(t)
	shows("when it was found to be told", first)
	r.look(t)
	shows("a look later", both.Signing)
	r.look(t)
	shows("and then", both.Signing)
	r.authorities.Store(&pki.Authorities{Signing: both.Signing})
	r.look(t)
	shows("when the old one is dropped", both.Signing)
	if want := string(both.Signing.CertificatePEM()); r.trusted(t)[0] != want {
		t.Errorf("trusted is %q, want %q", r.trusted(t)[0], want)
	}
}

func TestTheAPIServersOwnTolerationsAreLearnt(t *testing.T) {
	r := run(t, configured())
	ca := r.lead(t)
	r.look(t)
	const own = "/spec/tolerations/0/tolerationSeconds"
	before, err := r.ask(t, ca.CertificatePEM(), "127.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	node := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": "kip-0", "uid": "n-1"}}}
	nodes := r.api.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.look(t)
	after, err := r.ask(t, ca.CertificatePEM(), "127.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(before, own) || !strings.Contains(after, own) {
		t.Errorf("before the node is there: %s\nafter: %s", before, after)
	}
}

func TestWithoutAConfigurationNothingIsServed(t *testing.T) {
	r := run(t)
	r.lead(t)
	r.look(t)
	r.look(t)
	if n := r.listened.Load(); n != 0 {
		t.Errorf("it has listened %d times", n)
	}
	for _, a := range r.api.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("it does %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

func TestAPortThatIsTakenIsAnError(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	w := New(Config{
		Name: "kip-0",
		Own:  fake.NewSimpleDynamicClient(scheme.Scheme, configured()),
		Listen: func(ctx context.Context) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", taken.Addr().String())
		},
		Nodes:       func(context.Context) ([]Node, error) { return nil, nil },
		Authorities: func(context.Context) (pki.Authorities, error) { return pki.Authorities{Signing: a}, nil },
		Clock:       clocktesting.NewFakeClock(time.Now()),
		Log:         slog.New(slog.DiscardHandler),
	})
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("it ends with %v", err)
	}
}

// Who configures profiles hears once that nobody asks about their pods; who has none hears nothing.
func TestUnaskedIsCalledWhereThereAreProfilesAndNoConfiguration(t *testing.T) {
	for name, profiles := range map[string]Profiles{"profiles": profilesOf(Profile{Name: "p"}), "none": {}} {
		clock, looks, heard := clocktesting.NewFakeClock(time.Now()), make(chan struct{}, 100), make(chan string, 100)
		api, log := fake.NewSimpleDynamicClient(scheme.Scheme), strings.Builder{} // which Run alone writes
		api.PrependReactor("get", "mutatingwebhookconfigurations", func(ktesting.Action) (bool, runtime.Object, error) {
			looks <- struct{}{}
			return false, nil, nil
		})
		w := New(Config{Name: "kip-0", Own: api, Profiles: profiles, Unasked: func(why string) { heard <- why }, Clock: clock,
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		for range 3 {
			<-looks
			for len(looks) == 0 {
				clock.Step(lookEvery)
				time.Sleep(time.Millisecond)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		close(heard)
		var all []string
		for why := range heard {
			all = append(all, why)
		}
		profiled := name == "profiles"
		if len(all) != 0 != profiled || profiled && (len(all) != 1 || !strings.Contains(all[0], "kip-0, which the chart makes") ||
			!strings.Contains(all[0], "docs/profiles.md")) {
			t.Errorf("%s: heard %q", name, all)
		}
		said := log.String()
		if strings.Count(said, "configuration=kip-0") != 1 || strings.Contains(said, "kip-0, which the chart makes") != profiled {
			t.Errorf("%s: logged %s", name, said)
		}
	}
}

// Profiles, and sets beside pods, without the webhooks that they need have no effect, and somebody has to hear of it.
func TestWhatNobodyAsksAboutIsReported(t *testing.T) {
	hook := func(path string) admissionregistrationv1.MutatingWebhook {
		return admissionregistrationv1.MutatingWebhook{Name: path, ClientConfig: admissionregistrationv1.WebhookClientConfig{
			Service: &admissionregistrationv1.ServiceReference{Namespace: "a", Name: "b", Path: &path}}}
	}
	url := "https://10.0.0.1:9443" + bindingsPath
	byURL := admissionregistrationv1.MutatingWebhook{ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url}}
	costs, none := profilesOf(Profile{Name: "p", DeletionCost: "-1"}), profilesOf(Profile{Name: "p"})
	for says, c := range map[string]struct {
		profiles Profiles
		hooks    []admissionregistrationv1.MutatingWebhook
		want     string
		sets     Sets
	}{
		"no profiles":           {Profiles{}, []admissionregistrationv1.MutatingWebhook{hook(selectingPath)}, "", Sets{}},
		"an older chart":        {none, []admissionregistrationv1.MutatingWebhook{hook(selectingPath)}, "has the path /profiled-pods", Sets{}},
		"a chart with profiles": {none, []admissionregistrationv1.MutatingWebhook{hook(selectingPath), hook(profiledPath)}, "", Sets{}},
		"no bindings":           {costs, []admissionregistrationv1.MutatingWebhook{hook(profiledPath)}, "podDeletionCost of admission.profiles has no effect", Sets{}},
		"bindings":              {costs, []admissionregistrationv1.MutatingWebhook{hook(profiledPath), byURL}, "", Sets{}},
		"sets, no webhook":      {Profiles{}, []admissionregistrationv1.MutatingWebhook{hook(selectingPath)}, "has the path /daemonsets", setsOf()},
		"sets":                  {Profiles{}, []admissionregistrationv1.MutatingWebhook{hook(daemonSetsPath)}, "", setsOf()},
	} {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(
			&admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: c.hooks})
		if err != nil {
			t.Fatal(err)
		}
		err = (&Webhook{cfg: Config{Profiles: c.profiles, Sets: c.sets}}).unasked(&unstructured.Unstructured{Object: object})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", says, err, c.want)
		}
	}
}
