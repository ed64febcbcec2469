package tunnel

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
)

const (
	trustFile  = "kip.authorities"
	blockTrust = "KIP AUTHORITIES"

	// maxTrusted is how many authorities a cell trusts at most: that of now, and the one
	// before.
	maxTrusted = 2
	// maxTrustBytes bounds the request that tells of them. Two certificates have less
	// than 2 KiB.
	maxTrustBytes = 16 << 10
)

// trust is by which authorities a cell knows Kip.
type trust struct {
	id *identity

	changing sync.Mutex // held by who tells the cell of others
	mu       sync.Mutex
	hashes   []string // never modified, only replaced
}

// openTrust reads what the cell was told last; before that it trusts the authority of its
// user data. What cannot be read is nothing: the cell then trusts that one, and without it
// would be lost.
func openTrust(id *identity, first string, log *slog.Logger) *trust {
	t := &trust{id: id, hashes: []string{first}}
	var told []string
	data, err := id.read(trustFile, blockTrust)
	if err == nil {
		err = json.Unmarshal(data, &told)
	}
	if err == nil {
		err = checkTrusted(told)
	}
	switch {
	case err == nil:
		t.hashes = told
	case !errors.Is(err, fs.ErrNotExist):
		log.Error("the authorities of Kip that this cell was told of cannot be read: it trusts that of its user data",
			"file", filepath.Join(id.dir, trustFile), "err", err)
	}
	return t
}

func checkTrusted(hashes []string) error {
	if len(hashes) == 0 || len(hashes) > maxTrusted {
		return fmt.Errorf("%d authorities: it must be 1 to %d", len(hashes), maxTrusted)
	}
	for _, hash := range hashes {
		if err := checkHash(hash); err != nil {
			return err
		}
	}
	return nil
}

// now are the hashes of the authorities.
func (t *trust) now() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hashes
}

// judge returns the cell's certificate of what it is told, and refuses what it cannot be told.
func (t *trust) judge(asked agentapi.Authorities) (*x509.Certificate, error) {
	if err := checkTrusted(asked.Trusted); err != nil {
		return nil, err
	}
	ca, err := x509.ParseCertificate(asked.CA)
	if err != nil {
		return nil, fmt.Errorf("the certificate of the authority: %w", err)
	}
	if !slices.Contains(asked.Trusted, pki.CAHash(ca.Raw)) {
		return nil, errors.New("the cell's certificate is of an authority that it is not to trust")
	}
	return pki.VerifyOwn(asked.Certificate, ca, t.id.cellID, &t.id.key.PublicKey, time.Now())
}

// set has the cell trust these authorities, and no others, and show a certificate of one
// of them. It is stored before it holds: first whom to trust, then the certificate, since
// Kip knows the cell by its key also with the one from before.
func (t *trust) set(hashes []string, leaf *x509.Certificate) error {
	data, err := json.Marshal(hashes)
	if err != nil {
		return err
	}
	t.changing.Lock()
	defer t.changing.Unlock()
	if err := t.id.write(trustFile, blockTrust, data); err != nil {
		return err
	}
	t.mu.Lock()
	t.hashes = hashes
	t.mu.Unlock()
	return t.id.renew(leaf)
}

// withAuthorities answers what is the tunnel's own of what Kip asks the agent, and hands
// the rest on.
func (c *Cell) withAuthorities(agent http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == agentapi.PathAuthorities && r.Method == http.MethodPut {
			c.putAuthorities(w, r)
			return
		}
		agent.ServeHTTP(w, r)
	})
}

func (c *Cell) putAuthorities(w http.ResponseWriter, r *http.Request) {
	var asked agentapi.Authorities
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTrustBytes)).Decode(&asked); err != nil {
		http.Error(w, fmt.Sprintf("the list of authorities is not valid JSON: %v", err), http.StatusBadRequest)
		return
	}
	// Otherwise a mistake of Kip's shuts Kip out for good.
	if r.TLS == nil {
		http.Error(w, "it is not asked by a Kip", http.StatusForbidden)
		return
	}
	if _, err := pki.VerifyKip(r.TLS.PeerCertificates, time.Now(), asked.Trusted...); err != nil {
		http.Error(w, fmt.Sprintf("the cell would not trust the Kip that asks: %v", err), http.StatusBadRequest)
		return
	}
	leaf, err := c.trust.judge(asked)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := c.trust.set(asked.Trusted, leaf); err != nil {
		c.log.Error("trust other authorities of Kip", "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.log.Info("Kip is known by these authorities from now on", "authorities", asked.Trusted)
	c.closeDistrusted()
}

// closeDistrusted closes the connections of those whom the cell trusts no more, whoever
// they are: they may go on as if they were Kip.
func (c *Cell) closeDistrusted() {
	trusted := c.trust.now()
	c.open.Load().closeIf(func(nc *conn) bool {
		by := nc.authority.Load()
		return by != nil && !slices.Contains(trusted, *by)
	})
}
