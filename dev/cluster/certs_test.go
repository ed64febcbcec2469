package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// handshake runs one TLS handshake with a client certificate and returns what
// each side says.
func handshake(t *testing.T, server, client Pair, roots *x509.CertPool, host string) (serverErr, clientErr error) {
	t.Helper()
	pair := func(p Pair) tls.Certificate {
		c, err := tls.X509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		done <- tls.Server(conn, &tls.Config{
			Certificates: []tls.Certificate{pair(server)}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
		}).Handshake()
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	clientErr = tls.Client(conn, &tls.Config{Certificates: []tls.Certificate{pair(client)}, RootCAs: roots, ServerName: host}).Handshake()
	conn.Close()
	return <-done, clientErr
}

func TestIssuedCertificatesServeTheirPurposeOnly(t *testing.T) {
	ours, err := NewAuthority("ours", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority("ours", time.Now()) // the same name must not help
	if err != nil {
		t.Fatal(err)
	}
	issue := func(a *Authority, s Subject) Pair {
		p, err := a.Issue(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	server := issue(ours, Subject{Name: "api", Hosts: []string{"10.0.0.1", "kubernetes.default"}})
	client := issue(ours, Subject{Name: "admin", Groups: []string{"system:masters"}})
	ca, err := ours.Pair()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)

	tests := []struct {
		name           string
		server, client Pair
		host           string
		ok             bool
	}{
		{"by address", server, client, "10.0.0.1", true},
		{"by name", server, client, "kubernetes.default", true},
		{"for another address", server, client, "10.0.0.2", false},
		{"client certificate as a server", client, client, "10.0.0.1", false},
		{"server certificate as a client", server, server, "10.0.0.1", false},
		{"client of another authority", server, issue(other, Subject{Name: "admin"}), "10.0.0.1", false},
		{"server of another authority", issue(other, Subject{Name: "api", Hosts: []string{"10.0.0.1"}}), client, "10.0.0.1", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			serverErr, clientErr := handshake(t, tt.server, tt.client, roots, tt.host)
			if err := errors.Join(serverErr, clientErr); (err == nil) != tt.ok {
				t.Errorf("handshake: %v, want success = %v", err, tt.ok)
			}
		})
	}
}

func TestKeysAreForTheOwnerOnly(t *testing.T) {
	a, err := NewAuthority("ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Pair()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := p.Write(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode of the key is %o, want 600", got)
	}
	if _, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")); err != nil {
		t.Error(err)
	}
}
