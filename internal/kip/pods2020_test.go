package kip

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/placement"
)

// The manifests that the guides of 2020 have people apply grant what pods of 2020 name, in any namespace.
func TestPodsOf2020AreGrantedWhatTheyNameByTheManifests(t *testing.T) {
	const manifests = "../../deploy/manifests/"
	files, err := filepath.Glob(manifests + "kip/overlays/*/provider.yaml")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range append(files, manifests+"kip/base/provider.yaml", manifests+"virtual-kubelet/base/provider.yaml") {
		if strings.Contains(file, "/gcp/") {
			continue // no Kip takes it
		}
		seen++
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cfg, _, err := config.Parse(file, text)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{
			placement.AnnotationInstanceProfile: "arn:aws:iam::11123456789:instance-profile/kip-cell",
			placement.AnnotationSecurityGroups:  "sg-0123456789abcdef0,web",
		} {
			asked, err := placement.ParseAnnotations(map[string]string{name: value})
			if err == nil {
				err = grants(cfg).Check("any", asked)
			}
			if err != nil {
				t.Errorf("%s: a pod with %s: %q alone: %v", file, name, value, err)
			}
		}
	}
	if seen != 7 {
		t.Errorf("%d files were looked at", seen)
	}
}
