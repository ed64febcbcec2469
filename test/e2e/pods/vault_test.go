//go:build e2e

package pods

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// vaultToken is how long the token lives: the shortest that the API server issues.
const vaultToken = 600

// vault gives a pod with the label what Vault's injector gives it: an init container that fetches secrets into memory, and a sidecar
// that fetches them again, both by a token that is for the vault alone. Here they write what token they used.
func vault(pod *corev1.Pod) {
	if pod.Labels[injected] != "true" {
		return
	}
	mounts := []corev1.VolumeMount{{Name: "home", MountPath: "/home/vault"}, {Name: "secrets", MountPath: "/vault/secrets"},
		{Name: "vault-token", MountPath: "/var/run/secrets/vault", ReadOnly: true}}
	agent := func(name, script string) corev1.Container {
		return corev1.Container{Name: name, Image: "busybox:1.36", Command: []string{"sh", "-ec", script}, VolumeMounts: mounts,
			SecurityContext: &corev1.SecurityContext{
				RunAsUser: ptr.To[int64](100), RunAsGroup: ptr.To[int64](1000), RunAsNonRoot: ptr.To(true),
				AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}
	}
	fetch := "cat /var/run/secrets/vault/token > /vault/secrets/new; mv /vault/secrets/new /vault/secrets/config"
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, agent("vault-agent-init", fetch))
	pod.Spec.Containers = append(pod.Spec.Containers, agent("vault-agent", "while :; do "+fetch+"; sleep 5; done"))
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == "main" {
			c.VolumeMounts = append(c.VolumeMounts, mounts[1])
		}
	}
	memory := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "home", VolumeSource: memory},
		corev1.Volume{Name: "secrets", VolumeSource: memory},
		corev1.Volume{Name: "vault-token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: ptr.To[int32](0o444),
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: "vault", ExpirationSeconds: ptr.To[int64](vaultToken), Path: "token",
			}}},
		}}})
}

// claims are those of a token that this test needs.
type claims struct {
	Audience        []string `json:"aud"`
	Issued, Expires int64
}

func claimsOf(t *testing.T, token string) (c claims) {
	t.Helper()
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts of a token", len(parts))
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Audience []string `json:"aud"`
		Issued   int64    `json:"iat"`
		Expires  int64    `json:"exp"`
	}
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	return claims(all)
}

// It takes nine minutes, in which it does nothing: a kubelet renews a token when four fifths of its life are over.
func TestAnInjectedAgentHasATokenOfItsOwnWhichIsRenewed(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.inject(vault)
	s.Apply(strings.Replace(namespace.Bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, 'cat /vault/secrets/config > /tmp/first; exec sleep 100000']
`), "{name: a}", "{name: a, labels: {"+injected+`: "true"}}`, 1))
	pod := s.WaitReady("a")
	read := func(path string) string {
		t.Helper()
		return strings.TrimSpace(s.Kubectl("exec", "a", "-c", "main", "--", "cat", path))
	}
	if got := s.Kubectl("exec", "a", "-c", "main", "--", "grep", "-c", " /vault/secrets tmpfs ", "/proc/mounts"); got != "1\n" {
		t.Errorf("/vault/secrets is a tmpfs %q times", got)
	}
	first := read("/tmp/first")
	c := claimsOf(t, first)
	if len(c.Audience) != 1 || c.Audience[0] != "vault" || c.Expires-c.Issued < vaultToken || c.Expires-c.Issued > vaultToken+60 {
		t.Errorf("the token has the claims %+v", c)
	}
	s.reviewed(first, "vault", pod)
	// To the API server it is nobody.
	review, err := world.Admin.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: first}}, metav1.CreateOptions{})
	if err != nil || review.Status.Authenticated {
		t.Errorf("without an audience: %+v, %v", review.Status, err)
	}
	second := first
	s.Within(vaultToken*time.Second+namespace.Patience, "the agent has another token", func(ctx context.Context) error {
		out, _, errs := s.Attempt(ctx, "exec", "a", "-c", "main", "--", "cat", "/vault/secrets/config")
		if second = strings.TrimSpace(out); errs != "" || second == "" || second == first {
			return fmt.Errorf("it has the first %s", errs)
		}
		return nil
	})
	if now := time.Now().Unix(); now >= c.Expires {
		t.Errorf("the first had expired %d s before", now-c.Expires)
	}
	if next := claimsOf(t, second); next.Expires <= c.Expires {
		t.Errorf("the second expires at %d, the first at %d", next.Expires, c.Expires)
	}
	s.reviewed(second, "vault", pod)
	now, err := s.Pod(t.Context(), "a")
	if err != nil || now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod started again: %v (%v)", namespace.States(now), err)
	}
}

// reviewed proves that the API server knows a token as the pod's, as a vault asks it.
func (s *space) reviewed(token, audience string, pod *corev1.Pod) {
	s.Helper()
	review, err := world.Admin.AuthenticationV1().TokenReviews().Create(s.Context(),
		&authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token, Audiences: []string{audience}}}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	u := review.Status.User
	if !review.Status.Authenticated || u.Username != "system:serviceaccount:"+s.NS+":default" ||
		fmt.Sprint(u.Extra["authentication.kubernetes.io/pod-uid"]) != fmt.Sprintf("[%s]", pod.UID) ||
		fmt.Sprint(u.Extra["authentication.kubernetes.io/node-name"]) != "["+harness.Node+"]" {
		s.Errorf("the API server says %+v", review.Status)
	}
}
