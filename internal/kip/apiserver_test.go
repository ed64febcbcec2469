package kip

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	apiv1 "github.com/elotl/kip/api/v1"
)

func TestTheDefinitionOfCellsIsInstalledWhoeverElseInstallsIt(t *testing.T) {
	want, err := apiv1.CustomResourceDefinition()
	if err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	older := want.DeepCopy()
	older.Spec.Names.ShortNames = nil
	for name, tc := range map[string]struct {
		exists *apiextensionsv1.CustomResourceDefinition
		verb   string
		fails  error // once
	}{
		"first":                          {},
		"an older one is there":          {exists: older},
		"another Kip makes it meanwhile": {verb: "create", fails: apierrors.NewAlreadyExists(resource, want.Name)},
		"another Kip changes it": {
			exists: older,
			verb:   "update",
			fails:  apierrors.NewConflict(resource, want.Name, errors.New("modified")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.exists != nil {
				objects = append(objects, tc.exists.DeepCopy())
			}
			client := fake.NewSimpleClientset(objects...)
			failed := tc.fails == nil
			client.PrependReactor(tc.verb, "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				if failed {
					return false, nil, nil
				}
				failed = true
				if tc.exists == nil { // the other Kip's
					if err := client.Tracker().Add(older.DeepCopy()); err != nil {
						t.Error(err)
					}
				}
				return true, nil, tc.fails
			})
			crds := client.ApiextensionsV1().CustomResourceDefinitions()
			if err := putCRD(t.Context(), crds, want); err != nil {
				t.Fatal(err)
			}
			got, err := crds.Get(t.Context(), want.Name, metav1.GetOptions{})
			if err != nil || len(got.Spec.Names.ShortNames) != len(want.Spec.Names.ShortNames) || !failed {
				t.Errorf("there is %+v, %v; want it as in the release", got, err)
			}
		})
	}
}

func TestAKubeconfigThatCannotBeReadIsNamed(t *testing.T) {
	unmeasured := func(string) func(http.RoundTripper) http.RoundTripper {
		return func(r http.RoundTripper) http.RoundTripper { return r }
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("\x00\x01 not yaml: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{garbage, "/none/kubeconfig"} {
		_, err := connect(Options{Kubeconfig: file, NodeName: "kip-0"}, unmeasured)
		if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "--kubeconfig") {
			t.Errorf("%s: %v", file, err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := connect(Options{NodeName: "kip-0"}, unmeasured)
	if err == nil || !strings.Contains(err.Error(), "there is no --kubeconfig") {
		t.Errorf("outside of a cluster: %v", err)
	}
}
