package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
)

const (
	// otherPort is one that nobody guards.
	otherPort = agentPort + 1
	// lost is how long one waits for packets that should be dropped, patience for those that
	// should pass, which take microseconds.
	lost, patience = 300 * time.Millisecond, 5 * time.Minute
)

// neighbours are a host of its own, in a network namespace, with two machines on its
// bridge and a network behind it.
type neighbours struct {
	*testing.T
	cfg                   Config
	host, outside         netns.NsHandle
	machines              [2]netns.NsHandle
	addresses, addresses6 [2]netip.Addr
	pod, pod6             netip.Addr // of the second
	stray                 netip.Addr // of the second, of no plan
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

func (n *neighbours) in(ns netns.NsHandle, f func() error) {
	n.Helper()
	if err := inside(ns, f); err != nil {
		n.Fatal(err)
	}
}

func newNeighbours(t *testing.T) *neighbours {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	n := &neighbours{T: t, stray: netip.MustParseAddr("169.254.77.1"), cfg: Config{
		StateDir: filepath.Join(t.TempDir(), "cloud"),
		CIDR:     netip.MustParsePrefix("10.117.0.0/16"),
		IPv6CIDR: netip.MustParsePrefix("fd10:117::/64"),
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	n.host, n.outside = n.namespace(), n.namespace()
	n.in(n.host, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "outside"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(n.outside))}); err != nil {
			return err
		}
		// What is bridged is not shown to the rules of what is forwarded: each is looked at by itself.
		for _, key := range []string{"iptables", "ip6tables"} {
			err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+key, []byte("0"), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return errors.Join(up("lo"), up("outside", "192.0.2.1/24"), EnsureBridge(t.Context(), n.cfg),
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	})
	n.in(n.outside, func() error { return errors.Join(up("eth0", "192.0.2.2/24"), route("default", "192.0.2.1")) })
	cfg, err := n.cfg.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	n.cfg = cfg
	for i := range n.machines {
		slot := uint32(2 + i)
		n.addresses[i], n.addresses6[i] = network{cfg.CIDR}.management(slot), cfg.networkIPv6().management(slot)
		n.pod, n.pod6 = network{cfg.CIDR}.pod(slot), cfg.networkIPv6().pod(slot)
		n.machines[i] = n.machine(fmt.Sprintf("i-%012x0000", i+1), n.addresses[i])
		n.in(n.machines[i], func() error {
			// Nobody has its link-local address: it need not wait for that.
			for _, of := range []string{"all", "eth0"} {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+of+"/accept_dad", []byte("0"), 0); err != nil {
					return err
				}
			}
			return errors.Join(up("lo"), up("eth0", n.addresses[i].String()+"/16", n.addresses6[i].String()+"/64"),
				route("default", network{cfg.CIDR}.gateway().String()))
		})
	}
	n.in(n.machines[1], func() error { return up("eth0", n.pod.String()+"/32", n.pod6.String()+"/128", n.stray.String()+"/32") })
	n.in(n.machines[0], func() error { return route(n.stray.String()+"/32", "") })
	return n
}

func (n *neighbours) namespace() (ns netns.NsHandle) {
	n.Helper()
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var err error
		ns, err = netns.New()
		made <- err
	}()
	if err := <-made; err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { ns.Close() })
	return ns
}

// machine plugs in the network of a process.
func (n *neighbours) machine(id string, ip netip.Addr) (ns netns.NsHandle) {
	n.Helper()
	n.in(n.host, func() error {
		process := exec.Command("sleep", "infinity")
		process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if err := process.Start(); err != nil {
			return err
		}
		n.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
		bridge, err := netlink.LinkByName(n.cfg.Bridge)
		if err != nil {
			return err
		}
		if ns, err = netns.GetFromPid(process.Process.Pid); err != nil {
			return err
		}
		n.Cleanup(func() { ns.Close() })
		return plug(n.cfg, bridge.Attrs().Index, id, process.Process.Pid, ip)
	})
	return ns
}

func up(name string, addresses ...string) error {
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
	return netlink.LinkSetUp(l)
}

// route sends a network by an address, or "" for the link.
func route(to, via string) (err error) {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index}
	if to != "default" {
		if r.Dst, err = netlink.ParseIPNet(to); err != nil {
			return err
		}
	}
	if r.Gw = net.ParseIP(via); via == "" {
		r.Scope = netlink.SCOPE_LINK
	}
	return netlink.RouteReplace(r)
}

// listens has the second machine take connections at all its addresses.
func (n *neighbours) listens(port int) {
	n.Helper()
	n.in(n.machines[1], func() error {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		})
		n.Cleanup(func() { _ = l.Close(); serving.Wait() })
		return nil
	})
}

// dial says whether a connection from there is taken.
func (n *neighbours) dial(from netns.NsHandle, address string, port int, timeout time.Duration) error {
	return inside(from, func() error {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(address, fmt.Sprint(port)), timeout)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

func (n *neighbours) reaches(who string, from netns.NsHandle, address string, port int) {
	n.Helper()
	if err := n.dial(from, address, port, patience); err != nil {
		n.Errorf("%s does not reach %s port %d: %v", who, address, port, err)
	}
}

// kept says that only the agent's port is kept from somebody.
func (n *neighbours) kept(who string, from netns.NsHandle, address string) {
	n.Helper()
	n.reaches(who, from, address, otherPort)
	var timeout net.Error
	if err := n.dial(from, address, agentPort, lost); !errors.As(err, &timeout) || !timeout.Timeout() {
		n.Errorf("%s dials the agent at %s: %v, want that nobody answers", who, address, err)
	}
}

func TestOnlyTheHostReachesTheAgentsOnItsBridge(t *testing.T) {
	n := newNeighbours(t)
	n.listens(agentPort)
	n.listens(otherPort)
	var linkLocal string
	n.in(n.machines[1], func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		all, err := netlink.AddrList(l, unix.AF_INET6)
		for _, a := range all {
			if a.IP.IsLinkLocalUnicast() {
				linkLocal = a.IP.String() + "%eth0"
			}
		}
		if linkLocal == "" {
			err = errors.Join(err, errors.New("the machine has no link-local address"))
		}
		return err
	})
	sibling, own := n.machines[0], []string{n.addresses[1].String(), n.addresses6[1].String()}
	for _, address := range own {
		n.reaches("the host", n.host, address, agentPort)
	}
	for _, address := range append(own, linkLocal, n.stray.String()) {
		n.kept("a sibling", sibling, address)
	}
	for _, address := range []string{n.pod.String(), n.pod6.String()} {
		n.reaches("a sibling, a pod's own port,", sibling, address, agentPort)
	}
	n.kept("who is behind the host", n.outside, n.addresses[1].String())
	n.in(sibling, func() error { return route(n.addresses[1].String()+"/32", network{n.cfg.CIDR}.gateway().String()) })
	n.kept("a sibling by way of the host", sibling, n.addresses[1].String())
	n.in(sibling, func() error { return route(n.addresses[1].String()+"/32", "") })

	// It is the rules that keep it away, and they go with the cloud.
	n.in(n.host, func() error {
		if got := agentsTables(t.Context(), n.cfg); len(got) != 2 {
			return fmt.Errorf("the tables are %q", got)
		}
		err := unguardAgents(t.Context(), n.cfg)
		if got := agentsTables(t.Context(), n.cfg); len(got) > 0 {
			err = errors.Join(err, fmt.Errorf("left over: %q", got))
		}
		return err
	})
	n.reaches("without the rules a sibling", sibling, own[0], agentPort)
}

func TestAMachineReachesItselfByANodePortOfItsHost(t *testing.T) {
	const shown, port = "/proc/sys/net/bridge/bridge-nf-call-iptables", 30000
	if _, err := os.Stat(shown); err != nil {
		t.Skip("the kernel shows bridged packets to no rules of IP: it has no br_netfilter")
	}
	n := newNeighbours(t)
	n.listens(otherPort)
	gateway := network{n.cfg.CIDR}.gateway().String()
	n.in(n.host, func() error {
		nft := exec.CommandContext(t.Context(), "nft", "-f", "-")
		nft.Stdin = strings.NewReader(fmt.Sprintf(`table ip nodeport {
			chain pre {
				type nat hook prerouting priority dstnat;
				ip daddr %s tcp dport %d dnat to %s:%d;
			}
			chain post {
				type nat hook postrouting priority srcnat;
				ct status dnat masquerade;
			}
		}`, gateway, port, n.addresses[1], otherPort))
		out, err := nft.CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return os.WriteFile(shown, []byte("1"), 0)
	})
	n.reaches("a sibling", n.machines[0], gateway, port)
	if err := n.dial(n.machines[1], gateway, port, 5*time.Second); err != nil {
		n.Errorf("the machine does not reach itself at %s port %d: %v", gateway, port, err)
	}
}

func TestAnAgentIsReachedByNoOddFrame(t *testing.T) {
	n := newNeighbours(t)
	tag := []byte{0x81, 0x00, 0, 0} // of priority 0, in no VLAN
	frames := map[string][]byte{
		"the agent":                      n.opening(1, agentPort, nil, false),
		"the agent, tagged":              n.opening(2, agentPort, tag, false),
		"the agent, tagged twice":        n.opening(3, agentPort, bytes.Repeat(tag, 2), false),
		"the agent, tagged three times":  n.opening(4, agentPort, bytes.Repeat(tag, 3), false),
		"the agent, in the first of two": n.opening(5, agentPort, nil, true),
	}
	for name := range n.arrive(frames) {
		t.Errorf("a frame for %s arrives", name)
	}
	// Without the rules each of them does.
	n.in(n.host, func() error { return unguardAgents(t.Context(), n.cfg) })
	if got := n.arrive(frames); len(got) != len(frames) {
		t.Errorf("without the rules %d of %d arrive: %v", len(got), len(frames), got)
	}
}

// opening is a frame from the first machine to the second that opens a connection, or the
// first part of one: source is its port there.
func (n *neighbours) opening(source, port uint16, tags []byte, part bool) []byte {
	payload := binary.BigEndian.AppendUint16(nil, source)
	payload = binary.BigEndian.AppendUint16(payload, port)
	payload = append(payload, 0, 0, 0, 1) // the sequence number
	flags := []byte{0x20, 0}              // more fragments
	if !part {
		payload = append(payload, 0, 0, 0, 0, 5<<4, 2 /* SYN */, 0xff, 0xff, 0, 0, 0, 0)
		flags = []byte{0, 0}
	}
	head := append([]byte{0x45, 0, 0, byte(20 + len(payload)), 0, byte(source)}, flags...)
	head = append(head, 64, unix.IPPROTO_TCP, 0, 0)
	head = append(append(head, n.addresses[0].AsSlice()...), n.addresses[1].AsSlice()...)
	var sum uint32
	for i := 0; i < len(head); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(head[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(head[10:], ^uint16(sum))
	frame := append(append([]byte{}, HardwareAddr(n.addresses[1])...), HardwareAddr(n.addresses[0])...)
	return append(append(append(append(frame, tags...), 0x08, 0x00), head...), payload...)
}

// arrive sends frames from the first machine, and returns those that the second gets.
func (n *neighbours) arrive(frames map[string][]byte) map[string]bool {
	n.Helper()
	receive, send := n.packets(n.machines[1]), n.packets(n.machines[0])
	defer unix.Close(receive)
	defer unix.Close(send)
	last := n.opening(0xffff, otherPort, nil, false)
	for _, f := range frames {
		if _, err := unix.Write(send, f); err != nil {
			n.Fatal(err)
		}
	}
	if _, err := unix.Write(send, last); err != nil {
		n.Fatal(err)
	}
	got := map[string]bool{}
	buf := make([]byte, 2048)
	// The bridge keeps the order: after the last one nothing comes any more.
	for {
		size, err := unix.Read(receive, buf)
		if err != nil {
			n.Fatalf("wait for the last frame: %v", err)
		}
		if bytes.Contains(buf[:size], ports(last)) {
			return got
		}
		for name, f := range frames {
			if bytes.Contains(buf[:size], ports(f)) {
				got[name] = true
			}
		}
	}
}

// ports are those of a frame, and the sequence number: no two frames have the same.
func ports(f []byte) []byte {
	packet := bytes.Index(f, []byte{0x08, 0x00, 0x45}) + 2
	return f[packet+20 : packet+28]
}

// packets is a socket for all frames of a machine.
func (n *neighbours) packets(ns netns.NsHandle) (fd int) {
	n.Helper()
	n.in(ns, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)}))
	})
	return fd
}

func TestTheRulesOfAgentsAreOfTheirNetwork(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  Config
		want []string
	}{
		"without IPv6": {
			Config{},
			[]string{`oifname != "kip0" accept`, "ip daddr != 10.110.128.0/17 tcp dport 6421 drop", "meta protocol ip6 tcp dport 6421 drop"},
		},
		"with IPv6": {
			Config{Bridge: "b-1_x", CIDR: netip.MustParsePrefix("10.0.0.0/8"), IPv6CIDR: netip.MustParsePrefix("fd10::/64")},
			[]string{`oifname != "b-1_x" accept`, "ip daddr != 10.128.0.0/9 tcp dport 6421 drop", "ip6 daddr != fd10::80:0/105 tcp dport 6421 drop"},
		},
		"with a Kip elsewhere": {
			Config{AgentSources: []netip.Prefix{netip.MustParsePrefix("10.110.240.0/24")}},
			[]string{"ip saddr 10.110.240.0/24 tcp dport 6421 accept\n\t\tip daddr != 10.110.128.0/17 tcp dport 6421 drop"},
		},
		"of the smallest": {
			Config{CIDR: netip.MustParsePrefix("10.9.0.16/28"), IPv6CIDR: netip.MustParsePrefix("fd10::/96")},
			[]string{"ip daddr != 10.9.0.24/29 tcp", "ip6 daddr != fd10::8/125 tcp"},
		},
	} {
		tc.cfg.StateDir = "/var/lib/kip"
		cfg, err := tc.cfg.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range tc.want {
			if rules := cfg.agentsRules(); !strings.Contains(rules, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, rules)
			}
		}
	}
	a, _ := Config{StateDir: "/a"}.WithDefaults()
	b, _ := Config{StateDir: "/a", Bridge: "kip1"}.WithDefaults()
	if a.cableGroup() == b.cableGroup() || a.agentsTable() == b.agentsTable() {
		t.Error("two bridges share their rules")
	}
}

func TestAHostWithoutNftablesIsUsedAndToldOfIt(t *testing.T) {
	var said bytes.Buffer
	cfg, err := Config{StateDir: "/var/lib/kip", Log: slog.New(slog.NewTextHandler(io.MultiWriter(&said, t.Output()), nil))}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\necho no such thing; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	guardAgents(context.Background(), cfg)
	if !strings.Contains(said.String(), "no such thing") || !strings.Contains(said.String(), "install nftables") {
		t.Errorf("it says %q", said.String())
	}
	if got := agentsTables(context.Background(), cfg); len(got) > 0 {
		t.Errorf("its tables are %q", got)
	}
	if err := unguardAgents(context.Background(), cfg); err != nil {
		t.Error(err)
	}
}
