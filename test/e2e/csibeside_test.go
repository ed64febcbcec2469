//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// asks is a driver whose plugin needs a Secret, asks the API for a ConfigMap as its service account, as that of secrets-store
// reads its SecretProviderClasses, and then a provider, which another DaemonSet runs on the same node.
func asks(s *space, driver string) string {
	return strings.NewReplacer("serviceAccountName: default", "serviceAccountName: plugin",
		"nodeSelector: {kubernetes.io/os: linux, driver: wanted}", "nodeSelector: {type: virtual-kubelet}",
		"tolerations: [{key: anything, operator: Exists}]", "tolerations: [{operator: Exists}]",
		"args: [-driver="+driver+", -socket=/csi/csi.sock]",
		"args: [-driver="+driver+", -socket=/csi/csi.sock, -ask=/api/v1/namespaces/"+s.NS+"/configmaps/classes, -provider=/providers/vault.sock]",
		"        - {name: kubelet, mountPath:", "        - {name: providers, mountPath: /providers}\n        - {name: kubelet, mountPath:",
		"      - {name: kubelet, hostPath:", "      - {name: providers, "+providers+"}\n      - {name: kubelet, hostPath:",
		"secretKeyRef: {name: missing, key: more, optional: true}", "secretKeyRef: {name: plugin, key: more}",
	).Replace(csiPlugin(driver, csiImage, "false")) + `apiVersion: v1
kind: ServiceAccount
metadata: {name: plugin}
---
apiVersion: v1
kind: Secret
metadata: {name: plugin}
stringData: {more: sesame}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: classes}
data: {class: gold}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: plugin}
rules: [{apiGroups: [""], resources: [configmaps], resourceNames: [classes], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: plugin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: plugin}
subjects: [{kind: ServiceAccount, name: plugin}]
`
}

// providers is where plugin and provider meet, as the chart of secrets-store has it.
const providers = "hostPath: {path: /etc/kubernetes/secrets-store-csi-providers, type: DirectoryOrCreate}"

const providerSet = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: vault-csi-provider}
spec:
  selector: {matchLabels: {app: vault-csi-provider}}
  template:
    metadata: {labels: {app: vault-csi-provider}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      tolerations: [{operator: Exists}]
      containers:
      - name: provider
        image: "` + csiImage + `"
        args: [-provide=/provider/vault.sock]
        volumeMounts: [{name: providers, mountPath: /provider}]
      volumes: [{name: providers, ` + providers + `}]
`

// besideNames are the pods of DaemonSets that run beside a pod.
func (s *space) besideNames(pod string) (names []string) {
	for _, b := range s.CellOf(pod).Status.Beside {
		names = append(names, b.Name)
	}
	return names
}

// Not parallel: it starts Kip anew.
func TestANodePluginThatAsksTheAPIRunsBesideThePodsWithItsVolumes(t *testing.T) {
	tier.All(t)
	server := serveCSI(t)
	s := newSpace(t)
	const driver = "secrets.csi.example.com"
	s.csiDrivers(driver)
	s.Apply(asks(s, driver))
	s.Cleanup(func() {
		_ = world.Admin.StorageV1().CSIDrivers().Delete(context.Background(), driver, metav1.DeleteOptions{})
	})
	s.Apply("apiVersion: v1\nkind: Secret\nmetadata: {name: inline}\nstringData: {inlineword: friend}\n")
	inline := func(name string) string {
		return withVolume(name, "csi: {driver: "+driver+`, volumeAttributes: {server: "`+server.url+`"}, nodePublishSecretRef: {name: inline}}`)
	}
	// As a static pod it has not what its manifest names.
	s.Apply(inline("a"))
	s.WaitEvent("a", "VolumeUnsupported", "beside in cells.csiDrivers")

	reconfigure(t, map[string]any{
		"csiDrivers": []any{map[string]any{"name": driver, "daemonSet": s.NS + "/" + driver, "beside": true}},
		"daemonSets": []any{map[string]any{"namespace": s.NS, "name": "vault-csi-provider"}},
	})
	s.Apply(providerSet)
	s.Apply(namespace.Sleeper("plain"))
	s.WaitReady("a")
	s.WaitReady("plain")
	set := s.setPod(driver, "")
	got := s.in("a", "cat /data/attributes /data/secrets")
	for _, want := range []string{"friend", "serviceAccount.tokens", "vault", `"csi.storage.k8s.io/pod.name":"a"`} {
		if !strings.Contains(got, want) {
			t.Errorf("its volume has no %s:\n%s", want, got)
		}
	}
	if notes := s.republished("a"); !strings.Contains(notes, "gold") || !strings.Contains(notes, "silver") {
		t.Errorf("the plugin was told by the API and the provider: %s", notes)
	}
	provider := s.setPod("vault-csi-provider", "")
	if names := s.besideNames("a"); len(names) != 2 || !slices.Contains(names, set.Name) || !slices.Contains(names, provider.Name) {
		t.Errorf("beside the pod run %v, want %s and %s", names, set.Name, provider.Name)
	}
	if names := s.besideNames("plain"); len(names) != 1 || names[0] != provider.Name {
		t.Errorf("beside a pod without such volumes run %v, want %s", names, provider.Name)
	}

	// Over a restart of Kip, and what is written last is not lost.
	killKip(t)
	startKip(t)
	s.Apply(strings.Replace(strings.Replace(inline("job"), `trap "exit 0" TERM; echo started; while :; do sleep 0.1; done`,
		"echo the last > /data/content", 1), "spec:\n", "spec:\n  restartPolicy: Never\n", 1))
	s.WaitPod("job", "has Succeeded", namespace.HasPhase(corev1.PodSucceeded))
	s.Eventually("its cell is gone", s.NoCellOf("job"))
	s.Eventually("the server has what it wrote", func(context.Context) error {
		server.mu.Lock()
		defer server.mu.Unlock()
		for _, content := range server.content {
			if content == "the last\n" {
				return nil
			}
		}
		return fmt.Errorf("it has %q", server.content)
	})
	s.Eventually("the copy beside a still runs", func(context.Context) error {
		if got := s.beside("a", set.Name); got != "ready true, 0 restarts, " {
			return errors.New(got)
		}
		return nil
	})
	s.deleteAll("a", "job", "plain")
}
