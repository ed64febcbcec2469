package cellapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The bounds of what a pod's status says. Its lists have as many entries as the pod's spec has
// containers and mounts, and allowance bounds the whole. What is longer than it may be is cut at
// messages, by which nobody decides.
const (
	// maxWhy and maxMessage are what Kubernetes takes of the reason and message of a condition
	// (k8s.io/apimachinery/pkg/apis/meta/v1/types.go, Condition). A termination message has
	// 4 KiB at most, or 12 where it is not UTF-8 (k8s.io/kubernetes/pkg/kubelet/container/runtime.go,
	// MaxContainerTerminationMessageLength).
	maxWhy, maxMessage = 1 << 10, 32 << 10
	// maxGroups are the supplementary groups of a process (NGROUPS_MAX of linux/limits.h).
	maxGroups = 1 << 16
	// maxImage is the longest name of an image that the spec does not have: a host, a repository
	// of 255 bytes, a tag of 128 and a digest of 135.
	maxImage = 1 << 10
	// maxListed bounds lists that a kubelet makes of what is on its machine.
	maxListed = 1 << 10
	// maxCuts is how many cut messages are told of.
	maxCuts = 3
)

// ownConditions are the types of a pod's conditions that are the kubelet's alone
// (k8s.io/kubernetes/pkg/kubelet/types/pod_status.go), kubeletConditions those that it writes.
// Others are other controllers', a readiness gate for example.
var (
	ownConditions = []string{
		string(corev1.PodScheduled), string(corev1.PodReady), string(corev1.PodInitialized), string(corev1.ContainersReady),
		string(corev1.PodReadyToStartContainers), string(corev1.PodResizePending), string(corev1.PodResizeInProgress),
		string(corev1.AllContainersRestarting),
	}
	kubeletConditions = append([]string{string(corev1.DisruptionTarget)}, ownConditions...)
)

var (
	nameText   = text(253)
	reasonText = text(maxWhy)
	quantities = table(32, quantity)

	// podResources are those of the pod as a whole. A patch merges them, so that
	// only names of a fixed number keep the status bounded.
	podResources = fieldsOf(map[string]shape{
		"cpu": quantity, "memory": quantity, "ephemeral-storage": quantity,
		"hugepages-64Ki": quantity, "hugepages-2Mi": quantity, "hugepages-32Mi": quantity, "hugepages-512Mi": quantity,
		"hugepages-1Gi": quantity, "hugepages-16Gi": quantity,
	})
	podPhase = oneOf(string(corev1.PodPending), string(corev1.PodRunning), string(corev1.PodSucceeded), string(corev1.PodFailed),
		string(corev1.PodUnknown))
	qosClass = oneOf(string(corev1.PodQOSGuaranteed), string(corev1.PodQOSBurstable), string(corev1.PodQOSBestEffort))
)

// specBounds are what a pod's spec makes of the bounds of its status.
type specBounds struct {
	pod    *corev1.Pod
	mounts int // of a container, at most
	image  int // bytes of the longest image's name
	path   int // of the longest path of a mount
	names  int // of all containers' names, which a condition may list
	cuts   []string
}

func boundsOf(pod *corev1.Pod) *specBounds {
	b := &specBounds{pod: pod, image: maxImage}
	eachContainer(pod, func(c *corev1.Container) {
		b.mounts = max(b.mounts, len(c.VolumeMounts))
		b.image = max(b.image, len(c.Image))
		b.names += len(c.Name) + 1
		for i := range c.VolumeMounts {
			b.path = max(b.path, len(c.VolumeMounts[i].MountPath))
		}
	})
	return b
}

// message is a string for people: a longer one is cut, and that is noted.
func (b *specBounds) message(at *field.Path, v any) (any, error) {
	most := maxMessage + b.names
	if s, ok := v.(string); ok && len(s) > most {
		if len(b.cuts) < maxCuts {
			b.cuts = append(b.cuts, at.String())
		}
		v = cut(s, most)
	}
	return message(most)(at, v)
}

// containerStatuses are those of so many containers of the spec.
func (b *specBounds) containerStatuses(containers int) shape {
	resources := table(maxListed, quantity)
	state := fieldsOf(map[string]shape{
		"waiting": fieldsOf(map[string]shape{"reason": reasonText, "message": b.message}),
		"running": fieldsOf(map[string]shape{"startedAt": moment}),
		"terminated": fieldsOf(map[string]shape{
			"exitCode": whole, "signal": whole, "reason": reasonText, "message": b.message,
			"startedAt": moment, "finishedAt": moment, "containerID": text(256),
		}),
	})
	return list(containers, fieldsOf(map[string]shape{
		"name": nameText, "state": state, "lastState": state, "ready": boolean, "started": boolean,
		"restartCount": whole, "image": text(b.image), "imageID": text(maxImage), "containerID": text(256), "stopSignal": nameText,
		"allocatedResources": resources,
		"resources": fieldsOf(map[string]shape{
			"limits": resources, "requests": resources,
			"claims": list(maxListed, fieldsOf(map[string]shape{"name": nameText, "request": nameText})),
		}),
		"volumeMounts": list(b.mounts, fieldsOf(map[string]shape{
			"name": nameText, "mountPath": text(b.path), "readOnly": boolean, "recursiveReadOnly": nameText,
			"volumeStatus": fieldsOf(map[string]shape{"image": fieldsOf(map[string]shape{"imageRef": text(maxImage)})}),
		})),
		"user": fieldsOf(map[string]shape{"linux": fieldsOf(map[string]shape{
			"uid": whole, "gid": whole, "supplementalGroups": list(maxGroups, whole),
		})}),
		"allocatedResourcesStatus": list(maxListed, fieldsOf(map[string]shape{
			"name":      text(317),
			"resources": list(maxListed, fieldsOf(map[string]shape{"resourceID": text(maxImage), "health": nameText, "message": b.message})),
		})),
	}))
}

// conditions are the conditions of a patch that are a kubelet's. The API server
// merges them by type, so that those of other controllers stay.
func (b *specBounds) conditions(at *field.Path, v any) (any, error) {
	made, err := list(maxListed, fieldsOf(map[string]shape{
		"type": text(317), "status": oneOf("True", "False", "Unknown"), "reason": reasonText, "message": b.message,
		"lastProbeTime": moment, "lastTransitionTime": moment, "observedGeneration": whole, "$patch": oneOf("delete"),
	}))(at, v)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(made.([]any), func(e any) bool {
		t, _ := e.(map[string]any)["type"].(string)
		return !slices.Contains(kubeletConditions, t)
	}), nil
}

// addresses are those that Kip knows a pod, and its host, to have.
type addresses struct {
	host, pod []netip.Addr
	within    netip.Prefix // the pod has one of these
}

func (a addresses) ofHost(ip netip.Addr) bool { return slices.Contains(a.host, ip) }

func (a addresses) ofPod(ip netip.Addr) bool {
	return slices.Contains(a.pod, ip) || a.within.IsValid() && a.within.Contains(ip)
}

// oneAddress is an address that is among those known, as they are usually written:
// whoever compares texts must not be misled.
func oneAddress(known func(netip.Addr) bool) shape {
	return func(at *field.Path, v any) (any, error) {
		s, _ := v.(string)
		if addr, err := netip.ParseAddr(s); err != nil || addr.String() != s || !known(addr) {
			return nil, wrong(at, "an address that its cell's instance has")
		}
		return s, nil
	}
}

func someAddresses(known func(netip.Addr) bool) shape {
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

// withoutOwn deletes the kubelet's own conditions, each by its type. A kubelet writes null for the
// whole list where it knows of no others, as when it rejects a pod.
func withoutOwn() []any {
	var all []any
	for _, t := range ownConditions {
		all = append(all, map[string]any{"$patch": "delete", "type": t})
	}
	return all
}

// statusPatch is the patch of a pod's status, rebuilt.
type statusPatch struct {
	bytes []byte
	ended bool     // it says that the pod has ended
	cuts  []string // the messages that were cut
}

// podStatusPatch rebuilds the patch of a pod's status: the UID, and of the status
// what is a kubelet's. Neither metadata nor a directive for the whole comes through.
// A machine that is switched off ends the pod as may says.
func podStatusPatch(sent []byte, pod *corev1.Pod, known addresses, may ends) (*statusPatch, error) {
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
	patch := map[string]any{"metadata": map[string]any{"uid": string(pod.UID)}}
	made := &statusPatch{}
	if status, there := change["status"]; there {
		bounds := boundsOf(pod)
		rebuilt, err := bounds.status(known)(field.NewPath("status"), status)
		if err != nil {
			return nil, err
		}
		m := rebuilt.(map[string]any)
		if conditions, there := m["conditions"]; there && conditions == nil {
			m["conditions"] = withoutOwn()
		}
		may.hold(m)
		patch["status"] = m
		made.cuts, made.ended = bounds.cuts, m["phase"] == string(corev1.PodFailed) || m["phase"] == string(corev1.PodSucceeded)
	}
	var err error
	made.bytes, err = encodePatch(patch, func() { made.cuts = append(made.cuts, "all messages") })
	return made, err
}

// encodePatch encodes a patch as an API server takes it: of one that is larger, since a character
// may take more bytes here, messages are cut until it is not.
func encodePatch(patch map[string]any, cutting func()) ([]byte, error) {
	for most := maxMessage; ; most /= 2 {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(patch); err != nil {
			return nil, fmt.Errorf("encode the patch of a pod's status: %w", err)
		}
		switch {
		case out.Len() <= maxRequest:
			return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
		case most == 0:
			return nil, tooMuch("the status", out.Len(), maxRequest)
		}
		cutting()
		cutMessages(patch, most/2)
	}
}

// cutMessages cuts all messages in a JSON value.
func cutMessages(v any, most int) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if s, is := e.(string); is && k == "message" {
				v[k] = cut(s, most)
			}
			cutMessages(e, most)
		}
	case []any:
		for _, e := range v {
			cutMessages(e, most)
		}
	}
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
	if conditions != nil {
		status["conditions"] = slices.DeleteFunc(conditions, func(e any) bool { return isOff(e) || unschedules(e) })
	}
	if order, is := status["$setElementOrder/conditions"].([]any); is {
		status["$setElementOrder/conditions"] = slices.DeleteFunc(order, func(e any) bool {
			m, _ := e.(map[string]any)
			return m["type"] == string(corev1.DisruptionTarget)
		})
	}
}

// unschedules reports whether an element of a patch deletes that the pod was scheduled.
func unschedules(e any) bool {
	m, _ := e.(map[string]any)
	return m["type"] == string(corev1.PodScheduled) && m["$patch"] == "delete"
}

// status is what a kubelet's status manager writes.
func (b *specBounds) status(known addresses) shape {
	spec := b.pod.Spec
	return fieldsOf(map[string]shape{
		"observedGeneration": whole,
		"phase":              podPhase,
		"conditions":         b.conditions,
		"message":            b.message,
		"reason":             reasonText,
		"hostIP":             oneAddress(known.ofHost),
		"hostIPs":            someAddresses(known.ofHost),
		"podIP":              oneAddress(known.ofPod),
		"podIPs":             someAddresses(known.ofPod),
		"startTime":          moment,
		"qosClass":           qosClass,
		"resize":             nameText,
		// A kubelet writes none, and so removes what a scheduler wrote.
		"nominatedNodeName": func(*field.Path, any) (any, error) { return nil, errLeftOut },

		"$setElementOrder/conditions": list(maxListed, fieldsOf(map[string]shape{"type": text(317)})),
		"$setElementOrder/hostIPs":    someAddresses(known.ofHost),
		"$setElementOrder/podIPs":     someAddresses(known.ofPod),

		"initContainerStatuses":      b.containerStatuses(len(spec.InitContainers)),
		"containerStatuses":          b.containerStatuses(len(spec.Containers)),
		"ephemeralContainerStatuses": b.containerStatuses(len(spec.EphemeralContainers)),
		"allocatedResources":         podResources,
		"resources":                  fieldsOf(map[string]shape{"limits": podResources, "requests": podResources}),
	})
}
