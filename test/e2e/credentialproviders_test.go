//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// registryAudience is that of the tokens which a registry of the test takes for passwords.
const registryAudience = "registry.example.com"

// twoProviders writes two credential providers onto each cell: one has a password in a file, the other answers with the token of the
// pod's service account.
var twoProviders = `#cloud-config
write_files:
- {path: /etc/registry-password, permissions: '0600', content: ` + registryPassword + `}
- path: /opt/kip/credential-providers/file
  permissions: '0755'
  content: |
    #!/bin/sh
    cat >/dev/null
    printf '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry",
    "cacheDuration":"5m","auth":{"%s":{"username":"%s","password":"%s"}}}' "$1" "$REGISTRY_USER" "$(cat /etc/registry-password)"
- path: /opt/kip/credential-providers/token
  permissions: '0755'
  content: |
    #!/bin/sh
    token=$(sed 's/.*"serviceAccountToken":"\([^"]*\)".*/\1/')
    printf '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry",
    "cacheDuration":"5m","auth":{"%s":{"username":"token","password":"%s"}}}' "$1" "$token"
`

// allowAudience lets nodes have tokens of an audience.
func allowAudience(t *testing.T, audience string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "test-registry-tokens"}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"request-serviceaccounts-token-audience"}, APIGroups: []string{""}, Resources: []string{audience}}}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}}}
	rbac := world.Admin.RbacV1()
	if _, err := rbac.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rbac.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rbac.ClusterRoleBindings().Delete(context.Background(), meta.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := rbac.ClusterRoles().Delete(context.Background(), meta.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// Not parallel: Kip starts with other settings.
func TestImagesComeByCredentialProvidersOfTheOperators(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	file := filepath.Join(t.TempDir(), "cloud-init.yaml")
	if err := os.WriteFile(file, []byte(twoProviders), 0o600); err != nil {
		t.Fatal(err)
	}
	byFile, fileImage := serveRegistry(t, nil, true)
	byToken, tokenImage := serveRegistryTo(t, nil, func(user, word string) bool {
		if user != "token" {
			return user == registryUser && word == registryPassword // which pushes
		}
		review, err := world.Admin.AuthenticationV1().TokenReviews().Create(context.Background(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: word, Audiences: []string{registryAudience}}}, metav1.CreateOptions{})
		return err == nil && review.Status.Authenticated && review.Status.User.Username == "system:serviceaccount:"+s.NS+":puller"
	})
	allowAudience(t, registryAudience)
	reconfigure(t, map[string]any{
		"cloudInitFile": file,
		"registries":    []any{map[string]any{"host": byFile, "plainHTTP": true}, map[string]any{"host": byToken, "plainHTTP": true}},
		"credentialProviders": []any{
			map[string]any{"name": "file", "matchImages": []string{byFile}, "args": []string{byFile},
				"env": []any{map[string]any{"name": "REGISTRY_USER", "value": registryUser}}},
			map[string]any{"name": "token", "matchImages": []string{byToken + "/team"}, "args": []string{byToken}, "tokenAttributes": map[string]any{
				"serviceAccountTokenAudience": registryAudience, "requiredServiceAccountAnnotationKeys": []string{"example.com/pulls"}}},
			map[string]any{"name": "absent", "matchImages": []string{"*.example.com"}},
		},
	})
	s.Apply(`apiVersion: v1
kind: ServiceAccount
metadata: {name: puller, annotations: {example.com/pulls: "yes"}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: stranger, annotations: {example.com/pulls: "yes"}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: plain}
`)
	pod := func(name, account, image string) string {
		return namespace.Bare(name, fmt.Sprintf(`  serviceAccountName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, imagePullPolicy: Always, command: [sleep, '100000']}
`, account, image))
	}
	s.Apply(pod("by-file", "plain", fileImage))
	s.Apply(pod("by-token", "puller", tokenImage))
	for _, account := range []string{"stranger", "plain"} {
		s.Apply(pod("by-token-of-"+account, account, tokenImage))
	}
	s.WaitReady("by-file")
	s.WaitReady("by-token")
	s.WaitEvent("by-file", "CredentialProviderMissing", "absent (there is no file /opt/kip/credential-providers/absent)")
	// The registry knows the token of the one, and the program is not asked for the other, which lacks the annotation.
	for name, why := range map[string]string{"by-token-of-stranger": "401 Unauthorized", "by-token-of-plain": "no basic auth credentials"} {
		s.WaitEvent(name, "Failed", why)
		if p, err := s.Pod(t.Context(), name); err != nil || p.Status.Phase != corev1.PodPending {
			t.Errorf("pod %s is %s, %v", name, p.Status.Phase, err)
		}
	}
	_, data := s.machine("by-file").userData(t)
	if strings.Contains(string(data), registryPassword) || strings.Contains(string(data), "REGISTRY_USER") {
		t.Error("the user data has what credential providers are told")
	}
}
