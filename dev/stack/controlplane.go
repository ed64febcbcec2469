package stack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/elotl/kip/dev/child"
	"github.com/elotl/kip/dev/cluster"
	"github.com/elotl/kip/dev/dns"
	"github.com/elotl/kip/internal/cloud/host"
)

// controlPlane is the cluster's, with its DNS.
type controlPlane struct {
	*site
	masquerading *masquerading

	Cluster *cluster.Cluster
	DNS     *dns.Server
}

// StartCluster makes the bridge and starts the control plane on it, with its DNS.
func (s *controlPlane) StartCluster(ctx context.Context) error {
	if err := s.makeBridges(ctx); err != nil {
		return err
	}
	s.masquerading.startMasquerade(ctx)
	clusterIP, err := dns.ClusterIP(s.opts.ServiceCIDR)
	if err != nil {
		return err
	}
	var upstream []netip.AddrPort
	var upstreamErr error
	var asked sync.WaitGroup
	asked.Go(func() { upstream, upstreamErr = dns.Upstream(ctx, s.address, clusterIP) })
	s.Cluster, err = cluster.Start(ctx, cluster.Options{
		StateDir:          s.opts.State,
		Address:           s.address,
		ServiceCIDR:       s.opts.ServiceCIDR,
		ServiceIPv6CIDR:   s.opts.ServiceIPv6CIDR,
		NoFsync:           s.opts.NoFsync,
		UpstreamLimits:    s.opts.UpstreamLimits,
		TolerationSeconds: s.opts.TolerationSeconds,
		NodeGrace:         s.opts.NodeGrace,
		NodeName:          s.opts.Node,
		WithoutKip:        s.opts.kipIsPod(),
		EmulatedVersion:   s.opts.EmulatedVersion,
		Peers:             s.peers(),
		AuditLog:          s.opts.AuditLog,
		Approver:          s.opts.Approver,
		Log:               s.opts.Log,
	})
	asked.Wait()
	if err := errors.Join(err, upstreamErr); err != nil {
		return err
	}
	return s.startDNS(ctx, clusterIP, upstream)
}

// makeBridges makes the bridges of all Kips and lets this machine pass packets from
// one to another, and back to one by its kube-proxy, and from no other device.
func (s *controlPlane) makeBridges(ctx context.Context) error {
	for _, k := range s.kips {
		if err := host.EnsureBridge(ctx, s.opts.cloudOf(k).Config); err != nil {
			return err
		}
		if len(s.kips) == 1 && !s.opts.ServiceProxy {
			return nil
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+k.bridge+"/forwarding", []byte("1\n"), 0); err != nil {
			return fmt.Errorf("let packets pass from bridge %s: %w", k.bridge, err)
		}
	}
	return nil
}

// nodeReady waits until a node is Ready and takes pods, or the Kip that has it
// ends, which is nil for an ordinary node.
func (s *controlPlane) nodeReady(ctx context.Context, name string, kip *child.Process) error {
	var ended <-chan struct{}
	if kip != nil {
		ended = kip.Done()
	}
	client, err := kubernetes.NewForConfig(s.Cluster.AdminConfig())
	if err != nil {
		return err
	}
	state := "there is no such node"
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("kip ended: %w", endOf(kip))
		case err := <-s.Cluster.Failed():
			return false, err
		default:
		}
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			if !apierrors.IsNotFound(err) {
				state = err.Error()
			}
			return false, nil
		}
		var ready bool
		ready, state = takesPods(node)
		if ready && (kip != nil || s.virtual(name)) && s.Approves() {
			// As kubectl logs, which fails until the API server can verify the kubelet port.
			_, err = client.CoreV1().RESTClient().Get().Resource("nodes").Name(name).SubResource("proxy").Suffix("healthz").DoRaw(ctx)
			if err != nil {
				ready, state = false, "its kubelet port: "+err.Error()
			}
		}
		return ready, nil
	})
	if err != nil {
		return fmt.Errorf("wait for node %s (%s): %w", name, state, err)
	}
	return nil
}

// takesPods says whether a node is Ready for the scheduler too, and if not, why.
func takesPods(n *corev1.Node) (bool, string) {
	// A controller takes the taint of a new node away when it is Ready; the
	// scheduler looks at the taint.
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady {
			return false, "it is not Ready"
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, fmt.Sprintf("Ready is %s: %s", c.Status, c.Message)
		}
	}
	return false, "it has no condition Ready"
}
