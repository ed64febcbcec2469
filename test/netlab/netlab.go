// Package netlab owns small networks of network namespaces, for tests of nftables and routes. It knows nothing of
// Kip: a test adds what its own lab is made of.
package netlab

import (
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Lab is a host and what is wired to it, each a network namespace. The test's thread is in the host's. Every
// method fails the test on an error.
type Lab struct {
	*testing.T
	Host netns.NsHandle
}

// New makes a host's namespace, and one for each of others. They end with the test, as does its thread.
func New(t *testing.T, others ...*netns.NsHandle) *Lab {
	t.Helper()
	runtime.LockOSThread() // and never unlocked, so that the thread ends with the test
	l := &Lab{T: t}
	for _, ns := range append(others, &l.Host) { // the thread stays in the last
		var err error
		if *ns, err = netns.New(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
	}
	l.Run("ip link set lo up")
	return l
}

// Run runs commands in the namespace of the thread. Their words are between spaces.
func (l *Lab) Run(commands ...string) {
	l.Helper()
	for _, command := range commands {
		args := strings.Fields(command)
		if out, err := exec.CommandContext(l.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			l.Fatalf("%s: %v: %s", command, err, out)
		}
	}
}

// Within runs f in another namespace.
func (l *Lab) Within(ns netns.NsHandle, f func()) {
	l.Helper()
	if err := netns.Set(ns); err != nil {
		l.Fatal(err)
	}
	defer func() {
		if err := netns.Set(l.Host); err != nil {
			l.Fatal(err)
		}
	}()
	f()
}

// Wire connects the host with a namespace, where the device is eth0 and has the addresses.
func (l *Lab) Wire(device string, there netns.NsHandle, addresses ...string) {
	l.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = device
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(there))}); err != nil {
		l.Fatal(err)
	}
	l.Run("ip link set " + device + " up")
	l.Within(there, func() {
		l.Run("ip link set lo up", "ip link set eth0 up")
		for _, a := range addresses {
			l.Run("ip address add " + a + " dev eth0")
		}
	})
}

// Sees connects from one namespace to an address of another and returns the address that the other sees; "" if
// nothing comes through in time. source is the address to connect from, or "" for any.
func (l *Lab) Sees(from, to netns.NsHandle, source, address string, within time.Duration) (seen string) {
	l.Helper()
	var server net.Listener
	l.Within(to, func() {
		var err error
		if server, err = net.Listen("tcp4", address+":0"); err != nil {
			l.Fatal(err)
		}
	})
	defer server.Close()
	l.Within(from, func() {
		d := net.Dialer{Timeout: within}
		if source != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
		}
		c, err := d.DialContext(l.Context(), "tcp4", server.Addr().String())
		if err != nil {
			return
		}
		defer c.Close()
		there, err := server.Accept()
		if err != nil {
			l.Fatal(err)
		}
		defer there.Close()
		seen = there.RemoteAddr().(*net.TCPAddr).IP.String()
	})
	return seen
}
