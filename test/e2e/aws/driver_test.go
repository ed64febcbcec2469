//go:build e2e

package aws

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/tier"
)

// ebs is the driver of EBS volumes, zoneKey the label by which its volumes select nodes, and taggedByIt
// the tag that its controller gives to all that it makes.
const ebs, zoneKey, taggedByIt = "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone", "ebs.csi.aws.com/cluster"

// installDriver makes what the driver's installation does, without its controller: its CSIDriver, by
// which Kubernetes attaches its volumes, and a StorageClass.
func (s *space) installDriver() {
	s.Helper()
	attach, wait := true, storagev1.VolumeBindingWaitForFirstConsumer
	api := world.Admin.StorageV1()
	if _, err := api.CSIDrivers().Create(s.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: ebs},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &attach},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	if _, err := api.StorageClasses().Create(s.Context(), &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "ebs"},
		Provisioner:       ebs,
		VolumeBindingMode: &wait,
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		err := errors.Join(api.StorageClasses().Delete(context.Background(), "ebs", metav1.DeleteOptions{}),
			api.CSIDrivers().Delete(context.Background(), ebs, metav1.DeleteOptions{}))
		if err != nil {
			s.Error(err)
		}
	})
}

// zoneOf is the zone in which the driver's controller makes volumes for a node: as its provisioner, it
// reads the node's label that the driver's entry in the CSINode names.
func (s *space) zoneOf(ctx context.Context, node string) (string, error) {
	csi, err := world.Admin.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	n := slices.IndexFunc(csi.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == ebs })
	if n < 0 || !slices.Equal(csi.Spec.Drivers[n].TopologyKeys, []string{zoneKey}) {
		return "", fmt.Errorf("the drivers of node %s are %+v, want %s by %s", node, csi.Spec.Drivers, ebs, zoneKey)
	}
	object, err := world.Admin.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if object.Labels[zoneKey] == "" {
		return "", fmt.Errorf("node %s has no label %s", node, zoneKey)
	}
	return object.Labels[zoneKey], nil
}

// provision makes a volume of EC2 and the PersistentVolume of it for a claim, as the driver's
// controller and its provisioner do (v1.64.0 and v6.4.0, as they were seen on this model). By hand they
// select nodes by the driver's own label, as they did before.
func (s *space) provision(claim, zone string, reclaim corev1.PersistentVolumeReclaimPolicy, class string) (pv, id string) {
	s.Helper()
	pv = s.NS + "-" + claim
	answer, code := s.account(s.Context(), "CreateVolume",
		"AvailabilityZone="+zone, "Size=1", "VolumeType=gp3", "Encrypted=true", "MultiAttachEnabled=false", "ClientToken="+pv,
		"TagSpecification.1.ResourceType=volume", "TagSpecification.1.Tag.1.Key="+taggedByIt, "TagSpecification.1.Tag.1.Value=true")
	var made struct {
		ID string `xml:"volumeId"`
	}
	if err := xml.Unmarshal(answer, &made); code != "" || err != nil || made.ID == "" {
		s.Fatalf("make a volume: %s %v %s", code, err, answer)
	}
	key, attributes := zoneKey, map[string]string(nil)
	if class != "" {
		key, attributes = corev1.LabelTopologyZone, map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1-2-" + ebs}
	}
	if _, err := world.Admin.CoreV1().PersistentVolumes().Create(s.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": ebs}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: reclaim,
			StorageClassName:              class,
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: s.NS, Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{
					Driver:           ebs,
					VolumeHandle:     made.ID,
					FSType:           "ext4",
					VolumeAttributes: attributes,
				},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
			}}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	return pv, made.ID
}

// unprovision removes both once the claim is gone, as the controller does, or an administrator.
func (s *space) unprovision(pv, id string) {
	s.Helper()
	volumes := world.Admin.CoreV1().PersistentVolumes()
	s.Eventually("PersistentVolume "+pv+" is released", func(ctx context.Context) error {
		v, err := volumes.Get(ctx, pv, metav1.GetOptions{})
		if err == nil && v.Status.Phase != corev1.VolumeReleased && v.Status.Phase != corev1.VolumeFailed {
			err = fmt.Errorf("it is %s", v.Status.Phase)
		}
		return err
	})
	if _, code := s.account(s.Context(), "DeleteVolume", "VolumeId="+id); code != "" {
		s.Errorf("delete volume %s: %s", id, code)
	}
	if err := volumes.Delete(s.Context(), pv, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		s.Error(err)
	}
}

const driverClaims = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claimed}
spec: {storageClassName: ebs, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: made-by-hand}
spec: {storageClassName: "", volumeName: VOLUME, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
`

// onDriverClaims is a pod with both.
func onDriverClaims(name string) string {
	return pod(name, "{}") + `    volumeMounts: [{name: claimed, mountPath: /claimed}, {name: made-by-hand, mountPath: /made-by-hand}]
  volumes:
  - {name: claimed, persistentVolumeClaim: {claimName: claimed}}
  - {name: made-by-hand, persistentVolumeClaim: {claimName: made-by-hand}}
`
}

// attachedByKip checks that the instance of a pod has these volumes, and that Kubernetes has not
// attached them, nor is to.
func (s *space) attachedByKip(p *corev1.Pod, ids ...string) {
	s.Helper()
	on := s.of(p)
	for _, id := range ids {
		all := s.state(s.Context()).Volumes
		if !slices.ContainsFunc(all, func(v ec2.Volume) bool { return v.ID == id && v.Instance == on.ID }) {
			s.Errorf("pod %s is on %s; the volumes are %+v, want %s on it", p.Name, on.ID, all, id)
		}
	}
	attachments, err := world.Admin.StorageV1().VolumeAttachments().List(s.Context(), metav1.ListOptions{})
	if err != nil || len(attachments.Items) > 0 {
		s.Errorf("there are VolumeAttachments, which are for controllers that attach: %+v (%v)", attachments, err)
	}
	node, err := world.Admin.CoreV1().Nodes().Get(s.Context(), harness.Node, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	const managed = "volumes.kubernetes.io/controller-managed-attach-detach"
	if value, is := node.Annotations[managed]; is {
		s.Errorf("the node has the annotation %s: %s", managed, value)
	}
}

func TestVolumesOfTheEBSDriverGoFromOneInstanceToTheNext(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	s.installDriver()
	before := s.state(t.Context())
	zone, err := s.zoneOf(t.Context(), harness.Node)
	if err != nil {
		t.Fatal(err)
	}
	byHand, byHandID := s.provision("made-by-hand", zone, corev1.PersistentVolumeReclaimRetain, "")
	s.Apply(strings.Replace(driverClaims, "VOLUME", byHand, 1) + onDriverClaims("writer"))
	s.Eventually("the scheduler has the driver make a volume for a node", func(ctx context.Context) error {
		claim, err := world.Admin.CoreV1().PersistentVolumeClaims(s.NS).Get(ctx, "claimed", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if by := claim.Annotations["volume.kubernetes.io/storage-provisioner"]; by != ebs {
			return fmt.Errorf("the claim's provisioner is %q", by)
		}
		zone, err = s.zoneOf(ctx, claim.Annotations["volume.kubernetes.io/selected-node"])
		return err
	})
	claimed, claimedID := s.provision("claimed", zone, corev1.PersistentVolumeReclaimDelete, "ebs")

	s.attachedByKip(s.WaitReady("writer"), claimedID, byHandID)
	s.Kubectl("exec", "writer", "--", "sh", "-c", "echo precious >/claimed/f && echo old >/made-by-hand/f")
	s.Kubectl("delete", "pod", "writer", "--wait=false")
	s.waitOver("writer", before)
	s.Apply(onDriverClaims("reader"))
	s.attachedByKip(s.WaitReady("reader"), claimedID, byHandID)
	if out := s.Kubectl("exec", "reader", "--", "cat", "/claimed/f", "/made-by-hand/f"); out != "precious\nold\n" {
		t.Errorf("the reader finds %q", out)
	}
	s.Kubectl("delete", "pod", "reader", "--wait=false")
	s.waitOver("reader", before)
	s.Kubectl("delete", "pvc", "claimed", "made-by-hand", "--wait=false")
	s.unprovision(claimed, claimedID)
	s.unprovision(byHand, byHandID)
	if all := s.state(t.Context()).Volumes; len(all) != len(before.Volumes) {
		t.Errorf("there are the volumes %+v, and there were %+v", all, before.Volumes)
	}
}
