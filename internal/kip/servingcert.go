package kip

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/nodes"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/servingcert"
	"github.com/elotl/kip/internal/store"
)

// servingCertKey begins where the requested certificate of a virtual node is stored, sealed
// like the CA.
const servingCertKey = "serving/"

// checkServingCertificate says whether files and provider.yaml name two certificates for the
// kubelet port.
func checkServingCertificate(cfg *config.Config) error {
	file := os.Getenv(node.CertFileEnv)
	if signer := cfg.ServingCertificate.SignerName; signer != "" && file != "" {
		return cfg.Problem("servingCertificate.signerName", "it is %q, and $%s is %q: want one of them", signer, node.CertFileEnv, file)
	}
	return nil
}

// certificates are those of the kubelet ports of nodes.
type certificates struct {
	Options
	config    config.ServingCertificate
	authority *pki.Authority
	store     *store.Store
	sealer    *pki.Sealer
	asKip     kubernetes.Interface
	clients   nodes.Clients
	event     func(node string, e events.Event)
	clock     clock.WithTickerAndDelayedExecution
}

var _ nodes.Certificates = certificates{}

func (t *term) certificates(c cloudSide, all *nodes.Nodes) certificates {
	return certificates{
		Options:   t.Options,
		config:    t.cfg.ServingCertificate,
		authority: c.ca.Signing,
		store:     t.store,
		sealer:    c.sealer,
		asKip:     t.api.asKip,
		clients:   t.api,
		event:     all.Event,
		clock:     t.clock,
	}
}

// Certificate implements nodes.Certificates.
func (c certificates) Certificate(ctx context.Context, node string, addresses []netip.Addr) (nodes.Certificate, error) {
	get, err := c.servingCertificate(c.authority, node, addresses)
	if err != nil {
		return nil, err
	}
	files, _ := c.certificateFiles() // they were read a moment ago
	switch {
	case files != nil:
		c.Log.Info("the kubelet port serves a certificate of files, which Kip reads again when they change", "node", node)
		return constant{get: get}, nil
	case c.config.SignerName == "":
		c.Log.Info("the kubelet port serves Kip's own certificate: kubectl logs and exec fail where the API server verifies kubelets",
			"node", node, "cure", "servingCertificate.signerName")
		return constant{get: get}, nil
	}
	if !c.sealer.Encrypts() {
		c.Log.Warn("the key of the serving certificate is not encrypted in the store: who reads that, or a backup of it, can serve as the node",
			"node", node, "key", "etcd.encryptionKeyFiles")
	}
	cfg := servingcert.Config{
		Node:       node,
		Addresses:  addresses,
		SignerName: c.config.SignerName,
		Requester:  c.asKip,
		AsNode:     c.config.RequestedByNode(),
		Keep:       &keptCertificate{store: c.store, sealer: c.sealer, key: servingCertKey + node, log: c.Log},
		Own:        get,
		Event:      func(e events.Event) { c.event(node, e) },
		Clock:      c.clock,
		Log:        c.Log,
	}
	if cfg.AsNode {
		if cfg.Requester, err = c.clients.As(node); err != nil {
			return nil, err
		}
	}
	if c.config.Approve {
		cfg.Approver = c.asKip
	}
	return servingcert.New(ctx, cfg)
}

// KeepOnly implements nodes.Certificates. Without a signer no certificate is of use. What could not be
// deleted is deleted at the next start.
func (c certificates) KeepOnly(ctx context.Context, nodes []string) {
	err := c.store.List(ctx, servingCertKey, func(key string, _ []byte, revision int64) error {
		node := strings.TrimPrefix(key, servingCertKey)
		if c.config.SignerName != "" && slices.Contains(nodes, node) {
			return nil
		}
		c.Log.Info("deleting the stored serving certificate, which is of no use any more", "node", node)
		return c.store.Delete(ctx, key, revision)
	})
	if err != nil && ctx.Err() == nil {
		c.Log.Warn("a stored serving certificate is of no use any more, and is not deleted; Kip retries at its next start", "err", err)
	}
}

// constant is a certificate that nobody has to request.
type constant struct {
	get func(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

func (c constant) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.get(hello)
}

func (constant) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// keptCertificate is a requested certificate with its key, sealed in the store.
type keptCertificate struct {
	store    *store.Store
	sealer   *pki.Sealer
	key      string
	log      *slog.Logger
	revision int64
}

var _ servingcert.Keep = (*keptCertificate)(nil)

// Load returns nil for what none of the keys opens: another certificate can be requested.
func (k *keptCertificate) Load(ctx context.Context) ([]byte, error) {
	var sealed []byte
	revision, err := k.store.Get(ctx, k.key, &sealed)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return nil, err
	}
	k.revision = revision
	if revision == 0 {
		return nil, nil
	}
	data, stale, openErr := k.sealer.Open(sealed, k.key)
	if err = errors.Join(err, openErr); err != nil {
		k.log.Warn("the stored serving certificate cannot be read; Kip requests another", "key", k.key, "err", err)
		return nil, nil
	}
	if stale {
		if err := k.Save(ctx, data); err != nil { // the next Save, or start, does
			k.log.Warn("the stored serving certificate is not encrypted by the first key yet", "key", k.key, "err", err)
		}
	}
	return data, nil
}

// Save seals data. A write whose answer was lost may have been done: then the record has
// another revision.
func (k *keptCertificate) Save(ctx context.Context, data []byte) error {
	sealed := k.sealer.Seal(data, k.key)
	revision, err := k.store.Put(ctx, k.key, sealed, k.revision)
	if errors.Is(err, store.ErrConflict) {
		var there []byte
		if k.revision, err = k.store.Get(ctx, k.key, &there); err != nil && !errors.Is(err, store.ErrUnreadable) {
			return fmt.Errorf("read what was stored: %w", err)
		}
		revision, err = k.store.Put(ctx, k.key, sealed, k.revision)
	}
	if err == nil {
		k.revision = revision
	}
	return err
}
