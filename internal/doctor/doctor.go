package doctor

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/kippods"
)

// Areas of checks.
const (
	areaCluster = "cluster"
	areaKip     = "kip"
)

const (
	// defaultNamespace is that of docs/install.md.
	defaultNamespace = "kip-system"
	kipContainer     = kippods.Container
)

// Cluster is the API server that is asked.
type Cluster struct {
	Kube kubernetes.Interface
	CRDs apiextensionsclient.CustomResourceDefinitionInterface
	// Host is the API server's address, for messages.
	Host string
	// Raw gets a path of the API server, whatever the status of the answer.
	Raw func(ctx context.Context, path string) (Answer, error)
	// Cells are the Cell resources of the cluster.
	Cells func(ctx context.Context) ([]apiv1.Cell, error)
}

// Answer is one of an API server.
type Answer struct {
	Status int
	// Date is the API server's clock; zero if it did not say.
	Date time.Time
	Body []byte
}

// Config is what a Doctor asks, and as whom.
type Config struct {
	Cluster Cluster
	// Namespace is where Kip is, or is to be; "" for where it is found, or else kip-system.
	Namespace string
	// PodNamespace is where a pod would be made that is not made.
	PodNamespace string
	// Provider is the provider.yaml; nil if there is none.
	Provider *config.Config
	// Version is that of this program.
	Version string
	Clock   clock.PassiveClock
}

// Doctor checks a cluster, and one Kip in it or each of several.
type Doctor struct {
	*installation
	parts []*Doctor // one for each of several Kips
}

// New returns a Doctor. It asks nothing yet.
func New(c Config) *Doctor { return &Doctor{installation: &installation{c: c, facts: &facts{}}} }

// First are the checks that say whether there is a cluster to ask, and a Kip in it.
func (d *Doctor) First() []finding.Check {
	k := d.installation
	return []finding.Check{
		{Area: areaCluster, Name: "API server", Run: reaching{k}.reach},
		{Area: areaCluster, Name: "clock", Needs: "API server", Run: reaching{k}.clockSkew},
		{Area: areaCluster, Name: "nodes", Needs: "API server", Run: d.look},
	}
}

// Rest are the other checks, by what First has found: before Kip is installed, or after.
func (d *Doctor) Rest() []finding.Check {
	of := func(area, needs, name string, run func(context.Context) []finding.Finding) finding.Check {
		if area == areaKip {
			area = d.Area(area)
		}
		return finding.Check{Area: area, Name: name, Needs: needs, Run: run}
	}
	const up = "API server"
	k := d.installation
	all := []finding.Check{
		of(areaCluster, up, "version", needs{k}.version),
		of(areaCluster, up, "admission", needs{k}.admission),
		of(areaCluster, up, "IP family", needs{k}.family),
		of(areaCluster, up, "DNS", needs{k}.dns),
		of(areaCluster, up, "StorageClass", storage{k}.storageClass),
		of(areaCluster, up, "disks", storage{k}.disks),
	}
	switch {
	case !d.looked:
		return append(all, of(areaCluster, up, "rights", grants{k}.rights))
	case !d.Installed():
		return append(all,
			of(areaCluster, up, "rights", grants{k}.rights),
			of(areaCluster, up, "roles", grants{k}.roles),
			of(areaCluster, up, "signer", grants{k}.signer),
		)
	}
	all = append(all,
		of(areaKip, "", "pods", health{k}.kipPods),
		of(areaKip, "", "nodes", health{k}.kipNodes),
		of(areaKip, "", "versions", health{k}.versions),
		of(areaKip, "", "definition of Cell", health{k}.definition),
		of(areaKip, "", "rights", ownRights{k}.kipRights),
		of(areaKip, "", "webhook", ports{k}.webhook),
		of(areaKip, "", "kubelet port", ports{k}.kubeletPort),
		of(areaKip, "", "certificate requests", certificates{k}.requests),
		of(areaKip, "", "agents", agents{k}.join),
		of(areaKip, "", "age of cells", agents{k}.age),
		of(areaKip, "", "events", health{k}.events),
		of(areaKip, "", "pods on its nodes", workloads{k}.listOnOwn),
		of(areaKip, "pods on its nodes", "DaemonSets", daemonSets{k}.onNodes),
		of(areaKip, "pods on its nodes", "Services", workloads{k}.services),
		of(areaKip, "", "node selectors", workloads{k}.selectors),
	)
	if k.c.Provider != nil && len(k.c.Provider.Admission.Profiles) > 0 {
		all = append(all, of(areaKip, "", "profiles", ports{k}.profiles))
	}
	if d.eks() {
		all = append(all, of(areaKip, "", "Pod Identity", identities{k}.podIdentity), of(areaKip, "pods on its nodes", "roles of pods",
			identities{k}.rolesOfPods))
	}
	return all
}

// look finds Kip.
func (d *Doctor) look(ctx context.Context) []finding.Finding {
	nodes, err := d.c.Cluster.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return one(unasked("list the nodes", err))
	}
	d.nodes = nodes.Items
	for _, n := range d.nodes {
		if n.Labels[apiv1.LabelController] != "" {
			d.own = append(d.own, n)
		}
	}
	pods, err := kippods.Find(ctx, d.c.Cluster.Kube, d.c.Namespace)
	if err != nil {
		return one(unasked("look for Kip", err))
	}
	d.pods, d.looked = pods.Own, true
	// So that what is named first is the same each time.
	slices.SortFunc(d.own, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	d.split()
	for _, one := range d.Each() {
		one.findRelease(ctx)
	}
	found := notTaken(pods.Others)
	if !d.Installed() {
		return append(found, d.room()...)
	}
	return append(found, finding.Fine("Kip is here: nodes %s, pods %s", orNone(nodeNames(d.own)), orNone(podNames(d.pods))))
}

// notTaken names the pods with Kip's labels that are not taken for Kip's.
func notTaken(others []kippods.Other) (found []finding.Finding) {
	for n, o := range others {
		name, cure := o.Pod.Namespace+"/"+o.Pod.Name, "kipctl doctor --namespace "+o.Pod.Namespace+" # if you have installed Kip there"
		switch {
		case n == mostNamed:
			return append(found, finding.Warn("kubectl get pods -A -l "+kippods.Labels,
				"%d more pods have the labels of Kip's pods, and are not taken for Kip's",
				len(others)-n))
		case o.Unknown:
			f := finding.Unchecked("whether pod %s is Kip's: it has the labels of Kip's pods, and %s", name, o.Why)
			f.Cure = cure
			found = append(found, f)
		default:
			found = append(found, finding.Warn(cure, "pod %s has the labels of Kip's pods, and %s: it is not taken for Kip's", name, o.Why))
		}
	}
	return found
}

// one is a list of one finding.
func one(f finding.Finding) []finding.Finding { return []finding.Finding{f} }

// unasked is the finding for a question that the API server does not answer: it says nothing about what was asked for.
func unasked(what string, err error) finding.Finding {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return finding.Unchecked("you may not %s: %v", what, err)
	}
	return finding.Unchecked("%s: %v", what, err)
}
