package cellapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A pod's status has at most 128 KiB from its cell: a field of its own limit each,
// of which none grows by being sent again.
const (
	maxStatus         = 128 << 10
	maxContainers     = 56 << 10
	maxInitContainers = 32 << 10
	maxEphemeral      = 16 << 10
	maxConditions     = 8 << 10
	maxStatusRest     = 2 << 10 // of each of pod-level resources
	maxMessage        = 4 << 10 // what a kubelet keeps of a termination message
)

// kubeletConditions are the types of a pod's conditions that are a kubelet's to
// write. Others are other controllers', a readiness gate for example.
var kubeletConditions = []string{
	string(corev1.PodScheduled), string(corev1.PodReady), string(corev1.PodInitialized), string(corev1.ContainersReady),
	string(corev1.PodReadyToStartContainers), string(corev1.PodResizePending), string(corev1.PodResizeInProgress),
	string(corev1.DisruptionTarget), "AllContainersRestarting",
}

var (
	nameText   = text(253)
	reasonText = text(1024)
	quantities = table(32, quantity)

	// podResources are those of the pod as a whole. A patch merges them, so that
	// only names of a fixed number keep the status bounded.
	podResources = fieldsOf(map[string]shape{
		"cpu": quantity, "memory": quantity, "ephemeral-storage": quantity,
		"hugepages-64Ki": quantity, "hugepages-2Mi": quantity, "hugepages-32Mi": quantity, "hugepages-512Mi": quantity,
		"hugepages-1Gi": quantity, "hugepages-16Gi": quantity,
	})
	containerState = fieldsOf(map[string]shape{
		"waiting": fieldsOf(map[string]shape{"reason": reasonText, "message": message(maxMessage)}),
		"running": fieldsOf(map[string]shape{"startedAt": moment}),
		"terminated": fieldsOf(map[string]shape{
			"exitCode": whole, "signal": whole, "reason": reasonText, "message": message(maxMessage),
			"startedAt": moment, "finishedAt": moment, "containerID": text(256),
		}),
	})
	containerStatus = fieldsOf(map[string]shape{
		"name": nameText, "state": containerState, "lastState": containerState, "ready": boolean, "started": boolean,
		"restartCount": whole, "image": text(1024), "imageID": text(1024), "containerID": text(256), "stopSignal": nameText,
		"allocatedResources": quantities,
		"resources": fieldsOf(map[string]shape{
			"limits": quantities, "requests": quantities,
			"claims": list(32, fieldsOf(map[string]shape{"name": nameText, "request": nameText})),
		}),
		"volumeMounts": list(256, fieldsOf(map[string]shape{
			"name": nameText, "mountPath": text(4096), "readOnly": boolean, "recursiveReadOnly": nameText,
			"volumeStatus": fieldsOf(map[string]shape{"image": fieldsOf(map[string]shape{"imageRef": text(1024)})}),
		})),
		"user": fieldsOf(map[string]shape{"linux": fieldsOf(map[string]shape{
			"uid": whole, "gid": whole, "supplementalGroups": list(256, whole),
		})}),
		"allocatedResourcesStatus": list(32, fieldsOf(map[string]shape{
			"name":      nameText,
			"resources": list(32, fieldsOf(map[string]shape{"resourceID": nameText, "health": nameText, "message": message(maxMessage)})),
		})),
	})
	podCondition = fieldsOf(map[string]shape{
		"type": nameText, "status": oneOf("True", "False", "Unknown"), "reason": reasonText, "message": message(1 << 10),
		"lastProbeTime": moment, "lastTransitionTime": moment, "observedGeneration": whole, "$patch": oneOf("delete"),
	})
	podPhase = oneOf(string(corev1.PodPending), string(corev1.PodRunning), string(corev1.PodSucceeded), string(corev1.PodFailed),
		string(corev1.PodUnknown))
	qosClass = oneOf(string(corev1.PodQOSGuaranteed), string(corev1.PodQOSBurstable), string(corev1.PodQOSBestEffort))
)

// podConditions are the conditions of a patch that are a kubelet's. The API server
// merges them by type, so that those of other controllers stay.
func podConditions(at *field.Path, v any) (any, error) {
	made, err := list(64, podCondition)(at, v)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(made.([]any), func(e any) bool {
		t, _ := e.(map[string]any)["type"].(string)
		return !slices.Contains(kubeletConditions, t)
	}), nil
}

// addresses are those that Kip knows a pod, and its host, to have.
type addresses struct{ host, pod []netip.Addr }

// addressesOf are those of the cell's instance: with the host's network a pod has
// the host's.
func (c *Cell) addressesOf(pod *corev1.Pod) addresses {
	i := c.node.info
	a := addresses{host: []netip.Addr{i.NodeIP, i.NodeIPv6}, pod: []netip.Addr{i.PodIP, i.PodIPv6}}
	if pod != nil && pod.Spec.HostNetwork {
		a.pod = a.host
	}
	return a
}

// oneAddress is an address that is among those known, as they are usually written:
// whoever compares texts must not be misled.
func oneAddress(known []netip.Addr) shape {
	return func(at *field.Path, v any) (any, error) {
		s, _ := v.(string)
		if addr, err := netip.ParseAddr(s); err != nil || addr.String() != s || !slices.Contains(known, addr) {
			return nil, wrong(at, "an address that its cell's instance has")
		}
		return s, nil
	}
}

func someAddresses(known []netip.Addr) shape {
	one := fieldsOf(map[string]shape{"ip": oneAddress(known)})
	gone := fieldsOf(map[string]shape{"ip": text(64), "$patch": oneOf("delete")}) // what goes may be any
	return list(8, func(at *field.Path, v any) (any, error) {
		m, _ := v.(map[string]any)
		switch {
		case m != nil && (m["ip"] == nil || m["ip"] == ""):
			return nil, wrong(at.Child("ip"), "there: it says which address is meant")
		case m["$patch"] != nil:
			return gone(at, v)
		}
		return one(at, v)
	})
}

// notNull takes no null: what it would remove is not only the kubelet's.
func notNull(fields map[string]any, at *field.Path, names ...string) error {
	for _, n := range names {
		if v, there := fields[n]; there && v == nil {
			return wrong(at.Child(n), "something else than null")
		}
	}
	return nil
}

// podStatusPatch rebuilds the patch of a pod's status: the UID, and of the status
// what is a kubelet's. Neither metadata nor a directive for the whole comes through.
// A machine that is switched off ends the pod as may says.
func podStatusPatch(sent []byte, uid types.UID, known addresses, may ends) ([]byte, error) {
	var change map[string]any
	if err := utiljson.Unmarshal(sent, &change); err != nil || change == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the patch is not a JSON object: %v", err))
	}
	for k, v := range change {
		switch k {
		case "metadata", "status", "apiVersion", "kind":
		default:
			return nil, wrong(field.NewPath(cut(k, 64)), "left out: a kubelet writes the status only")
		}
		if m, isObject := v.(map[string]any); k == "metadata" {
			if !isObject {
				return nil, apierrors.NewBadRequest("metadata of the patch is not a JSON object")
			}
			for key := range m {
				if key != "uid" {
					return nil, wrong(field.NewPath("metadata").Child(cut(key, 64)), "left out: a kubelet writes the status only")
				}
			}
		}
	}
	root := field.NewPath("status")
	patch := map[string]any{"metadata": map[string]any{"uid": string(uid)}}
	if status, there := change["status"]; there {
		if m, isObject := status.(map[string]any); isObject {
			if err := notNull(m, root, "conditions"); err != nil {
				return nil, err
			}
		}
		made, err := podStatus(known)(root, status)
		if err != nil {
			return nil, err
		}
		if m, isObject := made.(map[string]any); isObject {
			may.hold(m)
		}
		patch["status"] = made
	}
	b, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode the patch of a pod's status: %w", err)
	}
	if len(b) > maxStatus {
		return nil, tooMuch("the status", len(b), maxStatus)
	}
	return b, nil
}

// ends are the phases in which a pod may end when its machine is switched off.
type ends struct{ succeeded, failed bool }

// endsOf are those of a pod: one that nobody makes anew, and that would start again on a node whose
// machine starts again, goes on elsewhere, as when its cell is lost.
func endsOf(pod *corev1.Pod) ends {
	switch {
	case pod == nil, pod.DeletionTimestamp != nil, metav1.GetControllerOf(pod) != nil,
		pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
		return ends{succeeded: true, failed: true}
	case pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure:
		return ends{succeeded: true}
	}
	return ends{}
}

// What a kubelet writes of pods when its machine is switched off, and of one that comes then
// (k8s.io/kubernetes/pkg/kubelet/nodeshutdown, nodeShutdownMessage and NodeShutdownNotAdmittedReason).
const (
	switchedOff = "Pod was terminated in response to imminent node shutdown."
	notAdmitted = "NodeShutdown"
)

// hold takes out of a status that the pod has ended, where it may not. Nothing is said of its containers
// then: some may have ended for good, by a kubelet's rules, which start again elsewhere. A pod that was
// not let in has never run, and has not ended in any case.
func (may ends) hold(status map[string]any) {
	phase, failed, succeeded := status["phase"], string(corev1.PodFailed), string(corev1.PodSucceeded)
	turnedAway := phase == failed && status["reason"] == notAdmitted
	ended := phase == failed && !may.failed || phase == succeeded && !may.succeeded
	isOff := func(e any) bool {
		m, _ := e.(map[string]any)
		return m["type"] == string(corev1.DisruptionTarget) && m["message"] == switchedOff
	}
	conditions, _ := status["conditions"].([]any)
	if !turnedAway && !(ended && slices.ContainsFunc(conditions, isOff)) {
		return
	}
	for _, k := range []string{"phase", "reason", "message", "containerStatuses", "initContainerStatuses"} {
		delete(status, k)
	}
	if conditions != nil { // a null would delete those of others
		status["conditions"] = slices.DeleteFunc(conditions, isOff)
	}
	if order, is := status["$setElementOrder/conditions"].([]any); is {
		status["$setElementOrder/conditions"] = slices.DeleteFunc(order, func(e any) bool {
			m, _ := e.(map[string]any)
			return m["type"] == string(corev1.DisruptionTarget)
		})
	}
}

// podStatus is what a kubelet's status manager writes.
func podStatus(known addresses) shape {
	return fieldsOf(map[string]shape{
		"observedGeneration": whole,
		"phase":              podPhase,
		"conditions":         within(maxConditions, podConditions),
		"message":            message(maxMessage),
		"reason":             reasonText,
		"hostIP":             oneAddress(known.host),
		"hostIPs":            someAddresses(known.host),
		"podIP":              oneAddress(known.pod),
		"podIPs":             someAddresses(known.pod),
		"startTime":          moment,
		"qosClass":           qosClass,
		"resize":             nameText,

		"$setElementOrder/conditions": list(64, fieldsOf(map[string]shape{"type": nameText})),
		"$setElementOrder/hostIPs":    someAddresses(known.host),
		"$setElementOrder/podIPs":     someAddresses(known.pod),

		"initContainerStatuses":      within(maxInitContainers, list(256, containerStatus)),
		"containerStatuses":          within(maxContainers, list(256, containerStatus)),
		"ephemeralContainerStatuses": within(maxEphemeral, list(64, containerStatus)),
		"allocatedResources":         within(maxStatusRest, podResources),
		"resources":                  within(maxStatusRest, fieldsOf(map[string]shape{"limits": podResources, "requests": podResources})),
	})
}

// passPodStatus passes a patch of the pod's status, rebuilt, with the UID of the
// cell's pod in it, so that the API server refuses it for any other.
func (c *Cell) passPodStatus(w http.ResponseWriter, r *http.Request, a *ask) error {
	if err := c.knowsPod(w, r); err != nil {
		return err
	}
	b, err := c.ownPod(a)
	if err != nil {
		return err
	}
	p, err := readPatch(r)
	if err != nil {
		return err
	}
	if p.kind != types.StrategicMergePatchType {
		// A merge patch replaces lists, those of other controllers too.
		return unsupportedMediaType(string(p.kind), string(types.StrategicMergePatchType))
	}
	var sent struct {
		Metadata struct {
			UID *string `json:"uid"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(p.body, &sent); err == nil && sent.Metadata.UID != nil && *sent.Metadata.UID != string(b.uid) {
		return podConflict(a.Name, cut(*sent.Metadata.UID, 64), b.uid)
	}
	pod, _ := c.lastPod()
	patch, err := podStatusPatch(p.body, b.uid, c.addressesOf(pod), endsOf(pod))
	if err != nil {
		return err
	}
	return c.pass(w, r, a, body{mediaType: string(p.kind), bytes: patch}, nil)
}
