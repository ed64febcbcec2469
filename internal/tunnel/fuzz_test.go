package tunnel

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/elotl/kip/internal/pki"
)

// framed is a message on the wire whose body is body.
func framed(body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// FuzzReadMessage holds that no more is read than what may be a message, that all of
// a message comes back, and that errors are short, clean lines.
func FuzzReadMessage(f *testing.F) {
	const most = 8 << 10 // as the protocol has it
	kinds := []string{kindOffer, kindRequest, kindGrant, kindDone}
	for i, m := range []message{
		{Kind: kindOffer, CellID: "c-1", Proof: []byte("proof")},
		{Kind: kindRequest, CellID: "c-1", Proof: []byte("proof"), Request: []byte("request")},
		{Kind: kindGrant, Certificate: make([]byte, 100)},
		{Kind: kindRefusal, Reason: "no\x00\xff\u2028\x1b"},
	} {
		var b bytes.Buffer
		if err := writeMessage(&b, m); err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), b.Bytes())
	}
	f.Add(byte(0), []byte{0xff, 0xff, 0xff, 0xff})
	f.Add(byte(0), append(binary.BigEndian.AppendUint32(nil, most+1), make([]byte, most+1)...))
	f.Add(byte(0), framed(`{}{`))
	f.Add(byte(0), framed(`{"kind":"offer"} {`))
	f.Add(byte(0), framed(`{"kind":"offer","proof":"","reason":"<<<"}`))
	f.Add(byte(2), framed(`{"kind":"grant","certificate":"AAAA"}`+strings.Repeat(" ", most)))
	f.Add(byte(0), framed(`{"`+strings.Repeat("a", 8000)+`":1}`))
	f.Add(byte(0), framed(`{"kind":"`+strings.Repeat(`\\`, 300)+`"}`))
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		want := kinds[int(kind)%len(kinds)]
		r := bytes.NewReader(data)
		m, err := readMessage(r, want)
		read := len(data) - r.Len()
		if len(data) >= 4 && binary.BigEndian.Uint32(data) > most && (err == nil || read != 4) {
			t.Fatalf("of a message that is too large %d bytes were read: %v", read, err)
		}
		if err != nil {
			if !reflect.DeepEqual(m, message{}) {
				t.Fatalf("an error and a message: %+v", m)
			}
			if s := err.Error(); len(s) > 300 || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("the error is not one short, clean line: %d bytes, %.300q", len(s), s)
			}
			return
		}
		if n := int(binary.BigEndian.Uint32(data)); m.Kind != want || read != 4+n || !json.Valid(data[4:read]) {
			t.Fatalf("of %.300q, %d bytes were accepted as %s", data, read, want)
		}
		for _, b := range []*[]byte{&m.Proof, &m.Request, &m.Certificate} {
			if len(*b) == 0 {
				*b = nil // which is written alike
			}
		}
		body, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := writeMessage(&b, m); (err != nil) != (len(body) > most) {
			t.Fatalf("write a message of %d bytes: %v", len(body), err)
		} else if err != nil {
			return // larger in our own spelling
		}
		if again, err := readMessage(&b, want); err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v came back as %+v, %v", m, again, err)
		}
	})
}

// fixedKey is the same key each time, so that a finding can be replayed.
func fixedKey(f *testing.F, n byte) *ecdsa.PrivateKey {
	f.Helper()
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), bytes.Repeat([]byte{n}, 32))
	if err != nil {
		f.Fatal(err)
	}
	return key
}

func encodedKey(f *testing.F, key *ecdsa.PrivateKey, headers map[string]string) []byte {
	f.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		f.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockKey, Headers: headers, Bytes: der})
}

// fixedAuthority has the n-th fixed key, and no end that a finding would meet.
func fixedAuthority(f *testing.F, n byte) *pki.Authority {
	f.Helper()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "kip-ca"},
		NotBefore:             time.Unix(0, 0),
		NotAfter:              time.Unix(1<<32, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	key := fixedKey(f, n)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		f.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: der})
	all, err := pki.DecodeAuthorities(append(cert, encodedKey(f, key, nil)...), time.Now)
	if err != nil {
		f.Fatal(err)
	}
	return all.Signing
}

// fixedIdentity is a cell's, with the n-th fixed key.
func fixedIdentity(f *testing.F, n byte) *identity {
	f.Helper()
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, keyFile), encodedKey(f, fixedKey(f, n), map[string]string{headerCell: "c-1"}),
		0o600); err != nil {
		f.Fatal(err)
	}
	id, err := openIdentity(dir, "c-1")
	if err != nil {
		f.Fatal(err)
	}
	return id
}

// FuzzJoiner feeds a cell what a Kip that knows the token and is mad says after its
// offer, a grant and anything else in either order; nothing of it makes the cell join.
func FuzzJoiner(f *testing.F) {
	authority, other := fixedAuthority(f, 1), fixedAuthority(f, 2)
	token, err := pki.ParseToken("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8")
	if err != nil {
		f.Fatal(err)
	}
	state := exporterState(f)
	ch, err := channel(state)
	if err != nil {
		f.Fatal(err)
	}
	signed := func(a *pki.Authority, id *identity, cellID string) []byte {
		csr, err := id.request()
		if err != nil {
			f.Fatal(err)
		}
		der, err := a.SignCell(csr, cellID)
		if err != nil {
			f.Fatal(err)
		}
		return der
	}
	// answered runs the cell's half with these bytes behind the offer, and says what
	// the cell sent after its request.
	answered := func(id *identity, after []byte) (sent *bytes.Buffer, err error) {
		var in bytes.Buffer
		sent = &bytes.Buffer{}
		if err := writeMessage(&in, message{Kind: kindOffer, CellID: "c-1", Proof: prove(token, roleKip, "c-1", ch, nil)}); err != nil {
			return nil, err
		}
		in.Write(after)
		j := &joiner{id: id, token: token, ca: authority.Certificate()}
		ran := j.run(struct {
			io.Reader
			io.Writer
		}{&in, sent}, state)
		if m, err := readMessage(sent, kindRequest); err != nil || m.CellID != "c-1" {
			return nil, fmt.Errorf("the cell did not get past the proof: %+v, %w, %w", m, err, ran)
		}
		return sent, ran
	}
	granted := func(cert []byte) ([]byte, error) {
		var b bytes.Buffer
		err := writeMessage(&b, message{Kind: kindGrant, Certificate: cert})
		return b.Bytes(), err
	}

	// With its own certificate, the cell joins.
	joins := fixedIdentity(f, 3)
	grant, err := granted(signed(authority, joins, "c-1"))
	if err != nil {
		f.Fatal(err)
	}
	if _, err := answered(joins, grant); err != nil || joins.certificate() == nil {
		f.Fatalf("a good grant: %v", err)
	}

	id := fixedIdentity(f, 3)
	f.Add(true, signed(other, id, "c-1"), []byte(nil))
	f.Add(true, signed(authority, id, "c-2"), []byte(nil))
	f.Add(true, signed(authority, fixedIdentity(f, 4), "c-1"), []byte(nil))
	f.Add(true, id.unsigned.Certificate[0], []byte(nil))
	f.Add(true, authority.Certificate().Raw, []byte(nil))
	f.Add(true, []byte(nil), []byte(nil))
	f.Add(false, []byte(nil), []byte(`{"kind":"done"}`))
	f.Add(false, []byte(nil), []byte(`{"kind":"refusal","reason":"x"}`))
	f.Add(false, []byte(nil), []byte(`{"kind":"grant","certificate":"AAAA"}`))
	f.Add(false, []byte(nil), []byte(`{"kind":"offer","cellID":"c-1","proof":"AAAA"}`))
	f.Fuzz(func(t *testing.T, grantFirst bool, cert, raw []byte) {
		after, err := granted(cert)
		if err != nil {
			return // it does not fit into a message
		}
		if grantFirst {
			after = append(after, framed(string(raw))...)
		} else {
			after = append(framed(string(raw)), after...)
		}
		sent, err := answered(id, after)
		if sent == nil {
			t.Fatal(err)
		}
		if err == nil || id.certificate() != nil {
			t.Fatal("the cell joined")
		}
		if _, err := readMessage(sent, kindDone); err == nil {
			t.Fatal("the cell said that it joined")
		}
	})
}

// exporterState is that of a real TLS connection.
func exporterState(f *testing.F) *tls.ConnectionState {
	f.Helper()
	id, err := openIdentity(f.TempDir(), "c-1")
	if err != nil {
		f.Fatal(err)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	served := make(chan error, 1)
	go func() {
		served <- tls.Server(a, &tls.Config{Certificates: []tls.Certificate{*id.unsigned}, SessionTicketsDisabled: true}).Handshake()
	}()
	c := tls.Client(b, &tls.Config{InsecureSkipVerify: true})
	if err := errors.Join(c.Handshake(), <-served); err != nil {
		f.Fatal(err)
	}
	state := c.ConnectionState()
	return &state
}
