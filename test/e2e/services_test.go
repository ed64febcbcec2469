//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// labelled gives a pod of a manifest the label app.
func labelled(manifest, name, app string) string {
	return strings.Replace(manifest, "{name: "+name+"}", "{name: "+name+", labels: {app: "+app+"}}", 1)
}

// answerer is a pod that answers HTTP on port 8080 with its name.
func answerer(name, app, spec string) string {
	return labelled(namespace.Bare(name, spec+`  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'mkdir /tmp/www; echo `+name+` > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`), name, app)
}

// service makes a Service in front of the pods with the label app, port 80 and 81.
func (s *space) service(name, app string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s.Helper()
	spec := corev1.ServiceSpec{
		Selector: map[string]string{"app": app},
		Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
			{Name: "udp", Port: 81, TargetPort: intstr.FromInt32(9000), Protocol: corev1.ProtocolUDP},
		},
	}
	if change != nil {
		change(&spec)
	}
	svc, err := world.Admin.CoreV1().Services(s.NS).Create(s.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return svc
}

// fetch gets http://address from within a pod; "" when nothing answers.
func (s *space) fetch(pod, address string) string {
	s.Helper()
	// busybox' wget has no working timeout: the pod's own clock ends it.
	out, _, _ := s.Try("exec", pod, "--", "timeout", "10", "wget", "-qO-", "http://"+address+"/")
	return strings.TrimSpace(out)
}

// answersAll waits until of some answers in a row each is of one of the wanted, and
// each of these has answered; and then wants as many more without fail. Of three that
// are chosen at random one is left out of eight answers once in 26 times; where one is
// wanted, three answers are enough.
func (s *space) answersAll(what string, ask func() string, want ...string) {
	s.Helper()
	row := 3
	if len(want) > 1 {
		row = 4 * len(want)
	}
	s.Eventually(fmt.Sprintf("%s is answered by %v and nobody else", what, want), func(context.Context) error {
		var got []string
		for len(got) < row {
			got = append(got, ask())
			if !slices.Contains(want, got[len(got)-1]) {
				return fmt.Errorf("the answers in a row are %q", got)
			}
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				return fmt.Errorf("the answers in a row are %q", got)
			}
		}
		return nil
	})
	for range row {
		if got := ask(); !slices.Contains(want, got) {
			s.Fatalf("%s was answered by %q, after it was by %v and nobody else", what, got, want)
		}
	}
}

// answerWithin is how long one ask may take. It only tells a hang: what is asked again and again
// must answer each time.
const answerWithin = 30 * time.Second

// fromHost gets http://address from this host; "" when nothing answers.
func fromHost(address string) string {
	return get(&http.Client{Timeout: answerWithin, Transport: &http.Transport{DisableKeepAlives: true}}, address)
}

// get gets http://address by a client; "" when nothing answers.
func get(client *http.Client, address string) string {
	resp, err := client.Get("http://" + address + "/")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(b))
}

// inside runs f in a pod's network namespace: the image of these pods has nothing
// that speaks UDP.
func (s *space) inside(pod string, f func() error) {
	s.Helper()
	home, err := os.Open("/proc/self/ns/net")
	if err != nil {
		s.Fatal(err)
	}
	defer home.Close()
	there, err := os.Open(filepath.Join("/proc", strconv.Itoa(s.process(pod)), "ns/net"))
	if err != nil {
		s.Fatal(err)
	}
	defer there.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			// Back, and not left to die: see machine.dialHere.
			err = errors.Join(f(), unix.Setns(int(home.Fd()), unix.CLONE_NEWNET))
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		s.Fatal(err)
	}
}

// process is one of a pod's, on this host.
func (s *space) process(pod string) int {
	s.Helper()
	instance := s.CellOf(pod).Status.InstanceID
	pid := 0
	for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
		_ = filepath.WalkDir(filepath.Join(root, "kip-"+bridge, instance, "kubepods"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" || pid != 0 {
				return nil
			}
			data, err := os.ReadFile(path)
			if first, _, ok := strings.Cut(string(data), "\n"); err == nil && ok {
				pid, _ = strconv.Atoi(first)
			}
			return nil
		})
	}
	if pid == 0 {
		s.Fatalf("no process of pod %s is found below the cgroup of %s", pod, instance)
	}
	return pid
}

// answerUDP answers on port 9000 of a pod with its name, until the test ends.
func (s *space) answerUDP(pod string) {
	s.Helper()
	var conn net.PacketConn
	s.inside(pod, func() (err error) {
		conn, err = net.ListenPacket("udp4", ":9000")
		return err
	})
	done := make(chan struct{})
	s.Cleanup(func() { conn.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 64)
		for {
			_, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(pod+"\n"), from)
		}
	}()
}

// askUDP sends a datagram and returns the answer; "" when there is none.
func askUDP(address string) string {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerWithin))
	if _, err := conn.Write([]byte("who\n")); err != nil {
		return ""
	}
	b := make([]byte, 64)
	n, err := conn.Read(b)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[:n]))
}

func at(ip string, port int32) string { return net.JoinHostPort(ip, strconv.Itoa(int(port))) }

func TestAServiceReachesItsPodsOnOtherCells(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	web := s.service("web", "web", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	sticky := s.service("sticky", "web", func(spec *corev1.ServiceSpec) { spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	alone := s.service("alone", "none", nil)
	for _, name := range []string{"a", "b"} {
		s.Apply(answerer(name, "web", ""))
	}
	s.Apply(namespace.Sleeper("client"))
	client, a := s.WaitReady("client"), s.WaitReady("a")
	s.WaitReady("b")

	s.answersAll("the cluster IP, from a third cell", func() string { return s.fetch("client", web.Spec.ClusterIP) }, "a", "b")
	s.answersAll("the cluster IP, from one of its own pods", func() string { return s.fetch("a", web.Spec.ClusterIP) }, "a", "b")
	s.answerUDP("a")
	s.answerUDP("b")
	s.answersAll("UDP, from a third cell", func() (answer string) {
		s.inside("client", func() error { answer = askUDP(at(web.Spec.ClusterIP, 81)); return nil })
		return answer
	}, "a", "b")

	node := web.Spec.Ports[0].NodePort
	for what, ip := range map[string]string{"of a cell of the Service": a.Status.HostIP, "of another cell": client.Status.HostIP} {
		s.answersAll("the node port "+what, func() string { return fromHost(at(ip, node)) }, "a", "b")
	}

	first := s.fetch("client", sticky.Spec.ClusterIP)
	for range 8 {
		if got := s.fetch("client", sticky.Spec.ClusterIP); got != first || got == "" {
			t.Fatalf("with session affinity %q answered after %q", got, first)
		}
	}
	s.Never("a Service without pods answers", func(context.Context) error {
		if got := s.fetch("client", alone.Spec.ClusterIP); got != "" {
			return fmt.Errorf("it was %q", got)
		}
		return nil
	}, func(context.Context) error {
		if got := s.fetch("client", web.Spec.ClusterIP); got == "" {
			return errors.New("the Service with pods does not answer")
		}
		return nil
	})

	// A pod that goes is no longer asked, one that comes is.
	s.Kubectl("delete", "pod", "b", "--wait=false")
	s.Apply(answerer("c", "web", ""))
	s.WaitReady("c")
	s.WaitGone("b")
	s.answersAll("the cluster IP after a change", func() string { return s.fetch("client", web.Spec.ClusterIP) }, "a", "c")
}

func TestAPodReachesItselfThroughItsService(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	web := s.service("web", "web", nil)
	s.Apply(answerer("a", "web", ""))
	s.WaitReady("a")
	s.answersAll("the cluster IP, from its only pod", func() string { return s.fetch("a", web.Spec.ClusterIP) }, "a")
}

// The rules are there before the pod is: its first process, once, without a try
// again.
func TestAPodsServicesWorkFromItsFirstMoment(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	web := s.service("web", "web", nil)
	s.Apply(answerer("a", "web", ""))
	s.WaitReady("a")
	s.Eventually("pod a is an endpoint", func(ctx context.Context) error {
		list, err := world.Admin.DiscoveryV1().EndpointSlices(s.NS).List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return err
		}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					return nil
				}
			}
		}
		return errors.New("it is not")
	})
	s.Apply(namespace.Bare("once", `  restartPolicy: Never
  containers:
  - {name: main, image: 'busybox:1.36', command: [wget, -qO-, 'http://`+web.Spec.ClusterIP+`/']}
`))
	s.WaitPod("once", "has Succeeded", namespace.HasPhase(corev1.PodSucceeded))
}

func TestAPodReachesTheAPIServerByItsServiceWithItsToken(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("client"))
	s.WaitReady("client")
	const mounted = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, authority := s.Kubectl("exec", "client", "--", "cat", mounted+"token"), s.Kubectl("exec", "client", "--", "cat", mounted+"ca.crt")
	address := strings.TrimSpace(s.Kubectl("exec", "client", "--", "sh", "-c", "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"))
	config := &rest.Config{Host: "https://" + address, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: []byte(authority)}}
	config.Dial = func(context.Context, string, string) (conn net.Conn, err error) {
		// This image has no TLS that the API server takes: the test speaks it.
		s.inside("client", func() error { conn, err = net.DialTimeout("tcp", address, answerWithin); return nil })
		return conn, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	s.Eventually("the API server answers a pod", func(ctx context.Context) error {
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err == nil && review.Status.UserInfo.Username != "system:serviceaccount:"+s.NS+":default" {
			err = fmt.Errorf("the pod is %q to it", review.Status.UserInfo.Username)
		}
		return err
	})
}

func TestAHostPortIsServedOnTheCellsAddress(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(labelled(namespace.Bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'mkdir /tmp/www; echo a > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    ports:
    - {containerPort: 8080, hostPort: 7080}
    - {containerPort: 9000, hostPort: 7090, protocol: UDP}
    - {containerPort: 8080, hostPort: 7081, hostIP: 127.0.0.9}
`), "a", "web"))
	s.Apply(namespace.Sleeper("client"))
	pod := s.WaitReady("a")
	s.WaitReady("client")
	ip := pod.Status.HostIP
	s.answersAll("the hostPort, from this host", func() string { return fromHost(at(ip, 7080)) }, "a")
	s.answersAll("the hostPort, from another cell", func() string { return s.fetch("client", at(ip, 7080)) }, "a")
	s.answersAll("the hostPort, from the pod itself", func() string { return s.fetch("a", at(ip, 7080)) }, "a")
	s.answerUDP("a")
	s.answersAll("the UDP hostPort", func() string { return askUDP(at(ip, 7090)) }, "a")
	// One with a hostIP is served there, in the machine, and nowhere else.
	m := s.machine("a")
	inMachine := http.Client{Timeout: answerWithin, Transport: &http.Transport{DisableKeepAlives: true, DialContext: m.dial}}
	s.answersAll("the hostPort of hostIP 127.0.0.9, from the machine", func() string { return get(&inMachine, "127.0.0.9:7081") }, "a")
	s.answersAll("the container's port on the pod's address", func() string { return fromHost(at(pod.Status.PodIP, 8080)) }, "a")
	for what, address := range map[string]string{
		"the hostPort of hostIP 127.0.0.9": at(ip, 7081),
		"the container's port":             at(ip, 8080),
	} {
		for from, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
			"this host": new(net.Dialer).DialContext, "another cell": s.machine("client").dial,
		} {
			s.Never(what+", at the cell's address from "+from, func(ctx context.Context) error {
				conn, err := dial(ctx, "tcp", address)
				if err == nil {
					conn.Close()
				}
				if !errors.Is(err, syscall.ECONNREFUSED) {
					return fmt.Errorf("%w; want it refused", cmp.Or(err, errors.New("it is connected")))
				}
				return nil
			}, func(ctx context.Context) error {
				conn, err := dial(ctx, "tcp", at(ip, 7080))
				if err != nil {
					return err
				}
				return conn.Close()
			})
		}
	}
}

func TestAHostNetworkPodReachesServices(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	web := s.service("web", "web", nil)
	host := s.service("host", "host", nil)
	s.Apply(answerer("a", "web", ""))
	s.Apply(answerer("h", "host", "  hostNetwork: true\n"))
	s.WaitReady("a")
	s.WaitReady("h")
	s.answersAll("a Service, from a pod with hostNetwork", func() string { return s.fetch("h", web.Spec.ClusterIP) }, "a")
	s.answersAll("the Service of a pod with hostNetwork", func() string { return s.fetch("a", host.Spec.ClusterIP) }, "h")
}

// A cell is part of the one virtual node: what runs on another cell is local.
func TestInternalTrafficPolicyLocalMeansTheVirtualNode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	local := corev1.ServiceInternalTrafficPolicyLocal
	web := s.service("web", "web", func(spec *corev1.ServiceSpec) { spec.InternalTrafficPolicy = &local })
	// An endpoint on another node, which nobody may be sent to.
	elsewhere, ready, port, name := "another-node", true, int32(8080), "http"
	if _, err := world.Admin.DiscoveryV1().EndpointSlices(s.NS).Create(s.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "elsewhere", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, NodeName: &elsewhere,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Apply(answerer("a", "web", ""))
	s.Apply(namespace.Sleeper("client"))
	s.WaitReady("a")
	s.WaitReady("client")
	s.answersAll("the cluster IP", func() string { return s.fetch("client", web.Spec.ClusterIP) }, "a")
	for range 8 {
		if got := s.fetch("client", web.Spec.ClusterIP); got != "a" {
			t.Fatalf("a request went to another node: %q", got)
		}
	}
}

// A client is in the zone of its virtual node, which is the label that the cloud's
// zones give it.
func TestTopologyHintsKeepRequestsInTheZone(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(answerer("a", "web", ""))
	s.Apply(namespace.Sleeper("client"))
	s.WaitReady("a")
	s.WaitReady("client")
	node, err := world.Admin.CoreV1().Nodes().Get(s.Context(), "kip-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	zone := node.Labels[corev1.LabelTopologyZone]
	if zone == "" {
		t.Fatalf("node kip-0 has no label %s: %v", corev1.LabelTopologyZone, node.Labels)
	}
	pod, err := s.Pod(s.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	web := s.service("zonal", "nobody", nil) // its endpoints are those below
	ready, port, name := true, int32(8080), "http"
	endpoint := func(address, zone string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		}
	}
	if _, err := world.Admin.DiscoveryV1().EndpointSlices(s.NS).Create(s.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "zonal-by-hand", Labels: map[string]string{discoveryv1.LabelServiceName: "zonal"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		// Nobody is at the other's addresses: a request that went there would have no answer.
		Endpoints: []discoveryv1.Endpoint{endpoint(pod.Status.PodIP, zone), endpoint("192.0.2.1", "elsewhere"),
			endpoint("192.0.2.2", "elsewhere"), endpoint("192.0.2.3", "elsewhere")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.answersAll("the cluster IP", func() string { return s.fetch("client", web.Spec.ClusterIP) }, "a")
	for range 12 {
		if got := s.fetch("client", web.Spec.ClusterIP); got != "a" {
			t.Fatalf("a request left the zone: %q", got)
		}
	}
}

// kubeProxy is the process of a machine's kube-proxy, which is its kubelet's, 0 when
// there is none.
func (m machine) kubeProxy(t *testing.T) int {
	t.Helper()
	mine, err := os.Readlink(m.netns())
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		line, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(line), "kubelet\x00--kube-proxy-config=") {
			continue // it has ended, or is another one
		}
		if ns, _ := os.Readlink(filepath.Join(filepath.Dir(file), "ns/net")); ns != mine {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	return 0
}

func TestServicesGoOnWhenKubeProxyIsKilled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	web := s.service("web", "web", nil)
	s.Apply(answerer("a", "web", ""))
	s.Apply(namespace.Sleeper("client"))
	s.WaitReady("a")
	s.WaitReady("client")
	s.answersAll("the cluster IP", func() string { return s.fetch("client", web.Spec.ClusterIP) }, "a")
	m := s.machine("client")
	killed := m.kubeProxy(t)
	if killed == 0 {
		t.Fatal("no kube-proxy runs on the cell")
	}
	process, err := os.FindProcess(killed)
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.answersAll("the cluster IP, just after", func() string { return s.fetch("client", web.Spec.ClusterIP) }, "a")
	s.Eventually("another kube-proxy runs", func(context.Context) error {
		if pid := m.kubeProxy(t); pid == 0 || pid == killed {
			return fmt.Errorf("it is process %d", pid)
		}
		return nil
	})
	// It has the pods that came since.
	s.Apply(answerer("b", "web", ""))
	s.WaitReady("b")
	s.answersAll("the cluster IP, after a change", func() string { return s.fetch("client", web.Spec.ClusterIP) }, "a", "b")
}

func TestPodsFindServicesByName(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	dns, err := world.Admin.CoreV1().Services(metav1.NamespaceSystem).Get(s.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip := dns.Spec.ClusterIP
	s.Apply(labelled(namespace.Sleeper("client"), "client", "client"))
	s.Apply(namespace.Bare("own", `  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.53], searches: [example.org], options: [{name: ndots, value: "2"}]}
  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, infinity]}
`))
	s.Apply(namespace.Bare("default", `  dnsPolicy: Default
  containers:
  - {name: main, image: 'busybox:1.36', command: [sleep, infinity]}
`))
	for _, pod := range []string{"client", "own", "default"} {
		s.WaitReady(pod)
	}
	conf := s.Kubectl("exec", "client", "--", "cat", "/etc/resolv.conf")
	for _, want := range []string{"nameserver " + ip + "\n", "search " + s.NS + ".svc.cluster.local svc.cluster.local cluster.local",
		"ndots:5"} {
		if !strings.Contains(conf, want) {
			t.Errorf("resolv.conf of a pod with dnsPolicy ClusterFirst lacks %q:\n%s", want, conf)
		}
	}
	if conf := s.Kubectl("exec", "own", "--", "cat",
		"/etc/resolv.conf"); conf != "search example.org\nnameserver 192.0.2.53\noptions ndots:2\n" {
		t.Errorf("resolv.conf of a pod with dnsPolicy None is\n%s", conf)
	}
	// That of its machine, which provider.yaml says.
	if conf := s.Kubectl("exec", "default", "--", "cat", "/etc/resolv.conf"); !strings.HasPrefix(conf, "nameserver ") ||
		strings.Contains(conf, ip) || strings.Contains(conf, "search "+s.NS) {
		t.Errorf("resolv.conf of a pod with dnsPolicy Default is\n%s", conf)
	}
	lookup := func(name, want string) {
		t.Helper()
		s.Eventually(name+" is found", func(ctx context.Context) error {
			out, _, errs := s.Attempt(ctx, "exec", "client", "--", "nslookup", name)
			if !strings.Contains(out, want) {
				return fmt.Errorf("the answer is %q %q, want %q in it", out, errs, want)
			}
			return nil
		})
	}
	web := s.service("web", "web", nil)
	s.service("headless", "web", func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone })
	s.service("other", "", func(spec *corev1.ServiceSpec) {
		*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "kubernetes.default.svc.cluster.local"}
	})
	s.Apply(answerer("a", "web", ""))
	a := s.WaitReady("a")
	lookup("web."+s.NS+".svc.cluster.local", web.Spec.ClusterIP)
	lookup("headless."+s.NS+".svc.cluster.local", a.Status.PodIP)
	lookup("other."+s.NS+".svc.cluster.local", "kubernetes.default.svc.cluster.local")
	if got := s.fetch("client", "web"); got != "a" {
		t.Errorf("http://web/ was answered by %q", got)
	}
}
