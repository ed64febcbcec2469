package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/config"
)

func migrate(k *kipctl) *cobra.Command {
	var file string
	var write bool
	cmd := &cobra.Command{
		Use:   "migrate -f FILE",
		Short: "Rewrite a provider.yaml of Kip 2020 into today's, and tell what became of each key",
		Long: "Rewrite a provider.yaml of Kip 2020 into today's. Today's goes to standard output, and to standard error what became of each\n" +
			"key: the same, renamed, or gone and why. Comments are kept, but for those of keys that are gone; the indentation is not.\n\n" +
			"With --write it replaces the file, and keeps the earlier one as FILE.orig. It writes nothing if a key is unknown or a value\n" +
			"is wrong, and names all of these. A file that is today's already stays as it is.",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case file == "":
				return errors.New("say which file: -f provider.yaml, or -f - for standard input")
			case file == "-" && write:
				return errors.New("--write needs the name of a file: -f - is standard input")
			}
			return k.migrate(file, write)
		},
	}
	cmd.Flags().StringVarP(&file, "provider-config", "f", "", "the provider.yaml, a `file`, - for standard input")
	cmd.Flags().BoolVarP(&write, "write", "w", false, "replace the file, and keep the earlier one as FILE.orig")
	return cmd
}

func (k *kipctl) migrate(file string, write bool) error {
	data, err := k.readFile(file)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	m, err := config.Migrate(file, data)
	if err != nil {
		return fmt.Errorf("nothing was written: %w", err)
	}
	if err := k.tellKeys(m); err != nil {
		return err
	}
	switch {
	case !m.Changed:
		fmt.Fprintf(k.err, "%s is up to date: it stays as it is.\n", file)
	case write:
		if err := replaceFile(file, data, m.YAML); err != nil {
			return err
		}
		fmt.Fprintf(k.err, "%s is written. The earlier file is %s.orig.\n", file, file)
	}
	for _, w := range m.Warnings {
		fmt.Fprintln(k.err, "Warning:", w)
	}
	if err := clouds.Shipped().CheckBuild(m.Config); err != nil {
		fmt.Fprintf(k.err, "Kip does not start with this file until you change:\n%v\n", err)
	}
	if write {
		return nil
	}
	_, err = k.out.Write(m.YAML)
	return err
}

// tellKeys writes what became of each key.
func (k *kipctl) tellKeys(m *config.Migration) error {
	t := table(k.err, "LINE", "KEY", "NOW", "NEW KEY, OR WHY")
	for _, key := range m.Keys {
		t.row(strconv.Itoa(key.Line), key.Key, string(key.Fate), cmp.Or(key.To, key.Why, "-"))
	}
	return t.w.Flush()
}

// replaceFile writes a file anew, and keeps what it had beside it, in a file that was not there.
func replaceFile(name string, old, data []byte) (err error) {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	kept, err := os.OpenFile(name+".orig", os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("nothing was written: %s.orig is there already: move it away", name)
	}
	if err != nil {
		return fmt.Errorf("nothing was written: keep the earlier file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(kept.Name()) // else the next run refuses
		}
	}()
	if err := written(kept, old); err != nil {
		return fmt.Errorf("nothing was written: keep the earlier file: %w", err)
	}
	to, err := filepath.EvalSymlinks(name) // which a rename would replace
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(to), ".provider-*.yaml")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary.Name()) // of what is not its file
		}
	}()
	if err = errors.Join(temporary.Chmod(info.Mode().Perm()), written(temporary, data)); err == nil {
		err = os.Rename(temporary.Name(), to)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// written writes all of a file, and closes it.
func written(f *os.File, data []byte) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
