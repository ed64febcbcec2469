package provisioner

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/elotl/kip/internal/volumes"
)

func TestAClaimThatIsExpandedIsToldThatItIsNot(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	volume := func(name, node, driver string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeAttributes: map[string]string{volumes.AttributeNode: node}},
			}}}
	}
	claim := func(name, wants, has string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(wants)},
			}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound,
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(has)}},
		}
	}
	client := fake.NewClientset(
		volume("pv-mine", "kip-0", volumes.Driver), claim("mine", "1Gi", "1Gi"),
		volume("pv-earlier", "kip-0", volumes.Driver), claim("earlier", "2Gi", "1Gi"), // while Kip was away
		volume("pv-theirs", "kip-1", volumes.Driver), claim("theirs", "2Gi", "1Gi"),
		volume("pv-foreign", "kip-0", "nfs.csi.k8s.io"), claim("foreign", "2Gi", "1Gi"),
	)
	p := &Provisioner{cfg: Config{Node: "kip-0", Client: client}}
	claims, _, run, err := p.watch()
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	defer running.Wait()
	defer cancel()
	told := func() (list []string) {
		events, err := client.CoreV1().Events("ns").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Reason != "VolumeNotExpanded" || e.Type != corev1.EventTypeWarning {
				t.Errorf("told of %s: %s %s: %s", e.InvolvedObject.Name, e.Type, e.Reason, e.Message)
			}
			list = append(list, fmt.Sprintf("%s x%d: %s", e.InvolvedObject.Name, e.Count, e.Message))
		}
		return list
	}
	eventually := func(n int) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(ctx, time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
			return len(told()) == n, nil
		}); err != nil {
			t.Fatalf("told %q: want %d claims", told(), n)
		}
	}
	eventually(1)
	if got := told()[0]; !strings.Contains(got, "earlier x1: The claim asks for 2Gi and stays at 1Gi") {
		t.Errorf("told %q", got)
	}
	// A change of anything else tells nothing again.
	other := claim("earlier", "2Gi", "1Gi")
	other.Labels = map[string]string{"a": "b"}
	for _, changed := range []*corev1.PersistentVolumeClaim{other, claim("mine", "2Gi", "1Gi")} {
		if _, err := client.CoreV1().PersistentVolumeClaims("ns").Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(2)
	if got := strings.Join(told(), "\n"); !strings.Contains(got, "mine x1") || !strings.Contains(got, "earlier x1") {
		t.Errorf("told %q", got)
	}
	if !claims.HasSynced() {
		t.Error("the provisioner would wait for ever for the claims")
	}
}
