package servingcert

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/events"
)

// tellEvery is how often the same is told again: the cluster forgets an Event after an hour.
const tellEvery = time.Hour

// tell reports what a person should know, unless it was just told. It returns whether it did.
func (s *Certificate) tell(kind, reason, message string) bool {
	now := s.c.Clock.Now()
	if message == s.told && now.Sub(s.toldAt) < tellEvery {
		return false
	}
	s.told, s.toldAt = message, now
	s.c.Event(kind, reason, message)
	return true
}

// askPerson tells a person how to approve a request, also in Kip's log: others may write such Events.
func (s *Certificate) askPerson(r *request, message string) {
	if s.tell(corev1.EventTypeWarning, events.ServingCertificatePending, message) {
		s.c.Log.Warn("the certificate of the kubelet port waits for an approval", "node", s.c.Node, "request", r.Name, "signer", s.c.SignerName,
			"approve_with", approveCommand(r.Name))
	}
}

// approveCommand is what a person types.
func approveCommand(name string) string { return "kubectl certificate approve " + name }

// compareCommand shows what a request asks for, and for whom.
func compareCommand(name string) string {
	return "kubectl get csr " + name + " && kubectl get csr " + name + " -o jsonpath={.spec.request} | base64 -d | openssl req -noout -text"
}

// comparison tells a person what to compare before approving: somebody else's request, or Event, may look
// like Kip's.
func (s *Certificate) comparison(r *request) string {
	block, _ := pem.Decode(r.CSR)
	if block == nil {
		return ""
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return ""
	}
	requester := "that of Kip's service account"
	if s.c.AsNode {
		requester = "system:node:" + s.c.Node
	}
	names := slices.Clone(asked.DNSNames)
	for _, ip := range asked.IPAddresses {
		names = append(names, ip.String())
	}
	return fmt.Sprintf("Compare it first: %s. Approve it only if the requester is %s, the signer %s, the subject %s,"+
		" and the alternative names are %s and no others.",
		compareCommand(r.Name), requester, s.c.SignerName, asked.Subject, strings.Join(names, ", "))
}

// serves says what the kubelet port serves now.
func (s *Certificate) serves() string {
	if pair := s.current(); pair != nil {
		return fmt.Sprintf("The kubelet port serves a certificate of %s until %s.", s.c.SignerName, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return "The kubelet port serves Kip's own certificate, which an API server that verifies kubelets refuses."
}

func (s *Certificate) pendingMessage(r *request) string {
	return fmt.Sprintf("Approve the request for the certificate of the kubelet port: %s. %s %s",
		approveCommand(r.Name), s.comparison(r), s.serves())
}

func (s *Certificate) forbiddenMessage(r *request) string {
	return fmt.Sprintf("Kip has no right to approve its request for the certificate of the kubelet port."+
		" Set servingCertificate.approve of the Helm chart, or apply deploy/manifests/rights/csr-approve.yaml"+
		" with the signer %s in it, or type: %s. %s %s", s.c.SignerName, approveCommand(r.Name), s.comparison(r), s.serves())
}

func (s *Certificate) unsignedMessage(name string) string {
	cure := "Is there such a signer in the cluster?"
	if s.c.SignerName == certificatesv1.KubeletServingSignerName {
		cure = "EKS signs it for its own instances only: there, set servingCertificate.signerName to beta.eks.amazonaws.com/app-serving."
	}
	return fmt.Sprintf("The request %s is approved, and %s has not signed it. %s %s", name, s.c.SignerName, cure, s.serves())
}

// deniedCure says what helps where a request was denied.
func (s *Certificate) deniedCure(name string) string {
	if s.c.AsNode {
		return " An approver of the cluster may know only nodes that are instances, as GKE's does: then set servingCertificate.requester to kip."
	}
	return " See who denied it: kubectl describe csr " + name + "."
}

func (s *Certificate) refusedMessage(name, why, cure string) string {
	return fmt.Sprintf("The request %s for the certificate of the kubelet port has failed: %s.%s Kip makes another at %s. %s",
		name, why, cure, s.askAt.UTC().Format(time.RFC3339), s.serves())
}

func (s *Certificate) signedMessage(leaf *x509.Certificate) string {
	return fmt.Sprintf("%s has signed the certificate of the kubelet port, which is valid until %s", s.c.SignerName,
		leaf.NotAfter.UTC().Format(time.RFC3339))
}
