package servingcert

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"

	"github.com/elotl/kip/internal/events"
)

// tellEvery is how often the same is told again: the cluster forgets an Event after an hour.
const tellEvery = time.Hour

// tell reports what a person should know, unless it was just told. It returns whether it did.
func (s *Certificate) tell(e events.Event) bool {
	now := s.c.Clock.Now()
	if e.Message == s.told && now.Sub(s.toldAt) < tellEvery {
		return false
	}
	s.told, s.toldAt = e.Message, now
	s.c.Event(e)
	return true
}

// askPerson tells a person how to approve a request, also in Kip's log: others may write such Events.
func (s *Certificate) askPerson(r *request, e events.Event) {
	if s.tell(e) {
		s.c.Log.Warn("the certificate of the kubelet port waits for an approval", "node", s.c.Node, "request", r.Name, "signer", s.c.SignerName,
			"approve_with", events.ApproveCommand(r.Name))
	}
}

// comparison is what a person compares before approving: somebody else's request, or Event, may look
// like Kip's.
func (s *Certificate) comparison(r *request) events.CertificateRequest {
	is := events.CertificateRequest{Name: r.Name, Requester: "that of Kip's service account", Signer: s.c.SignerName}
	if s.c.AsNode {
		is.Requester = "system:node:" + s.c.Node
	}
	block, _ := pem.Decode(r.CSR)
	if block == nil {
		return is
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return is
	}
	is.Subject, is.Names = asked.Subject.String(), slices.Clone(asked.DNSNames)
	for _, ip := range asked.IPAddresses {
		is.Names = append(is.Names, ip.String())
	}
	return is
}

// serves is what the kubelet port serves now.
func (s *Certificate) serves() events.Serving {
	if pair := s.current(); pair != nil {
		return events.Serving{Signer: s.c.SignerName, Until: pair.Leaf.NotAfter}
	}
	return events.Serving{}
}
