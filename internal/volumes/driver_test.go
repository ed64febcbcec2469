package volumes

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/elotl/kip/internal/agentapi"
)

var clouds = CloudDriver{Name: "disks.clouds.example.com", ZoneKey: "topology.disks.clouds.example.com/zone"}

// ofTheCloud is a volume as the cloud's own driver makes it.
func ofTheCloud(change ...func(*corev1.PersistentVolumeSpec)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: clouds.ZoneKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}},
		}}}},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: clouds.Name, VolumeHandle: "vol-1", FSType: "ext4",
		}},
	}}
	for _, f := range change {
		f(&pv.Spec)
	}
	return boundTo("c", pv)
}

func terms(pv *corev1.PersistentVolumeSpec) *[]corev1.NodeSelectorRequirement {
	return &pv.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions
}

func TestTheVolumesOfTheCloudsDriverAreDisksInTheirZones(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	no := &ForeignDiskError{Volume: "pv", Disk: "vol-1"}
	for name, tc := range map[string]struct {
		change             func(*corev1.PersistentVolumeSpec)
		others             error
		without            bool // the cloud has no driver
		refused, waits, at string
	}{
		"a disk": {at: "b"},
		"by the usual label": {at: "b", change: func(pv *corev1.PersistentVolumeSpec) {
			(*terms(pv))[0].Key = corev1.LabelTopologyZone
		}},
		"by both labels": {at: "b", change: func(pv *corev1.PersistentVolumeSpec) {
			*terms(pv) = append(*terms(pv), corev1.NodeSelectorRequirement{
				Key:      corev1.LabelTopologyZone,
				Operator: corev1.NodeSelectorOpIn,
				Values:   []string{"b"},
			})
		}},
		"block": {at: "b", change: func(pv *corev1.PersistentVolumeSpec) {
			pv.VolumeMode, pv.CSI.FSType = &block, ""
		}},
		"the driver's default file system": {at: "b", change: func(pv *corev1.PersistentVolumeSpec) { pv.CSI.FSType = "" }},
		"one pod alone": {at: "b", change: func(pv *corev1.PersistentVolumeSpec) {
			pv.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}},
		"shared": {refused: "Multi-Attach", change: func(pv *corev1.PersistentVolumeSpec) {
			pv.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}},
		"another file system": {refused: `"xfs"`, change: func(pv *corev1.PersistentVolumeSpec) { pv.CSI.FSType = "xfs" }},
		"block, to read": {refused: "readOnly", change: func(pv *corev1.PersistentVolumeSpec) {
			pv.VolumeMode, pv.CSI.FSType, pv.CSI.ReadOnly = &block, "", true
		}},
		"nowhere": {refused: "of 0 zones", change: func(pv *corev1.PersistentVolumeSpec) { pv.NodeAffinity = nil }},
		"in two zones": {refused: "of 2 zones", change: func(pv *corev1.PersistentVolumeSpec) {
			(*terms(pv))[0].Values = []string{"a", "b"}
		}},
		"not in a zone": {refused: "of 0 zones", change: func(pv *corev1.PersistentVolumeSpec) {
			(*terms(pv))[0].Operator = corev1.NodeSelectorOpNotIn
		}},
		"on a disk of Kip's":      {refused: no.Error(), others: no},
		"while the cloud is slow": {waits: ErrUntold.Error(), others: ErrUntold},
		"of a cloud without it":   {refused: "has no node plugin on cells", without: true},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*corev1.PersistentVolumeSpec)
			if tc.change != nil {
				change = append(change, tc.change)
			}
			pv := ofTheCloud(change...)
			client := fake.NewClientset(pv, claimed("c", "pv"))
			r := Resolver{
				Client:      client.CoreV1(),
				Owned:       func(context.Context, *corev1.PersistentVolume) error { return errors.New("it is not Kip's own") },
				Others:      func(context.Context, *corev1.PersistentVolume) error { return tc.others },
				CloudDriver: clouds,
			}
			if tc.without {
				r.CloudDriver = CloudDriver{}
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
				Name:         "v",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
			}}}}
			got, err := r.Needs(t.Context(), pod)
			_, refused := errors.AsType[*UnsupportedError](err)
			_, waits := errors.AsType[*NotReadyError](err)
			switch {
			case tc.refused != "" || tc.waits != "":
				if refused != (tc.refused != "") || waits != (tc.waits != "") || !strings.Contains(err.Error(), tc.refused+tc.waits) {
					t.Errorf("got %v: want %q", err, tc.refused+tc.waits)
				}
			case err != nil || !reflect.DeepEqual(got, Needs{Disks: []Disk{{"vol-1", "pv", tc.at}}}):
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// Kip attaches the disk itself, whatever else an operator has named.
func TestAVolumeOfTheCloudsDriverNeedsNoPlugin(t *testing.T) {
	r := Resolver{
		Client:      fake.NewClientset(ofTheCloud(), claimed("c", "pv")).CoreV1(),
		Others:      all,
		CloudDriver: clouds,
		Drivers:     Drivers{DaemonSets: map[string]cache.ObjectName{clouds.Name: {Namespace: "kube-system", Name: "node"}}},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name:         "v",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
	}}}}
	got, err := r.Needs(t.Context(), pod)
	if err != nil || len(got.Disks) != 1 || len(got.Plugins) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAKubeletSeesADiskOfTheCloudsDriverAsALocalVolume(t *testing.T) {
	pv := ofTheCloud(func(pv *corev1.PersistentVolumeSpec) { pv.CSI.ReadOnly, pv.MountOptions = true, []string{"noatime"} })
	shown := OnCell(pv, new(corev1.PersistentVolumeClaim), clouds)
	if l := shown.Spec.Local; l == nil || shown.Spec.CSI != nil || l.Path != agentapi.DiskPath("vol-1") || *l.FSType != "ext4" ||
		shown.Spec.NodeAffinity == nil || !slices.Equal(shown.Spec.MountOptions, []string{"noatime", "ro"}) {
		t.Errorf("shown as %+v", shown.Spec)
	}
	if pv.Spec.CSI == nil || len(pv.Spec.MountOptions) != 1 || pv.Spec.Capacity.Storage().IsZero() {
		t.Error("the volume was changed")
	}
	if OnCell(pv, new(corev1.PersistentVolumeClaim), CloudDriver{}) != pv {
		t.Error("the volume of a driver that is not the cloud's is changed")
	}
}
