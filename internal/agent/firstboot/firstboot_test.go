package firstboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/supervise"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloudconfig"
)

// patience is how long a test waits for a real process before it fails.
const patience = time.Minute

// box is a machine in a folder.
type box struct {
	t     *testing.T
	root  string
	names []string // that it was given
	kips  bool
	// synced is called when all that was written is to be on the disks; nil for nothing.
	synced func()
}

// newBox returns a machine that has this host's programs, and files of its own. They end
// with the test's thread: its mounts are in a namespace of that.
func newBox(t *testing.T) *box {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		t.Fatalf("a mount namespace: %v; this test needs root", err)
	}
	b := &box{t: t, root: t.TempDir()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	for _, dir := range []string{"usr", "etc", "root", "home", "tmp", "var/lib", "var/log", "dev", "proc"} {
		must(os.MkdirAll(b.in(dir), 0o755))
	}
	must(unix.Mount("/usr", b.in("usr"), "", unix.MS_BIND, ""))
	t.Cleanup(b.withoutPrograms)
	// Before anything else, and without a way to write: the folder is removed in the end.
	must(unix.Mount("", b.in("usr"), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if target, err := os.Readlink("/" + dir); err == nil {
			must(os.Symlink(target, b.in(dir)))
		}
	}
	b.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nold:x:1000:1000::/home/old:/bin/sh\n")
	b.file("etc/group", "root:x:0:\nold:x:1000:\n")
	b.file("etc/shadow", "root:*:1:0:99999:7:::\nold:!:1:0:99999:7:::\n")
	b.file("etc/gshadow", "root:*::\nold:!::\n")
	b.file("etc/login.defs", "UID_MIN 1000\nUID_MAX 60000\nGID_MIN 1000\nGID_MAX 60000\nSYS_UID_MIN 100\nSYS_UID_MAX 999\n"+
		"SYS_GID_MIN 100\nSYS_GID_MAX 999\nUSERGROUPS_ENAB yes\nCREATE_HOME no\nUMASK 022\nENCRYPT_METHOD SHA512\n")
	b.file("etc/hosts", "127.0.0.1 localhost")
	return b
}

// withoutPrograms takes this host's programs away.
func (b *box) withoutPrograms() {
	if err := unix.Unmount(b.in("usr"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: they are not there
		b.t.Fatal(err)
	}
}

func (b *box) in(p string) string { return filepath.Join(b.root, p) }

func (b *box) file(p, text string) {
	b.t.Helper()
	if err := os.WriteFile(b.in(p), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) text(p string) string {
	data, err := os.ReadFile(b.in(p))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// line is the line of a file that begins with a name and a colon.
func (b *box) line(file, name string) string {
	for line := range strings.Lines(b.text(file)) {
		if strings.HasPrefix(line, name+":") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// machine begins an agent's part on it.
func (b *box) machine() *Machine {
	b.t.Helper()
	m, err := New(Options{
		Root:        b.root,
		StateDir:    b.in("var/lib/itzo"),
		LogDir:      b.in("var/log"),
		KipsImage:   b.kips,
		SetHostname: func(name string) error { b.names = append(b.names, name); return nil },
		Sync: func() {
			if b.synced != nil {
				b.synced()
			}
		},
		Reaper: supervise.NewReaper(slog.New(slog.DiscardHandler)),
		Log:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// apply carries a file out to its end, on this thread, which alone has the machine's mounts.
func (b *box) apply(m *Machine, file string) []string {
	b.t.Helper()
	if _, err := m.Apply([]byte(file)); !errors.Is(err, ErrUnderWay) {
		b.t.Fatal(err)
	}
	m.Run(b.t.Context())
	done, err := m.Apply([]byte(file))
	if err != nil {
		b.t.Fatal(err)
	}
	return done.Failures
}

// is says who owns a file and what may be done with it.
func (b *box) is(p string) string {
	var s unix.Stat_t
	if err := unix.Lstat(b.in(p), &s); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d:%d %04o", s.Uid, s.Gid, s.Mode&0o7777)
}

func TestFilesHostnameAndCommandsAreCarriedOut(t *testing.T) {
	b := newBox(t)
	b.file("etc/long", "it was longer than what is written")
	b.file("etc/more", "first\n")
	failures := b.apply(b.machine(), `#cloud-config
hostname: cell-7
write_files:
- {path: /etc/plain, content: "hello\n"}
- {path: /srv/deep/er, content: x, permissions: '0600', owner: old:root}
- {path: /etc/long, content: short, permissions: 04751, owner: 12:34}
- {path: /etc/more, content: "second\n", append: true}
- {path: /etc/squeezed, encoding: gz+b64, content: H4sIAAAAAAAC/8tIzcnJBwCGphA2BQAAAA==}
- {path: /etc/nobodys, content: x, owner: nobody-here}
runcmd:
- cd /etc && cat plain long > both
- [sh, -c, 'echo "$HOME $PATH" > "$1"', x, /etc/env]
- echo it says this; exit 3
`)
	want := []string{
		"file /etc/nobodys: /etc/passwd has no nobody-here",
		"runcmd: exit status 3; its output is in " + b.in("var/log/kip-cloud-init.log") + " on the cell",
	}
	if !slices.Equal(failures, want) {
		t.Errorf("failures %q", failures)
	}
	for p, want := range map[string]string{
		"etc/plain": "hello\n", "srv/deep/er": "x", "etc/long": "short", "etc/more": "first\nsecond\n", "etc/both": "hello\nshort",
		"etc/hostname": "cell-7\n", "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 cell-7\n", "var/log/kip-cloud-init.log": "it says this\n",
		"etc/env": "/root " + searchPath + "\n",
	} {
		if got := b.text(p); got != want {
			t.Errorf("%s is %q, want %q", p, got, want)
		}
	}
	for p, want := range map[string]string{
		"etc/plain": "0:0 0644", "srv/deep/er": "1000:0 0600", "etc/long": "12:34 4751", "var/log/kip-cloud-init.log": "0:0 0600",
		"var/lib/itzo/cloud-init.json": "0:0 0600",
	} {
		if got := b.is(p); got != want {
			t.Errorf("%s is %s, want %s", p, got, want)
		}
	}
	if left, err := os.ReadDir(b.in(scriptDir)); err != nil || len(left) != 0 {
		t.Errorf("scripts are left: %v, %v", left, err)
	}
	if !slices.Equal(b.names, []string{"cell-7"}) {
		t.Errorf("names %q", b.names)
	}
	b.machine() // the machine is started again
	if !slices.Equal(b.names, []string{"cell-7", "cell-7"}) || strings.Count(b.text("etc/hosts"), "cell-7") != 1 {
		t.Errorf("after another start: names %q, hosts %q", b.names, b.text("etc/hosts"))
	}
}

func TestUsersAreMadeByTheImagesOwnPrograms(t *testing.T) {
	b := newBox(t)
	const hash = "$6$saltsalt$0123456789abcdefghijklmnop"
	if err := os.MkdirAll(b.in("home/old"), 0o755); err != nil {
		t.Fatal(err)
	}
	failures := b.apply(b.machine(), `#cloud-config
groups: [admins, builders: [ann, old]]
users:
- {name: ann, uid: 1500, gecos: Ann, shell: /bin/sh, groups: [admins], passwd: `+hash+`,
   ssh_authorized_keys: [ssh-rsa A ann, ssh-rsa B ann]}
- {name: bob, system: true, no_create_home: true, primary_group: admins}
- {name: eve, passwd: `+hash+`, lock_passwd: true}
- {name: old, groups: new, ssh_authorized_keys: [ssh-rsa C old]}
ssh_authorized_keys: [ssh-rsa R root]
write_files:
- {path: /etc/anns, owner: ann:builders}
`)
	if len(failures) > 0 {
		t.Errorf("failures %q", failures)
	}
	if got := b.line("etc/passwd", "ann"); got != "ann:x:1500:1500:Ann:/home/ann:/bin/sh" {
		t.Errorf("ann is %q", got)
	}
	for name, want := range map[string]string{"ann": hash, "eve": "!" + hash, "bob": "!", "old": "!"} {
		if got := strings.Split(b.line("etc/shadow", name), ":"); len(got) < 2 || got[1] != want {
			t.Errorf("the password of %s is %q, want %q", name, got, want)
		}
	}
	for group, want := range map[string]string{"admins": "ann", "builders": "ann,old", "new": "old"} {
		if got := strings.Split(b.line("etc/group", group), ":"); len(got) != 4 || got[3] != want {
			t.Errorf("group %s is %q, want %s", group, got, want)
		}
	}
	for p, want := range map[string]string{
		"home/ann/.ssh": "1500:1500 0700", "home/ann/.ssh/authorized_keys": "1500:1500 0600", "root/.ssh/authorized_keys": "0:0 0600",
		"home/old/.ssh/authorized_keys": "1000:1000 0600",
	} {
		if got := b.is(p); got != want {
			t.Errorf("%s is %s, want %s", p, got, want)
		}
	}
	if got := b.is("etc/anns"); !strings.HasPrefix(got, "1500:") || strings.HasPrefix(got, "1500:0 ") {
		t.Errorf("a file of one who has just been made is %s", got)
	}
	if got := b.text("home/ann/.ssh/authorized_keys"); got != "ssh-rsa A ann\nssh-rsa B ann\n" {
		t.Errorf("keys %q", got)
	}
	if _, err := os.Stat(b.in("home/bob")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bob has a home: %v", err)
	}
}

func TestWhatAnImageHasNoProgramForIsAFailureAndTheRestIsDone(t *testing.T) {
	b := newBox(t)
	b.withoutPrograms()
	failures := b.apply(b.machine(),
		"#cloud-config\ngroups: [a]\nusers: [{name: ann, sudo: ALL}]\nwrite_files: [{path: /etc/x, content: x}]\n")
	want := []string{"group a: this image has no groupadd", "user ann: this image has no useradd", "sudo: this image has no sudo"}
	if !slices.Equal(failures, want) || b.text("etc/x") != "x" {
		t.Errorf("failures %q, file %q", failures, b.text("etc/x"))
	}
}

func TestSudosRulesAreCheckedBeforeTheyHold(t *testing.T) {
	b := newBox(t)
	if err := os.MkdirAll(b.in("etc/sudoers.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	// In the place of visudo, which need not be here: it takes rules that begin with ALL.
	if err := os.Remove(b.in("sbin")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(b.in("sbin"), 0o755); err != nil {
		t.Fatal(err)
	}
	visudo := "#!/bin/sh\n[ \"$1\" = -cf ] && ! grep -v '^old ALL' \"$2\" && exit 0\necho parse error; exit 1\n"
	if _, err := os.Stat("/usr/sbin/visudo"); err == nil {
		visudo = "" // the real one is found first
	}
	if err := os.WriteFile(b.in("sbin/visudo"), []byte(visudo), 0o755); err != nil {
		t.Fatal(err)
	}
	if failures := b.apply(b.machine(), "#cloud-config\nusers: [{name: old, sudo: ALL=(ALL) NOPASSWD:ALL}]\n"); len(failures) != 0 {
		t.Errorf("failures %q", failures)
	}
	if got := b.text("etc/sudoers.d/90-kip-users") + b.is("etc/sudoers.d/90-kip-users"); got != "old ALL=(ALL) NOPASSWD:ALL\n0:0 0440" {
		t.Errorf("rules %q", got)
	}
	if err := os.Remove(b.in("var/lib/itzo/cloud-init.json")); err != nil {
		t.Fatal(err)
	}
	failures := b.apply(b.machine(), "#cloud-config\nusers: [{name: old, sudo: nonsense}]\n")
	if len(failures) != 1 || !strings.HasPrefix(failures[0], "sudo: visudo: exit status 1") {
		t.Errorf("failures %q", failures)
	}
	names, _ := os.ReadDir(b.in("etc/sudoers.d"))
	if len(names) != 1 || b.text("etc/sudoers.d/90-kip-users") != "old ALL=(ALL) NOPASSWD:ALL\n" {
		t.Errorf("a rule that sudo does not take is there: %v", names)
	}
}

// plainBox is a machine of nothing but its folder, for what runs no program.
func plainBox(t *testing.T) *box {
	t.Helper()
	b := &box{t: t, root: t.TempDir()}
	if err := os.MkdirAll(b.in("etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAFileIsCarriedOutOnceInTheLifeOfAMachine(t *testing.T) {
	b := plainBox(t)
	const file = "#cloud-config\nwrite_files: [{path: /etc/log, content: \"once\\n\", append: true}]\n"
	m := b.machine()
	b.apply(m, file)
	for _, m := range []*Machine{m, b.machine()} {
		if done, err := m.Apply([]byte(file)); err != nil || len(done.Failures) != 0 {
			t.Errorf("again: %v, %v", done, err)
		}
		if done, err := m.Done(cloudconfig.Digest([]byte(file))); err != nil || len(done.Failures) != 0 {
			t.Errorf("asked by its digest: %v, %v", done, err)
		}
		if done, err := m.Done(cloudconfig.Digest([]byte(file + "#"))); !errors.Is(err, ErrNotBegun) {
			t.Errorf("asked by the digest of another: %v, %v", done, err)
		}
		_, err := m.Apply([]byte(file + "#"))
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "has had another one") {
			t.Errorf("another file: %v", err)
		}
	}
	if got := b.text("etc/log"); got != "once\n" {
		t.Errorf("it was carried out otherwise than once: %q", got)
	}
	b.file("var/lib/itzo/cloud-init.json", "{")
	if _, err := New(m.o); err == nil || !strings.Contains(err.Error(), "read what cloud-init has done") {
		t.Errorf("a record that cannot be read: %v", err)
	}
}

func TestAFileThatWasCutOffIsNotBegunAgain(t *testing.T) {
	b := plainBox(t)
	left := scriptDir + "/script-0"
	const file = "#cloud-config\nwrite_files: [{path: /etc/log, content: x}]\n"
	first := b.machine()
	if _, err := first.Apply([]byte(file)); !errors.Is(err, ErrUnderWay) { // it is recorded before anything is done
		t.Fatal(err)
	}
	digest := cloudconfig.Digest([]byte(file))
	if done, err := first.Done(digest); !errors.Is(err, ErrUnderWay) {
		t.Errorf("while it goes on: %v, %v", done, err)
	}
	for _, ask := range []func(*Machine) (agentapi.CloudInitDone, error){
		func(m *Machine) (agentapi.CloudInitDone, error) { return m.Done(digest) },
		func(m *Machine) (agentapi.CloudInitDone, error) { return m.Apply([]byte(file)) },
	} {
		if err := os.MkdirAll(b.in(scriptDir), 0o700); err != nil {
			t.Fatal(err)
		}
		b.file(left, "#!/bin/sh\n# sesame\n") // the agent was killed while this ran
		done, err := ask(b.machine())
		if err != nil || len(done.Failures) != 1 || !strings.Contains(done.Failures[0], "it was cut off when the agent ended") {
			t.Errorf("%v, %v", done, err)
		}
	}
	if _, err := os.Stat(b.in("etc/log")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was begun again: %v", err)
	}
	if text := b.text(left); strings.Contains(text, "sesame") {
		t.Errorf("its script is left: %q", text)
	}
}

func TestWhatCannotBeCarriedOutIsRefusedBeforeAnythingIsDone(t *testing.T) {
	for file, want := range map[string]string{
		"#cloud-config\nusers: [ann]\nwrite_files: [{path: /etc/x}]\n":    "nobody can log in on Kip's own image, so it has no users",
		"#cloud-config\nssh_authorized_keys: [ssh-rsa A]\n":               "so it has no ssh_authorized_keys",
		"#cloud-config\nnewer_key: 1\nwrite_files: [{path: /etc/x}]\n":    "cloud-init:2: newer_key: no such key",
		"#cloud-config\npackages: [vim]\nwrite_files: [{path: /etc/x}]\n": "Kip does not carry out this key",
	} {
		b := plainBox(t)
		b.kips = true
		m := b.machine()
		if _, err := m.Apply([]byte(file)); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
		if all, err := os.ReadDir(b.root); err != nil || len(all) != 1 {
			t.Errorf("%q: there is more than /etc: %v, %v", file, all, err)
		}
	}
}

func TestWhatTakesLongIsAskedForAgainAndEndsWithTheAgent(t *testing.T) {
	m, dir := hostMachine(t)
	r := &run{Machine: m, ctx: t.Context()}
	if err := r.command(os.Stderr, "a line", "/bin/sh", "-c", "read a && [ \"$a\" = 'a line' ]"); err == nil {
		t.Error("a line that does not end is read")
	}
	if err := r.command(os.Stderr, "a line\n", "/bin/sh", "-c", "read a && [ \"$a\" = 'a line' ]"); err != nil {
		t.Errorf("a program that reads: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	file := []byte("#!/bin/sh\necho $$ >" + dir + "/pid\nsleep 600\n")
	end := time.Now().Add(patience)
	for began := false; !began; {
		if done, err := m.Apply(file); !errors.Is(err, ErrUnderWay) {
			t.Fatalf("while it goes on: %v, %v", done, err)
		}
		text, _ := os.ReadFile(dir + "/pid")
		if began = strings.HasSuffix(string(text), "\n"); !began && time.Now().After(end) {
			t.Fatal("it never began")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	running.Wait()
	pid, err := os.ReadFile(dir + "/pid")
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("/bin/sh", "-c", "kill -0 "+strings.TrimSpace(string(pid))).Run(); err == nil {
		t.Error("its script runs on without the agent")
	}
	if m.record.Ended {
		t.Error("it counts as done")
	}
}

// hostMachine is a machine that is this host, but for its own files, which are in a folder.
func hostMachine(t *testing.T) (m *Machine, dir string) {
	t.Helper()
	dir = t.TempDir()
	m, err := New(Options{
		Root:        "/",
		StateDir:    filepath.Join(dir, "state"),
		LogDir:      filepath.Join(dir, "log"),
		SetHostname: func(string) error { return errors.New("it is the host's") },
		Sync:        func() {},
		Reaper:      supervise.NewReaper(slog.New(slog.DiscardHandler)),
		Log:         slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, dir
}

func TestWhatAScriptLeavesRunningGoesOnWritingAndIsBounded(t *testing.T) {
	b := newBox(t)
	m := b.machine()
	b.file("dev/null", "") // from which a shell has its background read
	words := []string{"one", "two"}
	// It writes when it is told, which is long after the script's end.
	for _, word := range words {
		if err := unix.Mkfifo(b.in("tmp/"+word), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if failures := b.apply(m, "#!/bin/sh\nfor word in one two; do read a </tmp/$word; echo $word; done &\n"); len(failures) > 0 {
		t.Fatal(failures)
	}
	time.Sleep(2 * pipeGrace)
	for _, word := range words {
		if err := os.WriteFile(b.in("tmp/"+word), []byte("go on\n"), 0); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); b.text("var/log/"+LogName) != word+"\n"; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("what it left running has written %q, want %s", b.text("var/log/"+LogName), word)
			}
		}
		// Longer than it may be: it is emptied under whoever writes.
		b.file("var/log/"+LogName, strings.Repeat("x", logBytes)+word)
		if err := m.boundLog(); err != nil {
			t.Fatal(err)
		}
		if old := b.text("var/log/" + LogName + ".1"); len(old) != logBytes || !strings.HasSuffix(old, "x"+word) {
			t.Errorf("the one before has %d bytes", len(old))
		}
	}
	if got := b.is("var/log/" + LogName + ".1"); got != "0:0 0600" {
		t.Errorf("the one before is %s", got)
	}
}

// A pod that has the folder by hostPath may put links in it.
func TestNoLinkIsFollowedWhereTheLogIsBounded(t *testing.T) {
	b := newBox(t)
	m := b.machine()
	log, mine := "var/log/"+LogName, strings.Repeat("x", 2*logBytes)
	b.file("etc/program", mine)
	b.file(log, mine)
	if err := os.Symlink(b.in("etc/program"), b.in(log+".1")); err != nil {
		t.Fatal(err)
	}
	if err := m.boundLog(); err != nil || len(b.text(log)) != 0 || len(b.text(log+".1")) != logBytes {
		t.Errorf("in the place of the one before: %v, %d and %d bytes", err, len(b.text(log)), len(b.text(log+".1")))
	}
	if err := os.Remove(b.in(log)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(b.in("etc/program"), b.in(log)); err != nil {
		t.Fatal(err)
	}
	if err := m.boundLog(); !errors.Is(err, unix.ELOOP) {
		t.Errorf("in the place of the log: %v", err)
	}
	if b.text("etc/program") != mine {
		t.Error("what the links lead to was written")
	}
}

func TestAScriptRunsAlsoWhileTheAgentStartsOtherPrograms(t *testing.T) {
	b := newBox(t)
	m := b.machine()
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "/bin/true").Run()
			}
		})
	}
	r := &run{Machine: m, ctx: t.Context()}
	long := []byte("#!/bin/sh\nexit\n" + strings.Repeat("#", 1<<20)) // it takes a while to write
	for range 30 {
		if err := r.script(0, long); err != nil {
			t.Error(err)
			break
		}
	}
	cancel()
	others.Wait()
}

func TestWhatWasDoneIsOnTheDisksBeforeItCountsAsDone(t *testing.T) {
	b := plainBox(t)
	const file = "#cloud-config\nwrite_files: [{path: /etc/x, content: x}]\n"
	m, synced := b.machine(), 0
	b.synced = func() {
		synced++
		done, err := m.Done(cloudconfig.Digest([]byte(file)))
		if record := b.text("var/lib/itzo/cloud-init.json"); b.text("etc/x") != "x" || !errors.Is(err, ErrUnderWay) ||
			!strings.Contains(record, `"ended":false`) {
			t.Errorf("the file has %q, the record is %s, and it is said %v, %v", b.text("etc/x"), record, done, err)
		}
	}
	if failures := b.apply(m, file); len(failures) > 0 || synced != 1 {
		t.Errorf("failures %q; the disks were written %d times", failures, synced)
	}
}

func TestAFileIsNeverReadableByMoreThanItIsToBe(t *testing.T) {
	b := plainBox(t)
	if err := os.Mkdir(b.in("tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A pipe that nobody reads holds up who writes to it.
	content := bytes.Repeat([]byte("x"), 1<<20)
	for name, mode := range map[string]fs.FileMode{
		"secret": 0o600, "owners": 0o400, "nobodys": 0, "groups": 0o040, "all": 0o644, "suid": 0o755 | fs.ModeSetuid,
	} {
		r := &run{Machine: b.machine(), ctx: t.Context()}
		f := cloudconfig.File{Path: "/tmp/" + name, Content: content, Mode: mode, Append: true}
		if err := unix.Mkfifo(b.in(f.Path), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(b.in(f.Path), 0o666); err != nil { // whatever the umask is
			t.Fatal(err)
		}
		var wrote error
		var writing sync.WaitGroup
		writing.Go(func() { wrote = r.write(f, 0, 0) })
		pipe, err := os.Open(b.in(f.Path))
		if err != nil {
			t.Fatal(err)
		}
		one := make([]byte, 1)
		if _, err := io.ReadFull(pipe, one); err != nil {
			t.Fatal(err)
		}
		info, err := pipe.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got&^(mode&0o600) != 0 {
			t.Errorf("%s is to be %v, and is %v while it is written", name, mode, got)
		}
		if n, err := io.Copy(io.Discard, pipe); n != int64(len(content))-1 || err != nil {
			t.Errorf("%s: read %d bytes, %v", name, n, err)
		}
		writing.Wait()
		pipe.Close()
		if info, err = os.Stat(b.in(f.Path)); wrote != nil || err != nil || info.Mode()&^fs.ModeNamedPipe != mode {
			t.Errorf("%s is to be %v, and is %v: %v, %v", name, mode, info.Mode(), wrote, err)
		}
	}
	if err := (&run{Machine: b.machine(), ctx: t.Context()}).write(cloudconfig.File{Path: "/tmp/new", Mode: 0o400}, 0, 0); err != nil ||
		b.is("tmp/new") != "0:0 0400" {
		t.Errorf("a new file is %s: %v", b.is("tmp/new"), err)
	}
}

func TestNoSecretIsAnArgumentOfAProgram(t *testing.T) {
	b := newBox(t)
	const hash = "$6$saltsalt$0123456789abcdefghijklmnop"
	// In the place of programs that others would see, found before them.
	const first = "usr/local/sbin"
	if err := unix.Mount("", b.in(first), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"useradd", "usermod", "groupadd", "chpasswd"} {
		text := "#!/bin/sh\necho \"" + name + " [$*] <$(cat)>\" >>/noted\n"
		if err := os.WriteFile(b.in(first+"/"+name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(b.in("home/old"), 0o755); err != nil {
		t.Fatal(err)
	}
	failures := b.apply(b.machine(), "#cloud-config\nusers:\n- {name: old, gecos: Old, groups: [g], passwd: "+hash+", lock_passwd: true,"+
		" ssh_authorized_keys: [ssh-rsa KEY old]}\n- {name: new, passwd: "+hash+"}\nwrite_files: [{path: /etc/x, content: SECRET}]\n")
	want := []string{
		"groupadd [-- g] <>",
		"usermod [--append --groups g -- old] <>",
		"chpasswd [--encrypted] <old:" + hash + ">",
		"usermod [--lock -- old] <>",
		"useradd [--create-home -- new] <>",
		"chpasswd [--encrypted] <new:" + hash + ">",
	}
	if got := strings.Split(strings.TrimSpace(b.text("noted")), "\n"); !slices.Equal(got, want) || len(failures) > 0 {
		t.Errorf("programs were run as %q, want %q; failures %q", got, want, failures)
	}
}
