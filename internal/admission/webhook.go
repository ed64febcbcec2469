package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/backoff"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/sources"
)

const (
	// lookEvery is how often is looked whether all is still right, and retrySoon the
	// first pause while it is not.
	lookEvery = 30 * time.Second
	retrySoon = time.Second
	// askAgain is how old the answer about the API server's tolerations may be: they
	// change when it is started anew.
	askAgain = time.Hour
	// callTimeout bounds a request to the API server.
	callTimeout = 10 * time.Second
	// connectionLimit is more than API servers open, and connectionsOfOne than one does:
	// many questions share a connection.
	connectionLimit, connectionsOfOne = 256, 16
)

// Config of a Webhook. All fields are required, unless stated otherwise.
type Config struct {
	// Name is that of the MutatingWebhookConfiguration by which the API server knows of
	// the webhook. An admin makes it; only who is trusted in it is kept up to date.
	// Without it nothing is served.
	Name string
	// Own is who keeps it.
	Own dynamic.Interface
	// Nodes are those that Kip has now; one is there, or will be.
	Nodes func(ctx context.Context) ([]Node, error)
	// Listen opens the port.
	Listen func(context.Context) (net.Listener, error)
	// Authorities are those of Kip: the API server is to trust all of them. Signing is nil as
	// long as there are none.
	Authorities func(context.Context) (pki.Authorities, error)
	// Rules are what is known of the nodes now.
	Rules func() Rules
	// Machines are those of the pods' cells.
	Machines Machines
	// Profiles choose pods that do not select Kip's nodes.
	Profiles Profiles
	// Unasked is called, if there are profiles, with why the API server does not ask about their pods. It may be nil.
	Unasked func(why string)
	// Sets are the DaemonSets that run beside pods. Optional.
	Sets  Sets
	Clock clock.Clock
	Log   *slog.Logger
}

// Node is a virtual node, and who acts as it.
type Node struct {
	Name string
	As   dynamic.Interface
}

// Webhook answers the API server, which asks before it makes a pod.
type Webhook struct {
	cfg      Config
	defaults atomic.Pointer[Defaults]
	identity atomic.Pointer[identity]

	// The rest is for Run alone.
	asked  time.Time // when the defaults were told
	found  []byte    // the bundle of CAs, where the configuration had it at the last look
	server *http.Server
	ended  chan error // the server's
}

// identity is a certificate, and what it was made for.
type identity struct {
	authority string // its hash
	hosts     []string
	renewed   *pki.Renewed
}

// New returns a Webhook that does nothing yet.
func New(cfg Config) *Webhook {
	w := &Webhook{cfg: cfg, ended: make(chan error, 1)}
	w.defaults.Store(&UpstreamDefaults)
	return w
}

// Run serves until ctx ends, as long as there is a configuration that leads to it.
func (w *Webhook) Run(ctx context.Context) error {
	defer w.close()
	for said, failed := "", 0; ; {
		err := w.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var listening *net.OpError
		if errors.As(err, &listening) && listening.Op == "listen" {
			return err
		}
		failed++
		pause := backoff.Random(nil).After(failed, retrySoon, lookEvery)
		switch {
		case err == nil:
			said, failed, pause = "", 0, lookEvery
		case err.Error() != said:
			said = err.Error()
			w.report(err)
		}
		timer := w.cfg.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case err := <-w.ended:
			timer.Stop()
			w.server = nil
			return fmt.Errorf("answer the API server: %w", err)
		case <-timer.C():
		}
	}
}

// report logs what is not right, and calls Unasked if that keeps profiles from their pods.
func (w *Webhook) report(err error) {
	var ignored errUnasked
	if errors.Is(err, errNotInstalled) && len(w.cfg.Profiles.List) > 0 {
		ignored = errUnasked("admission.profiles have no effect: the API server asks Kip about no pods, since there is no " +
			"MutatingWebhookConfiguration " + w.cfg.Name + ", which the chart makes with webhook.enabled; without the chart see docs/profiles.md")
		err = ignored
	}
	switch {
	case ignored != "" || errors.As(err, &ignored):
		w.cfg.Log.Warn("the API server does not ask about the pods of profiles", "err", err, "configuration", w.cfg.Name)
		if w.cfg.Unasked != nil {
			w.cfg.Unasked(ignored.Error())
		}
	case errors.Is(err, errNotInstalled):
		w.cfg.Log.Info("pods are made as they are: nobody asks Kip about them", "configuration", w.cfg.Name)
	default:
		w.cfg.Log.Warn("what pods are made with may not be right", "err", err)
	}
}

// look makes right what is not, and says what could not be.
func (w *Webhook) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all := w.cfg.Own.Resource(configurations)
	configuration, err := all.Get(ctx, w.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errNotInstalled
	}
	wrong := func(err error) error { return fmt.Errorf("MutatingWebhookConfiguration %s: %w", w.cfg.Name, err) }
	if err != nil {
		return wrong(err)
	}
	authorities, err := w.cfg.Authorities(ctx)
	if err != nil {
		return err
	}
	if authorities.Signing == nil {
		return errors.New("there is no CA yet: it is made when a Kip leads for the first time")
	}
	bundle := authorities.CertificatesPEM()
	trusted, err := trusting(configuration, bundle)
	if err != nil {
		return wrong(err)
	}
	if err := w.identify(w.shown(authorities, bundle, trusted == nil), configuration); err != nil {
		return wrong(err)
	}
	unknown := errors.Join(w.learn(ctx), w.unasked(configuration))
	if w.server == nil {
		l, err := w.cfg.Listen(ctx)
		if err != nil {
			return fmt.Errorf("answer the API server: %w", err)
		}
		w.serve(l)
	}
	// Last: what is asked from now on is answered.
	if trusted != nil {
		if _, err := all.Update(ctx, trusted, metav1.UpdateOptions{}); err != nil {
			return wrong(err)
		}
		w.cfg.Log.Info("the API server asks Kip about pods before they are made", "configuration", w.cfg.Name)
	}
	return unknown
}

// shown is the authority whose certificate is shown, where the API server is told to trust
// a bundle, now or by what was found. It hears of that a moment after it is written, and
// another replica may have just written it: a new CA's is shown when the bundle was there
// a look ago.
func (w *Webhook) shown(a pki.Authorities, bundle []byte, found bool) *pki.Authority {
	before := w.found
	w.found = nil
	if found {
		w.found = bundle
	}
	if a.Before != nil && !(found && bytes.Equal(before, bundle)) {
		return a.Before
	}
	return a.Signing
}

// learn asks for the tolerations that the API server adds. Until it has told them, those
// of one that is not told otherwise are gone by.
func (w *Webhook) learn(ctx context.Context) error {
	if now := w.cfg.Clock.Now(); !w.asked.IsZero() && now.Sub(w.asked) < askAgain {
		return nil
	}
	nodes, err := w.cfg.Nodes(ctx)
	if err != nil {
		return err
	}
	defaults, err := askDefaults(ctx, nodes)
	if err != nil {
		return err
	}
	w.asked = w.cfg.Clock.Now()
	w.defaults.Store(&defaults)
	return nil
}

// identify makes a certificate for the names by which the API server calls the webhook.
func (w *Webhook) identify(authority *pki.Authority, configuration *unstructured.Unstructured) error {
	configs, err := clientConfigs(configuration)
	if err != nil {
		return err
	}
	hosts, err := hostsOf(configs)
	if err != nil {
		return err
	}
	if i := w.identity.Load(); i != nil && i.authority == authority.Hash() && slices.Equal(i.hosts, hosts) {
		return nil
	}
	var names []string
	var addresses []netip.Addr
	for _, host := range hosts {
		if address, err := netip.ParseAddr(host); err == nil {
			addresses = append(addresses, address)
		} else {
			names = append(names, host)
		}
	}
	renewed, err := authority.Server(names, addresses)
	if err != nil {
		return err
	}
	w.identity.Store(&identity{authority: authority.Hash(), hosts: hosts, renewed: renewed})
	return nil
}

// serve answers on a listener until the server is closed.
func (w *Webhook) serve(l net.Listener) {
	defaults := func() Defaults { return *w.defaults.Load() }
	server := newServer(newReviews(w.cfg.Rules, defaults, w.cfg.Machines, w.cfg.Profiles, w.cfg.Sets, turnTimeout, w.cfg.Log), w.cfg.Log)
	server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return w.identity.Load().renewed.Certificate()
		},
	}
	w.server = server
	go func() {
		w.ended <- server.ServeTLS(&sources.Listener{Listener: l, OfOne: connectionsOfOne, All: connectionLimit}, "", "")
	}()
}

// newServer returns a server whose callers nobody knows.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second, // the handshake too
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       30 * time.Second, // the API server opens another
		MaxHeaderBytes:    16 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          100,
			MaxReceiveBufferPerStream:     256 << 10,
			MaxReceiveBufferPerConnection: 256 << 10,
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// close ends the server, if there is one, and waits until it has ended.
func (w *Webhook) close() {
	if w.server == nil {
		return
	}
	if err := w.server.Close(); err != nil {
		w.cfg.Log.Warn("close the port at which the API server asks about pods", "err", err)
	}
	<-w.ended
}
