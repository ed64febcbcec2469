package release

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/elotl/kip/internal/agentapi"
)

// write writes a file, a program if it begins as a script.
func write(t *testing.T, file, content string) {
	t.Helper()
	mode := fs.FileMode(0o644)
	if strings.HasPrefix(content, "#!") {
		mode = 0o755
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), mode)); err != nil {
		t.Fatal(err)
	}
}

// created is the time of all files in archives.
var created = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// world is what make has built, in small, beside sources with a chart and manifests.
func world(t *testing.T) Options {
	t.Helper()
	o := Options{
		Version:      "v1.2.3-rc.1",
		Created:      created,
		Bin:          t.TempDir(),
		Source:       t.TempDir(),
		Systems:      []System{"linux-arm64", "windows-amd64"},
		Host:         "linux-amd64",
		HostPrograms: []string{"kip", "kip-dev"},
		Registry:     "registry.example/team",
		URL:          "https://example.org/v1.2.3-rc.1",
		Out:          filepath.Join(t.TempDir(), "release"),
		Progress:     func(string) {},
	}
	for file, content := range map[string]string{
		"kipctl":                         "#!/bin/sh\necho \"$1 of $2\"\n",
		"kubectl":                        "#!/bin/sh\necho \"# $1 of $2\"; cat \"$2\"/kustomization.yaml\n",
		"kip":                            "kip",
		"kip-dev":                        "#!/bin/sh\necho \"kip-dev $*\"\n",
		"linux-arm64/kipctl":             "kipctl for arm64",
		"windows-amd64/kipctl.exe":       "kipctl for Windows",
		"image/kip-agent-amd64.tar.gz":   "an agent",
		"image/kip-cell-amd64.qcow2":     "a disk",
		"image/kip-cell-amd64.raw":       "a larger disk",
		"image/kip-cell-amd64.spdx.json": "{}",
	} {
		write(t, filepath.Join(o.Bin, file), content)
	}
	for file, content := range map[string]string{
		"LICENSE":                                              "a license",
		"examples/hello.yaml":                                  "hello",
		"deploy/helm/kip/Chart.yaml":                           "name: kip\nversion: 0.1.0\nappVersion: 0.1.0\ndependencies:\n- version: 2.0.0\n",
		"deploy/helm/kip/values.yaml":                          "image:\n  repository: ghcr.io/elotl/kip\nother:\n  repository: ghcr.io/other\n",
		"deploy/helm/kip/templates/pod.yml":                    "version: {{ . }}\n",
		"deploy/manifests/kip/base/kustomization.yaml":         "- image: ghcr.io/elotl/kip:0.1.0\n- image: ghcr.io/other:0.1.0\n",
		"deploy/manifests/kip/overlays/eks/kustomization.yaml": "image: ghcr.io/elotl/kip:0.1.0\n",
	} {
		write(t, filepath.Join(o.Source, file), content)
	}
	return o
}

// file is one of an archive.
type file struct {
	content string
	mode    fs.FileMode
}

// unpacked are the files of an archive.
func unpacked(t *testing.T, path string) map[string]file {
	t.Helper()
	all := map[string]file{}
	add := func(name string, info fs.FileInfo, r io.Reader) {
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		// krew refuses archives with others.
		if !info.Mode().IsRegular() {
			t.Errorf("%s in %s is no regular file: %v", name, path, info.Mode())
		}
		if !info.ModTime().Equal(created) {
			t.Errorf("%s in %s is of %v, want %v", name, path, info.ModTime(), created)
		}
		all[name] = file{string(content), info.Mode().Perm()}
	}
	if strings.HasSuffix(path, ".zip") {
		z, err := zip.OpenReader(path)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			add(f.Name, f.FileInfo(), r)
		}
		return all
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		add(h.Name, h.FileInfo(), r)
	}
}

func TestAReleaseHasWhatIsBuilt(t *testing.T) {
	o := world(t)
	names, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"kip-1.2.3-rc.1.tgz", "kip-agent-amd64.tar.gz", "kip-cell-amd64.qcow2", "kip-cell-amd64.spdx.json", "kip-dev-linux-amd64.tar.gz",
		"kip-eks.yaml", "kip.krew.yaml", "kip.yaml", "kipctl-linux-arm64.tar.gz", "kipctl-windows-amd64.zip",
		"kubectl-kip-linux-arm64.tar.gz", "kubectl-kip-windows-amd64.zip", "SHA256SUMS",
	}
	if !slices.Equal(names, want) {
		t.Errorf("it has %q, want %q", names, want)
	}
	check := exec.Command("sha256sum", "--check", "--strict", Checksums)
	check.Dir = o.Out
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != len(want)-1 {
		t.Errorf("sha256sum says: %v: %s", err, out)
	}
	completion := map[string]file{
		"LICENSE":                {"a license", 0o644},
		"completions/_kipctl":    {"completion of zsh\n", 0o644},
		"completions/kipctl.ps1": {"completion of powershell\n", 0o644},
		"completions/kipctl.bash": {
			"completion of bash\n", 0o644,
		},
		"completions/kipctl.fish": {"completion of fish\n", 0o644},
	}
	license := map[string]file{"LICENSE": {"a license", 0o644}}
	with := func(files map[string]file, name string, f file) map[string]file {
		files = maps.Clone(files)
		files[name] = f
		return files
	}
	for archive, want := range map[string]map[string]file{
		"kipctl-linux-arm64.tar.gz": with(completion, "kipctl", file{"kipctl for arm64", 0o755}),
		"kipctl-windows-amd64.zip":  with(completion, "kipctl.exe", file{"kipctl for Windows", 0o755}),
		"kubectl-kip-linux-arm64.tar.gz": with(with(license, "kubectl-kip", file{"kipctl for arm64", 0o755}),
			"kubectl_complete-kip", file{"#!/bin/sh\nexec kubectl kip __complete \"$@\"\n", 0o755}),
		"kubectl-kip-windows-amd64.zip": with(license, "kubectl-kip.exe", file{"kipctl for Windows", 0o755}),
		"kip-1.2.3-rc.1.tgz": {
			"kip/Chart.yaml":        {"name: kip\nversion: 1.2.3-rc.1\nappVersion: v1.2.3-rc.1\ndependencies:\n- version: 2.0.0\n", 0o644},
			"kip/values.yaml":       {"image:\n  repository: registry.example/team/kip\nother:\n  repository: ghcr.io/other\n", 0o644},
			"kip/templates/pod.yml": {"version: {{ . }}\n", 0o644},
		},
	} {
		if got := unpacked(t, filepath.Join(o.Out, archive)); !maps.Equal(got, want) {
			t.Errorf("%s has\n%v\nwant\n%v", archive, got, want)
		}
	}
	manifests := filepath.Join(o.Source, "deploy", "manifests", "kip")
	for name, want := range map[string]string{
		"kip.yaml": "# kustomize of " + manifests + "/base\n- image: registry.example/team/kip:v1.2.3-rc.1\n- image: ghcr.io/other:0.1.0\n",
		"kip-eks.yaml": "# kustomize of " + manifests +
			"/overlays/eks\nimage: registry.example/team/kip:v1.2.3-rc.1\n",
	} {
		if got, err := os.ReadFile(filepath.Join(o.Out, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
}

func TestKrewIsToldTheArchives(t *testing.T) {
	o := world(t)
	if _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.Out, "kip.krew.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var p plugin
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		t.Fatal(err)
	}
	if p.Metadata["name"] != "kip" || p.Spec.Version != o.Version || len(p.Spec.Platforms) != len(o.Systems) {
		t.Fatalf("it is %+v", p)
	}
	for i, p := range p.Spec.Platforms {
		archive, ok := strings.CutPrefix(p.URI, o.URL+"/")
		sum, err := agentapi.SHA256Of(filepath.Join(o.Out, archive))
		if !ok || err != nil || sum != p.SHA256 {
			t.Errorf("%s has the checksum %s (%v), want %s", p.URI, sum, err, p.SHA256)
		}
		files := unpacked(t, filepath.Join(o.Out, archive))
		for _, f := range append(p.Files, fileMove{From: p.Bin}) {
			if _, ok := files[f.From]; !ok {
				t.Errorf("%s has no %s", archive, f.From)
			}
		}
		if got := System(p.Selector.MatchLabels["os"] + "-" + p.Selector.MatchLabels["arch"]); got != o.Systems[i] {
			t.Errorf("%s is for %s, want %s", archive, got, o.Systems[i])
		}
	}
}

func TestAReleaseForOneMachineStartsThere(t *testing.T) {
	o := world(t)
	if _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-C", dir, "-xzf", filepath.Join(o.Out, "kip-dev-linux-amd64.tar.gz")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for command, want := range map[string]string{
		"run --once":      "kip-dev run --once\n",
		"bin/kubectl get": "kip-dev kubectl get\n",
	} {
		name, argument, _ := strings.Cut(command, " ")
		out, err := exec.Command(filepath.Join(dir, "kip-dev-linux-amd64", name), argument).CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("%s: %v: %q, want %q", command, err, out, want)
		}
	}
}

func TestEqualInputsMakeEqualReleases(t *testing.T) {
	a := world(t)
	b := a
	b.Out, b.Bin = filepath.Join(t.TempDir(), "again"), t.TempDir()
	if err := os.CopyFS(b.Bin, os.DirFS(a.Bin)); err != nil { // with other times
		t.Fatal(err)
	}
	var sums [2][]byte
	for i, o := range []Options{a, b} {
		if _, err := Build(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		var err error
		if sums[i], err = os.ReadFile(filepath.Join(o.Out, Checksums)); err != nil {
			t.Fatal(err)
		}
	}
	if string(sums[0]) != string(sums[1]) {
		t.Errorf("the checksums are\n%s\nand\n%s", sums[0], sums[1])
	}
}

func TestAReleaseThatCannotBeMadeLeavesTheOlderOne(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no version":        {func(o *Options) { o.Version = "1.2" }, `the version "1.2" is none: want vMAJOR.MINOR.PATCH, such as v1.2.3`},
		"no system":         {func(o *Options) { o.Systems = []System{"linux"} }, `the system "linux" is none: want OS-ARCH, such as linux-arm64`},
		"no kipctl":         {func(o *Options) { o.Systems = []System{"linux-riscv64"} }, "make release builds it first: open"},
		"no program":        {func(o *Options) { o.HostPrograms = []string{"itzo"} }, "make release builds it first: open"},
		"no completion":     {func(o *Options) { write(t, filepath.Join(o.Bin, "kipctl"), "#!/bin/sh\necho no >&2; exit 1\n") }, "completion bash: exit status 1: no"},
		"no kubectl at all": {func(o *Options) { os.Remove(filepath.Join(o.Bin, "kubectl")) }, "kubectl kustomize "},
	} {
		o := world(t)
		write(t, filepath.Join(o.Out, "older"), "an older release")
		tc.change(&o)
		_, err := Build(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), "make the release "+o.Version+": ") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if left, _ := filepath.Glob(filepath.Join(o.Out, "..", "*")); len(left) != 1 {
			t.Errorf("%s: this is left: %q", name, left)
		}
		if _, err := os.Stat(filepath.Join(o.Out, "older")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAReleaseNeedsNoChart since a source may have none.
func TestAReleaseNeedsNoChart(t *testing.T) {
	o := world(t)
	if err := os.RemoveAll(filepath.Join(o.Source, "deploy")); err != nil {
		t.Fatal(err)
	}
	names, err := Build(t.Context(), o)
	if err != nil || slices.Contains(names, "kip.yaml") || len(names) != 10 {
		t.Errorf("%q (%v)", names, err)
	}
}
