package volumes

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// UnsupportedError says which volume of a pod cannot work on a cell, and why. Only
// a change of the pod, its claim or its volume can mend it.
type UnsupportedError struct{ Volume, Why string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("volume %s cannot work on a cell: %s", e.Volume, e.Why)
}

// inPod are the sources of a pod's own volumes that the cell's kubelet makes by
// itself, and inPersistent those of PersistentVolumes, by the names of their
// fields in JSON.
var (
	inPod = map[string]bool{"emptyDir": true, "configMap": true, "secret": true, "projected": true, "downwardAPI": true,
		"hostPath": true, "nfs": true, "image": true}
	inPersistent = map[string]bool{"local": true, "hostPath": true, "nfs": true}
	// whys are for kinds that have a better reason than that Kubernetes or the
	// cell has no code for them.
	whys = map[string]string{
		"gitRepo":    "kubelets no longer serve gitRepo volumes; clone in an init container into an emptyDir",
		"flexVolume": "cells have no FlexVolume drivers",
		"rbd":        "the kind rbd was removed from Kubernetes",
		"cephfs":     "the kind cephfs was removed from Kubernetes",
		"glusterfs":  "the kind glusterfs was removed from Kubernetes",
		"iscsi":      "cells have no iSCSI initiator",
		"fc":         "cells have no Fibre Channel",
	}
)

// kindOf returns the name of the one field of a source that is set: "emptyDir".
func kindOf(source any) string {
	v := reflect.ValueOf(source)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

// why says why a kind does not work.
func why(kind string) string {
	if w := whys[kind]; w != "" {
		return w
	}
	return fmt.Sprintf("volumes of kind %s are attached by a plugin that cells do not have", kind)
}

// ClaimOf returns the name of the claim that a pod's volume is, "" for none.
func ClaimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}

// checkInline returns an *UnsupportedError for a volume of a pod that is no claim
// and cannot work.
func (d Drivers) checkInline(v *corev1.Volume) error {
	switch kind := kindOf(v.VolumeSource); {
	case v.CSI != nil:
		return d.check(v.Name, v.CSI.Driver)
	case kind == "" || inPod[kind]: // no source at all is an emptyDir
		return nil
	default:
		return &UnsupportedError{v.Name, why(kind)}
	}
}

// checkPersistent does the same for the volume that a claim is bound to. disks
// says that the cloud has disks.
func (d Drivers) checkPersistent(name string, pv *corev1.PersistentVolume, disks bool) error {
	kind := kindOf(pv.Spec.PersistentVolumeSource)
	switch {
	case ours(pv) && !disks:
		return &UnsupportedError{name, "PersistentVolume " + pv.Name + " is on a disk of a cloud, and the cloud of this Kip has none"}
	case ours(pv) && pv.Spec.CSI.FSType != "" && pv.Spec.CSI.FSType != FileSystem:
		return &UnsupportedError{name, fmt.Sprintf("PersistentVolume %s has the file system %q: cells have the tools for %s", pv.Name,
			pv.Spec.CSI.FSType, FileSystem)}
	case ours(pv):
		return nil
	case pv.Spec.CSI != nil:
		return d.check(name, pv.Spec.CSI.Driver)
	case inPersistent[kind]:
		return nil
	}
	return &UnsupportedError{name, fmt.Sprintf("PersistentVolume %s: %s", pv.Name, why(kind))}
}
