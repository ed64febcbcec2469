package quote

import (
	"encoding/json"
	"errors"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/internal/admission"
)

// admitted returns a pod as it is where Kip's webhook has seen it: what it selects of its
// instance has become annotations. The pod is not changed.
func admitted(pod *corev1.Pod) (*corev1.Pod, error) {
	// Without rules of nodes: which there are, no manifest says.
	patch, warnings := admission.Rules{}.Patch(pod, admission.InNamespace, admission.Defaults{})
	if len(warnings) > 0 {
		return nil, errors.New(warnings[0])
	}
	if len(patch) == 0 {
		return pod, nil
	}
	var changed []byte
	before, err := json.Marshal(pod)
	if err == nil {
		changed, err = json.Marshal(patch)
	}
	var operations jsonpatch.Patch
	if err == nil {
		operations, err = jsonpatch.DecodePatch(changed)
	}
	if err == nil {
		changed, err = operations.Apply(before)
	}
	out := &corev1.Pod{}
	if err == nil {
		err = json.Unmarshal(changed, out)
	}
	if err != nil {
		return nil, fmt.Errorf("write what it selects of its instance to annotations: %w", err)
	}
	return out, nil
}
