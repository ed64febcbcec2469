// Package dhcp asks a network for a machine's address (RFC 2131) and keeps it. It
// decides nothing about interfaces: who asked brings the lease into force.
package dhcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Kinds of messages.
const (
	discover = 1
	offer    = 2
	request  = 3
	ack      = 5
	nak      = 6
)

// Options (RFC 2132, RFC 3397 for the search list, RFC 3442 for routes).
const (
	optPad       = 0
	optMask      = 1
	optRouter    = 3
	optDNS       = 6
	optHostname  = 12
	optDomain    = 15
	optMTU       = 26
	optNTP       = 42
	optRequested = 50
	optLifetime  = 51
	optKind      = 53
	optServer    = 54
	optWanted    = 55
	optMaxSize   = 57
	optRenew     = 58
	optClient    = 61
	optSearch    = 119
	optRoutes    = 121
	optEnd       = 255
)

const (
	// header is the size of a message without options, in bytes, and magic what begins
	// these.
	header = 236
	magic  = 0x63825363
	// leastBytes is the size below which old relays drop a message.
	leastBytes = 300
	// maxBytes is the largest message that is asked for.
	maxBytes = 1500
	// broadcast asks the server for an answer to all: the machine has no address yet.
	broadcast = 0x8000
	ethernet  = 1
	maxNames  = 253
	// maxSearch is how many domains are taken: as many as the kubelet takes for a pod.
	maxSearch = 32
)

// Route is a way that a lease brings: Via is unset for what is on the link.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// Lease is what a network gave to a machine.
type Lease struct {
	Address netip.Prefix
	// Routes are those of option 121, or else one by the first router.
	Routes   []Route
	DNS, NTP []netip.Addr
	Hostname string
	// Search are the domains in which a name without dots is looked for: option 119, or else those of
	// option 15.
	Search []string
	// MTU is in bytes, 0 for the link's own.
	MTU    int
	Server netip.Addr
	// Lifetime is how long the lease is good, and Renew after which it is asked for again.
	Lifetime, Renew time.Duration
}

// message is one of the protocol.
type message struct {
	kind     byte
	reply    bool
	xid      uint32
	hardware net.HardwareAddr
	// client is the address that the machine has, your the one that it is given.
	client, your netip.Addr
	options      map[byte][]byte
}

func (m message) bytes() []byte {
	b := make([]byte, header, maxBytes)
	b[0], b[1], b[2] = 1, ethernet, byte(len(m.hardware))
	if m.reply {
		b[0] = 2
	}
	binary.BigEndian.PutUint32(b[4:], m.xid)
	if !m.client.IsValid() {
		binary.BigEndian.PutUint16(b[10:], broadcast)
	}
	put := func(at int, a netip.Addr) {
		if a.Is4() {
			copy(b[at:], a.AsSlice())
		}
	}
	put(12, m.client)
	put(16, m.your)
	copy(b[28:44], m.hardware)
	b = binary.BigEndian.AppendUint32(b, magic)
	b = append(b, optKind, 1, m.kind)
	keys := make([]byte, 0, len(m.options))
	for k := range m.options {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		b = append(append(b, k, byte(len(m.options[k]))), m.options[k]...)
	}
	b = append(b, optEnd)
	return append(b, make([]byte, max(0, leastBytes-len(b)))...)
}

// parse reads a message of a server, which is anybody on the link.
func parse(b []byte) (message, error) {
	if len(b) < header+4 || b[0] != 2 || b[1] != ethernet || b[2] > 16 || binary.BigEndian.Uint32(b[header:]) != magic {
		return message{}, errors.New("no answer of a DHCP server")
	}
	m := message{
		reply:    true,
		xid:      binary.BigEndian.Uint32(b[4:]),
		hardware: net.HardwareAddr(bytes.Clone(b[28 : 28+b[2]])),
		your:     netip.AddrFrom4([4]byte(b[16:20])),
		options:  map[byte][]byte{},
	}
	for rest := b[header+4:]; len(rest) > 0 && rest[0] != optEnd; {
		if rest[0] == optPad {
			rest = rest[1:]
			continue
		}
		end := 2
		if len(rest) > 1 {
			end += int(rest[1])
		}
		if len(rest) < end {
			return message{}, errors.New("an option of a DHCP answer ends in the middle")
		}
		// One that is there twice is one that was too long (RFC 3396).
		m.options[rest[0]] = append(m.options[rest[0]], rest[2:end]...)
		rest = rest[end:]
	}
	if len(m.options[optKind]) != 1 {
		return message{}, errors.New("a DHCP answer does not say of what kind it is")
	}
	m.kind = m.options[optKind][0]
	return m, nil
}

// lease reads what an offer or an acknowledgement gives.
func (m message) lease() (Lease, error) {
	l := Lease{
		DNS:      addresses(m.options[optDNS]),
		NTP:      addresses(m.options[optNTP]),
		Hostname: name(m.options[optHostname]),
		Search:   searchList(m.options[optSearch]),
	}
	if len(l.Search) == 0 {
		l.Search = domains(m.options[optDomain])
	}
	mask := m.options[optMask]
	if len(mask) != 4 || !m.your.IsGlobalUnicast() && !m.your.IsLinkLocalUnicast() {
		return Lease{}, fmt.Errorf("a DHCP lease of %v with %d bytes of a mask", m.your, len(mask))
	}
	ones, bits := net.IPMask(mask).Size()
	if bits == 0 {
		return Lease{}, fmt.Errorf("a DHCP lease with the mask %v", net.IP(mask))
	}
	l.Address = netip.PrefixFrom(m.your, ones)
	if servers := addresses(m.options[optServer]); len(servers) > 0 {
		l.Server = servers[0]
	}
	if mtu := m.options[optMTU]; len(mtu) == 2 {
		// Below 576 no IPv4 works as it should.
		if n := int(binary.BigEndian.Uint16(mtu)); n >= 576 {
			l.MTU = n
		}
	}
	seconds := func(option byte) time.Duration {
		if b := m.options[option]; len(b) == 4 {
			return time.Duration(binary.BigEndian.Uint32(b)) * time.Second
		}
		return 0
	}
	l.Lifetime, l.Renew = seconds(optLifetime), seconds(optRenew)
	if l.Renew == 0 || l.Renew > l.Lifetime {
		l.Renew = l.Lifetime / 2
	}
	var err error
	if l.Routes, err = routes(m.options[optRoutes]); err != nil {
		return Lease{}, err
	}
	if routers := addresses(m.options[optRouter]); len(l.Routes) == 0 && len(routers) > 0 {
		l.Routes = []Route{{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: routers[0]}}
	}
	return l, nil
}

func addresses(b []byte) []netip.Addr {
	var out []netip.Addr
	for ; len(b) >= 4; b = b[4:] {
		out = append(out, netip.AddrFrom4([4]byte(b)))
	}
	return out
}

// routes reads option 121: the length of each destination, its bytes that matter, and
// the router.
func routes(b []byte) ([]Route, error) {
	var out []Route
	for len(b) > 0 {
		ones := int(b[0])
		n := (ones + 7) / 8
		if ones > 32 || len(b) < 1+n+4 {
			return nil, errors.New("the routes of a DHCP lease end in the middle")
		}
		var to [4]byte
		copy(to[:], b[1:1+n])
		r := Route{To: netip.PrefixFrom(netip.AddrFrom4(to), ones).Masked(), Via: netip.AddrFrom4([4]byte(b[1+n:]))}
		if r.Via.IsUnspecified() {
			r.Via = netip.Addr{}
		}
		out = append(out, r)
		b = b[1+n+4:]
	}
	return out, nil
}

// name returns a host's or a domain's name, "" for what is none: it goes into files.
func name(b []byte) string {
	s := strings.TrimRight(string(b), "\x00.")
	ok := len(s) <= maxNames
	for _, c := range s {
		ok = ok && (c == '-' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	if !ok {
		return ""
	}
	return s
}

// domains reads option 15, which is one name, or several between spaces: AWS allows these for machines with
// Linux ("DHCP option sets" in the VPC guide). What is no name is left out.
func domains(b []byte) []string {
	var out []string
	for part := range bytes.FieldsSeq(bytes.TrimRight(b, "\x00")) {
		if n := name(part); n != "" && len(out) < maxSearch {
			out = append(out, n)
		}
	}
	return out
}

// searchList reads option 119: names as DNS has them, whose ends may be pointers into the option. What ends
// in the middle is left out, with all that follows.
func searchList(b []byte) []string {
	var out []string
	for at := 0; at < len(b) && len(out) < maxSearch; {
		labels, next, ok := domain(b, at)
		if !ok {
			break
		}
		if n := name([]byte(strings.Join(labels, "."))); n != "" {
			out = append(out, n)
		}
		at = next
	}
	return out
}

// domain reads one name of option 119 at a place, and returns where the next begins.
func domain(b []byte, at int) (labels []string, next int, ok bool) {
	const pointer, label = 0xc0, 0x00
	end := len(b)
	for length := 0; at < end && length <= maxNames; {
		n := int(b[at])
		switch {
		case n == 0:
			return labels, max(next, at+1), true
		case n&pointer == label && at+1+n < len(b):
			labels = append(labels, string(b[at+1:at+1+n]))
			length += n + 1
			at += 1 + n
		case n&pointer == pointer && at+1 < len(b):
			next = max(next, at+2)
			// What it leads to lies before it, so that this ends.
			at, end = n&^pointer<<8|int(b[at+1]), at
		default:
			return nil, 0, false
		}
	}
	return nil, 0, false
}
