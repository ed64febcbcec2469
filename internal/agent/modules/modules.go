// Package modules loads the kernel's modules by name or alias, each after those
// that it needs, from a folder with the lists that depmod makes. It knows nothing of
// what a module is for.
package modules

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Set is the modules of one kernel. It may be used by several goroutines at once.
type Set struct {
	dir     string
	needs   map[string][]string // a module's file, and those that it needs, by name
	aliases []alias

	// insert loads one file.
	insert func(path string) error

	mu     sync.Mutex
	loaded map[string]bool // by name
}

type alias struct{ pattern, name string }

// Names of the lists in a kernel's folder.
const (
	DepFile   = "modules.dep"
	AliasFile = "modules.alias"
)

// Dir is the folder of the running kernel's modules.
func Dir() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("ask for the kernel's version: %w", err)
	}
	return "/lib/modules/" + unix.ByteSliceToString(u.Release[:]), nil
}

// Open reads the lists of the folder dir.
func Open(dir string) (*Set, error) {
	s := &Set{
		dir:    dir,
		needs:  map[string][]string{},
		insert: insert,
		loaded: map[string]bool{},
	}
	// "kernel/fs/erofs/erofs.ko: kernel/lib/libcrc32c.ko", the nearest first.
	err := eachLine(filepath.Join(dir, DepFile), func(line string) {
		file, needs, _ := strings.Cut(line, ":")
		s.needs[name(file)] = append([]string{file}, strings.Fields(needs)...)
	})
	if err != nil {
		return nil, err
	}
	// "alias pci:v00001D0Fd* ena"
	err = eachLine(filepath.Join(dir, AliasFile), func(line string) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "alias" {
			s.aliases = append(s.aliases, alias{f[1], name(f[2])})
		}
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func eachLine(file string, do func(line string)) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read the list of kernel modules: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		do(lines.Text())
	}
	return lines.Err()
}

// name of a module, of its file or of what somebody calls it: "-" and "_" are the same.
func name(file string) string {
	n, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(n, "-", "_")
}

// ErrUnknown is that of a name and an alias that no module here has: the kernel has
// it built in, or the image was made without it.
var ErrUnknown = errors.New("no such module")

// Load loads the modules of this name, or of this alias.
func (s *Set) Load(wanted string) error {
	if s.needs[name(wanted)] != nil {
		return s.load(name(wanted))
	}
	var errs []error
	found := false
	for _, a := range s.aliases {
		if ok, err := path.Match(a.pattern, wanted); err != nil || !ok {
			continue
		}
		found = true
		errs = append(errs, s.load(a.name))
	}
	if !found {
		return fmt.Errorf("load %s: %w", wanted, ErrUnknown)
	}
	return errors.Join(errs...)
}

func (s *Set) load(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, file := range slices.Backward(s.needs[name]) {
		if s.loaded[file] {
			continue
		}
		if err := s.insert(filepath.Join(s.dir, file)); err != nil {
			return fmt.Errorf("load the module %s: %w", file, err)
		}
		s.loaded[file] = true
	}
	return nil
}

func insert(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// Present returns the aliases of all devices below sys ("/sys/devices"), each once.
// Those of processors are left out: their modules are speed, asked for by who wants it.
func Present(sys string) ([]string, error) {
	seen := map[string]bool{}
	err := filepath.WalkDir(sys, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it went while we looked
			}
			return err
		}
		if d.Name() != "modalias" || d.IsDir() {
			return nil
		}
		if b, err := os.ReadFile(p); err == nil {
			if a := strings.TrimSpace(string(b)); a != "" && !strings.HasPrefix(a, "cpu:") {
				seen[a] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for devices: %w", err)
	}
	out := make([]string, 0, len(seen))
	for a := range seen {
		out = append(out, a)
	}
	slices.Sort(out)
	return out, nil
}

// LoadPresent loads what the devices below sys ask for, again while that brings new
// devices to light: a bus has its own only when its driver is there. One whose driver
// fails does not keep the others from theirs.
func (s *Set) LoadPresent(sys string) error {
	done := map[string]bool{}
	var errs []error
	for {
		found, err := Present(sys)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		again := false
		for _, a := range found {
			if done[a] {
				continue
			}
			done[a] = true
			switch err := s.Load(a); {
			case err == nil:
				again = true
			case !errors.Is(err, ErrUnknown):
				errs = append(errs, err)
			}
		}
		if !again {
			return errors.Join(errs...)
		}
	}
}
