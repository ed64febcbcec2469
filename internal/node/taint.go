package node

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Environment variables that change the taint of the virtual node, and its
// default. They are those of every Virtual Kubelet.
const (
	TaintKeyEnv    = "VKUBELET_TAINT_KEY"
	TaintValueEnv  = "VKUBELET_TAINT_VALUE"
	TaintEffectEnv = "VKUBELET_TAINT_EFFECT"

	DefaultTaintKey    = "virtual-kubelet.io/provider"
	DefaultTaintValue  = "kip"
	DefaultTaintEffect = corev1.TaintEffectNoSchedule
)

var taintEffects = []corev1.TaintEffect{
	corev1.TaintEffectNoSchedule,
	corev1.TaintEffectPreferNoSchedule,
	corev1.TaintEffectNoExecute,
}

// TaintFromEnv is the taint that the environment asks for. lookup is
// os.LookupEnv. An unset variable means the default; the value may be empty.
func TaintFromEnv(lookup func(string) (string, bool)) (corev1.Taint, error) {
	t := corev1.Taint{Key: DefaultTaintKey, Value: DefaultTaintValue, Effect: DefaultTaintEffect}
	if v, ok := lookup(TaintKeyEnv); ok {
		t.Key = v
	}
	if v, ok := lookup(TaintValueEnv); ok {
		t.Value = v
	}
	if v, ok := lookup(TaintEffectEnv); ok {
		t.Effect = corev1.TaintEffect(v)
	}
	if problems := validation.IsQualifiedName(t.Key); len(problems) > 0 {
		return corev1.Taint{}, fmt.Errorf("%s: %q is not a taint key: %s", TaintKeyEnv, t.Key, strings.Join(problems, "; "))
	}
	if problems := validation.IsValidLabelValue(t.Value); len(problems) > 0 {
		return corev1.Taint{}, fmt.Errorf("%s: %q is not a taint value: %s", TaintValueEnv, t.Value, strings.Join(problems, "; "))
	}
	if !slices.Contains(taintEffects, t.Effect) {
		return corev1.Taint{}, fmt.Errorf("%s: %q is not a taint effect: it must be one of %v", TaintEffectEnv, t.Effect, taintEffects)
	}
	return t, nil
}
