package store

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/elotl/kip/internal/store/storetest"
	"github.com/elotl/kip/test/loopback"
)

// authority is a CA that writes certificates and keys into a folder.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) issue(t *testing.T, name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, parentKey := a.cert, a.key
	if parent == nil {
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, b := range map[string]*pem.Block{name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name +
		".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(a.file(file), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made, key
}

func TestExternalOverTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	ours.issue(t, "server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	for _, a := range []*authority{ours, theirs} {
		a.issue(t, "client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}
	server := storetest.Serve(t, &transport.TLSInfo{
		CertFile: ours.file("server.crt"), KeyFile: ours.file("server.key"), TrustedCAFile: ours.file("ca.crt"), ClientCertAuth: true,
	})
	endpoints := []string{"https://" + server.Endpoint}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })

	for _, c := range []struct {
		name string
		x    External
		err  string // empty: it works
	}{
		{"right", External{endpoints, ours.file("client.crt"), ours.file("client.key"), ours.file("ca.crt")}, ""},
		{"wrong CA", External{endpoints, ours.file("client.crt"), ours.file("client.key"), theirs.file("ca.crt")},
			"certificate signed by unknown authority"},
		// How the server's refusal looks depends on which packet comes first.
		{"no certificate", External{Endpoints: endpoints, CAFile: ours.file("ca.crt")},
			"check etcd.client.endpoints (https or http too), certFile"},
		{"another's certificate", External{endpoints, theirs.file("client.crt"), theirs.file("client.key"), ours.file("ca.crt")},
			"check etcd.client.endpoints (https or http too), certFile"},
		{"no TLS", External{Endpoints: []string{"http://" + server.Endpoint}}, "does not answer"},
		{"no such file", External{endpoints, ours.file("client.crt"), ours.file("client.key"), "/nonexistent/ca.crt"}, "/nonexistent/ca.crt"},
		{"a certificate without its key", External{Endpoints: endpoints, CertFile: ours.file("client.crt"), CAFile: ours.file("ca.crt")},
			"keyFile"},
		{"nobody there", External{Endpoints: []string{loopback.Refused(t).String()}}, "connection refused"},
		{"nobody who answers", External{Endpoints: []string{"https://" + silent.Addr().String()}, CAFile: ours.file("ca.crt")},
			"does not answer"},
		{"no endpoint", External{}, "etcd.client.endpoints"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			s, err := OpenExternal(t.Context(), c.x)
			t.Logf("after %s: %v", time.Since(began).Round(time.Millisecond), err)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%v, want an error with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			put(t, s, "a", "1", 0)
		})
	}
}

func TestExternalWorksAgainWhenEtcdIsBack(t *testing.T) {
	server := storetest.Serve(t, nil)
	s, err := OpenExternal(t.Context(), External{Endpoints: []string{server.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	revision := put(t, s, "a", "1", 0)
	server.Stop()

	within := func(ask func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return ask(ctx)
	}
	for { // until the client has found that nobody listens, which on a busy machine may take long
		err := within(s.Healthy)
		if err == nil {
			t.Fatal("an etcd that is down is healthy")
		}
		if strings.Contains(err.Error(), "connection refused") {
			break
		}
	}
	err = within(func(ctx context.Context) error {
		_, err := s.Put(ctx, "a", item{"2"}, revision)
		return err
	})
	t.Log("a write while etcd is down:", err)
	if err == nil || !strings.Contains(err.Error(), "put a in the store: etcd does not answer") ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Fatalf("a write to an etcd that is down: %v", err)
	}
	server.Start(t)
	for {
		if err := s.Healthy(t.Context()); err == nil {
			break
		}
	}
	put(t, s, "a", "3", revision)
	select {
	case <-s.Done():
		t.Fatal("the store is done; an external etcd may come back")
	default:
	}
}
