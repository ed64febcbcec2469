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
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
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
	// Whoever listens sees each packet of these ports once; the last one, which may
	// always pass, says that all before it are there or never will be.
	var listeners []int
	const port, end = 80, 4000
	n.in(n.outside, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0300) // all protocols, in network order
		if err != nil {
			return err
		}
		listeners = append(listeners, fd)
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: outside.Attrs().Index, Protocol: 0x0300}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience.Seconds())}))
	})
	t.Cleanup(func() {
		for _, fd := range listeners {
			unix.Close(fd)
		}
	})
	through := func(sent []byte) bool {
		t.Helper()
		seen, buf := false, make([]byte, 2048)
		for {
			got, _, err := unix.Recvfrom(listeners[0], buf, 0)
			if err != nil {
				t.Fatalf("wait for the last packet: %v", err)
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
			n.in(n.cell, func() error {
				fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, bypass); err != nil {
					return err
				}
				// On one processor packets stay in order.
				var one unix.CPUSet
				one.Set(0)
				r := raw{fd, cell.Attrs().Index}
				return errors.Join(unix.SchedSetaffinity(0, &one), r.send(c.frame, c.protocol), r.send(last, 0))
			})
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
	}, func() ([]string, error) { return []string{"eth0"}, nil }, slog.New(slog.NewTextHandler(&log, nil)))
	if _, err := f.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Apply(t.Context(), netip.MustParseAddr(podIP), netip.Addr{}, fmt.Appendf(nil, `{"podIP":%q}`, podIP)); err != nil {
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
	switch args[0] + args[1] {
	case "listchains":
		if k.digest == "" {
			return "", errors.New("no such table")
		}
		return "table inet kip {\n\tchain digest_" + k.digest + " {\n\t}\n}\n", nil
	case "listtables":
		if k.uplink == "" {
			return "", nil
		}
		return "table netdev " + uplinkTable + "\n", nil
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
		f := New(dir, kernel.nft, func() ([]string, error) { return []string{"eth0"}, nil }, slog.New(slog.DiscardHandler))
		digest, err := f.Begin(t.Context())
		if err != nil || kernel.trial {
			t.Fatalf("begin: %v, the trial of the hook is left: %v", err, kernel.trial)
		}
		return f, digest
	}
	apply := func(f *Firewall, allowed bool) {
		t.Helper()
		rules := fmt.Appendf(nil, `{"podIP":%q,"allowMetadata":%t}`, podIP, allowed)
		if err := f.Apply(t.Context(), netip.MustParseAddr(podIP), netip.Addr{}, rules); err != nil {
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
