package debian

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

// Resolve makes a lock of the packages that the suite has now. In a name ARCH stands
// for the architecture; one that ends in "=depends" means the one package on which
// the package before the "=" depends, and is locked by the latter's name.
// The suite's list must be signed by a key of keyring, a file as gpgv takes it.
func Resolve(ctx context.Context, mirror, keyring string, names []string, archs ...string) (Lock, error) {
	signed, err := get(ctx, mirror+"/dists/"+Suite+"/InRelease", maxRelease)
	if err != nil {
		return nil, err
	}
	release, err := verify(ctx, signed, keyring)
	if err != nil {
		return nil, err
	}
	var l Lock
	var errs []error
	for _, arch := range archs {
		name := "main/binary-" + arch + "/Packages.xz"
		sum, err := digestIn(release, name)
		if err != nil {
			return nil, err
		}
		packed, err := get(ctx, mirror+"/dists/"+Suite+"/"+name, maxIndex)
		if err != nil {
			return nil, err
		}
		if got := sha256.Sum256(packed); hex.EncodeToString(got[:]) != sum {
			return nil, fmt.Errorf("%s is not the one that is signed", name)
		}
		index, err := Unpack(ctx, packed)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, n := range names {
			p, err := lookUp(string(index), strings.ReplaceAll(n, "ARCH", arch))
			p.Arch = arch
			l, errs = append(l, p), append(errs, err)
		}
	}
	return l, errors.Join(errs...)
}

// verify returns what is signed, if it is signed by a key of the keyring.
func verify(ctx context.Context, signed []byte, keyring string) (string, error) {
	cmd := exec.CommandContext(ctx, "gpgv", "--keyring", keyring, "--output", "-")
	cmd.Stdin = bytes.NewReader(signed)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("verify the signature of %s with %s: %w: %s", Suite, keyring, err, strings.TrimSpace(said.String()))
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
	return "", fmt.Errorf("the list of %s has no %s (has digests: %v)", Suite, name, ok)
}

// lookUp finds a package in the list of an architecture's packages.
func lookUp(index, name string) (Package, error) {
	name, depends := strings.CutSuffix(name, "=depends")
	fields, err := stanza(index, name)
	if err == nil && depends {
		on, _, _ := strings.Cut(fields["Depends"], " ")
		fields, err = stanza(index, on)
	}
	if err != nil {
		return Package{}, err
	}
	size, err := strconv.ParseInt(fields["Size"], 10, 64)
	if err != nil {
		return Package{}, fmt.Errorf("the size of %s: %w", name, err)
	}
	if depends {
		fields["Package"] = name // whatever its version's name
	}
	return Package{
		Name:    fields["Package"],
		Version: fields["Version"],
		Bytes:   size,
		SHA256:  fields["SHA256"],
		Path:    fields["Filename"],
	}, nil
}

// stanza returns what the list says of a package, of several the last.
func stanza(index, name string) (map[string]string, error) {
	begin := strings.LastIndex("\n\n"+index, "\n\nPackage: "+name+"\n")
	if begin < 0 {
		return nil, fmt.Errorf("%s has no package %s", Suite, name)
	}
	text, _, _ := strings.Cut(index[begin:], "\n\n")
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ": "); ok {
			fields[key] = strings.TrimSpace(value)
		}
	}
	for _, want := range []string{"Version", "Size", "SHA256", "Filename"} {
		if fields[want] == "" {
			return nil, fmt.Errorf("the list of packages does not say %s of %s", want, name)
		}
	}
	return fields, nil
}
