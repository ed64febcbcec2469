package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// hack/guide carries out the guides of 2020, in a copy of the checkout. This test binary stands in for the programs that they name: there
// is neither a cluster nor a cloud. Commands of AWS and ./kustomize/deploy.sh are tested in internal/cloud/aws/eks.

const (
	// asProgram says which program the test binary stands in for, and asCluster names the file of all that kubectl has applied.
	asProgram, asCluster = "GUIDE_PROGRAM", "GUIDE_CLUSTER"
)

func TestMain(m *testing.M) {
	name := os.Getenv(asProgram)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := programs[name](os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

var programs = map[string]func(args []string) error{"kustomize": kustomize, "kubectl": kubectl, "terraform": terraform, "vi": vi}

var errNotInGuides = errors.New("no guide has this command")

func kustomize(args []string) error {
	if len(args) != 2 || args[0] != "build" {
		return errNotInGuides
	}
	text, err := kustomized(args[1])
	fmt.Print(text)
	return err
}

func kubectl(args []string) error {
	switch line := strings.Join(args, " "); {
	case strings.HasPrefix(line, "apply -k ") && len(args) == 3:
		text, err := kustomized(args[2])
		if err != nil {
			return err
		}
		return apply(args[2], text)
	case line == "apply -f -":
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		return apply("STDIN", string(text))
	case strings.HasPrefix(line, "apply -f ") && len(args) == 3:
		text, err := os.ReadFile(args[2])
		if err != nil {
			return err
		}
		return apply(args[2], string(text))
	case strings.HasPrefix(line, "delete -n ") && len(args) == 5:
		return remove(args[2], args[3], args[4])
	}
	return errNotInGuides
}

// apply adds objects to those of the cluster, if each is one of its kind.
func apply(from, text string) error {
	codec := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	all := documents(text)
	if len(all) == 0 {
		return errors.New("no objects passed to apply")
	}
	for _, document := range all {
		data, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			return err
		}
		var o unstructured.Unstructured
		if err := o.UnmarshalJSON(data); err != nil {
			return err
		}
		_, _, err = codec.Decode(data, nil, nil)
		switch {
		case o.GetKind() == "CustomResourceDefinition": // which client-go does not know
		case runtime.IsNotRegisteredError(err): // in the words of kubectl
			return fmt.Errorf("resource mapping not found for name: %q namespace: %q from %q: no matches for kind %q in version %q", o.GetName(),
				o.GetNamespace(), from, o.GetKind(), o.GetAPIVersion())
		case err != nil:
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	cluster, err := os.OpenFile(os.Getenv(asCluster), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer cluster.Close()
	_, err = cluster.WriteString(strings.Join(all, "\n---\n") + "\n---\n")
	return err
}

// remove is an error unless the cluster has an object.
func remove(namespace, kind, name string) error {
	text, err := os.ReadFile(os.Getenv(asCluster))
	if err != nil {
		return err
	}
	for _, document := range documents(string(text)) {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return err
		}
		if strings.EqualFold(o.GetKind(), kind) && o.GetName() == name && o.GetNamespace() == namespace {
			return nil
		}
	}
	return fmt.Errorf("%s %q not found in namespace %s", kind, name, namespace)
}

// terraform checks what it would read: docs/terraform.md says what that leaves open.
func terraform(args []string) error {
	c, err := loadConfiguration(".")
	if err != nil || slices.Equal(args, []string{"init"}) {
		return err
	}
	if len(args) != 3 || !slices.Contains([]string{"apply", "destroy"}, args[0]) || args[1] != "-var-file" {
		return errNotInGuides
	}
	values, err := variables(args[2])
	if err != nil {
		return err
	}
	for name := range values {
		if c.bodies["var."+name] == nil {
			return fmt.Errorf("%s has a value for %s, which is no variable", args[2], name)
		}
	}
	for address, body := range c.bodies {
		name, is := strings.CutPrefix(address, "var.")
		if _, set := values[name]; is && !set && body.Attributes["default"] == nil {
			return fmt.Errorf("no value for required variable %s", name)
		}
	}
	return nil
}

// vi changes one value of a file that is there.
func vi(args []string) error {
	if len(args) != 1 {
		return errNotInGuides
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], []byte(strings.ReplaceAll(string(text), "t3.micro", "m5.large")), 0o600)
}

// guides are the scripts of testdata, by their names.
func guides(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/guides-of-2020.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, one := range strings.Split(string(text), "\n== ")[1:] {
		name, script, _ := strings.Cut(one, "\n")
		all[name] = script
	}
	return all
}

// carryOut has a shell carry out a guide. It returns what is said, and the objects that are applied then.
func carryOut(t *testing.T, script string) (said string, cluster map[string]*unstructured.Unstructured, err error) {
	t.Helper()
	checkout := t.TempDir()
	copied := exec.Command("cp", "-a", "--parents", "deploy/manifests", "deploy/terraform", "deploy/terraform-aws",
		"deploy/virtual-kubelet.yaml", checkout)
	copied.Dir = top
	if out, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, f := range []string{"kustomization.yaml", "provider.yaml"} { // of the checkout, not of the guide
		if err := os.Remove(filepath.Join(checkout, "deploy/manifests/kip/overlays/local-config", f)); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	guide, err := filepath.Abs(filepath.Join(top, "hack/guide"))
	if err != nil {
		t.Fatal(err)
	}
	applied := filepath.Join(t.TempDir(), "cluster.yaml")
	shell := exec.Command(guide, append([]string{self}, slices.Collect(maps.Keys(programs))...)...)
	shell.Dir, shell.Env, shell.Stdin = checkout, append(os.Environ(), asCluster+"="+applied), strings.NewReader(script)
	out, failed := shell.CombinedOutput()
	text, err := os.ReadFile(applied)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(out), byName(t, string(text)), failed
}

func TestTheGuidesOf2020WorkAsTheyAreTyped(t *testing.T) {
	is := map[string]struct {
		workload, config, instanceType string // of what is applied
		says                           string // by what the guide ends; "" for nothing
	}{
		"a minimal cluster":                      {},
		"a minimal cluster, by the first README": {},
		"an existing cluster":                    {workload: "StatefulSet kip", config: "config", instanceType: "t3.micro"},
		"an existing cluster, with a provider.yaml of one's own": {
			workload: "StatefulSet kip", config: "config", instanceType: "m5.large",
		},
		"an existing cluster, by the first README": {
			workload: "Deployment virtual-kubelet", config: "virtual-kubelet-config", instanceType: "t3.micro",
		},
		"an existing cluster, by the one file of the first README": {says: "kubectl apply -k deploy/manifests/virtual-kubelet/base"},
	}
	all := guides(t)
	if len(all) != len(is) {
		t.Errorf("%d guides are in testdata: want %d", len(all), len(is))
	}
	for name, script := range all {
		t.Run(name, func(t *testing.T) {
			want, known := is[name]
			said, cluster, err := carryOut(t, script)
			switch {
			case !known:
				t.Fatal("nothing is known of this guide")
			case want.says != "":
				if err == nil || !strings.Contains(said, want.says) || len(cluster) > 0 {
					t.Errorf("%v, with %d objects: %s\nwant what says %q", err, len(cluster), said, want.says)
				}
				return
			case err != nil:
				t.Fatalf("%v: %s", err, said)
			case want.workload == "":
				return
			}
			workload := cluster[want.workload]
			if workload == nil {
				t.Fatalf("no %s is applied", want.workload)
			}
			config := podOf(t, []*unstructured.Unstructured{workload}).Volumes[0].ConfigMap
			if config == nil || !strings.HasPrefix(config.Name, want.config+"-") || cluster["ConfigMap "+config.Name] == nil {
				t.Fatalf("%s mounts %+v: want a ConfigMap %s", want.workload, config, want.config)
			}
			text, _, _ := unstructured.NestedString(cluster["ConfigMap "+config.Name].Object, "data", "provider.yaml")
			if !strings.Contains(text, "defaultInstanceType: "+want.instanceType) {
				t.Errorf("provider.yaml is\n%s", text)
			}
		})
	}
}

// linksOf2020 are those of the READMEs of 2020, but for what is of Google Cloud.
var linksOf2020 = []string{
	"deploy/terraform", "deploy/terraform-aws", "deploy/manifests/kip", "deploy/manifests/kip/base", "deploy/manifests/virtual-kubelet",
	"deploy/virtual-kubelet.yaml", "docs/annotations.md", "docs/cells.md", "docs/cells.md#bring-your-own-ami", "docs/kip-iam-permissions.md",
	"docs/networking.md", "docs/provider-config.md", "docs/security-groups.md", "docs/security_groups.md", "docs/state.md",
}

var (
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	others  = regexp.MustCompile("[^a-z0-9 _-]")
)

// anchors are those that GitHub gives the headings of a page.
func anchors(page string) map[string]bool {
	all, times := map[string]bool{}, map[string]int{}
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		text := link.ReplaceAllString(h[1], "]")
		anchor := strings.ReplaceAll(others.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
		if n := times[anchor]; n > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		}
		times[anchor]++
		all[anchor] = true
	}
	return all
}

// Each link leads to a file and, if it names one, to a heading; and so does each link of the pages that it leads to.
func TestTheLinksOf2020LeadToWhatIsThere(t *testing.T) {
	type step struct{ from, to string }
	pages := map[string]bool{}
	var next []step
	for _, to := range linksOf2020 {
		next = append(next, step{"the READMEs of 2020", to})
	}
	for len(next) > 0 {
		s := next[0]
		next = next[1:]
		path, anchor, _ := strings.Cut(s.to, "#")
		if _, err := os.Stat(filepath.Join(top, path)); err != nil {
			t.Errorf("%s: the link to %s: %v", s.from, s.to, err)
			continue
		}
		if filepath.Ext(path) != ".md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(top, path))
		if err != nil {
			t.Fatal(err)
		}
		if anchor != "" && !anchors(string(text))[anchor] {
			t.Errorf("%s: %s has no heading #%s", s.from, path, anchor)
		}
		if pages[path] {
			continue
		}
		pages[path] = true
		for _, found := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			switch to := found[1]; {
			case strings.Contains(to, "://"):
			case strings.HasPrefix(to, "#"):
				next = append(next, step{path, path + to})
			default:
				next = append(next, step{path, filepath.Join(filepath.Dir(path), to)})
			}
		}
	}
	if len(pages) < 20 {
		t.Errorf("%d pages were looked at", len(pages))
	}
}
