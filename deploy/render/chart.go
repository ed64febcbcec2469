package main

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// A release is an installation of the chart.
type release struct {
	name, namespace string
	values          map[string]any
	// cluster is what templates look up. Without one they find nothing.
	cluster engine.ClientProvider
}

// loadChart reads the chart of the repository in a folder.
func loadChart(folder string) (*chart.Chart, error) {
	return loader.LoadDir(filepath.Join(folder, "deploy/helm/kip"))
}

// render returns the output of each template, by its name without extension: the
// objects that it has, separated as in a file. Hooks are left out.
func (r release) render(c *chart.Chart) (map[string][]byte, error) {
	all, err := r.renderAll(c)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	delete(all, "NOTES")
	for name, text := range all {
		var objects []string
		for _, object := range documents(text) {
			if !strings.Contains(object, "helm.sh/hook:") {
				objects = append(objects, object)
			}
		}
		if len(objects) > 0 {
			out[name] = []byte(strings.Join(objects, "\n---\n") + "\n")
		}
	}
	return out, nil
}

// renderAll returns the output of each template as Helm has it, by its name without
// extension. That of NOTES is the text after an installation.
func (r release) renderAll(c *chart.Chart) (map[string]string, error) {
	values, err := util.ToRenderValues(c, r.values, common.ReleaseOptions{Name: r.name, Namespace: r.namespace, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	var texts map[string]string
	if r.cluster != nil {
		texts, err = engine.RenderWithClientProvider(c, values, r.cluster)
	} else {
		texts, err = engine.Render(c, values)
	}
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, text := range texts {
		name = path.Base(name)
		if !strings.HasPrefix(name, "_") {
			out[strings.TrimSuffix(name, path.Ext(name))] = text
		}
	}
	return out, nil
}

var separator = regexp.MustCompile(`(?m)^---$`)

// documents returns the documents of a YAML text that have an object.
func documents(text string) []string {
	var out []string
	for _, document := range separator.Split(text, -1) {
		var lines []string
		for line := range strings.Lines(document) {
			if line = strings.TrimRight(line, " \n"); line != "" {
				lines = append(lines, line)
			}
		}
		if slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "#") }) {
			out = append(out, strings.Join(lines, "\n"))
		}
	}
	return out
}

// together returns the output of all templates as one file.
func together(outputs map[string][]byte) []byte {
	var all [][]byte
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		all = append(all, outputs[name])
	}
	return bytes.Join(all, []byte("---\n"))
}

// parse reads values.
func parse(text string) (map[string]any, error) {
	var values map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("parse values: %w", err)
	}
	return values, nil
}
