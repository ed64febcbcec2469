package main

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestCRDUpdateSaysWhatItDid(t *testing.T) {
	resource := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	for what, tc := range map[string]struct {
		version string // of the one in the cluster, "" for one from before there were versions
		refuses error
		out     string
		err     string
	}{
		"older":     {out: "Updated the definition of cells from version 0 to 3\n"},
		"the same":  {version: "3", out: "The definition of cells has version 3 already\n"},
		"newer":     {version: "4", out: "The definition of cells has version 4, newer than this kipctl's: kept it\n"},
		"no number": {version: "v3", err: `annotation kip.elotl.co/crd-version "v3"`},
		"no rights": {refuses: apierrors.NewForbidden(resource, "", nil), err: "get, create and update customresourcedefinitions"},
	} {
		t.Run(what, func(t *testing.T) {
			definition, err := apiv1.CustomResourceDefinition()
			if err != nil {
				t.Fatal(err)
			}
			definition.Annotations = nil
			if tc.version != "" {
				definition.Annotations = map[string]string{apiv1.AnnotationCRDVersion: tc.version}
			}
			definition.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
			}
			client := fake.NewSimpleClientset(definition)
			client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return tc.refuses != nil, nil, tc.refuses
			})
			c := testCluster(t)
			c.crds = client.ApiextensionsV1().CustomResourceDefinitions()
			r := run(t, c, "crd", "update")
			if r.out != tc.out || (r.failed == nil) != (tc.err == "") || r.failed != nil && !strings.Contains(r.failed.Error(), tc.err) {
				t.Errorf("it prints %q, %v; want %q, %q", r.out, r.failed, tc.out, tc.err)
			}
		})
	}
}
