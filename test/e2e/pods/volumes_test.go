//go:build e2e

package pods

import (
	"context"
	"fmt"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

func TestVolumesAreWhatAKubeletMakesOfThem(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(`apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: red, shape: round}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {word: sesame}
---
` + namespace.Bare("a", `  containers:
  - name: main
    image: busybox:1.36
    command: [sleep, infinity]
    env:
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: COLOUR, valueFrom: {configMapKeyRef: {name: settings, key: colour}}}
    - {name: WORD, valueFrom: {secretKeyRef: {name: password, key: word}}}
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: settings, mountPath: /one/shape, subPath: shape}
    - {name: password, mountPath: /password, readOnly: true}
    - {name: all, mountPath: /all}
    - {name: scratch, mountPath: /scratch}
    - {name: scratch, mountPath: /frozen, readOnly: true}
    - {name: memory, mountPath: /memory}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: password, secret: {secretName: password, defaultMode: 0400}}
  - name: all
    projected:
      sources:
      - configMap: {name: settings, items: [{key: colour, path: config/colour}]}
      - secret: {name: password}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
      - serviceAccountToken: {path: token, expirationSeconds: 600}
  - {name: scratch, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
`))
	pod := s.WaitReady("a")
	in := func(script string) string {
		t.Helper()
		return strings.TrimSpace(s.Kubectl("exec", "a", "--", "sh", "-c", script))
	}
	for script, want := range map[string]string{
		"echo $IP":                                pod.Status.PodIP,
		"echo $NODE":                              harness.Node,
		"echo $COLOUR $WORD":                      "red sesame",
		"cat /settings/colour /settings/shape":    "redround",
		"cat /one/shape":                          "round",
		"cat /password/word":                      "sesame",
		"stat -L -c %a /password/word":            "400",
		"cat /all/config/colour":                  "red",
		"cat /all/name":                           "a",
		"echo kept > /scratch/f && cat /frozen/f": "kept",
		"grep -c ' /memory tmpfs ' /proc/mounts":  "1",
		"ip -4 addr show eth0 | grep -c " + pod.Status.PodIP + "/": "1",
	} {
		if got := in(script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	if out, code, errs := s.Try("exec", "a", "--", "touch", "/frozen/g"); code == 0 || !strings.Contains(errs, "Read-only file system") {
		t.Errorf("a write to a read-only mount: exit %d %s%s", code, out, errs)
	}

	// The bound token is the pod's service account to the API server.
	config := rest.AnonymousClientConfig(world.Config)
	config.BearerToken = in("cat /all/token")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	me, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("the API server refuses the pod's token: %v", err)
	}
	if got, want := me.Status.UserInfo.Username, "system:serviceaccount:"+s.NS+":default"; got != want {
		t.Errorf("the token is that of %s, want %s", got, want)
	}
	if got := me.Status.UserInfo.Extra["authentication.kubernetes.io/node-name"]; len(got) != 1 || got[0] != harness.Node {
		t.Errorf("the token's node is %v, want %s", got, harness.Node)
	}

	// Changes reach the running pod; a subPath keeps what it had.
	s.Kubectl("patch", "configmap", "settings", "-p", `{"data":{"colour":"blue","shape":"square"}}`)
	s.Kubectl("patch", "secret", "password", "-p", `{"stringData":{"word":"alohomora"}}`)
	s.Eventually("the changes are in the pod", func(context.Context) error {
		if got := in("cat /settings/colour /password/word"); got != "bluealohomora" {
			return fmt.Errorf("the pod sees %q", got)
		}
		return nil
	})
	if got := in("cat /one/shape"); got != "round" {
		t.Errorf("the subPath changed to %q", got)
	}
}
