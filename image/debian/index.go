package debian

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"os/exec"
	"strconv"
	"strings"
)

const (
	// maxRelease bounds the list of a suite's files; it has 140 kB.
	maxRelease = 4 << 20
	// maxIndex bounds the list of an architecture's packages; it has 10 MB, and 50 MB
	// unpacked.
	maxIndex = 256 << 20
)

// mainComponent is the component of a suite that packages are of unless their name says another.
const mainComponent = "main"

// Resolve makes a lock of the newest versions that Debian's archives have now, of all of them
// together. In a name ARCH stands for the architecture, and ABI for what the newest cloud kernel is
// called by, such as 6.12.118+deb13. A name that ends in "=depends" means the one package on which
// the package before the "=" depends, and is locked by the latter's name. A name with a "/" is of
// the component before that, such as non-free/libcuda1.
// Each archive's list must be signed by a key of keyring, a file as gpgv takes it.
func Resolve(ctx context.Context, mirrors Mirrors, keyring string, names []string, archs ...string) (Lock, error) {
	releases := map[string]string{}
	for _, a := range archives {
		var err error
		if releases[a.name], err = a.release(ctx, mirrors[a.name], keyring); err != nil {
			return nil, err
		}
	}
	var l Lock
	var errs []error
	for _, arch := range archs {
		lists := map[string]map[string]string{} // by component and archive
		for _, n := range names {
			component, name, is := strings.Cut(n, "/")
			if !is {
				component, name = mainComponent, n
			}
			for _, c := range []string{mainComponent, component} {
				if lists[c] != nil {
					continue
				}
				var err error
				if lists[c], err = indexes(ctx, mirrors, releases, c, arch); err != nil {
					return nil, err
				}
			}
			if strings.Contains(name, "ABI") {
				abi, err := kernelABI(ctx, lists[mainComponent], arch)
				if err != nil {
					return nil, err
				}
				name = strings.ReplaceAll(name, "ABI", abi)
			}
			p, err := lookUp(ctx, lists[component], strings.ReplaceAll(name, "ARCH", arch))
			p.Arch = arch
			l, errs = append(l, p), append(errs, err)
		}
	}
	return l, errors.Join(errs...)
}

// indexes returns a component's lists of an architecture's packages, by archive. Only main has to be in all archives.
func indexes(ctx context.Context, mirrors Mirrors, releases map[string]string, component, arch string) (map[string]string, error) {
	all := map[string]string{}
	for _, a := range archives {
		name := component + "/binary-" + arch + "/Packages.xz"
		if _, err := digestIn(releases[a.name], name); err != nil && component != mainComponent {
			continue
		}
		var err error
		if all[a.name], err = a.index(ctx, mirrors[a.name], releases[a.name], name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// kernelABI returns what is between "linux-image-" and "-cloud-ARCH" in the name of the newest cloud kernel's package.
func kernelABI(ctx context.Context, indexes map[string]string, arch string) (string, error) {
	name := "linux-image-cloud-" + arch
	_, fields, err := newest(ctx, indexes, name)
	if err != nil {
		return "", err
	}
	on, _, _ := strings.Cut(fields["Depends"], " ")
	abi, begins := strings.CutPrefix(on, "linux-image-")
	abi, ends := strings.CutSuffix(abi, "-cloud-"+arch)
	if !begins || !ends {
		return "", fmt.Errorf("%s depends on %q first: want linux-image-ABI-cloud-%s", name, on, arch)
	}
	return abi, nil
}

// release returns the list of the suite's files, with its signature verified.
func (a archive) release(ctx context.Context, mirror, keyring string) (string, error) {
	signed, err := get(ctx, mirror+"/dists/"+a.suite+"/InRelease", maxRelease)
	if err != nil {
		return "", err
	}
	release, err := verify(ctx, a.suite, signed, keyring)
	if err != nil {
		return "", err
	}
	// Another suite's list is signed, too, and would hide what this one has mended.
	if !strings.Contains("\n"+release, "\nCodename: "+a.suite+"\n") {
		return "", fmt.Errorf("what %s has as %s is the list of another suite: want a mirror of %s, such as %s", mirror, a.suite, a.name, a.mirror)
	}
	return release, nil
}

// index returns a list of packages by its name, of which the release has the digest.
func (a archive) index(ctx context.Context, mirror, release, name string) (string, error) {
	sum, err := digestIn(release, name)
	if err != nil {
		return "", fmt.Errorf("the list of %s: %w", a.suite, err)
	}
	packed, err := get(ctx, mirror+"/dists/"+a.suite+"/"+name, maxIndex)
	if err != nil {
		return "", err
	}
	if got := sha256.Sum256(packed); hex.EncodeToString(got[:]) != sum {
		return "", fmt.Errorf("%s of %s is not the one that is signed", name, a.suite)
	}
	index, err := Unpack(ctx, packed)
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", name, a.suite, err)
	}
	return string(index), nil
}

// verify returns what is signed, if it is signed by a key of the keyring.
func verify(ctx context.Context, suite string, signed []byte, keyring string) (string, error) {
	cmd := exec.CommandContext(ctx, "gpgv", "--keyring", keyring, "--output", "-")
	cmd.Stdin = bytes.NewReader(signed)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("verify the signature of %s with %s: %w: %s", suite, keyring, err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}

// digestIn returns the SHA-256 of a file of the suite.
func digestIn(release, name string) (string, error) {
	_, sums, ok := strings.Cut(release, "\nSHA256:\n")
	for line := range strings.Lines(sums) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(line, " ") {
			break
		}
		if len(fields) == 3 && fields[2] == name {
			return fields[0], nil
		}
	}
	return "", fmt.Errorf("it has no %s (has digests: %v)", name, ok)
}

// lookUp finds the newest version of a package in the archives' lists of an architecture's
// packages.
func lookUp(ctx context.Context, indexes map[string]string, name string) (Package, error) {
	name, depends := strings.CutSuffix(name, "=depends")
	at, fields, err := newest(ctx, indexes, name)
	if err == nil && depends {
		on, _, _ := strings.Cut(fields["Depends"], " ")
		at, fields, err = newest(ctx, indexes, on)
	}
	if err != nil {
		return Package{}, err
	}
	size, err := strconv.ParseInt(fields["Size"], 10, 64)
	if err != nil {
		return Package{}, fmt.Errorf("the size of %s: %w", name, err)
	}
	return Package{
		Name:    name, // whatever the name of its version
		Version: fields["Version"],
		Bytes:   size,
		SHA256:  fields["SHA256"],
		Archive: at,
		Path:    fields["Filename"],
	}, nil
}

// newest returns what the lists say of a package's newest version, and the archive that has
// it: of two that have the same, the first, which keeps it longer.
func newest(ctx context.Context, indexes map[string]string, name string) (at string, fields map[string]string, err error) {
	for _, a := range archives {
		for text := range stanzas(indexes[a.name], name) {
			got, err := parseStanza(name, text)
			if err != nil {
				return "", nil, fmt.Errorf("the list of packages of %s: %w", a.suite, err)
			}
			if fields != nil {
				if later, err := isLater(ctx, got["Version"], fields["Version"]); err != nil || !later {
					if err != nil {
						return "", nil, fmt.Errorf("the versions of %s: %w", name, err)
					}
					continue
				}
			}
			at, fields = a.name, got
		}
	}
	if fields == nil {
		return "", nil, fmt.Errorf("%s has no package %s, and its security updates have none", Suite, name)
	}
	return at, fields, nil
}

// isLater reports whether a version is later than another, by dpkg's own rules.
func isLater(ctx context.Context, version, than string) (bool, error) {
	err := exec.CommandContext(ctx, "dpkg", "--compare-versions", version, "gt", than).Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("compare %s with %s (dpkg is in Debian's package of this name): %w", version, than, err)
	}
	return true, nil
}

// stanzas are what the list says of a package, of each of its versions.
func stanzas(index, name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for text := range strings.SplitSeq(index, "\n\n") {
			if strings.HasPrefix(text, "Package: "+name+"\n") && !yield(text) {
				return
			}
		}
	}
}

// parseStanza returns the fields of a stanza that are one line.
func parseStanza(name, text string) (map[string]string, error) {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ": "); ok {
			fields[key] = strings.TrimSpace(value)
		}
	}
	for _, want := range []string{"Version", "Size", "SHA256", "Filename"} {
		if fields[want] == "" {
			return nil, fmt.Errorf("it does not say %s of %s", want, name)
		}
	}
	return fields, nil
}
