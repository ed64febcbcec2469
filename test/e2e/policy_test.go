//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// lost is how long a packet that should be dropped is waited for.
const lost = 2 * time.Second

// hostIP is the address of the bridge, where the test itself is a neighbour of all
// cells and pods.
func hostIP(t *testing.T) netip.Addr {
	t.Helper()
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		t.Fatal(err)
	}
	return p.Addr().Next()
}

// ports is a pod that serves TCP on 8080 ("web"), 8081 and 8082, and what it is
// sent, back, on 7000.
func ports(name, labels string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: " + labels + "}\nspec:\n  " + namespace.OnKip + `  containers:
  - name: main
    image: busybox:1.36
    ports: [{name: web, containerPort: 8080}]
    command:
    - sh
    - -c
    - |
      mkdir /tmp/www; echo hello > /tmp/www/index.html
      for p in 8080 8081; do httpd -p $p -h /tmp/www; done
      nc -ll -p 7000 -e cat &
      exec httpd -f -p 8082 -h /tmp/www
    readinessProbe: {tcpSocket: {port: 8082}, periodSeconds: 1}
`
}

// reached returns which of the targets, IP:port, a pod can connect to, in their order.
func (s *space) reached(ctx context.Context, pod string, targets ...string) ([]string, error) {
	cmd := s.Command(ctx, "exec", pod, "--", "sh", "-c",
		`for t; do if nc -w 2 ${t%:*} ${t##*:} </dev/null >/dev/null 2>&1; then echo $t; fi & done; wait`, "sh")
	cmd.Args = append(cmd.Args, targets...)
	out, errs, err := namespace.Run(cmd)
	if err != nil {
		return nil, fmt.Errorf("exec in %s: %w: %s", pod, err, errs)
	}
	var in []string
	for _, t := range targets {
		if slices.Contains(strings.Fields(out), t) {
			in = append(in, t)
		}
	}
	return in, nil
}

// door opens a port of this host, which all pods reach that may send anything, and
// returns its address.
func door(t *testing.T) string {
	t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(hostIP(t), uint16(port))
	if _, err := countTCP(t, at); err != nil {
		t.Fatal(err)
	}
	return at.String()
}

// looker is a pod that looks whom it reaches.
type looker struct {
	*space
	pod  string
	want []string // the ports
}

// allReach waits until each of some pods reaches those of an address' ports that it is
// to, and no others, and proves that it is so for some looks in a row. Each look shows
// an open port too, by the same means and in the same time: that nothing else is
// reached is then not the pod's, or the machine's, fault.
func (s *space) allReach(what, open, ip string, lookers ...looker) {
	s.Helper()
	look := func(ctx context.Context, l looker) error {
		targets, wanted := []string{open}, []string{open}
		for _, port := range []string{"8080", "8081", "8082"} {
			targets = append(targets, ip+":"+port)
			if slices.Contains(l.want, port) {
				wanted = append(wanted, ip+":"+port)
			}
		}
		got, err := l.reached(ctx, l.pod, targets...)
		if err == nil && !slices.Equal(got, wanted) {
			err = fmt.Errorf("%s reaches %q, want %q, %d times in a row", l.pod, got, wanted, looks)
		}
		return err
	}
	s.Eventually(what, func(ctx context.Context) error {
		for range looks {
			errs := make([]error, len(lookers))
			var all sync.WaitGroup
			for i, l := range lookers {
				all.Go(func() { errs[i] = look(ctx, l) })
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				return err
			}
		}
		return nil
	})
}

// reaches is allReach for one pod of the namespace.
func (s *space) reaches(what, pod, open, ip string, want ...string) {
	s.Helper()
	s.allReach(what, open, ip, looker{s, pod, want})
}

func (s *space) policy(name, spec string) {
	s.Helper()
	s.Apply("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name + "}\nspec: " + spec + "\n")
}

// dial connects from the host, and hears its own words.
func dial(ctx context.Context, address string, patience time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := echo(c, patience); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func echo(c net.Conn, patience time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 6))
	return err
}

// What a policy allows, internal/policy's tests prove, and which packets pass then, internal/agent/firewall's.
func TestNetworkPoliciesDecideWhoReachesAPod(t *testing.T) {
	t.Parallel()
	s, other := newSpace(t), newSpace(t)
	s.Apply(ports("server", "{app: server}") + "---\n" + ports("friend", "{role: friend}") + "---\n" + ports("stranger", "{role: stranger}"))
	other.Apply(ports("foreign", "{role: friend}"))
	server := s.WaitReady("server")
	s.WaitReady("friend")
	s.WaitReady("stranger")
	foreign := other.WaitReady("foreign")
	if _, err := world.Admin.CoreV1().Namespaces().Patch(t.Context(), other.NS, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"team":"x"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	ip, open := server.Status.PodIP, door(t)
	for _, c := range []struct {
		what, rules                string
		friend, stranger, outsider []string // the ports of the server that they reach
	}{
		{"no policy", "", []string{"8080", "8081", "8082"}, []string{"8080", "8081", "8082"}, []string{"8080", "8081", "8082"}},
		{"default deny", "{podSelector: {}, policyTypes: [Ingress]}", nil, nil, nil},
		{
			"podSelector and a named port",
			"{podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}], ports: [{port: web}]}]}",
			[]string{"8080"}, nil, nil,
		},
		{
			"both selectors of one peer, and of two",
			`{podSelector: {matchLabels: {app: server}}, ingress: [
			  {from: [{namespaceSelector: {matchLabels: {team: x}}, podSelector: {matchLabels: {role: stranger}}}]},
			  {from: [{namespaceSelector: {matchLabels: {team: x}}}, {podSelector: {matchLabels: {role: stranger}}}], ports: [{port: 8082}]}]}`,
			nil, []string{"8082"}, []string{"8082"},
		},
	} {
		if c.rules != "" {
			s.policy("it", c.rules)
		}
		s.allReach(c.what, open, ip, looker{s, "friend", c.friend}, looker{s, "stranger", c.stranger}, looker{other, "foreign", c.outsider})
		if c.what == "default deny" {
			// Of this namespace only; and the kubelet's probes are not the network's.
			s.reaches(c.what, "friend", open, foreign.Status.PodIP, "8080", "8081", "8082")
			s.Kubectl("wait", "pod/server", "--for=condition=Ready", "--timeout=1m")
		}
	}
}

// heard are the connections that have come to a port, by their source.
type heard struct {
	mu   sync.Mutex
	from map[string]int
}

func (h *heard) of(ip string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.from[ip]
}

func (h *heard) count(from netip.AddrPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.from[from.Addr().Unmap().String()]++
}

// countTCP counts the connections that come to an address in the network namespace of
// the thread that calls it.
func countTCP(t *testing.T, at netip.AddrPort) (*heard, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	h := &heard{from: map[string]int{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			h.count(c.RemoteAddr().(*net.TCPAddr).AddrPort())
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return h, nil
}

func TestAPolicyHoldsForThePodsFirstPacket(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	host := hostIP(t)
	sink, err := countTCP(t, netip.AddrPortFrom(host, 9999))
	if err != nil {
		t.Fatal(err)
	}
	s.policy("deny", "{podSelector: {matchLabels: {app: eager}}, policyTypes: [Egress]}")
	// From its first instruction on.
	eager := func(name, app string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {app: " + app + "}}\nspec:\n  " +
			namespace.OnKip + `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'while :; do nc -w 1 ` + host.String() + ` 9999 </dev/null >/dev/null 2>&1; echo tried; sleep 0.1; done']
`
	}
	s.Apply(eager("held", "eager") + "---\n" + eager("free", "free"))
	tried := func(pod string, times int) {
		s.Helper()
		s.Eventually(pod+" tries", func(context.Context) error {
			if n := strings.Count(s.Kubectl("logs", pod), "tried"); n < times {
				return fmt.Errorf("%d times so far", n)
			}
			return nil
		})
	}
	held, free := s.WaitReady("held"), s.WaitReady("free")
	tried("held", 5)
	tried("free", 5)
	if n := sink.of(free.Status.PodIP); n == 0 {
		t.Fatal("no connection of the pod without a policy came: the test hears nothing")
	}
	if n := sink.of(held.Status.PodIP); n > 0 {
		t.Fatalf("%d connections of the pod came, against the policy", n)
	}
	s.Kubectl("delete", "networkpolicy", "deny")
	s.Eventually("they come without the policy", func(context.Context) error {
		if sink.of(held.Status.PodIP) == 0 {
			return errors.New("none has come")
		}
		return nil
	})
}

// isDenied says whether the firewall keeps connections from one address while another
// is answered within the same time: else it may be the host that is slow.
func isDenied(ctx context.Context, denied, open string, within time.Duration) error {
	c, err := dial(ctx, denied, lost)
	if err == nil {
		c.Close()
		return errLetIn
	}
	// The firewall drops. A pod that does not listen would refuse.
	if silence := net.Error(nil); !errors.As(err, &silence) || !silence.Timeout() {
		return fmt.Errorf("the one that is denied: %w; want silence", err)
	}
	if c, err = dial(ctx, open, within); err != nil {
		return fmt.Errorf("the one that is open: %w", err)
	}
	return c.Close()
}

var errLetIn = errors.New("a connection is let in")

// denies waits until one address is denied and the other is open, some times in a row.
func (s *space) denies(what, denied, open string) {
	s.Helper()
	s.Eventually(what, func(ctx context.Context) error {
		for range 5 {
			if err := isDenied(ctx, denied, open, lost); err != nil {
				return err
			}
		}
		return nil
	})
}

// away is longer than either end of the tunnel needs to notice that the other is gone.
const away = 30 * time.Second

// Not parallel: it kills the Kip that all tests share.
func TestPoliciesHoldWhileKipIsAway(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.Apply(ports("denied", "{app: denied}") + "---\n" + ports("open", "{app: open}"))
	s.policy("deny", "{podSelector: {matchLabels: {app: denied}}}")
	denied, open := s.WaitReady("denied").Status.PodIP+":7000", s.WaitReady("open").Status.PodIP+":7000"
	s.denies("before", denied, open)
	killKip(t)
	s.Kubectl("delete", "networkpolicy", "deny")
	s.policy("deny", "{podSelector: {matchLabels: {app: open}}}")
	for since := time.Now(); time.Since(since) < away; {
		if err := isDenied(t.Context(), denied, open, patience); err != nil {
			t.Fatalf("without Kip: %v", err)
		}
	}
	startKip(t)
	s.denies("what changed meanwhile", open, denied)
}

// metadataIP is where clouds have their metadata service.
const metadataIP = "169.254.169.254"

// serveMetadata puts a metadata service on the cells' link.
func serveMetadata(t *testing.T) *linkHost {
	t.Helper()
	host := newLinkHost(t, netip.MustParseAddr(metadataIP))
	var l net.Listener
	host.listen(t, func() (err error) {
		l, err = net.Listen("tcp", metadataIP+":80")
		return err
	})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "credentials") })}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return host
}

func TestOnlyAPodThatAsksReachesTheMetadataService(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	service := serveMetadata(t)
	asks := strings.Replace(namespace.Sleeper("asks"), "{name: asks}",
		"{name: asks, annotations: {"+placement.AnnotationAllowMetadata+": \"true\"}}", 1)
	host := strings.Replace(namespace.Sleeper("host"), "spec:\n", "spec:\n  hostNetwork: true\n", 1)
	s.Apply(namespace.Sleeper("plain") + "---\n" + asks + "---\n" + host)
	for _, pod := range []string{"plain", "asks", "host"} {
		s.WaitReady(pod)
	}
	service.neighbourOf(s, "plain", "asks", "host")
	open := door(t)
	reaches := func(pod string) func(context.Context) error {
		return func(ctx context.Context) error {
			got, err := s.reached(ctx, pod, metadataIP+":80")
			if err == nil && len(got) == 0 {
				err = errors.New("it does not answer")
			}
			return err
		}
	}
	without := func(pods ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, pod := range pods {
				// A look that does not show what is open shows nothing.
				var got []string
				s.Eventually("what "+pod+" reaches", func(ctx context.Context) (err error) {
					if got, err = s.reached(ctx, pod, open, metadataIP+":80"); err == nil && !slices.Contains(got, open) {
						err = fmt.Errorf("it does not reach %s", open)
					}
					return err
				})
				if len(got) > 1 {
					return fmt.Errorf("pod %s reaches %q", pod, got)
				}
			}
			return nil
		}
	}
	s.Never("pods that do not ask reach it", without("plain", "host"), reaches("asks"))
	for _, pod := range []string{"plain", "host"} {
		s.Kubectl("annotate", "pod", pod, placement.AnnotationAllowMetadata+"=true")
		s.Eventually("pod "+pod+" reaches it once it asks", reaches(pod))
	}
	s.Kubectl("annotate", "pod", "asks", placement.AnnotationAllowMetadata+"-")
	s.Eventually("a pod that no longer asks", without("asks"))
	s.Never("a pod that no longer asks reaches it", without("asks"), reaches("plain"))
}

func TestAPodDoesNotReachItsCellsManagementPlane(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(namespace.Sleeper("a") + "---\n" + namespace.Sleeper("b"))
	pod := s.WaitReady("a")
	s.WaitReady("b")
	own, others := s.machine("a"), s.machine("b")
	// The agent listens for Kip. The rest, the kubelet's API for it, the kubelet, its health,
	// kube-proxy's metrics and health, does on loopback only: something that
	// listens for everybody is put there, so that it is the firewall that decides.
	listeners := map[int]*heard{}
	var kept, neighbours []string
	for _, port := range []int{agentapi.Port, agentapi.Port + 1, configs.KubeletPort, 10248, 10249, 10256} {
		for _, m := range []machine{own, others} {
			ip, err := netip.ParseAddr(m.cell.Status.ManagementIP)
			if err != nil {
				t.Fatal(err)
			}
			at := netip.AddrPortFrom(ip, uint16(port))
			if port != agentapi.Port {
				h := m.listenTCP(t, at)
				if m.pid == own.pid {
					listeners[port] = h
				}
			}
			c, err := net.DialTimeout("tcp", at.String(), patience)
			if err != nil {
				t.Fatalf("a neighbour does not reach %s, so that a pod does not shows nothing: %v", at, err)
			}
			c.Close()
			switch {
			case m.pid == own.pid:
				kept = append(kept, at.String())
			case port == agentapi.Port:
				// The host lets no pod there. Where nothing does, that agent refuses in the TLS
				// handshake whoever is not Kip (see TestCellRefusesAllButKip), which a door shows.
				kept = append(kept, at.String())
				neighbours = append(neighbours, netip.AddrPortFrom(ip, uint16(others.shared().OpenDoor(t))).String())
			default:
				neighbours = append(neighbours, at.String())
			}
		}
	}
	for range looks {
		if got, err := s.reached(t.Context(), "a", append(kept, neighbours...)...); err != nil || !slices.Equal(got, neighbours) {
			t.Errorf("the pod reaches %q, %v; want %q only", got, err, neighbours)
		}
	}
	for port, h := range listeners {
		if n := h.of(pod.Status.PodIP); n > 0 {
			t.Errorf("%d connections of the pod came to port %d of its cell", n, port)
		}
	}
	// It is the firewall that refuses: a ping is answered.
	s.Kubectl("exec", "a", "--", "ping", "-c1", "-W5", own.cell.Status.ManagementIP)
}

// listenTCP counts the connections that come to an address of the machine.
func (m machine) listenTCP(t *testing.T, at netip.AddrPort) *heard {
	t.Helper()
	there, err := netns.GetFromPath(m.netns())
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	var h *heard
	if err := inNamespace(func() error {
		if err := netns.Set(there); err != nil {
			return err
		}
		h, err = countTCP(t, at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return h
}
