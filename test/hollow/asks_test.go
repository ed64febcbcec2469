package hollow

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// withToken gives a pod the volume that the API server gives nearly every pod, and
// a Secret.
func withToken(p *corev1.Pod) {
	seconds := int64(3607)
	p.Spec.ServiceAccountName = "shopkeeper"
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds, Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
		},
	}}}}
}

// The table is what the documentation says of hollow cells: they must do all of it,
// and nothing else.
func TestAWholeCellAsksWhatARealOneDoes(t *testing.T) {
	inBubble(t, Config{Whole: true, StartTime: time.Second, StopTime: time.Second}, func(t *testing.T, w *world) {
		c, pod := w.running(1, withToken)
		time.Sleep(time.Hour)
		w.api.remove(pod, 30)
		w.api.await(pod.UID, isDeleted)
		synctest.Wait()

		known := map[Ask]bool{}
		for _, a := range Asks() {
			known[Ask{By: a.By, Verb: a.Verb, Resource: a.Resource}] = true
			if n := c.made(a); (n > 0) != (a.Skipped == "") {
				t.Errorf("%s asks to %s %s %d times; the table says it is skipped: %q", a.By, a.Verb, a.Resource, n, a.Skipped)
			}
		}
		c.mu.Lock()
		for a, n := range c.asks {
			if !known[a] {
				t.Errorf("%s asks to %s %s %d times, which is not in the table", a.By, a.Verb, a.Resource, n)
			}
		}
		c.mu.Unlock()

		// Two containers and one that is run before them.
		for what, want := range map[string]int{
			"create events of Pulled": 3, "create events of Created": 3, "create events of Started": 3, "create events of Killing": 2,
			"create tokens of shopkeeper": 2, "patch pods/status": 3, "delete pods": 1,
		} {
			if n := w.api.count(what); n != want {
				t.Errorf("%s: %d times in the pod's life of an hour, want %d", what, n, want)
			}
		}
		gets := c.made(Ask{By: byKubelet, Verb: "get", Resource: "pods"})
		if patches := c.made(Ask{By: byKubelet, Verb: "patch", Resource: "pods/status"}); gets != patches {
			t.Errorf("the pod is read %d times and its status patched %d times", gets, patches)
		}
		if drivers, known := c.api.CSIDrivers(); !known || len(drivers) != 0 {
			t.Errorf("CSI drivers are %v, known: %t", drivers, known)
		}
	})
}

// What a pod names is watched for as long as the pod is there.
func TestReferencesAreWatchedUntilThePodIsGone(t *testing.T) {
	inBubble(t, Config{Whole: true}, func(t *testing.T, w *world) {
		c, pod := w.running(1, withToken)
		watched := func() int {
			return c.made(Ask{By: byKubelet, Verb: "watch", Resource: "configmaps"}) + c.made(Ask{By: byKubelet, Verb: "watch", Resource: "secrets"})
		}
		// A watch lasts whole seconds: none is renewed at the half of one.
		time.Sleep(time.Hour + time.Second/2)
		before := watched()
		// Two, for 5 to 10 minutes each time.
		if before < 2*6 || before > 2*13 {
			t.Errorf("%d watches in an hour", before)
		}
		w.api.remove(pod, 0)
		w.api.await(pod.UID, isDeleted)
		synctest.Wait()
		time.Sleep(time.Hour)
		if n := watched(); n != before {
			t.Errorf("%d watches since the pod is gone", n-before)
		}
	})
}

func TestATokenIsAskedForAgainUntilItIsThere(t *testing.T) {
	inBubble(t, Config{Whole: true}, func(t *testing.T, w *world) {
		c := w.ready(1)
		pod := w.api.create(newPod("p", withToken))
		w.api.setTokens(false)
		c.bind(pod)
		time.Sleep(time.Minute)
		if phases := w.api.phases(pod.UID); !slices.Equal(phases, []corev1.PodPhase{corev1.PodPending}) {
			t.Errorf("without a token the pod went through %v", phases)
		}
		w.api.setTokens(true)
		w.api.await(pod.UID, isPhase(corev1.PodRunning))
	})
}

func TestReferencesOfAPod(t *testing.T) {
	named := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	from := func(config, secret string) *corev1.EnvVarSource {
		if config != "" {
			return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named(config)}}
		}
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named(secret)}}
	}
	pod := newPod("p", withToken)
	pod.Spec.InitContainers[0].Env = []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", ValueFrom: from("c1", "")}}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: from("", "s1")}, {Name: "B", ValueFrom: from("c1", "")}}
	pod.Spec.Containers[1].EnvFrom = []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("c2")}},
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("s2")}},
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("c3")}}},
		corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s3"}}},
		corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	)
	var got []string
	for _, r := range referencesOf(pod) {
		got = append(got, r.resource+"/"+r.name)
	}
	slices.Sort(got)
	want := []string{
		"configmaps/c1", "configmaps/c2", "configmaps/c3", "configmaps/kube-root-ca.crt",
		"secrets/pull", "secrets/s1", "secrets/s2", "secrets/s3",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := tokenOf(pod); got != 3607 {
		t.Errorf("its token lasts %d s, want 3607", got)
	}
}

// Both encodings of a watch tell the same.
func TestEventsOfAWatchAreReadInBothEncodings(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:   metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "web", ResourceVersion: "41"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{strings.Repeat("10.0.0.1 ", 1000)}}},
	}
	end := slice.DeepCopy()
	end.ResourceVersion, end.Annotations = "42", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	gone := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Reason: metav1.StatusReasonExpired}
	var inJSON, inProtobuf bytes.Buffer
	raw := protobuf.NewSerializer(nil, nil)
	for _, e := range []struct {
		kind   string
		object runtime.Object
	}{{"ADDED", slice}, {"BOOKMARK", end}, {"ERROR", gone}} {
		if err := json.NewEncoder(&inJSON).Encode(map[string]any{"type": e.kind, "object": e.object}); err != nil {
			t.Fatal(err)
		}
		var object bytes.Buffer
		if err := raw.Encode(e.object, &object); err != nil {
			t.Fatal(err)
		}
		event := metav1.WatchEvent{Type: e.kind, Object: runtime.RawExtension{Raw: object.Bytes()}}
		b, err := event.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		inProtobuf.Write([]byte{byte(len(b) >> 24), byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))})
		inProtobuf.Write(b)
	}
	for name, stream := range map[string]*bytes.Buffer{"JSON": &inJSON, "protobuf": &inProtobuf} {
		t.Run(name, func(t *testing.T) {
			in := newEvents(iotest.HalfReader(stream), name == "protobuf")
			defer in.release()
			for _, want := range []watched{{Type: "ADDED", version: "41"}, {Type: "BOOKMARK", version: "42", initialEnd: true}, {Type: "ERROR"}} {
				got, err := in.next()
				if err != nil || got.Type != want.Type || got.version != want.version || got.initialEnd != want.initialEnd {
					t.Fatalf("got %s %q %t, %v; want %s %q %t", got.Type, got.version, got.initialEnd, err, want.Type, want.version, want.initialEnd)
				}
			}
			if _, err := in.next(); !errors.Is(err, io.EOF) {
				t.Errorf("after the last comes %v", err)
			}
		})
	}
}

func TestAFrameThatIsNotOneIsAnError(t *testing.T) {
	for name, frame := range map[string]string{
		"too long":      "\xff\xff\xff\xff",
		"broken off":    "\x00\x00\x00\x09abc",
		"not protobuf":  "\x00\x00\x00\x03abc",
		"not an object": "\x00\x00\x00\x00",
	} {
		if _, err := newEvents(strings.NewReader(frame), true).next(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
