package cellapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

const ecr = "123456789012.dkr.ecr.us-east-1.amazonaws.com"

// lender has credentials for all images, and notes what it was asked for.
type lender struct {
	mu     sync.Mutex
	asked  []string
	askers []string // of each of them
	told   []string
	err    error
}

func (l *lender) Get(_ context.Context, asker, registry, repository string, named []string) (agentapi.ImageCredentials, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.askers = append(l.askers, asker)
	l.asked = append(l.asked, registry+" "+repository+" of "+strings.Join(named, ","))
	return agentapi.ImageCredentials{Username: "AWS", Password: "very-secret", KeepFor: time.Minute}, l.err
}

func (l *lender) Event(pod apiv1.PodReference, e events.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprintf("%s/%s %s %s %s", pod.Namespace, pod.Name, e.Type, e.Reason, e.Message))
}

func (l *lender) fails(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *lender) calls() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.asked)
}

func (l *lender) events() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.told)
}

// lends is a house with a lender.
func lends(t *testing.T, clk clock.Clock) (*house, *lender) {
	t.Helper()
	l := &lender{}
	return newHouseAt(t, clk, func(h *house) { h.images, h.events = l, l }), l
}

// askFor asks for what pulls an image.
func askFor(t *testing.T, c *Cell, image string) (int, string) {
	t.Helper()
	body, err := json.Marshal(agentapi.ImageRequest{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	code, _, answer := do(t.Context(), c, http.MethodPost, agentapi.PathImageCredentials, "application/json", body)
	return code, string(answer)
}

// podOf is a pod that has its images everywhere.
func podOf(name string) *corev1.Pod {
	pod := podOn(name)
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "app", Image: ecr + "/team/app:1"})
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: ecr + "/team/init@sha256:" + strings.Repeat("a", 64)}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "look", Image: ecr + "/look"}},
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "model", VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: ecr + "/models/one:2"},
	}})
	pod.Spec.Containers = append(pod.Spec.Containers,
		corev1.Container{Name: "elsewhere", Image: "210987654321.dkr.ecr.eu-west-1.amazonaws.com/other:1"},
		corev1.Container{Name: "all", Image: ecr + "/*"},
		corev1.Container{Name: "odd", Image: ecr + "/Team/App"})
	return pod
}

func TestACellIsGivenWhatPullsTheImagesOfItsPodAndNothingElse(t *testing.T) {
	h, l := lends(t, clock.RealClock{})
	c := h.server.AddCell("c1", info)
	if code, answer := askFor(t, c, ecr+"/team/app"); code != http.StatusForbidden {
		t.Errorf("a cell without a pod is answered %d %s", code, answer)
	}
	other := h.server.AddCell("c2", info)
	stranger := podOn("stranger")
	stranger.Spec.Containers[0].Image = ecr + "/others/app:1"
	h.bindNew(other, stranger)
	h.bindNew(c, podOf("web"))
	const named = " of team/init,team/app,look,models/one"
	for _, image := range []string{
		"team/app", "team/app:1", "team/app:another", "team/init", "look", "models/one@sha256:" + strings.Repeat("b", 64),
	} {
		code, answer := askFor(t, c, ecr+"/"+image)
		var got agentapi.ImageCredentials
		if err := json.Unmarshal([]byte(answer), &got); code != http.StatusOK || err != nil || got.Password != "very-secret" ||
			got.KeepFor != time.Minute {
			t.Errorf("%s: %d %s, %v", image, code, answer, err)
		}
		name, _, _ := strings.Cut(strings.Split(image, "@")[0], ":")
		if calls := l.calls(); calls[len(calls)-1] != ecr+" "+name+named {
			t.Errorf("%s is asked for as %q", image, calls[len(calls)-1])
		}
	}
	before := len(l.calls())
	if slices.ContainsFunc(l.askers, func(a string) bool { return a != "c1" }) {
		t.Errorf("c1 asks as %q", l.askers)
	}
	for _, image := range []string{
		ecr + "/others/app", ecr + "/team", ecr + "/team/app/more", ecr + "/*", ecr + "/team/*", ecr + "/Team/App", ecr, ecr + "/", "busybox", "",
		"team/app", "210987654321.dkr.ecr.us-east-1.amazonaws.com/team/app", "210987654321.dkr.ecr.eu-west-1.amazonaws.com/team/app",
		ecr + ":443/team/app", "https://" + ecr + "/team/app", "../" + ecr + "/team/app", ecr + "/team/app\x00",
		strings.Repeat("a", agentapi.MaxImage),
	} {
		if code, answer := askFor(t, c, image); code != http.StatusForbidden {
			t.Errorf("%q: %d %s, want 403", image, code, answer)
		}
	}
	if asked := l.calls()[before:]; len(asked) > 0 {
		t.Errorf("what the pod does not name is asked for: %q", asked)
	}
}

func TestAPodThatIsGoneHasNoCredentials(t *testing.T) {
	h, l := lends(t, clock.RealClock{})
	c := h.server.AddCell("c1", info)
	pod := h.bindNew(c, podOf("web"))
	if code, answer := askFor(t, c, ecr+"/look"); code != http.StatusOK {
		t.Fatalf("%d %s", code, answer)
	}
	c.lose(pod.ResourceVersion)
	if code, answer := askFor(t, c, ecr+"/look"); code != http.StatusForbidden || len(l.calls()) != 1 {
		t.Errorf("%d %s", code, answer)
	}
}

func TestOnlyTheFormThatAsksForCredentialsIsAnswered(t *testing.T) {
	h, l := lends(t, clock.RealClock{})
	c := h.server.AddCell("c1", info)
	h.bindNew(c, podOf("web"))
	const path = agentapi.PathImageCredentials
	for name, one := range map[string]struct {
		method, path, body string
		code               int
	}{
		"a get":      {http.MethodGet, path, "", http.StatusForbidden},
		"a name":     {http.MethodGet, path + "/x", "", http.StatusForbidden},
		"a deletion": {http.MethodDelete, path, "", http.StatusForbidden},
		"a namespace": {http.MethodPost, "/apis/kip.elotl.co/v1/namespaces/shop/imagecredentials", `{"image":"` + ecr + `/look"}`,
			http.StatusForbidden},
		"no JSON":      {http.MethodPost, path, "image=x", http.StatusBadRequest},
		"a list":       {http.MethodPost, path, `{"image":["a"]}`, http.StatusBadRequest},
		"nothing":      {http.MethodPost, path, `{}`, http.StatusForbidden},
		"a large body": {http.MethodPost, path, `{"image":"` + strings.Repeat("a", 4<<10) + `"}`, http.StatusRequestEntityTooLarge},
	} {
		if code, _, answer := do(t.Context(), c, one.method, one.path, "application/json", []byte(one.body)); code != one.code {
			t.Errorf("%s: %d %s, want %d", name, code, answer, one.code)
		}
	}
	if len(l.calls()) > 0 {
		t.Errorf("asked for %q", l.calls())
	}
}

func TestACloudWithoutRegistriesHasNoCredentials(t *testing.T) {
	h := newHouse(t)
	c := h.server.AddCell("c1", info)
	h.bindNew(c, podOf("web"))
	if code, answer := askFor(t, c, ecr+"/look"); code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", code, answer)
	}
}

func TestAskingForCredentialsHasABudget(t *testing.T) {
	now := testingclock.NewFakeClock(time.Now())
	h, l := lends(t, now)
	c := h.server.AddCell("c1", info)
	h.bindNew(c, podOf("web"))
	answers := map[int]int{}
	for range 300 {
		code, _ := askFor(t, c, ecr+"/look")
		answers[code]++
	}
	if answers[http.StatusOK] != credentialsBurst || answers[http.StatusTooManyRequests] != 300-credentialsBurst {
		t.Errorf("answers by code: %v", answers)
	}
	if by := c.Usage().RefusedBy[limitCredentials]; by != 300-credentialsBurst || len(l.calls()) != credentialsBurst {
		t.Errorf("%d refused, %d asked for", by, len(l.calls()))
	}
	now.Step(time.Second)
	if code, answer := askFor(t, c, ecr+"/look"); code != http.StatusOK {
		t.Errorf("after a second: %d %s", code, answer)
	}
}

func TestWhyThereAreNoCredentialsIsToldToThePodsOwnerAndNotToItsCell(t *testing.T) {
	now := testingclock.NewFakeClock(time.Now())
	h, l := lends(t, now)
	c := h.server.AddCell("c1", info)
	h.bindNew(c, podOf("web"))
	l.fails(errors.New("the role arn:aws:iam::1:role/x: " + strings.Repeat("long ", 1000)))
	for range 10 {
		if code, answer := askFor(t, c, ecr+"/look"); code != http.StatusServiceUnavailable || strings.Contains(answer, "role") {
			t.Errorf("%d %s", code, answer)
		}
	}
	told := l.events()
	want := "shop/web Warning " + events.NoImageCredentials + " No credentials for images of " + ecr +
		"/look, so the kubelet pulls without them: the role arn:aws:iam::1:role/x"
	if len(told) != 1 || !strings.HasPrefix(told[0], want) || len(told[0]) > 1024 {
		t.Errorf("told %q", told)
	}
	now.Step(5 * time.Minute)
	askFor(t, c, ecr+"/look")
	if told := l.events(); len(told) != 2 {
		t.Errorf("five minutes later: told %q", told)
	}

	withSecret := h.server.AddCell("c2", info)
	pod := podOf("secretive")
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "x"}}
	h.bindNew(withSecret, pod)
	if code, _ := askFor(t, withSecret, ecr+"/look"); code != http.StatusServiceUnavailable || len(l.events()) != 2 {
		t.Errorf("a pod with a pull secret: %d, told %q", code, l.events())
	}
}

func FuzzAnImagesPlaceIsInItsName(f *testing.F) {
	for _, seed := range []string{
		ecr + "/team/app:1", ecr + "/a@sha256:" + strings.Repeat("a", 64), "busybox", "localhost:5000/a/b:c", "a.b/c:d@e:f", "a.b:1/c", "*/x",
		"a.b/*", "a.b/c-*", "a.b/c/d-*",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, image string) {
		ref, ok := imageRefOf(image)
		if !ok {
			if ref != (imageRef{}) {
				t.Errorf("%q is nowhere, and at %v", image, ref)
			}
			return
		}
		name := ref.registry + "/" + ref.repository
		if !strings.HasPrefix(image, name) {
			t.Errorf("%q is at %s", image, name)
		}
		if rest := image[len(name):]; rest != "" && rest[0] != ':' && rest[0] != '@' {
			t.Errorf("%q is at %s: %q is left", image, name, rest)
		}
		if strings.ContainsAny(name, "*?${}\"\\ \x00") || len(ref.repository) > maxRepository {
			t.Errorf("%q is at %q, which may mean more than one repository", image, name)
		}
		if again, ok := imageRefOf(name); !ok || again != ref {
			t.Errorf("%q is at %v, which is at %v", image, ref, again)
		}
	})
}
