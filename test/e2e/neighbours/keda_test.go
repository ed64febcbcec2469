//go:build e2e

package neighbours

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/cloud/remote"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/hollow"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// kedaKinds are the kinds that KEDA's operator watches: their groups, and whether they have namespaces.
var kedaKinds = []struct{ group, kind, scope string }{
	{"keda.sh", "ScaledObject", "Namespaced"},
	{"keda.sh", "ScaledJob", "Namespaced"},
	{"keda.sh", "TriggerAuthentication", "Namespaced"},
	{"keda.sh", "ClusterTriggerAuthentication", "Cluster"},
	{"eventing.keda.sh", "CloudEventSource", "Namespaced"},
	{"eventing.keda.sh", "ClusterCloudEventSource", "Cluster"},
}

// kedaDefinition is as much of KEDA's own definitions as its operator needs.
const kedaDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.GROUP}
spec:
  group: GROUP
  scope: SCOPE
  names: {kind: KIND, listKind: KINDList, plural: PLURAL, singular: SINGULAR}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
`

// scaledObject has one pod for each five in the queue. How fast it scales is the user's choice.
const scaledObject = `apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: worker}
spec:
  scaleTargetRef: {name: worker}
  minReplicaCount: 0
  maxReplicaCount: 100
  pollingInterval: 1
  cooldownPeriod: 3
  advanced: {horizontalPodAutoscalerConfig: {behavior: {
    scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 100, periodSeconds: 15}]}}}}
  triggers:
  - {type: metrics-api, metadata: {url: 'QUEUE', valueLocation: queue, targetValue: "5"}}
`

const externalMetrics = `apiVersion: v1
kind: Service
metadata: {name: keda-metrics, namespace: NAMESPACE}
spec:
  ports: [{name: https, port: 443, targetPort: PORT}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: keda-metrics, namespace: NAMESPACE, labels: {kubernetes.io/service-name: keda-metrics}}
addressType: IPv4
ports: [{name: https, port: PORT}]
endpoints: [{addresses: [ADDRESS], conditions: {ready: true}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  service: {name: keda-metrics, namespace: NAMESPACE}
  group: external.metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// serveQueue serves how long the queue is until the test ends, and returns its URL.
func (s *space) serveQueue(queue *atomic.Int64) string {
	s.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"queue": %d}`, queue.Load())
	}))
	s.Cleanup(server.Close)
	return server.URL
}

// defineKEDA has the API server serve KEDA's kinds until the test ends.
func (s *space) defineKEDA() {
	s.Helper()
	var manifest strings.Builder
	for _, k := range kedaKinds {
		singular := strings.ToLower(k.kind)
		_, err := strings.NewReplacer("PLURAL", singular+"s", "SINGULAR", singular, "GROUP", k.group, "KIND", k.kind, "SCOPE", k.scope).
			WriteString(&manifest, kedaDefinition)
		if err != nil {
			s.Fatal(err)
		}
	}
	s.cluster(manifest.String())
	for _, k := range kedaKinds {
		s.Eventually("the API server serves "+k.kind, func(ctx context.Context) error {
			path := "/apis/" + k.group + "/v1alpha1/" + strings.ToLower(k.kind) + "s"
			return world.Admin.CoreV1().RESTClient().Get().AbsPath(path).Do(ctx).Error()
		})
	}
}

// runKEDA runs KEDA's operator and its API of metrics until the test ends.
func (s *space) runKEDA() {
	s.Helper()
	s.defineKEDA()
	dir := s.TempDir()
	bundle := s.certificate(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), bundle, 0o600); err != nil {
		s.Fatal(err)
	}
	ports := make([]string, 2)
	for i := range ports {
		port, err := harness.FreePort()
		if err != nil {
			s.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	s.Setenv("WATCH_NAMESPACE", s.NS)
	s.Setenv("POD_NAMESPACE", s.NS)
	s.Setenv("KEDA_CLUSTER_OBJECT_NAMESPACE", s.NS)
	operator, address := net.JoinHostPort("127.0.0.1", ports[0]), network.Host().String()
	s.run("keda-operator", "--cert-dir="+dir, "--ca-dir="+dir, "--metrics-service-bind-address="+operator,
		"--enable-prometheus-metrics=false", "--health-probe-bind-address=0")
	s.run("keda-adapter", "--lister-kubeconfig="+world.Kubeconfig, "--authentication-kubeconfig="+world.Kubeconfig,
		"--authorization-kubeconfig="+world.Kubeconfig, "--metrics-service-address="+operator, "--bind-address="+address,
		"--secure-port="+ports[1], "--cert-dir="+dir, "--tls-cert-file="+filepath.Join(dir, "tls.crt"),
		"--tls-private-key-file="+filepath.Join(dir, "tls.key"), "--port=0")
	// While the API is registered and not served no namespace can be deleted.
	s.cluster(strings.NewReplacer("NAMESPACE", s.NS, "ADDRESS", address, "PORT", ports[1]).Replace(externalMetrics))
	s.Eventually("external metrics are served", func(ctx context.Context) error {
		return world.Admin.CoreV1().RESTClient().Get().AbsPath("/apis/external.metrics.k8s.io/v1beta1").Do(ctx).Error()
	})
}

// onHollowCells has Kip launch cells without machines, until the test ends, and returns their cloud.
func (s *space) onHollowCells() *sim.Cloud {
	s.Helper()
	fleet, err := hollow.New(hollow.Config{})
	if err != nil {
		s.Fatal(err)
	}
	machines, err := sim.New(sim.Config{
		Catalogue: sizes.Types("amd64"), Boot: fleet.Boot, ManagementCIDR: netip.MustParsePrefix("127.90.0.0/16"),
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := errors.Join(machines.Close(), fleet.Close()); err != nil {
			s.Error(err)
		}
	})
	dir, err := os.MkdirTemp("", harness.TempPrefix())
	if err != nil {
		s.Fatal(err)
	}
	socket := filepath.Join(dir, "cloud.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		s.Fatal(err)
	}
	server := &http.Server{Handler: remote.Handler(machines), ReadHeaderTimeout: namespace.Patience}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	s.Cleanup(func() {
		err := server.Close()
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			s.Error(err)
		}
	})
	namespace.Reconfigure(s.T, world, func(provider map[string]any) {
		provider["cloud"] = map[string]any{"sim": map[string]any{"socket": socket}}
	})
	return machines
}

// It gives Kip another cloud.
func TestKEDAScalesFromNothingToAHundredAndBack(t *testing.T) {
	tier.All(t)
	// Before the namespace, which goes first and has its cells end.
	machines := (&space{Space: &namespace.Space{T: t, World: world}}).onHollowCells()
	s := newSpace(t)
	s.hollow = true
	var queue atomic.Int64
	url := s.serveQueue(&queue)
	s.runKEDA()
	s.Apply(deployment("worker", 0, onKip, "        resources: {requests: {cpu: 100m}}\n"))
	s.Apply(strings.ReplaceAll(scaledObject, "QUEUE", url))
	// It has a finalizer, which the operator removes.
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), namespace.Patience)
		defer cancel()
		if out, errs, err := namespace.Run(s.Command(ctx, "delete", "scaledobject", "worker")); err != nil {
			s.Errorf("%v\n%s%s", err, out, errs)
		}
	})
	for range 2 {
		began := time.Now()
		queue.Store(500) // five for each of a hundred
		s.readyPods("worker", 100)
		s.took("100 pods were Ready", began)
		if n := len(machines.Truth()); n != 100 {
			t.Errorf("there are %d machines for 100 pods", n)
		}
		began = time.Now()
		queue.Store(0)
		s.Eventually("no pod, no cell and no machine is left", func(ctx context.Context) error {
			pods, err := s.PodsOf(ctx, "worker")
			if err != nil {
				return err
			}
			if left := machines.Truth(); len(pods)+len(left) > 0 {
				return fmt.Errorf("there are %d pods and %d machines", len(pods), len(left))
			}
			return s.NoCells(ctx)
		})
		s.took("all of them were gone", began)
	}
}
