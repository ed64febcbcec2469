package kippods

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

func meta(namespace, name string, uid types.UID) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}
}

func ownedBy(kind, name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: uid, Controller: new(true)}}
}

func pod(namespace, name string, owners []metav1.OwnerReference) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta(namespace, name, "")}
	p.Labels, p.OwnerReferences = map[string]string{"app": "kip-provider"}, owners
	p.Spec.ServiceAccountName = "kip"
	p.Spec.Containers = []corev1.Container{{Name: Container, Args: []string{"--nodename=kip-0"}}}
	return p
}

// kube is an API server where the service account kip of kip-system alone may act as node kip-0.
func kube(objects ...runtime.Object) *fake.Clientset {
	k := fake.NewClientset(append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kip-0",
		Labels: map[string]string{apiv1.LabelController: "id"}}})...)
	k.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked := *r.Spec.ResourceAttributes
		r.Status.Allowed = r.Spec.User == "system:serviceaccount:kip-system:kip" &&
			asked == authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users", Name: "system:node:kip-0"}
		return true, r, nil
	})
	return k
}

func TestOnlyWhatNoTenantCanForgeMakesAPodKips(t *testing.T) {
	const ns = "kip-system"
	set := &appsv1.StatefulSet{ObjectMeta: meta(ns, "kip", "set")}
	deployment := &appsv1.Deployment{ObjectMeta: meta(ns, "gpu", "deployment")}
	replicas := &appsv1.ReplicaSet{ObjectMeta: meta(ns, "gpu-7f", "replicas")}
	replicas.OwnerReferences = ownedBy("Deployment", "gpu", "deployment")
	orphan := &appsv1.ReplicaSet{ObjectMeta: meta(ns, "alone", "alone")}
	theirs := &appsv1.StatefulSet{ObjectMeta: meta("shop", "kip", "theirs")}
	with := func(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
		change(p)
		return p
	}
	own := ownedBy("StatefulSet", "kip", "set")
	for what, tc := range map[string]struct {
		pod *corev1.Pod
		why string // "" if the pod is Kip's
	}{
		"of a StatefulSet":      {pod(ns, "kip-0", own), ""},
		"of a Deployment":       {pod(ns, "gpu-7f-x", ownedBy("ReplicaSet", "gpu-7f", "replicas")), ""},
		"that names no node":    {with(pod(ns, "kip-0", own), func(p *corev1.Pod) { p.Spec.Containers[0].Args = nil }), ""},
		"a tenant's":            {pod("shop", "kip-0", ownedBy("StatefulSet", "kip", "theirs")), "its service account kip may not act as node kip-0"},
		"a tenant's, no node":   {with(pod("shop", "kip-0", own), func(p *corev1.Pod) { p.Spec.Containers[0].Args = nil }), "may not act as node kip-0"},
		"a tenant's own node":   {with(pod("shop", "kip-0", own), func(p *corev1.Pod) { p.Spec.Containers[0].Args[0] = "--nodename=shop-0" }), "may not act as node shop-0"},
		"without an account":    {with(pod(ns, "kip-0", own), func(p *corev1.Pod) { p.Spec.ServiceAccountName = "" }), "has no service account"},
		"of another account":    {with(pod(ns, "kip-0", own), func(p *corev1.Pod) { p.Spec.ServiceAccountName = "default" }), "default may not act as node kip-0"},
		"without Kip":           {with(pod(ns, "kip-0", own), func(p *corev1.Pod) { p.Spec.Containers[0].Name = "x" }), "has no container kip"},
		"by hand":               {pod(ns, "kip-0", nil), "no StatefulSet and no Deployment has made it"},
		"of a Job":              {pod(ns, "kip-0", ownedBy("Job", "kip", "set")), "it is of the Job kip"},
		"of one that is gone":   {pod(ns, "kip-0", ownedBy("StatefulSet", "old", "set")), "the StatefulSet old that it names as its maker is not there"},
		"of one that was":       {pod(ns, "kip-0", ownedBy("StatefulSet", "kip", "before")), "is another one"},
		"of replicas that were": {pod(ns, "kip-0", ownedBy("ReplicaSet", "gpu-7f", "before")), "the ReplicaSet gpu-7f that it names as its maker is another one"},
		"of replicas alone":     {pod(ns, "kip-0", ownedBy("ReplicaSet", "alone", "alone")), "no Deployment has made its ReplicaSet alone"},
	} {
		found, err := Find(t.Context(), kube(set, deployment, replicas, orphan, theirs, tc.pod), "")
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case tc.why == "" && (len(found.Own) != 1 || len(found.Others) > 0):
			t.Errorf("%s is Kip's: %+v", what, found.Others)
		case tc.why != "" && (len(found.Own) > 0 || len(found.Others) != 1 || found.Others[0].Unknown || !strings.Contains(found.Others[0].Why,
			tc.why)):
			t.Errorf("%s is not Kip's: %+v", what, found)
		}
	}
}

// What nobody may ask is not known: such a pod is not Kip's, and the reason says so.
func TestAPodOfWhichNobodyMayAskIsNotTakenForKips(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: meta("kip-system", "kip", "set")}
	own := pod("kip-system", "kip-0", ownedBy("StatefulSet", "kip", "set"))
	forbid := func(k *fake.Clientset, verb, resource string, err error) *fake.Clientset {
		k.PrependReactor(verb, resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
			if err != nil {
				return true, nil, err
			}
			return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("not for you"))
		})
		return k
	}
	for what, tc := range map[string]struct {
		kube      *fake.Clientset
		namespace string
		is        bool
	}{
		"no reviews":                        {forbid(kube(set, own), "create", "subjectaccessreviews", nil), "", false},
		"no reviews in the named namespace": {forbid(kube(set, own), "create", "subjectaccessreviews", nil), "kip-system", true},
		"no StatefulSets":                   {forbid(kube(set, own), "get", "statefulsets", nil), "", true}, // the account is the proof
		"StatefulSets do not answer":        {forbid(kube(set, own), "get", "statefulsets", errors.New("i/o timeout")), "", false},
	} {
		found, err := Find(t.Context(), tc.kube, tc.namespace)
		if err != nil {
			t.Fatal(err)
		}
		if is := len(found.Own) == 1; is != tc.is || !is && (len(found.Others) != 1 || !found.Others[0].Unknown) {
			t.Errorf("%s: %+v", what, found)
		}
	}
}

// Their names are before those of Kip's namespace.
func TestPodsOfTenantsDoNotUseUpTheQuestionsAboutKips(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: meta("kip-system", "kip", "set")}
	own := pod("kip-system", "kip-0", ownedBy("StatefulSet", "kip", "set"))
	theirs := func(namespace string, n int, node string) *corev1.Pod {
		p := pod(namespace, fmt.Sprintf("p-%03d", n), nil)
		p.Spec.ServiceAccountName, p.Spec.Containers[0].Args = fmt.Sprintf("a-%03d", n), []string{"--nodename=" + node}
		return p
	}
	for what, of := range map[string]func(n int) *corev1.Pod{
		"accounts of one namespace, for Kip's node": func(n int) *corev1.Pod { return theirs("a", n, "kip-0") },
		"namespaces, for nodes that there are not":  func(n int) *corev1.Pod { return theirs(fmt.Sprintf("a-%03d", n), n, "shop-0") },
	} {
		objects := []runtime.Object{set, own}
		for n := range 2 * mostAsked {
			objects = append(objects, of(n))
		}
		found, err := Find(t.Context(), kube(objects...), "")
		if err != nil || len(found.Own) != 1 || len(found.Others) != 2*mostAsked {
			t.Errorf("%s: %d pods are Kip's, and %d are not: %v", what, len(found.Own), len(found.Others), err)
		}
	}
}

func TestPodsOfTenantsCostABoundedNumberOfQuestions(t *testing.T) {
	var objects []runtime.Object
	for n := range 3 * mostAsked {
		objects = append(objects, pod(fmt.Sprintf("shop-%03d", n), "kip-0", nil))
	}
	k := kube(objects...)
	found, err := Find(t.Context(), k, "")
	if err != nil || len(found.Own) > 0 || len(found.Others) != 3*mostAsked {
		t.Fatalf("%d and %d pods: %v", len(found.Own), len(found.Others), err)
	}
	asked := 0
	for _, a := range k.Actions() {
		if a.Matches("create", "subjectaccessreviews") {
			asked++
		}
	}
	if last := found.Others[len(found.Others)-1]; asked != mostAsked || !last.Unknown || !strings.Contains(last.Why, "more than 200 pods") {
		t.Errorf("%d questions, and of the last pod it says %+v", asked, last)
	}
}
