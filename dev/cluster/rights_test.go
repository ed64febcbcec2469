package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/dev/manifest"
	"github.com/elotl/kip/internal/admission"
	"github.com/elotl/kip/internal/finding"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/pods"
)

// The driver and the provisioner of Kip's disks, and who makes them.
const (
	ownDriver     = "disk.kip.elotl.co"
	provisionedBy = "pv.kubernetes.io/provisioned-by"
	provisionerSA = "system:serviceaccount:kip-system:kip-provisioner"
)

// identities are clients of one cluster.
type identities struct {
	config                        *rest.Config // of the administrator
	admin, kip, provisioner, node kubernetes.Interface
	kipDynamic, nodeDynamic       dynamic.Interface
	// another virtual node of the same Kip, and one that is none of its nodes
	second, stranger kubernetes.Interface
	// a further virtual node, and the controllers of a cloud
	cloudNode, cloud kubernetes.Interface
}

// started is a control plane on loopback, with deploy/ and nothing else, and those
// who ask it. There can be one in a process.
func started(t *testing.T) identities {
	t.Helper()
	state, err := os.MkdirTemp("/tmp", "kip-rights-") // the path of a socket in it is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(state); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := Start(ctx, Options{
		StateDir:    state,
		Address:     netip.MustParseAddr("127.0.0.2"),
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		NoFsync:     true,
		NodeName:    "kip-0",
		Peers:       map[string]netip.Addr{"kip-1": netip.MustParseAddr("127.0.0.3")},
		Approver:    ApproverNone,
		Log:         slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The end waits for no client. One that has vanished closes no watch, and the API server has a minute for it.
		all, err := kubernetes.NewForConfig(c.AdminConfig())
		if err != nil {
			t.Error(err)
		} else if w, err := all.CoreV1().Nodes().Watch(context.Background(), metav1.ListOptions{}); err != nil {
			t.Error(err)
		} else {
			defer w.Stop()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute/2)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	kip, err := clientcmd.BuildConfigFromFlags("", c.KipKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	who := func(cfg *rest.Config, as ...string) *rest.Config {
		cfg = rest.CopyConfig(cfg)
		if len(as) > 0 {
			cfg.Impersonate = rest.ImpersonationConfig{UserName: as[0], Groups: as[1:]}
		}
		return cfg
	}
	client := func(cfg *rest.Config) kubernetes.Interface {
		all, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	untyped := func(cfg *rest.Config) dynamic.Interface {
		all, err := dynamic.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	node := who(kip, "system:node:kip-0", "system:nodes")
	return identities{
		config:      c.AdminConfig(),
		admin:       client(c.AdminConfig()),
		kip:         client(kip),
		provisioner: client(who(kip, provisionerSA)),
		node:        client(node),
		kipDynamic:  untyped(kip),
		nodeDynamic: untyped(node),
		second:      client(who(kip, "system:node:kip-0-64", "system:nodes")),
		stranger:    client(who(kip, "system:node:kip-0-65", "system:nodes")),
		cloudNode:   client(who(kip, "system:node:"+cloudNode, "system:nodes")),
		cloud:       client(who(c.AdminConfig(), cloudSA, "system:serviceaccounts")),
	}
}

// patience is how long anything may take on a busy machine.
const patience = 3 * time.Minute

// becomes waits until a request is answered as it is to be: policies and the relations
// of nodes are followed by watches.
func becomes(t *testing.T, what string, as func() error) {
	t.Helper()
	var last error
	if err := wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		last = as()
		return last == nil, nil
	}); err != nil {
		t.Fatalf("%s: %v (%v)", what, last, err)
	}
}

// refused is nil for an error that says no, with these words.
func refused(err error, words string) error {
	if err == nil || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), words) {
		return fmt.Errorf("got %w, want it forbidden with %q", err, words)
	}
	return nil
}

// volume is one that Kip makes.
func volume(name string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: ownDriver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: ownDriver, VolumeHandle: "disk-" + name},
			},
		},
	}
	if change != nil {
		change(pv)
	}
	return pv
}

// namesSecret makes a volume the way to a Secret of namespace victim, by the claim of
// a pod on Kip's node.
func namesSecret(pv *corev1.PersistentVolume) {
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: metav1.NamespaceDefault, Name: "claim"}
	pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "victim", Name: "treasure"}
}

func isHostPath(pv *corev1.PersistentVolume) {
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
}

// One test, since there can be one control plane in a process. What each part makes, the next ones use.
func TestRightsOfDeployAreEnoughAndNoMore(t *testing.T) {
	is := started(t)
	for _, part := range []struct {
		name  string
		prove func(*testing.T, identities)
	}{
		{"Kip makes its node", kipMakesItsNode},
		{"each node reads what its own pods name", eachNodeReadsWhatItsOwnPodsName},
		{"kubectl logs works by a certificate of each kind", kubectlLogsWorksByACertificateOfEachKind},
		{"Kip escapes by no volume", kipEscapesByNoVolume},
		{"Kip writes of claims how far their expansion is", kipWritesOfClaimsHowFarTheirExpansionIs},
		{"Kip writes of its node what is its own", kipWritesOfItsNodeWhatIsItsOwn},
		{"the definition of Cell gets no older", theDefinitionOfCellGetsNoOlder},
		{"pods ask for what their namespace is granted", podsAskForWhatTheirNamespaceIsGranted},
		{"Kip writes of its webhook who is trusted", kipWritesOfItsWebhookWhoIsTrusted},
		{"pods are changed as Kip answers", podsAreChangedAsKipAnswers},
		{"kipctl doctor tells what is so", theDoctorTellsWhatIsSo},
		{"pods of a namespace of Kip's are for Kip", podsOfANamespaceOfKipsAreForKip},
		{"clouds leave Kip's node while Kip is away", cloudsLeaveKipsNodeWhileKipIsAway},
		{"deploy.sh installs twice, and all goes with its namespace", deployInstallsTwice},
		{"the API server takes the bases", theAPIServerTakesTheBases},
		{"the API server takes what operators and hosts need", theAPIServerTakesWhatOperatorsAndHostsNeed},
	} {
		t.Run(part.name, func(t *testing.T) { part.prove(t, is) })
	}
}

func kipMakesItsNode(t *testing.T, is identities) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "kip-0",
		Labels: map[string]string{
			"type": "virtual-kubelet", "kubernetes.io/hostname": "kip-0", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"node.kubernetes.io/instance-type": "kip", "node.kubernetes.io/exclude-from-external-load-balancers": "true",
			"kubernetes.io/role":          "agent",
			"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r",
			"team": "a",
		},
	}}
	node.Spec.Taints = []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "kip", Effect: corev1.TaintEffectNoSchedule}}
	becomes(t, "Kip makes a node of another name", func() error {
		other := node.DeepCopy()
		other.Name = "machine"
		_, err := is.kip.CoreV1().Nodes().Create(t.Context(), other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return refused(err, "may not change nodes machine")
	})
	if _, err := is.kip.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatalf("Kip makes its node: %v", err)
	}
	second := node.DeepCopy()
	second.Name, second.Labels["kubernetes.io/hostname"] = "kip-1", "kip-1"
	if _, err := is.kip.CoreV1().Nodes().Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
		t.Errorf("Kip makes its second node: %v", err)
	}
}

// Kip is each of its virtual nodes, and as one it reads nothing of another's pods.
func eachNodeReadsWhatItsOwnPodsName(t *testing.T, is identities) {
	ctx := t.Context()
	_, err := is.kip.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kip-0-64"}}, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("Kip makes its last virtual node: %v", err)
	}
	for pod, node := range map[string]string{"of-first": "kip-0", "of-second": "kip-0-64"} {
		if _, err := is.admin.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: pod}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		becomes(t, "a pod on "+node, func() error {
			_, err := is.admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: pod},
				Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "busybox", EnvFrom: []corev1.EnvFromSource{
					{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: pod}}},
				}}}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	reads := func(by kubernetes.Interface, secret string) error {
		_, err := by.CoreV1().Secrets("default").Get(ctx, secret, metav1.GetOptions{})
		return err
	}
	lists := func(by kubernetes.Interface, node string) error {
		_, err := by.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		return err
	}
	becomes(t, "the first node reads what its pod names", func() error { return reads(is.node, "of-first") })
	becomes(t, "the second node reads what its pod names", func() error { return reads(is.second, "of-second") })
	for what, err := range map[string]error{
		"the first node reads what the second's pod names": refused(reads(is.node, "of-second"), "no relationship found"),
		"the second node reads what the first's pod names": refused(reads(is.second, "of-first"), "no relationship found"),
		"the second node lists the first's pods":           refused(lists(is.second, "kip-0"), "field selector"),
		"the second node lists its own pods":               lists(is.second, "kip-0-64"),
		"Kip is a node that is none of its own":            refused(lists(is.stranger, "kip-0-65"), "cannot impersonate"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, pod := range []string{"of-first", "of-second"} {
		now := int64(0)
		if err := is.admin.CoreV1().Pods("default").Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
	}
}

// The escape: a volume for the claim of a pod on Kip's node that names somebody's
// Secret. It works without the policy, or this test would prove nothing.
func kipEscapesByNoVolume(t *testing.T, is identities) {
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(is.admin.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "victim"}}, metav1.CreateOptions{}))
	treasure := &corev1.SecretReference{Namespace: "victim", Name: "treasure"}
	must(is.admin.CoreV1().Secrets(treasure.Namespace).Create(ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: treasure.Name}}, metav1.CreateOptions{}))
	none := ""
	must(is.admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &none,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{}))
	must(is.admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "has-claim"},
		Spec: corev1.PodSpec{
			NodeName:   "kip-0",
			Containers: []corev1.Container{{Name: "main", Image: "busybox"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}},
		},
	}, metav1.CreateOptions{}))
	made := is.provisioner.CoreV1().PersistentVolumes()
	create := func(by kubernetes.Interface, pv *corev1.PersistentVolume) error {
		_, err := by.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
		return err
	}
	steals := func() error {
		_, err := is.node.CoreV1().Secrets("victim").Get(ctx, "treasure", metav1.GetOptions{})
		return err
	}
	forController := func(pv *corev1.PersistentVolume) { pv.Spec.CSI.ControllerPublishSecretRef = treasure }
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolume)
		words  string
	}{
		"a Secret for the node":       {namesSecret, "name no Secret"},
		"a Secret for the controller": {forController, "name no Secret"},
		"a folder of a machine":       {isHostPath, "own driver only"},
		"another driver":              {func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "nfs.csi.k8s.io" }, "own driver only"},
		"another provisioner":         {func(pv *corev1.PersistentVolume) { pv.Annotations[provisionedBy] = "other" }, "provisioner"},
		"no provisioner":              {func(pv *corev1.PersistentVolume) { pv.Annotations = nil }, "provisioner"},
	} {
		becomes(t, name, func() error { return refused(create(is.provisioner, volume("escape", c.change)), c.words) })
	}
	if err := refused(create(is.kip, volume("escape", nil)), "cannot create resource"); err != nil {
		t.Errorf("Kip makes a volume as itself: %v", err)
	}
	if err := refused(steals(), "no relationship found"); err != nil {
		t.Errorf("before any volume: %v", err)
	}

	if err := create(is.provisioner, volume("own", nil)); err != nil {
		t.Errorf("a volume as Kip makes it: %v", err)
	}
	patch := []byte(`{"metadata":{"finalizers":["external-provisioner.volume.kubernetes.io/finalizer"]}}`)
	if _, err := made.Patch(ctx, "own", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Errorf("the finalizer of a volume of Kip's: %v", err)
	}
	patch = []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := made.Patch(ctx, "own", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Errorf("the finalizer of a volume of Kip's: %v", err)
	}
	if err := made.Delete(ctx, "own", metav1.DeleteOptions{}); err != nil {
		t.Errorf("the removal of a volume of Kip's: %v", err)
	}
	if err := create(is.admin, volume("others", isHostPath)); err != nil {
		t.Fatal(err)
	}
	if err := refused(made.Delete(ctx, "others", metav1.DeleteOptions{}), "own driver only"); err != nil {
		t.Errorf("the removal of another's volume: %v", err)
	}
	if _, err := is.provisioner.CoreV1().Secrets("victim").Get(ctx, "treasure", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the provisioner reads a Secret: %v", err)
	}

	bindings := is.admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	if err := bindings.Delete(ctx, "kip-volumes.kip-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, "without the policy the volume is made", func() error { return create(is.provisioner, volume("escape", namesSecret)) })
	becomes(t, "without the policy the node reads the Secret", steals)
}

func kipWritesOfClaimsHowFarTheirExpansionIs(t *testing.T, is identities) {
	claims := func(by kubernetes.Interface) typedcorev1.PersistentVolumeClaimInterface {
		return by.CoreV1().PersistentVolumeClaims("default")
	}
	// The one without a volume is the claim of the escape.
	if _, err := claims(is.admin).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "grows",
			Labels:      map[string]string{"a": "b"},
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": ownDriver},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("kip"),
			VolumeName:       "somewhere",
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := func(name, body string, sub ...string) error {
		_, err := claims(is.provisioner).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...)
		return err
	}
	becomes(t, "a label by way of the status", func() error {
		return refused(patch("grows", `{"metadata":{"labels":{"a":"c"}}}`, "status"), "of a claim of its own")
	})
	for body, words := range map[string]string{
		`{"status":{"allocatedResources":{"storage":"2Gi"},"allocatedResourceStatuses":{"storage":"ControllerResizeInProgress"},
			"conditions":[{"type":"Resizing","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`: "",
		`{"status":{"capacity":{"storage":"2Gi"},"allocatedResourceStatuses":{"storage":null},"conditions":[]}}`: "",
		`{"metadata":{"annotations":{"a":"b"}}}`:           "of a claim of its own",
		`{"metadata":{"finalizers":["example.com/stay"]}}`: "of a claim of its own",
		`{"status":{"phase":"Lost"}}`:                      "of a claim of its own",
		`{"status":{"accessModes":["ReadWriteMany"]}}`:     "of a claim of its own",
	} {
		err := patch("grows", body, "status")
		if words != "" {
			err = refused(err, words)
		}
		if err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	if err := refused(patch("claim", `{"status":{"capacity":{"storage":"2Gi"}}}`, "status"), "of a claim of its own"); err != nil {
		t.Errorf("a claim without a volume: %v", err)
	}
	if _, err := claims(is.admin).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "anothers",
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": "ebs.csi.aws.com"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("gp3"),
			VolumeName:       "elsewhere",
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := patch("anothers", `{"status":{"allocatedResources":{"storage":"8Ei"}}}`, "status")
	if err := refused(err, "of a claim of its own"); err != nil {
		t.Errorf("a claim of another provisioner: %v", err)
	}
	if err := patch("grows", `{"metadata":{"labels":{"a":"c"}}}`); !apierrors.IsForbidden(err) {
		t.Errorf("a claim's label: %v", err)
	}
	// What Kip passes on of a cell's kubelet, as the node: of claims that the node's pods name.
	byNode := func(name string) error {
		claim, err := claims(is.admin).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = claims(is.node).Patch(t.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},
			"status":{"capacity":{"storage":"1Gi"},"allocatedResourceStatuses":{"storage":"NodeResizeInProgress"},
			"conditions":[{"type":"NodeResizeError","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`,
			claim.UID, claim.ResourceVersion), metav1.PatchOptions{}, "status")
		return err
	}
	if err := byNode("claim"); err != nil {
		t.Errorf("the node and the claim of its pod: %v", err)
	}
	if err := refused(byNode("grows"), "no relationship found"); err != nil {
		t.Errorf("the node and a claim of nobody: %v", err)
	}
	class, err := is.admin.StorageV1().StorageClasses().Get(t.Context(), "kip", metav1.GetOptions{})
	if err != nil || !ptr.Deref(class.AllowVolumeExpansion, false) {
		t.Errorf("the StorageClass is %+v, %v", class, err)
	}
}

func kipWritesOfItsNodeWhatIsItsOwn(t *testing.T, is identities) {
	patch := func(by kubernetes.Interface, body string) error {
		_, err := by.CoreV1().Nodes().Patch(t.Context(), "kip-0", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	for _, c := range []struct {
		by    kubernetes.Interface
		body  string
		words string // of the refusal, "" for none
	}{
		{is.admin, `{"metadata":{"labels":{"node-restriction.kubernetes.io/secure":"no"}},"spec":{"unschedulable":true}}`, ""},
		{is.kip, `{"metadata":{"labels":{"team":"b"},"annotations":{"kip.elotl.co/registration":"x"}}}`, ""},
		{is.kip, `{"metadata":{"labels":{"topology.kubernetes.io/zone":"y"}}}`, ""},
		{is.kip, `{"metadata":{"labels":{"kubernetes.io/role":"agent"}}}`, ""},
		{is.kip, `{"metadata":{"labels":{"node-restriction.kubernetes.io/secure":"yes"}}}`, "Kip writes those of its node's host"},
		{is.kip, `{"metadata":{"labels":{"node-restriction.kubernetes.io/secure":null}}}`, "Kip writes those of its node's host"},
		{is.kip, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, "Kip writes those of its node's host"},
		{is.kip, `{"metadata":{"labels":{"x.k8s.io/a":""}}}`, "Kip writes those of its node's host"},
		{is.kip, `{"spec":{"unschedulable":null}}`, "does not uncordon"},
		{is.node, `{"spec":{"unschedulable":null}}`, "does not uncordon"},
		{is.kip, `{"metadata":{"labels":{"kubernetes.io/arch":null,"karpenter.sh/capacity-type":"spot"}}}`, ""},
		{is.admin, `{"spec":{"unschedulable":null}}`, ""},
	} {
		err := patch(c.by, c.body)
		if c.words != "" {
			err = refused(err, c.words)
		}
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
		}
	}
	const own = "virtual-kubelet.io/provider"
	taint := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Value: "a", Effect: effect}
	}
	for _, c := range []struct {
		by    kubernetes.Interface
		key   string // whose taint is replaced
		with  []corev1.Taint
		words string
	}{
		{is.admin, "admin", []corev1.Taint{taint("admin", corev1.TaintEffectNoSchedule)}, ""},
		{is.kip, "admin", nil, "its node's taints"},
		{is.kip, "admin", []corev1.Taint{taint("admin", corev1.TaintEffectPreferNoSchedule)}, "its node's taints"},
		{is.kip, "more", []corev1.Taint{taint("more", corev1.TaintEffectNoSchedule)}, "its node's taints"},
		{is.kip, own, []corev1.Taint{taint(own, corev1.TaintEffectPreferNoSchedule)}, ""},
		{is.kip, own, nil, ""},
		{is.kip, "kip.elotl.co/removed", []corev1.Taint{taint("kip.elotl.co/removed", corev1.TaintEffectNoSchedule)}, ""},
	} {
		becomes(t, fmt.Sprintf("the taint %s as %v", c.key, c.with), func() error {
			node, err := is.admin.CoreV1().Nodes().Get(t.Context(), "kip-0", metav1.GetOptions{})
			if err != nil {
				return err
			}
			kept := slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == c.key })
			body, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": append(kept, c.with...)}})
			if err != nil {
				return err
			}
			if err = patch(c.by, string(body)); c.words != "" {
				return refused(err, c.words)
			}
			return err
		})
	}
	if err := patch(is.admin, `{"spec":{"unschedulable":true}}`); err != nil {
		t.Fatal(err)
	}
	becomes(t, "Kip marks a cordoned node as taken out", func() error {
		node, err := is.admin.CoreV1().Nodes().Get(t.Context(), "kip-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		others := slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "kip.elotl.co/removed" })
		for _, c := range []struct {
			by     kubernetes.Interface
			taints []corev1.Taint
			words  string
		}{
			{is.admin, others, ""},
			{is.kip, append(slices.Clip(others), taint("kip.elotl.co/removed", corev1.TaintEffectNoSchedule)), "that is cordoned already"},
			{is.admin, append(slices.Clip(others), taint("kip.elotl.co/removed", corev1.TaintEffectNoSchedule)), ""},
		} {
			body, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": c.taints}})
			if err != nil {
				return err
			}
			if err = patch(c.by, string(body)); c.words != "" {
				err = refused(err, c.words)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	// One that was taken out, and comes back.
	for _, body := range []string{`{"spec":{"unschedulable":true}}`, `{"spec":{"unschedulable":null}}`} {
		if err := patch(is.kip, body); err != nil {
			t.Errorf("Kip writes %s of a node that it had taken out: %v", body, err)
		}
	}
}

// The definition of Cell belongs to all Kips of the cluster: an older chart does not take from it what newer ones need.
func theDefinitionOfCellGetsNoOlder(t *testing.T, is identities) {
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	write := func(by kubernetes.Interface, verb, name, body string) error {
		return by.CoreV1().RESTClient().Verb(verb).AbsPath(path, name).Body([]byte(body)).
			SetHeader("Content-Type", "application/merge-patch+json").Do(t.Context()).Error()
	}
	const thing = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s"},"spec":{
		"group":"%s","scope":"Cluster","names":{"plural":"%s","kind":"%s"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
	create := func(by kubernetes.Interface, name, group, plural, kind string) error {
		return by.CoreV1().RESTClient().Post().AbsPath(path).Body(fmt.Appendf(nil, thing, name, group, plural, kind)).
			SetHeader("Content-Type", "application/json").Do(t.Context()).Error()
	}
	if err := refused(create(is.kip, "things.example.com", "example.com", "things", "Thing"), "cannot create resource"); err != nil {
		t.Errorf("Kip makes a definition: %v", err)
	}
	if err := create(is.admin, "cells.kip.elotl.co", "kip.elotl.co", "cells", "Cell"); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for _, c := range []struct{ version, words string }{
		{`"9"`, ""},
		{`"10"`, ""},
		{`"9"`, "has version 10, and this is 9"},
		{`null`, "has version 10, and this is 0"},
		{`"new"`, "must be a whole number"},
		{`"10"`, ""},
	} {
		becomes(t, "version "+c.version, func() error {
			err := write(is.admin, "PATCH", "cells.kip.elotl.co", `{"metadata":{"annotations":{"kip.elotl.co/crd-version":`+c.version+`}}}`)
			if c.words != "" {
				return refused(err, c.words)
			}
			return err
		})
	}
	if err := write(is.kip, "PATCH", "cells.kip.elotl.co", `{"metadata":{"annotations":{"a":"b"}}}`); !apierrors.IsForbidden(err) {
		t.Errorf("Kip changes the definition: %v", err)
	}
	if err := is.kip.CoreV1().RESTClient().Get().AbsPath(path, "cells.kip.elotl.co").Do(t.Context()).Error(); err != nil {
		t.Errorf("Kip reads the definition: %v", err)
	}
}

// What kustomize starts from, each with a node of its own, and its pod in a namespace whose pods are restricted.
func theAPIServerTakesTheBases(t *testing.T, is identities) {
	ctx := t.Context()
	if _, err := is.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// It has the address of no Service.
	if err := is.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, "kip-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"kip/base", "kip/overlays/aws-eks", "virtual-kubelet/base"} {
		objects, err := manifest.Apply(ctx, is.config, "kubectl", read(t, "../../deploy/manifests/"+base+"/kip.yaml"))
		if err != nil {
			t.Errorf("%s: %v", base, err)
			continue
		}
		pod := workloadPod(t, objects)
		if err := is.tryPod(t, "restricted", pod); err != nil {
			t.Errorf("the pod of %s: %v", base, err)
		}
		pod.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
		if err := refused(is.tryPod(t, "restricted", pod), "violates PodSecurity"); err != nil {
			t.Errorf("a pod that is not restricted: %v", err)
		}
	}
}

func podsAskForWhatTheirNamespaceIsGranted(t *testing.T, is identities) {
	ctx := t.Context()
	for name, grants := range map[string]map[string]string{
		"closed": nil,
		"open": {
			"allow.kip.elotl.co/instance-profile": "reader, team-a-*", "allow.kip.elotl.co/security-groups": "sg-1,sg-2",
			"allow.kip.elotl.co/cloud-route": "10.20.0.0/16", "allow.kip.elotl.co/allow-metadata": "true",
			"allow.kip.elotl.co/instance-type": "c5.*,m5.large", "allow.kip.elotl.co/private-ip-only": "false",
			"allow.kip.elotl.co/launch-type": "dedicated", "allow.kip.elotl.co/volume-size": "500Gi",
			"allow.kip.elotl.co/machine": "true", "allow.kip.elotl.co/host-sysctls": "vm.*, net/core/rmem_max",
			"allow.kip.elotl.co/host-modules": "nf-conntrack,ip_vs*",
		},
		"any": {
			"allow.kip.elotl.co/instance-profile": "*", "allow.kip.elotl.co/security-groups": "*", "allow.kip.elotl.co/cloud-route": "*",
			"allow.kip.elotl.co/volume-size": "1e-999999999", "allow.kip.elotl.co/private-ip-only": "true",
		},
	} {
		if _, err := is.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: grants},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: annotations},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox"}}},
		}
	}
	create := func(namespace string, annotations map[string]string) error {
		var err error
		becomes(t, "the service account of namespace "+namespace, func() error {
			_, err = is.admin.CoreV1().Pods(namespace).Create(ctx, pod(annotations), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil && strings.Contains(err.Error(), "serviceaccount") {
				return err
			}
			return nil
		})
		return err
	}
	kips := map[string]pods.Grants{ // of the same namespaces
		"closed": {MaxVolumeBytes: 100 << 30},
		"open": {MaxVolumeBytes: 100 << 30, Namespaces: []pods.NamespaceGrants{{
			Namespace:         "open",
			SecurityGroups:    []string{"sg-1", "sg-2"},
			CloudRoutes:       []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")},
			AllowMetadata:     true,
			PublicAddress:     true,
			Dedicated:         true,
			MaxVolumeBytes:    500 << 30,
			DaemonSetMachines: true,
			HostSysctls:       []string{"vm.*", "net/core/rmem_max"},
			HostModules:       []string{"nf-conntrack", "ip_vs*"},
		}}},
	}
	for _, c := range []struct {
		namespace, annotation, value string
		allowed                      bool
	}{
		{"closed", "instance-profile", "reader", false},
		{"closed", "security-groups", "sg-1", false},
		{"closed", "cloud-route", "10.20.0.0/16", false},
		{"closed", "allow-metadata", "true", false},
		{"closed", "allow-metadata", "T", false},
		{"closed", "allow-metadata", "false", true},
		{"closed", "instance-type", "p5.48xlarge", true},
		{"closed", "launch-type", "spot", true},
		{"open", "instance-profile", " reader", true},
		{"open", "instance-profile", "team-a-x", true},
		{"open", "instance-profile", "writer", false},
		{"open", "instance-profile", "", false},
		{"open", "security-groups", "sg-1, sg-2", true},
		{"open", "security-groups", "sg-1,sg-3", false},
		{"open", "cloud-route", "10.20.1.0/24 10.20.0.0/16", true},
		{"open", "cloud-route", "10.20.1.0/24 10.0.0.0/8", false},
		{"open", "cloud-route", "10.20.1.0/24\t10.0.0.0/8", false},
		{"open", "allow-metadata", "true", true},
		{"open", "instance-type", "c5.*", true},
		{"open", "instance-type", "m5.large", true},
		{"open", "instance-type", "p5.48xlarge", false},
		{"open", "instance-requirements", "x", false},
		{"closed", "instance-requirements", "x", true},
		{"any", "instance-profile", "writer", false}, // since it asks for the metadata service
		{"any", "security-groups", "sg-3", true},
		{"any", "cloud-route", "0.0.0.0/0", true},
		{"any", "allow-metadata", "true", false},
		{"closed", "private-ip-only", " true", true},
		{"closed", "private-ip-only", "false", false},
		{"closed", "private-ip-only", "0", false},
		{"open", "private-ip-only", "false", true},
		{"any", "private-ip-only", "false", false},
		{"closed", "launch-type", "Spot, on-demand", true},
		{"closed", "launch-type", "dedicated", false},
		{"closed", "launch-type", "spot, DEDICATED", false},
		{"closed", "launch-type", "DED\u0130CATED", false}, // whose lower case is dedicated
		{"open", "launch-type", "dedicated,spot", true},
		{"any", "launch-type", "dedicated", false},
		{"closed", "volume-size", "100Gi", true},
		{"closed", "volume-size", " 107374182400 ", true},
		{"closed", "volume-size", "100.001Gi", false},
		{"closed", "volume-size", "1T", false},
		{"closed", "volume-size", "1e-999999999", false},
		{"closed", "volume-size", "1.1.1", false},
		{"closed", "volume-size", "-1Gi", false},
		{"open", "volume-size", "500Gi", true},
		{"open", "volume-size", "501Gi", false},
		{"any", "volume-size", "1Gi", false},
		{"closed", "swap", "100Gi", true},
		{"closed", "swap", " 2147483648 ", true},
		{"closed", "swap", "0", true},
		{"closed", "swap", "100.001Gi", false},
		{"closed", "swap", "1e-999999999", false},
		{"closed", "swap", "1.1.1", false},
		{"any", "swap", "1Gi", false},
		{"closed", "machine", "true", false},
		{"closed", "machine", "T", false},
		{"closed", "machine", " false", true},
		{"open", "machine", "true", true},
		{"any", "machine", "true", false},
		{"closed", "host-sysctls", "vm.swappiness=1", false},
		{"open", "host-sysctls", "vm/max_map_count=1, net.core.rmem_max = 2", true},
		{"open", "host-sysctls", "vm.swappiness=1,net.core.wmem_max=2", false},
		{"closed", "host-modules", "nf_conntrack", false},
		{"open", "host-modules", "nf_conntrack, ip-vs-rr", true},
		{"open", "host-modules", "nf_conntrack,br_netfilter", false},
	} {
		err := create(c.namespace, map[string]string{"pod.elotl.co/" + c.annotation: c.value})
		if !c.allowed {
			err = refused(err, "pod.elotl.co/"+c.annotation+": namespace "+c.namespace+" may not use")
		}
		if err != nil {
			t.Errorf("namespace %s, %s %q: %v", c.namespace, c.annotation, c.value, err)
		}
		if of, same := kips[c.namespace]; same && !strings.HasPrefix(c.annotation, "instance-") { // of these Kip asks at more places
			asked, err := placement.ParseAnnotations(map[string]string{"pod.elotl.co/" + c.annotation: c.value})
			if err == nil {
				err = of.Check(c.namespace, asked)
			}
			if (err == nil) != c.allowed {
				t.Errorf("Kip's own check: namespace %s, %s %q: %v", c.namespace, c.annotation, c.value, err)
			}
		}
	}

	for swap, allowed := range map[string]bool{"60Gi": true, "61Gi": false} { // the root disk is larger by the swap
		err := create("closed", map[string]string{"pod.elotl.co/swap": swap, "pod.elotl.co/volume-size": "40Gi"})
		if !allowed {
			err = refused(err, "pod.elotl.co/swap: namespace closed may not use more than 100Gi, with pod.elotl.co/volume-size")
		}
		if err != nil {
			t.Errorf("swap of %s beside a disk of 40Gi: %v", swap, err)
		}
	}

	// What a pod was granted it keeps; what it was not it gets by no other way.
	granted := pod(map[string]string{"pod.elotl.co/allow-metadata": "true"})
	made, err := is.admin.CoreV1().Pods("open").Create(ctx, granted, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := is.admin.CoreV1().Namespaces().Patch(ctx, "open", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, "the grant is withdrawn", func() error {
		return refused(create("open", map[string]string{"pod.elotl.co/allow-metadata": "true"}), "may not use it")
	})
	write := func(body any, subresources ...string) error {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		_, err = is.admin.CoreV1().Pods("open").Patch(ctx, made.Name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
		return err
	}
	annotated := func(k, v string) any {
		return map[string]any{"metadata": map[string]any{"annotations": map[string]string{k: v}}}
	}
	if err := write(map[string]any{"status": map[string]any{"message": "m"}}, "status"); err != nil {
		t.Errorf("the status of a pod whose grant was withdrawn: %v", err)
	}
	if err := write(annotated("other", "x")); err != nil {
		t.Errorf("another annotation of it: %v", err)
	}
	for _, subresources := range [][]string{nil, {"status"}} {
		err := write(annotated("pod.elotl.co/instance-profile", "reader"), subresources...)
		if err := refused(err, "instance-profile: namespace open"); err != nil {
			t.Errorf("an annotation that is added (%v): %v", subresources, err)
		}
	}
	err = is.admin.CoreV1().Pods("open").Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: made.Name, Annotations: map[string]string{"pod.elotl.co/instance-profile": "reader"}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "kip-0"},
	}, metav1.CreateOptions{})
	if err := refused(err, "instance-profile: namespace open"); err != nil {
		t.Errorf("an annotation of the binding: %v", err)
	}
}

func kipWritesOfItsWebhookWhoIsTrusted(t *testing.T, is identities) {
	ctx := t.Context()
	trusted, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	hooks := is.kip.AdmissionregistrationV1().MutatingWebhookConfigurations()
	other := "https://192.0.2.1/"
	fail, all := admissionregistrationv1.Fail, admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
	}
	for says, c := range map[string]struct {
		change func(*admissionregistrationv1.MutatingWebhookConfiguration)
		words  string
	}{
		"who is trusted": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.CABundle = trusted.CertificatePEM()
		}, ""},
		"all resources": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].Rules = []admissionregistrationv1.RuleWithOperations{all}
		}, "only whom the API server is to trust"},
		"other pods": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks[0].MatchConditions = nil },
			"only whom the API server is to trust"},
		"other namespaces": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[1].NamespaceSelector = &metav1.LabelSelector{}
		}, "only whom the API server is to trust"},
		"another who answers": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks[0].ClientConfig.URL = &other },
			"only whom the API server is to trust"},
		"that nothing goes without it": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks[0].FailurePolicy = &fail },
			"only whom the API server is to trust"},
		"one more": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			more := c.Webhooks[0].DeepCopy()
			more.Name = "more.kip.elotl.co"
			c.Webhooks = append(c.Webhooks, *more)
		}, "only whom the API server is to trust"},
		"one under another name": {func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].Name = "more.kip.elotl.co"
		},
			"only whom the API server is to trust"},
	} {
		becomes(t, "Kip writes of its webhook: "+says, func() error {
			have, err := hooks.Get(ctx, "kip-0", metav1.GetOptions{})
			if err != nil {
				return err
			}
			c.change(have)
			_, err = hooks.Update(ctx, have, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			if c.words != "" {
				return refused(err, c.words)
			}
			return err
		})
	}
	_, err = hooks.Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "mine"}},
		metav1.CreateOptions{})
	if err := refused(err, "cannot create resource"); err != nil {
		t.Errorf("Kip makes a webhook: %v", err)
	}
	if err := refused(hooks.Delete(ctx, "kip-0", metav1.DeleteOptions{}), "cannot delete resource"); err != nil {
		t.Errorf("Kip removes its webhook: %v", err)
	}
	_, err = is.kip.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err := refused(err, "cannot list resource"); err != nil {
		t.Errorf("Kip reads webhooks: %v", err)
	}
}

// The webhook of deploy/, and the code that answers it, with the rights of deploy/, at the
// address at which webhooksFor has the API server call.
func podsAreChangedAsKipAnswers(t *testing.T, is identities) {
	authority, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- admission.New(admission.Config{
			Name: "kip-0",
			Own:  is.kipDynamic,
			Nodes: func(context.Context) ([]admission.Node, error) {
				return []admission.Node{{Name: "kip-0", As: is.nodeDynamic}}, nil
			},
			Listen: func(ctx context.Context) (net.Listener, error) {
				return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(webhookPort)))
			},
			Authorities: func(context.Context) (pki.Authorities, error) { return pki.Authorities{Signing: authority}, nil },
			Rules: func() admission.Rules {
				return admission.Rules{
					Label: admission.Label{Key: "type", Value: "virtual-kubelet"},
					Taint: &corev1.Taint{Key: "virtual-kubelet.io/provider", Value: "kip", Effect: corev1.TaintEffectNoSchedule},
				}
			},
			Machines: func(_ context.Context, pod types.UID) (admission.Machine, bool, error) {
				return admission.Machine{Type: "nano", MilliCPU: 250, MemoryBytes: 192 << 20}, true, nil
			},
			Clock: clock.RealClock{},
			Log:   slog.New(slog.DiscardHandler),
		}).Run(ctx)
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for name, labels := range map[string]map[string]string{"for-kip": {"kip.elotl.co/pods": "true"}, "for-anybody": nil} {
		if _, err := is.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const instance = "node.kubernetes.io/instance-type"
	affinity := func(values ...string) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "type", Operator: corev1.NodeSelectorOpIn, Values: values},
				{Key: instance, Operator: corev1.NodeSelectorOpIn, Values: []string{"c5"}},
			}}}}}}
	}
	for _, c := range []struct {
		says, namespace string
		spec            corev1.PodSpec
		changed         bool
	}{
		{"a pod that selects Kip's nodes", "for-anybody",
			corev1.PodSpec{NodeSelector: map[string]string{"type": "virtual-kubelet", instance: "c5"}}, true},
		{"one that does so by affinity", "for-anybody", corev1.PodSpec{Affinity: affinity("virtual-kubelet")}, true},
		{"one that selects other nodes, too", "for-anybody", corev1.PodSpec{Affinity: affinity("virtual-kubelet", "other")}, false},
		{"one that selects an instance alone", "for-anybody", corev1.PodSpec{NodeSelector: map[string]string{instance: "c5"},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}}, false},
		{"the same in a namespace of Kip's", "for-kip", corev1.PodSpec{NodeSelector: map[string]string{instance: "c5"}}, true},
		{"one there for another node", "for-kip", corev1.PodSpec{NodeSelector: map[string]string{"type": "other", instance: "c5"}}, false},
		{"one there on a node", "for-kip", corev1.PodSpec{NodeName: "machine", NodeSelector: map[string]string{instance: "c5"}}, false},
	} {
		c.spec.Containers = []corev1.Container{{Name: "main", Image: "busybox"}}
		asked := 0
		becomes(t, c.says, func() error {
			pod, err := is.admin.CoreV1().Pods(c.namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: c.spec},
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return err
			}
			forever := 0
			for _, t := range pod.Spec.Tolerations {
				if t.Effect == corev1.TaintEffectNoExecute && t.TolerationSeconds == nil {
					forever++
				}
			}
			isKips := pod.Annotations["pod.elotl.co/instance-type"] == "c5" && pod.Spec.NodeSelector[instance] == "" && forever == 2
			untouched := len(pod.Annotations) == 0 && forever == 0
			if asked++; c.changed && !isKips || !c.changed && !untouched {
				return fmt.Errorf("it has annotations %v, selects %v and tolerates %v", pod.Annotations, pod.Spec.NodeSelector, pod.Spec.Tolerations)
			}
			return nil
		})
		if !c.changed && asked != 1 {
			t.Errorf("%s was changed at first", c.says)
		}
	}

	// What a selection becomes has to be granted as well.
	_, err = is.admin.CoreV1().Pods("for-anybody").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
		Spec: corev1.PodSpec{
			Containers:   []corev1.Container{{Name: "main", Image: "busybox"}},
			NodeSelector: map[string]string{"type": "virtual-kubelet", "karpenter.sh/capacity-type": "dedicated"},
		},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err := refused(err, "pod.elotl.co/launch-type: namespace for-anybody may not use it"); err != nil {
		t.Errorf("a pod that selects dedicated hosts: %v", err)
	}
	eachPodHasAHostOfItsOwn(t, is)
	resizesAreBoundedByTheMachine(t, is)
	wantFindings(t, "while Kip answers", examined(t, is, "", true), map[string]finding.Finding{
		"kip webhook": finding.Fine("asks Kip about pods"),
	})
}

// The optional policy, while no Kip answers: the namespaces and the webhook are there.
func podsOfANamespaceOfKipsAreForKip(t *testing.T, is identities) {
	ctx := t.Context()
	objects, err := manifest.Parse(deploy.Namespaces)
	if err != nil {
		t.Fatal(err)
	}
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	var binding admissionregistrationv1.ValidatingAdmissionPolicyBinding
	for i, into := range []any{&policy, &binding} {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects[i].Object, into, true); err != nil {
			t.Fatal(err)
		}
	}
	registered := is.admin.AdmissionregistrationV1()
	if _, err := registered.ValidatingAdmissionPolicies().Create(ctx, &policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := registered.ValidatingAdmissionPolicyBindings().Create(ctx, &binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ofKip := map[string]string{"type": "virtual-kubelet"}
	for says, c := range map[string]struct {
		namespace string
		spec      corev1.PodSpec
		refused   bool
	}{
		"a pod for any node":                   {"for-kip", corev1.PodSpec{}, true},
		"one for other nodes":                  {"for-kip", corev1.PodSpec{NodeSelector: map[string]string{"type": "other"}}, true},
		"one on a machine":                     {"for-kip", corev1.PodSpec{NodeName: "machine", NodeSelector: ofKip}, true},
		"one for Kip's nodes":                  {"for-kip", corev1.PodSpec{NodeSelector: ofKip}, false},
		"a pod for any node, of another space": {"for-anybody", corev1.PodSpec{}, false},
	} {
		c.spec.Containers = []corev1.Container{{Name: "main", Image: "busybox"}}
		becomes(t, says, func() error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: c.spec}
			_, err := is.admin.CoreV1().Pods(c.namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if c.refused {
				return refused(err, "are for Kip's nodes")
			}
			return err
		})
	}
}
