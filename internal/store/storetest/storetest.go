// Package storetest serves an etcd, as an external one that a test can stop and
// start.
package storetest

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Etcd is one member, which serves clients.
type Etcd struct {
	Server   *embed.Etcd // nil while it is stopped
	Endpoint string      // host:port, the same after a restart

	tls *transport.TLSInfo
	dir string
}

// Serve starts an etcd that ends with the test. tls, if not nil, is what it
// shows and asks of its clients.
func Serve(t testing.TB, tls *transport.TLSInfo) *Etcd {
	t.Helper()
	return ServeAt(t, netip.AddrFrom4([4]byte{127, 0, 0, 1}), tls)
}

// ServeAt is Serve on another address of this host.
func ServeAt(t testing.TB, address netip.Addr, tls *transport.TLSInfo) *Etcd {
	t.Helper()
	x := &Etcd{Endpoint: netip.AddrPortFrom(address, 0).String(), tls: tls, dir: t.TempDir()}
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
