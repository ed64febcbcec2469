//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agent/localapi"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// machine is the machine of a pod's cell, as root on the host gets at it.
type machine struct {
	cell apiv1.Cell
	pid  int // of its init, on the host
}

// machine returns the machine that a pod runs on.
func (s *space) machine(pod string) machine {
	s.Helper()
	m := s.Machine(s.CellOf(pod))
	return machine{cell: m.Cell, pid: m.PID}
}

func (m machine) shared() namespace.Machine { return namespace.Machine{Cell: m.cell, PID: m.pid} }

// path is where the host sees a file of the machine.
func (m machine) path(name string) string { return m.shared().Path(name) }

// netns is the machine's network namespace.
func (m machine) netns() string { return m.shared().Netns() }

// dial dials an address from within the machine, as a process on its host
// network does.
func (m machine) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return m.shared().Dial(ctx, network, address)
}

// kubelet is the client configuration of the machine's kubelet.
func (m machine) kubelet() (*rest.Config, error) { return m.shared().Kubelet() }

// tenant is one of two pods that share a namespace, and nothing else.
type tenant struct {
	machine
	pod          *corev1.Pod
	account      string // its service account
	secret       string // that it names
	instanceType string
	client       kubernetes.Interface // its kubelet's
}

// tenants runs two pods, each with a Secret and a ConfigMap of its own, on
// machines of different sizes.
func tenants(s *space) (a, b *tenant) {
	s.Helper()
	manifest := "apiVersion: v1\nkind: Secret\nmetadata: {name: nobodys}\nstringData: {word: secret}\n"
	all := []*tenant{{instanceType: "nano"}, {instanceType: "large"}}
	for i, t := range all {
		name := string(rune('a' + i))
		t.account, t.secret = "account-"+name, "secret-"+name
		manifest += fmt.Sprintf(`---
apiVersion: v1
kind: ServiceAccount
metadata: {name: account-%[1]s}
---
apiVersion: v1
kind: Secret
metadata: {name: secret-%[1]s}
stringData: {word: sesame-%[1]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config-%[1]s}
data: {word: hello-%[1]s}
---
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  annotations: {%[2]s: %[3]s}
spec:
  serviceAccountName: account-%[1]s
  %[4]s  volumes:
  - {name: secret, secret: {secretName: secret-%[1]s}}
  - {name: config, configMap: {name: config-%[1]s}}
  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    volumeMounts:
    - {name: secret, mountPath: /secret}
    - {name: config, mountPath: /config}
`, name, placement.AnnotationInstanceType, t.instanceType, namespace.OnKip)
	}
	s.Apply(manifest)
	for i, t := range all {
		name := string(rune('a' + i))
		t.pod = s.WaitReady(name)
		t.machine = s.machine(name)
		cfg, err := t.kubelet()
		if err != nil {
			s.Fatal(err)
		}
		if t.client, err = kubernetes.NewForConfig(cfg); err != nil {
			s.Fatal(err)
		}
	}
	return all[0], all[1]
}

func TestACellSeesItsOwnPodAndNothingOfAnother(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	a, b := tenants(s)
	for _, c := range []struct{ own, other *tenant }{{a, b}, {b, a}} {
		t.Run(c.own.pod.Name, func(t *testing.T) {
			for range looks {
				c.own.seesItsOwn(t)
				c.own.isRefused(t, c.other)
			}
			c.own.seesItsOwn(t)
		})
	}

	// What was refused has not happened.
	for _, was := range []*tenant{a, b} {
		is, err := s.Pod(t.Context(), was.pod.Name)
		if err != nil {
			t.Fatal(err)
		}
		if is.UID != was.pod.UID || is.DeletionTimestamp != nil || is.Status.Phase != corev1.PodRunning || is.Status.Message != "" ||
			!namespace.IsReady(is) {
			t.Errorf("pod %s was changed: %s %q", is.Name, is.Status.Phase, is.Status.Message)
		}
		secret, err := world.Admin.CoreV1().Secrets(s.NS).Get(t.Context(), was.secret, metav1.GetOptions{})
		if err != nil || string(secret.Data["word"]) != "sesame-"+was.pod.Name {
			t.Errorf("Secret %s was changed: %v", was.secret, err)
		}
		if err := s.ExecTrue(was.pod.Name)(t.Context()); err != nil {
			t.Errorf("exec in pod %s: %v", was.pod.Name, err)
		}
	}
}

// seesItsOwn proves that the kubelet's credentials are good for what a kubelet
// needs: otherwise the refusals would prove nothing.
func (own *tenant) seesItsOwn(t *testing.T) {
	ctx, core, ns := t.Context(), own.client.CoreV1(), own.pod.Namespace
	secret, err := core.Secrets(ns).Get(ctx, own.secret, metav1.GetOptions{})
	if err != nil || string(secret.Data["word"]) != "sesame-"+own.pod.Name {
		t.Errorf("its Secret: %v", err)
	}
	config, err := core.ConfigMaps(ns).Get(ctx, "config-"+own.pod.Name, metav1.GetOptions{})
	if err != nil || config.Data["word"] != "hello-"+own.pod.Name {
		t.Errorf("its ConfigMap: %v", err)
	}
	pod, err := core.Pods(ns).Get(ctx, own.pod.Name, metav1.GetOptions{})
	if err != nil || pod.UID != own.pod.UID {
		t.Errorf("its pod: %v", err)
	}
	token, err := core.ServiceAccounts(ns).CreateToken(ctx, own.account, boundTo(own.pod), metav1.CreateOptions{})
	if err != nil || token.Status.Token == "" {
		t.Errorf("its service account's token: %v", err)
	}

	// Lists show its pod, and no other exists for it.
	for name, list := range map[string]struct {
		namespace string
		options   metav1.ListOptions
		want      []types.UID
	}{
		"all pods": {options: metav1.ListOptions{}, want: []types.UID{own.pod.UID}},
		"the node's pods": {options: metav1.ListOptions{FieldSelector: "spec.nodeName=" + harness.Node},
			want: []types.UID{own.pod.UID}},
		"the namespace's pods":       {namespace: ns, want: []types.UID{own.pod.UID}},
		"pods but its own":           {namespace: ns, options: metav1.ListOptions{FieldSelector: "metadata.name!=" + own.pod.Name}},
		"another namespace's pods":   {namespace: metav1.NamespaceSystem},
		"pods of no node whatsoever": {options: metav1.ListOptions{FieldSelector: "spec.nodeName!=" + harness.Node}},
	} {
		pods, err := core.Pods(list.namespace).List(ctx, list.options)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []types.UID
		for _, p := range pods.Items {
			got = append(got, p.UID)
		}
		if !slices.Equal(got, list.want) {
			t.Errorf("%s: it is shown %v, want %v", name, got, list.want)
		}
	}

	// The node is its own machine.
	var size catalog.InstanceType
	for _, it := range sizes.Types(runtime.GOARCH) {
		if it.Name == own.instanceType {
			size = it
		}
	}
	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != harness.Node {
		t.Fatalf("the nodes that it sees: %v, %v; want %s alone", nodes, err, harness.Node)
	}
	node, err := core.Nodes().Get(ctx, harness.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("its node: %v", err)
	}
	cpus := (size.MilliCPU + 999) / 1000 // a machine has whole ones
	if got := node.Status.Capacity.Cpu().Value(); got != cpus {
		t.Errorf("its node has %d CPUs, a %s has %d", got, size.Name, cpus)
	}
	if got := node.Status.Capacity.Memory().Value(); got != size.MemoryBytes {
		t.Errorf("its node has %d bytes, a %s has %d", got, size.Name, size.MemoryBytes)
	}
	if address := (corev1.NodeAddress{Type: corev1.NodeInternalIP,
		Address: own.cell.Status.ManagementIP}); !slices.Contains(node.Status.Addresses, address) {
		t.Errorf("its node's addresses are %v, without %s", node.Status.Addresses, address.Address)
	}
}

func boundTo(pod *corev1.Pod) *authv1.TokenRequest {
	return &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		// What the volume asks for that every pod is given.
		ExpirationSeconds: new(int64(3607)),
		BoundObjectRef:    &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
}

// with is boundTo with a change.
func with(pod *corev1.Pod, change func(*authv1.TokenRequestSpec)) *authv1.TokenRequest {
	r := boundTo(pod)
	change(&r.Spec)
	return r
}

// isRefused proves that the kubelet's credentials are good for nothing else: each
// attempt is answered with 403.
func (own *tenant) isRefused(t *testing.T, other *tenant) {
	ctx, core, ns := t.Context(), own.client.CoreV1(), own.pod.Namespace
	get := metav1.GetOptions{}
	only := func(_ any, err error) error { return err }
	token := func(account string, r *authv1.TokenRequest) error {
		return only(core.ServiceAccounts(ns).CreateToken(ctx, account, r, metav1.CreateOptions{}))
	}
	raw := func(path string) error { return core.RESTClient().Get().AbsPath(path).Do(ctx).Error() }
	forged := []byte(`{"status":{"phase":"Failed","message":"forged"}}`)
	for name, err := range map[string]error{
		"the other pod's Secret":       only(core.Secrets(ns).Get(ctx, other.secret, get)),
		"a Secret of no pod":           only(core.Secrets(ns).Get(ctx, "nobodys", get)),
		"a Secret that does not exist": only(core.Secrets(ns).Get(ctx, "missing", get)),
		"its Secret's name elsewhere":  only(core.Secrets(metav1.NamespaceSystem).Get(ctx, own.secret, get)),
		"the namespace's Secrets":      only(core.Secrets(ns).List(ctx, metav1.ListOptions{})),
		"all Secrets":                  only(core.Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})),
		"a watch of the namespace's":   only(core.Secrets(ns).Watch(ctx, metav1.ListOptions{})),
		"a watch of the other's Secret": only(core.Secrets(ns).Watch(ctx,
			metav1.ListOptions{FieldSelector: "metadata.name=" + other.secret})),
		"a change of its own Secret": only(core.Secrets(ns).Patch(ctx, own.secret, types.MergePatchType,
			[]byte(`{"stringData":{"word":"forged"}}`), metav1.PatchOptions{})),
		"the other pod's ConfigMap":  only(core.ConfigMaps(ns).Get(ctx, "config-"+other.pod.Name, get)),
		"the namespace's ConfigMaps": only(core.ConfigMaps(ns).List(ctx, metav1.ListOptions{})),
		"the other pod":              only(core.Pods(ns).Get(ctx, other.pod.Name, get)),
		"the other pod's status": only(core.Pods(ns).Patch(ctx, other.pod.Name, types.StrategicMergePatchType, forged,
			metav1.PatchOptions{}, "status")),
		"the end of the other pod": core.Pods(ns).Delete(ctx, other.pod.Name, metav1.DeleteOptions{}),
		"the end of all pods":      core.Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		"the spec of its own pod": only(core.Pods(ns).Patch(ctx, own.pod.Name, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})),
		"a pod of its making": only(core.Pods(ns).Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: other.pod.Spec}, metav1.CreateOptions{})),
		"exec in the other pod": core.RESTClient().Post().Namespace(ns).Resource("pods").Name(other.pod.Name).
			SubResource("exec").Do(ctx).Error(),
		"the other pod's log":       only(core.Pods(ns).GetLogs(other.pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)),
		"the other account's token": token(other.account, boundTo(other.pod)),
		"its account's, for ten years": token(own.account, with(own.pod, func(s *authv1.TokenRequestSpec) {
			s.ExpirationSeconds = new(int64(10 * 365 * 24 * 3600))
		})),
		"its account's, for another audience": token(own.account, with(own.pod, func(s *authv1.TokenRequestSpec) {
			s.Audiences = []string{"vault"}
		})),
		"the other account's, for its pod": token(other.account, boundTo(own.pod)),
		"its account's, for the other pod": token(own.account, boundTo(other.pod)),
		"its account's token, unbound":     token(own.account, &authv1.TokenRequest{}),
		"the namespace's default token":    token("default", boundTo(own.pod)),
		"its service account":              only(core.ServiceAccounts(ns).Get(ctx, own.account, get)),
		"another node":                     only(core.Nodes().Get(ctx, "kip-1", get)),
		"the end of its node":              core.Nodes().Delete(ctx, harness.Node, metav1.DeleteOptions{}),
		"all claims":                       only(core.PersistentVolumeClaims(ns).List(ctx, metav1.ListOptions{})),
		"a change of a service": only(core.Services("default").Patch(ctx, "kubernetes", types.MergePatchType, []byte(`{}`),
			metav1.PatchOptions{})),
		"another node's lease":  only(own.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "kip-1", get)),
		"the cluster's roles":   only(own.client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})),
		"a certificate request": only(own.client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})),
		"a question about its rights": only(own.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
			&authzv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})),
		"the list of cells":                 raw("/apis/" + apiv1.GroupVersion.String() + "/cells"),
		"the API server's metrics":          raw("/metrics"),
		"the other pod, by the node's name": raw("/api/v1/nodes/" + harness.Node + "/proxy/pods"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want 403 Forbidden", name, err)
		}
	}

	// An identity that it claims changes nothing: who it is, the tunnel says.
	cfg, err := own.kubelet()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "kubernetes-admin", Groups: []string{"system:masters"}}
	master, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := master.CoreV1().Secrets(ns).Get(ctx, other.secret, get); !apierrors.IsForbidden(err) {
		t.Errorf("the other pod's Secret, as system:masters: %v, want 403 Forbidden", err)
	}
}

// A pod on the host network reaches the machine's loopback. What listens there is
// for those with a certificate, which no pod has.
func TestAHostNetworkPodGetsNothingFromItsMachinesPorts(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Bare("a", `  hostNetwork: true
  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, infinity]}
`))
	s.Apply(namespace.Sleeper("b"))
	s.WaitReady("a")
	s.WaitReady("b")
	m, neighbour := s.machine("a"), s.machine("b")

	// What is dialled below from within the machine is dialled from where the
	// pod is.
	namespace, err := os.Readlink(m.netns())
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Kubectl("exec", "a", "--", "readlink", "/proc/self/ns/net"); strings.TrimSpace(got) != namespace {
		t.Fatalf("the pod is in %q, its machine in %q", got, namespace)
	}
	if out, code, _ := s.Try("exec", "a", "--", "ls", "/run/itzo", configs.KubeletRoot); code == 0 {
		t.Fatalf("the pod sees its machine's files: %s", out)
	}

	api := localapi.Address
	kubelet := net.JoinHostPort("127.0.0.1", strconv.Itoa(configs.KubeletPort))
	agent := net.JoinHostPort(m.cell.Status.ManagementIP, strconv.Itoa(agentapi.Port))
	anybody := foreignAuthority(t)
	cfg, err := m.kubelet()
	if err != nil {
		t.Fatal(err)
	}
	own, err := rest.TLSConfigFor(cfg)
	if err != nil {
		t.Fatal(err)
	}

	// With the kubelet's own certificate both answer: they are there.
	for address, path := range map[string]string{api: "/api/v1/nodes/" + harness.Node, kubelet: "/pods"} {
		with := own.Clone()
		with.NextProtos, with.InsecureSkipVerify = []string{"http/1.1"}, true
		if code, err := m.get(t.Context(), address, path, with); err != nil || code != http.StatusOK {
			t.Fatalf("https://%s%s with the kubelet's certificate: %d, %v; want 200, or the refusals below show nothing", address, path, code, err)
		}
	}
	for name, without := range map[string]*tls.Config{
		"no certificate":        {InsecureSkipVerify: true},
		"another's certificate": {InsecureSkipVerify: true, GetClientCertificate: anybody.Client(0).GetClientCertificate},
	} {
		without.NextProtos = []string{"http/1.1"}
		for _, path := range []string{"/api/v1/nodes/" + harness.Node, "/api/v1/pods", "/version"} {
			if code, err := m.get(t.Context(), api, path, without.Clone()); !isRefusal(err) {
				t.Errorf("the cell API with %s: GET %s answers %d, %v", name, path, code, err)
			}
		}
		if code, err := m.get(t.Context(), agent, agentapi.PathStatus, without.Clone()); !isRefusal(err) {
			t.Errorf("the agent with %s: answers %d, %v", name, code, err)
		}
		// The kubelet asks for a certificate without insisting, and then knows nobody.
		for _, path := range []string{"/pods", "/healthz", "/metrics", "/runningpods/", "/configz", "/containerLogs/" + s.NS + "/a/main",
			"/exec/" + s.NS + "/a/main?command=id&output=1"} {
			if code, err := m.get(t.Context(), kubelet, path, without.Clone()); !isRefusal(err) && code != http.StatusUnauthorized {
				t.Errorf("the kubelet with %s: GET %s answers %d, %v; want 401", name, path, code, err)
			}
		}
	}

	// The same as the pod itself would do it, in plain HTTP. What each says of that is
	// known: it is they that refuse, and not the pod's wget.
	for address, refusal := range map[string]string{api: "400 Bad Request", kubelet: "400 Bad Request", agent: "error getting response"} {
		out, code, errs := s.Try("exec", "a", "--", "timeout", "10", "wget", "-qO-", "http://"+address+"/pods")
		if code == 0 || !strings.Contains(errs, refusal) {
			t.Errorf("the pod gets %q from %s (exit %d: %s), want %s", out, address, code, errs, refusal)
		}
	}

	// Nobody but the agent listens to the outside; neighbours find no other door.
	for _, at := range []machine{m, neighbour} {
		if got, err := at.openPorts("tcp"); err != nil || !slices.Equal(got, []int{agentapi.Port}) {
			t.Errorf("a machine listens to the outside at TCP ports %v, %v; want %d only, the agent's", got, err, agentapi.Port)
		}
		if got, err := at.openPorts("udp"); err != nil || len(got) > 0 {
			t.Errorf("a machine listens to the outside at UDP ports %v, %v; want none", got, err)
		}
	}
	for _, port := range []int{configs.KubeletPort, agentapi.Port + 1} {
		address := net.JoinHostPort(neighbour.cell.Status.ManagementIP, strconv.Itoa(port))
		if conn, err := m.dial(t.Context(), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("from another cell %s: %v, %v; want it refused", address, conn, err)
		}
	}
	door := neighbour.shared().OpenDoor(t)
	for name, cert := range map[string]*tls.Config{
		"no certificate":            {InsecureSkipVerify: true},
		"its kubelet's certificate": {InsecureSkipVerify: true, Certificates: own.Certificates, GetClientCertificate: own.GetClientCertificate},
	} {
		cert.NextProtos = []string{"http/1.1"}
		address := net.JoinHostPort(neighbour.cell.Status.ManagementIP, strconv.Itoa(door))
		if code, err := m.get(t.Context(), address, agentapi.PathStatus, cert); !isRefusal(err) {
			t.Errorf("another cell's agent with %s: answers %d, %v", name, code, err)
		}
	}
	// Its own port is not even reached: the host lets nobody else there.
	dialling, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var silence net.Error
	at := net.JoinHostPort(neighbour.cell.Status.ManagementIP, strconv.Itoa(agentapi.Port))
	if conn, err := m.dial(dialling, "tcp", at); !errors.As(err, &silence) || !silence.Timeout() {
		t.Errorf("from another cell %s: %v, %v; want silence", at, conn, err)
	}
	if err := s.ExecTrue("a")(t.Context()); err != nil {
		t.Error(err)
	}
}

// get sends one request over TLS from within the machine and returns the
// answer's status code.
func (m machine) get(ctx context.Context, address, path string, cfg *tls.Config) (int, error) {
	conn, err := m.dial(ctx, "tcp", address)
	if err != nil {
		return 0, fmt.Errorf("dial: %w", err)
	}
	return status(ctx, conn, path, cfg)
}

// status is the code with which conn's other end answers GET path. It closes conn.
func status(ctx context.Context, conn net.Conn, path string, cfg *tls.Config) (int, error) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	tc := tls.Client(conn, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		return 0, &handshakeError{err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://cell"+path, nil)
	if err != nil {
		return 0, err
	}
	if err := req.Write(tc); err != nil {
		return 0, &handshakeError{err}
	}
	answer := bufio.NewReader(tc)
	if _, err := answer.Peek(1); err != nil {
		return 0, &handshakeError{err}
	}
	resp, err := http.ReadResponse(answer, req)
	if err != nil {
		rest, _ := io.ReadAll(answer)
		return 0, fmt.Errorf("an answer that is not HTTP: %w: %q", err, bytes.TrimSpace(rest))
	}
	return resp.StatusCode, resp.Body.Close()
}

// handshakeError is that TLS was not established, or was ended by the other end
// before it had answered anything: in TLS 1.3 a client hears only then that its
// certificate is refused.
type handshakeError struct{ error }

func (e *handshakeError) Unwrap() error { return e.error }

// isRefusal says that err is the other end's refusal, and neither that it could
// not be reached, nor its silence.
func isRefusal(err error) bool {
	var refused *handshakeError
	var silence net.Error
	return errors.As(err, &refused) && !(errors.As(err, &silence) && silence.Timeout())
}

// openPorts are the ports of "tcp" or "udp" on which anything in the machine listens
// on more than loopback, in order.
func (m machine) openPorts(protocol string) ([]int, error) {
	listening := map[string]string{
		"tcp": "0A", // TCP_LISTEN
		"udp": "07", // TCP_CLOSE: it is connected to nobody, and hears everybody
	}[protocol]
	var ports []int
	for _, table := range []string{protocol, protocol + "6"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", m.pid, table))
		if err != nil {
			return nil, err
		}
		for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n")[1:] {
			fields := strings.Fields(line)
			if len(fields) < 4 {
				return nil, fmt.Errorf("%s: line %q is too short", table, line)
			}
			if fields[3] != listening {
				continue
			}
			ip, port, err := socketAddress(fields[1])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", table, err)
			}
			if !ip.IsLoopback() {
				ports = append(ports, port)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

// socketAddress reads "0100007F:1916" of /proc/net/tcp: words in the machine's
// byte order, which is little-endian where this runs.
func socketAddress(s string) (net.IP, int, error) {
	address, hexPort, ok := strings.Cut(s, ":")
	if !ok || len(address)%8 != 0 {
		return nil, 0, fmt.Errorf("%q is not an address and a port", s)
	}
	var ip net.IP
	for ; address != ""; address = address[8:] {
		word, err := strconv.ParseUint(address[:8], 16, 32)
		if err != nil {
			return nil, 0, err
		}
		ip = append(ip, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	port, err := strconv.ParseUint(hexPort, 16, 16)
	return ip, int(port), err
}
