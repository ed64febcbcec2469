package cellapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// serveCopy answers what is asked about a pod of a DaemonSet that the cell runs beside its own. Nothing of it reaches the API server:
// the pod there stands for the copies on all cells.
func (c *podAPI) serveCopy(w http.ResponseWriter, r *http.Request, a *ask, copy *corev1.Pod) error {
	switch {
	case a.Subresource == "" && a.Verb == "get":
		return answerPod(w, r, copy)
	case a.Subresource == "" && a.Verb == "delete":
		return c.endCopy(w, r, a, copy)
	case a.Subresource == "status" && a.Verb == "patch":
		return c.patchCopyStatus(w, r, a, copy)
	}
	return c.forbidden(a, "")
}

func answerPod(w http.ResponseWriter, r *http.Request, pod *corev1.Pod) error {
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	writeObject(w, f, http.StatusOK, pod)
	return nil
}

// patchCopyStatus keeps what a kubelet says of a copy's status, made anew and bounded as that of the cell's own pod.
func (c *podAPI) patchCopyStatus(w http.ResponseWriter, r *http.Request, a *ask, copy *corev1.Pod) error {
	p, err := readPatch(r)
	if err != nil {
		return err
	}
	if p.kind != types.StrategicMergePatchType {
		return unsupportedMediaType(string(p.kind), string(types.StrategicMergePatchType))
	}
	if err := ofPod(p.body, a.Name, copy.UID); err != nil {
		return err
	}
	made, err := podStatusPatch(p.body, copy, c.addressesOfCopy(copy), endsOf(copy))
	if err != nil {
		return err
	}
	if err := c.mayKeep(r.Context(), w, len(made.bytes)); err != nil {
		return err // the kubelet sends it again
	}
	rebuilt := &patch{kind: p.kind, body: made.bytes}
	most := heldOfCopy(copy)
	for range changeAttempts {
		var before, after corev1.Pod // of which the rest is not read again
		before.UID, before.Status = copy.UID, copy.Status
		if err := rebuilt.apply(&before, &after); err != nil {
			return err
		}
		if after.Status.Size() > most {
			cutStatus(&after.Status)
		}
		if size := after.Status.Size(); size > most {
			return tooMuch("the status of a pod of a DaemonSet", size, most)
		}
		shown, ok := c.pod.setCopyStatus(copy, after.Status, equality.Semantic.DeepEqual(before.Status, after.Status))
		switch {
		case ok && shown != nil:
			return answerPod(w, r, shown)
		case ok:
			return apierrors.NewNotFound(podKind.GroupResource(), a.Name)
		}
		if copy = c.pod.copyOf(a.Namespace, a.Name); copy == nil {
			return apierrors.NewNotFound(podKind.GroupResource(), a.Name)
		}
		if err := ofPod(p.body, a.Name, copy.UID); err != nil {
			return err
		}
	}
	return apierrors.NewConflict(podKind.GroupResource(), a.Name, fmt.Errorf("the pod has changed %d times meanwhile; send the status again",
		changeAttempts))
}

// ofPod returns a conflict for the patch of a pod with another UID.
func ofPod(sent []byte, name string, uid types.UID) error {
	var is struct {
		Metadata struct {
			UID *string `json:"uid"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(sent, &is); err == nil && is.Metadata.UID != nil && *is.Metadata.UID != string(uid) {
		return podConflict(name, cut(*is.Metadata.UID, 64), uid)
	}
	return nil
}

// endCopy notes that the kubelet has ended a copy. It may, once the set's pod is being deleted.
func (c *podAPI) endCopy(w http.ResponseWriter, r *http.Request, a *ask, copy *corev1.Pod) error {
	options, err := deletionOf(r)
	if err != nil {
		return err
	}
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != copy.UID {
		return podConflict(a.Name, cut(string(*p.UID), 64), copy.UID)
	}
	if !c.pod.endCopy(copy.UID) {
		return c.forbidden(a, "the pod of a DaemonSet stands for other cells, too, and nobody deletes it")
	}
	f, ok := accepted(r.Header)
	if !ok {
		return notAcceptable()
	}
	writeObject(w, f, http.StatusOK, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusSuccess,
	})
	return nil
}

// heldOfCopy is how many bytes of the status of a copy are kept, of each cell: what an honest kubelet writes of its containers and
// mounts, with the names that its spec has.
func heldOfCopy(pod *corev1.Pod) int {
	most := 16 << 10
	eachContainer(pod, func(c *corev1.Container) {
		most += storedOfOne + perMount*len(c.VolumeMounts) + len(c.Image)
		for i := range c.VolumeMounts {
			most += len(c.VolumeMounts[i].MountPath)
		}
	})
	return min(most, maxObject)
}

// cutMessage bounds messages of a status that is too large, in bytes.
const cutMessage = 256

// cutStatus cuts the messages of a copy's status, by which nobody decides.
func cutStatus(s *corev1.PodStatus) {
	s.Message = cut(s.Message, cutMessage)
	for i := range s.Conditions {
		s.Conditions[i].Message = cut(s.Conditions[i].Message, cutMessage)
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			for _, state := range []*corev1.ContainerState{&list[i].State, &list[i].LastTerminationState} {
				if state.Waiting != nil {
					state.Waiting.Message = cut(state.Waiting.Message, cutMessage)
				}
				if state.Terminated != nil {
					state.Terminated.Message = cut(state.Terminated.Message, cutMessage)
				}
			}
		}
	}
}
