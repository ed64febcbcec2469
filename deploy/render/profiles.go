package main

import (
	"fmt"
	"maps"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// profiled returns the release with the webhooks that any profiles need.
func (r release) profiled() release {
	r.values = maps.Clone(r.values)
	r.values["webhook"] = map[string]any{"profiles": true}
	return r
}

// componentFile is the kustomization of the folder profiles of a base, for those whose provider.yaml has profiles.
const componentFile = `# Webhooks for admission.profiles in provider.yaml: docs/profiles.md.
# Name this folder in components of your kustomization.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- path: webhooks.yaml
  target:
    kind: MutatingWebhookConfiguration
    name: %s
`

// addProfiles adds the folder profiles of a base, which adds the webhooks that profiles need to those of the base. outputs are the
// base's own.
func addProfiles(files map[string][]byte, c *chart.Chart, r release, base string, outputs map[string][]byte) error {
	more, err := r.profiled().render(c)
	if err != nil {
		return fmt.Errorf("render %s with profiles: %w", base, err)
	}
	was, name, err := webhooksOf(outputs["webhook"])
	if err != nil {
		return err
	}
	has := map[any]bool{}
	for _, hook := range was {
		has[hook.(map[string]any)["name"]] = true
	}
	is, _, err := webhooksOf(more["webhook"])
	if err != nil {
		return err
	}
	var patch []map[string]any
	for i, hook := range is {
		if !has[hook.(map[string]any)["name"]] {
			patch = append(patch, map[string]any{"op": "add", "path": fmt.Sprint("/webhooks/", i), "value": hook})
		}
	}
	text, err := yaml.Marshal(patch)
	if err != nil {
		return err
	}
	files[base+"/profiles/webhooks.yaml"] = append([]byte(generatedBy), text...)
	files[base+"/profiles/kustomization.yaml"] = fmt.Appendf([]byte(generatedBy), componentFile, name)
	return nil
}

// webhooksOf returns the webhooks of the output of a template, and the name of their configuration.
func webhooksOf(text []byte) (hooks []any, name string, err error) {
	for _, document := range documents(string(text)) {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return nil, "", err
		}
		if o.GetKind() == "MutatingWebhookConfiguration" {
			hooks, _, err = unstructured.NestedSlice(o.Object, "webhooks")
			return hooks, o.GetName(), err
		}
	}
	return nil, "", fmt.Errorf("there is no MutatingWebhookConfiguration in\n%s", text)
}
