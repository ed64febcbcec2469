//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// nodeRaw asks the kubelet port, through the API server.
func nodeRaw(ctx context.Context, path, parameter, value string) (string, error) {
	r := world.Admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + harness.Node + "/proxy" + path)
	if parameter != "" {
		r = r.Param(parameter, value)
	}
	data, err := r.DoRaw(ctx)
	return string(data), err
}

func TestTheKubeletPortTellsWhatPodsUse(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	for _, name := range []string{"a", "b"} {
		s.Apply(namespace.Bare(name, `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
`))
	}
	for _, name := range []string{"a", "b"} {
		s.WaitReady(name)
	}
	text, err := nodeRaw(s.Context(), "/metrics", "", "")
	if err != nil || !strings.Contains(text, `kubelet_node_name{node="`+harness.Node+`"} 1`) ||
		!strings.Contains(text, "\nkubelet_running_pods ") {
		t.Errorf("/metrics of the node: %v\n%s", err, text)
	}
	for path, name := range map[string]string{
		"/metrics/resource": "container_cpu_usage_seconds_total", "/metrics/cadvisor": "container_memory_working_set_bytes",
		"/metrics/probes": "prober_probe_total",
	} {
		s.Eventually(path+" has both pods", func(ctx context.Context) error {
			text, err := nodeRaw(ctx, path, "", "")
			if err != nil {
				return err
			}
			for _, pod := range []string{"a", "b"} {
				found := false
				for line := range strings.Lines(text) {
					found = found || strings.HasPrefix(line, name+"{") && strings.Contains(line, `pod="`+pod+`"`) &&
						strings.Contains(line, `namespace="`+s.NS+`"`) && (path == "/metrics/probes" || strings.Contains(line, `container="main"`))
				}
				if !found {
					return fmt.Errorf("there is no %s of %s", name, pod)
				}
			}
			if strings.Contains(text, `id="/"`) {
				return errors.New("it shows a machine")
			}
			return nil
		})
	}
	for _, only := range []string{"", "true"} {
		s.Eventually("/stats/summary?only_cpu_and_memory="+only+" has both pods", func(ctx context.Context) error {
			text, err := nodeRaw(ctx, "/stats/summary", "only_cpu_and_memory", only)
			if err != nil {
				return err
			}
			var summary statsapi.Summary
			if err := json.Unmarshal([]byte(text), &summary); err != nil {
				return err
			}
			if n := summary.Node; n.NodeName != harness.Node || n.CPU == nil || *n.CPU.UsageCoreNanoSeconds == 0 || *n.Memory.WorkingSetBytes == 0 {
				return fmt.Errorf("the node is %+v", n)
			}
			have := map[string]bool{}
			for _, p := range summary.Pods {
				if p.PodRef.Namespace == s.NS && p.Memory != nil && p.Memory.WorkingSetBytes != nil {
					have[p.PodRef.Name] = true
				}
			}
			if len(have) != 2 {
				return fmt.Errorf("the pods are %v", have)
			}
			return nil
		})
	}
}

// metricsServerRights are those of metrics-server's own manifest. NAMESPACE is the
// test's.
const metricsServerRights = `apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server}
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server}
spec:
  ports: [{name: https, port: 443, targetPort: PORT}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics-server, labels: {kubernetes.io/service-name: metrics-server}}
addressType: IPv4
ports: [{name: https, port: PORT}]
endpoints: [{addresses: [ADDRESS], conditions: {ready: true}}]
`

const metricsServerClusterRights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-metrics-server}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-metrics-server}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-metrics-server}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: NAMESPACE}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-metrics-server-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: NAMESPACE}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: e2e-metrics-server-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: NAMESPACE}]
`

const metricsAPIService = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  service: {name: metrics-server, namespace: NAMESPACE}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// cluster applies a manifest that names its namespaces, and deletes it when the
// test ends.
func (s *space) cluster(manifest string) {
	s.Helper()
	kubectl := func(ctx context.Context, args ...string) error {
		cmd := world.Kubectl(ctx, append(args, "-f", "-")...)
		cmd.Stdin = strings.NewReader(manifest)
		if out, errs, err := namespace.Run(cmd); err != nil {
			return fmt.Errorf("%v\n%s%s", err, out, errs)
		}
		return nil
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := kubectl(ctx, "delete", "--ignore-not-found"); err != nil {
			s.Error(err)
		}
	})
	if err := kubectl(s.Context(), "apply"); err != nil {
		s.Fatal(err)
	}
}

// runMetricsServer runs metrics-server as a process of this host, as its service
// account, and registers its API.
func (s *space) runMetricsServer() {
	s.Helper()
	port, err := harness.FreePort()
	if err != nil {
		s.Fatal(err)
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		s.Fatal(err)
	}
	address := prefix.Masked().Addr().Next().String() // the host's, on the bridge
	fill := strings.NewReplacer("PORT", strconv.Itoa(port), "ADDRESS", address, "NAMESPACE", s.NS).Replace
	s.Apply(fill(metricsServerRights))
	s.cluster(fill(metricsServerClusterRights))
	token, err := world.Admin.CoreV1().ServiceAccounts(s.NS).CreateToken(s.Context(), "metrics-server", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	dir := s.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: world.Config.Host, CertificateAuthorityData: world.Config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: token.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, kubeconfig); err != nil {
		s.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	server, err := child.Start(child.Spec{Path: world.Tool("metrics-server"), LogFile: log, Args: []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + address, "--secure-port=" + strconv.Itoa(port), "--cert-dir=" + dir,
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port",
		"--kubelet-certificate-authority=" + filepath.Join(world.State, "pki", "ca.crt"), "--metric-resolution=10s",
		"--kubelet-request-timeout=8s",
	}})
	if err != nil {
		s.Fatalf("start metrics-server (is it built? `make bin/metrics-server`): %v", err)
	}
	s.Cleanup(func() {
		if err := errors.Join(server.Kill(), server.Unasked()); err != nil {
			s.Errorf("metrics-server: %v", err)
		}
		if text, err := os.ReadFile(log); s.Failed() {
			s.Logf("the log of metrics-server (%v):\n%s", err, text)
		}
	})
	// Its API is registered when it serves, and no longer: meanwhile no namespace can be deleted.
	runs := func() {
		s.Helper()
		select {
		case <-server.Done():
			s.Fatalf("metrics-server has ended: %v", server.Err())
		default:
		}
	}
	s.Eventually("metrics-server listens", func(ctx context.Context) error {
		runs()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	s.cluster(fill(metricsAPIService))
	s.Eventually("the metrics API is served", func(ctx context.Context) error {
		runs()
		return world.Admin.CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1").Do(ctx).Error()
	})
}

// top returns the lines of `kubectl top` for a kind, by their first column.
func (s *space) top(kind string) (map[string][]string, error) {
	out, code, errs := s.Try("top", kind, "--no-headers")
	if code != 0 {
		return nil, errors.New(errs)
	}
	lines := map[string][]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 {
			lines[f[0]] = f[1:]
		}
	}
	return lines, nil
}

// atLeast says whether a column of kubectl top is a quantity of at least least.
func atLeast(column, least string) error {
	q, err := resource.ParseQuantity(column)
	if err != nil {
		return fmt.Errorf("%q is no quantity: %w", column, err)
	}
	if q.Cmp(resource.MustParse(least)) < 0 {
		return fmt.Errorf("%s is less than %s", column, least)
	}
	return nil
}

// topShows waits until `kubectl top` shows busy pods, and their nodes.
func (s *space) topShows(nodes map[string]string) {
	s.Helper()
	s.Eventually("kubectl top shows the busy pods and their nodes", func(context.Context) error {
		ofPods, err := s.top("pod")
		if err != nil {
			return err
		}
		ofNodes, err := s.top("node")
		if err != nil {
			return err
		}
		for pod, node := range nodes {
			// Idle it uses 5m at most. Busy it would use 200m, if this machine had nothing else to do.
			line := ofPods[pod]
			if len(line) != 2 {
				return fmt.Errorf("the pods are %v", ofPods)
			}
			if err := errors.Join(atLeast(line[0], "15m"), atLeast(line[1], "16Mi")); err != nil {
				return fmt.Errorf("pod %s: %w", pod, err)
			}
			line = ofNodes[node]
			if len(line) != 4 || !strings.HasSuffix(line[1], "%") || !strings.HasSuffix(line[3], "%") {
				return fmt.Errorf("the nodes are %v", ofNodes)
			}
			// The system parts of a cell have some 50 MiB.
			if err := errors.Join(atLeast(line[0], "15m"), atLeast(line[2], "20Mi")); err != nil {
				return fmt.Errorf("node %s: %w", node, err)
			}
		}
		return nil
	})
	for _, args := range [][]string{{"top", "node"}, {"top", "pod", "--containers"}} {
		s.Logf("kubectl %s\n%s", strings.Join(args, " "), s.Kubectl(args...))
	}
}

// Alone in its world: while the metrics API does not answer, on a machine that is busy, no namespace can be deleted.
func TestMetricsServerAndAutoscalerSeePodsOnCells(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.Apply(`apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 1
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'while [ ! -e /work ]; do sleep 0.5; done; held=$(head -c 20000000 /dev/zero | tr "\0" x); while :; do :; done']
        resources: {requests: {cpu: 100m}, limits: {cpu: 200m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: d}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 15}}}]
`)
	s.Apply(elsewhere(namespace.Bare("plain", `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'held=$(head -c 20000000 /dev/zero | tr "\0" x); while :; do :; done']
    resources: {requests: {cpu: 100m}, limits: {cpu: 200m}}
`)))
	s.runMetricsServer()
	autoscaler := func(ctx context.Context) (*autoscalingv2.HorizontalPodAutoscaler, error) {
		return world.Admin.AutoscalingV2().HorizontalPodAutoscalers(s.NS).Get(ctx, "d", metav1.GetOptions{})
	}
	s.Eventually("the autoscaler knows the idle pod's CPU", func(ctx context.Context) error {
		hpa, err := autoscaler(ctx)
		if err != nil {
			return err
		}
		if m := hpa.Status.CurrentMetrics; len(m) != 1 || m[0].Resource == nil || m[0].Resource.Current.AverageUtilization == nil {
			return fmt.Errorf("it says %+v", hpa.Status)
		} else if u := *m[0].Resource.Current.AverageUtilization; u > 15 || hpa.Status.DesiredReplicas != 1 {
			return fmt.Errorf("the idle pod uses %d %%, %d pods are wanted", u, hpa.Status.DesiredReplicas)
		}
		return nil
	})
	pods := func(ctx context.Context) ([]corev1.Pod, error) {
		list, err := world.Admin.CoreV1().Pods(s.NS).List(ctx, metav1.ListOptions{LabelSelector: "app=d"})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	}
	list, err := pods(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%d pods, %v", len(list), err)
	}
	busy := list[0].Name
	s.Kubectl("exec", busy, "--", "touch", "/work")
	s.topShows(map[string]string{busy: harness.Node, "plain": ordinaryNode})
	s.Eventually("the autoscaler adds a pod, on a cell of its own", func(ctx context.Context) error {
		list, err := pods(ctx)
		if err != nil {
			return err
		}
		running := 0
		for i := range list {
			if list[i].Spec.NodeName == harness.Node && namespace.IsReady(&list[i]) {
				running++
			}
		}
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		if len(list) != 2 || running != 2 || len(cells) != 2 {
			return fmt.Errorf("%d pods, %d of them ready on %s, %d cells", len(list), running, harness.Node, len(cells))
		}
		return nil
	})
}
