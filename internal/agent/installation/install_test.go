package installation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// linux is a folder that looks like one with systemd, and from one with the agent's files.
type linux struct {
	*testing.T
	root, from string
	said       []string
	systemctl  []string
}

const release = "6.12.0"

func newLinux(t *testing.T) *linux {
	l := &linux{T: t, root: t.TempDir(), from: t.TempDir()}
	for _, p := range programs {
		l.file("usr/bin/"+p.name, "")
	}
	var modules strings.Builder
	for _, f := range features[1:] {
		fmt.Fprintf(&modules, "kernel/net/%s.ko.xz: kernel/net/x.ko\n", strings.ReplaceAll(f.module, "_", "-"))
	}
	l.file("lib/modules/"+release+"/modules.dep", modules.String())
	l.file("lib/modules/"+release+"/modules.builtin", "kernel/fs/"+features[0].module+".ko\n")
	l.file("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n")
	l.file("etc/resolv.conf", "nameserver 10.0.0.2\n")
	for _, s := range sources {
		l.brings(s.name, s.name+" 1")
	}
	return l
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (l *linux) file(name, text string)   { l.Helper(); write(l.T, filepath.Join(l.root, name), text) }
func (l *linux) brings(name, text string) { l.Helper(); write(l.T, filepath.Join(l.from, name), text) }

func (l *linux) remove(names ...string) {
	l.Helper()
	for _, name := range names {
		if err := os.RemoveAll(name); err != nil {
			l.Fatal(err)
		}
	}
}

// options are of a Linux that runs.
func (l *linux) options() Options {
	return Options{
		Root:     l.root,
		From:     l.from,
		UserData: "cloud",
		Kernel:   release,
		Say:      func(format string, args ...any) { l.said = append(l.said, fmt.Sprintf(format, args...)) },
		Systemctl: func(args ...string) error {
			l.systemctl = append(l.systemctl, strings.Join(args, " "))
			return nil
		},
	}
}

func (l *linux) install(o Options) {
	l.Helper()
	if found, err := o.Install(); err != nil {
		l.Fatalf("%v: %v", err, found)
	}
}

// tree is all that is below root, by path.
func (l *linux) tree() map[string]string {
	l.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(l.root, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(l.root, p)
		if err != nil {
			return err
		}
		if d.Type() == os.ModeSymlink {
			tree[name], err = os.Readlink(p)
			return err
		}
		b, err := os.ReadFile(p)
		tree[name] = string(b)
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	return tree
}

func (l *linux) mode(name string) os.FileMode {
	l.Helper()
	info, err := os.Stat(filepath.Join(l.root, name))
	if err != nil {
		l.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestTheAgentIsInstalledOnce(t *testing.T) {
	l := newLinux(t)
	before := l.tree()
	l.install(l.options())
	tree := l.tree()
	for _, s := range sources {
		want := s.name + " 1"
		if s.name == "runc" {
			want = "" // the Linux has its own
		}
		if tree[s.to] != want || want != "" && l.mode(s.to) != s.mode {
			t.Errorf("/%s is %q", s.to, tree[s.to])
		}
	}
	if tree[enabled] != "../itzo.service" || !strings.Contains(tree[unitFile], "ExecStart=/usr/local/bin/itzo cell --user-data=cloud\n") {
		t.Errorf("the link leads to %q, the unit is %s", tree[enabled], tree[unitFile])
	}
	if !slices.Equal(l.systemctl, []string{"daemon-reload"}) {
		t.Errorf("systemd was asked %v", l.systemctl)
	}
	said := len(l.said)
	l.install(l.options())
	if len(l.said) != said || len(l.systemctl) != 1 {
		t.Errorf("a second time it did %v, and asked systemd %v", l.said[said:], l.systemctl)
	}
	l.file("var/lib/itzo/identity/key", "secret")
	if err := l.options().Uninstall(); err != nil {
		t.Fatal(err)
	}
	if after := l.tree(); !equal(before, after) {
		t.Errorf("after it was removed there is %v, before %v", after, before)
	}
	if err := l.options().Uninstall(); err != nil || !strings.HasPrefix(l.said[len(l.said)-1], "nothing is installed") {
		t.Errorf("removed a second time: %v, %v", err, l.said)
	}
	if !slices.Equal(l.systemctl, []string{"daemon-reload", "stop itzo.service", "daemon-reload"}) {
		t.Errorf("systemd was asked %v", l.systemctl)
	}
}

// Nothing else on the machine takes the pod's address, which EC2 tells the machine as one of its own. What somebody has
// put in the same place stops the installation before it changes anything.
func TestOtherProgramsLeaveThePodsAddressAlone(t *testing.T) {
	l := newLinux(t)
	l.install(l.options())
	tree := l.tree()
	var cloud struct {
		Datasource struct {
			Ec2 map[string]any `json:"Ec2"`
		} `json:"datasource"`
	}
	if err := yaml.UnmarshalStrict([]byte(tree["etc/cloud/cloud.cfg.d/99-kip-addresses.cfg"]), &cloud); err != nil {
		t.Fatal(err)
	}
	if apply, is := cloud.Datasource.Ec2["apply_full_imds_network_config"]; !is || apply != false {
		t.Errorf("cloud-init is told %v", cloud)
	}
	for _, unit := range []string{"policy-routes@.service", "refresh-policy-routes@.service", "refresh-policy-routes@.timer"} {
		if to := tree["etc/systemd/system/"+unit]; to != "/dev/null" {
			t.Errorf("%s leads to %q", unit, to)
		}
	}
	own := newLinux(t)
	own.file("etc/systemd/system/policy-routes@.service", "[Service]\n")
	before := own.tree()
	_, err := own.options().Install()
	if err == nil || !strings.Contains(err.Error(), "/etc/systemd/system/policy-routes@.service") || !equal(before, own.tree()) {
		t.Errorf("beside a unit of somebody's own: %v", err)
	}
}

func equal(a, b map[string]string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// A newer agent replaces the older, and takes away what it no longer has; what somebody has
// changed is neither lost nor started.
func TestANewerAgentReplacesTheOlderAndNobodyElses(t *testing.T) {
	l := newLinux(t)
	l.install(l.options())
	l.brings("itzo", "itzo 2")
	l.remove(filepath.Join(l.from, "pause.tar"))
	o := l.options()
	o.UserData = "/etc/kip/user-data"
	l.install(o)
	tree := l.tree()
	asked := strings.Contains(tree[unitFile], "--user-data=/etc/kip/user-data\n")
	if tree["usr/local/bin/itzo"] != "itzo 2" || !asked || tree["usr/share/kip/pause.tar"] != "" {
		t.Errorf("it is %v", tree)
	}
	l.file(unitFile, "changed")
	l.brings("itzo", "itzo 3")
	_, err := l.options().Install()
	if err == nil || !strings.Contains(err.Error(), "/"+unitFile+" is there, and not as this program has written it") {
		t.Errorf("over a changed unit: %v", err)
	}
	if tree := l.tree(); tree[unitFile] != "changed" || tree["usr/local/bin/itzo"] != "itzo 2" {
		t.Errorf("after that it is %v", tree)
	}
	err = l.options().Uninstall()
	if err != nil || l.tree()[unitFile] != "changed" || !slices.Contains(l.said, "left /"+unitFile+", which was changed") {
		t.Errorf("%v, said %v", err, l.said)
	}
}

// The agent in place, asked to install, changes what it is told and takes away nothing: what it
// brought along lies where it was put, not beside it.
func TestTheAgentInPlaceInstallsItself(t *testing.T) {
	l := newLinux(t)
	l.remove(l.root + "/usr/bin/runc")
	l.install(l.options())
	before := l.tree()
	o := l.options()
	o.From = filepath.Join(l.root, binDir)
	for _, data := range []string{"cloud", "ec2"} {
		o.UserData = data
		l.install(o)
		after := l.tree()
		for _, s := range sources {
			if after[s.to] != before[s.to] {
				t.Errorf("with user data from %s /%s is %q", data, s.to, after[s.to])
			}
		}
		if !strings.Contains(after[unitFile], "--user-data="+data+"\n") {
			t.Errorf("the unit is %s", after[unitFile])
		}
	}
}

// A removal that was cut off goes on, though systemd knows the unit no more.
func TestARemovalThatWasCutOffGoesOn(t *testing.T) {
	l := newLinux(t)
	before := l.tree()
	l.install(l.options())
	l.file("var/lib/itzo/identity/key", "secret")
	o := l.options()
	o.Say = func(format string, args ...any) {
		if fmt.Sprintf(format, args...) == "removed /"+unitFile {
			panic("cut off")
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = o.Uninstall()
	}()
	if l.tree()[unitFile] != "" {
		t.Fatal("it was cut off before the unit was removed")
	}
	o = l.options()
	o.Systemctl = func(args ...string) error {
		if args[0] == "stop" {
			return errors.New("Unit itzo.service not loaded")
		}
		return nil
	}
	if err := o.Uninstall(); err != nil || !equal(before, l.tree()) {
		t.Errorf("the next: %v, there is %v", err, l.tree())
	}
	l.install(l.options())
	if err := o.Uninstall(); err == nil || l.tree()["usr/local/bin/itzo"] == "" {
		t.Errorf("an agent that does not stop is removed: %v", err)
	}
}

// Ended at any step, it is done by the next.
func TestAnInstallationThatWasCutOffGoesOn(t *testing.T) {
	whole := newLinux(t)
	whole.install(whole.options())
	for n := range len(whole.said) {
		l := newLinux(t)
		l.install(l.options())
		before := l.tree()
		for _, s := range sources {
			l.brings(s.name, s.name+" 2")
		}
		o, cut := l.options(), fmt.Errorf("cut off at step %d", n)
		done := 0
		o.Say = func(string, ...any) {
			if done++; done > n {
				panic(cut)
			}
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = o.Install()
		}()
		for _, s := range sources {
			l.brings(s.name, s.name+" 3")
		}
		l.install(l.options())
		if tree := l.tree(); tree["usr/local/bin/itzo-components"] != "itzo-components 3" || equal(before, tree) {
			t.Errorf("%v: it is %v", cut, tree)
		}
		if err := l.options().Uninstall(); err != nil || l.tree()["usr/local/bin/itzo"] != "" || slices.ContainsFunc(l.said, func(s string) bool {
			return strings.HasPrefix(s, "left")
		}) {
			t.Errorf("%v: removed: %v, %v", cut, err, l.said)
		}
	}
}

func TestWhatALinuxLacksIsNamed(t *testing.T) {
	for _, tc := range []struct {
		name     string
		do       func(l *linux, o *Options)
		want     string // of the finding
		required bool
	}{
		{"no nft", func(l *linux, _ *Options) { l.remove(l.root + "/usr/bin/nft") }, "nft is missing", true},
		{"no runc anywhere", func(l *linux, _ *Options) { l.remove(l.root+"/usr/bin/runc", l.from+"/runc") }, "runc is missing", true},
		{"no systemd", func(l *linux, _ *Options) { l.remove(l.root + "/usr/bin/systemctl") }, "systemctl is missing", true},
		{"no agent", func(l *linux, _ *Options) { l.remove(l.from + "/itzo") }, "itzo is missing", true},
		{"no kubelet", func(l *linux, _ *Options) { l.remove(l.from + "/itzo-components") }, "the kubelet (itzo-components) is missing", true},
		{"no containerd", func(l *linux, _ *Options) { l.remove(l.from + "/itzo-containerd") }, "containerd (itzo-containerd) is missing", true},
		{"no pause image", func(l *linux, _ *Options) { l.remove(l.from + "/pause.tar") }, "pause.tar is missing", false},
		{"no NFS", func(l *linux, _ *Options) { l.remove(l.root + "/usr/bin/mount.nfs") }, "mount.nfs is missing", false},
		{
			"a kernel without overlay", func(l *linux, _ *Options) { l.file("lib/modules/"+release+"/modules.builtin", "") },
			"kernel 6.12.0 has no overlay", true,
		},
		{
			"a second kernel of an image", func(l *linux, o *Options) {
				o.Kernel = ""
				l.file("lib/modules/5.4/modules.builtin", "")
			}, "kernel 5.4 has no nf_tables", true,
		},
		{"a kernel that is not here", func(_ *linux, o *Options) { o.Kernel = "7.0" }, "no modules of kernel 7.0 are below /lib/modules", false},
		{"cgroup v1", func(l *linux, _ *Options) { l.remove(l.root + "/sys/fs/cgroup/cgroup.controllers") }, "cgroup v2 is not there", true},
		{
			"no memory controller", func(l *linux, _ *Options) { l.file("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n") },
			"cgroup v2 has no controller memory", true,
		},
		{
			"a containerd of its own", func(l *linux, _ *Options) {
				l.file("etc/systemd/system/multi-user.target.wants/containerd.service", "")
			},
			"containerd.service is enabled", true,
		},
		{
			"systemd-resolved", func(l *linux, _ *Options) { l.file("etc/resolv.conf", "nameserver 127.0.0.53\n") },
			"/etc/resolv.conf names a server on loopback", false,
		},
	} {
		l := newLinux(t)
		o := l.options()
		tc.do(l, &o)
		before := l.tree()
		checked, checkErr := o.Check()
		if !equal(l.tree(), before) {
			t.Errorf("%s: the check has changed something", tc.name)
		}
		found, err := o.Install()
		n := slices.IndexFunc(found, func(f Finding) bool { return f.What == tc.want })
		same := fmt.Sprint(checked, checkErr) == fmt.Sprint(found, err)
		if n < 0 || found[n].Required != tc.required || errors.Is(err, ErrLacking) != tc.required || !same {
			t.Errorf("%s: %v, found %v", tc.name, err, found)
		}
		if changed := !equal(l.tree(), before); changed == tc.required {
			t.Errorf("%s: installed: %v", tc.name, changed)
		}
	}
}

// An image is installed into as it lies there: nothing of what runs is looked at or asked.
func TestAnImageIsInstalledIntoWithoutRunningIt(t *testing.T) {
	l := newLinux(t)
	l.remove(l.root+"/sys", l.root+"/usr/bin/runc", l.root+"/etc/resolv.conf", l.from+"/itzo-components", l.from+"/itzo-containerd")
	l.remove(l.root + "/usr/bin/nft")
	// As absolute links of an image are: they lead nowhere here, or out of it.
	for link, to := range map[string]string{
		"/etc/resolv.conf": "/run/systemd/resolve/stub-resolv.conf",
		"/usr/bin/nft":     "/etc/alternatives/nft",
	} {
		if err := os.Symlink(to, l.root+link); err != nil {
			t.Fatal(err)
		}
	}
	o := l.options()
	o.Kernel, o.Systemctl, o.Whole = "", nil, true
	l.install(o)
	tree := l.tree()
	if tree["usr/local/bin/runc"] != "runc 1" || tree["usr/local/bin/itzo"] != "itzo 1" || tree["usr/local/bin/itzo-components"] != "" {
		t.Errorf("it is %v", tree)
	}
	if err := o.Uninstall(); err != nil || l.tree()["usr/local/bin/itzo"] != "" {
		t.Errorf("removed: %v", err)
	}
}

func TestNothingIsWrittenOutsideTheImage(t *testing.T) {
	l := newLinux(t)
	outside := t.TempDir()
	if err := os.MkdirAll(l.root+"/usr/local", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, l.root+"/usr/local/bin"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.options().Install(); err == nil {
		t.Error("it was installed through a link that leads out of the image")
	}
	if there, err := os.ReadDir(outside); err != nil || len(there) > 0 {
		t.Errorf("outside is %v, %v", there, err)
	}
}

func TestTheUnitTakesNoOtherWords(t *testing.T) {
	for _, data := range []string{"", "cloud --listen=:1", "x\nExecStartPre=/bin/sh", "%h/x", "$X"} {
		l := newLinux(t)
		o := l.options()
		o.UserData = data
		if _, err := o.Install(); err == nil || l.tree()[unitFile] != "" {
			t.Errorf("%q: %v", data, err)
		}
	}
}
