//go:build e2e

package e2e

import (
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// secrets makes two Secrets, one of which the pod named a uses.
func secrets(s *space) {
	s.Helper()
	s.Apply(`apiVersion: v1
kind: Secret
metadata: {name: mine}
stringData: {word: sesame}
---
apiVersion: v1
kind: Secret
metadata: {name: other}
stringData: {word: secret}
---
` + namespace.Bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    env: [{name: WORD, valueFrom: {secretKeyRef: {name: mine, key: word}}}]
`))
	s.WaitReady("a")
}

func TestKipMayReadOnlyWhatItsPodsUse(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	secrets(s)
	asKip, err := kubernetes.NewForConfig(world.KipConfig)
	if err != nil {
		t.Fatal(err)
	}
	node := rest.CopyConfig(world.KipConfig)
	node.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + harness.Node, Groups: []string{"system:nodes"}}
	asNode, err := kubernetes.NewForConfig(node)
	if err != nil {
		t.Fatal(err)
	}
	foreign := rest.CopyConfig(world.KipConfig)
	foreign.Impersonate = rest.ImpersonationConfig{UserName: "system:node:another", Groups: []string{"system:nodes"}}
	asOther, err := kubernetes.NewForConfig(foreign)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	get := func(c kubernetes.Interface, name string) error {
		_, err := c.CoreV1().Secrets(s.NS).Get(ctx, name, metav1.GetOptions{})
		return err
	}
	for range looks {
		if err := get(asNode, "mine"); err != nil {
			t.Errorf("the node may not read its pod's Secret: %v", err)
		}
		if _, err := asKip.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err != nil {
			t.Errorf("Kip may not read as itself what it needs: %v", err)
		}
		if err := get(asNode, "other"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no relationship found") {
			t.Errorf("the node reads another Secret: %v", err)
		}
		for name, err := range map[string]error{
			"its pod's Secret as itself": get(asKip, "mine"),
			"a Secret as another node":   get(asOther, "mine"),
			"all Secrets as the node": func() error {
				_, err := asNode.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
				return err
			}(),
			"the logs of a pod as itself": func() error {
				_, err := asKip.CoreV1().Pods(s.NS).GetLogs("a", &corev1.PodLogOptions{}).DoRaw(ctx)
				return err
			}(),
			"an unbound token as the node": func() error {
				_, err := asNode.CoreV1().ServiceAccounts(s.NS).CreateToken(ctx, "default", &authv1.TokenRequest{}, metav1.CreateOptions{})
				return err
			}(),
			"a pod of its own making": func() error {
				_, err := asKip.CoreV1().Pods(s.NS).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}}, metav1.CreateOptions{})
				return err
			}(),
		} {
			if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("Kip has %s: %v, want Forbidden", name, err)
			}
		}
	}
	if err := get(asNode, "mine"); err != nil {
		t.Errorf("the node may no longer read its pod's Secret: %v", err)
	}
}
