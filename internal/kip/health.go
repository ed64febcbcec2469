package kip

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/sources"
)

// metricsConnections are open at the same time at the port for metrics and health: one of each scraper, and of each probe.
const metricsConnections = 1024

// serveMetrics serves metrics, health and readiness until ctx ends.
func (k *process) serveMetrics(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", k.MetricsAddr)
	if err != nil {
		return fmt.Errorf("serve metrics on --metrics-addr: %w", err)
	}
	return k.serveMetricsOn(ctx, l)
}

// serveMetricsOn is serveMetrics on a listener, which it closes.
func (k *process) serveMetricsOn(ctx context.Context, l net.Listener) error {
	ready := []metrics.Check{{Name: "store", Func: k.store.Ready}}
	for _, c := range checksOfLeader {
		ready = append(ready, metrics.Check{Name: c.name, Func: func(context.Context) error { return k.role.ready(c.holds) }})
	}
	scraped, err := node.Guard(k.api.reviews, k.MetricsAudience, k.metrics.Metrics())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	certificate, err := k.metricsCertificate()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	var protocols http.Protocols // by HTTP/2 a connection can have hundreds of requests wait
	protocols.SetHTTP1(true)
	server := &http.Server{
		Protocols: &protocols,
		Handler:   metrics.Handler(scraped, k.alive(), ready),
		// A token comes with each scrape.
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate},
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    32 << 10, // a token has a few thousand bytes
		ErrorLog:          slog.NewLogLogger(k.Log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(&sources.Listener{Listener: l, All: metricsConnections}, "", ""); ctx.Err() == nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// metricsCertificate is the operator's for metrics, or that for the kubelet port, or one
// that nobody can verify, of an authority that ends with the process: the CA is the
// leader's.
func (k *process) metricsCertificate() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if k.MetricsCertFile != "" || k.MetricsKeyFile != "" {
		files, err := node.NewFileCertificate("the certificate of metrics (--metrics-cert-file, --metrics-key-file)",
			k.MetricsCertFile, k.MetricsKeyFile, k.Log)
		if err != nil {
			return nil, err
		}
		return files.GetCertificate, nil
	}
	authority, err := pki.New(k.clock.Now)
	if err != nil {
		return nil, err
	}
	addresses, err := k.Addresses()
	if err != nil {
		return nil, err
	}
	return k.servingCertificate(authority, k.NodeName, addresses)
}

// alive are the checks of /healthz. What a restart of Kip would not mend is none of
// them.
func (k *process) alive() []metrics.Check {
	return []metrics.Check{{Name: "loops", Func: func(context.Context) error { return k.watchdog.Err() }}}
}

// checksOfLeader are what must hold of a process that leads.
var checksOfLeader = []struct {
	name  string
	holds func(*leading) error
}{
	{"pods", (*leading).podsListed},
	{"node", (*leading).nodeRegistered},
	{"generation", (*leading).notBehind},
	{"term", (*leading).notRefused},
}

func (l *leading) podsListed() error {
	_, err := l.nodes.all.ListPods()
	return err
}

func (l *leading) nodeRegistered() error {
	return l.kubelets.controller.AllRegistered()
}

// notRefused says why cells do not obey this Kip.
func (l *leading) notRefused() error {
	if why := l.cells.controller.Refused(); why != "" {
		return errors.New(why)
	}
	return nil
}

// notBehind says why Kip launches and sweeps nothing: its store does not know of all
// instances.
func (l *leading) notBehind() error {
	if why, sure := l.cells.controller.Behind(); why != "" && sure {
		return errors.New(why)
	}
	return nil
}

// reading is what a process that leads tells of it.
func (l *leading) reading() metrics.Reading {
	return metrics.Reading{
		Cells:   l.cells.controller.List(),
		NodeOf:  l.cells.controller.NodesOf(),
		Nodes:   l.nodes.all.Names(),
		Tunnels: l.cells.controller.Connected(),
		Waiting: l.pods.controller.WaitingPods(),
		Held:    l.cloud.guard.Held(),
		CA: metrics.CA{
			Ends:    l.cloud.ca.Signing.Certificate().NotAfter,
			Unmoved: len(l.cells.controller.Unmoved()),
		},
		Behind: l.notBehind() != nil,
		Ledger: l.cells.controller.Costs(),
		Spent:  l.cells.controller.CostsByNamespace(),

		PricesTold: l.cloud.instanceTypes.PricesTold(),
	}
}
