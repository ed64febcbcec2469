package cellapi

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/agentapi"
)

func TestSecretsOfThePodsCSIVolumes(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	ref := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "vault", Name: name}
	}
	volume := func(name, claim, driver, secret string) {
		h.up.put(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: claim, UID: "uid-web-data"},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name}})
		h.up.put(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: "web-data", UID: "uid-web-data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, NodePublishSecretRef: ref(secret), NodeStageSecretRef: ref("stage-" + secret),
				NodeExpandSecretRef:        ref("expand-" + secret),
				ControllerPublishSecretRef: ref("controller-" + secret), ControllerExpandSecretRef: ref("grow-" + secret),
			}},
		}})
	}
	for _, name := range []string{"mine", "stage-mine", "expand-mine", "controller-mine", "grow-mine", "other"} {
		h.up.put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "vault", Name: name}})
	}
	volume("pv-web", "web-data", "nfs.csi.k8s.io", "mine")
	volume("pv-other", "other-data", "nfs.csi.k8s.io", "other")
	m := newMachine(t, "c1")
	h.bindNew(m.join(h), podOn("web"))
	secrets := m.kubelet(t).CoreV1().Secrets("vault")
	for _, name := range []string{"mine", "stage-mine", "expand-mine"} {
		if got, err := secrets.Get(ctx, name, metav1.GetOptions{}); err != nil || got.Name != name {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	// What is for the controller, or another pod's, is not for the cell.
	for _, name := range []string{"controller-mine", "grow-mine", "other"} {
		if _, err := secrets.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", name, err)
		}
	}
	if _, err := secrets.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=mine"}); !apierrors.IsForbidden(err) {
		t.Errorf("a list: %v, want Forbidden", err)
	}

	// A volume that is bound to another claim than the one that names it.
	volume("pv-web", "web-data", "nfs.csi.k8s.io", "mine")
	h.up.put(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-data", UID: "another"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-web"}})
	if _, err := secrets.Get(ctx, "mine", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the Secret of another claim's volume: %v, want Forbidden", err)
	}
}

func TestPluginsOfACellAreNobodysPods(t *testing.T) {
	ctx := context.Background()
	h := newHouse(t)
	m := newMachine(t, "c1")
	c := m.join(h)
	client := m.kubelet(t)

	if _, known := c.CSIDrivers(); known {
		t.Error("the drivers of a kubelet that has said nothing are known")
	}
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	node, err := client.StorageV1().CSINodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, known := c.CSIDrivers(); !known || len(got) != 0 {
		t.Errorf("drivers %v, known %t: want none", got, known)
	}
	node.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "nfs.csi.k8s.io", NodeID: nodeName}}
	if _, err := client.StorageV1().CSINodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, known := c.CSIDrivers(); !known || !slices.Equal(got, []string{"nfs.csi.k8s.io"}) {
		t.Errorf("drivers %v, known %t", got, known)
	}

	// What the kubelet says of the plugin is kept, and told nobody.
	name := agentapi.PluginPod("nfs.csi.k8s.io") + "-" + nodeName
	about := corev1.ObjectReference{Kind: "Pod", Namespace: agentapi.PluginNamespace, Name: name, UID: "static"}
	say := func(kind, reason, message string) {
		t.Helper()
		if _, err := client.CoreV1().Events(agentapi.PluginNamespace).Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e", Namespace: agentapi.PluginNamespace}, InvolvedObject: about, Type: kind,
			Reason: reason, Message: message,
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	say(corev1.EventTypeNormal, "Pulling", "image")
	if got := c.PluginTrouble(); got != "" {
		t.Errorf("trouble is %q: want none", got)
	}
	say(corev1.EventTypeWarning, "Unhealthy", "probe")
	say(corev1.EventTypeWarning, "Failed", "no such image "+strings.Repeat("x", 1<<12))
	say(corev1.EventTypeWarning, "Failed", "Error: ErrImagePull")
	if got := c.PluginTrouble(); !strings.HasPrefix(got, "Failed: no such image") || len(got) > maxTrouble {
		t.Errorf("trouble is %q", got)
	}
	// No pod is made of it, and none other either.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: agentapi.PluginNamespace, Name: name,
		Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"}}}
	if _, err := client.CoreV1().Pods(agentapi.PluginNamespace).Create(ctx, pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a mirror pod: %v, want Forbidden", err)
	}
	pod.Annotations = nil
	if _, err := client.CoreV1().Pods(agentapi.PluginNamespace).Create(ctx, pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a pod: %v, want Forbidden", err)
	}
	if passed := h.up.asked(func(r apiRequest) bool { return r.resource == "events" || r.verb == "create" }); len(passed) != 0 {
		t.Errorf("passed on: %v", passed)
	}
}
