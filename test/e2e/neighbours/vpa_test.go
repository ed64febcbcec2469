//go:build e2e

package neighbours

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// vpaDefinition is as much of VPA's own definition as its updater and its admission need. The test is the recommender, and writes the
// status with the rest.
const vpaDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: verticalpodautoscalers.autoscaling.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes/kubernetes/pull/63797"}
spec:
  group: autoscaling.k8s.io
  scope: Namespaced
  names: {kind: VerticalPodAutoscaler, listKind: VerticalPodAutoscalerList, plural: verticalpodautoscalers, singular: verticalpodautoscaler}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// vpaWebhook has the API server ask VPA's admission about the pods of the test's namespace.
const vpaWebhook = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: e2e-vpa}
webhooks:
- name: vpa.k8s.io
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  clientConfig: {url: "https://127.0.0.1:PORT/", caBundle: BUNDLE}
`

// certificate makes one for 127.0.0.1, with its key, and returns it as PEM.
func (s *space) certificate(cert, key string) []byte {
	s.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "vpa"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		s.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		s.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := errors.Join(os.WriteFile(cert, public, 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600)); err != nil {
		s.Fatal(err)
	}
	return public
}

// runVPA runs the updater and the admission of the Vertical Pod Autoscaler for the namespace.
func (s *space) runVPA() {
	s.Helper()
	s.cluster(vpaDefinition)
	s.Eventually("the API server serves VerticalPodAutoscalers", func(ctx context.Context) error {
		return world.Admin.CoreV1().RESTClient().Get().AbsPath("/apis/autoscaling.k8s.io/v1/verticalpodautoscalers").Do(ctx).Error()
	})
	ports := make([]int, 3)
	for i := range ports {
		var err error
		if ports[i], err = harness.FreePort(); err != nil {
			s.Fatal(err)
		}
	}
	dir := s.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	bundle := s.certificate(cert, key)
	s.run("vpa-admission-controller", "--register-webhook=false", "--client-ca-file="+cert, "--tls-cert-file="+cert, "--tls-private-key="+key,
		fmt.Sprint("--port=", ports[0]), fmt.Sprint("--address=127.0.0.1:", ports[1]), "--vpa-object-namespace="+s.NS)
	s.Cleanup(func() {
		leases := world.Admin.CoordinationV1().Leases(metav1.NamespaceSystem)
		err := leases.Delete(context.Background(), "vpa-admission-controller", metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	})
	s.Eventually("VPA's admission listens", func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprint("127.0.0.1:", ports[0]))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	s.cluster(strings.NewReplacer("NAMESPACE", s.NS, "PORT", fmt.Sprint(ports[0]),
		"BUNDLE", base64.StdEncoding.EncodeToString(bytes.TrimSpace(bundle))).Replace(vpaWebhook))
	s.run("vpa-updater", "--updater-interval=5s", fmt.Sprint("--address=127.0.0.1:", ports[2]), "--vpa-object-namespace="+s.NS)
}

// recommend has VPA give the pods of a Deployment this much.
func (s *space) recommend(name, mode, cpu, memory string) {
	s.Helper()
	amount := fmt.Sprintf("{cpu: %s, memory: %s}", cpu, memory)
	s.Apply(fmt.Sprintf(`apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: %[1]s}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  updatePolicy: {updateMode: %[2]s}
status:
  conditions: [{type: RecommendationProvided, status: "True", lastTransitionTime: "2026-01-01T00:00:00Z"}]
  recommendation:
    containerRecommendations: [{containerName: main, target: %[3]s, lowerBound: %[3]s, upperBound: %[3]s, uncappedTarget: %[3]s}]
`, name, mode, amount))
}

// waitResized waits until both pods of a Deployment are Ready, and have so much and not less, as their kubelets say.
func (s *space) waitResized(app, cpu, memory string) []corev1.Pod {
	s.Helper()
	s.Within(2*namespace.Patience, fmt.Sprintf("the pods of %s have %s and %s", app, cpu, memory), func(ctx context.Context) error {
		pods, err := s.PodsOf(ctx, app)
		if err != nil {
			return err
		}
		for i := range pods {
			p := &pods[i]
			if !namespace.IsReady(p) || p.Status.ContainerStatuses[0].Resources == nil {
				return fmt.Errorf("pod %s is not Ready", p.Name)
			}
			has, is := p.Spec.Containers[0].Resources.Requests, p.Status.ContainerStatuses[0].Resources.Requests
			for _, r := range []corev1.ResourceList{has, is} {
				if r.Cpu().String() != cpu || r.Memory().String() != memory {
					return fmt.Errorf("pod %s requests %v and has %v: %v", p.Name, has, is, p.Status.Conditions)
				}
			}
		}
		if len(pods) != 2 {
			return fmt.Errorf("there are %d", len(pods))
		}
		return nil
	})
	return s.readyPods(app, 2)
}

// on checks the types of the cells of pods.
func (s *space) on(pods []corev1.Pod, want string) {
	s.Helper()
	for _, p := range pods {
		if got := s.CellOf(p.Name).Status.InstanceType; got != want {
			s.Errorf("pod %s is on a %s, want a %s", p.Name, got, want)
		}
	}
}

func TestTheVerticalPodAutoscalerResizesInPlaceOrRecreates(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.runVPA()
	const small = "        resources: {requests: {cpu: 100m, memory: 64Mi}}\n"
	s.Apply(deployment("recreates", 2, onKip, small) + "---\n" + deployment("in-place", 2, onKip, small))
	recreates, inPlace := s.readyPods("recreates", 2), s.readyPods("in-place", 2)
	s.on(slices.Concat(recreates, inPlace), "nano")

	// Its bound of disruption is its own: one of two pods at a time.
	s.recommend("recreates", "Recreate", "600m", "300Mi")
	s.recommend("in-place", "InPlaceOrRecreate", "200m", "96Mi")
	resized := s.waitResized("in-place", "200m", "96Mi")
	if !slices.Equal(uidsOf(resized), uidsOf(inPlace)) {
		t.Errorf("pods that fit their machines were made anew: %v, and %v before", uidsOf(resized), uidsOf(inPlace))
	}
	for _, p := range resized {
		if n := p.Status.ContainerStatuses[0].RestartCount; n != 0 {
			t.Errorf("the container of pod %s was restarted %d times", p.Name, n)
		}
	}
	larger := s.waitResized("recreates", "600m", "300Mi")
	s.on(larger, "small")

	// Beyond the machine Kip's webhook refuses a resize, and VPA evicts.
	s.recommend("in-place", "InPlaceOrRecreate", "700m", "300Mi")
	grown := s.waitResized("in-place", "700m", "300Mi")
	s.on(grown, "small")
	for _, p := range inPlace {
		if slices.Contains(uidsOf(grown), p.UID) {
			t.Errorf("pod %s is there, on a machine that is too small", p.Name)
		}
	}

	// A machine that is too large stays: in place saves nothing.
	s.recommend("in-place", "InPlaceOrRecreate", "100m", "64Mi")
	shrunk := s.waitResized("in-place", "100m", "64Mi")
	if !slices.Equal(uidsOf(shrunk), uidsOf(grown)) {
		t.Errorf("pods that became smaller were made anew: %v, and %v before", uidsOf(shrunk), uidsOf(grown))
	}
	s.on(shrunk, "small")
	if gone, err := s.gone(t.Context(), slices.Concat(larger, shrunk)); err != nil || len(gone) > 0 {
		t.Errorf("these pods have what is recommended, and are gone: %v, %v", gone, err)
	}
	s.Kubectl("delete", "deployment", "recreates", "in-place")
}
