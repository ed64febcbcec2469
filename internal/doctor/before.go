package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/eks/disks"
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

// version compares the API server's with what Kip works with.
func (d *Doctor) version(context.Context) []finding.Finding {
	has := d.server.GitVersion
	minor, err := minorOf(has)
	if err != nil {
		return one(finding.Unchecked("%v", err))
	}
	own, err := minorOf(version.Kubernetes)
	if err != nil {
		return one(finding.Unchecked("%v", err))
	}
	cure := "kubeadm upgrade plan # or as your cluster's provider upgrades it"
	if d.eks() {
		cure = fmt.Sprintf("aws eks update-cluster-version --region %s --name %s --kubernetes-version 1.%d", d.region(), d.clusterName(),
			max(oldest, minor+1))
	}
	switch {
	case minor < oldest:
		return one(finding.Fail(cure, "the API server is %s: Kip needs Kubernetes 1.%d or later", has, oldest))
	case minor > own+kubeletsLag:
		return one(finding.Fail(d.set()+" # of a newer release of Kip",
			"the API server is %s, and the kubelets of cells are %s: they may be %d minor versions older", has, version.Kubernetes, kubeletsLag))
	case minor < oldestTried || minor > own:
		return one(finding.Warn(cure, "the API server is %s: Kip ran beside 1.%d to 1.%d", has, oldestTried, own))
	}
	return one(finding.Fine("the API server is %s", has))
}

// admission says whether the API server has what Kip's policies and its webhook need.
func (d *Doctor) admission(context.Context) []finding.Finding {
	const group = "admissionregistration.k8s.io/v1"
	list, err := d.c.Cluster.Kube.Discovery().ServerResourcesForGroupVersion(group)
	if err != nil {
		return one(unasked("list what the API server has of "+group, err))
	}
	var found []finding.Finding
	for _, need := range []struct{ resource, value, loses string }{
		{"validatingadmissionpolicies", "policies.enabled=false", "nothing bounds what RBAC cannot: what Kip writes, and who deletes its nodes"},
		{"mutatingwebhookconfigurations", "webhook.enabled=false", "pods need the toleration of Kip's nodes themselves"},
	} {
		if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == need.resource }) {
			found = append(found, finding.Fail(d.set(need.value), "the API server does not serve %s of %s. Kip can do without: then %s",
				need.resource, group, need.loses))
		}
	}
	if found == nil {
		found = one(finding.Fine("the API server serves admission policies and webhooks"))
	}
	return found
}

// family refuses a cluster of IPv6 alone.
func (d *Doctor) family(ctx context.Context) []finding.Finding {
	s, err := d.c.Cluster.Kube.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
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
	if d.eks() { // whose family is chosen when a cluster is made. Source: EKS API reference, "KubernetesNetworkConfigRequest"
		cure = "eksctl create cluster --region " + d.region() + " --name CLUSTER # without kubernetesNetworkConfig.ipFamily: IPv6"
	}
	return one(finding.Fail(cure, "the cluster has IPv6 alone (%s): cells have IPv4, or both, and reach no Service of it. Kip does not run in such clusters",
		ips[0]))
}

// dns finds the Service that Kip's pods ask.
func (d *Doctor) dns(ctx context.Context) []finding.Finding {
	s, err := d.c.Cluster.Kube.CoreV1().Services("kube-system").Get(ctx, "kube-dns", metav1.GetOptions{})
	switch {
	case err == nil:
		return one(finding.Fine("the cluster's DNS is %s, Service kube-system/kube-dns", s.Spec.ClusterIP))
	case !apierrors.IsNotFound(err):
		return one(unasked("read the Service kube-system/kube-dns", err))
	}
	for _, p := range d.pods {
		for _, c := range p.Spec.Containers {
			for _, arg := range c.Args {
				if at, is := strings.CutPrefix(arg, "--cluster-dns="); is && c.Name == kipContainer {
					return one(finding.Fine("the cluster's DNS is %s, as Kip is told by --cluster-dns", at))
				}
			}
		}
	}
	services, err := d.c.Cluster.Kube.CoreV1().Services("kube-system").List(ctx, metav1.ListOptions{LabelSelector: wellknown.DNSLabel})
	if err != nil {
		return one(unasked("list the Services of the cluster's DNS", err))
	}
	for _, s := range services.Items {
		at := s.Spec.ClusterIP
		if at == "" || at == corev1.ClusterIPNone {
			continue
		}
		const found = "the cluster's DNS is %s, Service kube-system/%s, which Kip does not find by itself"
		if d.eks() && !d.Installed() {
			return one(finding.Warn(d.addArgument("--cluster-dns="+at), found+": ./kustomize/deploy.sh tells Kip the address, and the chart needs it as an argument",
				at, s.Name))
		}
		return one(finding.Fail(d.addArgument("--cluster-dns="+at), found+": pods on cells find no Service by its name", at, s.Name))
	}
	if d.eks() {
		// Auto Mode runs CoreDNS on each of its own nodes, as a service of the system, so that there is none to reach from elsewhere.
		// Source: EKS User Guide, "Learn about VPC Networking and Load Balancing in EKS Auto Mode".
		which := "this cluster of EKS"
		if d.auto() {
			which = "EKS Auto Mode, which answers DNS on its own nodes only,"
		}
		cure := wellknown.CreateAddon(d.region(), d.clusterName(), "coredns")
		return one(finding.Fail(cure, "there is no Service kube-system/kube-dns: %s has no DNS that cells reach, so pods on cells find no Service by its name", which))
	}
	return one(finding.Fail(d.addArgument("--cluster-dns=ADDRESS"),
		"there is no Service kube-system/kube-dns: pods on cells find no Service by its name. If the cluster's DNS has another name, tell Kip its address"))
}

// addDriver is the command that gives a cluster of EKS a driver for the claim of Kip's store, and a default StorageClass.
func (d *Doctor) addDriver(ctx context.Context, has disks.Disks) (string, error) {
	driver, err := has.Driver(ctx)
	if err != nil || driver != "" {
		return `echo '{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"kip-store","annotations":{"` + wellknown.DefaultClass +
			`":"true"}},"provisioner":"` + driver + `","volumeBindingMode":"WaitForFirstConsumer"}' | kubectl apply -f -`, err
	}
	return wellknown.CreateEBSDriver(d.region(), d.clusterName(), "ACCOUNT"), nil
}

// noDriver is the finding for a cluster of EKS whose claim of Kip's store gets no volume.
func (d *Doctor) noDriver(ctx context.Context, has disks.Disks, format string, args ...any) []finding.Finding {
	cure, err := d.addDriver(ctx, has)
	if err != nil {
		return one(unasked(lookForDriver, err))
	}
	return one(finding.Fail(cure, format, args...))
}

// lookForDriver is what is asked about drivers.
const lookForDriver = "look for the driver of disks"

// disks names StorageClasses whose volumes pods on cells cannot have, as those of EKS Auto Mode.
func (d *Doctor) disks(ctx context.Context) []finding.Finding {
	list, err := d.c.Cluster.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return one(unasked("list the StorageClasses", err))
	}
	var found []finding.Finding
	for _, s := range list.Items {
		if s.Provisioner == wellknown.AutoDriver {
			found = append(found, finding.Warn("kubectl get storageclass kip # name it in the claims of pods on cells",
				"StorageClass %s is of EKS Auto Mode: no cell gets its disks, so pods with such claims wait on Kip's nodes", s.Name))
		}
	}
	if found == nil {
		found = one(finding.Fine("no StorageClass is of EKS Auto Mode, whose disks no cell gets"))
	}
	return found
}

// classOf chooses the StorageClass of the claim of Kip's store among several: the only one, on EKS one of a driver that is there, else the
// reader chooses.
func (d *Doctor) classOf(ctx context.Context, has disks.Disks, names []string) (string, error) {
	if d.eks() {
		usable, err := has.Usable(ctx, "")
		switch {
		case err != nil:
			return "", err
		case usable != nil:
			return usable.Name, nil
		}
	}
	if len(names) == 1 {
		return names[0], nil
	}
	return "NAME", nil
}

// useClass is the command that has the claim of Kip's store be of a StorageClass. A claim that is there and has no class takes one. Source:
// Kubernetes, pkg/apis/core/validation, validateStorageClassUpgradeFromNil.
func (d *Doctor) useClass(class string) string {
	if len(d.pods) == 0 {
		return d.set("persistence.storageClassName=" + class)
	}
	claim := "CLAIM"
	for _, v := range d.pods[0].Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			claim = v.PersistentVolumeClaim.ClaimName
		}
	}
	return fmt.Sprintf(`kubectl patch pvc -n %s %s -p '{"spec":{"storageClassName":"%s"}}'`, d.Namespace(), claim, class)
}

// storageClass says whether the claim of Kip's store gets a volume.
func (d *Doctor) storageClass(ctx context.Context) []finding.Finding {
	if d.c.Provider != nil && len(d.c.Provider.Etcd.Client.Endpoints) > 0 {
		return one(finding.Fine("Kip's store is an etcd of yours: it needs no claim"))
	}
	for i := range d.pods {
		if ofKipPod(&d.pods[i]).Outcome == finding.OK {
			return one(finding.Fine("Kip's pod %s is Ready, so its store has its volume", d.pods[i].Name))
		}
	}
	if !d.looked {
		return one(finding.Unchecked("whether the claim of Kip's store gets a volume: it is not known whether Kip is here"))
	}
	has, err := disks.Find(ctx, d.c.Cluster.Kube, d.auto())
	if err != nil {
		return one(unasked(lookForDriver, err))
	}
	if has.Default != nil {
		return d.driver(ctx, has)
	}
	return d.noDefault(ctx, has)
}

// noDefault says what a cluster without a default StorageClass lacks.
func (d *Doctor) noDefault(ctx context.Context, has disks.Disks) []finding.Finding {
	// One of Kip's own has disks that only cells have: Kip's pod is on an ordinary node.
	var others []string
	driven := false // by a driver that is there
	for _, s := range has.Classes {
		if s.Provisioner == "disk.kip.elotl.co" {
			continue
		}
		others = append(others, s.Name)
		if d.eks() && !driven {
			var err error
			if driven, err = has.Has(ctx, s.Provisioner); err != nil {
				return one(unasked(lookForDriver, err))
			}
		}
	}
	switch {
	case len(others) > 0 && d.eks() && !driven:
		return d.noDriver(ctx, has, "the cluster has no default StorageClass, and the driver of none of %s: the claim of Kip's store gets no volume",
			orNone(others))
	case len(others) > 0:
		class, err := d.classOf(ctx, has, others)
		if err != nil {
			return one(unasked(lookForDriver, err))
		}
		return one(finding.Fail(d.useClass(class),
			"the cluster has no default StorageClass, so the claim of Kip's store gets no volume, unless persistence.storageClassName names one of %s",
			orNone(others)))
	case d.eks():
		return d.noDriver(ctx, has, "the cluster has no StorageClass: the claim of Kip's store gets no volume")
	}
	return one(finding.Fail("kubectl apply -f storageclass.yaml # a StorageClass of your cluster's driver; or an etcd of yours: config.etcd.client",
		"the cluster has no StorageClass: the claim of Kip's store gets no volume"))
}

// driver says whether the cluster has the driver of its default StorageClass, and whether that has a role.
func (d *Doctor) driver(ctx context.Context, has disks.Disks) []finding.Finding {
	usual, driver := has.Default, disks.DriverOf(has.Default.Provisioner)
	if strings.HasPrefix(driver, "kubernetes.io/") {
		return one(finding.Unchecked("the default StorageClass %s is of %s, of which no CSIDriver tells whether it is here", usual.Name, driver))
	}
	if driver == wellknown.EBSDriver {
		switch is, err := has.Has(ctx, driver); {
		case err != nil:
			return one(unasked(lookForDriver, err))
		case !is:
			return d.noDriver(ctx, has, "the default StorageClass %s is of %s, and the cluster does not have the driver %s: the claim of Kip's store "+
				"gets no volume", usual.Name, usual.Provisioner, driver)
		}
	}
	found := one(finding.Fine("the default StorageClass is %s, of %s", usual.Name, usual.Provisioner))
	if driver != wellknown.EBSDriver || !d.eks() {
		return found
	}
	role, err := disks.Role(ctx, d.c.Cluster.Kube)
	if role != "" {
		return append(found, finding.Fine("the driver %s has its role by %s", driver, role))
	}
	unknown := finding.Unchecked("whether the driver %s has its role, without which the claim of Kip's store gets no volume", driver)
	if err != nil {
		unknown.Message += ": " + err.Error()
	}
	unknown.Cure = wellknown.ShowEBSDriver(d.region(), d.clusterName())
	return append(found, unknown)
}

// made are the kinds of what Kip's chart makes: group, resource and whether it is in Kip's namespace.
var made = []struct {
	group, resource string
	namespaced      bool
}{
	{"", "namespaces", false}, {"", "serviceaccounts", true}, {"", "configmaps", true}, {"", "secrets", true}, {"", "services", true},
	{"apps", "statefulsets", true}, {"apps", "deployments", true}, {"batch", "jobs", true}, {"policy", "poddisruptionbudgets", true},
	{rbacv1.GroupName, "roles", true}, {rbacv1.GroupName, "rolebindings", true},
	{rbacv1.GroupName, "clusterroles", false}, {rbacv1.GroupName, "clusterrolebindings", false},
	{"admissionregistration.k8s.io", "mutatingwebhookconfigurations", false},
	{"admissionregistration.k8s.io", "validatingadmissionpolicies", false},
	{"admissionregistration.k8s.io", "validatingadmissionpolicybindings", false},
	{"storage.k8s.io", "storageclasses", false}, {"apiextensions.k8s.io", "customresourcedefinitions", false},
}

// rights says whether the user may install Kip.
func (d *Doctor) rights(ctx context.Context) []finding.Finding {
	var lacks []string
	for _, m := range made {
		asked := authorizationv1.ResourceAttributes{Verb: "create", Group: m.group, Resource: m.resource}
		if m.namespaced {
			asked.Namespace = d.Namespace()
		}
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &asked}}
		answer, err := d.c.Cluster.Kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return one(unasked("ask what you may do", err))
		}
		if !answer.Status.Allowed {
			lacks = append(lacks, strings.TrimSuffix(m.resource+"."+m.group, "."))
		}
	}
	if user := d.user(ctx); len(lacks) > 0 && !d.looked && strings.HasPrefix(user, "system:serviceaccount:") { // such as Kip itself
		return one(finding.Unchecked("whether you may install Kip: you are %s, and may not create %s", user, strings.Join(lacks, ", ")))
	}
	if len(lacks) > 0 && !d.looked {
		return one(finding.Warn(d.makeAdmin(ctx), "you may not create %s, so you cannot install Kip into namespace %s, if it is not here already",
			strings.Join(lacks, ", "), d.Namespace()))
	}
	if len(lacks) > 0 {
		return one(finding.Fail(d.makeAdmin(ctx), "you may not create %s, so you cannot install Kip into namespace %s", strings.Join(lacks, ", "),
			d.Namespace()))
	}
	return one(finding.Fine("you may create all that Kip's chart makes in namespace %s and in the cluster", d.Namespace()))
}

// makeAdmin is the command by which somebody who may gives the user the rights to install Kip.
func (d *Doctor) makeAdmin(ctx context.Context) string {
	return "kubectl create clusterrolebinding kip-installer --clusterrole=cluster-admin --user='" + d.user(ctx) + "' # as somebody who may"
}

// user is who asks, or what stands for him in a command.
func (d *Doctor) user(ctx context.Context) string {
	reviews := d.c.Cluster.Kube.AuthenticationV1().SelfSubjectReviews()
	answer, err := reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err == nil && answer.Status.UserInfo.Username != "" { // else the reader knows
		return answer.Status.UserInfo.Username
	}
	return "USER"
}

// roles says by a dry run whether the user may give Kip its rights. An access review does not tell: the API server lets nobody give
// what he does not have.
func (d *Doctor) roles(ctx context.Context) []finding.Finding {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "kip-doctor-dry-run"},
		Rules: []rbacv1.PolicyRule{ // the strongest of deploy/helm/kip/templates/rbac.yaml
			{APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{"system:node:kip-0"}, Verbs: []string{"impersonate"}},
			{APIGroups: []string{""}, Resources: []string{"groups"}, ResourceNames: []string{"system:nodes"}, Verbs: []string{"impersonate"}},
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"create"}},
		},
	}
	_, err := d.c.Cluster.Kube.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return one(finding.Fine("you may give Kip its rights (a dry run)"))
	case apierrors.IsForbidden(err):
		return one(finding.Fail(d.makeAdmin(ctx), "you may not give Kip its rights (a dry run): %v", err))
	}
	return one(unasked("dry-run the creation of a ClusterRole", err))
}

// signer says what an API server that verifies kubelets needs.
func (d *Doctor) signer(context.Context) []finding.Finding {
	if !d.eks() {
		return one(finding.Unchecked("whether the API server takes Kip's own certificate for its kubelet port: kubectl logs shows it after the installation. " +
			"See docs/serving-certificates.md"))
	}
	if d.c.Provider != nil && d.c.Provider.ServingCertificate.SignerName != "" {
		return one(finding.Fine("provider.yaml names the signer %s", d.c.Provider.ServingCertificate.SignerName))
	}
	return one(finding.Warn(d.setSigner(wellknown.ServingSigner),
		"EKS verifies the certificates of kubelets: without a signer kubectl logs and exec fail for pods on cells, unless the chart's values name one"))
}
