package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var mac = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// given are the options of a full lease.
func given(kind byte) map[byte][]byte {
	return map[byte][]byte{
		optKind: {kind}, optMask: {255, 255, 240, 0}, optRouter: {10, 1, 0, 1}, optDNS: {10, 1, 0, 2, 10, 1, 0, 3}, optServer: {10, 1, 0, 1},
		optHostname: []byte("ip-10-1-2-3"), optDomain: []byte("ec2.internal"), optMTU: {0x23, 0x29}, optNTP: {169, 254, 169, 123},
		optLifetime: {0, 0, 14, 16},
	}
}

var want = Lease{
	Address:  netip.MustParsePrefix("10.1.2.3/20"),
	Routes:   []Route{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.1.0.1")}},
	DNS:      []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")},
	NTP:      []netip.Addr{netip.MustParseAddr("169.254.169.123")},
	Hostname: "ip-10-1-2-3",
	Search:   []string{"ec2.internal"},
	MTU:      9001,
	Server:   netip.MustParseAddr("10.1.0.1"),
	Lifetime: time.Hour,
	Renew:    30 * time.Minute,
}

// server answers on loopback as the function says; each answer is one datagram.
func server(t *testing.T, answer func(n int, asked []byte) [][]byte) *udp {
	t.Helper()
	s, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("udp4", s.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, maxBytes)
		for n := 0; ; n++ {
			length, from, err := s.ReadFrom(b)
			if err != nil {
				return
			}
			for _, a := range answer(n, b[:length]) {
				_, _ = s.WriteTo(a, from)
			}
		}
	}()
	stop := func() { s.Close(); c.Close(); <-ended }
	t.Cleanup(stop)
	return &udp{c, stop}
}

// udp is a client's way to a server, which stop ends: only then may a test read what
// the server has seen.
type udp struct {
	net.Conn
	stop func()
}

func (u *udp) Send(m []byte) error { _, err := u.Write(m); return err }

func (u *udp) Receive(until time.Time) ([]byte, error) {
	if err := u.SetReadDeadline(until); err != nil {
		return nil, err
	}
	b := make([]byte, maxBytes)
	n, err := u.Read(b)
	return b[:n], err
}

func client(c Conn) *Client {
	return &Client{Conn: c, Hardware: mac, Rand: func() uint32 { return 0x01020304 }, wait: 20 * time.Millisecond}
}

func reply(asked []byte, options map[byte][]byte) []byte {
	kind := options[optKind][0]
	delete(options, optKind)
	m := message{
		kind: kind, reply: true, xid: binary.BigEndian.Uint32(asked[4:]), hardware: net.HardwareAddr(asked[28:34]),
		your: netip.MustParseAddr("10.1.2.3"), options: options,
	}
	return m.bytes()
}

// optionOf reads what a client asked, with a loop of its own.
func optionOf(asked []byte, option byte) []byte {
	for rest := asked[header+4:]; rest[0] != optEnd; rest = rest[2+int(rest[1]):] {
		if rest[0] == option {
			return rest[2 : 2+int(rest[1])]
		}
	}
	return nil
}

func TestALeaseIsOfferedAskedForAndGiven(t *testing.T) {
	var kinds []byte
	var asked []byte
	s := server(t, func(n int, b []byte) [][]byte {
		kinds = append(kinds, optionOf(b, optKind)...)
		if n == 0 {
			return nil // the first message is lost
		}
		if optionOf(b, optKind)[0] == discover {
			return [][]byte{
				{1, 2, 3}, // rubbish on the link
				strip(reply(b, given(ack))),
				toAnother(reply(b, given(offer))),
				reply(b, given(offer)),
			}
		}
		asked = append([]byte(nil), b...)
		return [][]byte{reply(b, given(offer)), reply(b, given(ack))}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := client(s).Acquire(ctx)
	s.stop()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v (%v),\nwant %+v", got, err, want)
	}
	if string(optionOf(asked, optRequested)) != "\x0a\x01\x02\x03" || string(optionOf(asked, optServer)) != "\x0a\x01\x00\x01" {
		t.Error("the request does not name what was offered, and by whom")
	}
	if asked[10]&0x80 == 0 || len(asked) < leastBytes || net.HardwareAddr(asked[28:34]).String() != mac.String() {
		t.Error("the request is not one of a machine without an address")
	}
	if len(kinds) < 3 || kinds[0] != discover || kinds[1] != discover || kinds[len(kinds)-1] != request {
		t.Errorf("asked %v, want it to ask again", kinds)
	}
}

// toAnother makes a message one to somebody else, with another address.
func toAnother(b []byte) []byte {
	b[4] ^= 1
	copy(b[16:20], []byte{10, 9, 9, 9})
	return b
}

// strip takes the kind out of a message.
func strip(b []byte) []byte { b[header+4+2] = 0; return b }

func TestARefusedLeaseIsAskedForAnew(t *testing.T) {
	requests := 0
	c := client(server(t, func(_ int, b []byte) [][]byte {
		if optionOf(b, optKind)[0] == discover {
			return [][]byte{reply(b, given(offer))}
		}
		if requests++; requests%2 == 1 {
			return [][]byte{reply(b, map[byte][]byte{optKind: {nak}})}
		}
		return [][]byte{reply(b, given(ack))}
	}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := c.Acquire(ctx)
	if err != nil || got.Address != want.Address {
		t.Errorf("%+v (%v)", got, err)
	}
	if _, err := c.Renew(ctx, got); !errors.Is(err, errRefused) {
		t.Errorf("a lease that is not renewed: %v", err)
	}
	if got, err := c.Renew(ctx, got); err != nil || got.Lifetime != time.Hour {
		t.Errorf("renewed: %+v (%v)", got, err)
	}
}

// tapped is a Conn of which somebody hears what comes.
type tapped struct {
	Conn
	came func(message []byte)
}

func (c tapped) Receive(until time.Time) ([]byte, error) {
	b, err := c.Conn.Receive(until)
	if err == nil {
		c.came(b)
	}
	return b, err
}

func TestAServerThatAlwaysRefusesIsNotAskedAsFastAsItAnswers(t *testing.T) {
	asked := 0
	s := server(t, func(_ int, b []byte) [][]byte {
		if asked++; optionOf(b, optKind)[0] == discover {
			return [][]byte{reply(b, given(offer))}
		}
		return [][]byte{reply(b, map[byte][]byte{optKind: {nak}})}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := client(tapped{s, func(b []byte) {
		if optionOf(b, optKind)[0] == nak {
			cancel() // in the pause, from now on
		}
	}})
	c.wait = time.Hour
	_, err := c.Acquire(ctx)
	s.stop()
	if !errors.Is(err, errRefused) || !errors.Is(err, context.Canceled) {
		t.Errorf("a server that refuses: %v", err)
	}
	if asked != 2 {
		t.Errorf("it was sent %d messages before the first pause, want 2", asked)
	}
}

func TestNobodyAnswers(t *testing.T) {
	for name, answer := range map[string][]byte{"nothing": nil, "rubbish": {1}} {
		c := client(server(t, func(int, []byte) [][]byte { return [][]byte{answer} }))
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err := c.Acquire(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer of a DHCP server") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := client(brokenConn{})
	if _, err := c.Acquire(ctx); err == nil || !errors.Is(err, os.ErrClosed) {
		t.Errorf("a socket that broke: %v", err)
	}
	cancel()
}

type brokenConn struct{}

func (brokenConn) Send([]byte) error                 { return os.ErrClosed }
func (brokenConn) Receive(time.Time) ([]byte, error) { return nil, os.ErrClosed }

func TestWhatMakesNoSenseIsNoLease(t *testing.T) {
	for name, tc := range map[string]struct {
		option byte
		value  []byte
		want   string // "" for a lease without it
	}{
		"no mask":              {optMask, nil, "0 bytes of a mask"},
		"a mask with a hole":   {optMask, []byte{255, 0, 255, 0}, "with the mask"},
		"a cut route":          {optRoutes, []byte{24, 10, 0}, "routes of a DHCP lease end"},
		"a route of 40 bits":   {optRoutes, []byte{40, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "routes of a DHCP lease end"},
		"a name with a line":   {optHostname, []byte("a\nb"), ""},
		"a domain with a line": {optDomain, []byte("a\nb; c"), ""},
		"an MTU below IPv4's":  {optMTU, []byte{0, 68}, ""},
		"an MTU of one byte":   {optMTU, []byte{5}, ""},
		"a renewal after all":  {optRenew, []byte{0, 1, 0, 0}, ""},
		"a lifetime of 1 byte": {optLifetime, []byte{1}, ""},
	} {
		options := given(ack)
		options[tc.option] = tc.value
		m, err := parse(reply(make([]byte, 64), options))
		if err != nil {
			t.Fatal(err)
		}
		l, err := m.lease()
		if tc.want != "" {
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %+v (%v), want %q", name, l, err, tc.want)
			}
			continue
		}
		same := l.Hostname == want.Hostname && slices.Equal(l.Search, want.Search) && l.MTU == want.MTU && l.Lifetime == want.Lifetime
		if err != nil || same != (tc.option == optRenew) || l.Renew > l.Lifetime {
			t.Errorf("%s: %+v (%v)", name, l, err)
		}
	}
}

// AWS lets an option set name several domains for machines with Linux, and Google Cloud tells those of its
// projects by option 119.
func TestTheDomainsInWhichNamesAreLookedFor(t *testing.T) {
	const a, b = "\x01a\x07example\x03com\x00", "\x02bb\xc0\x02" // a.example.com, bb.example.com
	for name, tc := range map[string]struct {
		domain, search string
		want           []string
	}{
		"one domain":              {"ec2.internal", "", []string{"ec2.internal"}},
		"several":                 {"a.example.com  b.example.com. c\x00", "", []string{"a.example.com", "b.example.com", "c"}},
		"one that is no name":     {"a.example.com b;c", "", []string{"a.example.com"}},
		"a list":                  {"ec2.internal", a + b, []string{"a.example.com", "bb.example.com"}},
		"a pointer alone":         {"", a + "\xc0\x02", []string{"a.example.com", "example.com"}},
		"a pointer to a pointer":  {"", a + b + "\x01c\xc0\x0f", []string{"a.example.com", "bb.example.com", "c.bb.example.com"}},
		"a list of no names":      {"ec2.internal", "\x03b;c\x00", []string{"ec2.internal"}},
		"a list that is cut":      {"", a + "\x07exam", []string{"a.example.com"}},
		"a pointer to itself":     {"", a + "\xc0\x0f", []string{"a.example.com"}},
		"a pointer behind itself": {"", a + "\xc0\x7f", []string{"a.example.com"}},
		"a pointer that is cut":   {"", a + "\xc0", []string{"a.example.com"}},
		"a label of a later kind": {"ec2.internal", "\x41a\x00", []string{"ec2.internal"}},
		"very many":               {strings.Repeat("a ", 100), "", slices.Repeat([]string{"a"}, maxSearch)},
	} {
		options := given(ack)
		options[optDomain], options[optSearch] = []byte(tc.domain), []byte(tc.search)
		m, err := parse(reply(make([]byte, 64), options))
		if err != nil {
			t.Fatal(err)
		}
		if l, err := m.lease(); err != nil || !slices.Equal(l.Search, tc.want) {
			t.Errorf("%s: %q (%v), want %q", name, l.Search, err, tc.want)
		}
	}
	asked := client(nil).options()[optWanted]
	if !slices.Contains(asked, byte(optSearch)) {
		t.Errorf("asked is for %v, and not for option 119", asked)
	}
}

func TestRoutesOfALease(t *testing.T) {
	// A /32 of Google Cloud: the router is not in the machine's own network.
	got, err := routes([]byte{32, 10, 128, 0, 1, 0, 0, 0, 0, 0, 10, 128, 0, 1, 12, 172, 16, 10, 0, 0, 9})
	w := []Route{
		{To: netip.MustParsePrefix("10.128.0.1/32")},
		{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.128.0.1")},
		{To: netip.MustParsePrefix("172.16.0.0/12"), Via: netip.MustParseAddr("10.0.0.9")},
	}
	if err != nil || !reflect.DeepEqual(got, w) {
		t.Errorf("%v (%v), want %v", got, err, w)
	}
}

func TestOnlyPacketsToAClientAreRead(t *testing.T) {
	packet := func(change func(b []byte)) []byte {
		b := make([]byte, 28, 33)
		b[0], b[9], b[23], b[25] = 0x45, 17, clientPort, 8+5
		b = append(b, "hello"...)
		change(b)
		return b
	}
	for name, tc := range map[string]struct {
		b    []byte
		want string
	}{
		"to a client":        {packet(func([]byte) {}), "hello"},
		"padded":             {append(packet(func([]byte) {}), 0, 0, 0), "hello"},
		"TCP":                {packet(func(b []byte) { b[9] = 6 }), ""},
		"IPv6":               {packet(func(b []byte) { b[0] = 0x65 }), ""},
		"a fragment":         {packet(func(b []byte) { b[7] = 1 }), ""},
		"another port":       {packet(func(b []byte) { b[23] = 67 }), ""},
		"longer than it is":  {packet(func(b []byte) { b[25] = 14 }), ""},
		"shorter than UDP":   {packet(func(b []byte) { b[25] = 7 }), ""},
		"a header too long":  {packet(func(b []byte) { b[0] = 0x4f }), ""},
		"cut":                {packet(func([]byte) {})[:24], ""},
		"nothing":            {nil, ""},
		"options, and short": {packet(func(b []byte) { b[0] = 0x46 }), ""},
	} {
		if got := payload(tc.b, clientPort); string(got) != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// The longest have lengths near the end of a byte: whoever is on the link may send one, and the agent is the
// machine's first process.
func TestAnOptionOfAnyLengthIsRead(t *testing.T) {
	for long := range 256 {
		option := bytes.Repeat([]byte{7}, long)
		b := reply(make([]byte, 64), map[byte][]byte{optKind: {ack}, 200: option})
		m, err := parse(b)
		if err != nil || !bytes.Equal(m.options[200], option) || m.kind != ack {
			t.Errorf("of an option of %d bytes: %+v, %v", long, m, err)
		}
		if at := bytes.LastIndex(b, []byte{200, byte(long)}); long > 0 {
			if _, err := parse(b[:at+1+long]); err == nil {
				t.Errorf("an option of %d bytes that ends in the middle is read", long)
			}
		}
	}
}

// FuzzParse: whatever is on the link, it is an error or a lease that can be used.
func FuzzParse(f *testing.F) {
	f.Add(reply(make([]byte, 64), given(ack)))
	f.Add(reply(make([]byte, 64), map[byte][]byte{optKind: {offer}, optRoutes: {0, 10, 0, 0, 1}, optMask: {255, 255, 255, 255}}))
	f.Add(reply(make([]byte, 64), map[byte][]byte{optKind: {ack}, optMask: {255, 255, 255, 0}, optSearch: []byte("\x01a\x00\x01b\xc0\x00")}))
	for _, long := range []int{253, 254, 255} {
		f.Add(reply(make([]byte, 64), map[byte][]byte{optKind: {ack}, optMask: {255, 255, 255, 0}, 200: make([]byte, long)}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		l, err := m.lease()
		if err != nil {
			return
		}
		names := l.Hostname + strings.Join(l.Search, "")
		if !l.Address.IsValid() || l.Renew > l.Lifetime || strings.ContainsAny(names, "\n ;#") || l.MTU != 0 && l.MTU < 576 {
			t.Errorf("the lease %+v", l)
		}
		if ones, _ := net.IPMask(m.options[optMask]).Size(); !bytes.Equal(l.Address.Addr().AsSlice(), b[16:20]) || l.Address.Bits() != ones ||
			len(l.DNS) != len(m.options[optDNS])/4 || len(l.NTP) != len(m.options[optNTP])/4 || len(l.Search) > maxSearch ||
			slices.ContainsFunc(append(l.Search, l.Hostname), func(n string) bool { return len(n) > maxNames }) {
			t.Errorf("the lease %+v is not what %x gives", l, b)
		}
		for _, r := range l.Routes {
			if !r.To.IsValid() {
				t.Errorf("the route %+v", r)
			}
		}
	})
}
