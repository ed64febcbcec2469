package boot

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/elotl/kip/image/debian"
	"github.com/elotl/kip/internal/agent/modules"
)

// kernel is what an image has of one.
type kernel struct {
	// release is what uname says.
	release string
	vmlinuz []byte
	modules map[string]module // by name
	// builtin are the names of those that are part of vmlinuz, which differ from one
	// architecture to the other.
	builtin map[string]bool
}

// module is one of a kernel.
type module struct {
	// file is its path below the folder of modules.
	file string
	// packed is what the package has, content the same decompressed.
	packed, content []byte
	needs, aliases  []string
	// magic is that of the kernel for which it was built, and version its own.
	magic, version string
}

// moduleName is a module's, of its file or of what somebody calls it.
func moduleName(file string) string {
	n, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(n, "-", "_")
}

// readKernel takes a kernel and its modules out of its package's files.
func readKernel(files debian.Files) (*kernel, error) {
	k := &kernel{modules: map[string]module{}, builtin: map[string]bool{}}
	for name, f := range files {
		if release, ok := strings.CutPrefix(name, "boot/vmlinuz-"); ok {
			k.release, k.vmlinuz = release, f.Content
		}
	}
	if k.vmlinuz == nil {
		return nil, errors.New("the kernel's package has no boot/vmlinuz")
	}
	for name, f := range files {
		if file, ok := strings.CutPrefix(name, "usr/lib/modules/"+k.release+"/"); ok && strings.Contains(path.Base(file), ".ko") {
			k.modules[moduleName(file)] = module{file: strings.TrimSuffix(file, ".xz"), packed: f.Content}
		}
	}
	for file := range strings.FieldsSeq(string(files["usr/lib/modules/"+k.release+"/modules.builtin"].Content)) {
		k.builtin[moduleName(file)] = true
	}
	return k, nil
}

// open returns a module that has been read.
func (k *kernel) open(ctx context.Context, name string) (module, error) {
	m, ok := k.modules[name]
	if !ok {
		return module{}, fmt.Errorf("the kernel %s has no module %s", k.release, name)
	}
	if m.content != nil {
		return m, nil
	}
	m.content = m.packed
	if bytes.HasPrefix(m.packed, []byte("\xfd7zXZ\x00")) {
		var err error
		if m.content, err = debian.Unpack(ctx, m.packed); err != nil {
			return module{}, fmt.Errorf("the module %s: %w", name, err)
		}
	}
	f, err := elf.NewFile(bytes.NewReader(m.content))
	if err != nil {
		return module{}, fmt.Errorf("the module %s: %w", name, err)
	}
	defer f.Close()
	info := f.Section(".modinfo")
	if info == nil {
		return module{}, fmt.Errorf("the module %s does not tell what it is", name)
	}
	b, err := info.Data()
	if err != nil {
		return module{}, fmt.Errorf("the module %s: %w", name, err)
	}
	for line := range strings.SplitSeq(string(b), "\x00") {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "depends":
			m.needs = append(m.needs, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			// "pre: a b post: c": what is built in is not there to be needed.
			pre, _, _ := strings.Cut(value, "post:")
			for n := range strings.FieldsSeq(strings.TrimPrefix(pre, "pre:")) {
				if _, has := k.modules[moduleName(n)]; has {
					m.needs = append(m.needs, n)
				}
			}
		case "alias":
			m.aliases = append(m.aliases, value)
		case "vermagic":
			m.magic = strings.TrimSpace(value)
		case "version":
			m.version = value
		}
	}
	for i, n := range m.needs {
		m.needs[i] = moduleName(n)
	}
	k.modules[name] = m
	return m, nil
}

// choose returns the modules of some uses and all that these need, by name.
func (k *kernel) choose(ctx context.Context, uses []use, arch string, of func(use) bool) (map[string]module, error) {
	out := map[string]module{}
	var add func(name string) error
	add = func(name string) error {
		if _, has := out[name]; has || k.builtin[name] {
			return nil
		}
		m, err := k.open(ctx, name)
		if err != nil {
			return err
		}
		out[name] = m
		for _, n := range m.needs {
			if err := add(n); err != nil {
				return fmt.Errorf("what %s needs: %w", name, err)
			}
		}
		return nil
	}
	var errs []error
	for _, u := range uses {
		if !of(u) || u.archs != nil && !slices.Contains(u.archs, arch) {
			continue
		}
		for _, n := range u.names {
			names := []string{moduleName(n)}
			if strings.HasSuffix(n, "/") {
				names = k.in(n)
			}
			if len(names) == 0 {
				errs = append(errs, fmt.Errorf("the kernel %s has no modules below %s", k.release, n))
			}
			for _, name := range names {
				if err := add(name); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", u.why, err))
				}
			}
		}
	}
	return out, errors.Join(errs...)
}

// in returns the modules right in a folder.
func (k *kernel) in(dir string) []string {
	var out []string
	for name, m := range k.modules {
		if path.Dir(m.file) == "kernel/"+strings.TrimSuffix(dir, "/") {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// install adds modules and their lists to a tree.
func (k *kernel) install(t tree, chosen map[string]module) {
	var deps, aliases strings.Builder
	dir := "usr/lib/modules/" + k.release + "/"
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		m := chosen[name]
		t[dir+m.file] = node{mode: 0o644, content: m.content}
		fmt.Fprintf(&deps, "%s:", m.file)
		for _, n := range needsOf(chosen, name) {
			fmt.Fprintf(&deps, " %s", chosen[n].file)
		}
		fmt.Fprintln(&deps)
		for _, a := range m.aliases {
			fmt.Fprintf(&aliases, "alias %s %s\n", a, name)
		}
	}
	t[dir+modules.DepFile] = node{mode: 0o644, content: []byte(deps.String())}
	t[dir+modules.AliasFile] = node{mode: 0o644, content: []byte(aliases.String())}
}

// needsOf are all modules that one needs, each before those that it needs itself.
func needsOf(all map[string]module, name string) []string {
	var out []string
	var walk func(name string)
	walk = func(name string) {
		for _, n := range all[name].needs {
			if slices.Contains(out, n) {
				continue
			}
			walk(n)
			if !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	walk(name)
	slices.Reverse(out)
	return out
}
