package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/internal/agentapi"
)

func daemonSet(change ...func(*corev1.PodSpec)) *appsv1.DaemonSet {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: "nfs-node"}}
	set.Spec.Template.Labels = map[string]string{"app": "nfs"}
	set.Spec.Template.Spec = corev1.PodSpec{
		ServiceAccountName: "nfs", DeprecatedServiceAccount: "nfs", PriorityClassName: "system-node-critical", SchedulerName: "default-scheduler",
		NodeSelector: map[string]string{"a": "b"}, Affinity: &corev1.Affinity{}, Tolerations: []corev1.Toleration{{}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		Volumes: []corev1.Volume{{Name: "host",
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet"}}}},
		Containers: []corev1.Container{{Name: "driver", Image: "nfs:1", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("20Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("300Mi")},
		}}},
	}
	for _, f := range change {
		f(&set.Spec.Template.Spec)
	}
	return set
}

func driver(attach *bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "nfs.csi.k8s.io"}, Spec: storagev1.CSIDriverSpec{AttachRequired: attach}}
}

// of are the drivers of a cluster with these objects.
func of(set *appsv1.DaemonSet, d *storagev1.CSIDriver) Drivers {
	var objects []runtime.Object
	if set != nil {
		objects = append(objects, set)
	}
	if d != nil {
		objects = append(objects, d)
	}
	client := fake.NewClientset(objects...)
	return Drivers{
		DaemonSets: map[string]cache.ObjectName{"nfs.csi.k8s.io": {Namespace: "sys", Name: "nfs-node"}},
		CSIDriver: func(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
			return client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
		},
		DaemonSet: func(ctx context.Context, name cache.ObjectName) (*appsv1.DaemonSet, error) {
			return client.AppsV1().DaemonSets(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		},
	}
}

func TestThePodsPluginsAreThoseOfItsVolumes(t *testing.T) {
	inline := func(name, driver string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}}
	}
	claim := corev1.Volume{Name: "c",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}
	pv := boundTo("claim", onDisk("pv", "share", ""))
	pv.Spec.CSI.Driver = "nfs.csi.k8s.io"
	client := fake.NewClientset(pv, claimed("claim", "pv"))
	no := ptr.To(false)
	for name, tc := range map[string]struct {
		drivers             Drivers
		volumes             []corev1.Volume
		plugins             int
		notReady, unsupport string
	}{
		"inline":  {drivers: of(daemonSet(), driver(no)), volumes: []corev1.Volume{inline("v", "nfs.csi.k8s.io")}, plugins: 1},
		"a claim": {drivers: of(daemonSet(), driver(no)), volumes: []corev1.Volume{claim}, plugins: 1},
		"both": {drivers: of(daemonSet(), driver(no)), volumes: []corev1.Volume{inline("v", "nfs.csi.k8s.io"), claim,
			inline("w", "nfs.csi.k8s.io")}, plugins: 1},
		"not configured": {drivers: of(daemonSet(), driver(no)), volumes: []corev1.Volume{inline("v", "smb.csi.k8s.io")},
			unsupport: "CSI driver smb.csi.k8s.io has no node plugin on cells"},
		"attached": {drivers: of(daemonSet(), driver(ptr.To(true))), volumes: []corev1.Volume{claim},
			unsupport: "CSIDriver nfs.csi.k8s.io has spec.attachRequired: true"},
		"attached, unsaid": {drivers: of(daemonSet(), driver(nil)), volumes: []corev1.Volume{claim},
			unsupport: "CSIDriver nfs.csi.k8s.io has spec.attachRequired: true"},
		"not installed": {drivers: of(daemonSet(), nil), volumes: []corev1.Volume{claim}, notReady: "there is no CSIDriver nfs.csi.k8s.io"},
		"no DaemonSet":  {drivers: of(nil, driver(no)), volumes: []corev1.Volume{claim}, notReady: "there is no DaemonSet sys/nfs-node"},
		"none":          {drivers: of(nil, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Volumes: tc.volumes}}
			got, err := Resolver{Client: client.CoreV1(), Drivers: tc.drivers}.Needs(t.Context(), pod)
			var notReady *NotReadyError
			var unsupported *UnsupportedError
			switch {
			case tc.notReady != "":
				if !errors.As(err, &notReady) || !strings.Contains(err.Error(), tc.notReady) {
					t.Errorf("got %v: want a NotReadyError with %q", err, tc.notReady)
				}
			case tc.unsupport != "":
				if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), tc.unsupport) {
					t.Errorf("got %v: want an UnsupportedError with %q", err, tc.unsupport)
				}
			case err != nil || len(got.Plugins) != tc.plugins:
				t.Errorf("got %+v, %v: want %d plugins", got, err, tc.plugins)
			case tc.plugins == 1:
				if p := got.Plugins[0]; p.Driver != "nfs.csi.k8s.io" || p.Requests.Memory().String() != "20Mi" {
					t.Errorf("got %s that requests %v", p.Driver, p.Requests)
				}
			}
		})
	}
}

// What a static pod may not have is the kubelet's rule: pkg/api/pod
// HasAPIObjectReference.
func TestAPluginIsAStaticPodThatAsksTheAPINothing(t *testing.T) {
	optional := ptr.To(true)
	set := daemonSet(func(s *corev1.PodSpec) {
		s.Volumes = append(s.Volumes,
			corev1.Volume{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s",
				Optional: optional}}},
			corev1.Volume{Name: "map", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{Optional: optional}}},
			corev1.Volume{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{Optional: optional}}, {DownwardAPI: &corev1.DownwardAPIProjection{}},
				{ConfigMap: &corev1.ConfigMapProjection{Optional: optional}},
			}}}},
			corev1.Volume{Name: "one",
				VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{Secret: &corev1.SecretProjection{Optional: optional}},
				}}}},
		)
		s.Containers[0].Env = []corev1.EnvVar{
			{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
			{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Optional: optional}}},
		}
		s.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{Optional: optional}}}
	})
	before := set.DeepCopy()
	plugin, err := of(set, driver(ptr.To(false))).plugin(t.Context(), "v", "nfs.csi.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := json.Unmarshal(plugin.Pod, &pod); err != nil {
		t.Fatal(err)
	}
	if !agentapi.IsPluginPod(pod.Namespace, pod.Name) || pod.Name != agentapi.PluginPod("nfs.csi.k8s.io") || pod.Kind != "Pod" ||
		pod.APIVersion != "v1" {
		t.Errorf("it is %s %s %s/%s", pod.APIVersion, pod.Kind, pod.Namespace, pod.Name)
	}
	s := pod.Spec
	if s.ServiceAccountName != "" || s.DeprecatedServiceAccount != "" || s.ImagePullSecrets != nil || s.NodeSelector != nil ||
		s.Affinity != nil || s.PriorityClassName != "" || !s.HostNetwork {
		t.Errorf("its spec is %+v", s)
	}
	const critical = 2000001000 // system-node-critical's, the highest of all pods
	if p := s.Priority; p == nil || *p != agentapi.PluginPriority || *p <= critical {
		t.Errorf("its priority is %v: where its machine ends it does so with the pods that it serves", p)
	}
	for _, v := range s.Volumes {
		if v.Secret != nil || v.ConfigMap != nil || v.Projected != nil &&
			(len(v.Projected.Sources) != 1 || v.Projected.Sources[0].DownwardAPI == nil) {
			t.Errorf("volume %s is %+v", v.Name, v.VolumeSource)
		}
	}
	if c := s.Containers[0]; len(c.Env) != 1 || c.Env[0].Name != "NODE" || len(c.EnvFrom) != 0 {
		t.Errorf("its environment is %v, %v", c.Env, c.EnvFrom)
	}
	if len(s.Volumes) != len(before.Spec.Template.Spec.Volumes) {
		t.Errorf("%d volumes: want all %d", len(s.Volumes), len(before.Spec.Template.Spec.Volumes))
	}

	for name, change := range map[string]func(*corev1.PodSpec){
		"Secret keys": func(s *corev1.PodSpec) {
			s.Volumes[0].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}
		},
		"ConfigMap settings": func(s *corev1.PodSpec) {
			s.Volumes[0].VolumeSource = corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "settings"},
			}}
		},
		"a service account's token": func(s *corev1.PodSpec) {
			s.Volumes[0].VolumeSource = corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}},
			}}}
		},
		"kind persistentVolumeClaim": func(s *corev1.PodSpec) {
			s.Volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}
		},
		"kind csi": func(s *corev1.PodSpec) {
			s.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}
		},
		"the variable KEY of container driver": func(s *corev1.PodSpec) {
			s.Containers[0].Env = []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{}}}}
		},
		"variables of container driver": func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{}}}
		},
		"spec.resourceClaims": func(s *corev1.PodSpec) { s.ResourceClaims = []corev1.PodResourceClaim{{}} },
	} {
		_, err := of(daemonSet(change), driver(ptr.To(false))).plugin(t.Context(), "v", "nfs.csi.k8s.io")
		var unsupported *UnsupportedError
		if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "DaemonSet sys/nfs-node") {
			t.Errorf("%v: want an UnsupportedError with %q", err, name)
		}
	}
}

// The set's own pod has what its manifest names.
func TestAPluginBesideThePodMayAskTheAPI(t *testing.T) {
	set := daemonSet(func(s *corev1.PodSpec) {
		s.Volumes[0].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}
	})
	drivers := of(set, driver(ptr.To(false)))
	drivers.Beside = map[string]bool{"nfs.csi.k8s.io": true}
	got, err := drivers.plugin(t.Context(), "v", "nfs.csi.k8s.io")
	if err != nil || !got.Beside || got.DaemonSet.String() != "sys/nfs-node" || got.Volume != "v" || got.Pod != nil || got.Requests != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	drivers = of(nil, driver(ptr.To(false)))
	drivers.Beside = map[string]bool{"nfs.csi.k8s.io": true}
	if _, err := drivers.plugin(t.Context(), "v", "nfs.csi.k8s.io"); err == nil || !strings.Contains(err.Error(),
		"there is no DaemonSet sys/nfs-node") {
		t.Errorf("without its DaemonSet: %v", err)
	}
}
