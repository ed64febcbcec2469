package boot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	erofs "github.com/erofs/go-erofs"

	"github.com/elotl/kip/image"
	"github.com/elotl/kip/image/debian"
)

// rootTree puts together the root of a cell, but for the kernel's modules.
func (o Options) rootTree(from debian.Files, own map[string][]byte) (tree, error) {
	t := tree{}
	folders, texts := image.Skeleton()
	for p, mode := range folders {
		t[p] = node{mode: fs.ModeDir | mode.Perm() | mode&fs.ModeSticky}
	}
	for p, text := range texts {
		t[p] = node{mode: 0o644, content: []byte(text)}
	}
	for p := range links {
		delete(t, p) // bin, sbin: here they are links
	}
	for p, to := range links {
		t[p] = node{mode: fs.ModeSymlink | 0o777, link: to}
	}
	for _, p := range configuration {
		files := []string{p}
		if strings.HasSuffix(p, "/") {
			files = from.Below(p)
		}
		for _, p := range files {
			f, _, err := from.Open(p)
			if err != nil {
				return nil, err
			}
			t[p] = node{mode: 0o644, content: f.Content}
		}
	}
	for _, p := range programs {
		f, _, err := from.Open(p)
		if err != nil {
			return nil, err
		}
		t[p] = node{mode: 0o755, content: f.Content}
	}
	for p, b := range own {
		t[p] = node{mode: 0o755, content: b}
	}
	for _, p := range slices.Sorted(maps.Keys(t)) {
		if n := t[p]; n.mode.Type() == 0 && n.mode&0o111 != 0 {
			if err := t.addLibraries(p, n.content, o.Arch, from); err != nil {
				return nil, err
			}
		}
	}
	applets, err := applets(t["usr/bin/busybox"].content)
	if err != nil {
		return nil, err
	}
	for _, a := range applets {
		if p := "usr/bin/" + a; !noApplets[a] && !t.has(p) && !t.has("usr/sbin/"+a) {
			t[p] = node{mode: fs.ModeSymlink | 0o777, link: "busybox"}
		}
	}
	certificates := from.Authorities()
	if len(certificates) == 0 {
		return nil, errors.New("no package has certificate authorities")
	}
	t[strings.TrimPrefix(image.HostCertificates, "/")] = node{mode: 0o644, content: certificates}
	return t, nil
}

// applets are the names in a busybox. It is not asked for them, since it may be for
// another architecture: its table begins with these two, and ends with an empty name.
func applets(busybox []byte) ([]string, error) {
	begin := bytes.Index(busybox, []byte("[\x00[[\x00"))
	if begin < 0 {
		return nil, errors.New("busybox has no table of its names where it was looked for")
	}
	var out []string
	for name := range bytes.SplitSeq(busybox[begin:], []byte{0}) {
		if len(name) == 0 {
			break
		}
		if strings.Trim(string(name), "abcdefghijklmnopqrstuvwxyz0123456789_-.[") != "" {
			return nil, fmt.Errorf("busybox' table of names has %q", name)
		}
		out = append(out, string(name))
	}
	return out, nil
}

// writeRoot writes a tree as EROFS, in the order of its paths, with the epoch as the
// time of all.
func writeRoot(to io.WriteSeeker, t tree, tmp string) error {
	t.folders()
	w := erofs.Create(to, erofs.WithBuildTime(0, 0), erofs.WithTempDir(tmp))
	epoch := time.Unix(0, 0)
	if err := errors.Join(w.Mkdir("/", 0o755), w.Chtimes("/", epoch, epoch)); err != nil {
		return err
	}
	for _, p := range slices.Sorted(maps.Keys(t)) {
		if err := addTo(w, "/"+p, t[p]); err != nil {
			return fmt.Errorf("put /%s into the root: %w", p, err)
		}
		if err := w.Chtimes("/"+p, epoch, epoch); err != nil {
			return err
		}
	}
	return w.Close()
}

func addTo(w *erofs.Writer, p string, n node) error {
	switch n.mode.Type() {
	case fs.ModeDir:
		if err := w.Mkdir(p, n.mode.Perm()); err != nil {
			return err
		}
		return w.Chmod(p, n.mode)
	case fs.ModeSymlink:
		return w.Symlink(n.link, p)
	}
	f, err := w.Create(p)
	if err != nil {
		return err
	}
	if _, err := f.Write(n.content); err != nil {
		return err
	}
	if err := f.Chmod(n.mode); err != nil {
		return err
	}
	return f.Close()
}
