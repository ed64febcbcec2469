package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agentapi"
)

// world is a folder that looks like a machine's root to a Kernel.
type world struct {
	t      *testing.T
	root   string
	loaded []string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, root: t.TempDir()}
	for file, text := range map[string]string{
		"proc/sys/vm/max_map_count":               "65530\n",
		"proc/sys/net/ipv4/conf/eth0.100/forward": "0\n",
		"proc/sys/kernel/msgmax":                  "8192\n",
		"sys/module/bridge/refcnt":                "0\n",
	} {
		w.file(file, text)
	}
	return w
}

func (w *world) file(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) has(sysctl string) string {
	b, err := os.ReadFile(filepath.Join(w.root, "proc/sys", sysctl))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

// kernel is that of the machine. A module that is loaded brings a sysctl of its name.
func (w *world) kernel(shared bool) *Kernel {
	return New(Options{
		Root: w.root, StateDir: filepath.Join(w.root, "state"), RunDir: filepath.Join(w.root, "run"), Shared: shared,
		Load: func(_ context.Context, name string) error {
			if name == "missing" {
				return errors.New("no such module")
			}
			w.loaded = append(w.loaded, name)
			w.file("proc/sys/net/"+name, "0\n")
			return nil
		},
	})
}

func settings(all ...string) (s agentapi.KernelSettings) {
	for _, one := range all {
		name, value, _ := strings.Cut(one, "=")
		s.Sysctls = append(s.Sysctls, agentapi.Sysctl{Name: name, Value: value})
	}
	return s
}

func TestModulesAreLoadedAndThenSysctlsSet(t *testing.T) {
	w := newWorld(t)
	k := w.kernel(false)
	asked := settings("vm.max_map_count=262144", "net.ipv4.conf.eth0/100.forward=1", "net.br_netfilter=1")
	asked.Modules = []string{"bridge", "br_netfilter"}
	if err := k.Apply(t.Context(), asked); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.loaded, []string{"br_netfilter"}) {
		t.Errorf("loaded are %q: bridge was there", w.loaded)
	}
	for sysctl, want := range map[string]string{
		"vm/max_map_count": "262144\n", "net/ipv4/conf/eth0.100/forward": "1\n", "net/br_netfilter": "1\n", "kernel/msgmax": "8192\n",
	} {
		if got := w.has(sysctl); got != want {
			t.Errorf("%s is %q, want %q", sysctl, got, want)
		}
	}
}

func TestAMachineThatWasStartedAnewHasItsSettingsAgain(t *testing.T) {
	w := newWorld(t)
	if err := w.kernel(false).Restore(t.Context()); err != nil {
		t.Fatalf("without settings: %v", err)
	}
	if err := w.kernel(false).Apply(t.Context(), settings("vm.max_map_count=262144")); err != nil {
		t.Fatal(err)
	}
	w.file("proc/sys/vm/max_map_count", "300000\n") // a privileged pod may change it
	if err := w.kernel(false).Restore(t.Context()); err != nil || w.has("vm/max_map_count") != "300000\n" {
		t.Errorf("another agent on the machine that runs sets %q, %v", w.has("vm/max_map_count"), err)
	}
	if err := os.RemoveAll(filepath.Join(w.root, "run")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.kernel(false).Restore(t.Context()); err != nil || w.has("vm/max_map_count") != "262144\n" {
			t.Errorf("after a start it has %q, %v", w.has("vm/max_map_count"), err)
		}
	}
}

func TestWhatTheKernelRefusesIsNamedWithItsAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		asked  agentapi.KernelSettings
		shared bool
		want   string // "" for no refusal
	}{
		"no such sysctl":     {settings("vm.max_map_coun=1"), false, "set sysctl vm.max_map_coun=1: the kernel has no such sysctl"},
		"a folder":           {settings("vm=1"), false, "set sysctl vm=1: the kernel says: is a directory"},
		"no such module":     {agentapi.KernelSettings{Modules: []string{"missing"}}, false, "load module missing: no such module"},
		"a path":             {settings("../../etc/passwd=1"), false, `set sysctl "../../etc/passwd": not the name of a sysctl`},
		"a path of modules":  {agentapi.KernelSettings{Modules: []string{"../x"}}, false, `load module "../x": not the name of a module`},
		"two lines":          {settings("vm.max_map_count=1\n2"), false, `set sysctl vm.max_map_count="1\n2": not one line`},
		"the host's":         {settings("vm.max_map_count=262144"), true, "set sysctl vm.max_map_count=262144: this machine shares its kernel"},
		"the host's modules": {agentapi.KernelSettings{Modules: []string{"bridge"}}, true, "load module bridge: this machine shares its kernel"},
		"its own, of a kernel that others have too": {settings("kernel.msgmax=70000"), true, ""},
	} {
		w := newWorld(t)
		err := w.kernel(tc.shared).Apply(t.Context(), tc.asked)
		if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, ErrRefused) || !strings.HasPrefix(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
		if got := w.has("vm/max_map_count"); got != "65530\n" {
			t.Errorf("%s: vm.max_map_count is %q", name, got)
		}
		if err := w.kernel(tc.shared).Restore(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
