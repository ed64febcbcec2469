package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/kippods"
	"github.com/elotl/kip/internal/sanitize"
)

// portFlags say how Kip's kubelet port is reached.
type portFlags struct {
	direct, insecure bool
	ca               string
}

func (f *portFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.direct, "direct", false, "connect to the address of the virtual node, and not by a port-forward to Kip's pod")
	flags.StringVar(&f.ca, "kip-ca", "", "`file` with the CA of Kip's kubelet port, PEM (default: the cluster's CA, as in the kubeconfig)")
	flags.BoolVar(&f.insecure, "insecure-skip-tls-verify", false, "give your credentials to whoever answers at that port")
}

// kubeletPort is that of the virtual node of a cell, reached with the credentials of the user. Kip asks the API server what
// they may do with the cell.
type kubeletPort struct {
	transport http.RoundTripper
	base      *url.URL
	stop      func()
}

// port reaches the kubelet port of a cell's virtual node. Kip's pod is looked for in namespace kipIn, in all for "". The caller
// stops it.
func (c *cluster) port(ctx context.Context, name, kipIn string, f portFlags) (*kubeletPort, error) {
	u, err := c.dynamic.Resource(apiv1.Resource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cell %q not found", name)
	}
	if err != nil {
		return nil, fmt.Errorf("get cell %s: %w", name, err)
	}
	one, err := toCell(u)
	if err != nil {
		return nil, err
	}
	node, err := c.kube.CoreV1().Nodes().Get(ctx, one.Status.Node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get virtual node %s of cell %s: %w", one.Status.Node, name, err)
	}
	// The credentials are for Kip alone, and whoever may write Cells can name any node.
	if id := node.Labels[apiv1.LabelController]; id == "" || id != one.Status.ControllerID {
		return nil, fmt.Errorf("node %s of cell %s is no virtual node of the Kip that has the cell (label %s: %q, want %q); "+
			"nothing was sent to it", node.Name, name, apiv1.LabelController, id, one.Status.ControllerID)
	}
	host, port := addressOf(node)
	if host == "" {
		return nil, fmt.Errorf("virtual node %s has no address", node.Name)
	}
	config := rest.CopyConfig(c.config)
	config.Host, config.APIPath, config.Timeout = "https://"+net.JoinHostPort(host, port), "", 0
	config.ServerName = ""
	switch {
	case f.insecure:
		config.Insecure, config.CAFile, config.CAData = true, "", nil
	case f.ca != "":
		config.Insecure, config.CAFile, config.CAData = false, f.ca, nil
	}
	p := &kubeletPort{base: &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}, stop: func() {}}
	if !f.direct {
		if err := c.forward(ctx, p, config, kipIn, host, port); err != nil {
			return nil, err
		}
	}
	if p.transport, err = rest.TransportFor(config); err != nil {
		p.stop()
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return p, nil
}

func addressOf(node *corev1.Node) (host, port string) {
	i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	if i < 0 {
		return "", ""
	}
	return node.Status.Addresses[i].Address, strconv.Itoa(int(cmp.Or(node.Status.DaemonEndpoints.KubeletEndpoint.Port, 10250)))
}

// forward has the port reached through the API server if Kip is a pod at that address. Whoever may not list pods, or whose Kip
// is none, connects to the address.
func (c *cluster) forward(ctx context.Context, p *kubeletPort, config *rest.Config, kipIn, host, port string) error {
	found, err := kippods.Find(ctx, c.kube, kipIn)
	if err != nil {
		return nil
	}
	pods := found.Own
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == host })
	})
	if i < 0 {
		return nil
	}
	local, stop, err := forwardTo(ctx, c.config, c.kube, &pods[i], port)
	if err != nil {
		return fmt.Errorf("forward a port to pod %s/%s of Kip: %w; with --direct kipctl connects to %s", pods[i].Namespace, pods[i].Name, err,
			net.JoinHostPort(host, port))
	}
	p.stop = stop
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	config.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", local)
	}
	return nil
}

// forwardTo forwards a local port to one of a pod.
func forwardTo(ctx context.Context, config *rest.Config, kube kubernetes.Interface, pod *corev1.Pod, port string) (address string,
	stop func(), err error) {
	config = rest.CopyConfig(config)
	config.Timeout = 0
	to := kube.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return "", nil, err
	}
	tunnelled, err := portforward.NewSPDYOverWebsocketDialer(to, config)
	if err != nil {
		return "", nil, err
	}
	dialer := portforward.NewFallbackDialer(tunnelled, spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, to),
		func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) })
	stopped, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:" + port}, stopped, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.ForwardPorts() }()
	stop = func() {
		close(stopped)
		<-ended
	}
	select {
	case <-ready:
	case err := <-ended:
		return "", nil, fmt.Errorf("it ended at once: %w", err)
	case <-ctx.Done():
		stop()
		return "", nil, ctx.Err()
	}
	ports, err := f.GetPorts()
	if err != nil {
		stop()
		return "", nil, err
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))), stop, nil
}

// maxRefusal bounds what is read of a refusal, in bytes.
const maxRefusal = 4 << 10

// ask sends a request, and returns an answer with one of these codes. The caller closes its body.
func (p *kubeletPort) ask(r *http.Request, want int) (*http.Response, error) {
	resp, err := p.transport.RoundTrip(r)
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown):
		return nil, fmt.Errorf("kip at %s: %w: its kubelet port has no certificate of the cluster's CA (docs/serving-certificates.md); "+
			"name its CA with --kip-ca", p.base.Host, err)
	case err != nil:
		return nil, fmt.Errorf("ask Kip at %s: %w", p.base.Host, err)
	case resp.StatusCode == want:
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // the code says enough
	why := sanitize.Printable(strings.TrimSpace(string(text)))
	return nil, fmt.Errorf("kip at %s: %s: %s", p.base.Host, resp.Status, cmp.Or(why, "it says no more"))
}

// namesOneCell checks the arguments of a command about one cell.
func namesOneCell(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name one cell: CELL; got %d arguments", len(args))
	}
	return nil
}

// oneCell takes the name of a cell, and what may follow.
func oneCell(args []string) (string, error) {
	if len(args) == 0 || args[0] == "" {
		return "", errors.New("name one cell: CELL")
	}
	return strings.TrimPrefix(strings.TrimPrefix(args[0], "cells/"), "cell/"), nil
}

// fileOf is a stream as a file, which may be a terminal; nil if it is none.
func fileOf(stream any) *os.File {
	f, _ := stream.(*os.File)
	return f
}
