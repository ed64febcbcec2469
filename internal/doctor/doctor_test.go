package doctor

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/eks/wellknown"
	"github.com/elotl/kip/internal/finding"
)

var now = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// world is a cluster that lacks nothing. Tests change it before it is asked.
type world struct {
	version, host string
	date          time.Time
	unreachable   error
	status        int // of /version; 200 when 0
	serves        []string
	dns           *corev1.Service
	clusterIPs    []string
	classes       []storagev1.StorageClass
	drivers       []string
	nodes         []corev1.Node
	lacks         string // a resource that the user may not create
	user          string // who asks; jane when empty
	unable        string // a resource that Kip's service account may not get
	hides         string // a resource of which the user may read nothing
	forbids       bool   // the API server forbids all but reviews
	escalates     bool   // the user may give no rights
	provider      *config.Config

	// Of a Kip that is installed.
	kips     []corev1.Pod
	pods     []corev1.Pod
	services []corev1.Service
	events   []corev1.Event
	requests []certificatesv1.CertificateSigningRequest
	hook     *admissionregistrationv1.MutatingWebhookConfiguration
	answers  bool // Kip's webhook
	proxy    Answer
	cells    []apiv1.Cell
	noCRD    bool

	others []runtime.Object // that the API server has, too
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func node(name string) corev1.Node {
	return corev1.Node{ObjectMeta: meta("", name), Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
}

// fresh is a cluster without Kip.
func fresh() *world {
	return &world{
		version: "v1.35.2", host: "https://10.0.0.1:6443", date: now.Add(-3 * time.Second),
		serves:     []string{"validatingadmissionpolicies", "mutatingwebhookconfigurations"},
		dns:        &corev1.Service{ObjectMeta: meta("kube-system", "kube-dns"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10"}},
		clusterIPs: []string{"10.96.0.1"},
		classes: []storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "usual", Annotations: map[string]string{wellknown.DefaultClass: "true"}},
			Provisioner: "disks.example.org"}},
		nodes:   []corev1.Node{node("machine")},
		answers: true,
	}
}

// onEKS is one of EKS.
func onEKS() *world {
	w := fresh()
	w.version, w.host = "v1.35.2-eks-113cf36", "https://ABC.gr7.eu-west-1.eks.amazonaws.com"
	w.nodes[0].Labels = map[string]string{"alpha.eksctl.io/cluster-name": "prod"}
	return w
}

// installed is a cluster with a Kip that works.
func installed() *world {
	w := fresh()
	own := node("kip-0")
	own.Labels = map[string]string{apiv1.LabelController: "id", wellknown.ComputeType: "fargate", "type": "virtual-kubelet"}
	own.Spec.Taints = []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "kip", Effect: corev1.TaintEffectNoSchedule}}
	own.Status.NodeInfo.KubeletVersion = "v1.36.3-kip-1.2.0"
	own.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	w.nodes = append(w.nodes, own)
	kip := corev1.Pod{ObjectMeta: meta("kip-system", "kip-0")}
	kip.Labels = map[string]string{"app": "kip-provider", "app.kubernetes.io/instance": "release"}
	kip.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "kip", Controller: new(true)}}
	kip.Spec.ServiceAccountName = "kip"
	kip.Spec.Containers = []corev1.Container{{Name: kipContainer}}
	kip.Spec.Volumes = []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "kip-config"}}}},
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-kip-0"}}},
	}
	set := &appsv1.StatefulSet{ObjectMeta: meta("kip-system", "kip")}
	set.Annotations = map[string]string{annotationRelease: "release"}
	w.others = []runtime.Object{set}
	kip.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	w.kips = []corev1.Pod{kip}
	hook := admissionregistrationv1.MutatingWebhook{Name: "selecting.kip.elotl.co"}
	hook.ClientConfig.CABundle = []byte("CA")
	w.hook = &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta("", "kip-0")}
	w.hook.Webhooks = []admissionregistrationv1.MutatingWebhook{hook}
	w.proxy = Answer{Status: http.StatusOK, Body: []byte("ok")}
	w.cells = []apiv1.Cell{{ObjectMeta: meta("", "cell-1"), Status: apiv1.CellStatus{Phase: apiv1.Bound}}}
	return w
}

// byManifests is a Kip that Helm has not installed.
func byManifests() *world {
	w := installed()
	w.others[0].(*appsv1.StatefulSet).Annotations = nil
	return w
}

func forbidden(a clienttesting.Action) error {
	return apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("not for you"))
}

// kube is the API server of a world.
func (w *world) kube(t *testing.T) *fake.Clientset {
	t.Helper()
	objects := []runtime.Object{&corev1.Service{ObjectMeta: meta("default", "kubernetes"), Spec: corev1.ServiceSpec{ClusterIPs: w.clusterIPs}}}
	if w.dns != nil {
		objects = append(objects, w.dns)
	}
	if w.hook != nil {
		objects = append(objects, w.hook)
	}
	for _, d := range w.drivers {
		objects = append(objects, &storagev1.CSIDriver{ObjectMeta: meta("", d)})
	}
	add := func(n int, object func(int) runtime.Object) {
		for i := range n {
			objects = append(objects, object(i))
		}
	}
	add(len(w.classes), func(i int) runtime.Object { return &w.classes[i] })
	add(len(w.nodes), func(i int) runtime.Object { return &w.nodes[i] })
	add(len(w.kips), func(i int) runtime.Object { return &w.kips[i] })
	add(len(w.pods), func(i int) runtime.Object { return &w.pods[i] })
	add(len(w.services), func(i int) runtime.Object { return &w.services[i] })
	add(len(w.events), func(i int) runtime.Object { return &w.events[i] })
	add(len(w.requests), func(i int) runtime.Object { return &w.requests[i] })
	kube := fake.NewClientset(append(objects, w.others...)...)
	resources := &metav1.APIResourceList{GroupVersion: "admissionregistration.k8s.io/v1"}
	for _, name := range w.serves {
		resources.APIResources = append(resources.APIResources, metav1.APIResource{Name: name})
	}
	kube.Resources = []*metav1.APIResourceList{resources}
	kube.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		selector := a.(clienttesting.ListAction).GetListRestrictions().Fields
		if selector.Empty() {
			return false, nil, nil
		}
		list := &corev1.PodList{} // the fake API server does not select by fields
		for _, p := range w.pods {
			if selector.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName}) {
				list.Items = append(list.Items, p)
			}
		}
		return true, list, nil
	})
	kube.PrependReactor("create", "*", w.create(t))
	if w.hides != "" {
		kube.PrependReactor("*", w.hides, func(a clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden(a) })
	}
	if w.forbids {
		kube.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden(a) })
	}
	return kube
}

// create answers reviews and dry runs. It lets nothing be made.
func (w *world) create(t *testing.T) clienttesting.ReactionFunc {
	return func(a clienttesting.Action) (bool, runtime.Object, error) {
		made := a.(clienttesting.CreateAction).GetObject()
		switch object := made.(type) {
		case *authorizationv1.SelfSubjectAccessReview:
			object.Status.Allowed = object.Spec.ResourceAttributes.Resource != w.lacks
			return true, object, nil
		case *authorizationv1.SubjectAccessReview:
			asked := object.Spec.ResourceAttributes
			name := strings.TrimPrefix(asked.Name, "system:node:")
			if strings.HasPrefix(name, "kip-0-") && !slices.ContainsFunc(w.nodes, func(n corev1.Node) bool { return n.Name == name }) {
				t.Errorf("it asks about %s, and the cluster has no such node", asked.Name)
			}
			object.Status.Allowed = strings.HasPrefix(object.Spec.User, "system:serviceaccount:") &&
				!strings.HasPrefix(object.Spec.User, "system:serviceaccount:shop:") &&
				(asked.Resource != w.unable || asked.Verb != "get")
			return true, object, nil
		case *authenticationv1.SelfSubjectReview:
			object.Status.UserInfo.Username = cmp.Or(w.user, "jane")
			return true, object, nil
		}
		if dry := a.(clienttesting.CreateActionImpl).CreateOptions.DryRun; !slices.Equal(dry, []string{metav1.DryRunAll}) {
			t.Errorf("%s is made, with the dry run %q", a.GetResource().Resource, dry)
		}
		if w.escalates {
			return true, nil, forbidden(a)
		}
		if pod, is := made.(*corev1.Pod); is {
			pod.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))}}
			if w.answers {
				pod.Spec.Tolerations[0].TolerationSeconds = nil
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "virtual-kubelet.io/provider",
					Operator: corev1.TolerationOpEqual, Value: "kip", Effect: corev1.TaintEffectNoSchedule})
			}
		}
		return true, made, nil
	}
}

// examine runs all checks of a world.
func (w *world) examine(t *testing.T) []Result {
	t.Helper()
	crd, err := apiv1.CustomResourceDefinition()
	if err != nil {
		t.Fatal(err)
	}
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
	}
	extensions := extensionsfake.NewSimpleClientset()
	if !w.noCRD {
		extensions = extensionsfake.NewSimpleClientset(crd)
	}
	if w.forbids {
		extensions.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden(a) })
	}
	d := New(Config{
		Cluster: Cluster{
			Kube: w.kube(t),
			CRDs: extensions.ApiextensionsV1().CustomResourceDefinitions(),
			Host: w.host,
			Raw: func(_ context.Context, path string) (Answer, error) {
				if path == "/version" && w.status == 0 {
					return Answer{Status: http.StatusOK, Date: w.date, Body: []byte(`{"gitVersion":"` + w.version + `"}`)}, w.unreachable
				}
				if path == "/version" {
					return Answer{Status: w.status}, w.unreachable
				}
				if path == "/.well-known/openid-configuration" {
					return Answer{Status: http.StatusOK, Body: []byte(`{"issuer":"https://oidc.eks.eu-west-1.amazonaws.com/id/A1"}`)}, nil
				}
				if !slices.ContainsFunc(w.nodes[1:], func(n corev1.Node) bool { return path == "/api/v1/nodes/"+n.Name+"/proxy/healthz" }) {
					t.Errorf("asked for %s", path)
				}
				return w.proxy, nil
			},
			Cells: func(context.Context) ([]apiv1.Cell, error) { return w.cells, nil },
		},
		PodNamespace: "default",
		Provider:     w.provider,
		Version:      "v1.2.0",
		Clock:        clocktesting.NewFakePassiveClock(now),
	})
	r := &Runner{Limit: time.Minute, Say: func(string) {}}
	r.Run(t.Context(), d.First()...)
	for _, one := range d.Each() {
		r.Run(t.Context(), one.Rest()...)
	}
	return r.Results
}

func TestAClusterThatLacksNothingPasses(t *testing.T) {
	for what, w := range map[string]*world{"before": fresh(), "after": installed()} {
		results := w.examine(t)
		for _, r := range results {
			if r.Outcome != finding.OK && !(what == "before" && r.Check == "signer" && r.Outcome == finding.NotChecked) {
				t.Errorf("%s: %+v", what, r)
			}
		}
		if len(results) < 10 {
			t.Errorf("%s: %d results", what, len(results))
		}
	}
}

// What may not be asked is "not checked": neither ok, nor failed.
func TestWhatMayNotBeAskedIsNotOK(t *testing.T) {
	asked := map[string]bool{"API server": true, "clock": true, "version": true} // which need no right
	w := fresh()
	w.forbids = true
	for _, r := range w.examine(t) {
		if !asked[r.Check] && r.Outcome != finding.NotChecked {
			t.Errorf("%+v", r)
		}
	}
	d := New(Config{Cluster: Cluster{Kube: (&world{lacks: "roles"}).kube(t)}}) // who may not look for Kip
	if f := (grants{d.installation}).rights(t.Context())[0]; f.Outcome != finding.Warning || !strings.Contains(f.Message,
		"if it is not here already") {
		t.Errorf("rights: %+v", f)
	}
	d.c.Cluster.Kube = (&world{lacks: "roles", user: "system:serviceaccount:kip-system:kip"}).kube(t)
	if f := (grants{d.installation}).rights(t.Context())[0]; f.Outcome != finding.NotChecked ||
		f.Cure != "" { // Kip is not to be a cluster admin
		t.Errorf("rights of Kip itself: %+v", f)
	}
	w = installed()
	w.forbids = true
	kip := New(Config{Clock: clocktesting.NewFakePassiveClock(now), Cluster: Cluster{
		Kube: w.kube(t),
		Raw:  func(context.Context, string) (Answer, error) { return Answer{Status: http.StatusForbidden}, nil },
		Cells: func(context.Context) ([]apiv1.Cell, error) {
			return nil, apierrors.NewForbidden(apiv1.Resource.GroupResource(), "", nil)
		},
		CRDs: func() *extensionsfake.Clientset { return denied() }().ApiextensionsV1().CustomResourceDefinitions(),
	}})
	kip.own, kip.pods = w.nodes[1:], w.kips
	for _, c := range kip.Rest() {
		if c.Area != areaKip || c.Name == "pods" || c.Name == "nodes" || c.Name == "versions" || c.Needs != "" {
			continue // they ask nothing more
		}
		for _, f := range c.Run(t.Context()) {
			if f.Outcome != finding.NotChecked {
				t.Errorf("%s: %+v", c.Name, f)
			}
		}
	}
}

func denied() *extensionsfake.Clientset {
	c := extensionsfake.NewSimpleClientset()
	c.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden(a) })
	return c
}

// broken is one thing that is wrong with a world, and what is found then.
type broken struct {
	world   func() *world
	change  func(*world)
	check   string
	outcome finding.Outcome
	says    string
	cure    string
}

func examineEach(t *testing.T, cases map[string]broken) {
	t.Helper()
	for what, tc := range cases {
		t.Run(what, func(t *testing.T) {
			w := tc.world()
			tc.change(w)
			results := w.examine(t)
			var of []Result
			for _, r := range results {
				if r.Check == tc.check && r.Outcome == tc.outcome {
					of = append(of, r)
				}
				for _, harms := range []string{"endpointPublicAccess=true", "--set 'extraArgs", wellknown.DefaultClass + "=true"} {
					if strings.Contains(r.Cure, harms) {
						t.Errorf("what fixes it does more: %+v", r)
					}
				}
				if r.Outcome == finding.Failed && r.Cure == "" {
					t.Errorf("without a command that fixes it: %+v", r)
				}
			}
			if len(of) == 0 || !strings.Contains(of[0].Message, tc.says) || !strings.Contains(of[0].Cure, tc.cure) {
				t.Errorf("found %+v\nwant %s: %q, fixed by %q\nof %+v", of, tc.outcome, tc.says, tc.cure, results)
			}
		})
	}
}

// severalClasses are StorageClasses of which none is the default.
func severalClasses(w *world) {
	w.classes[0].Annotations = nil
	w.classes = append([]storagev1.StorageClass{
		{ObjectMeta: meta("", "efs"), Provisioner: "efs.csi.aws.com"}, {ObjectMeta: meta("", "gp3"), Provisioner: wellknown.EBSDriver},
	}, w.classes...)
}

// renamedDNS has the cluster's DNS behind a Service that Kip does not look for.
func renamedDNS(w *world) {
	w.dns.Name, w.dns.Labels = "dns", map[string]string{"k8s-app": "kube-dns"}
}

func TestWhatAClusterLacksIsFoundBeforeKipIsInstalled(t *testing.T) {
	examineEach(t, map[string]broken{
		"no answer":           {fresh, func(w *world) { w.unreachable = errors.New("i/o timeout") }, "API server", finding.Failed, "i/o timeout", "kubectl cluster-info"},
		"nor others":          {fresh, func(w *world) { w.unreachable = errors.New("i/o timeout") }, "DNS", finding.NotChecked, `needs the check "API server"`, ""},
		"private":             {onEKS, func(w *world) { w.unreachable = errors.New("timeout") }, "API server", finding.Failed, "endpoint is private", "aws eks describe-cluster --region eu-west-1"},
		"no program":          {onEKS, func(w *world) { w.unreachable = errors.New("getting credentials: exec: aws") }, "API server", finding.Failed, "program", "update-kubeconfig --region eu-west-1"},
		"expired":             {onEKS, func(w *world) { w.status = http.StatusUnauthorized }, "API server", finding.Failed, "have expired", "update-kubeconfig"},
		"no cluster":          {fresh, func(w *world) { w.version = "" }, "API server", finding.Failed, "not as an API server", "kubectl cluster-info"},
		"clock, much":         {fresh, func(w *world) { w.date = now.Add(time.Hour) }, "clock", finding.Failed, "differ by 1h0m0s", "set-ntp true"},
		"clock, some":         {fresh, func(w *world) { w.date = now.Add(-time.Minute) }, "clock", finding.Warning, "differ by 1m0s", "set-ntp true"},
		"no clock":            {fresh, func(w *world) { w.date = time.Time{} }, "clock", finding.NotChecked, "does not tell", ""},
		"old":                 {onEKS, func(w *world) { w.version = "v1.29.1-eks-1" }, "version", finding.Failed, "needs Kubernetes 1.30", "--kubernetes-version 1.30"},
		"rather old":          {fresh, func(w *world) { w.version = "v1.31.0" }, "version", finding.Warning, "ran beside 1.33", "kubeadm upgrade"},
		"too new":             {fresh, func(w *world) { w.version = "v1.40.0" }, "version", finding.Failed, "may be 3 minor versions older", "helm install"},
		"no policies":         {fresh, func(w *world) { w.serves = w.serves[1:] }, "admission", finding.Failed, "validatingadmissionpolicies", "policies.enabled=false"},
		"IPv6":                {onEKS, func(w *world) { w.clusterIPs = []string{"fd00::1"} }, "IP family", finding.Failed, "IPv6 alone", "eksctl create cluster"},
		"DNS of another name": {fresh, renamedDNS, "DNS", finding.Failed, "the cluster's DNS is 10.96.0.10, Service kube-system/dns", "--cluster-dns=10.96.0.10"},
		"that on EKS":         {onEKS, renamedDNS, "DNS", finding.Warning, "deploy.sh tells Kip the address", "--cluster-dns=10.96.0.10"},
		"no DNS":              {fresh, func(w *world) { w.dns = nil }, "DNS", finding.Failed, "no Service kube-system/kube-dns", "added --cluster-dns=ADDRESS to extraArgs in values.yaml"},
		"Auto Mode": {onEKS, func(w *world) { w.dns, w.nodes[0].Labels[wellknown.ComputeType] = nil, "auto" }, "DNS", finding.Failed, "EKS Auto Mode",
			"aws eks create-addon --region eu-west-1 --cluster-name prod --addon-name coredns"},
		"no class":         {onEKS, func(w *world) { w.classes = nil }, "StorageClass", finding.Failed, "no StorageClass", "aws-ebs-csi-driver"},
		"no default class": {fresh, func(w *world) { w.classes[0].Annotations = nil }, "StorageClass", finding.Failed, "no default", "--set persistence.storageClassName=usual"},
		"a class without a driver": {onEKS, func(w *world) {
			w.classes[0].Annotations, w.classes[0].Provisioner = nil, wellknown.InTree
		}, "StorageClass", finding.Failed, "the driver of none of usual", "aws-ebs-csi-driver"},
		"several classes": {fresh, severalClasses, "StorageClass", finding.Failed, "one of efs, gp3, usual", "--set persistence.storageClassName=NAME"},
		"classes on EKS":  {onEKS, func(w *world) { severalClasses(w); w.drivers = []string{wellknown.EBSDriver} }, "StorageClass", finding.Failed, "one of efs, gp3, usual", "--set persistence.storageClassName=gp3"},
		"only Kip's class": {fresh, func(w *world) { w.classes[0].Annotations, w.classes[0].Provisioner = nil, "disk.kip.elotl.co" }, "StorageClass", finding.Failed,
			"no StorageClass", "storageclass.yaml"},
		"no driver on Auto Mode": {onEKS, func(w *world) {
			w.classes[0].Provisioner, w.nodes[0].Labels[wellknown.ComputeType] = wellknown.InTree, "auto"
		}, "StorageClass", finding.Failed,
			"does not have the driver", `"provisioner":"ebs.csi.eks.amazonaws.com"`},
		"disks of Auto Mode": {onEKS, func(w *world) { w.classes[0].Provisioner = wellknown.AutoDriver }, "disks", finding.Warning, "no cell gets its disks", "storageclass kip"},
		"no driver":          {onEKS, func(w *world) { w.classes[0].Provisioner = wellknown.InTree }, "StorageClass", finding.Failed, "does not have the driver ebs.csi.aws.com", "aws-ebs-csi-driver"},
		"a driver's role": {onEKS, func(w *world) { w.classes[0].Provisioner, w.drivers = wellknown.InTree, []string{wellknown.EBSDriver} }, "StorageClass", finding.NotChecked,
			"whether the driver ebs.csi.aws.com has its role", "aws eks describe-addon --region eu-west-1 --cluster-name prod --addon-name aws-ebs-csi-driver"},
		"a driver's own role": {onEKS, func(w *world) {
			w.classes[0].Provisioner, w.drivers = wellknown.InTree, []string{wellknown.EBSDriver}
			account := &corev1.ServiceAccount{ObjectMeta: meta("kube-system", "ebs-csi-controller-sa")}
			account.Annotations = map[string]string{wellknown.RoleAnnotation: "arn:aws:iam::123456789012:role/ebs"}
			w.others = append(w.others, account)
		}, "StorageClass", finding.OK, "the default StorageClass is usual", ""},
		"a driver without a class": {onEKS, func(w *world) { w.classes, w.drivers = nil, []string{wellknown.EBSDriver} }, "StorageClass", finding.Failed, "no StorageClass",
			`"provisioner":"ebs.csi.aws.com"`},
		"a driver with a role": {onEKS, func(w *world) { w.classes = nil }, "StorageClass", finding.Failed, "no StorageClass",
			"--addon-name aws-ebs-csi-driver --service-account-role-arn arn:aws:iam::ACCOUNT:role/prod-ebs-driver"},
		"a driver":                  {onEKS, func(w *world) { w.classes[0].Provisioner, w.drivers = wellknown.InTree, []string{wellknown.EBSDriver} }, "StorageClass", finding.OK, "usual", ""},
		"drivers that nobody needs": {fresh, func(w *world) { w.hides = "csidrivers" }, "StorageClass", finding.OK, "the default StorageClass is usual", ""},
		"drivers of others":         {fresh, func(w *world) { severalClasses(w); w.hides = "csidrivers" }, "StorageClass", finding.Failed, "one of efs, gp3, usual", "=NAME"},
		"drivers that are needed": {onEKS, func(w *world) { w.classes[0].Provisioner, w.hides = wellknown.InTree, "csidrivers" }, "StorageClass", finding.NotChecked,
			"you may not look for the driver of disks", ""},
		"an etcd": {fresh, func(w *world) {
			w.classes, w.provider = nil, &config.Config{Etcd: config.Etcd{Client: config.EtcdClient{Endpoints: []string{"https://etcd"}}}}
		}, "StorageClass", finding.OK, "etcd of yours", ""},
		"no rights":       {fresh, func(w *world) { w.lacks = "clusterroles" }, "rights", finding.Failed, "may not create clusterroles.rbac", "--user='jane'"},
		"nothing to give": {fresh, func(w *world) { w.escalates = true }, "roles", finding.Failed, "may not give Kip its rights", "cluster-admin"},
		"no room":         {fresh, func(w *world) { w.nodes[0].Spec.Unschedulable = true }, "nodes", finding.Failed, "no node is Ready", "kubectl get nodes"},
		"EKS verifies":    {onEKS, func(*world) {}, "signer", finding.Warning, "verifies", "signerName=beta.eks.amazonaws.com/app-serving"},
	})
}

// requested is a request for a certificate of a name, with the name of one of Kip's node.
func requested(t *testing.T, user, signer, name string) certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(10, 1, 2, 3)},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	r := certificatesv1.CertificateSigningRequest{ObjectMeta: meta("", "kip-0-serving-1")}
	r.Spec = certificatesv1.CertificateSigningRequestSpec{Username: user, SignerName: signer,
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: asked})}
	return r
}

// What is asked of the account goes by what is known of the Kip in the cluster.
func TestTheAccountOfAKipIsAskedAboutItsOwnCellsAndRole(t *testing.T) {
	w := installed()
	account := &corev1.ServiceAccount{ObjectMeta: meta("kip-system", "kip")}
	account.Annotations = map[string]string{wellknown.RoleAnnotation: "arn:aws:iam::123456789012:role/kip"}
	w.others = append(w.others, account)
	d := New(Config{Cluster: Cluster{Kube: w.kube(t)}})
	d.own, d.pods = w.nodes[1:], w.kips
	want := finding.Kip{Owner: "id", Role: "arn:aws:iam::123456789012:role/kip",
		Ask: "kubectl exec -n kip-system kip-0 -c kip -- /kipctl doctor --account -f /etc/kip/config/provider.yaml --controller id"}
	if got := d.Kip(t.Context()); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := New(Config{}).Kip(t.Context()); got != (finding.Kip{}) {
		t.Errorf("without a Kip: %+v", got)
	}
}

// onCell is a pod on Kip's node.
func onCell(name string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: meta("shop", name), Spec: corev1.PodSpec{NodeName: "kip-0"}}
	p.Labels = map[string]string{"app": name}
	return p
}

func balancer(policy corev1.ServiceExternalTrafficPolicy, annotations map[string]string) corev1.Service {
	s := corev1.Service{ObjectMeta: meta("shop", "front"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	s.Spec.ExternalTrafficPolicy, s.Spec.Selector = policy, map[string]string{"app": "web"}
	s.Annotations = annotations
	return s
}

func TestWhatIsWrongWithAKipIsFound(t *testing.T) {
	byAddress := map[string]string{annotationTargets: "ip"}
	waits := func(reason, message string) func(*world) {
		return func(w *world) {
			state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
			w.kips[0].Status = corev1.PodStatus{Phase: corev1.PodPending}
			ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "level=INFO\nkip: no such subnet\n"}}
			w.kips[0].Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: kipContainer, RestartCount: 4, State: state, LastTerminationState: ended},
			}
		}
	}
	unscheduled := func(w *world) {
		w.kips[0].Status = corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Message: "pod has unbound immediate PersistentVolumeClaims"}}}
	}
	required := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
	stands := func(affinity *corev1.Affinity) func(*world) {
		return func(w *world) {
			p := onCell("logs-1")
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", Controller: new(true)}}
			p.Status.Conditions = []corev1.PodCondition{{Type: apiv1.NoMachine, Status: corev1.ConditionTrue}}
			w.pods = append(w.pods, p)
			if affinity != nil { // else it is not to be read
				set := &appsv1.DaemonSet{ObjectMeta: meta("shop", "logs")}
				set.Spec.Template.Spec.Affinity = affinity
				w.others = append(w.others, set)
			}
		}
	}
	behind := func(s corev1.Service, change func(*world)) func(*world) {
		return func(w *world) {
			w.pods, w.services = append(w.pods, onCell("web")), append(w.services, s)
			change(w)
		}
	}
	// waiting is a pod of a Deployment that no node takes.
	waiting := func(spec corev1.PodSpec) func(*world) {
		return func(w *world) {
			p := corev1.Pod{ObjectMeta: meta("shop", "web-1"), Spec: spec}
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-abc", Controller: new(true)}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: corev1.PodReasonUnschedulable}}
			w.pods = append(w.pods, p)
		}
	}
	requires := func(all ...corev1.NodeSelectorRequirement) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: all}}}}}
	}
	// near is a Service that keeps its traffic in the zone; so many of the ordinary node and Kip's have one.
	near := func(zones int) func(*world) {
		s := balancer("", nil)
		s.Spec.Type, s.Spec.TrafficDistribution = corev1.ServiceTypeClusterIP, new(corev1.ServiceTrafficDistributionPreferSameZone)
		return behind(s, func(w *world) {
			for i := range zones {
				metav1.SetMetaDataLabel(&w.nodes[i].ObjectMeta, corev1.LabelTopologyZone, "a")
			}
		})
	}
	nothing := func(*world) {}
	deaf := func(w *world) { w.answers = false }
	noDNS := func(w *world) { w.dns = nil }
	noClass := func(w *world) {
		unscheduled(w)
		w.classes[0].Annotations = nil
	}
	noTrust := func(w *world) { w.proxy = Answer{Status: 503, Body: []byte(`{"message":"x509: unknown authority"}`)} }
	request := func(user, signer, name string) func(*world) {
		return func(w *world) {
			w.requests = []certificatesv1.CertificateSigningRequest{requested(t, user, signer, name)}
		}
	}
	const node, account, signer = "system:node:kip-0", "system:serviceaccount:kip-system:kip", certificatesv1.KubeletServingSignerName
	agent := corev1.EnvVar{Name: "AWS_CONTAINER_CREDENTIALS_FULL_URI", Value: "http://169.254.170.23/v1/credentials"}
	// byAgent has Kip's pod get its role by EKS Pod Identity on the node machine, and an agent on each of some nodes, Ready or not.
	byAgent := func(ready bool, on ...string) func(*world) {
		return func(w *world) {
			w.version, w.host = "v1.35.2-eks-113cf36", "https://ABC.gr7.eu-west-1.eks.amazonaws.com"
			w.kips[0].Spec.Containers[0].Env, w.kips[0].Spec.NodeName = []corev1.EnvVar{agent}, "machine"
			if len(on) == 0 {
				return
			}
			of := map[string]string{"app.kubernetes.io/name": wellknown.PodIdentityAgent}
			set := &appsv1.DaemonSet{ObjectMeta: meta("kube-system", wellknown.PodIdentityAgent)}
			set.Spec.Selector = &metav1.LabelSelector{MatchLabels: of}
			w.others = append(w.others, set)
			for _, name := range on {
				p := corev1.Pod{ObjectMeta: meta("kube-system", "agent-"+name), Spec: corev1.PodSpec{NodeName: name}}
				p.Labels = of
				if ready {
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
				}
				w.pods = append(w.pods, p)
			}
		}
	}
	// withAuto adds a node of Auto Mode, on which Kip's pod is or is not.
	withAuto := func(kips bool) func(*world) {
		return func(w *world) {
			byAgent(false)(w)
			n := corev1.Node{ObjectMeta: meta("", "auto-1")}
			n.Labels = map[string]string{wellknown.ComputeType: "auto"}
			if w.nodes = append(w.nodes, n); kips {
				w.kips[0].Spec.NodeName = n.Name
			}
		}
	}
	onCells := func(w *world) {
		byAgent(true, "machine")(w)
		p := onCell("web")
		p.Spec.ServiceAccountName, p.Spec.Containers = "web", []corev1.Container{{Env: []corev1.EnvVar{agent}}}
		w.pods = append(w.pods, p)
	}
	// unreached has a cell that booted so long ago, and whose agent Kip cannot connect to.
	unreached := func(since time.Duration) func(*world) {
		return func(w *world) {
			w.kips[0].Spec.NodeName = "machine"
			cell := apiv1.Cell{ObjectMeta: meta("", "cell-2")}
			cell.CreationTimestamp = metav1.NewTime(now.Add(-2 * time.Hour)) // it waited for capacity
			cell.Status = apiv1.CellStatus{Phase: apiv1.Booting, ManagementIP: "10.1.2.3",
				Waiting: "its agent has not joined: dial tcp 10.1.2.3:6421: i/o timeout",
				Steps:   []apiv1.Step{{Name: apiv1.StepLaunched, Time: metav1.NewMicroTime(now.Add(-since))}}}
			w.cells = append(w.cells, cell)
		}
	}
	const addon = "aws eks create-addon --region eu-west-1 --cluster-name CLUSTER --addon-name eks-pod-identity-agent"
	examineEach(t, map[string]broken{
		"an agent": {installed, byAgent(true, "machine"), "Pod Identity", finding.OK, "kip-system/kip-0 has its role by EKS Pod Identity, whose agent on node machine is Ready", ""},
		"no agent": {installed, byAgent(false), "Pod Identity", finding.Failed, "no DaemonSet kube-system/eks-pod-identity-agent", addon},
		"an agent elsewhere": {installed, byAgent(true, "another"), "Pod Identity", finding.Failed, "is Ready on its node machine",
			"kubectl describe pods -n kube-system -l app.kubernetes.io/name=eks-pod-identity-agent --field-selector spec.nodeName=machine"},
		"an agent that is not Ready": {installed, byAgent(false, "machine"), "Pod Identity", finding.Failed, "is Ready on its node machine", "kubectl describe pods"},
		"on Auto Mode":               {installed, withAuto(true), "Pod Identity", finding.OK, "on each node of Auto Mode", ""},
		"beside Auto Mode":           {installed, withAuto(false), "Pod Identity", finding.Failed, "no DaemonSet kube-system/eks-pod-identity-agent", addon},
		"agents on no cell":          {installed, onCells, "roles of pods", finding.Failed, "pods on cells, such as web, find no credentials", "kubectl annotate serviceaccount -n shop web"},
		"no role by agents":          {installed, byAgent(true, "machine"), "roles of pods", finding.OK, "no pod on Kip's nodes", ""},
		"crashes":                    {installed, waits("CrashLoopBackOff", ""), "pods", finding.Failed, "4 restarts: kip: no such subnet", "kubectl logs -n kip-system kip-0 -c kip --previous"},
		"no image":                   {installed, waits("ImagePullBackOff", "no such image"), "pods", finding.Failed, "no such image", "kubectl set image -n kip-system statefulset/kip kip=IMAGE"},
		"no volume":                  {installed, unscheduled, "pods", finding.Failed, "volume of Kip's store", "kubectl describe pvc -n kip-system"},
		"no pod":                     {installed, func(w *world) { w.kips = nil }, "pods", finding.Failed, "no pod of Kip", findKip},
		"no pod, deaf":               {installed, func(w *world) { w.kips, w.answers = nil, false }, "webhook", finding.Failed, "does not reach", findKip},
		"deaf, of manifests":         {byManifests, deaf, "webhook", finding.Failed, "does not reach", "kubectl apply -k deploy/manifests/kip/overlays/OVERLAY # change first"},
		"no DNS, of Helm":            {installed, noDNS, "DNS", finding.Failed, "no Service", "helm get values release --namespace kip-system --output yaml > values.yaml # add --cluster-dns=ADDRESS to"},
		"no DNS, of others":          {byManifests, noDNS, "DNS", finding.Failed, "no Service", "kubectl edit -n kip-system statefulset/kip # add --cluster-dns=ADDRESS"},
		"no trust, of others": {byManifests, noTrust, "kubelet port", finding.Failed, "does not trust",
			"kubectl edit configmap -n kip-system kip-config # in provider.yaml set servingCertificate.signerName: " + signer},
		"too new, on EKS": {byManifests, func(w *world) { w.version = "v1.40.0-eks-1" }, "version", finding.Failed, "may be 3", "./kustomize/deploy.sh # of a newer"},
		"no class now": {byManifests, noClass, "StorageClass", finding.Failed, "no default",
			`kubectl patch pvc -n kip-system data-kip-0 -p '{"spec":{"storageClassName":"usual"}}'`},
		"no node": {installed, func(w *world) {
			w.nodes, w.kips[0].Spec.Containers[0].Args = w.nodes[:1], []string{"--nodename=kip-0"}
		}, "nodes", finding.Failed, "no node of Kip", "kubectl logs -n kip-system kip-0"},
		"not ready": {installed, func(w *world) {
			w.nodes[1].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "no cloud"}}
		}, "nodes", finding.Failed, "not Ready: no cloud", "kubectl describe node kip-0"},
		"cordoned": {installed, func(w *world) { w.nodes[1].Spec.Unschedulable = true }, "nodes", finding.Failed, "cordoned", "kubectl uncordon kip-0"},
		"another version": {installed, func(w *world) { w.nodes[1].Status.NodeInfo.KubeletVersion = "v1.36.3-kip-1.1.0" }, "versions", finding.Warning,
			"Kip of node kip-0 is 1.1.0, and this kipctl is 1.2.0", "kipctl version"},
		"no definition": {installed, func(w *world) { w.noCRD = true }, "definition of Cell", finding.Failed, "kubectl get cells", "kipctl crd update"},
		"deaf webhook":  {installed, func(w *world) { w.answers = false }, "webhook", finding.Failed, "does not reach Kip's webhook", "--set hostNetwork=true"},
		"deaf, on EKS": {installed, func(w *world) { w.answers, w.version = false, "v1.35.1-eks-1" }, "webhook", finding.Failed, "does not reach",
			`--group-id GROUP-OF-THE-NODES --ip-permissions "IpProtocol=tcp,FromPort=9443,ToPort=9443,UserIdGroupPairs=[{GroupId=$cluster}]"`},
		"deaf, on an instance of EKS": {installed, func(w *world) {
			w.answers, w.version, w.kips[0].Spec.NodeName, w.nodes[0].Spec.ProviderID = false, "v1.35.1-eks-1", "machine", "aws:///us-east-1a/i-0abc"
		}, "webhook", finding.Failed, "does not reach", "--group-id $(aws ec2 describe-instances --region REGION --instance-ids i-0abc --query"},
		"deaf, on a node that lies": {installed, func(w *world) {
			w.answers, w.version, w.kips[0].Spec.NodeName, w.nodes[0].Spec.ProviderID = false, "v1.35.1-eks-1", "machine", "aws:///a/i-0abc;reboot"
		}, "webhook", finding.Failed, "does not reach", "--group-id GROUP-OF-THE-NODES"},
		"a right is gone": {installed, func(w *world) { w.unable = "daemonsets" }, "rights", finding.Failed, "kip-system/kip may not get daemonsets.apps", "helm upgrade release deploy/helm/kip --namespace kip-system --reuse-values --force-conflicts"},
		"of a node":       {byManifests, func(w *world) { w.unable = "nodes" }, "rights", finding.Failed, "may not get nodes", "kubectl apply -k"},
		"a tenant's pod": {installed, func(w *world) {
			p := *w.kips[0].DeepCopy()
			p.Namespace = "shop"
			w.kips = append(w.kips, p)
		}, "nodes", finding.Warning, "pod shop/kip-0 has the labels of Kip's pods, and its service account kip may not act as node kip-0", "kipctl doctor --namespace shop"},
		"a tenant's pod alone": {installed, func(w *world) { w.kips[0].Namespace = "shop" }, "pods", finding.Failed, "no pod of Kip", findKip},
		"no Service": {installed, func(w *world) {
			w.answers = false
			w.hook.Webhooks[0].ClientConfig.Service = &admissionregistrationv1.ServiceReference{Namespace: "kip-system", Name: "kip-webhook"}
		}, "webhook", finding.Failed, "the Service kip-system/kip-webhook of Kip's webhook is gone", "--reuse-values --force-conflicts"},
		"no Service, and a connection": {installed, func(w *world) {
			w.hook.Webhooks[0].ClientConfig.Service = &admissionregistrationv1.ServiceReference{Namespace: "kip-system", Name: "kip-webhook"}
		}, "webhook", finding.Failed, "reaches Kip only until its connection ends", "--force-conflicts"},
		"deaf, restricted": {installed, func(w *world) {
			w.answers = false
			n := &corev1.Namespace{ObjectMeta: meta("", "kip-system")}
			n.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
			w.others = append(w.others, n)
		}, "webhook", finding.Failed, "does not reach", "kubectl label namespace kip-system pod-security.kubernetes.io/enforce=privileged --overwrite"},
		"no webhook":       {installed, func(w *world) { w.answers, w.hook = false, nil }, "webhook", finding.Failed, "not installed", "helm upgrade release deploy/helm/kip --namespace kip-system"},
		"no CA":            {installed, func(w *world) { w.answers, w.hook.Webhooks[0].ClientConfig.CABundle = false, nil }, "webhook", finding.Failed, "not written its CA", "kubectl logs"},
		"may make no pod":  {installed, func(w *world) { w.escalates = true }, "webhook", finding.NotChecked, "you may not dry-run a pod", ""},
		"deaf port":        {installed, func(w *world) { w.proxy = Answer{Status: 503, Body: []byte("dial tcp: i/o timeout")} }, "kubelet port", finding.Failed, "port 10250 of node kip-0", "hostNetwork"},
		"not trusted":      {installed, func(w *world) { w.proxy = Answer{Status: 503, Body: []byte(`{"message":"x509: unknown authority"}`)} }, "kubelet port", finding.Failed, "does not trust", "servingCertificate.source=csr"},
		"may not ask":      {installed, func(w *world) { w.proxy = Answer{Status: 403, Body: []byte("no")} }, "kubelet port", finding.NotChecked, "you may not get nodes/proxy", ""},
		"a request":        {installed, request(node, signer, "kip-0"), "certificate requests", finding.Failed, "names kip-0, 10.1.2.3;", "kubectl certificate approve kip-0-serving-1"},
		"as Kip":           {installed, request(account, signer, "kip-0"), "certificate requests", finding.Failed, "by " + account, "kubectl certificate approve"},
		"of another node":  {installed, request("system:node:machine", signer, "kip-0"), "certificate requests", finding.Warning, `"system:node:machine" made it`, "kubectl describe csr"},
		"another signer":   {installed, request(node, "example.org/x", "kip-0"), "certificate requests", finding.Warning, `signer "example.org/x"`, "kubectl describe csr"},
		"EKS' signer":      {installed, request(node, wellknown.ServingSigner, "kip-0"), "certificate requests", finding.Warning, wellknown.ServingSigner, "kubectl describe csr"},
		"for another name": {installed, request(node, signer, "machine"), "certificate requests", finding.Warning, `["machine"]`, "kubectl describe csr"},
		"stuck cell": {installed, func(w *world) {
			stuck := apiv1.Cell{ObjectMeta: meta("", "cell-2")}
			stuck.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
			stuck.Status = apiv1.CellStatus{Phase: apiv1.Booting, Pod: apiv1.PodReference{Namespace: "shop", Name: "web"}}
			w.cells = append(w.cells, stuck)
		}, "agents", finding.Failed, "1 cells boot for more than 5m0s, such as cell-2 (no reason is given)", "kipctl why shop/web"},
		"an unreached cell":    {installed, unreached(2 * time.Minute), "agents", finding.Warning, "cannot connect to port 6421 of 1 cells for more than 1m0s, such as cell-2 at 10.1.2.3", "kubectl get networkpolicy -n kip-system # and the firewall of node machine"},
		"one that still boots": {installed, unreached(30 * time.Second), "agents", finding.OK, "1 have joined", ""},
		"one for long":         {installed, unreached(time.Hour), "agents", finding.Failed, "such as cell-2 at 10.1.2.3", "TCP port 6421 of 10.1.2.3"},
		"one on EKS": {installed, func(w *world) { w.version = "v1.35.1-eks-1"; unreached(time.Hour)(w) }, "agents", finding.Failed, "such as cell-2 at 10.1.2.3",
			"--ip-permissions 'IpProtocol=tcp,FromPort=6421,ToPort=6421,IpRanges=[{CidrIp=10.1.2.3/32}]'"},
		"no cell": {installed, func(w *world) { w.cells = nil }, "agents", finding.NotChecked, "no cell has joined", ""},
		"old cells": {installed, func(w *world) {
			for i, old := range []string{"image", "image, agent", "agent", ""} {
				c := apiv1.Cell{ObjectMeta: meta("", "old-"+strconv.Itoa(i))}
				c.CreationTimestamp = metav1.NewTime(now.Add(-time.Duration(i) * time.Hour))
				c.Status = apiv1.CellStatus{Phase: apiv1.Bound, Old: old}
				w.cells = append(w.cells, c)
			}
			w.cells = append(w.cells, apiv1.Cell{ObjectMeta: meta("", "ends"), Status: apiv1.CellStatus{Phase: apiv1.Terminating, Old: "image"}})
		}, "age of cells", finding.Warning, "of 5 cells 2 have an image that cells do not get any more, and 2 an agent that is older than Kip, the oldest old-2", "cells.maxAge"},
		"no old cell": {installed, func(*world) {}, "age of cells", finding.OK, "none of 1 cells", ""},
		"an event": {installed, func(w *world) {
			about := corev1.ObjectReference{Kind: "Node", Name: "kip-0"}
			w.events = []corev1.Event{{ObjectMeta: meta("default", "e"), InvolvedObject: about, Type: "Warning",
				Reason: "StoreBehind", Message: "a person decides", LastTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
		}, "events", finding.Warning, "StoreBehind: a person decides", "kubectl describe node kip-0"},
		"a DaemonSet":         {installed, stands(&corev1.Affinity{}), "DaemonSets", finding.Warning, "shop/logs", "kubectl patch daemonset -n shop logs"},
		"a bound DaemonSet":   {installed, stands(required), "DaemonSets", finding.Warning, "shop/logs", "kubectl edit daemonset -n shop logs # add " + notOnKip},
		"an unread DaemonSet": {installed, stands(nil), "DaemonSets", finding.Warning, "shop/logs", "kubectl edit daemonset -n shop logs"},
		"local traffic":       {installed, behind(balancer("Local", nil), nothing), "Services", finding.Failed, "externalTrafficPolicy: Local", "kubectl patch service -n shop front"},
		"by address":          {installed, behind(balancer("", byAddress), nothing), "Services", finding.NotChecked, "has a /28", ""},
		"by address, wrong":   {installed, behind(balancer("", byAddress), func(w *world) { delete(w.nodes[1].Labels, wellknown.ComputeType) }), "Services", finding.Failed, "finds none", "kubectl label node kip-0"},
		"a label of Auto Mode": {installed, waiting(corev1.PodSpec{NodeSelector: map[string]string{
			"type": "virtual-kubelet", "eks.amazonaws.com/instance-category": "c"}}), "node selectors", finding.Failed,
			"pod shop/web-1 waits for a node of Kip with eks.amazonaws.com/instance-category=c, and none has it: these are labels of EKS' own nodes",
			"kubectl edit -n shop deployment/web # take eks.amazonaws.com/instance-category=c out"},
		"an affinity for other labels": {installed, waiting(corev1.PodSpec{Affinity: requires(
			corev1.NodeSelectorRequirement{Key: "type", Operator: corev1.NodeSelectorOpIn, Values: []string{"virtual-kubelet"}},
			corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpExists})}), "node selectors", finding.Failed,
			"with disk Exists, and none", "instance-requirements"},
		"labels that Kip has": {installed, waiting(corev1.PodSpec{NodeSelector: map[string]string{"type": "virtual-kubelet"}}), "node selectors", finding.OK,
			"no pod waits", ""},
		"labels of other nodes": {installed, waiting(corev1.PodSpec{NodeSelector: map[string]string{"eks.amazonaws.com/compute-type": "auto"}}),
			"node selectors", finding.OK, "no pod waits", ""},
		"no zone to keep to":    {installed, near(1), "Services", finding.Warning, "shop/front is to keep its traffic in the zone, and its pod web is on node kip-0", "docs/cluster.md"},
		"a zone to keep to":     {installed, near(2), "Services", finding.OK, "no Service loses its zones", ""},
		"no zones at all":       {installed, near(0), "Services", finding.OK, "no Service loses its zones", ""},
		"no class, and no need": {installed, func(w *world) { w.classes = nil }, "StorageClass", finding.OK, "its store has its volume", ""},
		"balanced":              {installed, behind(balancer("Cluster", nil), nothing), "Services", finding.OK, "no load balancer", ""},
	})
}

// A role that was made for EKS Pod Identity trusts no service account. So its pods that work go on only if the role trusts them before the
// association is gone, and all of them are made again.
func TestPodsThatWorkKeepTheirRoleWhenOthersAreOnCells(t *testing.T) {
	w := onEKS()
	d := New(Config{Cluster: Cluster{Host: w.host, Raw: func(context.Context, string) (Answer, error) {
		return Answer{Status: http.StatusOK, Body: []byte(`{"issuer":"https://oidc.eks.eu-west-1.amazonaws.com/id/A1"}`)}, nil
	}}})
	d.nodes = w.nodes
	p := onCell("web")
	p.Spec.ServiceAccountName = "web"
	agent := corev1.EnvVar{Name: "AWS_CONTAINER_CREDENTIALS_FULL_URI", Value: "http://169.254.170.23/v1/credentials"}
	p.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{agent}}}
	d.onOwn = []corev1.Pod{p}
	commands := strings.Split((identities{d.installation}).rolesOfPods(t.Context())[0].Cure, "\n")
	want := []string{
		"associate-iam-oidc-provider --cluster prod --region eu-west-1",
		`{"Federated": "arn:aws:iam::ACCOUNT:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/A1"}, "Action": "sts:AssumeRoleWithWebIdentity"`,
		"update-assume-role-policy --role-name ROLE",
		"annotate serviceaccount -n shop web eks.amazonaws.com/role-arn=arn:aws:iam::ACCOUNT:role/ROLE",
		"delete-pod-identity-association --region eu-west-1 --cluster-name prod",
		"make all of them again, those on other nodes, too",
	}
	if len(commands) != len(want) {
		t.Fatalf("%d commands, want %d: %q", len(commands), len(want), commands)
	}
	for n, words := range want {
		if !strings.Contains(commands[n], words) {
			t.Errorf("command %d is %q: want %q", n+1, commands[n], words)
		}
	}
}
