package eks

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud/aws/eks"
	"github.com/elotl/kip/internal/crd"
	"github.com/elotl/kip/internal/eks/disks"
	"github.com/elotl/kip/internal/eks/wellknown"
	"sigs.k8s.io/yaml"
)

// Kubernetes is the API of the cluster that the kubeconfig names.
type Kubernetes struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	CRDs    apiextensionsclient.CustomResourceDefinitionInterface
	// Host and CA are the API server's URL, and the certificate that the kubeconfig has for it, PEM.
	Host string
	CA   []byte
}

// oldest is the oldest Kubernetes that has what Kip's manifests use: docs/install.md.
var oldest = version.MustParseGeneric("1.30")

// sameCluster says that the kubeconfig is of another cluster. Each cluster of EKS has a CA of its own, so that a tunnel to a private
// endpoint is recognised by it.
func (k *Kubernetes) sameCluster(c eks.Cluster, region string) error {
	host := func(text string) string {
		if at, err := url.Parse(text); err == nil && at.Host != "" {
			return strings.ToLower(at.Hostname())
		}
		return strings.ToLower(text)
	}
	block, _ := pem.Decode(k.CA)
	its, _ := pem.Decode(c.CA)
	if host(k.Host) == host(c.Endpoint) || block != nil && its != nil && bytes.Equal(block.Bytes, its.Bytes) {
		return nil
	}
	what := ""
	if !strings.HasSuffix(host(k.Host), ".eks.amazonaws.com") && !strings.HasSuffix(host(k.Host), ".eks.amazonaws.com.cn") {
		what = ", which is no cluster of EKS"
	}
	return fmt.Errorf("the kubeconfig is for %s%s, and the API server of EKS cluster %s is %s: aws eks update-kubeconfig --name %s "+
		"--region %s",
		k.Host, what, c.Name, c.Endpoint, c.Name, region)
}

// reach asks the API server for its version, and says why it does not answer.
func (k *Kubernetes) reach(c eks.Cluster, region string) error {
	v, err := k.Client.Discovery().ServerVersion()
	_, unknown := errors.AsType[*net.DNSError](err)
	unreached, ok := errors.AsType[net.Error](err)
	switch {
	case err == nil:
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server of cluster %s does not know you: renew the kubeconfig (aws eks update-kubeconfig --name %s "+
			"--region %s), "+
			"and give your role or user access to the cluster (aws eks create-access-entry): %w", c.Name, c.Name, region, err)
	case !c.Public && (unknown || ok && unreached != nil):
		return fmt.Errorf("the API server of cluster %s has a private endpoint alone (endpointPublicAccess is false), and this machine does "+
			"not reach it: "+
			"run this in the cluster's VPC %s, or through its VPN or bastion: %w", c.Name, c.VPC, err)
	case ok && unreached != nil && len(c.PublicFrom) > 0:
		return fmt.Errorf("the API server of cluster %s lets in %s alone (publicAccessCidrs), and does not answer this machine: run this there, or "+
			"add the address of this machine: aws eks update-cluster-config --region %s --name %s --resources-vpc-config "+
			"publicAccessCidrs=%s,ADDRESS/32: %w", c.Name, strings.Join(c.PublicFrom, ", "), region, c.Name, strings.Join(c.PublicFrom, ","), err)
	default:
		return fmt.Errorf("ask the API server %s of cluster %s for its version: %w", k.Host, c.Name, err)
	}
	// Some add to the minor version, as in 30+; a build of one's own has none.
	if has, err := version.ParseGeneric(v.Major + "." + strings.TrimRight(v.Minor, "+")); err == nil && has.LessThan(oldest) {
		return fmt.Errorf("cluster %s has Kubernetes %s: Kip needs 1.30 or later; update the cluster", c.Name, v.GitVersion)
	}
	return nil
}

// findDNS returns the address of the cluster's DNS if Kip does not find it by itself, "" if it does. Source for Auto Mode: EKS User
// Guide, "How EKS Auto Mode works", networking: DNS runs on each node of Auto Mode as a service of the machine, which no cell is.
func (k *Kubernetes) findDNS(ctx context.Context, c eks.Cluster, region string) (string, error) {
	services := k.Client.CoreV1().Services(metav1.NamespaceSystem)
	_, err := services.Get(ctx, "kube-dns", metav1.GetOptions{})
	if err == nil {
		return "", nil
	}
	if !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("get the Service kube-system/kube-dns: %w", err)
	}
	others, err := services.List(ctx, metav1.ListOptions{LabelSelector: wellknown.DNSLabel})
	if err != nil {
		return "", fmt.Errorf("list the Services of the cluster's DNS: %w", err)
	}
	for _, s := range others.Items {
		if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone {
			return s.Spec.ClusterIP, nil
		}
	}
	why := "the cluster has no Service kube-system/kube-dns"
	if c.Auto {
		why = "the cluster is in Auto Mode, whose DNS serves the pods of its own nodes alone"
	}
	return "", fmt.Errorf("%s: pods on cells would resolve no name of the cluster: %s", why, wellknown.CreateAddon(region, c.Name, "coredns"))
}

// findPodIdentityAgent returns an error if nobody would give Kip's pod its role. A cluster in Auto Mode may have other nodes, too.
func (k *Kubernetes) findPodIdentityAgent(ctx context.Context, c eks.Cluster, region string) error {
	if c.Auto {
		nodes, err := k.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list the nodes, of which those of Auto Mode have an EKS Pod Identity agent: %w", err)
		}
		if !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool {
			return !wellknown.OnAuto(&n) && n.Labels[apiv1.LabelController] == ""
		}) {
			return nil
		}
	}
	set, err := k.Client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, wellknown.PodIdentityAgent, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the service account of Kip has its role by EKS Pod Identity, and the cluster has no DaemonSet kube-system/%s: %s",
			wellknown.PodIdentityAgent, wellknown.CreateAddon(region, c.Name, wellknown.PodIdentityAgent))
	case err != nil:
		return fmt.Errorf("get the DaemonSet kube-system/%s: %w", wellknown.PodIdentityAgent, err)
	case set.Status.DesiredNumberScheduled > 0 && set.Status.NumberReady == 0:
		return fmt.Errorf("the service account of Kip has its role by EKS Pod Identity, and no pod of the DaemonSet kube-system/%s is Ready, of %d: "+
			"fix what this shows: kubectl --namespace kube-system describe pods --selector %s", wellknown.PodIdentityAgent,
			set.Status.DesiredNumberScheduled, metav1.FormatLabelSelector(set.Spec.Selector))
	}
	return nil
}

// storage is where the claim of Kip's store gets its volume.
type storage struct {
	class string
	// own says that this class is to be made.
	own bool
	// byEBS says that the add-on's driver makes the volume, with rights that the API server does not know.
	byEBS bool
}

// findStorage returns the StorageClass for the claim of Kip's store, which stays as it was.
func (k *Kubernetes) findStorage(ctx context.Context, c eks.Cluster, region, account, was string) (storage, error) {
	if was != "" {
		return storage{class: was, own: was == storeClass}, nil
	}
	has, err := disks.Find(ctx, k.Client, c.AutoDisks)
	if err != nil {
		return storage{}, err
	}
	s, err := has.Usable(ctx, storeClass)
	switch {
	case err != nil:
		return storage{}, err
	case s != nil:
		return storage{class: s.Name, byEBS: disks.DriverOf(s.Provisioner) == wellknown.EBSDriver}, nil
	}
	driver, err := has.Driver(ctx)
	switch {
	case err != nil:
		return storage{}, err
	case driver != "": // EKS makes no StorageClass for either
		return storage{class: storeClass, own: true, byEBS: driver == wellknown.EBSDriver}, nil
	}
	return storage{}, fmt.Errorf("the cluster has no driver for disks, and Kip's store needs one: %s",
		wellknown.CreateEBSDriver(region, c.Name, account))
}

// storeClass is made where no StorageClass is for the cluster's driver.
const storeClass = "kip-provider-store"

// classFor is that StorageClass.
func classFor(c eks.Cluster) *unstructured.Unstructured {
	driver := wellknown.EBSDriver
	if c.AutoDisks {
		driver = wellknown.AutoDriver
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion":        "storage.k8s.io/v1",
		"kind":              "StorageClass",
		"metadata":          map[string]any{"name": storeClass},
		"provisioner":       driver,
		"volumeBindingMode": string(storagev1.VolumeBindingWaitForFirstConsumer),
		"parameters":        map[string]any{"type": "gp3", "encrypted": "true"},
	}}
}

// running is what there is of Kip already.
type running struct {
	// namespace has the UID of the namespace; "" if there is none yet.
	namespaceUID string
	// owner is the controller ID of the Kip that serves the node; "" for none.
	owner string
	// class is the StorageClass of the claim of Kip's store, which no StatefulSet changes; "" for none.
	class string
	// subnets are those of cells, by the installed configuration; none if there is none.
	subnets []string
	// config is that configuration, as it is written.
	config map[string]any
}

// find says who has the node already. Another installation's is left alone.
func (k *Kubernetes) find(ctx context.Context, namespace string) (r running, err error) {
	binding, err := k.Client.RbacV1().ClusterRoleBindings().Get(ctx, "kip."+node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return r, fmt.Errorf("get the ClusterRoleBinding kip.%s: %w", node, err)
	case binding.Annotations["meta.helm.sh/release-name"] != "":
		return r, fmt.Errorf("node %s is of a Kip that Helm installed, as release %s in namespace %s: go on with helm upgrade, or helm "+
			"uninstall it first",
			node, binding.Annotations["meta.helm.sh/release-name"], binding.Annotations["meta.helm.sh/release-namespace"])
	case len(binding.Subjects) > 0 && binding.Subjects[0].Namespace != namespace:
		return r, fmt.Errorf("node %s is of the Kip in namespace %s, and NAMESPACE is %q: want NAMESPACE=%s, or uninstall that one first "+
			"(docs/eks.md)",
			node, binding.Subjects[0].Namespace, namespace, binding.Subjects[0].Namespace)
	}
	switch n, err := k.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); {
	case err == nil:
		r.owner = n.Labels[apiv1.LabelController]
	case !apierrors.IsNotFound(err):
		return r, fmt.Errorf("get node %s: %w", node, err)
	}
	if err := k.leftNode(ctx, namespace, r.owner); err != nil {
		return r, err
	}
	switch set, err := k.Client.AppsV1().StatefulSets(namespace).Get(ctx, name, metav1.GetOptions{}); {
	case err == nil && len(set.Spec.VolumeClaimTemplates) > 0:
		r.class = ptr.Deref(set.Spec.VolumeClaimTemplates[0].Spec.StorageClassName, "")
	case err != nil && !apierrors.IsNotFound(err):
		return r, fmt.Errorf("get StatefulSet %s/%s: %w", namespace, name, err)
	}
	switch installed, err := k.Client.CoreV1().ConfigMaps(namespace).Get(ctx, configMap, metav1.GetOptions{}); {
	case err == nil:
		r.subnets = subnetsOf(installed.Data["provider.yaml"])
		if err := yaml.Unmarshal([]byte(installed.Data["provider.yaml"]), &r.config); err != nil {
			return r, fmt.Errorf("provider.yaml of ConfigMap %s/%s is not valid YAML, and nothing of it would stay: %w; mend it, or delete the ConfigMap",
				namespace, configMap, err)
		}
	case !apierrors.IsNotFound(err):
		return r, fmt.Errorf("get ConfigMap %s/%s: %w", namespace, configMap, err)
	}
	switch ns, err := k.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); {
	case err == nil && ns.DeletionTimestamp != nil:
		return r, fmt.Errorf("namespace %s is being deleted: wait until it is gone (kubectl wait --for=delete namespace/%s), then run this again",
			namespace, namespace)
	case err == nil:
		r.namespaceUID = string(ns.UID)
	case !apierrors.IsNotFound(err):
		return r, fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	return r, nil
}

// leftNode returns an error if the node belongs to a Kip whose store is gone. Kip ends if its node has another controller ID, and a new
// store has a new one.
func (k *Kubernetes) leftNode(ctx context.Context, namespace, owner string) error {
	if owner == "" {
		return nil
	}
	claim := "data-" + node // of the StatefulSet's pod, which is called as the node
	switch _, err := k.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{}); {
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("get PersistentVolumeClaim %s/%s: %w", namespace, claim, err)
	}
	return fmt.Errorf("node %s belongs to a Kip whose store is gone (controller ID %s): end what that Kip has left in the account: "+
		"bin/kipctl cleanup -f provider.yaml --controller %s --yes (docs/uninstall.md#when-kip-is-gone has a provider.yaml), then remove its "+
		"nodes: kubectl delete nodes -l %s=%s", node, owner, owner, apiv1.LabelController, owner)
}

// mayApply says which objects the caller may not apply, one of each kind: the API server tries each that is of the whole cluster or in
// a namespace that is there, and is asked of the rights to the others.
func (k *Kubernetes) mayApply(ctx context.Context, objects []*unstructured.Unstructured, namespace string, there bool) (problems []string) {
	done := map[schema.GroupVersionResource]bool{}
	for _, o := range objects {
		gvr, dry := resourceOf(o), o.GetNamespace() != namespace || there
		if done[gvr] {
			continue
		}
		var err error
		if dry {
			err = k.apply(ctx, o, metav1.DryRunAll)
		} else {
			err = k.mayPatch(ctx, gvr, namespace)
		}
		if done[gvr] = err != nil || !dry; err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

// mayDefine returns an error if the caller may not install the definition of Cell.
func (k *Kubernetes) mayDefine(ctx context.Context) error {
	err := crd.Try(ctx, k.CRDs)
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("you may not change CustomResourceDefinitions: want the rights of a cluster admin: %w", err)
	}
	return err
}

// mayPatch asks the API server whether the caller may apply objects in a namespace.
func (k *Kubernetes) mayPatch(ctx context.Context, gvr schema.GroupVersionResource, namespace string) error {
	review, err := k.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: "patch", Group: gvr.Group, Resource: gvr.Resource,
		}},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("ask whether you may patch %s in namespace %s: %w", gvr.GroupResource(), namespace, err)
	case !review.Status.Allowed:
		return fmt.Errorf("you may not patch %s in namespace %s: want the rights of a cluster admin", gvr.GroupResource(), namespace)
	}
	return nil
}
