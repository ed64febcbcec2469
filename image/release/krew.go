package release

import (
	"os"

	"sigs.k8s.io/yaml"
)

// The manifest of a kubectl plugin: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
type (
	plugin struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]string `json:"metadata"`
		Spec       pluginSpec        `json:"spec"`
	}
	pluginSpec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Platforms        []platform `json:"platforms"`
	}
	platform struct {
		URI      string     `json:"uri"`
		SHA256   string     `json:"sha256"`
		Bin      string     `json:"bin"`
		Files    []fileMove `json:"files"`
		Selector selector   `json:"selector"`
	}
	fileMove struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	}
)

// newPlatform describes one archive, from which krew takes the program and the license.
func newPlatform(system, arch, uri, sum, program string) platform {
	return platform{
		URI:      uri,
		SHA256:   sum,
		Bin:      program,
		Files:    []fileMove{{From: program, To: "."}, {From: "LICENSE", To: "."}},
		Selector: selector{map[string]string{"os": system, "arch": arch}},
	}
}

// writeKrew writes krew's manifest.
func writeKrew(file, version string, platforms []platform) error {
	text, err := yaml.Marshal(plugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2",
		Kind:       "Plugin",
		Metadata:   map[string]string{"name": "kip"},
		Spec: pluginSpec{
			Version:          version,
			Homepage:         "https://github.com/elotl/kip",
			ShortDescription: "Show cells of Kip, and why a pod is where it is",
			Description: "Kip gives every pod on a virtual node a cloud instance of its own.\n" +
				"This plugin shows these instances, what they cost, and why a pod waits.\n",
			Platforms: platforms,
		},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}
