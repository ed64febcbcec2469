package kip

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/crd"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/networkpolicy"
	"github.com/elotl/kip/internal/store"
	"github.com/elotl/kip/internal/watchdog"
	"github.com/elotl/kip/internal/watches"
	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
)

// reviewsShare is the part of the requests to the API server that those may be as many as, beside these, which ask who calls a
// port of Kip's.
const reviewsShare = 4

// apiServer is the way to the API server, as Kip itself, as its node and as the
// provisioner.
type apiServer struct {
	ownConfig, nodeConfig        *rest.Config
	asKip, asNode, asProvisioner kubernetes.Interface
	reviews                      kubernetes.Interface // as Kip, of those who call its ports
	profiled                     kubernetes.Interface // as Kip, of pods and namespaces of which its webhook is asked
	ownDynamic                   dynamic.Interface
}

// connect makes the clients. It asks the API server nothing.
func connect(o Options, measured func(client string) func(http.RoundTripper) http.RoundTripper) (*apiServer, error) {
	own, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", o.credentials(), err)
	}
	own.QPS, own.Burst = o.QPS, o.Burst
	own.UserAgent = "kip"
	if err := rest.LoadTLSFiles(own); err != nil {
		return nil, fmt.Errorf("read the certificates of %s: %w", o.credentials(), err)
	}
	// The API server's Node authorizer then lets Kip read only what belongs to
	// the pods of its node.
	node := rest.CopyConfig(own)
	node.Impersonate = rest.ImpersonationConfig{UserName: nodeUser(o.NodeName), Groups: []string{"system:nodes"}}
	provisioner := rest.CopyConfig(own)
	provisioner.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + o.Provisioner.Namespace + ":" + o.Provisioner.Name}
	// Whoever reaches a port has questions asked: they take nothing from the requests that launch and end cells.
	reviews := rest.CopyConfig(own)
	reviews.QPS, reviews.Burst = o.QPS/reviewsShare, max(o.Burst/reviewsShare, 1)
	profiled := rest.CopyConfig(reviews)
	for name, c := range map[string]*rest.Config{
		"kip": own, "node": node, "provisioner": provisioner, "reviews": reviews, "profiled": profiled,
	} {
		c.Wrap(measured(name))
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { return watchdog.Transport(next, watchdog.APIServer) })
	}
	a := &apiServer{ownConfig: own, nodeConfig: node}
	if a.asKip, err = kubernetes.NewForConfig(own); err != nil {
		return nil, err
	}
	if a.reviews, err = kubernetes.NewForConfig(reviews); err != nil {
		return nil, err
	}
	if a.profiled, err = kubernetes.NewForConfig(profiled); err != nil {
		return nil, err
	}
	if a.asNode, err = kubernetes.NewForConfig(node); err != nil {
		return nil, err
	}
	if a.asProvisioner, err = kubernetes.NewForConfig(provisioner); err != nil {
		return nil, err
	}
	if a.ownDynamic, err = dynamic.NewForConfig(own); err != nil {
		return nil, err
	}
	return a, nil
}

// nodeUser is the user that a node is.
func nodeUser(node string) string { return "system:node:" + node }

// clusterUID is the cluster's identity: the UID of its namespace kube-system.
func (a *apiServer) clusterUID(ctx context.Context, st *store.Store, log *slog.Logger) (types.UID, error) {
	// Several Kips share an etcd, and their clusters may give nodes the same names: what is
	// remembered is that of this API server, by its address and its CA.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s", a.ownConfig.Host, a.ownConfig.CAData))
	return remembered(ctx, st, "clusters/"+hex.EncodeToString(sum[:16]), log, func(ctx context.Context) (types.UID, error) {
		ns, err := a.asKip.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("read namespace %s, whose UID is the cluster's identity: %w", metav1.NamespaceSystem, err)
		}
		return ns.UID, nil
	})
}

// askTimeout bounds what Kip asks the API server before it starts its work.
const askTimeout = 10 * time.Second

// remembered asks the API server for what hardly ever changes, and keeps the answer in
// the store: after the first start one that does not answer holds up no other.
func remembered[T any](
	ctx context.Context, st *store.Store, key string, log *slog.Logger, ask func(context.Context) (T, error),
) (T, error) {
	var last T
	revision, err := st.Get(ctx, key, &last)
	if err != nil {
		return last, err
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	now, err := ask(asking)
	cancel()
	if err != nil {
		if revision == 0 || ctx.Err() != nil || !unanswered(err) {
			return now, err
		}
		log.Warn("the API server does not answer: going by its last answer", "key", key, "err", err)
		return last, nil
	}
	if revision != 0 && reflect.DeepEqual(now, last) {
		return now, nil
	}
	// Another replica that writes at the same time has the same answer.
	if _, err := st.Put(ctx, key, now, revision); err != nil && !errors.Is(err, store.ErrConflict) {
		return now, err
	}
	return now, nil
}

// unanswered says that an error of the API server is its absence, and no refusal.
func unanswered(err error) bool {
	refused := apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err)
	return err != nil && !refused
}

// checkCRD reports whether the Cell resource can be written: see [crd.Check].
func (a *apiServer) checkCRD(ctx context.Context) error {
	client, err := apiextensionsclient.NewForConfig(a.ownConfig)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return crd.Check(asking, client.CustomResourceDefinitions())
}

// As acts as one of the virtual nodes. All of them together ask no more of the API server
// than one would.
func (a *apiServer) As(node string) (kubernetes.Interface, error) {
	user := nodeUser(node)
	if user == a.nodeConfig.Impersonate.UserName {
		return a.asNode, nil
	}
	as := rest.CopyConfig(a.nodeConfig)
	as.Impersonate.UserName = user
	as.RateLimiter = a.asNode.CoreV1().RESTClient().GetRateLimiter()
	return kubernetes.NewForConfig(as)
}

// dnsService is the Service that pods ask for names, as kubeadm and the clouds
// name it.
const dnsService = "kube-dns"

// dnsKey is where the address is stored that pods asked for names last.
const dnsKey = "dns"

// clusterDNS returns what pods ask for names: the address that is given, else the usual
// Service as the cell API sees it.
func (a *apiServer) clusterDNS(
	ctx context.Context, given netip.Addr, shared *watches.Watches, st *store.Store, log *slog.Logger,
) (cells.ClusterDNS, error) {
	if given.IsValid() {
		return givenDNS{addr: given}, nil
	}
	// The first answer, for as long as the cell API does not know the Services yet. A cell
	// that runs must not be told meanwhile that there is none.
	first, err := remembered(ctx, st, dnsKey, log, func(ctx context.Context) ([]netip.Addr, error) {
		service, err := a.asNode.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, dnsService, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			log.Warn("there is no Service kube-system/kube-dns and no --cluster-dns: " +
				"until there is, pods with dnsPolicy ClusterFirst get their cell's resolver")
			return []netip.Addr{}, nil
		case err != nil:
			return nil, fmt.Errorf("find the cluster's DNS: %w", err)
		}
		addr, err := netip.ParseAddr(service.Spec.ClusterIP)
		if err != nil {
			return nil, fmt.Errorf("the cluster IP of Service kube-system/%s is %q: give --cluster-dns", dnsService, service.Spec.ClusterIP)
		}
		return []netip.Addr{addr}, nil
	})
	if err != nil {
		return nil, err
	}
	return serviceDNS{shared: shared, first: first}, nil
}

// givenDNS is an address that does not change.
type givenDNS struct{ addr netip.Addr }

func (d givenDNS) Addresses() []netip.Addr { return []netip.Addr{d.addr} }

// serviceDNS is the usual Service.
type serviceDNS struct {
	shared *watches.Watches
	first  []netip.Addr // what it is as long as that is not known
}

func (d serviceDNS) Addresses() []netip.Addr {
	addr, known := d.shared.ClusterIP(metav1.NamespaceSystem, dnsService)
	switch {
	case !known:
		return d.first
	case !addr.IsValid():
		return nil
	}
	return []netip.Addr{addr}
}

// podEvents are the Events of pods.
type podEvents struct{ recorder record.EventRecorder }

var (
	_ cells.Recorder         = podEvents{}
	_ networkpolicy.Recorder = podEvents{}
	_ cellapi.Recorder       = podEvents{}
)

func (r podEvents) Event(pod apiv1.PodReference, e events.Event) {
	r.recorder.Event(&corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Pod",
		Namespace:  pod.Namespace,
		Name:       pod.Name,
		UID:        pod.UID,
	}, e.Type, e.Reason, e.Message)
}

// eventRecorder returns what reports as the node.
func (a *apiServer) eventRecorder(ctx context.Context, node string) (recorder record.EventRecorder, stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.asNode.CoreV1().Events("")})
	known := runtime.NewScheme() // nobody else writes to it: see package provisioner
	utilruntime.Must(scheme.AddToScheme(known))
	return broadcaster.NewRecorder(known, corev1.EventSource{Component: "kip", Host: node}), broadcaster.Shutdown
}
