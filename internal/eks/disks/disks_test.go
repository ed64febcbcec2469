package disks

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/elotl/kip/internal/eks/wellknown"
)

func class(name, provisioner string, usual bool) runtime.Object {
	s := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
	if usual {
		s.Annotations = map[string]string{wellknown.DefaultClass: "true"}
	}
	return s
}

func TestTheClassForAClaimIsOfADriverThatIsThere(t *testing.T) {
	driver := func(name string) runtime.Object {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	ebs := driver(wellknown.EBSDriver)
	for what, tc := range map[string]struct {
		objects              []runtime.Object
		auto                 bool
		usual, usable, makes string
	}{
		"nothing":                         {nil, false, "", "", ""},
		"a driver without a class":        {[]runtime.Object{ebs}, false, "", "", wellknown.EBSDriver},
		"Auto Mode without a class":       {[]runtime.Object{ebs}, true, "", "", wellknown.AutoDriver},
		"a class without its driver":      {[]runtime.Object{class("gp3", wellknown.EBSDriver, false)}, false, "", "", ""},
		"a default without its driver":    {[]runtime.Object{class("gp2", wellknown.InTree, true)}, false, "gp2", "", ""},
		"the in-tree class":               {[]runtime.Object{ebs, class("gp2", wellknown.InTree, false)}, false, "", "gp2", wellknown.EBSDriver},
		"the default before the others":   {[]runtime.Object{ebs, driver("x"), class("a", wellknown.EBSDriver, false), class("b", "x", true)}, false, "b", "b", wellknown.EBSDriver},
		"EBS before those of others":      {[]runtime.Object{ebs, driver("x"), class("a", "x", false), class("b", wellknown.EBSDriver, false)}, false, "", "b", wellknown.EBSDriver},
		"a class of no driver":            {[]runtime.Object{ebs, class("local", "kubernetes.io/no-provisioner", true), class("b", wellknown.EBSDriver, false)}, false, "local", "b", wellknown.EBSDriver},
		"one that is left out":            {[]runtime.Object{ebs, class("own", wellknown.EBSDriver, false)}, false, "", "", wellknown.EBSDriver},
		"a class of Auto Mode":            {[]runtime.Object{class("auto", wellknown.AutoDriver, false)}, true, "", "auto", wellknown.AutoDriver},
		"one of an Auto Mode that is off": {[]runtime.Object{class("auto", wellknown.AutoDriver, false)}, false, "", "", ""},
	} {
		kube := fake.NewClientset(tc.objects...)
		kube.PrependReactor("get", "csidrivers", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if name := a.(clienttesting.GetAction).GetName(); strings.Contains(name, "/") { // which a client refuses to ask for
				t.Errorf("%s: it asks for the driver %s", what, name)
			}
			return false, nil, nil
		})
		d, err := Find(t.Context(), kube, tc.auto)
		if err != nil {
			t.Fatal(err)
		}
		name := func(s *storagev1.StorageClass) string {
			if s == nil {
				return ""
			}
			return s.Name
		}
		usable, err := d.Usable(t.Context(), "own")
		if err != nil {
			t.Fatal(err)
		}
		makes, err := d.Driver(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if name(d.Default) != tc.usual || name(usable) != tc.usable || makes != tc.makes {
			t.Errorf("%s: the default is %q, for a claim %q, of the driver %q: want %q, %q, %q", what, name(d.Default), name(usable), makes,
				tc.usual, tc.usable, tc.makes)
		}
	}
}

func TestTheRoleOfEBSDriverIsThatOfItsAccountOrOfPodIdentity(t *testing.T) {
	const arn = "arn:aws:iam::123456789012:role/kip-ebs-driver"
	account := func(annotations map[string]string) runtime.Object {
		a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ebs-csi-controller-sa"}}
		a.Annotations = annotations
		return a
	}
	pod := func(namespace, address string) runtime.Object {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ebs-csi-controller-1",
			Labels: map[string]string{"app": "ebs-csi-controller"}}}
		p.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "AWS_CONTAINER_CREDENTIALS_FULL_URI", Value: address}}}}
		return p
	}
	const agent = "http://169.254.170.23/v1/credentials"
	for what, tc := range map[string]struct {
		objects []runtime.Object
		want    string
	}{
		"nothing":                 {nil, ""},
		"no role":                 {[]runtime.Object{account(nil), pod("kube-system", "http://127.0.0.1/")}, ""},
		"a role":                  {[]runtime.Object{account(map[string]string{wellknown.RoleAnnotation: arn})}, arn},
		"Pod Identity":            {[]runtime.Object{account(nil), pod("kube-system", agent)}, "EKS Pod Identity"},
		"another pod of the name": {[]runtime.Object{account(nil), pod("shop", agent)}, ""},
	} {
		if got, err := Role(t.Context(), fake.NewClientset(tc.objects...)); err != nil || got != tc.want {
			t.Errorf("%s: %q, %v, want %q", what, got, err, tc.want)
		}
	}
}
