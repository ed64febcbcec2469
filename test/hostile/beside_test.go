//go:build e2e

package hostile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// set is a DaemonSet with a Secret and a token of its own, and what it does not name. Its service account is no other's.
const set = `apiVersion: v1
kind: ServiceAccount
metadata: {name: guard}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: boss}
---
apiVersion: v1
kind: Secret
metadata: {name: word}
stringData: {word: sesame}
---
apiVersion: v1
kind: Secret
metadata: {name: unnamed}
stringData: {word: treasure}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: red}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: guard}
spec:
  selector: {matchLabels: {app: guard}}
  template:
    metadata: {labels: {app: guard}}
    spec:
      serviceAccountName: guard
      terminationGracePeriodSeconds: 1
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
      containers:
      - name: guard
        image: busybox:1.36
        command: [sh, -c, 'trap "exit 0" TERM; while :; do sleep 0.1; done']
        env: [{name: WORD, valueFrom: {secretKeyRef: {name: word, key: word}}}]
        volumeMounts: [{name: own, mountPath: /own}]
      volumes:
      - name: own
        projected:
          sources:
          - secret: {name: word}
          - configMap: {name: settings}
          - serviceAccountToken: {path: token, audience: guard, expirationSeconds: 3600}
`

// rootOn is what root on a pod's cell asks with: the certificate of its kubelet.
func rootOn(t *testing.T, s *space, pod string) kubernetes.Interface {
	t.Helper()
	cfg, err := s.machine(pod).Kubelet()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Timeout = 0 // which would be in each request, and no kubelet's deletion has it
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// tokenOf asks for a token of a service account, bound to a pod.
func tokenOf(ctx context.Context, client kubernetes.Interface, account string, pod *corev1.Pod, audience string) (string, error) {
	seconds := int64(3600)
	got, err := client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return got.Status.Token, nil
}

// setPod is the set's pod on the node, which stands for its copies.
func setPod(ctx context.Context, sets *space) (*corev1.Pod, error) {
	all, err := sets.PodsOf(ctx, "guard")
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("it has %d pods", len(all))
	}
	return &all[0], nil
}

// probe is something that root on a cell tries.
type probe struct {
	what string
	try  func(ctx context.Context, cell kubernetes.Interface) error
}

// ofTheSet are what only the cells with a copy may do, with what the set's manifest names.
func ofTheSet(pod *corev1.Pod) []probe {
	ns := pod.Namespace
	return []probe{
		{"get the set's Secret", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Secrets(ns).Get(ctx, "word", metav1.GetOptions{})
			return err
		}},
		{"get the set's ConfigMap", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().ConfigMaps(ns).Get(ctx, "settings", metav1.GetOptions{})
			return err
		}},
		{"have a token of the set", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := tokenOf(ctx, c, "guard", pod, "guard")
			return err
		}},
		{"get the set's pod", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
			return err
		}},
	}
}

// ofNobody are what no cell may do, with a copy or without.
func ofNobody(own, pod *corev1.Pod) []probe {
	ns := pod.Namespace
	secrets := func(c kubernetes.Interface) interface {
		List(context.Context, metav1.ListOptions) (*corev1.SecretList, error)
	} {
		return c.CoreV1().Secrets(ns)
	}
	return []probe{
		{"get a Secret beside it", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Secrets(ns).Get(ctx, "unnamed", metav1.GetOptions{})
			return err
		}},
		{"list the Secrets of its namespace", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := secrets(c).List(ctx, metav1.ListOptions{})
			return err
		}},
		{"list all Secrets", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
			return err
		}},
		{"write the set's Secret", func(ctx context.Context, c kubernetes.Interface) error {
			patch := []byte(`{"stringData":{"word":"mine"}}`)
			_, err := c.CoreV1().Secrets(ns).Patch(ctx, "word", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}},
		{"have a token of another service account there", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := tokenOf(ctx, c, "boss", pod, "guard")
			return err
		}},
		{"have a token of the set for the API server", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := tokenOf(ctx, c, "guard", pod, "https://kubernetes.default.svc.cluster.local")
			return err
		}},
		{"have a token of the set for its own pod", func(ctx context.Context, c kubernetes.Interface) error {
			bound := own.DeepCopy()
			bound.Namespace = ns
			_, err := tokenOf(ctx, c, "guard", bound, "guard")
			return err
		}},
		{"make a pod there", func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mine"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "any"}}}}, metav1.CreateOptions{})
			return err
		}},
		{"delete the set's pod", func(ctx context.Context, c kubernetes.Interface) error {
			return c.CoreV1().Pods(ns).Delete(ctx, pod.Name, metav1.DeleteOptions{})
		}},
	}
}

// denied tries all probes on a pod's cell, each of which is to be refused.
func denied(t *testing.T, s *space, pod string, cell kubernetes.Interface, probes ...probe) {
	t.Helper()
	for _, p := range probes {
		if err := p.try(t.Context(), cell); !apierrors.IsForbidden(err) && !apierrors.IsMethodNotSupported(err) {
			t.Errorf("root on the cell of %s may %s: %v, want Forbidden", pod, p.what, err)
		}
	}
}

// Not parallel: it starts Kip with other settings.
func TestRootOnACellReachesOfASetBesideItsPodWhatTheSetNamesAndNoMore(t *testing.T) {
	tier.All(t)
	s, sets := &space{namespace.New(t, world)}, &space{namespace.New(t, world)}
	namespace.Reconfigure(t, world, func(provider map[string]any) {
		provider["cells"].(map[string]any)["daemonSets"] = []any{
			map[string]any{"namespace": sets.NS, "name": "guard", "pods": "guarded=yes", "maxDelay": 60},
		}
	})
	sets.Apply(set)
	s.Apply("apiVersion: v1\nkind: Secret\nmetadata: {name: own}\nstringData: {word: mine}\n---\n" +
		sleeper("with", ", labels: {guarded: 'yes'}", "  volumes: [{name: own, secret: {secretName: own}}]\n") + sleeper("without", "", ""))
	with, without := s.WaitReady("with"), s.WaitReady("without")
	var pod *corev1.Pod
	s.Eventually("the copy runs beside the one pod", func(ctx context.Context) (err error) {
		if pod, err = setPod(ctx, sets); err != nil {
			return err
		}
		cells, err := s.Cells(ctx)
		if err != nil {
			return err
		}
		for _, c := range cells {
			if runs := len(c.Status.Beside) == 1 && c.Status.Beside[0].Ready; runs != (c.Status.Pod.Name == "with") {
				return fmt.Errorf("beside pod %s there is %+v", c.Status.Pod.Name, c.Status.Beside)
			}
		}
		return nil
	})
	on, off := rootOn(t, s, "with"), rootOn(t, s, "without")

	// What docs/threat-model.md says that root on such a cell has; or the rest shows nothing.
	for _, p := range ofTheSet(pod) {
		if err := p.try(t.Context(), on); err != nil {
			t.Errorf("root on the cell of pod with may not %s: %v", p.what, err)
		}
	}
	denied(t, s, "with", on, ofNobody(with, pod)...)
	denied(t, s, "without", off, append(ofTheSet(pod), ofNobody(without, pod)...)...)
	if _, err := off.CoreV1().Secrets(s.NS).Get(t.Context(), "own", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("root on the cell of pod without has the Secret of pod with: %v", err)
	}

	// The pod itself has nothing of its copy: neither files, nor environment, nor the machine's API.
	const find = "grep -rs sesame /proc/[0-9]*/environ /etc /run /tmp /var /root | wc -l"
	if got := s.Kubectl("exec", "with", "--", "sh", "-c", find); got != "0\n" {
		t.Errorf("in the pod there is the word of the copy, %q times", got)
	}
	ip := s.CellOf("with").Status.ManagementIP
	reach := "for port in 6422 10250; do nc -w 3 " + ip + " $port </dev/null && echo reached; done; true"
	if out, code, _ := s.Try("exec", "with", "--", "sh", "-c", reach); code != 0 || strings.Contains(out, "reached") {
		t.Errorf("the pod reaches the API of its machine's kubelet: %q, exit %d", out, code)
	}

	goneIsGone(t, s, sets, on, pod)
}

// goneIsGone has the set go, and checks that root on the cell that ran a copy has nothing of it any more.
func goneIsGone(t *testing.T, s, sets *space, cell kubernetes.Interface, pod *corev1.Pod) {
	t.Helper()
	kept, err := tokenOf(t.Context(), cell, "guard", pod, "guard")
	if err != nil {
		t.Fatal(err)
	}
	if got := review(t, kept); !got.Authenticated {
		t.Errorf("the copy's token is not good: %+v: that it is not later shows nothing", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), namespace.Patience)
	defer cancel()
	word := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "word").String()}
	open, err := cell.CoreV1().Secrets(sets.NS).Watch(ctx, word)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Stop()
	sets.Kubectl("delete", "daemonset", "guard")
	s.Eventually("root on the cell has nothing of the set", func(ctx context.Context) error {
		for _, p := range ofTheSet(pod) {
			if err := p.try(ctx, cell); !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
				return fmt.Errorf("it may %s: %w", p.what, errors.Join(err))
			}
		}
		return nil
	})
	s.Eventually("the token that it kept ends with the set's pod", func(context.Context) error {
		if got := review(t, kept); got.Authenticated {
			return fmt.Errorf("it is good: %+v", got)
		}
		return nil
	})
	sets.Kubectl("patch", "secret", "word", "-p", `{"stringData":{"word":"later"}}`)
	for e := range open.ResultChan() { // ends with the watch
		if is, ok := e.Object.(*corev1.Secret); ok && e.Type != watch.Deleted && string(is.Data["word"]) == "later" {
			t.Error("a watch that was open before shows what the Secret has now")
		}
	}
	denied(t, s, "with", cell, ofNobody(pod, pod)...)
	if _, err := cell.CoreV1().Secrets(s.NS).Get(t.Context(), "own", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod's own Secret: %v", err)
	}
}

// review asks the API server about a token of the set.
func review(t *testing.T, token string) authenticationv1.TokenReviewStatus {
	t.Helper()
	got, err := world.Admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{"guard"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status
}
