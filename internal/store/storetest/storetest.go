// Package storetest serves an etcd on loopback, as an external one that a test
// can stop and start.
package storetest

import (
	"net/url"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Etcd is one member that serves clients on 127.0.0.1.
type Etcd struct {
	Server   *embed.Etcd // nil while it is stopped
	Endpoint string      // host:port on loopback, the same after a restart

	tls *transport.TLSInfo
	dir string
}

// Serve starts an etcd that ends with the test. tls, if not nil, is what it
// shows and asks of its clients.
func Serve(t testing.TB, tls *transport.TLSInfo) *Etcd {
	t.Helper()
	x := &Etcd{Endpoint: "127.0.0.1:0", tls: tls, dir: t.TempDir()}
	x.Start(t)
	x.Endpoint = x.Server.Clients[0].Addr().String()
	t.Cleanup(x.Stop)
	return x
}

// Start starts it again, with its data, where it was.
func (x *Etcd) Start(t testing.TB) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(x.dir, "etcd")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(x.dir, "peer.sock")}}
	client := url.URL{Scheme: "http", Host: x.Endpoint}
	if x.tls != nil {
		client.Scheme, cfg.ClientTLSInfo = "https", *x.tls
	}
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "localhost:2379"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatalf("start an etcd for the test: %v", err)
	}
	<-e.Server.ReadyNotify()
	x.Server = e
}

// Stop stops it, if it runs; its data stays.
func (x *Etcd) Stop() {
	if x.Server != nil {
		x.Server.Close()
		x.Server = nil
	}
}
