package volumes

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// published are the drivers of testdata/drivers.yaml with their DaemonSets, by the drivers' names.
func published(t *testing.T) (drivers map[string]*storagev1.CSIDriver, sets map[string]*appsv1.DaemonSet) {
	t.Helper()
	text, err := os.ReadFile("testdata/drivers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	drivers, sets = map[string]*storagev1.CSIDriver{}, map[string]*appsv1.DaemonSet{}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(document, &meta); err != nil {
			t.Fatal(err)
		}
		driver, set := &storagev1.CSIDriver{}, &appsv1.DaemonSet{}
		switch meta.Kind {
		case "CSIDriver":
			err = yaml.UnmarshalStrict(document, driver)
			drivers[driver.Name] = driver
		case "DaemonSet":
			err = yaml.UnmarshalStrict(document, set)
			sets[set.Name] = set
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return drivers, sets
}

// What docs/volumes.md says of drivers as they are published: that a cell can be given their plugins, and what a plugin loses as a static
// pod. Whether its program then works is not to be seen in a manifest.
func TestTheNodePluginsOfPublishedDriversRunOnCells(t *testing.T) {
	drivers, sets := published(t)
	for name, tc := range map[string]struct {
		lacks    []string // variables of Secrets that may be missing
		requests string   // memory that it takes of a machine
	}{
		"nfs.csi.k8s.io":           {requests: "40Mi"},
		"efs.csi.aws.com":          {requests: "0"},
		"fsx.csi.aws.com":          {requests: "0"},
		"s3.csi.aws.com":           {lacks: []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}, requests: "40Mi"},
		"secrets-store.csi.k8s.io": {requests: "120Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			set := sets[name]
			all := of(set, drivers[name])
			all.DaemonSets = map[string]cache.ObjectName{name: {Namespace: set.Namespace, Name: name}}
			plugin, err := all.plugin(t.Context(), "v", name)
			if err != nil {
				t.Fatal(err)
			}
			var pod corev1.Pod
			if err := json.Unmarshal(plugin.Pod, &pod); err != nil {
				t.Fatal(err)
			}
			before := set.Spec.Template.Spec
			if len(pod.Spec.Volumes) != len(before.Volumes) ||
				slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath == nil }) {
				t.Errorf("its volumes are %+v, want the folders of its manifest", pod.Spec.Volumes)
			}
			var lacks []string
			for i, c := range before.Containers {
				for _, e := range c.Env {
					if !slices.ContainsFunc(pod.Spec.Containers[i].Env, func(has corev1.EnvVar) bool { return has.Name == e.Name }) {
						lacks = append(lacks, e.Name)
					}
				}
			}
			if !slices.Equal(lacks, tc.lacks) {
				t.Errorf("it lacks the variables %q, want %q", lacks, tc.lacks)
			}
			if pod.Spec.ServiceAccountName != "" || !pod.Spec.HostNetwork || pod.Spec.HostPID != before.HostPID {
				t.Errorf("its account is %q, hostNetwork %t, hostPID %t", pod.Spec.ServiceAccountName, pod.Spec.HostNetwork, pod.Spec.HostPID)
			}
			if got := plugin.Requests.Memory().String(); got != tc.requests {
				t.Errorf("it takes %s of memory, want %s", got, tc.requests)
			}
			// Beside the pod it is as its manifest says.
			all.Beside = map[string]bool{name: true}
			if plugin, err = all.plugin(t.Context(), "v", name); err != nil || !plugin.Beside || plugin.Pod != nil {
				t.Errorf("beside the pod it is %+v, %v", plugin, err)
			}
		})
		delete(drivers, name)
	}
	for name := range drivers {
		t.Errorf("nothing is said of %s", name)
	}
}
