package tunnel

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
)

// Two members of a batch. Root on each has the batch's secret, and so both tokens.
const memberA, memberB = "launch-x-0", "launch-x-1"

// isMember makes the world's cell that one, and returns what its machine reads.
func (w *world) isMember(secret pki.BatchSecret, cell string) agentapi.UserData {
	w.cellID, w.token = cell, secret.Token(cell)
	return w.userData()
}

// joinsAs is a machine whose root answers Kip's join as it likes.
func joinsAs(t *testing.T, cellID string, token pki.Token) netip.AddrPort {
	t.Helper()
	id, err := openIdentity(t.TempDir(), cellID)
	if err != nil {
		t.Fatal(err)
	}
	return impostor(t, &tls.Config{
		Certificates: []tls.Certificate{*id.unsigned},
		NextProtos:   []string{protoJoin},
		ClientAuth:   tls.RequestClientCert,
	}, func(c *tls.Conn) {
		state := c.ConnectionState()
		ch, err := channel(&state)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := readMessage(c, kindOffer); err != nil {
			return
		}
		req, err := id.request()
		if err != nil {
			t.Error(err)
			return
		}
		_ = writeMessage(c, message{Kind: kindRequest, CellID: cellID, Request: req, Proof: prove(token, roleCell, cellID, ch, req)})
		_, _ = io.Copy(io.Discard, c)
	})
}

func TestAMemberOfABatchJoinsAsNoOtherAtItsAddress(t *testing.T) {
	w := newWorld(t)
	secret := pki.NewBatchSecret()
	asB := w.startWith(w.isMember(secret, memberB), t.TempDir(), "", says("agent"))
	own := w.isMember(secret, memberA)
	// All of them at the address of A, which Kip dials for A.
	for what, addr := range map[string]netip.AddrPort{
		"an agent with B's user data": asB.addr,
		"B's name and B's token":      joinsAs(t, memberB, secret.Token(memberB)),
		"A's name and B's token":      joinsAs(t, memberA, secret.Token(memberB)),
		"B's name and A's token":      joinsAs(t, memberB, secret.Token(memberA)),
	} {
		st := newStates(t)
		target := w.target(addr)
		target.OnState = st.note
		s := w.keep(w.dialer(w.authority), target, nil)
		err := st.next("a refusal", func(state) bool { return true }).err
		s.Close()
		if err == nil || w.spentOn() != "" {
			t.Errorf("%s: Kip took it for A: %v, spent on %q", what, err, w.spentOn())
		}
	}
	select {
	case <-asB.Joined():
		t.Error("an agent joined as B at the address of A")
	default:
	}
	m := w.startWith(own, t.TempDir(), "", says("agent"))
	wait(t, "A to join as A", w.keep(w.dialer(w.authority), w.target(m.addr), nil).Ready())
}

func TestAMemberOfABatchCannotPassAsKipToASibling(t *testing.T) {
	w := newWorld(t)
	secret := pki.NewBatchSecret()
	dir := t.TempDir()
	a := w.startWith(w.isMember(secret, memberA), dir, "", says("agent"))
	s := w.keep(w.dialer(w.authority), w.target(a.addr), nil)
	wait(t, "A to join", s.Ready())
	s.Close()
	// What root on A has: A's key and certificate, Kip's CA certificate, and B's token.
	id, err := openIdentity(dir, memberA)
	if err != nil {
		t.Fatal(err)
	}
	certificate := id.certificate()
	if certificate == nil {
		t.Fatal("A has no certificate: the test shows nothing")
	}
	ca := w.authority.Certificate().Raw
	named := selfSigned(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kip"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	another, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	kipOfAnother, err := another.Client(0).Certificate()
	if err != nil {
		t.Fatal(err)
	}
	chain := func(c tls.Certificate, more ...[]byte) tls.Certificate {
		c.Certificate = append(c.Certificate[:1:1], more...)
		return c
	}
	w.mu.Lock()
	w.spent = ""
	w.mu.Unlock()
	data := w.isMember(secret, memberB)
	b := w.startWith(data, t.TempDir(), "", says("agent"))
	for what, cert := range map[string]tls.Certificate{
		"A's certificate":                        chain(*certificate),
		"A's certificate with the CA's":          chain(*certificate, ca),
		"one for kip of its own":                 chain(named),
		"one for kip of its own, with the CA's":  chain(named, ca),
		"that of a Kip of its own":               *kipOfAnother,
		"that of a Kip of its own, and the CA's": chain(*kipOfAnother, another.Certificate().Raw, ca),
		"the CA's certificate with A's key":      {Certificate: [][]byte{ca}, PrivateKey: certificate.PrivateKey},
	} {
		// The offer has B's name and proves B's token, on this connection.
		err := w.asksInVain(b.addr, &tls.Config{
			MinVersion:         tls.VersionTLS13,
			NextProtos:         []string{protoJoin},
			InsecureSkipVerify: true,
			Certificates:       []tls.Certificate{cert},
		})
		if err == nil {
			t.Errorf("%s: B answers its offer", what)
		}
	}
	select {
	case <-b.Joined():
		t.Error("B joined its sibling")
	default:
	}
	// The same offer with Kip's certificate is answered: it is that which was lacking.
	fresh := w.startWith(data, t.TempDir(), "", says("agent"))
	if err := w.asksInVain(fresh.addr, kipTLS(t, w.authority, protoJoin)); err != nil {
		t.Errorf("Kip's own offer is refused: %v", err)
	}
	wait(t, "B to join Kip", w.keep(w.dialer(w.authority), w.target(b.addr), nil).Ready())
}

func TestWhatKipSaysToOneMemberOfABatchIsNothingToAnother(t *testing.T) {
	w := newWorld(t)
	secret := pki.NewBatchSecret()
	b := w.startWith(w.isMember(secret, memberB), t.TempDir(), "", says("agent"))
	w.isMember(secret, memberA)
	// A hands on what Kip sends to A's address, byte by byte.
	st := newStates(t)
	_, addr := newWire(t, b.addr)
	target := w.target(addr)
	target.OnState = st.note
	s := w.keep(w.dialer(w.authority), target, nil)
	err := st.next("a refusal", func(state) bool { return true }).err
	s.Close()
	if err == nil || w.spentOn() != "" {
		t.Errorf("Kip took B for A: %v", err)
	}
	// A repeats Kip's offer to A, as it is and under B's name, even with Kip's certificate.
	offers := make(chan message, 1)
	listener := impostor(t, &tls.Config{
		Certificates: []tls.Certificate{selfSigned(t, &x509.Certificate{})},
		NextProtos:   []string{protoJoin}, ClientAuth: tls.RequestClientCert,
	}, func(c *tls.Conn) {
		if o, err := readMessage(c, kindOffer); err == nil {
			select {
			case offers <- o:
			default:
			}
		}
	})
	s = w.keep(w.dialer(w.authority), w.target(listener), nil)
	offer := wait(t, "an offer", offers)
	s.Close()
	for _, name := range []string{memberA, memberB} {
		c, err := tls.Dial("tcp", b.addr.String(), kipTLS(t, w.authority, protoJoin))
		if err != nil {
			t.Fatal(err)
		}
		offer.CellID = name
		err = writeMessage(c, offer)
		var refused *refusedError
		if _, answer := readMessage(c, kindRequest); err != nil || !errors.As(answer, &refused) {
			t.Errorf("B answers an offer to A that is repeated for %s: %v, %v", name, err, answer)
		}
		c.Close()
	}
	select {
	case <-b.Joined():
		t.Error("B joined")
	default:
	}
}
