package firstboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloudconfig"
)

const (
	// scriptDir has a script while it runs.
	scriptDir = "/var/lib/itzo/cloud-init"
	// pipeGrace is how long a program's output is read after its end.
	pipeGrace = 200 * time.Millisecond
	// searchPath is where programs are looked for, and what scripts have as PATH.
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// run is one file that is carried out.
type run struct {
	*Machine
	ctx      context.Context
	failures []string
	wrote    []string // paths, for SELinux
}

// carryOut does all that a file says, also where some of it cannot be done, and returns what
// that was.
func (m *Machine) carryOut(ctx context.Context, d *cloudconfig.Document) []string {
	r := &run{Machine: m, ctx: ctx}
	if d.Hostname != "" {
		r.try("hostname", m.setHostname(d.Hostname))
	}
	for _, g := range d.Groups {
		r.try("group "+g.Name, r.group(g.Name))
	}
	for _, u := range d.Users {
		r.user(u)
	}
	for _, g := range d.Groups {
		for _, member := range g.Members {
			r.try("member "+member+" of group "+g.Name, r.program("", "usermod", "--append", "--groups", g.Name, "--", member))
		}
	}
	r.try("sudo", r.sudo(d.Users))
	if len(d.AuthorizedKeys) > 0 {
		r.try("ssh_authorized_keys", r.authorize("root", d.AuthorizedKeys))
	}
	for _, f := range d.Files {
		r.try("file "+f.Path, r.file(f))
	}
	r.relabel()
	for n, s := range d.Scripts {
		r.try(s.Name, r.script(n, s.Content))
	}
	return r.failures
}

// try notes a failure, but not once the agent ends.
func (r *run) try(what string, err error) {
	if err == nil || r.ctx.Err() != nil || len(r.failures) >= maxFailures {
		return
	}
	text := what + ": " + err.Error()
	r.failures = append(r.failures, text[:min(len(text), maxFailure)])
}

// in is a path of the machine.
func (m *Machine) in(p string) string { return filepath.Join(m.o.Root, p) }

func (m *Machine) setHostname(name string) error {
	if err := m.o.SetHostname(name); err != nil {
		return err
	}
	if err := os.WriteFile(m.in("/etc/hostname"), []byte(name+"\n"), 0o644); err != nil {
		return err
	}
	hosts, err := os.ReadFile(m.in("/etc/hosts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(hosts)) {
		before, _, _ := strings.Cut(line, "#")
		if words := strings.Fields(before); len(words) > 1 && slices.Contains(words[1:], name) {
			return nil
		}
	}
	return appendTo(m.in("/etc/hosts"), "127.0.1.1 "+name+"\n")
}

// appendTo adds a line at the end of a file, which may end without a line break.
func appendTo(path, line string) error {
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(before) > 0 && !bytes.HasSuffix(before, []byte("\n")) {
		line = "\n" + line
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// file writes one file.
func (r *run) file(f cloudconfig.File) error {
	uid, err := r.id("/etc/passwd", f.User)
	if err != nil {
		return err
	}
	gid, err := r.id("/etc/group", f.Group)
	if err != nil {
		return err
	}
	return r.write(f, uid, gid)
}

// write writes a file that has its owner by their numbers. As cloud-init, it follows a link.
func (r *run) write(f cloudconfig.File, uid, gid int) error {
	if err := os.MkdirAll(filepath.Dir(r.in(f.Path)), 0o755); err != nil {
		return err
	}
	how := os.O_CREATE | os.O_WRONLY
	if f.Append {
		how |= os.O_APPEND
	}
	// Until it has its owner, nobody may do with it what not even the owner may.
	meanwhile := f.Mode & 0o600
	file, err := os.OpenFile(r.in(f.Path), how, meanwhile)
	if err != nil {
		return err
	}
	err = file.Chmod(meanwhile)
	if err == nil && !f.Append {
		err = file.Truncate(0)
	}
	if err == nil {
		_, err = file.Write(f.Content)
	}
	if err == nil {
		err = file.Chown(uid, gid) // first: it takes setuid away
	}
	if err == nil {
		err = file.Chmod(f.Mode)
	}
	r.wrote = append(r.wrote, f.Path)
	return errors.Join(err, file.Close())
}

// id is the number of a user or a group, by its name in one of the files in /etc.
func (m *Machine) id(file, name string) (int, error) {
	if n, err := strconv.Atoi(name); err == nil {
		return n, nil
	}
	entry, err := m.entry(file, name)
	if err != nil {
		if name == "root" {
			return 0, nil
		}
		return 0, err
	}
	return strconv.Atoi(entry[2])
}

// entry are the fields of a name in /etc/passwd or /etc/group, at least three.
func (m *Machine) entry(file, name string) ([]string, error) {
	data, err := os.ReadFile(m.in(file))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if fields[0] == name && len(fields) >= 3 {
			return fields, nil
		}
	}
	return nil, fmt.Errorf("%s has no %s", file, name)
}

// relabel gives what was written the labels of SELinux, where the machine has that.
func (r *run) relabel() {
	if _, err := os.Stat(r.in("/sys/fs/selinux/enforce")); err != nil || len(r.wrote) == 0 {
		return
	}
	r.try("SELinux", r.program("", "restorecon", append([]string{"-R", "--"}, r.wrote...)...))
}

// script runs a script to its end.
func (r *run) script(n int, content []byte) error {
	at := path.Join(scriptDir, "script-"+strconv.Itoa(n))
	if err := r.writeScript(at, content); err != nil {
		return err
	}
	defer os.Remove(r.in(at))
	if err := os.MkdirAll(r.o.LogDir, 0o755); err != nil {
		return err
	}
	// The file itself: what the script leaves running writes to it also when this agent has ended.
	log, err := os.OpenFile(r.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	in, err := reads("")
	if err != nil {
		return err
	}
	defer in.Close()
	if err := r.execute(in, log, at); err != nil {
		return fmt.Errorf("%w; its output is in %s on the cell", err, r.logFile())
	}
	return nil
}

// writeScript writes a script that can be run at once. While it is open for writing no other
// part of the agent starts a program: that would have it open as well until it is another
// program, and the kernel runs none that somebody may write to (ETXTBSY).
func (r *run) writeScript(at string, content []byte) error {
	if err := os.MkdirAll(r.in(scriptDir), 0o700); err != nil {
		return err
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(r.in(at), content, 0o700)
}

// maxSaid bounds what is told of what a program says, in bytes.
const maxSaid = 200

// program runs one of the machine's programs, given a text to read, which nobody sees in
// its arguments.
func (r *run) program(input, name string, args ...string) error {
	for dir := range strings.SplitSeq(searchPath, ":") {
		at := path.Join(dir, name)
		if info, err := os.Stat(r.in(at)); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			continue
		}
		var said bytes.Buffer
		err := r.command(&said, input, at, args...)
		if text := strings.TrimSpace(said.String()); err != nil && text != "" {
			return fmt.Errorf("%s: %w: %s", name, err, text[:min(len(text), maxSaid)])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("this image has no %s", name)
}

// command runs a program of the machine, and gives its output to a writer.
func (r *run) command(output io.Writer, input, at string, args ...string) error {
	out, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	in, err := reads(input)
	if err != nil {
		return errors.Join(err, w.Close())
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		buffer := make([]byte, 4096)
		for {
			n, err := out.Read(buffer)
			_, _ = output.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	err = r.execute(in, w, at, args...)
	_, _ = w.Close(), in.Close()
	// What it left running may hold the pipe.
	_ = out.SetReadDeadline(time.Now().Add(pipeGrace))
	<-copied
	return err
}

// execute runs a program of the machine to its end, with these files.
func (r *run) execute(in, out *os.File, at string, args ...string) error {
	cmd := &exec.Cmd{
		Path:        at,
		Args:        append([]string{at}, args...),
		Env:         []string{"PATH=" + searchPath, "HOME=/root"},
		Dir:         "/",
		Stdin:       in,
		Stdout:      out,
		Stderr:      out,
		SysProcAttr: &unix.SysProcAttr{Setpgid: true},
	}
	if r.o.Root != "/" {
		cmd.SysProcAttr.Chroot = r.o.Root
	}
	return r.o.Reaper.Run(r.ctx, cmd)
}

// reads returns a file to read a text from. It has no name.
func reads(text string) (*os.File, error) {
	if text == "" {
		return os.Open(os.DevNull)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString(text) // it is a line: it fits into a pipe
	if err = errors.Join(err, w.Close()); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}
