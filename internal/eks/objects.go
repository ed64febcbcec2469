package eks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/eks/wellknown"
)

// manager is who applies the objects, as the API server keeps it.
const manager = "kip-deploy"

// configMap is the one that the manifests mount.
const configMap = name + "-config"

// plan is what was found and decided, of which the objects are made.
type plan struct {
	image, role, namespace string
	provider               []byte   // provider.yaml
	profiled               bool     // it has profiles
	namespaces             []string // those of the pods that profiles may choose; none if a profile does not name them
	sets                   []string // the expressions of CEL that hold for DaemonSets that run beside pods
	dns                    string   // an address; "" if Kip finds it
	class                  string
	ownClass               *unstructured.Unstructured // nil if there is one
}

// objects are all that is applied, the namespace first and the workload last.
func (p plan) objects() ([]*unstructured.Unstructured, error) {
	all, err := p.read(deploy.EKS)
	if err != nil {
		return nil, err
	}
	var profiled []*unstructured.Unstructured
	if p.profiled {
		if profiled, err = p.read(deploy.EKSProfiles); err != nil {
			return nil, err
		}
	}
	var first, rest, last []*unstructured.Unstructured
	for _, o := range all {
		if i := slices.IndexFunc(profiled, func(other *unstructured.Unstructured) bool {
			return other.GroupVersionKind() == o.GroupVersionKind() && other.GetName() == o.GetName()
		}); i >= 0 {
			o = profiled[i]
		}
		if o.GetKind() == "MutatingWebhookConfiguration" && len(p.sets) > 0 {
			if err := p.askAboutSets(o); err != nil {
				return nil, err
			}
		}
		if o.GetKind() == "MutatingWebhookConfiguration" && len(p.namespaces) > 0 {
			if err := p.askAboutNamespaces(o); err != nil {
				return nil, err
			}
		}
		switch {
		case o.GetKind() == "Namespace":
			first = append(first, o)
		case o.GetKind() == "StatefulSet":
			if err := p.fillIn(o); err != nil {
				return nil, err
			}
			last = append(last, o)
		case o.GetKind() == "ServiceAccount" && o.GetName() == name:
			o.SetAnnotations(map[string]string{wellknown.RoleAnnotation: p.role})
			rest = append(rest, o)
		default:
			rest = append(rest, o)
		}
	}
	rest = append(rest, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]any{"name": configMap, "namespace": p.namespace},
		"data":       map[string]any{"provider.yaml": string(p.provider)},
	}})
	if p.ownClass != nil {
		rest = append(rest, p.ownClass)
	}
	return append(append(first, rest...), last...), nil
}

// read reads manifests in the namespace of the plan.
func (p plan) read(manifests []byte) (all []*unstructured.Unstructured, err error) {
	text := bytes.ReplaceAll(manifests, []byte(deploy.EKSNamespace), []byte(p.namespace))
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			return nil, fmt.Errorf("read the manifests of Kip: %w", err)
		}
		if len(o.Object) > 0 { // not comments alone
			all = append(all, o)
		}
	}
	return all, nil
}

// askAboutSets adds the webhook of DaemonSets, about those alone that run beside pods.
func (p plan) askAboutSets(o *unstructured.Unstructured) error {
	all, err := p.read(deploy.EKSDaemonSets)
	if err != nil {
		return err
	}
	hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, other := range all {
		of, _, _ := unstructured.NestedSlice(other.Object, "webhooks")
		for _, h := range of {
			if hook := h.(map[string]any); hook["name"] == "daemonsets.kip.elotl.co" {
				hook["matchConditions"] = []any{map[string]any{"name": "runs-beside-pods", "expression": strings.Join(p.sets, " ||\n")}}
				hooks = append(hooks, hook)
			}
		}
	}
	return unstructured.SetNestedSlice(o.Object, hooks, "webhooks")
}

// askAboutNamespaces has the webhooks of profiles ask about the namespaces alone that profiles name.
func (p plan) askAboutNamespaces(o *unstructured.Unstructured) error {
	hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	if err != nil {
		return err
	}
	var values []any
	for _, namespace := range p.namespaces {
		values = append(values, namespace)
	}
	for _, h := range hooks {
		if hook := h.(map[string]any); hook["name"] == "profiles.kip.elotl.co" || hook["name"] == "bindings.kip.elotl.co" {
			hook["namespaceSelector"] = map[string]any{"matchExpressions": []any{map[string]any{
				"key": corev1.LabelMetadataName, "operator": string(metav1.LabelSelectorOpIn), "values": values,
			}}}
		}
	}
	return unstructured.SetNestedSlice(o.Object, hooks, "webhooks")
}

// namespacesOf returns the namespaces of the pods that profiles may choose, sorted; nil if a profile names none, or names a pattern.
func namespacesOf(profiles []config.Profile) (all []string) {
	for _, p := range profiles {
		if len(p.Namespaces) == 0 || slices.ContainsFunc(p.Namespaces, func(name string) bool { return strings.HasSuffix(name, "*") }) {
			return nil
		}
		all = append(all, p.Namespaces...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// setsOf are expressions of CEL, one of which holds for each DaemonSet that runs beside pods, as the chart makes them
// (deploy/helm/kip/templates/_daemonsets.tpl).
func setsOf(c *config.Config) (all []string) {
	add := func(namespace, name string) {
		is := fmt.Sprintf("request.namespace == %q", namespace)
		if name != "" {
			is += fmt.Sprintf(" && object.metadata.name == %q", name)
		}
		all = append(all, "("+is+")")
	}
	for _, s := range c.Cells.DaemonSets {
		add(s.Namespace, s.Name)
	}
	for _, d := range c.Cells.CSIDrivers {
		if namespace, name, _ := strings.Cut(d.DaemonSet, "/"); d.Beside {
			add(namespace, name)
		}
	}
	return all
}

// fillIn gives the StatefulSet its image, its claim and its arguments. The configuration's checksum restarts Kip when that changes.
func (p plan) fillIn(o *unstructured.Unstructured) error {
	sum := sha256.Sum256(p.provider)
	err := unstructured.SetNestedField(o.Object, hex.EncodeToString(sum[:]), "spec", "template", "metadata", "annotations", "checksum/config")
	if err != nil {
		return err
	}
	containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		return fmt.Errorf("the manifests of Kip have %d containers: %w", len(containers), err)
	}
	kip := containers[0].(map[string]any)
	kip["image"] = p.image
	if p.dns != "" {
		kip["args"] = append(kip["args"].([]any), "--cluster-dns="+p.dns)
	}
	if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
		return err
	}
	claims, _, err := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates")
	if err != nil || len(claims) != 1 {
		return fmt.Errorf("the manifests of Kip have %d claims: %w", len(claims), err)
	}
	if err := unstructured.SetNestedField(claims[0].(map[string]any), p.class, "spec", "storageClassName"); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(o.Object, claims, "spec", "volumeClaimTemplates")
}

// configure gives the plan Kip's configuration, which Kip takes.
func (p *plan) configure(settings map[string]any) error {
	text, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	c, _, err := config.Parse("provider.yaml", text)
	if err != nil {
		return fmt.Errorf("the configuration that would be installed is not valid: %w", err)
	}
	p.provider, p.sets = text, setsOf(c)
	p.profiled, p.namespaces = len(c.Admission.Profiles) > 0, namespacesOf(c.Admission.Profiles)
	return nil
}

// subnetsOf are the subnets that an installed configuration names. One that this version does not take names none.
func subnetsOf(provider string) []string {
	c, _, err := config.Parse("provider.yaml", []byte(provider))
	if err != nil || c.Cloud.AWS == nil {
		return nil
	}
	return c.Cloud.AWS.Subnets()
}

// resourceOf is the resource of an object. Kip's manifests have kinds alone whose plural is regular.
func resourceOf(o *unstructured.Unstructured) schema.GroupVersionResource {
	plural, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	return plural
}

// apply applies one object by server-side apply: what others have added to it stays.
func (k *Kubernetes) apply(ctx context.Context, o *unstructured.Unstructured, dryRun ...string) error {
	_, err := k.Dynamic.Resource(resourceOf(o)).Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o,
		metav1.ApplyOptions{FieldManager: manager, Force: true, DryRun: dryRun})
	what := strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not apply %s %s: want the rights of a cluster admin: %w", o.GetKind(), what, err)
	case err != nil:
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), what, err)
	}
	return nil
}
