// Package kippods finds the pods of Kip in a cluster, for whoever reads what they print or runs a command in one. It goes by what no tenant
// can forge, asks the Kubernetes API alone, and changes nothing.
package kippods

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	apiv1 "github.com/elotl/kip/api/v1"
)

const (
	// Labels select Kip's pods, and Container is Kip's container in them, as the chart and the manifests make them.
	Labels, Container = "app=kip-provider", "kip"
	// mostAsked bounds how many service accounts and nodes are asked about, and mostOfOne those of one namespace: a tenant can make any
	// number of pods with Kip's labels.
	mostAsked, mostOfOne = 200, 20
)

// Pods are those with the labels of Kip's pods.
type Pods struct {
	// Own are Kip's, by namespace and name.
	Own []corev1.Pod
	// Others are not Kip's, or are not known to be.
	Others []Other
}

// Other is a pod that is not taken for Kip's.
type Other struct {
	Pod corev1.Pod
	// Why completes the sentence "the pod has the labels of Kip's pods, and …".
	Why string
	// Unknown reports whether it may be Kip's, and nobody could be asked.
	Unknown bool
}

// Find returns the pods of Kip in all namespaces, or in the one that the caller knows to be Kip's. Anybody can give a pod Kip's
// labels. In all namespaces a pod is Kip's only if its service account may act as a virtual node, which Kip's installation alone
// grants. In both cases a StatefulSet or a Deployment that is there must have made it.
func Find(ctx context.Context, kube kubernetes.Interface, namespace string) (Pods, error) {
	list, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: Labels})
	if err != nil {
		return Pods{}, fmt.Errorf("list the pods of Kip: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	f := finder{kube: kube, named: namespace != "", asked: map[string]refusal{}, ofOne: map[string]int{}}
	var found Pods
	for _, p := range f.likelyFirst(ctx, list.Items) {
		if no := f.refuses(ctx, &p); no.why != "" {
			found.Others = append(found.Others, Other{Pod: p, Why: no.why, Unknown: no.unknown})
		} else {
			found.Own = append(found.Own, p)
		}
	}
	return found, nil
}

// refusal is why a pod is not taken for Kip's; the zero refusal is none.
type refusal struct {
	why     string
	unknown bool
}

func no(format string, args ...any) refusal { return refusal{why: fmt.Sprintf(format, args...)} }

func unknown(format string, args ...any) refusal {
	return refusal{why: fmt.Sprintf(format, args...), unknown: true}
}

type finder struct {
	kube  kubernetes.Interface
	named bool
	// asked has the answer for each service account and node, ofOne how many these are by namespace, and nodes are the virtual nodes,
	// once they are needed.
	asked map[string]refusal
	ofOne map[string]int
	nodes []string
}

// likelyFirst puts pods behind the others that tell of a node which is no virtual node. Kip's own are among them only as long as Kip has
// not made its node, and a tenant can name any number.
func (f *finder) likelyFirst(ctx context.Context, pods []corev1.Pod) []corev1.Pod {
	if f.named {
		return pods
	}
	nodes, err := f.virtualNodes(ctx)
	if err != nil {
		return pods // all may be likely
	}
	var likely, others []corev1.Pod
	for _, p := range pods {
		if name := NodeName(&p); name == "" || slices.Contains(nodes, name) {
			likely = append(likely, p)
		} else {
			others = append(others, p)
		}
	}
	return append(likely, others...)
}

func (f *finder) refuses(ctx context.Context, p *corev1.Pod) refusal {
	if !slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == Container }) {
		return no("has no container %s", Container)
	}
	if !f.named {
		if no := f.account(ctx, p); no.why != "" {
			return no
		}
	}
	return f.controller(ctx, p)
}

// account refuses a pod whose service account may not act as a virtual node.
func (f *finder) account(ctx context.Context, p *corev1.Pod) refusal {
	if p.Spec.ServiceAccountName == "" {
		return no("has no service account")
	}
	nodes := []string{NodeName(p)}
	if nodes[0] == "" {
		all, err := f.virtualNodes(ctx)
		if err != nil {
			return unknown("does not tell its node, and the virtual nodes are not known: %v", err)
		}
		nodes = all
	}
	last := no("does not tell its node, and the cluster has no virtual node of Kip")
	for _, node := range nodes {
		if last = f.actsAs(ctx, p.Namespace, p.Spec.ServiceAccountName, node); last.why == "" {
			return last
		}
	}
	return last
}

// NodeName returns the first virtual node of a pod of Kip, as the pod is told; "" if it is not.
func NodeName(p *corev1.Pod) string {
	const flag = "--nodename="
	for _, c := range p.Spec.Containers {
		for _, arg := range c.Args {
			if c.Name == Container && len(arg) > len(flag) && arg[:len(flag)] == flag {
				return arg[len(flag):]
			}
		}
	}
	return ""
}

func (f *finder) virtualNodes(ctx context.Context) ([]string, error) {
	if f.nodes != nil {
		return f.nodes, nil
	}
	list, err := f.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: apiv1.LabelController})
	if err != nil {
		return nil, err
	}
	f.nodes = []string{}
	for _, n := range list.Items {
		f.nodes = append(f.nodes, n.Name)
	}
	slices.Sort(f.nodes)
	return f.nodes, nil
}

// actsAs asks whether a service account may act as a virtual node (deploy/helm/kip/templates/rbac.yaml). Who has that right can do all that
// Kip can, so nothing is won by a pod with such an account.
func (f *finder) actsAs(ctx context.Context, namespace, account, node string) refusal {
	key := namespace + "/" + account + " " + node
	if known, is := f.asked[key]; is {
		return known
	}
	switch {
	case len(f.asked) == mostAsked:
		return unknown("was not asked about: more than %d pods have these labels", mostAsked)
	case f.ofOne[namespace] == mostOfOne:
		return unknown("was not asked about: more than %d pods of its namespace have these labels", mostOfOne)
	}
	f.ofOne[namespace]++
	answer, err := f.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:" + namespace + ":" + account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Resource: "users",
				Name:     "system:node:" + node,
				Verb:     "impersonate",
			},
		},
	}, metav1.CreateOptions{})
	var said refusal
	switch {
	case err != nil:
		said = unknown("whether its service account %s may act as node %s, as Kip's may, is not known: %v", account, node, err)
	case !answer.Status.Allowed:
		said = no("its service account %s may not act as node %s, as Kip's may", account, node)
	}
	f.asked[key] = said
	return said
}

// controller refuses a pod that no StatefulSet or Deployment has made. If the caller may not read them, the service account is proof
// enough.
func (f *finder) controller(ctx context.Context, p *corev1.Pod) refusal {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return no("no StatefulSet and no Deployment has made it")
	}
	apps := f.kube.AppsV1()
	kind, name, want := owner.Kind, owner.Name, owner.UID
	if kind == "ReplicaSet" {
		set, err := apps.ReplicaSets(p.Namespace).Get(ctx, name, metav1.GetOptions{})
		if refused, done := judged(kind, name, want, uidOf(set, err), err); done {
			return refused
		}
		if owner = metav1.GetControllerOf(set); owner == nil {
			return no("no Deployment has made its ReplicaSet %s", name)
		}
		kind, name, want = owner.Kind, owner.Name, owner.UID
		if kind != "Deployment" {
			return no("its ReplicaSet is of the %s %s: want a Deployment", kind, name)
		}
		deployment, err := apps.Deployments(p.Namespace).Get(ctx, name, metav1.GetOptions{})
		refused, _ := judged(kind, name, want, uidOf(deployment, err), err)
		return refused
	}
	if kind != "StatefulSet" {
		return no("it is of the %s %s: want a StatefulSet or a Deployment", kind, name)
	}
	set, err := apps.StatefulSets(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	refused, _ := judged(kind, name, want, uidOf(set, err), err)
	return refused
}

func uidOf(o metav1.Object, err error) types.UID {
	if err != nil {
		return ""
	}
	return o.GetUID()
}

// judged says whether an owner is the one that a pod names. done is false if its own owner is to be asked for.
func judged(kind, name string, want, has types.UID, err error) (refused refusal, done bool) {
	switch {
	case apierrors.IsForbidden(err):
		return refusal{}, true
	case apierrors.IsNotFound(err):
		return no("the %s %s that it names as its maker is not there", kind, name), true
	case err != nil:
		return unknown("its maker is not known: get %s %s: %v", kind, name, err), true
	case has != want:
		return no("the %s %s that it names as its maker is another one", kind, name), true
	}
	return refusal{}, false
}
