package firewall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agentapi"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	podIP     = "10.9.128.2"
	cellIP    = "10.9.0.2"
	outsideIP = "10.9.0.1"
	otherIP   = "10.9.0.77" // outside, too
)

func prefixes(all ...string) (list []netip.Prefix) {
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func span(protocol string, first, last uint16) agentapi.Ports {
	return agentapi.Ports{Protocol: protocol, First: first, Last: last}
}

func sample() agentapi.Firewall {
	return agentapi.Firewall{
		Pod: "shop/web", PodIP: netip.MustParseAddr(podIP),
		Ingress: agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{
			{Addresses: prefixes("10.0.0.0/24", "10.1.0.7/32", "fd00::/64"),
				Ports: []agentapi.Ports{span("TCP", 80, 80), span("TCP", 8000, 8080), span("UDP", 53, 53)}},
			{Any: true, Ports: []agentapi.Ports{span("SCTP", 0, 65535)}},
		}},
		Egress: agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{{Addresses: prefixes("192.0.2.0/25"), AnyPort: true}}},
	}
}

func noDevices() (d Devices, err error) { return d, nil }

func TestTheTableIsAsReviewed(t *testing.T) {
	fw := sample()
	dual := sample()
	dual.PodIPv6 = netip.MustParseAddr(podIPv6)
	zeros := strings.Repeat("0", 64)
	masqueraded := sample()
	masqueraded.Masquerade = &agentapi.Masquerade{As: netip.MustParseAddr(cellIP), Except: prefixes("10.0.0.0/8", "192.168.7.0/24")}
	beside := sample()
	beside.Beside = &agentapi.Beside{PodUID: "uid", HostPorts: []agentapi.Ports{span("TCP", 9100, 9100), span("UDP", 8125, 8125)}}
	for name, got := range map[string][]byte{"closed.nft": closed, "rules.nft": rendered(&fw, zeros, nil, false),
		"dual.nft":         rendered(&dual, zeros, nil, true),
		"masquerade.nft":   rendered(&masqueraded, zeros, nil, false),
		"beside.nft":       rendered(&beside, zeros, nil, false),
		"behind.nft":       rendered(&fw, zeros, prefixes("10.20.0.0/16", "192.168.7.0/24"), false),
		"uplinks.nft":      uplinkGuard(true, true, []Uplink{{"eth0", 2}, {"eth1", 3}}),
		"uplinks-host.nft": uplinkGuard(true, false, []Uplink{{"eth0", 2}})} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs (go test -update writes it):\n%s", path, got)
		}
	}
}

func TestRulesThatNobodyCanMeanAreRefused(t *testing.T) {
	f := New(t.TempDir(), func(context.Context, ...string) (string, error) {
		t.Error("nft was asked")
		return "", nil
	}, noDevices, slog.New(slog.DiscardHandler))
	for _, c := range []struct{ rules, says string }{
		{`{`, "JSON"},
		{`{} {}`, "one JSON object"},
		{`{"podIP":"10.9.128.2","secrecy":true}`, "secrecy"},
		{`{}`, "podIP"},
		{`{"podIP":"fd00::1"}`, "IPv4"},
		{`{"podIP":"10.9.128.3"}`, podIP},
		{`{"podIP":"10.9.128.2","podIPv6":"fd00:9:80::2"}`, "podIPv6 fd00:9:80::2"},
		{`{"podIP":"10.9.128.2","podIPv6":"fe80::2"}`, "podIPv6"},
		{`{"podIP":"10.9.128.2","podIPv6":"10.9.128.2"}`, "podIPv6"},
		{`{"podIP":"10.9.128.2","ingress":{"allowed":[{"any":true,"addresses":["10.0.0.0/8"],"anyPort":true}]}}`, "ingress.allowed[0]"},
		{`{"podIP":"10.9.128.2","egress":{"allowed":[{"any":true}]}}`, "egress.allowed[0]"},
		{`{"podIP":"10.9.128.2","egress":{"allowed":[{"addresses":["10.0.0.1/8"],"anyPort":true}]}}`, "10.0.0.1/8"},
		{`{"podIP":"10.9.128.2","egress":{"allowed":[{"any":true,"ports":[{"protocol":"tcp dport 1 accept; #","first":1,"last":1}]}]}}`,
			"TCP, UDP or SCTP"},
		{`{"podIP":"10.9.128.2","egress":{"allowed":[{"any":true,"ports":[{"protocol":"TCP","first":2,"last":1}]}]}}`, "2-1"},
		{`{"podIP":"10.9.128.2","masquerade":{}}`, "masquerade.as"},
		{`{"podIP":"10.9.128.2","masquerade":{"as":"fd00::1"}}`, "masquerade.as \"fd00::1\""},
		{`{"podIP":"10.9.128.2","masquerade":{"as":"10.9.0.2","except":["fd00::/8"]}}`, "fd00::/8"},
		{`{"podIP":"10.9.128.2","masquerade":{"as":"10.9.0.2","except":["10.0.0.1/8"]}}`, "10.0.0.1/8"},
		{`{"podIP":"10.9.128.2","masquerade":{"as":"10.9.0.2","except":["10.0.0.0/8","10.1.0.0/16"]}}`, "10.1.0.0/16"},
		{`{"podIP":"10.9.128.2","masquerade":{"as":"10.9.0.2","except":["10.0.0.0/8","9.0.0.0/8"]}}`, "9.0.0.0/8"},
	} {
		err := f.Apply(t.Context(), netip.MustParseAddr(podIP), netip.Addr{}, nil, []byte(c.rules))
		if !errors.As(err, new(ErrInvalid)) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.rules, err)
		}
	}
}

func TestAfterAFailureNothingCountsAsInForce(t *testing.T) {
	var fail error
	loads := 0
	f := New(t.TempDir(), func(_ context.Context, args ...string) (string, error) {
		if args[0] != "-f" {
			return "", errors.New("no such table")
		}
		loads++
		return "kernel says no", fail
	}, noDevices, slog.New(slog.DiscardHandler))
	if digest, err := f.Begin(t.Context()); err != nil || digest != "" || loads != 3 { // two of them a trial
		t.Fatal(digest, err, loads)
	}
	loads = 1
	rules := encoded(t, sample())
	for range 2 { // equal ones are loaded once
		err := f.Apply(t.Context(), netip.MustParseAddr(podIP), netip.Addr{}, nil, rules)
		if err != nil || f.Digest() != agentapi.Digest(rules) ||
			loads != 2 {
			t.Fatal(err, f.Digest(), loads)
		}
	}
	fail = errors.New("exit status 1")
	other := sample()
	other.AllowMetadata = true
	if err := f.Apply(t.Context(), netip.MustParseAddr(podIP), netip.Addr{}, nil, encoded(t, other)); !errors.Is(err, fail) ||
		!strings.Contains(err.Error(), "kernel says no") || errors.As(err, new(ErrInvalid)) {
		t.Errorf("error %v", err)
	}
	fail = nil
	if err := f.Apply(t.Context(), netip.MustParseAddr(podIP), netip.Addr{}, nil, rules); err != nil || loads != 4 {
		t.Errorf("the rules that were in force before may not be any more: %v after %d loads", err, loads)
	}
}

func encoded(t testing.TB, fw agentapi.Firewall) []byte {
	t.Helper()
	b, err := json.Marshal(fw)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// net3 is a cell with a pod and a neighbour, each in a network namespace.
type net3 struct {
	testing.TB
	outside, cell, pod netns.NsHandle
}

// in calls f in a network namespace, on a thread of its own that ends with it.
func (n *net3) in(ns netns.NsHandle, f func() error) {
	n.Helper()
	if err := inside(ns, f); err != nil {
		n.Fatal(err)
	}
}

func inside(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func newNet3(t testing.TB) *net3 {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is not installed")
	}
	n := &net3{TB: t}
	for _, ns := range []*netns.NsHandle{&n.outside, &n.cell, &n.pod} {
		made := make(chan error, 1)
		go func() {
			runtime.LockOSThread()
			var err error
			*ns, err = netns.New()
			made <- err
		}()
		if err := <-made; err != nil {
			t.Skipf("no network namespaces here: %v", err)
		}
		t.Cleanup(func() { ns.Close() })
	}
	link := func(name string, peer string, there netns.NsHandle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(int(there))})
	}
	up := func(name string, addresses ...string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(l, addr); err != nil {
				return err
			}
		}
		// The kernel gives a neighbour up after three seconds, before the link of a busy machine is up.
		for _, family := range []string{"ipv4", "ipv6"} {
			of := "net." + family + ".neigh." + name
			if err := sysctls(of+".mcast_solicit=60", of+".ucast_solicit=60"); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	}
	route := func(device, dst, via string) error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		r := &netlink.Route{LinkIndex: l.Attrs().Index}
		if dst != "" {
			if r.Dst, err = netlink.ParseIPNet(dst); err != nil {
				return err
			}
		}
		if via != "" {
			r.Gw = net.ParseIP(via)
		} else {
			r.Scope = netlink.SCOPE_LINK
		}
		return netlink.RouteAdd(r)
	}
	n.in(n.cell, func() error {
		return errors.Join(link("up", "eth0", n.outside), link("pod0", "eth0", n.pod), up("lo"),
			up("up", cellIP+"/24", "fd00:9::2/64"), up("pod0", "10.9.1.1/32"), route("pod0", podIP+"/32", ""), route("pod0", "10.9.99.99/32", ""),
			// Metadata services are anywhere behind the uplink.
			route("up", "169.254.0.0/16", outsideIP), route("up", "fd00:ec2::/64", "fd00:9::1"),
			sysctls("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.pod0.rp_filter=0", "net.ipv4.conf.up.route_localnet=1"))
	})
	n.in(n.pod, func() error {
		return errors.Join(up("lo"), up("eth0", podIP+"/32", "10.9.99.99/32"), route("eth0", "10.9.1.1/32", ""), route("eth0", "", "10.9.1.1"))
	})
	n.in(n.outside, func() error {
		return errors.Join(up("eth0", outsideIP+"/24", otherIP+"/24", "169.254.169.254/32", "fd00:9::1/64", "fd00:ec2::254/128"),
			route("eth0", podIP+"/32", cellIP), route("eth0", "10.9.99.99/32", cellIP))
	})
	return n
}

func sysctls(all ...string) error {
	for _, s := range all {
		key, value, _ := strings.Cut(s, "=")
		if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// firewall is the cell's.
func (n *net3) firewall() *Firewall {
	return New(n.TempDir(), func(ctx context.Context, args ...string) (out string, err error) {
		return out, inside(n.cell, func() error {
			b, err := exec.CommandContext(ctx, "nft", args...).CombinedOutput()
			out = string(b)
			return err
		})
	}, func() (d Devices, err error) {
		return d, inside(n.cell, func() error {
			d, err = Look()
			return err
		})
	}, slog.New(slog.NewTextHandler(n.Output(), nil)))
}

func (n *net3) apply(f *Firewall, change func(*agentapi.Firewall)) {
	n.Helper()
	fw := agentapi.Firewall{PodIP: netip.MustParseAddr(podIP)}
	change(&fw)
	if err := f.Apply(n.Context(), fw.PodIP, fw.PodIPv6, nil, encoded(n, fw)); err != nil {
		n.Fatal(err)
	}
}

// listen answers connections with what they say.
func (n *net3) listen(ns netns.NsHandle, address string) {
	n.Helper()
	if port, all := strings.CutPrefix(address, ":"); all {
		// Of both families by name: Go asks once whether a host has IPv6, in whatever namespace comes first.
		n.listenOn(ns, "tcp4", "0.0.0.0:"+port)
		n.listenOn(ns, "tcp6", "[::]:"+port)
		return
	}
	n.listenOn(ns, "tcp", address)
}

func (n *net3) listenOn(ns netns.NsHandle, network, address string) {
	n.Helper()
	n.in(ns, func() error {
		l, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		// A connection whose firewall has closed hears no end of its other side.
		var answering sync.WaitGroup
		ended, end := context.WithCancel(context.Background())
		n.Cleanup(func() { l.Close(); end(); answering.Wait() })
		answering.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				stop := context.AfterFunc(ended, func() { c.Close() })
				answering.Go(func() { defer stop(); defer c.Close(); _, _ = io.Copy(c, c) })
			}
		})
		return nil
	})
}

// How long one waits for packets: that should be dropped, and that should pass. Those
// that pass take microseconds.
const (
	lost     = 300 * time.Millisecond
	patience = time.Minute
)

// dial connects from a namespace, and hears its own words.
func (n *net3) dial(from netns.NsHandle, source, address string, patience time.Duration) (c net.Conn, err error) {
	err = inside(from, func() error {
		d := net.Dialer{Timeout: patience}
		if source != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
		}
		c, err = d.DialContext(n.Context(), "tcp", address)
		if err != nil {
			return err
		}
		n.Cleanup(func() { c.Close() })
		return talk(c, patience)
	})
	return c, err
}

// sends sends one datagram and waits until it has come, briefly if it is not wanted.
func (n *net3) sends(from, to netns.NsHandle, address string, wanted bool) error {
	var sink net.PacketConn
	n.in(to, func() (err error) { sink, err = net.ListenPacket("udp", address); return err })
	defer sink.Close()
	var source net.Conn
	n.in(from, func() (err error) { source, err = net.Dial("udp", address); return err })
	defer source.Close()
	_, err := source.Write([]byte("hello"))
	within := lost
	if wanted {
		within = patience
	}
	if err == nil {
		err = sink.SetReadDeadline(time.Now().Add(within))
	}
	if err == nil {
		_, _, err = sink.ReadFrom(make([]byte, 5))
	}
	return err
}

func talk(c net.Conn, patience time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 5))
	return err
}

// attempt is one to reach an address from a network namespace.
type attempt struct {
	what            string
	from            netns.NsHandle
	source, address string
}

// expect makes all attempts, of which those named in pass are to succeed.
func (n *net3) expect(state string, all []attempt, pass ...attempt) {
	n.Helper()
	var tried sync.WaitGroup
	for _, a := range all {
		want, wait := false, lost
		for _, p := range pass {
			if p.what == a.what {
				want, wait = true, patience
			}
		}
		tried.Go(func() {
			if _, err := n.dial(a.from, a.source, a.address, wait); (err == nil) != want {
				n.Errorf("%s: %s: passes %t, want %t (%v)", state, a.what, err == nil, want, err)
			}
		})
	}
	tried.Wait()
}

func TestPacketsPassAsTheRulesSay(t *testing.T) {
	n := newNet3(t)
	n.listen(n.pod, ":80")
	n.listen(n.pod, ":81")
	n.listen(n.cell, ":6421")
	n.listen(n.cell, "127.0.0.1:10250")
	n.listen(n.outside, ":80")
	n.listen(n.outside, ":53")
	n.in(n.outside, func() error { // it sends the machine what is for its loopback
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		dst, _ := netlink.ParseIPNet("127.0.0.1/32")
		return errors.Join(sysctls("net.ipv4.conf.eth0.route_localnet=1"),
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: net.ParseIP(cellIP)}))
	})
	f := n.firewall()

	in80 := attempt{"in to port 80", n.outside, outsideIP, podIP + ":80"}
	in81 := attempt{"in to port 81", n.outside, outsideIP, podIP + ":81"}
	other80 := attempt{"another in to port 80", n.outside, otherIP, podIP + ":80"}
	out80 := attempt{"out to port 80", n.pod, "", outsideIP + ":80"}
	out53 := attempt{"out to port 53", n.pod, "", outsideIP + ":53"}
	outOther := attempt{"out to another", n.pod, "", otherIP + ":80"}
	probe := attempt{"the kubelet's probe", n.cell, "", podIP + ":80"}
	spoof := attempt{"a forged source", n.pod, "10.9.99.99", outsideIP + ":80"}
	agentPort := attempt{"the pod to the agent", n.pod, "", cellIP + ":6421"}
	gatewayPort := attempt{"the pod to the agent by the cell's other address", n.pod, "", "10.9.1.1:6421"}
	neighbour := attempt{"a neighbour to the agent", n.outside, "", cellIP + ":6421"}
	loopback := attempt{"a neighbour to the cell's loopback", n.outside, outsideIP, "127.0.0.1:10250"}
	ownLoopback := attempt{"the cell to its loopback", n.cell, "", "127.0.0.1:10250"}
	metadata := attempt{"the pod to the metadata service", n.pod, "", "169.254.169.254:80"}
	names := attempt{"the pod to the resolver at that address", n.pod, "", "169.254.169.254:53"}
	hostMetadata := attempt{"a process on the cell to the metadata service", n.cell, "", "169.254.169.254:80"}
	hostMetadata6 := attempt{"the same over IPv6", n.cell, "", "[fd00:ec2::254]:80"}
	all := []attempt{
		in80, in81, other80, out80, out53, outOther, probe, spoof, agentPort, gatewayPort, neighbour, loopback, ownLoopback,
		metadata, names, hostMetadata, hostMetadata6,
	}
	expect := func(state string, pass ...attempt) {
		t.Helper()
		n.expect(state, all, pass...)
	}

	expect("no firewall, so that what is refused below is refused by it", all...)
	if digest, err := f.Begin(t.Context()); err != nil || digest != "" {
		t.Fatal(digest, err)
	}
	expect("closed", neighbour, ownLoopback)

	n.apply(f, func(*agentapi.Firewall) {})
	open := []attempt{in80, in81, other80, out80, out53, outOther, probe, neighbour, ownLoopback, names}
	expect("no policy", open...)

	n.apply(f, func(fw *agentapi.Firewall) { fw.AllowMetadata = true })
	expect("metadata allowed", append(open, metadata, hostMetadata, hostMetadata6)...)

	tcp := func(first, last uint16) []agentapi.Ports { return []agentapi.Ports{span("TCP", first, last)} }
	n.apply(f, func(fw *agentapi.Firewall) { fw.Ingress.Isolated = true })
	expect("ingress denied", out80, out53, outOther, probe, neighbour, ownLoopback, names)

	n.apply(f, func(fw *agentapi.Firewall) {
		fw.Ingress = agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{{Addresses: prefixes(outsideIP + "/32"), Ports: tcp(79, 80)}}}
		fw.Egress = agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{
			{Any: true, Ports: []agentapi.Ports{span("SCTP", 1, 1), span("TCP", 53, 53), span("UDP", 53, 53)}},
			{Addresses: prefixes("10.9.0.64/26"), AnyPort: true},
		}}
	})
	expect("some allowed", in80, out53, outOther, probe, neighbour, ownLoopback, names)
	for port, want := range map[string]bool{":53": true, ":80": false} {
		if err := n.sends(n.pod, n.outside, outsideIP+port, want); (err == nil) != want {
			t.Errorf("some allowed: a datagram out to port %s: %v, want it to pass: %t", port, err, want)
		}
	}

	n.apply(f, func(fw *agentapi.Firewall) {
		everybody := []agentapi.Allowed{{Addresses: prefixes("0.0.0.0/0", "::/0"), AnyPort: true}}
		fw.Ingress, fw.Egress = agentapi.Direction{Isolated: true, Allowed: everybody}, agentapi.Direction{Isolated: true, Allowed: everybody}
	})
	expect("all networks allowed", open...)
}

// On a machine whose pod has a network of its own the agent alone may ask, as the cell's user data and
// notices of the cloud want it. Any process may set the mark in the network that it is in.
func TestTheAgentReachesTheMetadataServiceWherePodsAreNotInItsNetwork(t *testing.T) {
	n := newNet3(t)
	n.listen(n.outside, ":80")
	f := n.firewall()
	expect := func(state string, want bool) {
		t.Helper()
		for _, a := range []struct {
			what    string
			from    netns.NsHandle
			address string
			control func(string, string, syscall.RawConn) error
			want    bool
		}{
			{"the agent", n.cell, "169.254.169.254:80", Exempt, want},
			{"the agent over IPv6", n.cell, "[fd00:ec2::254]:80", Exempt, want},
			{"another process", n.cell, "169.254.169.254:80", nil, false},
			{"a pod with the mark", n.pod, "169.254.169.254:80", Exempt, false},
		} {
			d := net.Dialer{Timeout: lost, Control: a.control}
			if a.want {
				d.Timeout = patience
			}
			err := inside(a.from, func() error {
				c, err := d.DialContext(t.Context(), "tcp", a.address)
				if err == nil {
					err = errors.Join(talk(c, d.Timeout), c.Close())
				}
				return err
			})
			if (err == nil) != a.want {
				t.Errorf("%s: %s: %v, want it to pass: %t", state, a.what, err, a.want)
			}
		}
	}
	pod := func(change func(netlink.Link) error) {
		t.Helper()
		n.in(n.cell, func() error {
			l, err := netlink.LinkByName("pod0")
			if err == nil {
				err = change(l)
			}
			return err
		})
	}
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("closed", true)
	n.apply(f, func(*agentapi.Firewall) {})
	expect("with a pod", true)
	again := n.firewall()
	if digest, err := again.Begin(t.Context()); err != nil || digest == "" {
		t.Fatalf("began with %q: %v", digest, err)
	}
	if err := again.cover(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("after the agent's restart", true)
	// As of a pod of the host's network.
	pod(func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "other"))
	})
	if err := again.cover(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("once the pod's device is gone", false)
	n.apply(f, func(fw *agentapi.Firewall) { fw.Pod = "another" })
	expect("with rules before a pod has a device", false)
	n.in(n.cell, func() error {
		l, err := netlink.LinkByName("other")
		if err == nil {
			err = errors.Join(netlink.LinkSetName(l, "pod0"), netlink.LinkSetUp(l))
		}
		return err
	})
	if err := f.cover(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("once it has one", true)
}

func TestAConnectionOutlivesTheRulesThatLetItIn(t *testing.T) {
	n := newNet3(t)
	n.listen(n.pod, ":80")
	n.listen(n.outside, ":80")
	f := n.firewall()
	n.apply(f, func(*agentapi.Firewall) {})
	in, err := n.dial(n.outside, "", podIP+":80", patience)
	if err != nil {
		t.Fatal(err)
	}
	out, err := n.dial(n.pod, "", outsideIP+":80", patience)
	if err != nil {
		t.Fatal(err)
	}
	n.apply(f, func(fw *agentapi.Firewall) { fw.Ingress.Isolated, fw.Egress.Isolated = true, true })
	if err := errors.Join(talk(in, patience), talk(out, patience)); err != nil {
		t.Error(err)
	}
	if _, err := n.dial(n.outside, "", podIP+":80", lost); err == nil {
		t.Error("a new one is let in, too")
	}
}

func TestAnAgentThatStartsAnewFindsWhatIsInForce(t *testing.T) {
	n := newNet3(t)
	n.listen(n.pod, ":80")
	first := n.firewall()
	if _, err := first.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.apply(first, func(*agentapi.Firewall) {})
	second := n.firewall()
	digest, err := second.Begin(t.Context())
	if err != nil || digest == "" || digest != first.Digest() || digest != second.Digest() {
		t.Errorf("digest %q, want %q: %v", digest, first.Digest(), err)
	}
	if _, err := n.dial(n.outside, "", podIP+":80", patience); err != nil {
		t.Errorf("the pod was cut off: %v", err)
	}
}

// A packet that slips through while the table is replaced would be one too many.
func TestNothingPassesWhileRulesAreReplaced(t *testing.T) {
	n := newNet3(t)
	f := n.firewall()
	n.apply(f, func(*agentapi.Firewall) {})
	var sink net.PacketConn
	n.in(n.pod, func() (err error) { sink, err = net.ListenPacket("udp", podIP+":80"); return err })
	defer sink.Close()
	var source net.Conn
	n.in(n.outside, func() (err error) { source, err = net.Dial("udp", podIP+":80"); return err })
	defer source.Close()
	receive := func(within time.Duration) (packets int) {
		for b := make([]byte, 64); ; packets++ {
			if err := sink.SetReadDeadline(time.Now().Add(within)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := sink.ReadFrom(b); err != nil {
				return packets
			}
		}
	}
	if _, err := source.Write([]byte("open")); err != nil {
		t.Fatal(err)
	}
	if err := sink.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sink.ReadFrom(make([]byte, 64)); err != nil {
		t.Fatalf("the way is not open without rules: %v", err)
	}
	// A fresh source port: the old one's connection would pass.
	n.in(n.outside, func() (err error) { source, err = net.Dial("udp", podIP+":80"); return err })
	deny := func(i int) func(*agentapi.Firewall) {
		return func(fw *agentapi.Firewall) {
			fw.Ingress = agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{{Addresses: prefixes(fmt.Sprintf("192.0.2.%d/32", i)),
				AnyPort: true}}}
		}
	}
	n.apply(f, deny(0))
	arrived := func() (packets uint64) {
		n.in(n.cell, func() error {
			l, err := netlink.LinkByName("up")
			if err == nil {
				packets = l.Attrs().Statistics.RxPackets
			}
			return err
		})
		return packets
	}
	ctx, stop := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		for ctx.Err() == nil {
			_, _ = source.Write([]byte("no")) // whether it arrives is seen at the other end
		}
	})
	defer sending.Wait()
	defer stop()
	// Some packets meet the rules before each change, and so also after it. The kernel may drop
	// others on the way, where it has too many.
	for i := range 50 {
		for enough, end := arrived()+20, time.Now().Add(patience); arrived() < enough; {
			if time.Now().After(end) {
				t.Fatalf("before change %d hardly any packet reaches the cell", i)
			}
		}
		n.apply(f, deny(i+1))
	}
	stop()
	sending.Wait()
	if got := receive(lost); got > 0 {
		t.Errorf("%d packets passed", got)
	}
}

func many(count int) func(*agentapi.Firewall) {
	return func(fw *agentapi.Firewall) {
		a := agentapi.Allowed{AnyPort: true}
		for i := range count {
			a.Addresses = append(a.Addresses, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32))
		}
		fw.Ingress = agentapi.Direction{Isolated: true, Allowed: []agentapi.Allowed{a}}
	}
}

func BenchmarkRulesWithTenThousandPeers(b *testing.B) {
	n := newNet3(b)
	f := n.firewall()
	for i := 0; b.Loop(); i++ {
		n.apply(f, many(10_000+i%2))
	}
}
