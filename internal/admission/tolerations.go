package admission

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Defaults are the tolerations of a node that is not heard of which the API server adds
// to pods that have none of their own.
type Defaults struct {
	// NotReadySeconds and UnreachableSeconds are for how long a pod stays.
	NotReadySeconds, UnreachableSeconds int64
}

// UpstreamDefaults are those of an API server that is not told otherwise.
var UpstreamDefaults = Defaults{NotReadySeconds: 300, UnreachableSeconds: 300}

// toleration is what the API server adds for a taint.
func toleration(taint string, seconds *int64) corev1.Toleration {
	return corev1.Toleration{
		Key:               taint,
		Operator:          corev1.TolerationOpExists,
		Effect:            corev1.TaintEffectNoExecute,
		TolerationSeconds: seconds,
	}
}

// tolerate returns what makes a pod stay on a node of Kip's for as long as that is not
// heard of: its cell is another machine, and runs on. Kip itself ends the pods whose
// cells are lost. What the pod says of these taints itself stays as it is; the API
// server has added its own to the others before any webhook is asked, and those are
// told by their values. Further ones are added.
func tolerate(own, further []corev1.Toleration, defaults Defaults) (patch []Operation) {
	for _, d := range []struct {
		taint   string
		seconds int64
	}{
		{corev1.TaintNodeNotReady, defaults.NotReadySeconds},
		{corev1.TaintNodeUnreachable, defaults.UnreachableSeconds},
	} {
		tolerated := false
		for i, t := range own {
			if (t.Key != d.taint && t.Key != "") || (t.Effect != corev1.TaintEffectNoExecute && t.Effect != "") {
				continue
			}
			tolerated = true
			if d.seconds != none && t.TolerationSeconds != nil &&
				*t.TolerationSeconds == d.seconds && t == toleration(d.taint, t.TolerationSeconds) {
				patch = append(patch, Operation{Op: "remove", Path: "/spec/tolerations/" + strconv.Itoa(i) + "/tolerationSeconds"})
			}
		}
		if !tolerated { // that of the API server is off
			further = append(further, toleration(d.taint, nil))
		}
	}
	return append(patch, addTolerations("", own, further)...)
}

// addTolerations adds some to the own ones of a pod, or of a template at this path.
func addTolerations(at string, own, further []corev1.Toleration) (patch []Operation) {
	if len(own) == 0 && len(further) > 0 {
		return []Operation{{Op: "add", Path: at + "/spec/tolerations", Value: further}}
	}
	for _, t := range further {
		patch = append(patch, Operation{Op: "add", Path: at + "/spec/tolerations/-", Value: t})
	}
	return patch
}

// tolerationOfTaint is the toleration of the taint of Kip's nodes that a pod lacks.
func (r Rules) tolerationOfTaint(own []corev1.Toleration) []corev1.Toleration {
	if r.Taint == nil || slices.ContainsFunc(own, func(t corev1.Toleration) bool {
		return t.ToleratesTaint(klog.Logger{}, r.Taint, false)
	}) {
		return nil
	}
	return []corev1.Toleration{{
		Key:      r.Taint.Key,
		Operator: corev1.TolerationOpEqual,
		Value:    r.Taint.Value,
		Effect:   r.Taint.Effect,
	}}
}

// Untolerating reports whether a pod that is on no node selects Kip's nodes and lacks the toleration of their taint: it was made without
// Kip's webhook, and the scheduler puts it on none of them.
func (r Rules) Untolerating(pod *corev1.Pod) bool {
	return r.Unplaced(pod) && len(r.tolerationOfTaint(pod.Spec.Tolerations)) > 0
}

// Unplaced reports whether a pod selects Kip's nodes and is on no node yet.
func (r Rules) Unplaced(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil && r.takes(pod, Selecting)
}
