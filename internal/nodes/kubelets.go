package nodes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/metrics"
	"github.com/elotl/kip/internal/node"
	"github.com/elotl/kip/internal/stats"
	"github.com/elotl/kip/internal/version"
	"github.com/elotl/kip/internal/volumes"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/tools/cache"
)

// Equipment is what a Controller uses of what Kip makes once it has nodes. All is required
// but ClientCA.
type Equipment struct {
	Cells        Cells
	Endpoints    Endpoints
	Observer     Observer
	Logs         node.SavedLogs
	Certificates Certificates
	ClientCA     dynamiccertificates.CAContentProvider // as in node.PortConfig
}

// Endpoints are the agents of the cells of pods.
type Endpoints interface {
	// To is the way to the cells of a node's pods.
	To(pods cache.Store) node.Cells
	// Running are the cells that run a pod of a node now.
	Running(node string) []stats.Cell
}

// Certificates are those of kubelet ports.
type Certificates interface {
	// Certificate returns that of a node, whose port has these addresses.
	Certificate(ctx context.Context, node string, addresses []netip.Addr) (Certificate, error)
	// KeepOnly deletes what is stored for other nodes than these.
	KeepOnly(ctx context.Context, nodes []string)
}

// Certificate is the certificate of a kubelet port.
type Certificate interface {
	// GetCertificate is for a server's tls.Config.
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Run keeps the certificate valid until ctx ends.
	Run(ctx context.Context) error
}

// Observer is told what becomes of nodes.
type Observer interface {
	// StatsGathered is told of each gathering of what pods use, as in stats.Config.
	StatsGathered(endpoint string, took time.Duration, missed map[stats.Miss]int)
	// Kubelet answers for /metrics and /metrics/slis of a node's kubelet port.
	Kubelet(metrics.KubeletConfig) http.Handler
	// NodeGone is told of a node that is served no more.
	NodeGone(node string)
}

// Cells are the cells of the nodes' pods.
type Cells interface {
	List() []cells.Cell
	// NodeOf is the name of the node that a cell is of.
	NodeOf(cells.Cell) string
	// NodesChanged says that cells may be of other nodes than before.
	NodesChanged()
}

var _ Cells = (*cells.Controller)(nil)

// kubelet is what answers for a node as its kubelet.
type kubelet struct {
	stats       *stats.Stats
	certificate Certificate // of the port
	port        *node.Port
	listener    net.Listener
	// local is the port on loopback, where a port-forward to Kip's pod comes; nil if that is somebody else's.
	local net.Listener
}

// closePort closes the port of a node that is not served, or no more.
func (k *kubelet) closePort() error {
	err := k.listener.Close()
	if k.local != nil {
		err = errors.Join(err, k.local.Close())
	}
	return err
}

// kubelets answer the API server for the nodes.
type kubelets struct {
	c       Config
	nodes   *registry
	objects *objects
	made    Equipment
	// listen opens a port.
	listen func(ctx context.Context, address string) (net.Listener, error)
}

// open makes what answers for a node as its kubelet.
func (k *kubelets) open(ctx context.Context, s *served) error {
	addresses, err := k.c.Flags.Addresses()
	if err != nil {
		return err
	}
	if s.kubelet.certificate, err = k.made.Certificates.Certificate(ctx, s.name, addresses); err != nil {
		return err
	}
	s.kubelet.stats = stats.New(stats.Config{
		NodeName: s.name,
		Cells:    func() []stats.Cell { return withClaims(k.made.Endpoints.Running(s.name), s.informer.GetStore()) },
		Gathered: k.made.Observer.StatsGathered,
		Clock:    k.c.Clock,
		Log:      k.c.Log,
	})
	pods, healthy := func() []*corev1.Pod { return watches.List(s.informer) }, k.objects.healthy(s)
	s.kubelet.port, err = node.NewPort(node.PortConfig{
		NodeName:    s.name,
		Reviews:     k.c.Reviews,
		ClientCA:    k.made.ClientCA,
		Certificate: s.kubelet.certificate.GetCertificate,
		Cells:       k.made.Endpoints.To(s.informer.GetStore()),
		Logs:        k.made.Logs,
		Stats:       s.kubelet.stats,
		Metrics: k.made.Observer.Kubelet(metrics.KubeletConfig{
			Node:        s.name,
			Pods:        pods,
			Certificate: s.kubelet.certificate.GetCertificate,
			Volumes:     s.kubelet.stats.Volumes,
			Healthy:     healthy,
		}),
		MaxPods: func() int64 { return k.maxPods(s) },
		Version: version.String(),
		Pods:    pods,
		Healthy: healthy,
		Log:     k.c.Log,
	})
	if err != nil {
		return err
	}
	// Before anything runs: a port that is taken ends Kip before it has done anything.
	at := net.JoinHostPort(addresses[0].String(), strconv.Itoa(portOf(k.c.KubeletPort, s.number)))
	s.kubelet.listener, err = k.listen(ctx, at)
	if err != nil {
		return fmt.Errorf("listen for the API server, as node %s: %w", s.name, err)
	}
	if ip := addresses[0]; !ip.IsLoopback() && !ip.IsUnspecified() {
		_, port, _ := net.SplitHostPort(at)
		if s.kubelet.local, err = k.listen(ctx, net.JoinHostPort("127.0.0.1", port)); err != nil {
			s.kubelet.local = nil
			k.c.Log.Info("kipctl exec and logs do not come by a port-forward to Kip's pod", "node", s.name, "err", err)
		}
	}
	return nil
}

// withClaims returns the cells with the claims of their pods, as the pods of their node have them.
func withClaims(cells []stats.Cell, pods cache.Store) []stats.Cell {
	for i := range cells {
		o, _, err := pods.GetByKey(cells[i].Namespace + "/" + cells[i].Pod)
		pod, ok := o.(*corev1.Pod)
		if err != nil || !ok || pod.UID != cells[i].UID {
			continue
		}
		for v := range pod.Spec.Volumes {
			if volume := &pod.Spec.Volumes[v]; volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
				cells[i].Claims = append(cells[i].Claims, volumes.ClaimOf(pod, volume))
			}
		}
	}
	return cells
}

// maxPods is how many pods the node takes now.
func (k *kubelets) maxPods(s *served) int64 {
	k.nodes.mu.Lock()
	cfg, object, e := k.nodes.cfg, s.node, s.entry
	k.nodes.mu.Unlock()
	capacity, _ := cfg.CapacityOf(e.Node)
	if object != nil {
		capacity = object.Capacity()
	}
	return capacity.Pods().Value()
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

// keepCertificates deletes the stored certificates of nodes that are gone.
func (k *kubelets) keepCertificates(ctx context.Context) {
	var names []string
	for _, s := range k.nodes.all() {
		names = append(names, s.name)
	}
	k.made.Certificates.KeepOnly(ctx, names)
}

// close closes the ports of nodes that are not followed, or no more.
func (k *kubelets) close() {
	for _, s := range k.nodes.all() {
		if s.kubelet.listener == nil {
			continue
		}
		if err := s.kubelet.closePort(); err != nil && !errors.Is(err, net.ErrClosed) {
			k.c.Log.Warn("close the kubelet port", "node", s.name, "err", err)
		}
	}
}
