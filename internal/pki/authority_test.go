package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

// clock is a settable one.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func newAuthority(t *testing.T, c *clock) *Authority {
	t.Helper()
	a, err := New(c.now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newRequest(t *testing.T, template *x509.CertificateRequest, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func parse(t *testing.T, der []byte) *x509.Certificate {
	t.Helper()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func kipChain(t *testing.T, a *Authority) []*x509.Certificate {
	t.Helper()
	cert, err := a.Client(0).Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{cert.Leaf, a.Certificate()}
}

func TestDecodedAuthorityIsTheSame(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	data, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	all, err := DecodeAuthorities(data, c.now)
	if err != nil {
		t.Fatal(err)
	}
	b := all.Signing
	if a.Hash() != b.Hash() || !a.key.Equal(b.key) {
		t.Fatal("the decoded authority differs")
	}
	again, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, again) {
		t.Fatal("encoding what was decoded changes it")
	}
}

func TestDecodeRefusesWhatIsNoAuthority(t *testing.T) {
	c := newClock()
	a, other := newAuthority(t, c), newAuthority(t, c)
	good, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Encode()
	if err != nil {
		t.Fatal(err)
	}
	keyOf := func(b []byte) []byte { return b[bytes.Index(b, []byte("-----BEGIN PRIVATE")):] }
	client, err := a.Client(0).Certificate()
	if err != nil {
		t.Fatal(err)
	}
	leaf := &Authority{cert: client.Leaf, key: client.PrivateKey.(*ecdsa.PrivateKey)}
	leafPEM, err := leaf.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"nothing":         nil,
		"no PEM":          []byte("hello"),
		"no key":          a.CertificatePEM(),
		"no certificate":  keyOf(good),
		"another's key":   append(a.CertificatePEM(), keyOf(foreign)...),
		"more after it":   append(bytes.Clone(good), "more"...),
		"a leaf":          leafPEM,
		"key not PKCS #8": append(a.CertificatePEM(), "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n"...),
	} {
		if _, err := DecodeAuthorities(data, c.now); err == nil {
			t.Errorf("%s: decoded without an error", name)
		}
	}
}

func TestSignCellTakesNothingButTheKeyFromTheRequest(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	key := newKey(t)
	csr := newRequest(t, &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: "kip", Organization: []string{"system:masters"}},
		DNSNames:    []string{"kip.example"},
		URIs:        []*url.URL{CellURI("other")},
		IPAddresses: nil,
	}, key)
	der, err := a.SignCell(csr, "c-1")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := VerifyOwn(der, a.Certificate(), "c-1", &key.PublicKey, c.now())
	if err != nil {
		t.Fatal(err)
	}
	if s := cert.Subject.String(); s != "" {
		t.Errorf("subject %q", s)
	}
	if len(cert.DNSNames) != 0 || len(cert.URIs) != 1 || cert.URIs[0].String() != "kip://cell/c-1" {
		t.Errorf("names %v %v", cert.DNSNames, cert.URIs)
	}
	if len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth {
		t.Errorf("usage %v", cert.ExtKeyUsage)
	}
	if !cert.NotAfter.Equal(a.cert.NotAfter) {
		t.Errorf("ends %v, the CA %v", cert.NotAfter, a.cert.NotAfter)
	}
}

func TestSignCellRefusesBadRequests(t *testing.T) {
	a := newAuthority(t, newClock())
	good := newRequest(t, &x509.CertificateRequest{}, newKey(t))
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		csr []byte
		id  string
	}{
		"no request":         {nil, "c-1"},
		"signature forged":   {forged, "c-1"},
		"key not ECDSA":      {newRequest(t, &x509.CertificateRequest{}, ed), "c-1"},
		"key on P-384":       {newRequest(t, &x509.CertificateRequest{}, p384), "c-1"},
		"no cell ID":         {good, ""},
		"cell ID in capital": {good, "C-1"},
		"cell ID with slash": {good, "a/../b"},
		"cell ID too long":   {good, strings.Repeat("a", 64)},
	} {
		if _, err := a.SignCell(tc.csr, tc.id); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
}

func TestVerifyCellAcceptsOnlyThatCell(t *testing.T) {
	c := newClock()
	a, other := newAuthority(t, c), newAuthority(t, c)
	cell := func(by *Authority, id string) []*x509.Certificate {
		der, err := by.SignCell(newRequest(t, &x509.CertificateRequest{}, newKey(t)), id)
		if err != nil {
			t.Fatal(err)
		}
		return []*x509.Certificate{parse(t, der)}
	}
	server, err := a.Server([]string{"c-1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	serverCert, err := server.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.VerifyCell(cell(a, "c-1"), "c-1"); err != nil {
		t.Fatal(err)
	}
	for name, chain := range map[string][]*x509.Certificate{
		"none":                    nil,
		"another cell":            cell(a, "c-2"),
		"another authority":       append(cell(other, "c-1"), other.Certificate()),
		"Kip's own certificate":   kipChain(t, a),
		"the port's certificate":  {serverCert.Leaf, a.Certificate()},
		"the authority's":         {a.Certificate()},
		"a longer name of itself": cell(a, "c-11"),
	} {
		if err := a.VerifyCell(chain, "c-1"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestVerifyKipAcceptsOnlyKip(t *testing.T) {
	c := newClock()
	a, other := newAuthority(t, c), newAuthority(t, c)
	der, err := a.SignCell(newRequest(t, &x509.CertificateRequest{}, newKey(t)), "c-1")
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.Server([]string{"kip"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	serverCert, err := server.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	nobody, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "nobody"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, newKey(t).Public(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	good := kipChain(t, a)
	ca, err := VerifyKip(good, c.now(), a.Hash())
	if err != nil {
		t.Fatal(err)
	}
	if !ca.Equal(a.Certificate()) {
		t.Error("VerifyKip returned another CA")
	}
	for name, chain := range map[string][]*x509.Certificate{
		"none":                        nil,
		"without the CA":              good[:1],
		"the CA alone":                {a.Certificate()},
		"the CA twice":                {a.Certificate(), a.Certificate()},
		"another authority's":         kipChain(t, other),
		"another's leaf, the real CA": {kipChain(t, other)[0], a.Certificate()},
		"both authorities":            {kipChain(t, other)[0], other.Certificate(), a.Certificate()},
		"a cell's certificate":        {parse(t, der), a.Certificate()},
		"a server's certificate":      {serverCert.Leaf, a.Certificate()},
		"a client of another name":    {parse(t, nobody), a.Certificate()},
	} {
		if _, err := VerifyKip(chain, c.now(), a.Hash()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := VerifyKip(good, c.now().Add(clientLife+time.Minute), a.Hash()); err == nil {
		t.Error("accepted after its end")
	}
	if _, err := VerifyKip(good, c.now().Add(-ClockSkew/2), a.Hash()); err != nil {
		t.Errorf("a clock that is a little behind: %v", err)
	}
}

func TestCertificatesAreRenewedBeforeTheyEnd(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	server, err := a.Server([]string{"kip-0"}, []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("::ffff:10.1.2.4")})
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*Renewed{"client": a.Client(0), "server": server} {
		first, err := r.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		start := c.t
		c.t = start.Add(r.life / 2)
		if same, err := r.Certificate(); err != nil || same != first {
			t.Errorf("%s: renewed at half its life (%v)", name, err)
		}
		c.t = start.Add(r.life*2/3 + time.Second)
		second, err := r.Certificate()
		if err != nil {
			t.Fatal(err)
		}
		if second == first || second.PrivateKey.(*ecdsa.PrivateKey).Equal(first.PrivateKey) {
			t.Errorf("%s: not renewed with a new key", name)
		}
		if !second.Leaf.NotAfter.Equal(c.t.Add(r.life)) {
			t.Errorf("%s: the new one ends %v", name, second.Leaf.NotAfter)
		}
	}
	cert, err := server.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"kip-0", "10.1.2.3", "10.1.2.4"} {
		if err := cert.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if err := cert.Leaf.VerifyHostname("kip-1"); err == nil {
		t.Error("the server certificate is good for another name")
	}
}

func TestAnEndedAuthorityIssuesNothing(t *testing.T) {
	c := newClock()
	a := newAuthority(t, c)
	csr := newRequest(t, &x509.CertificateRequest{}, newKey(t))
	c.t = a.cert.NotAfter.Add(-time.Hour)
	cert, err := a.Client(0).Certificate()
	if err != nil {
		t.Fatal(err)
	}
	if !cert.Leaf.NotAfter.Equal(a.cert.NotAfter) {
		t.Errorf("a leaf outlives its authority: %v", cert.Leaf.NotAfter)
	}
	c.t = a.cert.NotAfter.Add(time.Second)
	if _, err := a.SignCell(csr, "c-1"); err == nil {
		t.Error("it signed a cell")
	}
	if _, err := a.Client(0).Certificate(); err == nil {
		t.Error("it signed Kip")
	}
}

func TestServerNeedsANameThatIsOne(t *testing.T) {
	a := newAuthority(t, newClock())
	if _, err := a.Server(nil, nil); err == nil {
		t.Error("no name at all: accepted")
	}
	if _, err := a.Server([]string{"a"}, []netip.Addr{{}}); err == nil {
		t.Error("an address that is not set: accepted")
	}
}

func TestVerifyOwnRefusesAnothersCertificate(t *testing.T) {
	c := newClock()
	a, other := newAuthority(t, c), newAuthority(t, c)
	key := newKey(t)
	der, err := a.SignCell(newRequest(t, &x509.CertificateRequest{}, key), "c-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyOwn(der, a.Certificate(), "c-1", &newKey(t).PublicKey, c.now()); err == nil {
		t.Error("for another key: accepted")
	}
	if _, err := VerifyOwn(der, a.Certificate(), "c-2", &key.PublicKey, c.now()); err == nil {
		t.Error("for another cell: accepted")
	}
	if _, err := VerifyOwn(der, other.Certificate(), "c-1", &key.PublicKey, c.now()); err == nil {
		t.Error("of another authority: accepted")
	}
	if _, err := VerifyOwn(der[1:], a.Certificate(), "c-1", &key.PublicKey, c.now()); err == nil {
		t.Error("not a certificate: accepted")
	}
}

func TestKeyHashTellsKeysApart(t *testing.T) {
	a, b := newKey(t), newKey(t)
	ha, err := KeyHash(a.Public())
	if err != nil {
		t.Fatal(err)
	}
	again, err := KeyHash(&a.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	hb, err := KeyHash(b.Public())
	if err != nil {
		t.Fatal(err)
	}
	if ha != again || ha == hb || len(ha) != 64 || strings.ToLower(ha) != ha {
		t.Errorf("hashes %s %s %s", ha, again, hb)
	}
	if _, err := KeyHash("no key"); err == nil {
		t.Error("hashed what is no key")
	}
}

func TestKipsCertificateSaysItsTerm(t *testing.T) {
	a := newAuthority(t, newClock())
	for _, want := range []uint64{0, 1, 1 << 63} {
		cert, err := a.Client(want).Certificate()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Term(cert.Leaf); err != nil || got != want {
			t.Errorf("the term %d is read as %d, %v", want, got, err)
		}
	}
	if _, err := Term(&x509.Certificate{Subject: pkix.Name{SerialNumber: "-1"}}); err == nil {
		t.Error("-1 is taken for a term")
	}
}
