package hollow

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
)

// patience is how long a test waits for what must come. It only tells a hang from a slow machine.
const patience = 5 * time.Minute

var testAddr = netip.MustParseAddrPort("127.64.0.1:6421")

func TestNetworkConnectionsAreConnections(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		var n Network
		l, err := n.Listen(testAddr)
		if err != nil {
			return nil, nil, nil, err
		}
		a, err := n.Dial(context.Background(), testAddr)
		if err != nil {
			return nil, nil, nil, err
		}
		b, err := l.Accept()
		if err != nil {
			return nil, nil, nil, err
		}
		return a, b, func() { _, _, _ = a.Close(), b.Close(), l.Close() }, nil
	})
}

// The connections that a cell sees behave as those below them.
func TestPortConnectionsAreConnections(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		var n Network
		p, err := newPort(func() (net.Listener, error) { return n.Listen(testAddr) }, open)
		if err != nil {
			return nil, nil, nil, err
		}
		a, err := n.Dial(context.Background(), testAddr)
		if err != nil {
			return nil, nil, nil, err
		}
		b, err := p.Accept()
		if err != nil {
			return nil, nil, nil, err
		}
		return a, b, func() { _, _, _ = a.Close(), b.Close(), p.Close() }, nil
	})
}

func TestNetworkRefusesWhereNobodyListens(t *testing.T) {
	var n Network
	if _, err := n.Dial(t.Context(), testAddr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	l, err := n.Listen(testAddr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Listen(testAddr); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener: %v", err)
	}
	waiting, err := n.Dial(t.Context(), testAddr)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection that was never accepted: %v", err)
	}
	if _, err := n.Dial(t.Context(), testAddr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens any more: %v", err)
	}
}

func TestSilenceHoldsWhatIsSent(t *testing.T) {
	var n Network
	p, err := newPort(func() (net.Listener, error) { return n.Listen(testAddr) }, open)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	far, err := n.Dial(t.Context(), testAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near, err := p.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if err := p.set(silent); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one ", "two "} {
		if _, err := near.Write([]byte(word)); err != nil {
			t.Fatal(err)
		}
	}
	if err := far.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := far.Read(make([]byte, 10)); err == nil {
		t.Fatalf("%d bytes came through a network that is cut", n)
	}
	if err := p.set(open); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte("three")); err != nil {
		t.Fatal(err)
	}
	if err := far.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("one two three"))
	if _, err := io.ReadFull(far, got); err != nil || string(got) != "one two three" {
		t.Errorf("%q came, %v", got, err)
	}
}

// joinOverTCP has cells join over real sockets.
func joinOverTCP(t *testing.T, listen func(netip.AddrPort) (net.Listener, error), port uint16) {
	t.Helper()
	authority, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := New(Config{StateDir: t.TempDir(), Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := tunnel.NewDialer(tunnel.DialerConfig{Authority: authority, Log: fleet.log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var boots sync.WaitGroup
	defer func() {
		cancel()
		boots.Wait()
		if err := fleet.Close(); err != nil {
			t.Error(err)
		}
	}()
	// Random, since others may test on this host.
	net24 := [3]byte{127, byte(64 + rand.IntN(64)), byte(rand.IntN(256))}
	for i := range 3 {
		token := pki.NewToken()
		ip := netip.AddrFrom4([4]byte{net24[0], net24[1], net24[2], byte(1 + i)})
		id := "c-" + ip.String()[strings.LastIndexByte(ip.String(), '.')+1:]
		data := userDataOf(t, agentapi.UserData{CellID: id, CAHash: authority.Hash(), Token: token.Reveal()})
		boots.Go(func() { fleet.Boot(ctx, cloud.Instance{ID: id, ManagementIP: ip}, data) })
		session, err := dialer.Keep(ctx, tunnel.Target{CellID: id, Addr: netip.AddrPortFrom(ip, port), Token: token}, stubAPI{},
			func(context.Context, string) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		select {
		case <-session.Ready():
		case <-time.After(patience):
			t.Fatalf("cell at %s has not joined: %v", ip, session.LastError())
		}
	}
}

func TestCellsListenAtTheirInstancesAddresses(t *testing.T) { joinOverTCP(t, nil, agentapi.Port) }

func TestCellsShareAListener(t *testing.T) {
	shared, err := Share(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	port := shared.Port()
	joinOverTCP(t, func(addr netip.AddrPort) (net.Listener, error) {
		return shared.Listen(netip.AddrPortFrom(addr.Addr(), port))
	}, port)
	// Nobody is at this address.
	c, err := net.Dial("tcp4", netip.AddrPortFrom(netip.MustParseAddr("127.63.0.1"), port).String())
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection to an address without a cell: %v", err)
	}
}

func TestLinesAreWhatWasSent(t *testing.T) {
	var want [][]byte
	var sent bytes.Buffer
	for i := range 200 {
		line := bytes.Repeat([]byte{byte('a' + i%26)}, []int{0, 1, firstRead - 1, firstRead, firstRead + 1, 5000}[i%6])
		want = append(want, line)
		sent.Write(line)
		sent.WriteByte('\n')
	}
	for name, r := range map[string]io.Reader{
		"at once":       bytes.NewReader(sent.Bytes()),
		"byte by byte":  iotest.OneByteReader(bytes.NewReader(sent.Bytes())),
		"half by half":  iotest.HalfReader(bytes.NewReader(sent.Bytes())),
		"end with data": iotest.DataErrReader(bytes.NewReader(sent.Bytes())),
	} {
		l := newLines(r)
		for i, w := range want {
			got, err := l.next()
			if err != nil || !bytes.Equal(got, w) {
				t.Fatalf("%s: line %d is %q, %v, want %q", name, i, got, err, w)
			}
		}
		if _, err := l.next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the last line: %v", name, err)
		}
		if l.buf != nil {
			t.Errorf("%s: a buffer is kept without a line", name)
		}
	}
}

func TestLineThatNeverEndsIsRefused(t *testing.T) {
	l := newLines(io.LimitReader(zeros{}, 3*maxAnswer))
	if _, err := l.next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a line without end: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func TestConfigurationThatCannotWorkIsRefused(t *testing.T) {
	_, err := New(Config{StopTime: -time.Second})
	if err == nil || !strings.Contains(err.Error(), "StopTime") || !strings.Contains(err.Error(), "-1s") {
		t.Errorf("a negative StopTime: %v", err)
	}
}
