package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agentapi"
)

// frame is a UDP packet to an address, in an Ethernet frame from the uplink's device.
func frame(from, to net.HardwareAddr, dst string, port uint16) []byte {
	ip := []byte{0x45, 0, 0, 32, 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = append(append(ip, netip.MustParseAddr(cellIP).AsSlice()...), netip.MustParseAddr(dst).AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum&0xffff))
	f := append(append(bytes.Clone(to), from...), 0x08, 0x00)
	f = append(f, ip...)
	f = binary.BigEndian.AppendUint16(f, 4321)
	f = binary.BigEndian.AppendUint16(f, port)
	return append(f, 0, 12, 0, 0, 'a', 'b', 'c', 'd')
}

// raw sends frames by a packet socket of the cell.
type raw struct {
	fd     int
	device int
}

func (r raw) send(f []byte, protocol uint16) error {
	inNetworkOrder := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
	err := unix.Sendto(r.fd, f, 0, &unix.SockaddrLinklayer{Ifindex: r.device, Protocol: inNetworkOrder})
	if errors.Is(err, unix.ENOBUFS) { // how a sender hears that a packet was dropped
		return nil
	}
	return err
}

// end is the port of a packet that may always pass: it says that all before it are
// there, or never will be.
const end = 4000

// listener returns what says, outside, whether a frame came by this device before the
// last one. Each packet is seen once.
func (n *net3) listener(device string) (through func(sent []byte) bool) {
	n.Helper()
	var fd int
	n.in(n.outside, func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0300); err != nil { // all protocols, in network order
			return err
		}
		n.Cleanup(func() { unix.Close(fd) })
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index, Protocol: 0x0300}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience.Seconds())}))
	})
	return func(sent []byte) bool {
		n.Helper()
		seen, buf := false, make([]byte, 2048)
		for {
			got, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				n.Fatalf("wait for the last packet: %v", err)
			}
			b := buf[:got]
			if bytes.HasSuffix(b, sent[len(sent)-12:]) && bytes.Contains(b, sent[26:34]) {
				seen = true
			}
			if len(b) >= 38 && binary.BigEndian.Uint16(b[36:]) == end {
				return seen
			}
		}
	}
}

// send sends a frame, and the last one, by a packet socket of the cell.
func (n *net3) send(by netlink.Link, bypass int, f []byte, protocol uint16, last []byte) {
	n.Helper()
	n.sendMarked(by, bypass, 0, f, protocol, last)
}

// sendMarked does so by one with a mark, as whoever has CAP_NET_ADMIN there may set it.
func (n *net3) sendMarked(by netlink.Link, bypass, mark int, f []byte, protocol uint16, last []byte) {
	n.Helper()
	n.in(n.cell, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, bypass); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
			return err
		}
		// On one processor packets stay in order.
		var one unix.CPUSet
		one.Set(0)
		r := raw{fd, by.Attrs().Index}
		return errors.Join(unix.SchedSetaffinity(0, &one), r.send(f, protocol), r.send(last, 0))
	})
}

// Raw packets of the host's network do not reach the metadata service, however they
// are sent, and do when the pod may.
func TestRawPacketsDoNotReachTheMetadataService(t *testing.T) {
	n := newNet3(t)
	var outside netlink.Link
	n.in(n.outside, func() (err error) {
		outside, err = netlink.LinkByName("eth0")
		return err
	})
	var cell netlink.Link
	n.in(n.cell, func() (err error) {
		cell, err = netlink.LinkByName("up")
		return err
	})
	const port = 80
	through := n.listener("eth0")
	plain := frame(cell.Attrs().HardwareAddr, outside.Attrs().HardwareAddr, "169.254.169.254", port)
	last := frame(cell.Attrs().HardwareAddr, outside.Attrs().HardwareAddr, outsideIP, end)
	tagged := append(append(bytes.Clone(plain[:12]), 0x81, 0, 0, 0), plain[12:]...)
	options := bytes.Clone(plain)
	options[14] = 0x46
	dns := frame(cell.Attrs().HardwareAddr, outside.Attrs().HardwareAddr, "169.254.169.254", 53)
	wire := frame(cell.Attrs().HardwareAddr, outside.Attrs().HardwareAddr, "168.63.129.16", 32526)
	wire[23] = unix.IPPROTO_TCP
	try := func(want bool, bypass int) {
		t.Helper()
		for what, c := range map[string]struct {
			frame    []byte
			protocol uint16
			always   bool
		}{
			"as it is":               {plain, unix.ETH_P_IP, false},
			"said to be ARP":         {plain, unix.ETH_P_ARP, false},
			"said to be what is not": {plain, 0x88b5, false},
			"said to be nothing":     {plain, 0, false},
			"with a tag":             {tagged, unix.ETH_P_IP, false},
			"with options":           {options, unix.ETH_P_IP, false},
			"to the WireServer":      {wire, unix.ETH_P_IP, false},
			"that asks for a name":   {dns, 0, true},
		} {
			n.send(cell, bypass, c.frame, c.protocol, last)
			if got := through(c.frame); got != (want || c.always) {
				t.Errorf("a packet %s, bypass %d: through is %v", what, bypass, got)
			}
		}
	}
	f := n.firewall()
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !f.hooked {
		t.Skip("the kernel has no hook at what leaves a device")
	}
	for _, bypass := range []int{0, 1} {
		try(false, bypass) // closed
		n.apply(f, func(*agentapi.Firewall) {})
		try(false, bypass)
		n.apply(f, func(fw *agentapi.Firewall) { fw.AllowMetadata = true })
		try(true, bypass)
		n.apply(f, func(*agentapi.Firewall) {})
		try(false, bypass)
	}
	// An agent that starts anew knows of the guard, and takes it away where it is told.
	again := n.firewall()
	if digest, err := again.Begin(t.Context()); err != nil || digest == "" || !again.hooked {
		t.Fatalf("began with %q, hooked %v: %v", digest, again.hooked, err)
	}
	n.apply(again, func(fw *agentapi.Firewall) { fw.AllowMetadata = true })
	try(true, 0)
}

// What the agent marks passes the guard as long as no pod is in the network of the machine, and no
// longer: a pod there may set the mark.
func TestTheMarkPassesTheGuardOnlyWhereNoPodMaySetIt(t *testing.T) {
	n := newNet3(t)
	var outside, cell netlink.Link
	n.in(n.outside, func() (err error) {
		outside, err = netlink.LinkByName("eth0")
		return err
	})
	n.in(n.cell, func() (err error) {
		cell, err = netlink.LinkByName("up")
		return err
	})
	through := n.listener("eth0")
	try := func(state string, want bool) {
		t.Helper()
		plain := frame(cell.Attrs().HardwareAddr, outside.Attrs().HardwareAddr, "169.254.169.254", 80)
		last := frame(cell.Attrs().HardwareAddr, outside.Attrs().HardwareAddr, outsideIP, end)
		for _, bypass := range []int{0, 1} {
			for mark, want := range map[int]bool{agentMark: want, agentMark + 1: false} {
				n.sendMarked(cell, bypass, mark, plain, unix.ETH_P_IP, last)
				if got := through(plain); got != want {
					t.Errorf("%s: with the mark %#x, bypass %d: through is %v", state, mark, bypass, got)
				}
			}
		}
	}
	rename := func(from, to string) {
		t.Helper()
		n.in(n.cell, func() error {
			l, err := netlink.LinkByName(from)
			if err == nil {
				err = errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
			}
			return err
		})
	}
	f := n.firewall()
	cover := func() {
		t.Helper()
		if err := f.cover(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	rename("pod0", "none")
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !f.hooked {
		t.Skip("the kernel has no hook at what leaves a device")
	}
	try("closed", true)
	n.apply(f, func(*agentapi.Firewall) {})
	try("with rules, and without a pod's device", false)
	rename("none", "pod0")
	cover()
	try("with a pod's device", true)
	rename("pod0", "none")
	cover()
	try("without it again", false)
	// A device in the place of the uplink has a guard of its own.
	n.in(n.cell, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "late"
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "late0", PeerNamespace: netlink.NsFd(int(n.outside))})
	})
	for ns, name := range map[netns.NsHandle]string{n.cell: "late", n.outside: "late0"} {
		n.in(ns, func() error {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			return err
		})
	}
	n.in(n.outside, func() (err error) {
		outside, err = netlink.LinkByName("late0")
		return err
	})
	n.in(n.cell, func() (err error) {
		cell, err = netlink.LinkByName("late")
		return err
	})
	through = n.listener("late0")
	cover()
	try("by a device that came later", false)
	rename("none", "pod0")
	cover()
	try("by that, with a pod's device", true)
}

// A device that is plugged in later is guarded before anybody has brought it up: also in
// the place of one of the same name, by an agent that has started anew, and when the
// pod may ask the service no more.
func TestWhatIsPluggedInLaterIsGuarded(t *testing.T) {
	n := newNet3(t)
	f := n.firewall()
	loaded := make(chan string, 100)
	load := func(f *Firewall) {
		nft := f.nft
		f.nft = func(ctx context.Context, args ...string) (string, error) {
			out, err := nft(ctx, args...)
			if b, e := os.ReadFile(args[len(args)-1]); e == nil && err == nil {
				loaded <- string(b)
			}
			return out, err
		}
	}
	load(f)
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !f.hooked {
		t.Skip("the kernel has no hook at what leaves a device")
	}
	n.apply(f, func(*agentapi.Firewall) {})
	follow := func(f *Firewall) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var following sync.WaitGroup
		following.Go(func() {
			f.Follow(ctx, func(ch chan<- netlink.LinkUpdate, done <-chan struct{}) error {
				return netlink.LinkSubscribeAt(n.cell, ch, done)
			})
		})
		return func() { cancel(); following.Wait() }
	}
	stop := follow(f)
	defer func() { stop() }()
	guarded := func(device string) {
		t.Helper()
		for deadline := time.After(patience); ; {
			select {
			case program := <-loaded:
				if strings.Contains(program, fmt.Sprintf("device %q", device)) {
					return
				}
			case <-deadline:
				t.Fatalf("%s was not guarded", device)
			}
		}
	}
	// Both ends of it are down at first.
	plug := func(device string) (late netlink.Link) {
		t.Helper()
		n.in(n.cell, func() (err error) {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = device
			veth := &netlink.Veth{LinkAttrs: attrs, PeerName: device, PeerNamespace: netlink.NsFd(int(n.outside))}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			late, err = netlink.LinkByName(device)
			return err
		})
		return late
	}
	try := func(device string, late netlink.Link, want bool) {
		t.Helper()
		var there netlink.Link
		n.in(n.outside, func() (err error) {
			if there, err = netlink.LinkByName(device); err != nil {
				return err
			}
			return netlink.LinkSetUp(there)
		})
		n.in(n.cell, func() error { return netlink.LinkSetUp(late) })
		through := n.listener(device)
		from, to := late.Attrs().HardwareAddr, there.Attrs().HardwareAddr
		f, last := frame(from, to, "169.254.169.254", 80), frame(from, to, outsideIP, end)
		for _, bypass := range []int{0, 1} {
			n.send(late, bypass, f, unix.ETH_P_IP, last)
			if got := through(f); got != want {
				t.Errorf("by %s, bypass %d: through is %v", device, bypass, got)
			}
		}
	}
	unplug := func(device netlink.Link) {
		t.Helper()
		n.in(n.cell, func() error { return netlink.LinkDel(device) })
	}

	late := plug("late")
	guarded("late")
	try("late", late, false)
	var listed string
	n.in(n.cell, func() error {
		b, err := exec.CommandContext(t.Context(), "nft", "list", "table", "netdev", uplinkTable).CombinedOutput()
		listed = string(b)
		return err
	})
	for _, device := range []string{"up", "late"} {
		if !strings.Contains(listed, fmt.Sprintf("device %q", device)) &&
			!strings.Contains(listed, fmt.Sprintf("devices = { %q }", device)) {
			t.Errorf("nft lists no hook on %s:\n%s", device, listed)
		}
	}
	unplug(late)
	late = plug("late")
	guarded("late")
	try("late", late, false)

	// An agent that starts anew guards what came while there was none.
	stop()
	between := plug("between")
	try("between", between, true)
	f = n.firewall()
	load(f)
	if digest, err := f.Begin(t.Context()); err != nil || digest == "" {
		t.Fatalf("began with %q: %v", digest, err)
	}
	stop = follow(f)
	guarded("between")
	try("between", between, false)

	// Where the pod may ask, nothing is guarded until it may not.
	n.apply(f, func(fw *agentapi.Firewall) { fw.AllowMetadata = true })
	allowed := plug("allowed")
	try("allowed", allowed, true)
	n.apply(f, func(*agentapi.Firewall) {})
	try("allowed", allowed, false)
	stop()
	f = n.firewall()
	if _, err := f.Begin(t.Context()); err != nil || !f.guarded {
		t.Errorf("an agent that starts anew takes the devices to be guarded: %v: %v", f.guarded, err)
	}
	n.apply(f, func(fw *agentapi.Firewall) { fw.AllowMetadata = true })
	f = n.firewall()
	if _, err := f.Begin(t.Context()); err != nil || f.guarded {
		t.Errorf("where the pod may ask, an agent that starts anew takes the devices to be guarded: %v: %v", f.guarded, err)
	}
}

// What fails is tried again: nft, the kernel's news and the subscription to them.
func TestFollowingGoesOnAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of all that is here
		kernel := &fakeTables{}
		devices := []Uplink{{"eth0", 1}}
		var fail error
		f := New(t.TempDir(), func(ctx context.Context, args ...string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if args[0] == "-f" && fail != nil {
				return "busy", fail
			}
			return kernel.nft(ctx, args...)
		}, func() (Devices, error) {
			mu.Lock()
			defer mu.Unlock()
			return Devices{Uplinks: slices.Clone(devices)}, nil
		}, slog.New(slog.DiscardHandler))
		if _, err := f.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var news chan<- netlink.LinkUpdate
		refused := errors.New("no such family")
		subscriptions := 0
		var following sync.WaitGroup
		following.Go(func() {
			f.Follow(ctx, func(ch chan<- netlink.LinkUpdate, done <-chan struct{}) error {
				mu.Lock()
				defer mu.Unlock()
				subscriptions++
				if refused != nil {
					return refused
				}
				quit := make(chan netlink.LinkUpdate)
				news = quit
				go func() {
					defer close(ch)
					for {
						select {
						case u, ok := <-quit:
							if !ok {
								return
							}
							ch <- u
						case <-done:
							return
						}
					}
				}()
				return nil
			})
		})
		defer following.Wait()
		defer cancel()
		guarded := func(what, device string, want bool) {
			t.Helper()
			time.Sleep(2 * followRetry)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Contains(kernel.uplink, fmt.Sprintf("device %q", device)); got != want {
				t.Errorf("%s: %s is guarded: %v", what, device, got)
			}
		}
		then := func(change func()) {
			mu.Lock()
			defer mu.Unlock()
			change()
		}
		then(func() { devices = append(devices, Uplink{"eth1", 2}) })
		guarded("no subscription", "eth1", false)
		then(func() { refused = nil })
		guarded("a subscription at last", "eth1", true)
		then(func() { fail, devices = errors.New("exit status 1"), append(devices, Uplink{"eth2", 3}) })
		news <- netlink.LinkUpdate{}
		guarded("nft fails", "eth2", false)
		then(func() { fail = nil })
		guarded("nft works", "eth2", true)
		before := subscriptions
		then(func() { devices = append(devices, Uplink{"eth3", 4}) })
		close(news)
		guarded("the news end", "eth3", true)
		if subscriptions != before+1 {
			t.Errorf("subscribed %d times after the news ended", subscriptions-before)
		}
	})
}

// A kernel without the hook has the rest of the firewall, and the log says so.
func TestAKernelWithoutTheHookIsToldOf(t *testing.T) {
	var log bytes.Buffer
	var loaded []string
	f := New(t.TempDir(), func(_ context.Context, args ...string) (string, error) {
		if args[0] != "-f" {
			return "", errors.New("no such table")
		}
		b, err := os.ReadFile(args[1])
		if err != nil {
			return "", err
		}
		if strings.Contains(string(b), "netdev") {
			return "Operation not supported", errors.New("exit status 1")
		}
		loaded = append(loaded, string(b))
		return "", nil
	}, func() (Devices, error) { return Devices{Uplinks: []Uplink{{"eth0", 1}}}, nil }, slog.New(slog.NewTextHandler(&log, nil)))
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Apply(t.Context(), netip.MustParseAddr(podIP), netip.Addr{}, nil, fmt.Appendf(nil, `{"podIP":%q}`, podIP)); err != nil {
		t.Fatal(err)
	}
	if len(loaded) != 2 {
		t.Errorf("%d programs were loaded, want both", len(loaded))
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "Operation not supported") {
		t.Errorf("the log says %q", text)
	}
}

// fakeTables are those of a kernel, as far as Begin looks at them.
type fakeTables struct {
	digest string // of the rules in force
	uplink string // the program of the guard
	trial  bool
}

func (k *fakeTables) nft(_ context.Context, args ...string) (string, error) {
	switch strings.Join(args[:min(len(args), 3)], " ") {
	case "list chains inet":
		if k.digest == "" {
			return "", errors.New("no such table")
		}
		return "table inet kip {\n\tchain digest_" + k.digest + " {\n\t}\n}\n", nil
	case "list chains netdev":
		if k.uplink == "" {
			return "", nil
		}
		return "table netdev " + uplinkTable + " {" + k.uplink, nil
	}
	b, err := os.ReadFile(args[1])
	if err != nil {
		return "", err
	}
	program := string(b)
	if strings.Contains(program, "kip_trial") {
		k.trial = program == hookTrial
		return "", nil
	}
	k.digest, k.uplink = "", ""
	if _, rest, ok := strings.Cut(program, "chain digest_"); ok {
		k.digest = rest[:64]
	}
	if _, rest, ok := strings.Cut(program, "\ntable netdev "+uplinkTable+" {"); ok {
		k.uplink = rest
	}
	return "", nil
}

// Whether there is a guard does not depend on what an agent of before had in force.
func TestTheGuardComesBackAfterAnAgentHasStartedAnew(t *testing.T) {
	kernel := &fakeTables{}
	dir := t.TempDir()
	begin := func() (*Firewall, string) {
		t.Helper()
		f := New(dir, kernel.nft, func() (Devices, error) { return Devices{Uplinks: []Uplink{{"eth0", 1}}}, nil }, slog.New(slog.DiscardHandler))
		digest, err := f.Begin(t.Context())
		if err != nil || kernel.trial {
			t.Fatalf("begin: %v, the trial of the hook is left: %v", err, kernel.trial)
		}
		return f, digest
	}
	apply := func(f *Firewall, allowed bool) {
		t.Helper()
		rules := fmt.Appendf(nil, `{"podIP":%q,"allowMetadata":%t}`, podIP, allowed)
		if err := f.Apply(t.Context(), netip.MustParseAddr(podIP), netip.Addr{}, nil, rules); err != nil {
			t.Fatal(err)
		}
		if guarded := strings.Contains(kernel.uplink, "hook egress"); guarded == allowed {
			t.Errorf("the metadata service is allowed: %v, the uplinks are guarded: %v", allowed, guarded)
		}
	}
	f, _ := begin()
	apply(f, true)
	f, digest := begin()
	if digest == "" {
		t.Error("with the service allowed, a new agent does not find what is in force")
	}
	apply(f, false)

	// One of before knew of no guard.
	kernel.uplink = ""
	if f, digest = begin(); digest != "" {
		t.Errorf("without the guard the rules %s count as in force", digest)
	}
	apply(f, false)
}
