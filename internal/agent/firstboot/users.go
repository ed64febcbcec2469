package firstboot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/elotl/kip/internal/cloudconfig"
)

// group makes a group that is not there.
func (r *run) group(name string) error {
	if _, err := r.entry("/etc/group", name); err == nil {
		return nil
	}
	return r.program("", "groupadd", "--", name)
}

// user makes a user, or gives one that is there what of it can be given: groups, a password,
// keys.
func (r *run) user(u cloudconfig.User) {
	what := "user " + u.Name
	before := len(r.failures)
	for _, g := range append(slices.Clone(u.Groups), u.PrimaryGroup) {
		if g != "" {
			r.try("group "+g, r.group(g))
		}
	}
	if _, err := r.entry("/etc/passwd", u.Name); err != nil {
		r.try(what, r.program("", "useradd", newUser(u)...))
	} else if len(u.Groups) > 0 {
		r.try(what, r.program("", "usermod", "--append", "--groups", strings.Join(u.Groups, ","), "--", u.Name))
	}
	if len(r.failures) > before {
		return
	}
	if u.PasswordHash != "" {
		r.try(what+": passwd", r.program(u.Name+":"+u.PasswordHash+"\n", "chpasswd", "--encrypted"))
	}
	if u.Locked {
		r.try(what+": lock_passwd", r.program("", "usermod", "--lock", "--", u.Name))
	}
	if len(u.AuthorizedKeys) > 0 {
		r.try(what+": ssh_authorized_keys", r.authorize(u.Name, u.AuthorizedKeys))
	}
}

// newUser are useradd's arguments.
func newUser(u cloudconfig.User) []string {
	var args []string
	for _, o := range []struct{ flag, value string }{
		{"--comment", u.Gecos},
		{"--home-dir", u.Home},
		{"--gid", u.PrimaryGroup},
		{"--groups", strings.Join(u.Groups, ",")},
		{"--shell", u.Shell},
		{"--uid", u.UID},
	} {
		if o.value != "" {
			args = append(args, o.flag, o.value)
		}
	}
	home := "--create-home"
	if u.NoCreateHome {
		home = "--no-create-home"
	}
	for _, o := range []struct {
		flag string
		is   bool
	}{
		{home, true},
		{"--no-user-group", u.NoUserGroup && u.PrimaryGroup == ""},
		{"--no-log-init", u.NoLogInit},
		{"--system", u.System},
	} {
		if o.is {
			args = append(args, o.flag)
		}
	}
	return append(args, "--", u.Name)
}

// authorize lets keys log in as a user.
func (r *run) authorize(user string, keys []string) error {
	entry, err := r.entry("/etc/passwd", user)
	if err != nil {
		return err
	}
	if len(entry) < 6 || !filepath.IsAbs(entry[5]) {
		return fmt.Errorf("user %s has no home", user)
	}
	uid, err := strconv.Atoi(entry[2])
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(entry[3])
	if err != nil {
		return err
	}
	dir := filepath.Join(entry[5], ".ssh")
	switch err := os.Mkdir(r.in(dir), 0o700); {
	case err == nil:
		if err := os.Chown(r.in(dir), uid, gid); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	r.wrote = append(r.wrote, dir)
	file := filepath.Join(dir, "authorized_keys")
	before, err := os.ReadFile(r.in(file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(string(before), "\n"), "\n")
	for _, key := range keys {
		if !slices.Contains(lines, key) {
			lines = append(lines, key)
		}
	}
	text := strings.TrimPrefix(strings.Join(lines, "\n"), "\n") + "\n"
	return r.write(cloudconfig.File{Path: file, Content: []byte(text), Mode: 0o600}, uid, gid)
}

// sudoers is the file of our rules. sudo leaves names with a dot alone.
const sudoers, newSudoers = "/etc/sudoers.d/90-kip-users", "/etc/sudoers.d/90-kip-users.new"

// sudo writes what users may do by sudo, if sudo takes it: with a file that it cannot read it
// does nothing for anybody.
func (r *run) sudo(users []cloudconfig.User) error {
	var text strings.Builder
	for _, u := range users {
		for _, rule := range u.Sudo {
			fmt.Fprintf(&text, "%s %s\n", u.Name, rule)
		}
	}
	if text.Len() == 0 {
		return nil
	}
	if _, err := os.Stat(r.in(filepath.Dir(sudoers))); err != nil {
		return errors.New("this image has no sudo")
	}
	if err := r.write(cloudconfig.File{Path: newSudoers, Content: []byte(text.String()), Mode: 0o440}, 0, 0); err != nil {
		return err
	}
	if err := r.program("", "visudo", "-cf", newSudoers); err != nil {
		r.wrote = r.wrote[:len(r.wrote)-1]
		return errors.Join(err, os.Remove(r.in(newSudoers)))
	}
	r.wrote[len(r.wrote)-1] = sudoers
	return os.Rename(r.in(newSudoers), r.in(sudoers))
}
