package cellapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/elotl/kip/internal/volumes"
)

// serveClaim passes the get of a claim that the pod names, and what the kubelet says of its
// expansion. It is not watched: the Node authorizer allows a get only.
func (c *volumeAPI) serveClaim(w http.ResponseWriter, r *http.Request, a *ask) error {
	status := a.Subresource == "status" && a.Verb == "patch"
	if !status && (a.Subresource != "" || a.Verb != "get") {
		return c.forbidden(a, a.Resource+" can only be read, by name, and their status patched")
	}
	if err := c.pod.knowsPod(w, r); err != nil {
		return err
	}
	if !c.pod.names(a.Namespace, a.Name) {
		return c.forbidden(a, "its pod does not name it")
	}
	if status {
		return c.passClaimStatus(w, r, a)
	}
	return c.passing.pass(w, r, a, body{}, func(answer []byte) error {
		if claim, err := decode[*corev1.PersistentVolumeClaim](answer); err == nil {
			c.pod.noteClaim(claim.Name, claim.Spec.VolumeName)
		}
		return nil
	})
}

// claimPatch is what a kubelet's patch of a claim's status may have: how the expansion of its
// volume goes (pkg/volume/util/resize_util.go). A null of the whole removes what is the kubelet's.
var claimPatch = func() shape {
	var types []string
	for _, t := range volumes.ResizeConditions {
		types = append(types, string(t))
	}
	return fieldsOf(map[string]shape{
		"metadata": fieldsOf(map[string]shape{"resourceVersion": text(32)}),
		"status": fieldsOf(map[string]shape{
			"capacity": fieldsOf(map[string]shape{"storage": quantity}),
			"allocatedResourceStatuses": fieldsOf(map[string]shape{
				"storage": oneOf(string(corev1.PersistentVolumeClaimNodeResizeInProgress), string(corev1.PersistentVolumeClaimNodeResizeInfeasible)),
			}),
			"conditions": list(16, fieldsOf(map[string]shape{
				"type": oneOf(types...), "status": oneOf("True", "False", "Unknown"), "reason": reasonText, "message": message(maxMessage),
				"lastProbeTime": moment, "lastTransitionTime": moment, "$patch": oneOf("delete"),
			})),
		}),
	})
}()

// passClaimStatus passes what a kubelet says of the expansion of a claim's volume, made anew. A
// cell has the file system, and nobody else sees how large it is; but no claim gets more than its
// volume has, none gets less than it had, and only an expansion that is the node's to finish is finished.
func (c *volumeAPI) passClaimStatus(w http.ResponseWriter, r *http.Request, a *ask) error {
	p, err := readPatch(r)
	if err != nil {
		return err
	}
	if p.kind != types.StrategicMergePatchType {
		return unsupportedMediaType(string(p.kind), string(types.StrategicMergePatchType))
	}
	var sent any
	if err := utiljson.Unmarshal(p.body, &sent); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("the patch is not JSON: %v", err))
	}
	shaped, err := claimPatch(field.NewPath("patch"), sent)
	if err != nil {
		return err
	}
	if p.body, err = json.Marshal(shaped); err != nil {
		return fmt.Errorf("encode the patch of claim %s/%s: %w", a.Namespace, a.Name, err)
	}
	rests(w) // while others are asked
	claim, pv, err := c.boundClaim(r.Context(), a)
	if err != nil {
		return err
	}
	next := &corev1.PersistentVolumeClaim{}
	if err := p.apply(claim, next); err != nil {
		return err
	}
	if next.ResourceVersion != "" && next.ResourceVersion != claim.ResourceVersion {
		return apierrors.NewConflict(a.resource.GroupResource(), a.Name, errors.New("the claim has changed since it was read"))
	}
	change, err := claimChange(claim, next, pv)
	if err != nil {
		return err
	}
	return c.passing.pass(w, r, a, body{mediaType: string(types.MergePatchType), bytes: change}, nil)
}

// claimChange is the merge patch that makes of a claim what may be believed of next. It is for
// that version of the claim only.
func claimChange(claim, next *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) ([]byte, error) {
	const storage = corev1.ResourceStorage
	root := field.NewPath("status")
	had, has, most := claim.Status.Capacity[storage], next.Status.Capacity[storage], pv.Spec.Capacity[storage]
	// Any size between would be a reason for the provisioner to look again, as often as the cell likes.
	allocated := claim.Status.AllocatedResources[storage]
	if !has.Equal(had) && (has.Cmp(had) < 0 || has.Cmp(most) > 0 || !has.Equal(most) && !has.Equal(allocated)) {
		return nil, wrong(root.Child("capacity").Key(string(storage)), fmt.Sprintf("from %s, which the claim has, to %s, which its volume has",
			had.String(), most.String()))
	}
	before, after := claim.Status.AllocatedResourceStatuses[storage], next.Status.AllocatedResourceStatuses[storage]
	onNode := []corev1.ClaimResourceStatus{corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress}
	if (before != after || !has.Equal(had)) && before != "" && !slices.Contains(onNode, before) || before == "" && after != "" {
		return nil, wrong(root.Child("allocatedResourceStatuses").Key(string(storage)),
			fmt.Sprintf("left as it is, %q: the node has nothing to finish", before))
	}
	of := func(conditions []corev1.PersistentVolumeClaimCondition, resize bool) []corev1.PersistentVolumeClaimCondition {
		return slices.DeleteFunc(slices.Clone(conditions), func(c corev1.PersistentVolumeClaimCondition) bool {
			return slices.Contains(volumes.ResizeConditions, c.Type) != resize
		})
	}
	status := map[string]any{
		"conditions": append(of(claim.Status.Conditions, false), of(next.Status.Conditions, true)...),
	}
	if !has.Equal(had) {
		status["capacity"] = map[string]any{string(storage): has}
	}
	switch {
	case after == "" && before != "":
		status["allocatedResourceStatuses"] = map[string]any{string(storage): nil}
	case after != before:
		status["allocatedResourceStatuses"] = map[string]any{string(storage): after}
	}
	change, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status":   status,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return change, nil
}
