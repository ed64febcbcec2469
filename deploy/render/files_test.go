package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGeneratedFilesAreThoseOfTheChart(t *testing.T) {
	files, err := generated(top)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		is, err := os.ReadFile(filepath.Join(top, path))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(is, want) {
			t.Errorf("%s is not what the chart renders: run make manifests", path)
		}
	}
}

// A value that the schema does not know is a typo to it; one that values.yaml lacks has no comment.
func TestSchemaAndValuesHaveTheSameKeys(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "deploy/helm/kip/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	values, err := readValues(text)
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, v := range values {
		described[v.key] = true
		for key := v.key; strings.Contains(key, "."); {
			key = key[:strings.LastIndex(key, ".")]
			described[key] = true
		}
	}
	text, err = os.ReadFile(filepath.Join(top, "deploy/helm/kip/values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Properties           map[string]*node
		AdditionalProperties any
	}
	var schema node
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	var walk func(prefix string, n *node)
	walk = func(prefix string, n *node) {
		if len(n.Properties) > 0 && n.AdditionalProperties != false {
			t.Errorf("the schema takes any key below %q", prefix)
		}
		for key, below := range n.Properties {
			known[prefix+key] = true
			// What is below these is not the chart's.
			if path := prefix + key; path != "config" && path != "resources" && path != "affinity" && path != "servingCertificate.issuerRef" {
				walk(path+".", below)
			}
		}
	}
	walk("", &schema)
	delete(known, "global") // Helm's own
	for key := range described {
		if !known[key] {
			t.Errorf("the schema does not know %s", key)
		}
	}
	for key := range known {
		if !described[key] {
			t.Errorf("values.yaml does not have %s", key)
		}
	}
}

func TestAValueWithoutACommentIsNamed(t *testing.T) {
	_, err := readValues([]byte("# -- What it is.\na: 1\nb:\n  # -- Also.\n  c: 2\n  d: 3\n"))
	if err == nil || !strings.Contains(err.Error(), "b.d") {
		t.Errorf("%v", err)
	}
}
