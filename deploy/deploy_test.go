package deploy_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/deploy"
	"github.com/elotl/kip/internal/cloudconfig"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/nodeplan"
)

// Kip may be its own nodes, each by its name, and no other.
func TestRightsNameEachVirtualNode(t *testing.T) {
	var users, nodes []string
	for number := range config.MaxNodes + 1 {
		name := nodeplan.Name("kip-0", number)
		nodes, users = append(nodes, name), append(users, "system:node:"+name)
	}
	seen := 0
	for _, document := range bytes.Split(deploy.RBAC, []byte("\n---\n")) {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal(document, &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" {
			continue
		}
		for _, r := range role.Rules {
			want := nodes
			switch {
			case slices.Contains(r.Resources, "users"):
				want = users
			case !slices.Contains(r.Resources, "nodes") || slices.Equal(r.Verbs, []string{"create"}):
				continue
			}
			seen++
			if !slices.Equal(r.ResourceNames, want) {
				t.Errorf("%s may %v %v %v: want %v", role.Name, r.Verbs, r.Resources, r.ResourceNames, want)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d rules name nodes: want those of users and of nodes", seen)
	}
}

// Kip starts with each provider.yaml of the manifests, but for that of a cloud that this release has no driver for.
func TestProviderFilesOfTheManifestsLoad(t *testing.T) {
	var files []string
	for _, pattern := range []string{"manifests/*/base/provider.yaml", "manifests/kip/overlays/*/provider.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) != 8 {
		t.Errorf("the files are %v", files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, warnings, err := config.Parse(file, text)
		if err != nil || len(warnings) != 0 {
			t.Errorf("%s: %v, %v", file, warnings, err)
		} else if (c.Cloud.AWS == nil) != strings.Contains(file, "gcp") {
			t.Errorf("%s: the cloud is %+v", file, c.Cloud)
		}
	}
}

// It is for any cell, also one of Kip's own image.
func TestTheExampleOfACloudInitFileIsOne(t *testing.T) {
	var secret corev1.Secret
	if err := yaml.UnmarshalStrict(deploy.CloudInit, &secret); err != nil {
		t.Fatal(err)
	}
	d, err := cloudconfig.Parse("cells.yaml", []byte(secret.StringData["cells.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	if d.NeedsLogin() != "" || len(d.Files) != 1 || len(d.Scripts) != 1 || secret.Namespace != "kip-system" {
		t.Errorf("it says %+v, in namespace %s", d, secret.Namespace)
	}
}
