package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

// facts are what First has learned of the cluster.
type facts struct {
	looked  bool // whether Kip is here is known
	server  version.Info
	date    time.Time // of the API server, when it was asked
	askedAt time.Time
	nodes   []corev1.Node // all of the cluster
}

// installation is one Kip, or the one that is to be installed: what is known of it, and the commands that change it. What checks it is made
// of one.
type installation struct {
	c Config
	*facts

	own     []corev1.Node // Kip's
	pods    []corev1.Pod  // Kip's
	onOwn   []corev1.Pod  // those on Kip's nodes
	release string        // of Helm, that has installed Kip; "" if none is known to
	name    string        // of the one of several Kips that this is; "" if there is one, or none
}

// Area is the name of an area of checks, with that of the Kip that they are about if there are several.
func (k *installation) Area(area string) string { return strings.TrimSpace(area + " " + k.name) }

// Use has the checks go by a configuration that was found in the cluster.
func (k *installation) Use(cfg *config.Config) { k.c.Provider = cfg }

// Installed reports whether First has found a Kip.
func (k *installation) Installed() bool { return len(k.own)+len(k.pods) > 0 }

// Namespace is where Kip is, or is to be.
func (k *installation) Namespace() string {
	if k.c.Namespace == "" && len(k.pods) > 0 {
		return k.pods[0].Namespace
	}
	return cmp.Or(k.c.Namespace, defaultNamespace)
}

// Kip is what is known of the Kip that First has found, for the checks of its account.
func (k *installation) Kip(ctx context.Context) (kip finding.Kip) {
	if len(k.own) > 0 {
		kip.Owner = k.own[0].Labels[apiv1.LabelController]
	}
	if len(k.pods) == 0 {
		return kip
	}
	p := &k.pods[0]
	kip.Ask = fmt.Sprintf("kubectl exec -n %s %s -c %s -- /kipctl doctor --account -f /etc/kip/config/provider.yaml", p.Namespace, p.Name, kipContainer)
	if kip.Owner != "" {
		kip.Ask += " --controller " + kip.Owner
	}
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	account, err := k.c.Cluster.Kube.CoreV1().ServiceAccounts(p.Namespace).Get(ctx, p.Spec.ServiceAccountName, metav1.GetOptions{})
	if err == nil { // else its role is not known
		kip.Role = account.Annotations[wellknown.RoleAnnotation]
	}
	return kip
}

// room says whether Kip's pod finds a node.
func (k *installation) room() []finding.Finding {
	for _, n := range k.nodes {
		if !n.Spec.Unschedulable && readyOf(&n) == corev1.ConditionTrue {
			return one(finding.Fine("Kip is not here yet: of %d nodes %s is Ready for its pod", len(k.nodes), n.Name))
		}
	}
	switch {
	case k.auto():
		return one(finding.Fine("Kip is not here yet: EKS Auto Mode makes a node for its pod"))
	case k.eks():
		return one(finding.Fail("eksctl create nodegroup --region "+k.region()+" --cluster "+k.clusterName()+" --nodes 1",
			"no node is Ready for Kip's pod: the cluster has %d nodes", len(k.nodes)))
	}
	return one(finding.Fail("kubectl get nodes # then add one, or kubectl uncordon NODE",
		"no node is Ready for Kip's pod: the cluster has %d nodes", len(k.nodes)))
}

// eks reports whether the cluster is one of EKS. Its versions are like v1.33.5-eks-113cf36 (EKS User Guide, "platform versions").
func (k *installation) eks() bool {
	return strings.Contains(k.server.GitVersion, "-eks-") || eksRegion(k.c.Cluster.Host) != ""
}

// auto reports whether nodes of EKS Auto Mode are here. There may be others, too.
func (k *installation) auto() bool {
	return slices.ContainsFunc(k.nodes, func(n corev1.Node) bool { return wellknown.OnAuto(&n) })
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
func (k *installation) region() string {
	own := ""
	if k.c.Provider != nil && k.c.Provider.Cloud.AWS != nil {
		own = k.c.Provider.Cloud.AWS.Region
	}
	return cmp.Or(eksRegion(k.c.Cluster.Host), own, "REGION")
}

// clusterName is that of the cluster at EKS, or what stands for it in a command.
func (k *installation) clusterName() string {
	for _, n := range k.nodes {
		if name := n.Labels["alpha.eksctl.io/cluster-name"]; name != "" { // on the nodes of eksctl's clusters
			return name
		}
	}
	if k.c.Provider != nil && k.c.Provider.Cloud.AWS != nil {
		return cmp.Or(k.c.Provider.Cloud.AWS.ClusterName, "CLUSTER")
	}
	return "CLUSTER"
}

// instanceID is the form of EC2's. A node may say anything of itself, and a shell reads it.
var instanceID = regexp.MustCompile(`^i-[0-9a-f]+$`)

// nodeGroup is the security group of the node of Kip's pod, as a shell finds it; else what stands for it in a command. Of several groups it
// is the first.
func (k *installation) nodeGroup() string {
	if len(k.pods) > 0 {
		n := slices.IndexFunc(k.nodes, func(n corev1.Node) bool { return n.Name == k.pods[0].Spec.NodeName })
		if n >= 0 {
			// aws:///ZONE/INSTANCE. Source: cloud-provider-aws, pkg/providers/v1/instances.go.
			if _, instance, is := cutLast(k.nodes[n].Spec.ProviderID, "/"); is && instanceID.MatchString(instance) {
				return fmt.Sprintf("$(aws ec2 describe-instances --region %s --instance-ids %s --query "+
					"'Reservations[0].Instances[0].SecurityGroups[0].GroupId' --output text)", k.region(), instance)
			}
		}
	}
	return "GROUP-OF-THE-NODES"
}

// annotationRelease is on what Helm has installed, with the name of its release.
const annotationRelease = "meta.helm.sh/release-name"

// findRelease asks the owner of Kip's pod whether Helm has installed it. Without an answer nothing is printed that needs Helm.
func (k *installation) findRelease(ctx context.Context) {
	if len(k.pods) == 0 {
		return
	}
	apps := k.c.Cluster.Kube.AppsV1()
	kind, name, _ := strings.Cut(ownerOf(&k.pods[0]), "/")
	switch kind {
	case "statefulset":
		if set, err := apps.StatefulSets(k.pods[0].Namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
			k.release = set.Annotations[annotationRelease]
		}
	case "deployment":
		if deployment, err := apps.Deployments(k.pods[0].Namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
			k.release = deployment.Annotations[annotationRelease]
		}
	}
}

// findKip is the command that shows where Kip is installed.
const findKip = "kubectl get statefulset,deployment -A -l app.kubernetes.io/name=kip"

// set is the command that sets values of Kip's chart, or does the same for a Kip that Helm has not installed.
func (k *installation) set(values ...string) string {
	var sets string
	for _, v := range values {
		sets += " --set " + v
	}
	asChart := ""
	if len(values) > 0 {
		asChart = " # change first what the values " + strings.Join(values, " and ") + " of the chart change"
	}
	switch {
	case len(k.pods) == 0 && (k.Installed() || !k.looked):
		return findKip + asChart
	case len(k.pods) == 0:
		return fmt.Sprintf("helm install kip deploy/helm/kip --namespace %s --create-namespace --values values.yaml%s", k.Namespace(), sets)
	case k.release != "":
		return fmt.Sprintf("helm upgrade %s deploy/helm/kip --namespace %s --reuse-values%s", k.release, k.Namespace(), sets)
	case k.eks():
		return "./kustomize/deploy.sh" + asChart
	}
	return "kubectl apply -k deploy/manifests/kip/overlays/OVERLAY" + asChart
}

// setSigner is the command that has Kip request the certificate of its kubelet port from a signer.
func (k *installation) setSigner(signer string) string {
	if len(k.pods) > 0 && k.release == "" {
		return fmt.Sprintf("kubectl edit configmap -n %s %s # in provider.yaml set servingCertificate.signerName: %s; docs/serving-certificates.md has the "+
			"rights that it needs", k.Namespace(), cmp.Or(configMapOf(&k.pods[0]), "NAME"), signer)
	}
	return k.set("servingCertificate.source=csr", "servingCertificate.signerName="+signer)
}

// addArgument is the command that adds an argument to Kip's. A --set of extraArgs would replace the others.
func (k *installation) addArgument(arg string) string {
	switch {
	case len(k.pods) == 0 && (k.Installed() || !k.looked):
		return findKip + " # then add " + arg + " to its arguments"
	case len(k.pods) == 0:
		return k.set() + " # after you have added " + arg + " to extraArgs in values.yaml"
	case k.release != "":
		return fmt.Sprintf("helm get values %s --namespace %s --output yaml > values.yaml # add %s to extraArgs in it, then: "+
			"helm upgrade %s deploy/helm/kip --namespace %s --values values.yaml", k.release, k.Namespace(), arg, k.release, k.Namespace())
	}
	return fmt.Sprintf("kubectl edit -n %s %s # add %s to the args of container %s", k.Namespace(), ownerOf(&k.pods[0]), arg, kipContainer)
}

// editProvider is the command that corrects what a key of provider.yaml says.
func (k *installation) editProvider(key string) string { return k.changeProvider("correct", key) }

// changeProvider is the command by which somebody does something to a key of provider.yaml.
func (k *installation) changeProvider(do, key string) string {
	switch {
	case len(k.pods) == 0:
		return findKip + " # then " + do + " " + key + " in its provider.yaml"
	case k.release != "":
		return fmt.Sprintf("helm get values %s --namespace %s --output yaml > values.yaml # %s config.%s in it, then: "+
			"helm upgrade %s deploy/helm/kip --namespace %s --values values.yaml", k.release, k.Namespace(), do, key, k.release, k.Namespace())
	}
	return fmt.Sprintf("kubectl edit configmap -n %s %s # %s %s in provider.yaml, then: kubectl rollout restart -n %s %s", k.Namespace(),
		cmp.Or(configMapOf(&k.pods[0]), "NAME"), do, key, k.Namespace(), ownerOf(&k.pods[0]))
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

// restore is the command that makes what was installed with Kip as it was. Helm 4 applies by server-side apply, and then refuses to change
// what somebody else has changed.
func (k *installation) restore() string {
	if k.release != "" && len(k.pods) > 0 {
		return k.set() + " --force-conflicts # Helm 3 does so without this flag"
	}
	return k.set()
}

// errNoConfiguration says that Kip's pod names no ConfigMap with its configuration.
var errNoConfiguration = errors.New("no pod of Kip has a ConfigMap with provider.yaml")

// ProviderYAML reads Kip's provider.yaml from the ConfigMap that its pod mounts.
func (k *installation) ProviderYAML(ctx context.Context) (name string, data []byte, err error) {
	for _, p := range k.pods {
		for _, v := range p.Spec.Volumes {
			if v.ConfigMap == nil {
				continue
			}
			found, err := k.c.Cluster.Kube.CoreV1().ConfigMaps(p.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
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
