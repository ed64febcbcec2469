package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/eks/wellknown"
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
	// reachLimit bounds the first question to the API server: one that does not answer is a failure, and not a check that was left out.
	reachLimit = 10 * time.Second
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

// Doctor checks a cluster.
type Doctor struct {
	c Config

	looked  bool // whether Kip is here is known
	server  version.Info
	date    time.Time // of the API server, when it was asked
	askedAt time.Time
	nodes   []corev1.Node // all of the cluster
	own     []corev1.Node // Kip's
	pods    []corev1.Pod  // Kip's
	onOwn   []corev1.Pod  // those on Kip's nodes
	release string        // of Helm, that has installed Kip; "" if none is known to

	name  string    // of the one of several Kips that this is about; "" if there is one, or none
	parts []*Doctor // one for each of several Kips
}

// New returns a Doctor. It asks nothing yet.
func New(c Config) *Doctor { return &Doctor{c: c} }

// Area is the name of an area of checks, with that of the Kip that they are about if there are several.
func (d *Doctor) Area(area string) string { return strings.TrimSpace(area + " " + d.name) }

// Use has the checks go by a configuration that was found in the cluster.
func (d *Doctor) Use(cfg *config.Config) { d.c.Provider = cfg }

// First are the checks that say whether there is a cluster to ask, and a Kip in it.
func (d *Doctor) First() []finding.Check {
	return []finding.Check{
		{Area: areaCluster, Name: "API server", Run: d.reach},
		{Area: areaCluster, Name: "clock", Needs: "API server", Run: d.clockSkew},
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
	all := []finding.Check{
		of(areaCluster, up, "version", d.version),
		of(areaCluster, up, "admission", d.admission),
		of(areaCluster, up, "IP family", d.family),
		of(areaCluster, up, "DNS", d.dns),
		of(areaCluster, up, "StorageClass", d.storageClass),
		of(areaCluster, up, "disks", d.disks),
	}
	switch {
	case !d.looked:
		return append(all, of(areaCluster, up, "rights", d.rights))
	case !d.Installed():
		return append(all,
			of(areaCluster, up, "rights", d.rights),
			of(areaCluster, up, "roles", d.roles),
			of(areaCluster, up, "signer", d.signer),
		)
	}
	all = append(all,
		of(areaKip, "", "pods", d.kipPods),
		of(areaKip, "", "nodes", d.kipNodes),
		of(areaKip, "", "versions", d.versions),
		of(areaKip, "", "definition of Cell", d.definition),
		of(areaKip, "", "rights", d.kipRights),
		of(areaKip, "", "webhook", d.webhook),
		of(areaKip, "", "kubelet port", d.kubeletPort),
		of(areaKip, "", "certificate requests", d.requests),
		of(areaKip, "", "agents", d.agents),
		of(areaKip, "", "events", d.events),
		of(areaKip, "", "pods on its nodes", d.listOnOwn),
		of(areaKip, "pods on its nodes", "DaemonSets", d.daemonSets),
		of(areaKip, "pods on its nodes", "Services", d.services),
	)
	if d.eks() {
		all = append(all, of(areaKip, "", "Pod Identity", d.podIdentity), of(areaKip, "pods on its nodes", "roles of pods", d.rolesOfPods))
	}
	return all
}

// Installed reports whether First has found a Kip.
func (d *Doctor) Installed() bool { return len(d.own)+len(d.pods) > 0 }

// Namespace is where Kip is, or is to be.
func (d *Doctor) Namespace() string {
	if d.c.Namespace == "" && len(d.pods) > 0 {
		return d.pods[0].Namespace
	}
	return cmp.Or(d.c.Namespace, defaultNamespace)
}

// Kip is what is known of the Kip that First has found, for the checks of its account.
func (d *Doctor) Kip(ctx context.Context) (kip finding.Kip) {
	if len(d.own) > 0 {
		kip.Owner = d.own[0].Labels[apiv1.LabelController]
	}
	if len(d.pods) == 0 {
		return kip
	}
	p := &d.pods[0]
	kip.Ask = fmt.Sprintf("kubectl exec -n %s %s -c %s -- /kipctl doctor --account -f /etc/kip/config/provider.yaml", p.Namespace, p.Name, kipContainer)
	if kip.Owner != "" {
		kip.Ask += " --controller " + kip.Owner
	}
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	account, err := d.c.Cluster.Kube.CoreV1().ServiceAccounts(p.Namespace).Get(ctx, p.Spec.ServiceAccountName, metav1.GetOptions{})
	if err == nil { // else its role is not known
		kip.Role = account.Annotations[wellknown.RoleAnnotation]
	}
	return kip
}

// reach asks the API server for its version.
func (d *Doctor) reach(ctx context.Context) []finding.Finding {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	answer, err := d.c.Cluster.Raw(ctx, "/version")
	region := eksRegion(d.c.Cluster.Host)
	login := "kubectl auth whoami # then log in again, as your cluster's kubeconfig says"
	if region != "" {
		login = "aws eks update-kubeconfig --region " + region + " --name CLUSTER"
	}
	switch {
	case err != nil && strings.Contains(err.Error(), "getting credentials"): // client-go, of a program in the kubeconfig
		return one(finding.Fail(login, "the kubeconfig's program for credentials fails: %v", err))
	case err != nil && region != "":
		show := "aws eks describe-cluster --region " + region + " --name CLUSTER --query cluster.resourcesVpcConfig # shows whether its endpoint is private"
		return one(finding.Fail(show, "the API server %s does not answer: %v. If its endpoint is private, run kipctl doctor within the cluster's VPC, or "+
			"through its VPN", d.c.Cluster.Host, err))
	case err != nil:
		return one(finding.Fail("kubectl cluster-info # with --kubeconfig or --context of a cluster that you reach",
			"the API server %s does not answer: %v", d.c.Cluster.Host, err))
	case answer.Status == http.StatusUnauthorized:
		return one(finding.Fail(login, "the API server %s does not know you: the credentials of the kubeconfig are wrong or have expired",
			d.c.Cluster.Host))
	case answer.Status != http.StatusOK:
		return one(finding.Unchecked("GET /version of the API server %s: status %d", d.c.Cluster.Host, answer.Status))
	}
	if err := json.Unmarshal(answer.Body, &d.server); err != nil || d.server.GitVersion == "" {
		return one(finding.Fail("kubectl cluster-info # with --kubeconfig or --context of a Kubernetes cluster",
			"%s answers, and not as an API server of Kubernetes does: %.80q", d.c.Cluster.Host, answer.Body))
	}
	d.date, d.askedAt = answer.Date, d.c.Clock.Now()
	return one(finding.Fine("%s answers", d.c.Cluster.Host))
}

// Limits of a clock that is off. AWS takes no signature that is five minutes off (IAM User Guide, "Signature Version 4").
const clockWarns, clockFails = 30 * time.Second, 5 * time.Minute

// clockSkew compares the clock of the API server with that of this machine.
func (d *Doctor) clockSkew(context.Context) []finding.Finding {
	if d.date.IsZero() {
		return one(finding.Unchecked("the API server does not tell its time"))
	}
	// The header has whole seconds.
	const cure = "sudo timedatectl set-ntp true # on the machine whose clock is wrong"
	switch off := d.askedAt.Sub(d.date).Round(time.Second); {
	case off.Abs() >= clockFails:
		return one(finding.Fail(cure, "this machine's clock and the API server's differ by %s: tokens, certificates and AWS' signatures fail", off.Abs()))
	case off.Abs() >= clockWarns:
		return one(finding.Warn(cure, "this machine's clock and the API server's differ by %s", off.Abs()))
	}
	return one(finding.Fine("this machine's clock and the API server's agree within %s", clockWarns))
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
	found := notKips(pods.Others)
	if !d.Installed() {
		return append(found, d.room()...)
	}
	return append(found, finding.Fine("Kip is here: nodes %s, pods %s", orNone(nodeNames(d.own)), orNone(podNames(d.pods))))
}

// notKips names the pods with Kip's labels that are not taken for Kip's.
func notKips(others []kippods.Other) (found []finding.Finding) {
	for n, o := range others {
		name, cure := o.Pod.Namespace+"/"+o.Pod.Name, "kipctl doctor --namespace "+o.Pod.Namespace+" # if you have installed Kip there"
		switch {
		case n == mostNamed:
			return append(found, finding.Warn("kubectl get pods -A -l "+kippods.Labels, "%d more pods have the labels of Kip's pods, and are not taken for Kip's",
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

// room says whether Kip's pod finds a node.
func (d *Doctor) room() []finding.Finding {
	for _, n := range d.nodes {
		if !n.Spec.Unschedulable && readyOf(&n) == corev1.ConditionTrue {
			return one(finding.Fine("Kip is not here yet: of %d nodes %s is Ready for its pod", len(d.nodes), n.Name))
		}
	}
	switch {
	case d.auto():
		return one(finding.Fine("Kip is not here yet: EKS Auto Mode makes a node for its pod"))
	case d.eks():
		return one(finding.Fail("eksctl create nodegroup --region "+d.region()+" --cluster "+d.clusterName()+" --nodes 1",
			"no node is Ready for Kip's pod: the cluster has %d nodes", len(d.nodes)))
	}
	return one(finding.Fail("kubectl get nodes # then add one, or kubectl uncordon NODE",
		"no node is Ready for Kip's pod: the cluster has %d nodes", len(d.nodes)))
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

// eks reports whether the cluster is one of EKS. Its versions are like v1.33.5-eks-113cf36 (EKS User Guide, "platform versions").
func (d *Doctor) eks() bool {
	return strings.Contains(d.server.GitVersion, "-eks-") || eksRegion(d.c.Cluster.Host) != ""
}

// auto reports whether nodes of EKS Auto Mode are here. There may be others, too.
func (d *Doctor) auto() bool {
	return slices.ContainsFunc(d.nodes, func(n corev1.Node) bool { return wellknown.OnAuto(&n) })
}

// eksRegion is the region in the address of an API server of EKS, such as https://ABC.gr7.us-east-1.eks.amazonaws.com; "" for another's.
func eksRegion(host string) string {
	before, after, is := strings.Cut(host, ".eks.amazonaws.com")
	if !is || strings.Trim(after, ".cn:0123456789/") != "" {
		return ""
	}
	return before[strings.LastIndexByte(before, '.')+1:]
}

// region is that of the cluster, or what stands for it in a command.
func (d *Doctor) region() string {
	own := ""
	if d.c.Provider != nil && d.c.Provider.Cloud.AWS != nil {
		own = d.c.Provider.Cloud.AWS.Region
	}
	return cmp.Or(eksRegion(d.c.Cluster.Host), own, "REGION")
}

// clusterName is that of the cluster at EKS, or what stands for it in a command.
func (d *Doctor) clusterName() string {
	for _, n := range d.nodes {
		if name := n.Labels["alpha.eksctl.io/cluster-name"]; name != "" { // on the nodes of eksctl's clusters
			return name
		}
	}
	if d.c.Provider != nil && d.c.Provider.Cloud.AWS != nil {
		return cmp.Or(d.c.Provider.Cloud.AWS.ClusterName, "CLUSTER")
	}
	return "CLUSTER"
}

// annotationRelease is on what Helm has installed, with the name of its release.
const annotationRelease = "meta.helm.sh/release-name"

// findRelease asks the owner of Kip's pod whether Helm has installed it. Without an answer nothing is printed that needs Helm.
func (d *Doctor) findRelease(ctx context.Context) {
	if len(d.pods) == 0 {
		return
	}
	apps := d.c.Cluster.Kube.AppsV1()
	kind, name, _ := strings.Cut(ownerOf(&d.pods[0]), "/")
	switch kind {
	case "statefulset":
		if set, err := apps.StatefulSets(d.pods[0].Namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
			d.release = set.Annotations[annotationRelease]
		}
	case "deployment":
		if deployment, err := apps.Deployments(d.pods[0].Namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
			d.release = deployment.Annotations[annotationRelease]
		}
	}
}

// findKip is the command that shows where Kip is installed.
const findKip = "kubectl get statefulset,deployment -A -l app.kubernetes.io/name=kip"

// set is the command that sets values of Kip's chart, or does the same for a Kip that Helm has not installed.
func (d *Doctor) set(values ...string) string {
	var sets string
	for _, v := range values {
		sets += " --set " + v
	}
	asChart := ""
	if len(values) > 0 {
		asChart = " # change first what the values " + strings.Join(values, " and ") + " of the chart change"
	}
	switch {
	case len(d.pods) == 0 && (d.Installed() || !d.looked):
		return findKip + asChart
	case len(d.pods) == 0:
		return fmt.Sprintf("helm install kip deploy/helm/kip --namespace %s --create-namespace --values values.yaml%s", d.Namespace(), sets)
	case d.release != "":
		return fmt.Sprintf("helm upgrade %s deploy/helm/kip --namespace %s --reuse-values%s", d.release, d.Namespace(), sets)
	case d.eks():
		return "./kustomize/deploy.sh" + asChart
	}
	return "kubectl apply -k deploy/manifests/kip/overlays/OVERLAY" + asChart
}

// setSigner is the command that has Kip request the certificate of its kubelet port from a signer.
func (d *Doctor) setSigner(signer string) string {
	if len(d.pods) > 0 && d.release == "" {
		return fmt.Sprintf("kubectl edit configmap -n %s %s # in provider.yaml set servingCertificate.signerName: %s; docs/serving-certificates.md has the "+
			"rights that it needs", d.Namespace(), cmp.Or(configMapOf(&d.pods[0]), "NAME"), signer)
	}
	return d.set("servingCertificate.source=csr", "servingCertificate.signerName="+signer)
}

// addArgument is the command that adds an argument to Kip's. A --set of extraArgs would replace the others.
func (d *Doctor) addArgument(arg string) string {
	switch {
	case len(d.pods) == 0 && (d.Installed() || !d.looked):
		return findKip + " # then add " + arg + " to its arguments"
	case len(d.pods) == 0:
		return d.set() + " # after you have added " + arg + " to extraArgs in values.yaml"
	case d.release != "":
		return fmt.Sprintf("helm get values %s --namespace %s --output yaml > values.yaml # add %s to extraArgs in it, then: "+
			"helm upgrade %s deploy/helm/kip --namespace %s --values values.yaml", d.release, d.Namespace(), arg, d.release, d.Namespace())
	}
	return fmt.Sprintf("kubectl edit -n %s %s # add %s to the args of container %s", d.Namespace(), ownerOf(&d.pods[0]), arg, kipContainer)
}

// configMapOf is the ConfigMap that a pod of Kip mounts its provider.yaml from, as the chart and the manifests call the volume; "" if it
// mounts none.
func configMapOf(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.ConfigMap != nil && v.Name == "config" {
			return v.ConfigMap.Name
		}
	}
	return ""
}

func readyOf(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

func nodeNames(nodes []corev1.Node) (names []string) {
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}

func podNames(pods []corev1.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names
}

// mostNamed is how many things a message names.
const mostNamed = 10

func orNone(names []string) string {
	switch n := len(names) - mostNamed; {
	case len(names) == 0:
		return "none"
	case n > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), n)
	}
	return strings.Join(names, ", ")
}

// errNoConfiguration says that Kip's pod names no ConfigMap with its configuration.
var errNoConfiguration = errors.New("no pod of Kip has a ConfigMap with provider.yaml")

// ProviderYAML reads Kip's provider.yaml from the ConfigMap that its pod mounts.
func (d *Doctor) ProviderYAML(ctx context.Context) (name string, data []byte, err error) {
	for _, p := range d.pods {
		for _, v := range p.Spec.Volumes {
			if v.ConfigMap == nil {
				continue
			}
			found, err := d.c.Cluster.Kube.CoreV1().ConfigMaps(p.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return "", nil, fmt.Errorf("read the ConfigMap %s/%s: %w", p.Namespace, v.ConfigMap.Name, err)
			}
			if text, has := found.Data["provider.yaml"]; has {
				return "ConfigMap " + p.Namespace + "/" + v.ConfigMap.Name, []byte(text), nil
			}
		}
	}
	return "", nil, errNoConfiguration
}
