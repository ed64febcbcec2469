package servingcert

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// mostKept is how many purposes are kept of a node, the last one first: those of two
// replicas, which have an address each, and some to spare. The address of a pod may be
// another after each start.
const mostKept = 4

// What is kept for another purpose may be another replica's, which leads one day, or of an address that is another's by now. Kip keeps
// it for so long after a process last used it: a request as long as the cluster does that nobody has approved (pendingExpiration in
// pkg/controller/certificates/cleaner of Kubernetes), and a certificate with its key longer, since that replica's next one may need
// a person.
const (
	requestKept     = 24 * time.Hour
	certificateKept = 30 * 24 * time.Hour
	// usedEvery is how often a process notes that it uses an entry.
	usedEvery = 12 * time.Hour
)

// kept is what is kept of a node.
type kept struct {
	Entries []*entry `json:"entries"`
}

// entry is what is kept for one purpose.
type entry struct {
	Purpose string `json:"purpose"`
	// UsedAt is about when a process last had this purpose.
	UsedAt time.Time `json:"usedAt,omitzero"`
	// Cert and Key are the certificate that was signed last, PEM; empty before there is one.
	Cert []byte `json:"cert,omitempty"`
	Key  []byte `json:"key,omitempty"`
	// Request is the one that is not answered yet; nil for none.
	Request *request `json:"request,omitempty"`
	// Refused is how many were refused in a row, the last one at RefusedAt.
	Refused   int       `json:"refused,omitempty"`
	RefusedAt time.Time `json:"refusedAt,omitzero"`
}

// request is a request that is kept before it is made, so that a process that ends makes no
// second one.
type request struct {
	Name string `json:"name"`
	CSR  []byte `json:"csr"` // PEM
	Key  []byte `json:"key"` // PEM
}

// load takes up what is kept for this purpose.
func (s *Certificate) load(ctx context.Context) error {
	data, err := s.c.Keep.Load(ctx)
	if err != nil {
		return fmt.Errorf("read the serving certificate of node %s: %w", s.c.Node, err)
	}
	if data != nil {
		if err := json.Unmarshal(data, &s.kept); err != nil {
			s.c.Log.Warn("the serving certificate that is kept cannot be read; Kip requests another", "node", s.c.Node, "err", err)
			s.kept = kept{}
		}
	}
	s.is = &entry{Purpose: s.c.purpose()}
	if i := slices.IndexFunc(s.kept.Entries, func(e *entry) bool { return e.Purpose == s.is.Purpose }); i >= 0 {
		s.is = s.kept.Entries[i]
		s.kept.Entries = slices.Delete(s.kept.Entries, i, i+1)
	}
	s.kept.Entries = slices.DeleteFunc(s.kept.Entries, func(e *entry) bool { return e == nil })
	s.kept.Entries = slices.Insert(s.kept.Entries, 0, s.is)
	s.kept.Entries = s.kept.Entries[:min(len(s.kept.Entries), mostKept)]
	if s.is.Refused > 0 {
		s.askAt = s.afterRefusal()
	}
	if len(s.is.Cert) == 0 {
		return nil
	}
	pair, err := tls.X509KeyPair(s.is.Cert, s.is.Key)
	if err == nil {
		err = s.c.fits(pair.Leaf)
	}
	if err != nil {
		s.c.Log.Warn("the serving certificate that is kept is of no use; Kip requests another", "node", s.c.Node, "err", err)
		s.is.Cert, s.is.Key = nil, nil
		return nil
	}
	s.adopt(&pair)
	return nil
}

// tidy drops what has ended for other purposes, and notes that this process has its own. It saves that at a start, and twice a day.
func (s *Certificate) tidy(ctx context.Context) {
	now := s.c.Clock.Now()
	if now.Before(s.tidyAt) {
		return
	}
	s.tidyAt = now.Add(usedEvery)
	s.is.UsedAt = now
	s.kept.Entries = slices.DeleteFunc(s.kept.Entries, func(e *entry) bool { return e != s.is && e.ended(now) })
	if err := s.save(ctx); err != nil {
		s.c.Log.Warn("keys of serving certificates that have ended are still kept", "node", s.c.Node, "err", err)
	}
}

// ended drops what is of no more use of an entry of another purpose, and reports whether nothing is left.
func (e *entry) ended(now time.Time) bool {
	if e.UsedAt.IsZero() || e.UsedAt.After(now) { // by a clock that was ahead
		e.UsedAt = now
	}
	unused := now.Sub(e.UsedAt)
	if unused >= requestKept {
		e.Request = nil
	}
	if len(e.Cert) > 0 {
		pair, err := tls.X509KeyPair(e.Cert, e.Key)
		if err != nil || !now.Before(pair.Leaf.NotAfter) || unused >= certificateKept {
			e.Cert, e.Key = nil, nil
		}
	}
	return e.Request == nil && len(e.Cert) == 0 && unused >= requestKept
}

// save keeps what there is.
func (s *Certificate) save(ctx context.Context) error {
	data, err := json.Marshal(s.kept)
	if err == nil {
		err = s.c.Keep.Save(ctx, data)
	}
	if err != nil {
		return fmt.Errorf("store the key of the serving certificate of node %s: %w", s.c.Node, err)
	}
	return nil
}

// afterRefusal is when a request may follow those that were refused.
func (s *Certificate) afterRefusal() time.Time {
	at := s.is.RefusedAt
	if now := s.c.Clock.Now(); at.After(now) { // by a clock that was ahead
		at = now
	}
	return at.Add(s.c.Random.After(s.is.Refused, firstRefusal, lastRefusal))
}
