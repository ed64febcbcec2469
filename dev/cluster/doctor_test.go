package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/doctor"
	"github.com/elotl/kip/internal/finding"
)

// examined is what the checks of kipctl doctor find, asked as somebody, by their names. Kip's node counts as one of Kip's only while
// it is to be found.
func examined(t *testing.T, is identities, as string, found bool) map[string]finding.Finding {
	t.Helper()
	label := func(value string) {
		patch := []byte(`{"metadata":{"labels":{"` + apiv1.LabelController + `":` + value + `}}}`)
		if _, err := is.admin.CoreV1().Nodes().Patch(t.Context(), "kip-0", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if found {
		label(`"id"`)
		defer label("null")
	}
	config := rest.CopyConfig(is.config)
	config.Impersonate.UserName = as
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	extensions, err := apiextensionsclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := doctor.Raw(config, kube.CoreV1().RESTClient())
	if err != nil {
		t.Fatal(err)
	}
	d := doctor.New(doctor.Config{
		Cluster: doctor.Cluster{
			Kube:  kube,
			CRDs:  extensions.ApiextensionsV1().CustomResourceDefinitions(),
			Host:  config.Host,
			Raw:   raw,
			Cells: func(context.Context) ([]apiv1.Cell, error) { return nil, nil },
		},
		PodNamespace: "default",
		Version:      "v1",
		Clock:        clock.RealClock{},
	})
	r := &doctor.Runner{Limit: time.Minute, Say: func(string) {}}
	r.Run(t.Context(), d.First()...)
	r.Run(t.Context(), d.Rest()...)
	all := map[string]finding.Finding{}
	for _, one := range r.Results {
		all[one.Area+" "+one.Check] = one.Finding
	}
	return all
}

func wantFindings(t *testing.T, who string, got map[string]finding.Finding, want map[string]finding.Finding) {
	t.Helper()
	for name, w := range want {
		if g := got[name]; g.Outcome != w.Outcome || !strings.Contains(g.Message, w.Message) {
			t.Errorf("%s, %s: %+v, want %s: %s", who, name, g, w.Outcome, w.Message)
		}
	}
}

// With a real API server: the rights, the dry runs and the proxy of nodes. The webhook has been there, and is not any more.
func theDoctorTellsWhatIsSo(t *testing.T, is identities) {
	ctx := t.Context()
	wantFindings(t, "the administrator, before", examined(t, is, "", false), map[string]finding.Finding{
		"cluster API server": finding.Fine("answers"),
		"cluster clock":      finding.Fine("agree"),
		"cluster admission":  finding.Fine("serves"),
		"cluster IP family":  finding.Fine("10.96.0.1"),
		"cluster rights":     finding.Fine("may create"),
		"cluster roles":      finding.Fine("may give"),
		"cluster DNS":        finding.Fail("", "no Service kube-system/kube-dns"),
	})
	wantFindings(t, "the administrator, after", examined(t, is, "", true), map[string]finding.Finding{
		"kip pods":                 finding.Fail("", "no pod of Kip"),
		"kip webhook":              finding.Fail("", "does not reach Kip's webhook"),
		"kip kubelet port":         finding.Fail("", "does not reach the kubelet port"),
		"kip definition of Cell":   finding.Fine("serves cells"),
		"kip certificate requests": finding.Fine("no certificate request"),
	})
	wantFindings(t, "nobody in particular", examined(t, is, "jane", false), map[string]finding.Finding{
		"cluster API server":   finding.Fine("answers"),
		"cluster nodes":        finding.Unchecked("you may not list the nodes"),
		"cluster DNS":          finding.Unchecked("you may not read the Service"),
		"cluster StorageClass": finding.Unchecked("it is not known whether Kip is here"),
		"cluster rights":       finding.Warn("", "you may not create namespaces"),
	})
	// Who may make roles, and not what Kip's have in them.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "maker"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"create", "get", "list"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "joe"}},
	}
	if _, err := is.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := is.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, "who may make roles may not give what he does not have", func() error {
		all := examined(t, is, "joe", false)
		if rights, roles := all["cluster rights"], all["cluster roles"]; rights.Outcome != finding.OK || roles.Outcome != finding.Failed {
			return fmt.Errorf("rights: %+v; roles: %+v", rights, roles)
		}
		return nil
	})
}
