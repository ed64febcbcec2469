package main

import (
	"fmt"
	"maps"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// asking returns the release with the webhooks that a key of the chart's webhook asks for: those that any profiles, or DaemonSets, need.
func (r release) asking(key string) release {
	r.values = maps.Clone(r.values)
	r.values["webhook"] = map[string]any{key: true}
	return r
}

// components are the folders of a base with webhooks that some configurations need: the key of the chart's webhook, and what of
// provider.yaml needs them.
var components = map[string]struct{ key, about string }{
	"profiles":   {"profiles", "admission.profiles in provider.yaml: docs/profiles.md"},
	"daemonsets": {"daemonSets", "cells.daemonSets in provider.yaml: docs/daemonsets.md"},
}

// componentFile is the kustomization of such a folder.
const componentFile = `# Webhooks for %s.
# Name this folder in components of your kustomization.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- path: webhooks.yaml
  target:
    kind: MutatingWebhookConfiguration
    name: %s
`

// addComponent adds a folder to a base, which adds webhooks to those of the base. outputs are the base's own.
func addComponent(files map[string][]byte, c *chart.Chart, r release, base, folder string, outputs map[string][]byte) error {
	of := components[folder]
	more, err := r.asking(of.key).render(c)
	if err != nil {
		return fmt.Errorf("render %s with %s: %w", base, folder, err)
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
			at := fmt.Sprint("/webhooks/", i)
			if of.key == "daemonSets" {
				at = "/webhooks/-" // last, whichever component comes first
			}
			patch = append(patch, map[string]any{"op": "add", "path": at, "value": hook})
		}
	}
	text, err := yaml.Marshal(patch)
	if err != nil {
		return err
	}
	files[base+"/"+folder+"/webhooks.yaml"] = append([]byte(generatedBy), text...)
	files[base+"/"+folder+"/kustomization.yaml"] = fmt.Appendf([]byte(generatedBy), componentFile, of.about, name)
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
