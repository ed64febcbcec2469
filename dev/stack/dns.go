package stack

import (
	"context"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/elotl/kip/dev/dns"
)

// DNSLog is the path of CoreDNS's log.
func (s *controlPlane) DNSLog() string { return s.path("coredns.log") }

// startDNS starts CoreDNS on the bridge, behind Service kube-system/kube-dns. It
// does not wait until it answers: DNSReady does.
func (s *controlPlane) startDNS(ctx context.Context, clusterIP netip.Addr, upstream []netip.AddrPort) error {
	began := time.Now()
	if err := dns.Install(ctx, s.Cluster.AdminConfig(), s.address, clusterIP); err != nil {
		return err
	}
	kubeconfig := s.path("coredns.kubeconfig")
	if err := s.Cluster.ServiceAccountKubeconfig(ctx, dns.Namespace, dns.ServiceAccount, kubeconfig); err != nil {
		return err
	}
	var err error
	s.DNS, err = dns.Start(dns.Options{
		Path:       filepath.Join(s.opts.Bin, "coredns"),
		Address:    s.address,
		Kubeconfig: kubeconfig,
		Upstream:   upstream,
		Corefile:   s.path("Corefile"),
		LogFile:    s.DNSLog(),
		Record:     s.path("coredns.json"),
		Env:        []string{markVariable + "=" + s.opts.State},
	})
	s.opts.Log.Debug("CoreDNS is started", "took", time.Since(began), "upstream", upstream)
	return err
}

// DNSReady waits until the cluster's names can be asked for.
func (s *controlPlane) DNSReady(ctx context.Context) error { return s.DNS.Ready(ctx) }
