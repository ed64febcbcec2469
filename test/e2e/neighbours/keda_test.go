//go:build e2e

package neighbours

import (
	"context"
	"crypto/tls"
	"encoding/json"
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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/cloud/remote"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/hollow"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// What KEDA makes of a ScaledObject worker with minReplicaCount 0, maxReplicaCount 100 and one trigger (controllers/keda/hpa.go of
// KEDA 2.21). How fast it scales is the user's choice.
const kedaHPA = `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: keda-hpa-worker, labels: {app.kubernetes.io/managed-by: keda-operator, scaledobject.keda.sh/name: worker}}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: worker}
  minReplicas: 1
  maxReplicas: 100
  behavior: {scaleUp: {stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 100, periodSeconds: 15}]}}
  metrics:
  - type: External
    external:
      metric: {name: s0-queue, selector: {matchLabels: {scaledobject.keda.sh/name: worker}}}
      target: {type: AverageValue, averageValue: "5"}
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

// cooldown is KEDA's cooldownPeriod: how long no work is there until it scales to nothing.
const cooldown = 3 * time.Second

// keda does what KEDA does: its operator is a program of 370 modules. It scales between 0 and 1 by the scale subresource
// (pkg/scaling/executor/scale_scaledobjects.go, scaleFromZeroOrIdle and scaleToZeroOrIdle), and serves what is in the queue as an
// external metric, by which its HorizontalPodAutoscaler does the rest.
type keda struct {
	*space
	queue atomic.Int64
}

// serve answers the API server's questions for external metrics.
func (k *keda) serve() {
	k.Helper()
	const group = "/apis/external.metrics.k8s.io/v1beta1"
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+group, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "external.metrics.k8s.io/v1beta1",
			"resources": []any{map[string]any{
				"name": "externalmetrics", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": []string{"get"},
			}}})
	})
	mux.HandleFunc("GET "+group+"/namespaces/"+k.NS+"/s0-queue", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": map[string]any{},
			"items": []any{map[string]any{"metricName": "s0-queue", "metricLabels": nil, "timestamp": time.Now().UTC().Format(time.RFC3339),
				"value": strconv.FormatInt(k.queue.Load(), 10)}}})
	})
	address := network.Host().String()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		k.Fatal(err)
	}
	server := httptest.NewUnstartedServer(mux)
	_ = server.Listener.Close()
	server.Listener, server.TLS = l, &tls.Config{}
	server.StartTLS()
	k.Cleanup(server.Close)
	// While the API is registered and not served no namespace can be deleted.
	fill := strings.NewReplacer("NAMESPACE", k.NS, "ADDRESS", address, "PORT", fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	k.cluster(fill.Replace(externalMetrics))
	k.Eventually("external metrics are served", func(ctx context.Context) error {
		return world.Admin.CoreV1().RESTClient().Get().AbsPath(group + "/namespaces/" + k.NS + "/s0-queue").Do(ctx).Error()
	})
}

// scale is the operator's loop.
func (k *keda) scale(ctx context.Context) error {
	deployments, active := world.Admin.AppsV1().Deployments(k.NS), time.Time{}
	for {
		now := time.Now()
		scale, err := deployments.GetScale(ctx, "worker", metav1.GetOptions{})
		if err != nil {
			return err
		}
		switch work := k.queue.Load() > 0; {
		case work && scale.Spec.Replicas == 0:
			scale.Spec.Replicas = 1
			_, err = deployments.UpdateScale(ctx, "worker", scale, metav1.UpdateOptions{})
			active = now
		case work:
			active = now
		case scale.Spec.Replicas > 0 && now.Sub(active) > cooldown:
			scale.Spec.Replicas = 0
			_, err = deployments.UpdateScale(ctx, "worker", scale, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
		if err := harness.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
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
	machines := (&space{&namespace.Space{T: t, World: world}}).onHollowCells()
	s := newSpace(t)
	k := &keda{space: s}
	s.Apply(deployment("worker", 0, onKip, "        resources: {requests: {cpu: 100m}}\n"))
	k.serve()
	s.Apply(kedaHPA)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.scale(ctx) }()
	defer func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	for range 2 {
		began := time.Now()
		k.queue.Store(500) // five for each of a hundred
		s.readyPods("worker", 100)
		s.took("100 pods were Ready", began)
		if n := len(machines.Truth()); n != 100 {
			t.Errorf("there are %d machines for 100 pods", n)
		}
		began = time.Now()
		k.queue.Store(0)
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
