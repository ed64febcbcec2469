// Package linkage proves what the programs and the pure packages do not contain, however indirectly.
// The rules about direct imports are depguard's, in .golangci.yml. It starts nothing but `go list`.
package linkage

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/elotl/kip"

// unwanted returns the dependencies that are one of the packages, or lie below one.
func unwanted(dependencies, packages []string) []string {
	return slices.DeleteFunc(slices.Clone(dependencies), func(d string) bool {
		return !slices.ContainsFunc(packages, func(p string) bool { return d == p || strings.HasPrefix(d, p+"/") })
	})
}

// dependencies returns all that a package of Kip links, itself included.
func dependencies(t *testing.T, of string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", module+"/"+of)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list what %s links: %v", of, err)
	}
	all := strings.Fields(string(out))
	if !slices.Contains(all, module+"/"+of) {
		t.Fatalf("%s is not among what it links: %v", of, all)
	}
	return all
}

func TestProgramsDoNotLinkWhatTheyMustNot(t *testing.T) {
	for _, tc := range []struct {
		of, not []string
		why     string
	}{
		{
			of:  []string{"cmd/kip", "cmd/kipctl", "cmd/itzo-lite"},
			not: []string{"k8s.io/kubernetes", "k8s.io/kubectl", module + "/dev"},
			why: "these programs contain neither Kubernetes' own code nor the development cluster",
		},
		{
			of: []string{"cmd/kip", "cmd/kipctl"},
			not: []string{
				module + "/internal/cloud/sim", module + "/internal/cloud/remote", module + "/internal/cloud/cloudtest", module + "/test",
			},
			why: "users get no test gear: test/simkip is the Kip that can open the simulated cloud",
		},
		{
			of:  []string{"cmd/itzo-containerd"},
			not: []string{"k8s.io/kubernetes", "k8s.io/client-go/kubernetes", module + "/dev"},
			why: "a cell starts it often, and Kubernetes' packages cost memory and time before main",
		},
		{
			of:  []string{"cmd/itzo-lite"},
			not: []string{"k8s.io/client-go", "go.etcd.io"},
			why: "a pod starts it several times, so it must start fast",
		},
		{
			of: []string{"internal/placement", "internal/catalog", "internal/capacity", "internal/costs"},
			not: []string{
				"k8s.io/client-go", "go.etcd.io", "google.golang.org/grpc", "github.com/aws", "github.com/Azure", "cloud.google.com/go",
				"google.golang.org/api",
			},
			why: "pure packages contain no client",
		},
		{
			of: []string{"dev/cloudmodel", "dev/cloudmodel/hardware"},
			not: []string{
				"github.com/aws", "github.com/Azure", "cloud.google.com/go", "google.golang.org/api",
				module + "/internal/cloud/aws", module + "/dev/ec2",
			},
			why: "what models of clouds share knows no cloud",
		},
	} {
		for _, of := range tc.of {
			for _, d := range unwanted(dependencies(t, of), tc.not) {
				t.Errorf("%s links %s: %s; `go list -deps` shows through which package", of, d, tc.why)
			}
		}
	}
}

func TestUnwantedDependenciesAreFound(t *testing.T) {
	found := unwanted([]string{"fmt", "k8s.io/kubernetes/pkg/kubelet", "k8s.io/kubernetes-csi", "k8s.io/client-go"},
		[]string{"k8s.io/kubernetes", "k8s.io/client-go"})
	if want := []string{"k8s.io/kubernetes/pkg/kubelet", "k8s.io/client-go"}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}
