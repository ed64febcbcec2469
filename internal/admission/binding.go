package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/placement"
)

// bindingTimeout bounds the question for the pod of a binding: half of what the API server waits.
const bindingTimeout = bodyTimeout

// bound answers about a pod that is bound to a node. On Kip's it gets the cost of deletion that its profile has: the API server merges
// the annotations of a binding into the pod's, over the pod's own (pkg/registry/core/pod/storage, setPodNodeAndMetadata).
func (rs *reviews) bound(ctx context.Context, response *admissionv1.AdmissionResponse, object []byte, namespace string) error {
	var is struct {
		Metadata struct {
			Name        string `json:"name"`
			Annotations texts  `json:"annotations"`
		} `json:"metadata"`
		Target struct {
			Name string `json:"name"`
		} `json:"target"`
	}
	if err := json.Unmarshal(object, &is); err != nil {
		return fmt.Errorf("read the binding: %w", err)
	}
	if !rs.profiles.cost() || !slices.Contains(rs.rules().NodeLabels[corev1.LabelHostname], is.Target.Name) {
		return nil
	}
	if _, has := is.Metadata.Annotations[corev1.PodDeletionCost]; has {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bindingTimeout)
	defer cancel()
	own, err := rs.profiles.AnnotationsOf(ctx, namespace, is.Metadata.Name)
	if err != nil {
		rs.log.Warn("failed to read a pod that is bound to a virtual node; it gets no "+corev1.PodDeletionCost, "pod",
			namespace+"/"+is.Metadata.Name, "err", err)
		return nil
	}
	p := rs.profiles.named(own[placement.AnnotationProfile])
	if _, has := own[corev1.PodDeletionCost]; has || p == nil || p.DeletionCost == "" {
		return nil
	}
	return respond(response, annotate(is.Metadata.Annotations, map[string]string{corev1.PodDeletionCost: p.DeletionCost}))
}
