//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// claim is a claim on a disk of the local cloud.
func claim(name, more string) string {
	return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name +
		"}\nspec: {storageClassName: kip, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}" + more + "}\n---\n"
}

// withVolume is a sleeper with a volume at /data; volume is its source, in braces.
func withVolume(name, volume string) string {
	return namespace.Sleeper(name) + "    volumeMounts: [{name: data, mountPath: /data}]\n  volumes: [{name: data, " + volume + "}]\n"
}

func (s *space) in(pod, script string) string {
	s.Helper()
	return strings.TrimSpace(s.Kubectl("exec", pod, "--", "sh", "-c", script))
}

// volumeOf returns the volume of a claim that is bound.
func (s *space) volumeOf(name string) *corev1.PersistentVolume {
	s.Helper()
	pvc, err := world.Admin.CoreV1().PersistentVolumeClaims(s.NS).Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	pv, err := world.Admin.CoreV1().PersistentVolumes().Get(s.Context(), pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return pv
}

// diskFiles are the disks of the local cloud that there are for a volume.
func diskFiles(t *testing.T, pv *corev1.PersistentVolume) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(world.State, "cloud", "disks", pv.Spec.CSI.VolumeHandle, "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) > 0 {
		world.SawDisk()
	}
	return files
}

// noVolumes waits until all volumes of the namespace, and their disks, are gone.
func (s *space) noVolumes(pvs ...*corev1.PersistentVolume) {
	s.Helper()
	s.Eventually("the volumes and their disks are gone", func(ctx context.Context) error {
		for _, pv := range pvs {
			if _, err := world.Admin.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("volume %s is still there (%v)", pv.Name, err)
			}
			if files := diskFiles(s.T, pv); len(files) > 0 {
				return fmt.Errorf("%v is still there", files)
			}
		}
		return nil
	})
}

const database = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 1
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      nodeSelector: {type: virtual-kubelet}
      terminationGracePeriodSeconds: 2
      containers:
      - name: main
        image: busybox:1.36
        command: [sh, -c, 'trap "exit 0" TERM; date >> /data/starts; sync; while :; do sleep 0.1; done']
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: kip, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`

func TestAStatefulSetKeepsItsDataWhenItsPodAndItsCellEnd(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.Apply(database)
	first := s.WaitReady("db-0")
	if got := s.in("db-0", "grep -c ' /data ext4 ' /proc/mounts"); got != "1" {
		t.Errorf("/data is mounted as ext4 %s times", got)
	}
	pv := s.volumeOf("data-db-0")
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != "disk.kip.elotl.co" || len(diskFiles(t, pv)) != 1 {
		t.Fatalf("the volume is %+v with %v", pv.Spec.PersistentVolumeSource, diskFiles(t, pv))
	}
	s.in("db-0", "echo precious > /data/f")

	// The pod ends in good order.
	s.Kubectl("delete", "pod", "db-0")
	second := s.WaitPod("db-0", "is another and Ready", func(p *corev1.Pod) bool { return p.UID != first.UID && namespace.IsReady(p) })
	if got := s.in("db-0", "cat /data/f; wc -l < /data/starts"); got != "precious\n2" {
		t.Errorf("after the pod: %q", got)
	}
	// Its machine dies.
	s.in("db-0", "echo more >> /data/f; sync")
	s.machine("db-0").kill(s)
	s.WaitEvent("db-0", "CellLost", "")
	s.WaitPod("db-0", "runs again on another cell", func(p *corev1.Pod) bool {
		return namespace.IsReady(p) &&
			(p.UID != second.UID || p.Status.ContainerStatuses[0].ContainerID != second.Status.ContainerStatuses[0].ContainerID)
	})
	if got := s.in("db-0", "cat /data/f; wc -l < /data/starts"); got != "precious\nmore\n3" {
		t.Errorf("after the cell: %q", got)
	}
	s.Kubectl("delete", "statefulset", "db")
	s.Kubectl("delete", "pvc", "data-db-0")
	s.noVolumes(pv)
}

func TestASecondPodOfAClaimWaitsUntilTheFirstIsGone(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	const source = "persistentVolumeClaim: {claimName: data}"
	s.Apply(claim("data", "") + withVolume("a", source))
	s.WaitReady("a")
	s.in("a", "echo mine > /data/f")
	s.Apply(withVolume("b", source))
	s.WaitEvent("b", "VolumeInUse", s.NS+"/a")
	s.NoOtherCells("a")
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitReady("b")
	if got := s.in("b", "cat /data/f"); got != "mine" {
		t.Errorf("the second pod reads %q", got)
	}
	pv := s.volumeOf("data")
	s.Kubectl("delete", "pod", "b")
	s.Kubectl("delete", "pvc", "data")
	s.noVolumes(pv)
}

func TestAnEphemeralVolumeLivesAndEndsWithItsPod(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(strings.Replace(withVolume("a",
		"ephemeral: {volumeClaimTemplate: {spec: {storageClassName: kip, accessModes: [ReadWriteOncePod], resources: {requests: {storage: 64Mi}}}}}"),
		"spec:\n", "spec:\n  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 2000}\n", 1))
	s.WaitReady("a")
	// The group of the pod owns it, or the user could not write.
	if got := s.in("a", "touch /data/f && stat -c %g /data/f"); got != "2000" {
		t.Errorf("the group of a new file is %s", got)
	}
	pv := s.volumeOf("a-data")
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
	s.noVolumes(pv)
}

func TestARetainedVolumeKeepsItsDisk(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(claim("data", "") + withVolume("a", "persistentVolumeClaim: {claimName: data}"))
	s.WaitReady("a")
	pv := s.volumeOf("data")
	s.Kubectl("patch", "pv", pv.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
	s.Kubectl("delete", "pvc", "data")
	s.Eventually("the volume is released", func(ctx context.Context) error {
		now, err := world.Admin.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.VolumeReleased {
			err = errors.New("it is " + string(now.Status.Phase))
		}
		return err
	})
	// Whoever removes disks has seen it when one that comes later is gone.
	s.Apply(claim("later", "") + withVolume("b", "persistentVolumeClaim: {claimName: later}"))
	s.WaitReady("b")
	later := s.volumeOf("later")
	s.Kubectl("delete", "pod", "b")
	s.Kubectl("delete", "pvc", "later")
	s.noVolumes(later)
	if len(diskFiles(t, pv)) != 1 {
		t.Error("its disk is gone")
	}
	s.Kubectl("patch", "pv", pv.Name, "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	s.noVolumes(pv)
}

// expanded waits until a claim has that size, and nothing is left to do.
func (s *space) expanded(name, size string) {
	s.Helper()
	s.Eventually("claim "+name+" has "+size, func(ctx context.Context) error {
		pvc, err := world.Admin.CoreV1().PersistentVolumeClaims(s.NS).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		left := len(pvc.Status.Conditions) + len(pvc.Status.AllocatedResourceStatuses)
		if has := pvc.Status.Capacity.Storage().String(); has != size || left > 0 {
			return fmt.Errorf("it has %s, and its status is %+v", has, pvc.Status)
		}
		return nil
	})
}

// ask has a claim ask for more.
func (s *space) ask(claim, size string) {
	s.Helper()
	s.Kubectl("patch", "pvc", claim, "-p", `{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`)
}

// isNotExpandedFor is what remains on a host whose root lacks CAP_SYS_RESOURCE, as in most containers: its kernel
// grows no file system that is mounted, and the kubelet says so of the claim and of its pod.
func (s *space) isNotExpandedFor(pod, why string) {
	s.Helper()
	s.WaitEvent(pod, "VolumeResizeFailed", why)
	s.Eventually("the claim says why", func(ctx context.Context) error {
		pvc, err := world.Admin.CoreV1().PersistentVolumeClaims(s.NS).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range pvc.Status.Conditions {
			if c.Type == corev1.PersistentVolumeClaimNodeResizeError && strings.Contains(c.Message, why) &&
				pvc.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizeInProgress {
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", pvc.Status)
	})
	pv := s.volumeOf("data")
	if has := pv.Spec.Capacity.Storage().String(); has != "128Mi" {
		s.Errorf("the volume has %s", has)
	}
	if got := s.in(pod, "cat /data/f"); got != "precious" {
		s.Errorf("the pod reads %q", got)
	}
	s.Kubectl("delete", "pod", pod, "--wait=false")
	s.WaitGone(pod)
	s.Kubectl("delete", "pvc", "data")
	s.noVolumes(pv)
}

func TestAClaimIsExpandedUnderItsPodAndForTheNextOne(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	const source = "persistentVolumeClaim: {claimName: data}"
	s.Apply(claim("data", "") + withVolume("a", source))
	first := s.WaitReady("a")
	s.in("a", "echo precious > /data/f")
	const mebibytes = "df -m /data | awk 'END {print $(NF-4)}'"
	size := func(pod string) (mib int) {
		s.Helper()
		if _, err := fmt.Sscan(s.in(pod, mebibytes), &mib); err != nil {
			s.Fatal(err)
		}
		return mib
	}
	if mib := size("a"); mib > 64 {
		t.Fatalf("the file system has %d MiB of a disk of 64", mib)
	}
	s.ask("data", "128Mi")
	if here, err := configs.InspectHost("/"); err != nil {
		t.Fatal(err)
	} else if !here.SysResource {
		s.isNotExpandedFor("a", "Permission denied to resize filesystem")
		return
	}
	s.expanded("data", "128Mi")
	if mib := size("a"); mib <= 96 || mib > 128 {
		t.Errorf("the file system has %d MiB of a disk of 128", mib)
	}
	now, err := s.Pod(t.Context(), "a")
	if err != nil || now.UID != first.UID || now.Status.ContainerStatuses[0].ContainerID != first.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the pod did not go on running: %+v, %v", now, err)
	}

	// Without a pod the disk grows, and its file system waits.
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
	s.ask("data", "192Mi")
	s.Eventually("the claim waits for a pod", func(ctx context.Context) error {
		pvc, err := world.Admin.CoreV1().PersistentVolumeClaims(s.NS).Get(ctx, "data", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c, step := pvc.Status.Conditions, pvc.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
		if len(c) != 1 || c[0].Type != corev1.PersistentVolumeClaimFileSystemResizePending ||
			step != corev1.PersistentVolumeClaimNodeResizePending {
			return fmt.Errorf("its status is %+v", pvc.Status)
		}
		return nil
	})
	pv := s.volumeOf("data")
	if has := pv.Spec.Capacity.Storage().String(); has != "192Mi" {
		t.Errorf("the volume has %s", has)
	}
	s.Apply(withVolume("b", source))
	s.WaitReady("b")
	s.expanded("data", "192Mi")
	if mib := size("b"); mib <= 160 || mib > 192 {
		t.Errorf("the file system has %d MiB of a disk of 192", mib)
	}
	if got := s.in("b", "cat /data/f"); got != "precious" {
		t.Errorf("pod b reads %q", got)
	}
	s.Kubectl("delete", "pod", "b", "--wait=false")
	s.WaitGone("b")
	s.Kubectl("delete", "pvc", "data")
	s.noVolumes(pv)
}

func TestVolumesOfTheMachineItselfAreTheKubelets(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	local := "local-" + s.NS
	s.Apply(withVolume("host", "hostPath: {path: /var/tmp/host, type: DirectoryOrCreate}"))
	t.Cleanup(func() {
		_ = world.Admin.CoreV1().PersistentVolumes().Delete(context.Background(), local, metav1.DeleteOptions{})
	})
	s.Apply(`apiVersion: v1
kind: PersistentVolume
metadata: {name: ` + local + `}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ` + local + `
  local: {path: /var/tmp}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [kip-0]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: local}
spec: {storageClassName: ` + local + `, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
` + withVolume("local", "persistentVolumeClaim: {claimName: local}"))
	for _, name := range []string{"host", "local"} {
		s.WaitReady(name)
		s.in(name, "echo of "+name+" > /data/f")
	}
	for name, file := range map[string]string{"host": "/var/tmp/host/f", "local": "/var/tmp/f"} {
		if text, err := os.ReadFile(s.machine(name).path(file)); err != nil || string(text) != "of "+name+"\n" {
			t.Errorf("%s of the machine of pod %s has %q, %v", file, name, text, err)
		}
	}
	if _, err := os.Stat("/var/tmp/host"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("/var/tmp/host of this host: %v; want none", err)
	}
}

func TestAVolumeThatCannotWorkIsSaidAtOnceAndLaunchesNothing(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(withVolume("a", "csi: {driver: secrets-store.csi.k8s.io, readOnly: true}"))
	s.WaitEvent("a", "VolumeUnsupported", "secrets-store.csi.k8s.io")
	s.Apply(withVolume("b", "iscsi: {targetPortal: 10.0.0.1, iqn: iqn.2001-04.com.example:x, lun: 0}"))
	s.WaitEvent("b", "VolumeUnsupported", "volume data cannot work on a cell: cells have no iSCSI initiator")
	s.NoOtherCells()
}

// A claim that is bound later lets its pod go on.
func TestAPodOnTheNodeWaitsForItsClaim(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	// Put on the node by hand: no scheduler has waited for the claim.
	s.Apply(strings.Replace(withVolume("a", "persistentVolumeClaim: {claimName: data}"), "nodeSelector: {type: virtual-kubelet}",
		"nodeName: kip-0", 1))
	s.WaitEvent("a", "VolumeNotReady", "there is no PersistentVolumeClaim data")
	s.Apply(strings.Replace(claim("data", ""), "metadata: {name: data}",
		"metadata: {name: data, annotations: {volume.kubernetes.io/selected-node: kip-0}}", 1))
	s.WaitReady("a")
	pv := s.volumeOf("data")
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
	s.Kubectl("delete", "pvc", "data")
	s.noVolumes(pv)
}

// withDevice is a sleeper with a block volume at /dev/data.
func withDevice(name string) string {
	return namespace.Sleeper(name) +
		"    volumeDevices: [{name: data, devicePath: /dev/data}]\n  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n"
}

func TestABlockVolumeIsADeviceThatKeepsItsBytes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	s := newSpace(t)
	s.Apply(strings.Replace(claim("data", ""), "spec: {", "spec: {volumeMode: Block, ", 1) + withDevice("a"))
	s.WaitReady("a")
	if got := s.in("a", "test -b /dev/data && blockdev --getsize64 /dev/data"); got != "67108864" {
		t.Errorf("the device has %s bytes", got)
	}
	s.in("a", "echo precious | dd of=/dev/data bs=512 seek=9 conv=sync,fsync 2>/dev/null")
	pv := s.volumeOf("data")
	if pv.Spec.CSI.FSType != "" || *pv.Spec.VolumeMode != corev1.PersistentVolumeBlock {
		t.Errorf("the volume is %+v", pv.Spec)
	}
	const read = "dd if=/dev/data bs=512 skip=9 count=1 2>/dev/null | head -n 1"
	// It grows under its pod.
	s.ask("data", "128Mi")
	s.expanded("data", "128Mi")
	if got := s.in("a", "blockdev --getsize64 /dev/data; "+read); got != "134217728\nprecious" {
		t.Errorf("the device has the size, and what is on it: %q", got)
	}
	// Its pod ends; then the machine of the next dies.
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.WaitGone("a")
	s.Apply(withDevice("b"))
	s.WaitReady("b")
	if got := s.in("b", read); got != "precious" {
		t.Errorf("after the pod: %q", got)
	}
	first, err := s.Pod(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	s.machine("b").kill(s)
	s.WaitPod("b", "runs again on another cell", func(p *corev1.Pod) bool {
		return namespace.IsReady(p) && p.Status.ContainerStatuses[0].ContainerID != first.Status.ContainerStatuses[0].ContainerID
	})
	if got := s.in("b", read); got != "precious" {
		t.Errorf("after the cell: %q", got)
	}
	s.Kubectl("delete", "pod", "b", "--wait=false")
	s.WaitGone("b")
	s.Kubectl("delete", "pvc", "data")
	s.noVolumes(pv)
}
