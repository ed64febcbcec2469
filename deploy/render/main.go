// Command render writes what is generated from the Helm chart of Kip: the
// manifests that package deploy embeds, the kustomize bases, and the chart's
// README and definition of Cell. It talks to no cluster.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// top is the repository, seen from this module, where go run and go test start.
const top = "../.."

func main() {
	if err := write(top); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

// write writes all generated files of the repository in a folder.
func write(folder string) error {
	files, err := generated(folder)
	if err != nil {
		return err
	}
	for path, content := range files {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
