// Package atomicfile replaces files as a whole: nobody reads half of one. It must not know what is in them.
//
// containerd's package of this name does not do: its temporary file has a name that a kubelet takes for a static pod, and each
// write waits for the disk, for which a cell that starts has no time.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file, or makes it, with this mode whatever the umask. It writes a file beside it whose name begins with a dot, which
// readers of folders pass over, and renames that. If it fails the file is as it was. One caller at a time writes a file.
func Write(path string, content []byte, mode fs.FileMode) error {
	return write(path, content, mode, func(*os.File) error { return nil })
}

// WriteSynced is Write, and returns when what it wrote survives a loss of power.
func WriteSynced(path string, content []byte, mode fs.FileMode) error {
	if err := write(path, content, mode, (*os.File).Sync); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func write(path string, content []byte, mode fs.FileMode, sync func(*os.File) error) error {
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	// One of a process that was killed would keep its mode, and its place if it is a link.
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), sync(f), f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return nil
}
