package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/version"
)

const (
	// oldest is the first minor version that Kip's policies and webhooks work with, and oldestTried the first that Kip ran beside:
	// docs/install.md.
	oldest, oldestTried = 30, 33
	// kubeletsLag is how many minor versions a kubelet may be older than its API server (Kubernetes, "Version Skew Policy").
	kubeletsLag = 3
)

func minorOf(v string) (int, error) {
	parts := strings.Split(strings.TrimPrefix(v, "v"), ".")
	if len(parts) < 2 || parts[0] != "1" {
		return 0, fmt.Errorf("%q is no version of Kubernetes 1", v)
	}
	return strconv.Atoi(parts[1])
}

// needs checks what Kip needs of a cluster.
type needs struct{ *installation }

// version compares the API server's with what Kip works with.
func (k needs) version(context.Context) []finding.Finding {
	has := k.server.GitVersion
	minor, err := minorOf(has)
	if err != nil {
		return one(finding.Unchecked("%v", err))
	}
	own, err := minorOf(version.Kubernetes)
	if err != nil {
		return one(finding.Unchecked("%v", err))
	}
	cure := "kubeadm upgrade plan # or as your cluster's provider upgrades it"
	if k.eks() {
		cure = fmt.Sprintf("aws eks update-cluster-version --region %s --name %s --kubernetes-version 1.%d", k.region(), k.clusterName(),
			max(oldest, minor+1))
	}
	switch {
	case minor < oldest:
		return one(finding.Fail(cure, "the API server is %s: Kip needs Kubernetes 1.%d or later", has, oldest))
	case minor > own+kubeletsLag:
		return one(finding.Fail(k.set()+" # of a newer release of Kip",
			"the API server is %s, and the kubelets of cells are %s: they may be %d minor versions older", has, version.Kubernetes, kubeletsLag))
	case minor < oldestTried || minor > own:
		return one(finding.Warn(cure, "the API server is %s: Kip ran beside 1.%d to 1.%d", has, oldestTried, own))
	}
	return one(finding.Fine("the API server is %s", has))
}

// admission says whether the API server has what Kip's policies and its webhook need.
func (k needs) admission(context.Context) []finding.Finding {
	const group = "admissionregistration.k8s.io/v1"
	list, err := k.c.Cluster.Kube.Discovery().ServerResourcesForGroupVersion(group)
	if err != nil {
		return one(unasked("list what the API server has of "+group, err))
	}
	var found []finding.Finding
	for _, need := range []struct{ resource, value, loses string }{
		{"validatingadmissionpolicies", "policies.enabled=false", "nothing bounds what RBAC cannot: what Kip writes, and who deletes its nodes"},
		{"mutatingwebhookconfigurations", "webhook.enabled=false", "pods need the toleration of Kip's nodes themselves"},
	} {
		if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == need.resource }) {
			found = append(found, finding.Fail(k.set(need.value), "the API server does not serve %s of %s. Kip can do without: then %s",
				need.resource, group, need.loses))
		}
	}
	if found == nil {
		found = one(finding.Fine("the API server serves admission policies and webhooks"))
	}
	return found
}

// family refuses a cluster of IPv6 alone.
func (k needs) family(ctx context.Context) []finding.Finding {
	s, err := k.c.Cluster.Kube.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return one(unasked("read the Service default/kubernetes", err))
	}
	ips := s.Spec.ClusterIPs
	if len(ips) == 0 && s.Spec.ClusterIP != "" {
		ips = []string{s.Spec.ClusterIP}
	}
	for _, text := range ips {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() {
			return one(finding.Fine("Services have IPv4 addresses, such as %s", ip))
		}
	}
	if len(ips) == 0 {
		return one(finding.Unchecked("the Service default/kubernetes has no address"))
	}
	cure := "kubeadm init --service-cidr 10.96.0.0/16,fd00:10:96::/112 # a cluster that has IPv4, too"
	if k.eks() { // whose family is chosen when a cluster is made. Source: EKS API reference, "KubernetesNetworkConfigRequest"
		cure = "eksctl create cluster --region " + k.region() + " --name CLUSTER # without kubernetesNetworkConfig.ipFamily: IPv6"
	}
	return one(finding.Fail(cure, "the cluster has IPv6 alone (%s): cells have IPv4, or both, and reach no Service of it. Kip does not run in such clusters",
		ips[0]))
}

// dns finds the Service that Kip's pods ask.
func (k needs) dns(ctx context.Context) []finding.Finding {
	s, err := k.c.Cluster.Kube.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
	switch {
	case err == nil:
		return one(finding.Fine("the cluster's DNS is %s, Service kube-system/kube-dns", s.Spec.ClusterIP))
	case !apierrors.IsNotFound(err):
		return one(unasked("read the Service kube-system/kube-dns", err))
	}
	for _, p := range k.pods {
		for _, c := range p.Spec.Containers {
			for _, arg := range c.Args {
				if at, is := strings.CutPrefix(arg, "--cluster-dns="); is && c.Name == kipContainer {
					return one(finding.Fine("the cluster's DNS is %s, as Kip is told by --cluster-dns", at))
				}
			}
		}
	}
	services, err := k.c.Cluster.Kube.CoreV1().Services("kube-system").List(ctx, metav1.ListOptions{LabelSelector: wellknown.DNSLabel})
	if err != nil {
		return one(unasked("list the Services of the cluster's DNS", err))
	}
	for _, s := range services.Items {
		at := s.Spec.ClusterIP
		if at == "" || at == corev1.ClusterIPNone {
			continue
		}
		const found = "the cluster's DNS is %s, Service kube-system/%s, which Kip does not find by itself"
		if k.eks() && !k.Installed() {
			return one(finding.Warn(k.addArgument("--cluster-dns="+at), found+": ./kustomize/deploy.sh tells Kip the address, and the chart needs it as an argument",
				at, s.Name))
		}
		return one(finding.Fail(k.addArgument("--cluster-dns="+at), found+": pods on cells find no Service by its name", at, s.Name))
	}
	if k.eks() {
		// Auto Mode runs CoreDNS on each of its own nodes, as a service of the system, so that there is none to reach from elsewhere.
		// Source: EKS User Guide, "Learn about VPC Networking and Load Balancing in EKS Auto Mode".
		which := "this cluster of EKS"
		if k.auto() {
			which = "EKS Auto Mode, which answers DNS on its own nodes only,"
		}
		cure := wellknown.CreateAddon(k.region(), k.clusterName(), "coredns")
		return one(finding.Fail(cure, "there is no Service kube-system/kube-dns: %s has no DNS that cells reach, so pods on cells find no Service by its name", which))
	}
	return one(finding.Fail(k.addArgument("--cluster-dns=ADDRESS"),
		"there is no Service kube-system/kube-dns: pods on cells find no Service by its name. If the cluster's DNS has another name, tell Kip its address"))
}
