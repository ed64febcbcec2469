//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// shipment is what a log shipper sends.
type shipment struct {
	From                                                   string // the address that it came from
	Host                                                   string // of its node, by the downward API
	Version, Colour, Word, Node, Pod, UID, Token, Own, Log string
}

// collector takes what log shippers send.
type collector struct {
	url string
	mu  sync.Mutex
	all []shipment
}

func collect(t *testing.T) *collector {
	t.Helper()
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(prefix.Masked().Addr().Next().String(), "0")) // the host's, on the bridge
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{url: "http://" + l.Addr().String()}
	server := &http.Server{Handler: c}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var is shipment
	head, log, _ := strings.Cut(string(body), "\n\n")
	if err := json.Unmarshal([]byte(head), &is); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	is.From, _, _ = net.SplitHostPort(r.RemoteAddr)
	is.Log = log
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, is)
}

// has reports whether some log that was shipped has a text.
func (c *collector) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.all, func(s shipment) bool { return strings.Contains(s.Log, text) })
}

// last returns what came last of a version from a machine.
func (c *collector) last(version, from string) (shipment, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range slices.Backward(c.all) {
		if s.Version == version && s.From == from {
			return s, true
		}
	}
	return shipment{}, false
}

// shipper is a log shipper as its users have it: it tolerates everything, reads the logs of all pods of its node, and knows nothing
// of Kip.
const shipper = `apiVersion: v1
kind: ServiceAccount
metadata: {name: shipper}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: shipper}
data: {colour: red}
---
apiVersion: v1
kind: Secret
metadata: {name: shipper}
stringData: {word: sesame}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: shipper}
spec:
  selector: {matchLabels: {app: shipper}}
  template:
    metadata: {labels: {app: shipper}}
    spec:
      serviceAccountName: shipper
      terminationGracePeriodSeconds: 20
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
      containers:
      - name: shipper
        image: busybox:1.36
        command:
        - sh
        - -c
        - |
          trap 'ship; exit 0' TERM
          mkdir /tmp/www; echo shipping > /tmp/www/index.html; httpd -p 8080 -h /tmp/www
          ship() {
            {
              printf '{"version":"%s","colour":"%s","word":"%s","node":"%s","pod":"%s","uid":"%s",' \
                "$VERSION" "$(cat /config/colour)" "$WORD" "$NODE" "$POD" "$UID_OF_POD"
              printf '"host":"%s","own":"%s","token":"%s"}\n\n' "$HOST" "$OWN" \
                "$(cat /var/run/secrets/kubernetes.io/serviceaccount/token)"
              cat /var/log/containers/*_SPACE_main-*.log
            } > /tmp/body
            wget -q -O /dev/null --post-file=/tmp/body SERVER || echo "not shipped"
          }
          while :; do ship; sleep 1; done
        env:
        - {name: VERSION, value: "1"}
        - {name: WORD, valueFrom: {secretKeyRef: {name: shipper, key: word}}}
        - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: UID_OF_POD, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
        - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
        - {name: OWN, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        ports: [{containerPort: 8080, hostPort: 9981}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 16Mi}}
        volumeMounts:
        - {name: log, mountPath: /var/log, readOnly: true}
        - {name: config, mountPath: /config}
      volumes:
      - {name: log, hostPath: {path: /var/log}}
      - {name: config, configMap: {name: shipper}}
`

// speaks is a pod that says a word to its log again and again.
func speaks(name string) string {
	return namespace.Bare(name, `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'trap "exit 0" TERM; while :; do echo `+name+` says hello; sleep 1; done']
    env: [{name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]
`)
}

// setPod returns the one pod of a DaemonSet on the virtual node that is not being deleted.
func (s *space) setPod(app, other string) *corev1.Pod {
	s.Helper()
	pod := s.WaitPodOf(app, other)
	if pod.Spec.NodeName != harness.Node {
		s.Fatalf("pod %s is on node %s", pod.Name, pod.Spec.NodeName)
	}
	return pod
}

// ships waits until the copy beside a pod ships the pod's log, and returns what it sends.
func (s *space) ships(c *collector, pod, version string) (is shipment) {
	s.Helper()
	from := s.CellOf(pod).Status.ManagementIP
	s.Eventually("the copy of version "+version+" beside "+pod+" ships its log", func(context.Context) error {
		var ok bool
		if is, ok = c.last(version, from); !ok || !strings.Contains(is.Log, pod+" says hello") {
			return fmt.Errorf("it shipped %t: %.300q", ok, is.Log)
		}
		return nil
	})
	return is
}

// beside returns what the Cell of a pod says of the copies of a pod of a DaemonSet; "" for none.
func (s *space) beside(pod, set string) string {
	for _, b := range s.CellOf(pod).Status.Beside {
		if b.Name == set {
			return fmt.Sprintf("ready %t, %d restarts, %s", b.Ready, b.Restarts, b.Message)
		}
	}
	return ""
}

// Its manifest tolerates nothing and leaves out Fargate's nodes, as charts and add-ons have it, and its add-on manager applies it again and
// again. Not parallel: it starts Kip anew.
func TestALogShipperThatToleratesNothingRunsBesideAPod(t *testing.T) {
	s := newSpace(t)
	c := collect(t)
	reconfigure(t, map[string]any{"daemonSets": []any{map[string]any{"namespace": s.NS, "name": "shipper", "maxDelay": 60}}})
	s.asked()
	text := strings.NewReplacer("SERVER", c.url, "SPACE", s.NS, "      tolerations: [{operator: Exists}]\n", notFargate,
		"terminationGracePeriodSeconds: 20", "terminationGracePeriodSeconds: 1").Replace(shipper)
	file := filepath.Join(t.TempDir(), "shipper.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	apply := func() int64 {
		s.Kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=addons", "-f", file)
		set, err := world.Admin.AppsV1().DaemonSets(s.NS).Get(t.Context(), "shipper", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return set.Generation
	}
	first := apply()
	s.Apply(speaks("a"))
	s.WaitReady("a")
	s.ships(c, "a", "1")
	if again := apply(); again != first {
		t.Errorf("applied again the set has generation %d, and had %d: something was reverted", again, first)
	}
	s.Kubectl("rollout", "status", "daemonset/shipper", "--timeout=1m")
	s.Kubectl("delete", "daemonset", "shipper")
	s.deleteAll("a")
	s.NoOtherCells()
}

// notFargate is what add-ons of EKS have in the place of tolerations.
const notFargate = `      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
        {matchExpressions: [{key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}]}]}}}
`

// Not parallel: it starts Kip anew.
func TestALogShipperRunsBesideEachPodOnItsCell(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	c := collect(t)
	reconfigure(t, map[string]any{"daemonSets": []any{map[string]any{"namespace": s.NS, "name": "shipper", "maxDelay": 60, "linger": 20}}})
	s.Apply(strings.NewReplacer("SERVER", c.url, "SPACE", s.NS).Replace(shipper))
	s.Kubectl("rollout", "status", "daemonset/shipper", "--timeout=2m")
	first := s.setPod("shipper", "")

	// Each copy sees its cell's pod, and has what its own manifest names.
	before := map[string]*corev1.Pod{}
	for _, name := range []string{"a", "b"} {
		s.Apply(speaks(name))
	}
	for _, name := range []string{"a", "b"} {
		before[name] = s.WaitReady(name)
		is := s.ships(c, name, "1")
		cell := s.CellOf(name)
		if is.Colour != "red" || is.Word != "sesame" || is.Node != harness.Node || is.Pod != first.Name || is.UID != string(first.UID) ||
			is.Host != cell.Status.ManagementIP || !strings.HasPrefix(is.Own, "169.254.") {
			t.Errorf("beside %s it has %+v", name, is)
		}
		if other := map[string]string{"a": "b", "b": "a"}[name]; strings.Contains(is.Log, other+" says") {
			t.Errorf("beside %s it sees the log of %s", name, other)
		}
		review, err := world.Admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: is.Token},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if u := review.Status.User; u.Username != "system:serviceaccount:"+s.NS+":shipper" ||
			!slices.Equal(u.Extra["authentication.kubernetes.io/pod-uid"], []string{string(first.UID)}) {
			t.Errorf("its token is of %+v", u)
		}
		// By its node's address, as a library finds its agent.
		s.Eventually("the pod reaches the copy beside it", func(ctx context.Context) error {
			out, code, stderr := s.Attempt(ctx, "exec", name, "--", "sh", "-c", "timeout 5 wget -qO- http://$HOST:9981/")
			if code != 0 || strings.TrimSpace(out) != "shipping" {
				return fmt.Errorf("%q, %s", out, stderr)
			}
			return nil
		})
		s.Eventually("the Cell says so", func(context.Context) error {
			if got := s.beside(name, first.Name); got != "ready true, 0 restarts, " {
				return errors.New(got)
			}
			return nil
		})
	}
	_, code, stderr := s.Try("logs", first.Name)
	if code == 0 || !strings.Contains(stderr, s.CellOf("a").Name) || !strings.Contains(stderr, s.CellOf("b").Name) {
		t.Errorf("kubectl logs ends with %d: %s", code, stderr)
	}
	if now, err := s.Pod(t.Context(), first.Name); err != nil || now.Status.PodIP != "" || !namespace.IsReady(now) ||
		len(now.Status.ContainerStatuses) > 0 {
		t.Errorf("the set's own pod has the status %+v (%v)", now.Status, err)
	}

	// An update rolls over the cells, and no pod notices. Kip dies in between.
	s.Kubectl("set", "env", "daemonset/shipper", "VERSION=2")
	killKip(t)
	startKip(t)
	s.Kubectl("rollout", "status", "daemonset/shipper", "--timeout=4m")
	second := s.setPod("shipper", first.Name)
	for name, pod := range before {
		if is := s.ships(c, name, "2"); is.UID != string(second.UID) {
			t.Errorf("beside %s runs pod %s, want %s", name, is.UID, second.UID)
		}
		now := s.WaitReady(name)
		was, is := pod.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
		if now.UID != pod.UID || is.ContainerID != was.ContainerID || is.RestartCount != 0 || !now.Status.StartTime.Equal(pod.Status.StartTime) {
			t.Errorf("pod %s noticed: %s, %s before", name, namespace.States(now), namespace.States(pod))
		}
	}
	// Nor does a copy notice that Kip dies.
	counted := s.shipping(c, "a", "2")
	killKip(t)
	startKip(t)
	s.WaitReady("a")
	s.Eventually("the Cell says again how the copy fares", func(context.Context) error {
		if got := s.beside("a", second.Name); got != "ready true, 0 restarts, " {
			return errors.New(got)
		}
		return nil
	})
	if s.shipping(c, "a", "2") != counted {
		t.Errorf("the copy beside a started again")
	}
	// What a pod says last is shipped: its cell goes on until the copy has ended.
	s.Apply(namespace.Bare("brief", `  restartPolicy: Never
  containers:
  - {name: main, image: 'busybox:1.36', command: [sh, -c, 'echo brief says hello; sleep 3; echo the last words of brief']}
`))
	s.WaitPod("brief", "has Succeeded", namespace.HasPhase(corev1.PodSucceeded))
	s.Eventually("its last words are shipped", func(context.Context) error {
		if !c.has("the last words of brief") {
			return errors.New("they are not")
		}
		return nil
	})
	s.Kubectl("delete", "daemonset", "shipper")
	s.WaitGone(second.Name)
	s.deleteAll("a", "b", "brief")
	s.NoOtherCells()
}

// shipping returns the ID of the container that runs on a pod's cell as a copy, by its log file's name.
func (s *space) shipping(c *collector, pod, version string) string {
	s.Helper()
	s.ships(c, pod, version)
	names, err := filepath.Glob(s.Machine(s.CellOf(pod)).Path("var/log/containers/shipper-*.log"))
	if err != nil || len(names) == 0 {
		s.Fatalf("the logs of the copies beside %s: %q, %v", pod, names, err)
	}
	return strings.Join(names, " ")
}
