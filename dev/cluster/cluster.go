package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/dev/listen"
	"github.com/elotl/kip/dev/manifest"
)

// Preferred port of the API server; another is taken when this one is not free.
const apiPort = 6443

// pollInterval is how often a condition of the starting cluster is looked at.
const pollInterval = 50 * time.Millisecond

// tokenLifetime of service accounts' tokens, in seconds: longer than any run.
const tokenLifetime = int64(365 * 24 * 60 * 60)

// Kip's service account; deploy/manifests/rights/rbac.yaml gives it its rights.
const (
	kipNamespace      = "kip-system"
	kipServiceAccount = "kip"
)

// Options say where a cluster is.
type Options struct {
	// StateDir holds everything that the cluster writes. What an earlier
	// cluster left in it is removed.
	StateDir string
	// Address is an address of this host that cells can reach: the bridge's.
	// The API server listens on it and on loopback, and on nothing else.
	Address netip.Addr
	// ServiceCIDR is where Services get their addresses.
	ServiceCIDR netip.Prefix
	// ServiceIPv6CIDR is where they get those of IPv6 if the cluster is dual-stack.
	ServiceIPv6CIDR netip.Prefix
	// WithoutKip leaves out the rights of Kip and all else that Kip finds in a cluster: the chart installs it.
	WithoutKip bool
	// EmulatedVersion is the minor version of Kubernetes, such as 1.34, whose API the control plane serves; its own when empty.
	EmulatedVersion string
	// NoFsync lets etcd answer before its data is on the disk: for tests.
	NoFsync bool
	// UpstreamLimits leaves the controller manager and the scheduler the limits on
	// their requests that they have by default: for benchmarks.
	UpstreamLimits bool
	// NodeName is the virtual node.
	NodeName string
	// Peers are further virtual nodes, with the addresses of their kubelet ports.
	// One service account serves all.
	Peers map[string]netip.Addr
	// Approver is who answers the requests for certificates of kubelet ports, one of
	// Approvers; ApproverPerson when empty.
	Approver string
	// TolerationSeconds is how long pods that do not say stay on a node that is not heard
	// of; 0 for upstream's five minutes.
	TolerationSeconds int
	// NodeGrace is how long a node may be silent before it is taken to be unwell; 0 for
	// upstream's default.
	NodeGrace time.Duration
	// AuditLog, if it is set, is the file to which the API server appends a line of
	// JSON for each stage of each request, with who asked for what: for benchmarks.
	// It is outside of what the cluster removes.
	AuditLog string
	Log      *slog.Logger
}

// Cluster is a running control plane.
type Cluster struct {
	opts   Options
	files  files
	admin  *rest.Config
	cancel context.CancelFunc
	etcd   *component
	// others are stopped before the API server, in this order.
	others    []*component
	apiserver *component
	failed    chan error
	log       *os.File
	ca        *Authority
	server    string // URL of the API server on the bridge
}

// files are what a cluster leaves for others to read.
type files struct{ state, pki string }

func (f files) path(name string) string { return filepath.Join(f.state, name) }
func (f files) cert(name string) string { return filepath.Join(f.pki, name+".crt") }
func (f files) key(name string) string  { return filepath.Join(f.pki, name+".key") }

// component is one part of the control plane.
type component struct {
	name string
	stop context.CancelFunc
	done chan struct{} // closed when it has ended
	err  error         // why; read after done
}

// Start starts a control plane and returns when pods can be created in it. It
// can be called once in a process: the upstream components keep global state.
// The control plane outlives ctx, which bounds only the start; Stop ends it.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{opts: o, files: files{state: o.StateDir, pki: filepath.Join(o.StateDir, "pki")}, failed: make(chan error, 1)}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start the control plane: %w", err), c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// AdminConfig is a client configuration that may do anything.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// AdminKubeconfig is the path of a kubeconfig that may do anything.
func (c *Cluster) AdminKubeconfig() string { return c.files.path("kubeconfig") }

// KipKubeconfig is the path of a kubeconfig of Kip's service account.
func (c *Cluster) KipKubeconfig() string { return c.files.path("kip.kubeconfig") }

// Server is the URL of the API server for machines on the bridge.
func (c *Cluster) Server() string { return c.server }

// Identity is what a node needs to be one: whom it trusts, who its kubelet and
// its kube-proxy are towards the API server, and who it is when that calls.
type Identity struct {
	CA                     []byte // PEM
	Client, Proxy, Serving Pair
}

// NodeIdentity makes the identity of a node.
func (c *Cluster) NodeIdentity(name string, ip netip.Addr) (Identity, error) {
	own, err := c.ca.Pair()
	if err != nil {
		return Identity{}, err
	}
	subject := Subject{Name: "system:node:" + name, Groups: []string{"system:nodes"}}
	client, err := c.ca.Issue(subject)
	if err != nil {
		return Identity{}, err
	}
	subject.Hosts = []string{ip.String(), name}
	serving, err := c.ca.Issue(subject)
	if err != nil {
		return Identity{}, err
	}
	proxy, err := c.ca.Issue(Subject{Name: "system:kube-proxy"})
	return Identity{
		CA:      own.Cert,
		Client:  client,
		Proxy:   proxy,
		Serving: serving,
	}, err
}

// Certificate makes a serving certificate for these hosts, names or addresses. All pods of the cluster trust its CA.
func (c *Cluster) Certificate(hosts ...string) (tls.Certificate, error) {
	p, err := c.ca.Issue(Subject{Name: hosts[0], Hosts: hosts})
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(p.Cert, p.Key)
}

// LogFile is the path of the log of all components.
func (c *Cluster) LogFile() string { return c.files.path("control-plane.log") }

// Failed yields the reason when a component ends that nobody stopped.
func (c *Cluster) Failed() <-chan error { return c.failed }

func (c *Cluster) start(ctx context.Context) error {
	began := time.Now()
	if err := CheckApprover(c.opts.Approver); err != nil {
		return err
	}
	if err := c.makeFolders(); err != nil {
		return err
	}
	if err := c.openLog(); err != nil {
		return err
	}
	if err := c.startComponents(ctx, began); err != nil {
		return err
	}
	if !c.opts.WithoutKip {
		if err := c.applyManifests(ctx); err != nil {
			return err
		}
		if err := c.ServiceAccountKubeconfig(ctx, kipNamespace, kipServiceAccount, c.KipKubeconfig()); err != nil {
			return err
		}
	}
	if err := c.defaultServiceAccount(ctx); err != nil {
		return err
	}
	c.opts.Log.Debug("the control plane is ready", "after", time.Since(began))
	return nil
}

// makeFolders makes the folders of this cluster, in the place of an earlier one's.
func (c *Cluster) makeFolders() error {
	for _, dir := range []string{"pki", "etcd"} {
		if err := os.RemoveAll(c.files.path(dir)); err != nil {
			return fmt.Errorf("remove what an earlier cluster left: %w", err)
		}
		if err := os.MkdirAll(c.files.path(dir), 0o700); err != nil {
			return fmt.Errorf("make the state folder: %w", err)
		}
	}
	return nil
}

// startComponents starts etcd, the API server, and those that ask it.
func (c *Cluster) startComponents(ctx context.Context, began time.Time) error {
	// One port, since Service kubernetes has one. The loopback address comes
	// first: the API server also calls itself there.
	listeners, err := listen.OnAll(ctx, apiPort, netip.AddrFrom4([4]byte{127, 0, 0, 1}), c.opts.Address)
	if err != nil {
		return err
	}
	loopback, bridge := listeners[0], listeners[1]
	c.server = "https://" + bridge.Addr().String()
	listener := listen.Join(loopback, bridge)
	if err := c.writeCredentials(loopback.Addr().String()); err != nil {
		return errors.Join(err, listener.Close())
	}

	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	etcd, err := c.startEtcd(ctx)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	c.opts.Log.Debug("etcd is ready", "after", time.Since(began))
	args := c.apiserverArgs(etcd, bridge.Addr().(*net.TCPAddr))
	if c.opts.AuditLog != "" {
		audit, err := c.auditArgs()
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		args = append(args, audit...)
	}
	c.apiserver = c.run(running, "kube-apiserver", func(ctx context.Context) error { return runAPIServer(ctx, args, listener) })
	if err := c.ready(ctx); err != nil {
		return err
	}
	c.opts.Log.Debug("kube-apiserver is ready", "after", time.Since(began))
	c.others = []*component{
		c.run(running, "kube-scheduler", func(ctx context.Context) error { return runScheduler(ctx, c.schedulerArgs()) }),
		c.run(running, "kube-controller-manager", func(ctx context.Context) error {
			return runControllerManager(ctx, c.controllerManagerArgs())
		}),
		c.run(running, "answers to certificate requests", c.answerRequests),
	}
	return nil
}

// applyManifests gives Kip its rights, for each of its nodes, and what else it finds in a
// cluster.
func (c *Cluster) applyManifests(ctx context.Context) error {
	for _, m := range []struct {
		doc    []byte
		failed string
	}{
		{apiv1.CRDManifest, "define the Cell resource"},
		{deploy.RBAC, "give Kip its rights"},
		{deploy.Policies, "bound Kip's rights, and those of pods"},
		{deploy.StorageClass, "make the StorageClass of Kip's disks"},
	} {
		if _, err := manifest.Apply(ctx, c.admin, "kip-dev", m.doc); err != nil {
			return fmt.Errorf("%s: %w", m.failed, err)
		}
	}
	addresses := maps.Clone(c.opts.Peers)
	if addresses == nil {
		addresses = map[string]netip.Addr{}
	}
	addresses[c.opts.NodeName] = c.opts.Address
	for node, address := range addresses {
		hooks, err := webhooksFor(node, address)
		if err == nil {
			_, err = manifest.Apply(ctx, c.admin, "kip-dev", hooks)
		}
		if err != nil {
			return fmt.Errorf("have the API server ask Kip about the pods of node %s: %w", node, err)
		}
	}
	for node := range c.opts.Peers {
		if _, err := manifest.Apply(ctx, c.admin, "kip-dev", rightsFor(node)); err != nil {
			return fmt.Errorf("give Kip the rights of node %s: %w", node, err)
		}
	}
	return nil
}

// Stop ends the components in the one order that does not hang: whoever uses
// the API server, the API server, etcd. It returns when all have ended.
func (c *Cluster) Stop(ctx context.Context) error {
	var errs []error
	for _, p := range append(c.others, c.apiserver, c.etcd) {
		if p == nil {
			continue
		}
		p.stop()
		select {
		case <-p.done:
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("stop %s: %w", p.name, ctx.Err()))
		}
	}
	if c.cancel != nil {
		c.cancel()
	}
	if c.log != nil {
		klog.ClearLogger() // late lines of goroutines that the components forgot
		errs = append(errs, c.log.Close())
	}
	return errors.Join(errs...)
}

// run starts a component, which ends when its context does.
func (c *Cluster) run(ctx context.Context, name string, f func(context.Context) error) *component {
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.Background().WithName(name)))
	p := &component{name: name, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		err := f(ctx)
		if ctx.Err() != nil {
			return // stopped; upstream then returns various errors
		}
		if err == nil {
			err = errors.New("it returned")
		}
		p.err = fmt.Errorf("%s ended: %w", name, err)
		select {
		case c.failed <- p.err:
		default: // an earlier failure is the cause
		}
	}()
	return p
}

// openLog sends the log of all components, which is klog's and so global, to a
// file.
func (c *Cluster) openLog() error {
	f, err := os.OpenFile(c.LogFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of the control plane: %w", err)
	}
	c.log = f
	klog.SetLoggerWithOptions(logr.FromSlogHandler(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelInfo})),
		klog.ContextualLogger(true))
	return nil
}

// writeCredentials makes all keys and certificates, and the kubeconfigs that
// use them.
func (c *Cluster) writeCredentials(server string) error {
	now := time.Now()
	ca, err := NewAuthority("kubernetes", now)
	if err != nil {
		return err
	}
	frontProxy, err := NewAuthority("front-proxy", now)
	if err != nil {
		return err
	}
	c.ca = ca
	first, err := firstServiceAddress(c.opts.ServiceCIDR)
	if err != nil {
		return err
	}
	for name, a := range map[string]*Authority{"ca": ca, "front-proxy-ca": frontProxy} {
		p, err := a.Pair()
		if err != nil {
			return err
		}
		if err := p.Write(c.files.pki, name); err != nil {
			return err
		}
	}
	address := c.opts.Address.String()
	pairs := map[string]Pair{}
	for name, issue := range map[string]struct {
		by      *Authority
		subject Subject
	}{
		"apiserver": {ca, Subject{Name: "kube-apiserver", Hosts: []string{
			"127.0.0.1", address, first.String(), "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local",
		}}},
		"kubelet-client":     {ca, Subject{Name: kubeletClient, Groups: []string{"system:masters"}}},
		"front-proxy":        {frontProxy, Subject{Name: "front-proxy-client"}},
		"admin":              {ca, Subject{Name: "kubernetes-admin", Groups: []string{"system:masters"}}},
		"controller-manager": {ca, Subject{Name: "system:kube-controller-manager"}},
		"scheduler":          {ca, Subject{Name: "system:kube-scheduler"}},
	} {
		p, err := issue.by.Issue(issue.subject)
		if err != nil {
			return err
		}
		if err := p.Write(c.files.pki, name); err != nil {
			return err
		}
		pairs[name] = p
	}
	if err := writeServiceAccountKeys(c.files); err != nil {
		return err
	}
	caPEM, err := os.ReadFile(c.files.cert("ca"))
	if err != nil {
		return err
	}
	for file, user := range map[string]string{"kubeconfig": "admin", "controller-manager.kubeconfig": "controller-manager",
		"scheduler.kubeconfig": "scheduler"} {
		p := pairs[user]
		if err := writeKubeconfig(c.files.path(file), "https://"+server, caPEM,
			clientcmdapi.AuthInfo{ClientCertificateData: p.Cert, ClientKeyData: p.Key}); err != nil {
			return err
		}
	}
	if c.admin, err = clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig()); err != nil {
		return fmt.Errorf("read the kubeconfig that was just written: %w", err)
	}
	c.admin.UserAgent = "kip-dev"
	c.admin.QPS = -1 // the API server's own priority and fairness is limit enough
	return nil
}

// writeServiceAccountKeys makes the pair with which tokens are signed and
// checked.
func writeServiceAccountKeys(f files) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the service account key: %w", err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the service account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode the service account key: %w", err)
	}
	if err := os.WriteFile(f.key("service-account"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		0o600); err != nil {
		return fmt.Errorf("write the service account key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(f.pki, "service-account.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		0o644); err != nil {
		return fmt.Errorf("write the service account key: %w", err)
	}
	return nil
}

// writeKubeconfig writes a kubeconfig for one user, which only its owner may
// read.
func writeKubeconfig(path, server string, ca []byte, user clientcmdapi.AuthInfo) error {
	const name = "kip-dev"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	cfg.AuthInfos[name] = &user
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	if err := clientcmd.WriteToFile(*cfg, path); err != nil { // mode 0600
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// ServiceAccountKubeconfig writes a kubeconfig of a service account, whose token
// outlives any run.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name, path string) error {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	seconds := tokenLifetime
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("request a token for service account %s/%s: %w", namespace, name, err)
	}
	return writeKubeconfig(path, c.admin.Host, c.admin.CAData, clientcmdapi.AuthInfo{Token: token.Status.Token})
}

// ready waits until the API server says that it is.
func (c *Cluster) ready(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	var last error
	err = c.await(ctx, func(ctx context.Context) bool {
		_, last = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("wait for kube-apiserver: %w", errors.Join(err, last))
	}
	return nil
}

// defaultServiceAccount waits until pods can be created in namespace default,
// and find the authority of the API server there.
func (c *Cluster) defaultServiceAccount(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	var last error
	err = c.await(ctx, func(ctx context.Context) bool {
		if _, last = client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{}); last == nil {
			_, last = client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		}
		return last == nil || !apierrors.IsNotFound(last)
	})
	if err := errors.Join(err, last); err != nil {
		return fmt.Errorf("wait for the service account of namespace default: %w", err)
	}
	return nil
}

// await polls until f is true, a component ends, or ctx does.
func (c *Cluster) await(ctx context.Context, f func(context.Context) bool) error {
	return wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-c.failed:
			return false, err
		default:
			return f(ctx), nil
		}
	})
}

// firstServiceAddress is what the Service kubernetes gets.
func firstServiceAddress(p netip.Prefix) (netip.Addr, error) {
	if !p.IsValid() || p.Bits() > p.Addr().BitLen()-4 {
		return netip.Addr{}, fmt.Errorf("service CIDR %s: want a prefix of at least 16 addresses, such as 10.96.0.0/16", p)
	}
	return p.Masked().Addr().Next(), nil
}
