package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/agentapi"
)

// Checksums is the file with the SHA-256 of all others, as sha256sum -c reads it.
const Checksums = "SHA256SUMS"

// System is an operating system and an architecture, such as linux-arm64.
type System string

// split returns both parts, in Go's words.
func (s System) split() (system, arch string, err error) {
	system, arch, ok := strings.Cut(string(s), "-")
	if !ok || system == "" || arch == "" {
		return "", "", fmt.Errorf("the system %q is none: want OS-ARCH, such as linux-arm64", s)
	}
	return system, arch, nil
}

// Options say what a release is made of.
type Options struct {
	// Version is Kip's, such as v1.2.3.
	Version string
	// Created is the time of all files in archives.
	Created time.Time
	// Bin is the folder that make builds into. It has this host's programs, and OS-ARCH/kipctl for each of Systems.
	Bin     string
	Systems []System
	// Host is the system of the programs that lie in Bin itself, and HostPrograms are those that make run needs.
	Host         System
	HostPrograms []string
	// Source is the folder with the sources: the license, the chart and the manifests.
	Source string
	// Registry has the image that the chart and the manifests name, as REGISTRY/kip.
	Registry string
	// URL is where the files of the release can be downloaded.
	URL string
	// Out is the folder of the release. What is there is replaced.
	Out string
	// Progress is told each step.
	Progress func(string)
}

// versionForm is semantic versioning's, with a v: https://semver.org
var versionForm = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// Build writes the files of a release and returns their names. The folder appears as a whole.
func Build(ctx context.Context, o Options) ([]string, error) {
	names, err := o.build(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the release %s: %w", o.Version, err)
	}
	return names, nil
}

func (o Options) build(ctx context.Context) ([]string, error) {
	if !versionForm.MatchString(o.Version) {
		return nil, fmt.Errorf("the version %q is none: want vMAJOR.MINOR.PATCH, such as v1.2.3 or v1.2.3-rc.1", o.Version)
	}
	if err := os.MkdirAll(filepath.Dir(o.Out), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(o.Out), ".new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, string) error{o.clients, o.images, o.chart, o.manifests, o.everything} {
		if err := step(ctx, tmp); err != nil {
			return nil, err
		}
	}
	names, err := writeChecksums(tmp)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(o.Out); err != nil {
		return nil, err
	}
	return names, os.Rename(tmp, o.Out)
}

// completions are what kipctl's shells need, by their files in its archive.
var completions = map[string]string{
	"bash":       "completions/kipctl.bash",
	"fish":       "completions/kipctl.fish",
	"powershell": "completions/kipctl.ps1",
	"zsh":        "completions/_kipctl",
}

// completePlugin is what kubectl asks for the arguments of a plugin. It must be in PATH.
const completePlugin = "#!/bin/sh\nexec kubectl kip __complete \"$@\"\n"

// clients packs kipctl and kubectl-kip, which are one program by two names, and writes krew's manifest of the second.
func (o Options) clients(ctx context.Context, dir string) error {
	license := entry{name: "LICENSE", mode: 0o644, from: filepath.Join(o.Source, "LICENSE")}
	beside := []entry{license}
	for _, shell := range []string{"bash", "fish", "powershell", "zsh"} {
		script, err := run(ctx, filepath.Join(o.Bin, "kipctl"), "completion", shell)
		if err != nil {
			return err
		}
		beside = append(beside, entry{name: completions[shell], mode: 0o644, content: script})
	}
	var platforms []platform
	for _, s := range o.Systems {
		o.Progress("kipctl for " + string(s))
		system, arch, err := s.split()
		if err != nil {
			return err
		}
		suffix, form := "", ".tar.gz"
		if system == "windows" {
			suffix, form = ".exe", ".zip"
		}
		program := func(name string) entry {
			return entry{name: name + suffix, mode: 0o755, from: filepath.Join(o.Bin, string(s), "kipctl"+suffix)}
		}
		kipctl := slices.Concat([]entry{program("kipctl")}, beside)
		if err := pack(filepath.Join(dir, "kipctl-"+string(s)+form), o.Created, kipctl); err != nil {
			return err
		}
		plugin := []entry{program("kubectl-kip"), license}
		if system != "windows" {
			plugin = append(plugin, entry{name: "kubectl_complete-kip", mode: 0o755, content: []byte(completePlugin)})
		}
		archive := "kubectl-kip-" + string(s) + form
		if err := pack(filepath.Join(dir, archive), o.Created, plugin); err != nil {
			return err
		}
		sum, err := agentapi.SHA256Of(filepath.Join(dir, archive))
		if err != nil {
			return err
		}
		platforms = append(platforms, newPlatform(system, arch, o.URL+"/"+archive, sum, "kubectl-kip"+suffix))
	}
	return writeKrew(filepath.Join(dir, "kip.krew.yaml"), o.Version, platforms)
}

// imageFiles are the agents and the forms of boot images that a release has. The others have a GiB, and are made from these.
var imageFiles = []string{
	"kip-agent-*.tar.gz", "kip-cell-*.qcow2", "kip-cell-*.tar.gz", "kip-cell-*.efi", "kip-cell-*.manifest.json", "kip-cell-*.spdx.json",
}

// images copies the agents and the boot images that are built.
func (o Options) images(_ context.Context, dir string) error {
	for _, pattern := range imageFiles {
		found, err := filepath.Glob(filepath.Join(o.Bin, "image", pattern))
		if err != nil {
			return err
		}
		for _, from := range found {
			o.Progress(filepath.Base(from))
			if err := copyFile(from, filepath.Join(dir, filepath.Base(from))); err != nil {
				return err
			}
		}
	}
	return nil
}

// What is set in a chart and in manifests: the two versions, the registry of the image, and its tag.
var (
	chartVersion  = regexp.MustCompile(`(?m)^version:.*$`)
	appVersion    = regexp.MustCompile(`(?m)^appVersion:.*$`)
	chartImage    = regexp.MustCompile(`(?m)^(  repository:) \S+/kip$`)
	manifestImage = regexp.MustCompile(`(?m)(\bimage:) \S+/kip:\S+$`)
)

// chart packs the chart as helm package does, in this version. A chart's own version has no v.
func (o Options) chart(_ context.Context, dir string) error {
	from := filepath.Join(o.Source, "deploy", "helm", "kip")
	entries, err := folder(from, "kip")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	o.Progress("the chart")
	bare := strings.TrimPrefix(o.Version, "v")
	set := map[string]func([]byte) []byte{
		"kip/Chart.yaml": func(text []byte) []byte {
			text = chartVersion.ReplaceAll(text, []byte("version: "+bare))
			return appVersion.ReplaceAll(text, []byte("appVersion: "+o.Version))
		},
		"kip/values.yaml": func(text []byte) []byte { return chartImage.ReplaceAll(text, []byte("${1} "+o.Registry+"/kip")) },
	}
	for i, e := range entries {
		if set[e.name] == nil {
			continue
		}
		text, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		entries[i] = entry{name: e.name, mode: e.mode, content: set[e.name](text)}
	}
	return pack(filepath.Join(dir, "kip-"+bare+".tgz"), o.Created, entries)
}

// manifests renders what kustomize installs: the base as kip.yaml, and each overlay as kip-OVERLAY.yaml.
func (o Options) manifests(ctx context.Context, dir string) error {
	root := filepath.Join(o.Source, "deploy", "manifests", "kip")
	all, err := filepath.Glob(filepath.Join(root, "overlays", "*", "kustomization.yaml"))
	if err != nil {
		return err
	}
	targets := map[string]string{"kip.yaml": filepath.Join(root, "base")}
	if _, err := os.Stat(targets["kip.yaml"]); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, file := range all {
		overlay := filepath.Dir(file)
		targets["kip-"+filepath.Base(overlay)+".yaml"] = overlay
	}
	for name, target := range targets {
		o.Progress(name)
		text, err := run(ctx, filepath.Join(o.Bin, "kubectl"), "kustomize", target)
		if err != nil {
			return err
		}
		text = manifestImage.ReplaceAll(text, []byte("${1} "+o.Registry+"/kip:"+o.Version))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// start is what starts everything.
const start = `#!/bin/sh
# Start a control plane, Kip and an example pod on a cell, on this machine. See kip-dev run --help.
exec "$(dirname "$0")/bin/kip-dev" run "$@"
`

// everything packs all that make run starts on a machine without Go.
func (o Options) everything(_ context.Context, dir string) error {
	o.Progress("everything for one machine")
	top := "kip-dev-" + string(o.Host)
	entries := []entry{
		{name: top + "/run", mode: 0o755, content: []byte(start)},
		{name: top + "/LICENSE", mode: 0o644, from: filepath.Join(o.Source, "LICENSE")},
		{name: top + "/examples/hello.yaml", mode: 0o644, from: filepath.Join(o.Source, "examples", "hello.yaml")},
		// kubectl is kip-dev by another name.
		{name: top + "/bin/kubectl", mode: 0o755, content: []byte("#!/bin/sh\nexec \"$(dirname \"$0\")/kip-dev\" kubectl \"$@\"\n")},
	}
	for _, p := range o.HostPrograms {
		entries = append(entries, entry{name: top + "/bin/" + p, mode: 0o755, from: filepath.Join(o.Bin, p)})
	}
	return pack(filepath.Join(dir, top+".tar.gz"), o.Created, entries)
}

// folder returns the files of a folder as entries below a name.
func folder(from, below string) ([]entry, error) {
	var entries []entry
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		entries = append(entries, entry{name: below + "/" + filepath.ToSlash(relative), mode: 0o644, from: p})
		return nil
	})
	return entries, err
}

// run returns what a program of this host prints.
func run(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return out, nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// writeChecksums adds the file with all checksums, and returns the names of all files.
func writeChecksums(dir string) ([]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	var names []string
	for _, f := range files {
		sum, err := agentapi.SHA256Of(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, f.Name())
		names = append(names, f.Name())
	}
	return append(names, Checksums), os.WriteFile(filepath.Join(dir, Checksums), []byte(text.String()), 0o644)
}
