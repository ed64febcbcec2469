package servingcert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/elotl/kip/internal/events"
)

const (
	// askTimeout bounds one question to the API server.
	askTimeout = 10 * time.Second
	// firstLook and lastLook are how long Kip waits before it reads a request again: an
	// approver that is a program answers at once, a person takes hours.
	firstLook, lastLook = 50 * time.Millisecond, 10 * time.Second
	// pendingPatience is how long a request may wait before a person is told to approve it,
	// and signPatience how long a signer may take for one that is approved.
	pendingPatience, signPatience = 5 * time.Second, time.Minute
)

// errRefused says that a request was refused, or that its certificate is of no use. The
// next one has another key.
var errRefused = errors.New("the request for a serving certificate was refused")

// obtain makes a request, or goes on with the one that there is, until it is answered.
func (s *Certificate) obtain(ctx context.Context) error {
	r, err := s.pending(ctx)
	if err != nil {
		return err
	}
	began := s.c.Clock.Now()
	for looks := 1; ; looks++ {
		s.tidy(ctx)
		there, err := s.read(ctx, r)
		if err != nil {
			return err
		}
		if signed, err := s.look(ctx, r, there, s.c.Clock.Since(began)); signed || err != nil {
			return err
		}
		s.sleep(ctx, s.c.Random.After(looks, firstLook, lastLook))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// pending is the request that is not answered yet. A new one is kept before it is made: else
// a process that ends would leave one whose key nobody has, and the next process make another.
func (s *Certificate) pending(ctx context.Context) (*request, error) {
	if s.is.Request != nil {
		return s.is.Request, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the serving certificate: %w", err)
	}
	r := &request{}
	if r.Key, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, fmt.Errorf("encode the key of the serving certificate: %w", err)
	}
	if r.CSR, err = cert.MakeCSRFromTemplate(key, s.c.template()); err != nil {
		return nil, fmt.Errorf("make the request for the serving certificate: %w", err)
	}
	sum := sha256.Sum256(r.CSR)
	r.Name = fmt.Sprintf("%s-serving-%x", s.c.Node, sum[:6])
	s.is.Request = r
	if err := s.save(ctx); err != nil {
		s.is.Request = nil
		return nil, err
	}
	return r, nil
}

// read returns the request as the API server has it. It makes one that is not there: the
// cluster removes a request that nobody has approved for a day.
func (s *Certificate) read(ctx context.Context, r *request) (*certificatesv1.CertificateSigningRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	requests := s.c.Requester.CertificatesV1().CertificateSigningRequests()
	there, err := requests.Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		there, err = requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: r.Name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    r.CSR,
				SignerName: s.c.SignerName,
				Usages:     usages,
			},
		}, metav1.CreateOptions{})
		if err == nil {
			s.c.Log.Info("requested the certificate of the kubelet port", "node", s.c.Node, "request", r.Name, "signer", s.c.SignerName,
				"approve_with", events.ApproveCommand(r.Name))
		}
	}
	if apierrors.IsForbidden(err) && !s.c.AsNode {
		return nil, fmt.Errorf("request certificate %s: Kip's service account needs the rights of servingCertificate.requester kip"+
			" of the Helm chart, or of deploy/manifests/rights/csr.yaml: %w", r.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("request certificate %s: %w", r.Name, err)
	}
	return there, nil
}

// look does what a request asks for that has waited for so long, and reports whether its
// certificate is served now.
func (s *Certificate) look(
	ctx context.Context, r *request, there *certificatesv1.CertificateSigningRequest, waited time.Duration,
) (signed bool, err error) {
	if what := s.c.differs(r, there); what != "" {
		return false, s.refuse(ctx, r, func(again time.Time) events.Event {
			return events.NewCertificateForeign(r.Name, what, again, s.serves())
		})
	}
	approved := false
	for _, c := range there.Status.Conditions {
		switch {
		case c.Status == corev1.ConditionFalse:
		case c.Type == certificatesv1.CertificateDenied:
			return false, s.refuse(ctx, r, func(again time.Time) events.Event {
				return events.NewCertificateDenied(r.Name, because(c), s.c.AsNode, again, s.serves())
			})
		case c.Type == certificatesv1.CertificateFailed:
			return false, s.refuse(ctx, r, func(again time.Time) events.Event {
				return events.NewCertificateFailed(r.Name, s.c.SignerName, because(c), again, s.serves())
			})
		case c.Type == certificatesv1.CertificateApproved:
			approved = true
		}
	}
	switch {
	case len(there.Status.Certificate) > 0:
		return true, s.take(ctx, r, there.Status.Certificate)
	case approved && waited >= signPatience:
		s.tell(events.NewCertificateUnsigned(r.Name, s.c.SignerName, s.c.SignerName == certificatesv1.KubeletServingSignerName, s.serves()))
	case approved:
	case s.c.Approver != nil:
		return false, s.approve(ctx, r, there)
	case waited >= pendingPatience:
		s.askPerson(r, events.NewCertificateUnapproved(s.comparison(r), s.serves()))
	}
	return false, nil
}

// because says why a condition holds.
func because(c certificatesv1.CertificateSigningRequestCondition) string {
	if c.Message == "" {
		return c.Reason
	}
	return c.Reason + ": " + c.Message
}

// differs says in what a request is not the one that this process made; "" if it is.
func (c Config) differs(r *request, there *certificatesv1.CertificateSigningRequest) string {
	switch {
	case !bytes.Equal(there.Spec.Request, r.CSR):
		return "key, subject or address"
	case there.Spec.SignerName != c.SignerName:
		return "signer"
	case !slices.Equal(there.Spec.Usages, usages):
		return "usage"
	}
	return ""
}

// approve approves a request, which is this process's own.
func (s *Certificate) approve(ctx context.Context, r *request, there *certificatesv1.CertificateSigningRequest) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	approved := there.DeepCopy()
	approved.Status.Conditions = append(approved.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type:    certificatesv1.CertificateApproved,
		Status:  corev1.ConditionTrue,
		Reason:  "KipApproved",
		Message: "Kip made this request, for the kubelet port of its virtual node (servingCertificate.approve)",
	})
	_, err := s.c.Approver.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, r.Name, approved, metav1.UpdateOptions{})
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err): // the next look sees what it is now
		return nil
	case apierrors.IsForbidden(err):
		s.askPerson(r, events.NewApprovalForbidden(s.comparison(r), s.serves()))
		return nil
	}
	return fmt.Errorf("approve certificate %s: %w", r.Name, err)
}

// take has the kubelet port serve what was signed, if it is of use.
func (s *Certificate) take(ctx context.Context, r *request, chain []byte) error {
	pair, err := tls.X509KeyPair(chain, r.Key)
	if err == nil {
		err = s.c.fits(pair.Leaf)
	}
	if err != nil {
		return s.refuse(ctx, r, func(again time.Time) events.Event {
			return events.NewCertificateUnfit(r.Name, s.c.SignerName, err, again, s.serves())
		})
	}
	s.is.Cert, s.is.Key, s.is.Request, s.is.Refused = chain, r.Key, nil, 0
	s.adopt(&pair)
	// A signer that backdates much, or whose own certificate ends soon, is not asked again at once.
	if least := s.c.Clock.Now().Add(max(pair.Leaf.NotAfter.Sub(s.c.Clock.Now())/2, time.Minute)); s.renewAt.Before(least) {
		s.renewAt = least
	}
	s.askAt = time.Time{}
	s.tell(events.NewCertificateSigned(s.c.SignerName, pair.Leaf.NotAfter))
	if err := s.save(ctx); err != nil { // it serves until the next start, which requests another
		s.c.Log.Warn("the serving certificate is not kept", "node", s.c.Node, "err", err)
	}
	return nil
}

// refuse gives a request up. It returns errRefused.
func (s *Certificate) refuse(ctx context.Context, r *request, event func(again time.Time) events.Event) error {
	s.is.Request = nil
	s.is.Refused++
	s.is.RefusedAt = s.c.Clock.Now()
	s.askAt = s.afterRefusal()
	s.tell(event(s.askAt))
	if err := s.save(ctx); err != nil { // the next start reads the refusal again
		s.c.Log.Warn("the refusal of a serving certificate is not kept", "node", s.c.Node, "err", err)
	}
	return errRefused
}
