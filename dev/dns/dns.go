package dns

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"text/template"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/dev/manifest"
)

// Service account of CoreDNS, which Install makes.
const (
	Namespace      = "kube-system"
	ServiceAccount = "coredns"
)

// resolvConf names the servers of this host.
const resolvConf = "/etc/resolv.conf"

// probeTimeout is how long a server of this host has for its first answer. One
// that needs longer would delay each name that is not the cluster's.
const probeTimeout = 250 * time.Millisecond

//go:embed dns.yaml
var objects string

// ClusterIP is the address of Service kube-dns: by convention the tenth of the
// Services'.
func ClusterIP(services netip.Prefix) (netip.Addr, error) {
	ip := services.Masked().Addr()
	for range 10 {
		ip = ip.Next()
	}
	if !services.Contains(ip) {
		return netip.Addr{}, fmt.Errorf("service CIDR %s has no tenth address for Service kube-dns: want a network such as 10.96.0.0/16",
			services)
	}
	return ip, nil
}

// Install makes the service account, its rights and the Service of a CoreDNS at
// address.
func Install(ctx context.Context, admin *rest.Config, address, clusterIP netip.Addr) error {
	t, err := template.New("dns.yaml").Parse(objects)
	if err != nil {
		return fmt.Errorf("make the objects of CoreDNS: %w", err)
	}
	var doc bytes.Buffer
	if err := t.Execute(&doc, map[string]netip.Addr{"ClusterIP": clusterIP, "Address": address}); err != nil {
		return fmt.Errorf("make the objects of CoreDNS: %w", err)
	}
	if _, err := manifest.Apply(ctx, admin, "kip-dev", doc.Bytes()); err != nil {
		return fmt.Errorf("make the Service of CoreDNS: %w", err)
	}
	return nil
}

// Options say how CoreDNS is run.
type Options struct {
	Path       string // the program
	Address    netip.Addr
	Kubeconfig string // of the service account
	Corefile   string // is written
	LogFile    string
	Record     string // names the process while it runs
	Env        []string
	// Upstream are the servers for names that are not the cluster's.
	Upstream []netip.AddrPort
}

// Server is a CoreDNS that was started.
type Server struct {
	*child.Process
	address netip.Addr
}

// Upstream are the name servers of this host that answer within a moment, but for
// those that are ours.
func Upstream(ctx context.Context, ours ...netip.Addr) ([]netip.AddrPort, error) {
	resolv, err := os.ReadFile(resolvConf)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("look for name servers of this host: %w", err)
	}
	return answering(ctx, nameservers(string(resolv), ours...)), nil
}

// Start starts CoreDNS.
func Start(o Options) (*Server, error) {
	if err := os.WriteFile(o.Corefile, []byte(corefile(o.Address, o.Kubeconfig, o.Upstream)), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of CoreDNS: %w", err)
	}
	p, err := child.Start(child.Spec{
		Path:    o.Path,
		Args:    []string{"-conf", o.Corefile},
		Env:     o.Env,
		LogFile: o.LogFile,
		Record:  o.Record,
	})
	if err != nil {
		return nil, err
	}
	return &Server{Process: p, address: o.Address}, nil
}

// Ready waits until CoreDNS answers for the cluster, or ends.
func (s *Server) Ready(ctx context.Context) error {
	url := fmt.Sprintf("http://%s/ready", netip.AddrPortFrom(s.address, readyPort))
	state := errors.New("it was not asked")
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case <-s.Done():
			return false, s.End()
		default:
		}
		state = get(ctx, url)
		return state == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for CoreDNS: %w", errors.Join(err, state))
	}
	return nil
}

// End says how the process ended, never nil. It is for after Done.
func (s *Server) End() error {
	err := s.Err()
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("coredns ended: %w", err)
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	return errors.Join(fmt.Errorf("%s: %s: %s", url, resp.Status, body), err)
}

// answering are those of the servers that answer, whatever they answer.
func answering(ctx context.Context, servers []netip.AddrPort) []netip.AddrPort {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answers := make([]bool, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { answers[i] = ask(ctx, s) == nil })
	}
	all.Wait()
	var out []netip.AddrPort
	for i, s := range servers {
		if answers[i] {
			out = append(out, s)
		}
	}
	return out
}

// ask asks a server for the root's servers.
func ask(ctx context.Context, server netip.AddrPort) error {
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeNS, Class: dnsmessage.ClassINET}},
	}
	packet, err := query.Pack()
	if err != nil {
		return err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", server.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := conn.Write(packet); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, err := conn.Read(answer) // from that server only: the socket is connected
	if err != nil {
		return err
	}
	var h dnsmessage.Parser
	_, err = h.Start(answer[:n])
	return err
}
