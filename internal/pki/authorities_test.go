package pki

import (
	"bytes"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"
)

func rotated(t *testing.T, c *clock) (before, now Authorities) {
	t.Helper()
	before = Authorities{Signing: newAuthority(t, c)}
	now, err := before.Rotated()
	if err != nil {
		t.Fatal(err)
	}
	return before, now
}

func TestARotationBeginsWithTwoAuthoritiesAndNoThird(t *testing.T) {
	c := newClock()
	before, now := rotated(t, c)
	if now.Before != before.Signing || now.Signing.Hash() == before.Signing.Hash() || !now.Signing.Made().Equal(c.now()) {
		t.Errorf("it begins with %v, made at %s", now.Hashes(), now.Signing.Made())
	}
	if _, err := now.Rotated(); !errors.Is(err, ErrRotating) {
		t.Errorf("a second rotation within the first: %v", err)
	}
	of := map[string]*Authority{"": now.Before, now.Before.Hash(): now.Before, now.Signing.Hash(): now.Signing, "unknown": now.Signing}
	for hash, want := range of {
		if now.Of(hash) != want {
			t.Errorf("the authority of %q is %s, want %s", hash, now.Of(hash).Hash(), want.Hash())
		}
	}
	if before.Of("") != before.Signing {
		t.Error("without a rotation a record that says none is not of the one authority")
	}
}

func TestAuthoritiesSurviveEncodeAndDecode(t *testing.T) {
	c := newClock()
	one, two := rotated(t, c)
	for says, a := range map[string]Authorities{"one": one, "two": two} {
		data, err := a.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeAuthorities(data, c.now)
		if err != nil {
			t.Fatalf("%s: %v", says, err)
		}
		if got, want := strings.Join(again.Hashes(), " "), strings.Join(a.Hashes(), " "); got != want {
			t.Errorf("%s: %s, want %s", says, got, want)
		}
		if !bytes.Equal(again.CertificatesPEM(), a.CertificatesPEM()) {
			t.Errorf("%s: other certificates", says)
		}
	}
	plain, err := one.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if alone, err := one.Signing.Encode(); err != nil || !bytes.Equal(plain, alone) {
		t.Errorf("without a rotation more is stored than the one authority (%v)", err)
	}
	both, err := two.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for says, data := range map[string][]byte{
		"three":             append(bytes.Clone(both), plain...),
		"one and a half":    both[:len(both)-100],
		"nothing":           nil,
		"more than the two": append(bytes.Clone(both), "x"...),
	} {
		if _, err := DecodeAuthorities(data, c.now); err == nil {
			t.Errorf("%s: accepted", says)
		} else if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: the error tells what was there: %v", says, err)
		}
	}
}

func TestACellThatTrustsTwoAuthoritiesTellsWhichKipIsOf(t *testing.T) {
	c := newClock()
	_, both := rotated(t, c)
	stranger := newAuthority(t, c)
	for _, a := range both.All() {
		chain := append(kipChain(t, a), both.Signing.Certificate(), both.Before.Certificate())
		ca, err := VerifyKip(chain, c.now(), both.Hashes()...)
		if err != nil || !ca.Equal(a.Certificate()) {
			t.Errorf("Kip of %s: %v", a.Hash(), err)
		}
		for _, other := range both.All() {
			if _, err := VerifyKip(chain, c.now(), other.Hash()); (err == nil) != (other == a) {
				t.Errorf("Kip of %s to a cell that trusts %s: %v", a.Hash(), other.Hash(), err)
			}
		}
	}
	if _, err := VerifyKip(append(kipChain(t, stranger), both.Signing.Certificate()), c.now(), both.Hashes()...); err == nil {
		t.Error("a stranger who shows Kip's CA is accepted")
	}
	if _, err := VerifyKip(kipChain(t, both.Signing), c.now()); err == nil {
		t.Error("a cell that trusts nobody accepts Kip")
	}
}

func TestACellsCertificateIsRenewedForTheKeyThatItHas(t *testing.T) {
	c := newClock()
	_, both := rotated(t, c)
	key := newKey(t)
	der, err := both.Signing.RenewCell(key.Public(), "c-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := VerifyOwn(der, both.Signing.Certificate(), "c-1", &key.PublicKey, c.now()); err != nil {
		t.Error(err)
	}
	if err := both.Before.VerifyCell([]*x509.Certificate{parse(t, der)}, "c-1"); err == nil {
		t.Error("it is of the old CA")
	}
	c.t = c.t.Add(authorityLife + time.Minute)
	if _, err := both.Signing.RenewCell(key.Public(), "c-1"); err == nil {
		t.Error("a CA that has ended signs")
	}
}
