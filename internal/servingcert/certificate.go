package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/events"
)

const (
	// firstRetry and lastRetry are the waits after an API server that did not answer, or
	// refused. No object is made meanwhile.
	firstRetry, lastRetry = time.Second, time.Minute
	// firstRefusal and lastRefusal are the waits before another request follows one that was
	// denied. The cluster removes a denied one after an hour (pkg/controller/certificates/cleaner
	// of Kubernetes), so there are few at any time.
	firstRefusal, lastRefusal = 5 * time.Minute, time.Hour
	// longestSleep bounds a sleep: timers do not count the time that a machine is suspended.
	longestSleep = time.Hour
)

// Config is what a Certificate is made of. All fields are required, unless they say otherwise.
type Config struct {
	// Node is the virtual node whose kubelet port serves the certificate.
	Node string
	// Addresses are where the API server reaches that port.
	Addresses []netip.Addr
	// SignerName is the signer that is asked.
	SignerName string
	// Requester makes the requests. AsNode says that it acts as the node.
	Requester kubernetes.Interface
	AsNode    bool
	// Approver approves the requests; nil if somebody else does.
	Approver kubernetes.Interface
	Keep     Keep
	// Own serves while there is no certificate of the signer.
	Own func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Event reports something of the virtual node.
	Event func(events.Event)
	// Random is optional.
	Random backoff.Random
	Clock  clock.WithTickerAndDelayedExecution
	Log    *slog.Logger
}

// Keep is where the keys and certificates of a node outlive a process. They are secret.
type Keep interface {
	// Load returns what was saved last; nil if there is nothing.
	Load(context.Context) ([]byte, error)
	Save(context.Context, []byte) error
}

// Certificate is a certificate of a kubelet port that a signer signs. Make it with New.
type Certificate struct {
	c      Config
	signed atomic.Pointer[tls.Certificate] // nil before there is one

	// Of Run, once that runs.

	kept kept
	is   *entry // of kept: the one for this process
	// renewAt is when the signed certificate is to be renewed, askAt when a request may
	// follow one that was refused.
	renewAt, askAt time.Time
	tidyAt         time.Time // when what is kept is looked through again
	told           string    // the last Event
	toldAt         time.Time
}

// New takes up what is kept. It has no effect outside.
func New(ctx context.Context, c Config) (*Certificate, error) {
	if c.Node == "" || len(c.Addresses) == 0 || c.SignerName == "" {
		return nil, errors.New("serving certificate: Node, Addresses and SignerName must be set")
	}
	s := &Certificate{c: c}
	if err := s.load(ctx); err != nil {
		return nil, err
	}
	c.Log.Info("the kubelet port has a certificate of a signer", "node", c.Node, "signer", c.SignerName, "now", s.serves())
	return s, nil
}

// GetCertificate is for a server's tls.Config. It returns the signed certificate while that
// is valid, else Kip's own.
func (s *Certificate) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := s.current(); pair != nil {
		return pair, nil
	}
	return s.c.Own(hello)
}

// current is the signed certificate while that is valid, else nil.
func (s *Certificate) current() *tls.Certificate {
	pair := s.signed.Load()
	if pair == nil || !s.c.Clock.Now().Before(pair.Leaf.NotAfter) {
		return nil
	}
	return pair
}

// Run requests the certificate, and renews it in time, until ctx ends.
func (s *Certificate) Run(ctx context.Context) error {
	for said, failed := "", 0; ctx.Err() == nil; {
		s.tidy(ctx)
		pause := s.due().Sub(s.c.Clock.Now())
		if pause <= 0 {
			err := s.obtain(ctx)
			switch {
			case err == nil:
				said, failed = "", 0
				continue
			case ctx.Err() != nil:
				return nil
			case errors.Is(err, errRefused):
				continue // due says when to ask again
			case err.Error() != said:
				said = err.Error()
				s.c.Log.Warn("the kubelet port has no certificate of the signer yet, retrying", "node", s.c.Node, "err", err)
			}
			failed++
			pause = s.c.Random.After(failed, firstRetry, lastRetry)
		}
		s.sleep(ctx, min(pause, longestSleep))
	}
	return nil
}

// sleep waits for so long, or until ctx ends.
func (s *Certificate) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-s.c.Clock.After(d):
	}
}

// due is when there is to be a request.
func (s *Certificate) due() time.Time {
	at := s.renewAt
	if s.is.Request != nil { // of an earlier process
		at = time.Time{}
	}
	if s.askAt.After(at) {
		at = s.askAt
	}
	return at
}

// purpose names what a certificate is for. One that is for something else is no use.
func (c Config) purpose() string {
	requester := "kip"
	if c.AsNode {
		requester = "node"
	}
	list := []string{c.SignerName, requester, c.Node}
	for _, a := range c.Addresses {
		list = append(list, a.Unmap().String())
	}
	return strings.Join(list, " ")
}

// template is what is asked for. Its subject is a kubelet's. kubernetes.io/kubelet-serving signs no other
// (ValidateKubeletServingCSR in pkg/apis/certificates of Kubernetes). Of any signer an API server may come to
// ask for that name at the kubelet port (kubernetes/enhancements issue 4872).
func (c Config) template() *x509.CertificateRequest {
	t := &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:" + c.Node, Organization: []string{"system:nodes"}},
		DNSNames: []string{c.Node},
	}
	for _, a := range c.Addresses {
		t.IPAddresses = append(t.IPAddresses, a.Unmap().AsSlice())
	}
	return t
}

// usages are what the certificate is for. The key is no RSA key, and so enciphers none.
var usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}

// fits returns an error unless the API server can verify the kubelet port by a certificate.
func (c Config) fits(leaf *x509.Certificate) error {
	for _, a := range c.Addresses {
		if err := leaf.VerifyHostname(a.Unmap().String()); err != nil {
			return err
		}
	}
	if !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
		return errors.New("x509: certificate is not for a server")
	}
	if now := c.Clock.Now(); !now.Before(leaf.NotAfter) {
		return fmt.Errorf("x509: certificate has ended at %s", leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// adopt has the kubelet port serve a certificate from now on.
func (s *Certificate) adopt(pair *tls.Certificate) {
	leaf := pair.Leaf
	// Several are not renewed at the same time: from two thirds to nine tenths of their life.
	life := leaf.NotAfter.Sub(leaf.NotBefore) / 10 * 9
	s.renewAt = leaf.NotBefore.Add(s.c.Random.Jittered(life))
	s.signed.Store(pair)
}
