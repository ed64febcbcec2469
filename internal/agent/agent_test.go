package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/credentialproviders"
	"github.com/elotl/kip/internal/pki"
)

// patience is how long a test waits for a real process before it fails.
const patience = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// machine is a folder that looks like a machine's root to an agent, with a shell
// script in the place of the kubelet and containerd. The script writes what it
// does to the file "did".
type machine struct {
	t    *testing.T
	root string
	user string // user data

	mu       sync.Mutex
	prepared []agentapi.Config
	fail     error // of the next Prepare

	proxyHealth string // address of kube-proxy's health
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	// Nothing listens there: kube-proxy never gets ready.
	m := &machine{t: t, root: t.TempDir(), proxyHealth: "127.0.0.1:1"}
	authority, err := pki.New(time.Now)
	if err != nil {
		t.Fatal(err)
	}
	m.user = fmt.Sprintf("#cloud-config\nkip:\n  cellID: c-1\n  caHash: \"%s\"\n  token: \"%s\"\n", authority.Hash(), pki.NewToken().Reveal())
	m.file("user-data", m.user, 0o400)
	m.file("proc/self/status", "CapEff:\t0\n", 0o444)
	m.file("pause.tar", "an image", 0o444)
	m.file("itzo", `#!/bin/sh
did() { echo "$1" >>`+m.root+`/did; }
component() {
	trap "did '$1 stopped'; exit 0" TERM
	did "$1 started"
	while :; do sleep 0.01; done
}
case "$*" in
"--config=/etc/containerd/config.toml") component containerd ;;
"--root=`+m.root+`") component device-plugin ;;
"--kube-proxy-config=/var/lib/kube-proxy/config.yaml --config=/var/lib/kubelet/config.yaml "*) component kubelet ;;
import-images*) until [ -e `+m.root+`/serving ]; do sleep 0.01; done; did "imported ${2##*/}" ;;
stop-pods*) did "pods stopped"; echo "$*" >`+m.root+`/asked ;;
*) did "unknown: $*"; exit 1 ;;
esac
`, 0o755)
	m.file("nft", strings.ReplaceAll(nftScript, "ROOT", m.root), 0o755)
	return m
}

// nftScript keeps the rules that it was last told in the file "loaded", the guard of devices
// alone in "devices", and fails as long as there is a file "nft-fails".
const nftScript = `#!/bin/sh
cd ROOT
[ ! -e nft-fails ] || { echo "no such kernel" >&2; exit 1; }
case "$1" in
list) cat loaded; cat devices 2>/dev/null || : ;;
-f) # As a whole or not at all, also when it is killed.
	if grep -q kip_trial "$2"; then exit; fi # it is taken back
	to=devices # of a machine that has others now: its agent guards those alone
	if grep -q '^table inet' "$2"; then to=loaded; fi
	cp "$2" $to.$$ && mv $to.$$ $to ;;
*) echo "unknown: $*" >&2; exit 1 ;;
esac
`

func (m *machine) path(name string) string { return filepath.Join(m.root, name) }

func (m *machine) file(name, text string, mode os.FileMode) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.path(name), []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) did() []string {
	b, _ := os.ReadFile(m.path("did"))
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
}

func (m *machine) didIt(what string) func() bool {
	return func() bool { return slices.Contains(m.did(), what) }
}

// agent makes an agent on the machine.
func (m *machine) agent(init bool) *Agent {
	m.t.Helper()
	a, err := New(Options{
		Root: m.root, UserData: m.path("user-data"), StateDir: m.path("state"), RunDir: m.path("run"), LogDir: m.path("log"),
		PauseArchive: m.path("pause.tar"), Listen: "127.0.0.1:0", APIListen: "127.0.0.1:0", ProxyHealth: m.proxyHealth,
		Self: m.path("itzo"), Components: m.path("itzo"), Containerd: m.path("itzo"), Nft: m.path("nft"), Modprobe: m.path("modprobe"),
		Init: init, Version: "v1",
		Log:         slog.New(slog.DiscardHandler),
		SetHostname: func(name string) error { m.file("name", name, 0o644); return nil },
		Prepare: func(c agentapi.Config) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if err := m.fail; err != nil {
				m.fail = nil
				return err
			}
			m.prepared = append(m.prepared, c)
			return nil
		},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return a
}

// run runs an agent until the returned function is called, or the test ends.
func (m *machine) run(a *Agent) (stop func()) {
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	})
	m.t.Cleanup(stop)
	eventually(m.t, "the agent runs", func() bool { return put(m.t, a, "{}").Code == http.StatusBadRequest && running(a) })
	return stop
}

func running(a *Agent) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running != nil
}

func put(t *testing.T, a *Agent, body any) *httptest.ResponseRecorder {
	t.Helper()
	text, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		text = string(b)
	}
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPut, agentapi.PathConfig, strings.NewReader(text)))
	return w
}

func status(t *testing.T, a *Agent) (containerd, kubelet agentapi.Component) {
	t.Helper()
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, agentapi.PathStatus, nil))
	var s agentapi.Status
	if err := json.NewDecoder(w.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if s.CellID != "c-1" || s.Version != "v1" || len(s.Components) != 2 {
		t.Fatalf("status %+v", s)
	}
	return s.Components[0], s.Components[1]
}

func config() agentapi.Config {
	return agentapi.Config{
		NodeName: "kip-0", NodeIP: netip.MustParseAddr("10.110.0.2"), PodIP: netip.MustParseAddr("10.110.128.2"), ClusterDomain: "cluster.local",
		RegistryMirrors: map[string][]string{"docker.io": {"http://10.110.0.1:5000"}},
	}
}

func TestTheKubeletStartsOnceConfiguredAndContainerdHasItsImage(t *testing.T) {
	m := newMachine(t)
	a := m.agent(false)
	m.run(a)
	eventually(t, "containerd starts unasked", m.didIt("containerd started"))
	if _, k := status(t, a); k.PID != 0 || !strings.Contains(k.Waiting, "configuration from Kip") {
		t.Errorf("before the configuration: %+v", k)
	}
	if w := put(t, a, config()); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	eventually(t, "it says what the kubelet waits for", func() bool {
		_,
			k := status(t, a)
		return strings.Contains(k.Waiting, "pause image")
	})
	if slices.Contains(m.did(), "kubelet started") {
		t.Fatal("the kubelet started before containerd had the pause image")
	}
	m.file("serving", "", 0o444)
	eventually(t, "the kubelet starts", m.didIt("kubelet started"))
	did := m.did()
	if imported, started := slices.Index(did, "imported pause.tar"), slices.Index(did, "kubelet started"); imported < 0 || started < imported {
		t.Errorf("order: %q", did)
	}
	eventually(t, "both are reported to run", func() bool {
		c, k := status(t, a)
		return c.PID != 0 && k.PID != 0 && c.Waiting+k.Waiting == ""
	})
	for _, f := range []string{configs.ContainerdConfig, configs.CNIConfFile, configs.KubeletConfig, configs.KubeProxyConfig,
		configs.Kubeconfig, configs.RegistryDir + "/docker.io/hosts.toml", "run/bin/containerd-shim-runc-v2", "run/bin/itzo-cni"} {
		if _, err := os.Stat(m.path(f)); err != nil {
			t.Error(err)
		}
	}
	if b, err := os.ReadFile(m.path(configs.Kubeconfig)); err != nil || !strings.Contains(string(b), a.api.URL()) {
		t.Errorf("the kubeconfig does not lead to the agent: %s, %v", b, err)
	}
	if len(m.prepared) != 1 || m.prepared[0].PodIP != config().PodIP {
		t.Errorf("the network was prepared for %v", m.prepared)
	}
}

func TestTheKubeletAsksKipForWhatPullsTheCloudsImages(t *testing.T) {
	m := newMachine(t)
	a := m.agent(false)
	m.run(a)
	m.file("serving", "", 0o444)
	if w := put(t, a, config()); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if _, err := os.Stat(m.path(configs.ImageProviders)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where the cloud has no images, there is a file: %v", err)
	}
	c := config()
	c.ImagesOfCloud = []string{"*.registry.example.com"}
	if w := put(t, a, c); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if b, err := os.ReadFile(m.path(configs.ImageProviders)); err != nil || !strings.Contains(string(b), a.api.URL()) ||
		!strings.Contains(string(b), c.ImagesOfCloud[0]) {
		t.Errorf("%s, %v", b, err)
	}
	// The kubelet looks the plugin up by its name.
	link := filepath.Join(a.providerDir(), configs.ImagePlugin)
	if to, err := os.Readlink(link); err != nil || to != m.path("itzo") {
		t.Errorf("%s leads to %q, %v", link, to, err)
	}
	if args := configs.KubeletArgs(c, a.providers.dir); !slices.Contains(args, "--image-credential-provider-bin-dir="+filepath.Dir(link)) {
		t.Errorf("%q", args)
	}
}

// A kubelet does not start with a credential provider that is not valid, or whose program is missing.
func TestCredentialProvidersThatWouldKeepTheKubeletFromStartingAreLeftOutAndKipIsTold(t *testing.T) {
	m := newMachine(t)
	a := m.agent(false)
	m.run(a)
	m.file("serving", "", 0o444)
	m.file(credentialproviders.Dir+"/has", "#!/bin/sh\n", 0o755)
	m.file(credentialproviders.Dir+"/text", "#!/bin/sh\n", 0o644)
	c := config()
	for _, name := range []string{"has", "text", "lacks"} {
		c.CredentialProviders = append(c.CredentialProviders, credentialproviders.Provider{Name: name, APIVersion: credentialproviders.V1,
			MatchImages: []string{"*.example.com"}, Env: []credentialproviders.EnvVar{{Name: "WORD", Value: "sesame"}}})
	}
	c.CredentialProviders = append(c.CredentialProviders, credentialproviders.Provider{Name: "../x", APIVersion: credentialproviders.V1,
		MatchImages: []string{"*.example.com"}})
	w := put(t, a, c)
	var told agentapi.Configured
	if err := json.Unmarshal(w.Body.Bytes(), &told); w.Code != http.StatusOK || err != nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	text, lacks := m.path(credentialproviders.Dir+"/text"), m.path(credentialproviders.Dir+"/lacks")
	want := map[string]string{"has": "", "text": text + " is not executable", "lacks": "there is no file " + lacks,
		"../x": `name: "../x" is not valid: want the name of a file in ` + credentialproviders.Dir + ", of letters, digits and . _ -"}
	if !maps.Equal(told.CredentialProviders, want) {
		t.Errorf("Kip is told %q, want %q", told.CredentialProviders, want)
	}
	file, err := os.ReadFile(m.path(configs.ImageProviders))
	if asks := string(file); err != nil || !strings.Contains(asks, `"has"`) || strings.Contains(asks, `"text"`) ||
		strings.Contains(asks, `"lacks"`) {
		t.Errorf("the kubelet is to ask %s, %v", file, err)
	}
	if info, err := os.Stat(m.path(configs.ImageProviders)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its file: %v, %v", info, err)
	}
	if to, err := os.Readlink(filepath.Join(a.providerDir(), "has")); err != nil || to != m.path(credentialproviders.Dir+"/has") {
		t.Errorf("the kubelet is to run %q, %v", to, err)
	}
	if args := strings.Join(configs.KubeletArgs(c, a.providers.dir), " "); strings.Contains(args, "sesame") {
		t.Errorf("the kubelet's arguments have what is in the environment: %s", args)
	}

	c.CredentialProviders = c.CredentialProviders[1:]
	if w := put(t, a, c); w.Code != http.StatusOK || a.providers.dir != "" {
		t.Errorf("with none that runs the kubelet is to ask those in %q: %d %s", a.providers.dir, w.Code, w.Body)
	}
}

// A program may come after Kip has connected, as by a command of the cloud-init file that runs on; and the kubelet does not start again
// with one that has gone.
func TestTheAgentLooksForTheProgramsOfCredentialProvidersWheneverKipConfiguresIt(t *testing.T) {
	m := newMachine(t)
	m.file("serving", "", 0o444)
	a := m.agent(false)
	m.run(a)
	c := config()
	c.CredentialProviders = []credentialproviders.Provider{{Name: "late", APIVersion: credentialproviders.V1,
		MatchImages: []string{"a.example"}}}
	kubelet := func() (pid int) { _, k := status(t, a); return k.PID }
	last := 0
	configured := func(when string, restarts, has bool) {
		t.Helper()
		w := put(t, a, c)
		var told agentapi.Configured
		if err := json.Unmarshal(w.Body.Bytes(), &told); w.Code != http.StatusOK || err != nil {
			t.Fatalf("%s: %d %s: %v", when, w.Code, w.Body, err)
		}
		if told.CredentialProviders["late"] == "" != has || (a.providers.dir != "") != has {
			t.Errorf("%s: Kip is told %q, and the kubelet asks those in %q", when, told.CredentialProviders, a.providers.dir)
		}
		eventually(t, "the kubelet runs", func() bool { return kubelet() != 0 })
		if pid := kubelet(); (pid != last) != restarts {
			t.Errorf("%s: the kubelet has PID %d, before %d", when, pid, last)
		}
		last = kubelet()
	}
	configured("without the program", true, false)
	configured("still without it", false, false)
	m.file(credentialproviders.Dir+"/late", "#!/bin/sh\n", 0o755)
	configured("with it", true, true)
	configured("still with it", false, true)
	if err := os.Remove(m.path(credentialproviders.Dir + "/late")); err != nil {
		t.Fatal(err)
	}
	configured("without it again", true, false)
}

func TestAnEqualConfigurationChangesNothingAndAnotherOneRestartsTheKubeletOnly(t *testing.T) {
	m := newMachine(t)
	m.file("serving", "", 0o444)
	a := m.agent(false)
	m.run(a)
	kubelet := func() (pid int) { _, k := status(t, a); return k.PID }
	put(t, a, config())
	eventually(t, "both run", func() bool { c, k := status(t, a); return c.PID != 0 && k.PID != 0 })
	containerd, _ := status(t, a)
	first := kubelet()
	if w := put(t, a, config()); w.Code != http.StatusOK || kubelet() != first || len(m.prepared) != 1 {
		t.Errorf("an equal one: %d, pid %d was %d, network prepared %d times", w.Code, kubelet(), first, len(m.prepared))
	}
	other := config()
	other.ReservedMemoryBytes, other.RegistryMirrors = 1<<20, nil
	if w := put(t, a, other); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	eventually(t, "another kubelet", func() bool { pid := kubelet(); return pid != 0 && pid != first })
	if c, _ := status(t, a); c.PID != containerd.PID {
		t.Error("containerd was restarted")
	}
	if _, err := os.Stat(m.path(configs.RegistryDir + "/docker.io/hosts.toml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a mirror of the earlier configuration is left: %v", err)
	}
}

// What the machine's start was is told with the first configuration, and the same with each
// that follows.
func TestTheAgentTellsHowItsMachineStarted(t *testing.T) {
	m := newMachine(t)
	a := m.agent(false)
	m.run(a)
	told := func() (c agentapi.Configured) {
		t.Helper()
		w := put(t, a, config())
		if err := json.NewDecoder(w.Body).Decode(&c); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d, %v", w.Code, err)
		}
		return c
	}
	if got := told().Boot; got != (agentapi.Boot{}) {
		t.Errorf("a machine without a kernel of its own: %+v", got)
	}
	a.o.Boot = agentapi.Boot{Kernel: 1, UserSpace: 2, Network: 3}
	for _, at := range []time.Duration{4, 5} {
		a.o.SinceBoot = func() time.Duration { return at }
		if got := told().Boot; got != (agentapi.Boot{Kernel: 1, UserSpace: 2, Network: 3, Joined: 4}) || !got.Plausible() {
			t.Errorf("after %d: %+v", at, got)
		}
	}
}

func TestARegistryFileOfSomebodyElseIsKept(t *testing.T) {
	m := newMachine(t)
	a := m.agent(false)
	m.run(a)
	mine := configs.RegistryDir + "/quay.io/hosts.toml"
	m.file(mine, "server = \"https://quay.io\"\n", 0o644)
	if w := put(t, a, config()); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, f := range []string{mine, configs.RegistryDir + "/docker.io/hosts.toml"} {
		if _, err := os.Stat(m.path(f)); err != nil {
			t.Error(err)
		}
	}
}

func TestARestartedAgentContinuesWithoutKip(t *testing.T) {
	m := newMachine(t)
	m.file("serving", "", 0o444)
	a := m.agent(false)
	stop := m.run(a)
	put(t, a, config())
	eventually(t, "the kubelet runs", m.didIt("kubelet started"))
	stop()
	if err := os.Remove(m.path("did")); err != nil {
		t.Fatal(err)
	}
	b := m.agent(false)
	m.run(b)
	eventually(t, "the kubelet runs again", func() bool { _, k := status(t, b); return k.PID != 0 })
	_, before := status(t, b)
	if w := put(t, b, config()); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if _, after := status(t, b); after.PID != before.PID {
		t.Error("Kip's equal configuration restarted the kubelet")
	}
}

// passed is a clock by which so much has passed since any time.
type passed struct {
	clock.RealClock
	since time.Duration
}

func (p passed) Since(time.Time) time.Duration { return p.since }

func TestThePartsStopInOrder(t *testing.T) {
	byKubelet := []string{"pods ended", "told", "kubelet stopped", "pods stopped", "containerd stopped"}
	for _, c := range []struct {
		name string
		init bool
		// hears says that the kubelet hears of the end, and ends the pods; took is how long that takes.
		hears bool
		took  time.Duration
		want  []string
		grace string // of what is left
	}{
		{"by the kubelet", true, true, 2 * time.Second, byKubelet, "10s"},
		{"late", true, true, 15 * time.Second, byKubelet, "3s"},
		{"by a kubelet that does not hear of it", true, false, 0, []string{"kubelet stopped", "pods stopped", "containerd stopped"}, "12s"},
		{"on an ordinary machine the pod outlives the agent", false, false, 0, []string{"kubelet stopped", "containerd stopped"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.file("serving", "", 0o444)
			a := m.agent(c.init)
			a.o.Clock = passed{since: c.took}
			a.told = func(context.Context) error { return m.does("told") }
			stop := m.run(a)
			put(t, a, config())
			eventually(t, "both run", func() bool {
				return m.didIt("kubelet started")() && m.didIt("containerd started")()
			})
			before := len(m.did())
			if c.hears {
				m.delay(a)
			}
			stop()
			if got := m.did()[before:]; !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
			asked, err := os.ReadFile(m.path("asked"))
			if c.grace == "" && !errors.Is(err, fs.ErrNotExist) ||
				c.grace != "" && !strings.HasPrefix(string(asked), "stop-pods --grace="+c.grace+" --timeout=") {
				t.Errorf("what is left is stopped by %q (%v), want a grace of %s", asked, err, c.grace)
			}
			if put(t, a, config()).Code != http.StatusServiceUnavailable {
				t.Error("a stopped agent takes a configuration")
			}
		})
	}
}

// The end has to be over before Google Cloud cuts the power of a spot machine.
func TestAMachinesEndFitsIntoTheTimeThatCloudsGive(t *testing.T) {
	const given = 30 * time.Second
	if hung := podGrace + pluginGrace + lastWords + stopTimeout + leftGrace + killTime + stopTimeout; hung >= given {
		t.Errorf("with a kubelet and a containerd that hang it takes %v, want less than %v", hung, given)
	}
}

// delay delays the machine's end as its kubelet does, until the pods have ended.
func (m *machine) delay(a *Agent) *dbus.Conn {
	m.t.Helper()
	c, err := dbus.Connect(a.logind.Address())
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = c.Close() })
	var lock dbus.UnixFD
	call := c.Object("org.freedesktop.login1", "/org/freedesktop/login1").Call("org.freedesktop.login1.Manager.Inhibit", 0,
		"shutdown", "kubelet", "pods end first", "delay")
	if err := call.Store(&lock); err != nil {
		m.t.Fatal(err)
	}
	if err := c.AddMatchSignal(dbus.WithMatchMember("PrepareForShutdown")); err != nil {
		m.t.Fatal(err)
	}
	said := make(chan *dbus.Signal, 1)
	c.Signal(said)
	ended := make(chan error, 1)
	go func() {
		<-said
		ended <- errors.Join(m.does("pods ended"), unix.Close(int(lock)))
	}()
	m.t.Cleanup(func() {
		if err := <-ended; err != nil {
			m.t.Error(err)
		}
	})
	return c
}

// does notes what was done.
func (m *machine) does(what string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := os.OpenFile(m.path("did"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(what + "\n")
	return errors.Join(err, f.Close())
}

// The kubelet that would tell Kip how the pod ended crashes instead: nothing is to be heard any more.
func TestAKubeletThatIsGoneIsNotWaitedFor(t *testing.T) {
	m := newMachine(t)
	m.file("serving", "", 0o444)
	a := m.agent(true)
	stop := m.run(a)
	put(t, a, config())
	eventually(t, "the kubelet runs", m.didIt("kubelet started"))
	kubelet := m.delay(a)
	var why error
	a.told = func(ctx context.Context) error {
		if err := kubelet.Close(); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		why = context.Cause(ctx)
		return why
	}
	stop()
	if why == nil || why.Error() != "the kubelet has ended" {
		t.Errorf("it is waited for until %v", why)
	}
}

func TestABadConfigurationIsRefusedAndTheOldStays(t *testing.T) {
	m := newMachine(t)
	m.file("serving", "", 0o444)
	a := m.agent(false)
	m.run(a)
	put(t, a, config())
	eventually(t, "the kubelet runs", func() bool { _, k := status(t, a); return k.PID != 0 })
	_, before := status(t, a)
	bad := config()
	bad.NodeName = "Kip 0"
	for body, want := range map[any]string{
		`{"nodeName": 7}`:        "not valid JSON",
		`{} {}`:                  "not one JSON object",
		strings.Repeat("x", 100): "not valid JSON",
		"":                       "not valid JSON",
	} {
		if w := put(t, a, body); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	}
	if w := put(t, a, bad); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `nodeName: "Kip 0"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if _, after := status(t, a); after.PID != before.PID {
		t.Error("the kubelet was restarted")
	}
}

func TestAFailedConfigurationIsTriedAgainByTheNextRequest(t *testing.T) {
	m := newMachine(t)
	m.fail = errors.New("no such interface")
	m.file("serving", "", 0o444)
	a := m.agent(false)
	m.run(a)
	if w := put(t, a, config()); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "no such interface") {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w := put(t, a, config()); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	eventually(t, "the kubelet runs", m.didIt("kubelet started"))
}

// As on a disk that is full, or broken. Whoever asks is told, and may ask again.
func TestAConfigurationThatCannotBeStoredIsToldAndStartsNothing(t *testing.T) {
	m := newMachine(t)
	m.file("serving", "", 0o444)
	a := m.agent(false)
	m.run(a)
	if err := os.MkdirAll(filepath.Join(a.configFile(), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if w := put(t, a, config()); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "store the configuration: ") {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if did := m.did(); slices.Contains(did, "kubelet started") {
		t.Errorf("it did %q", did)
	}
	if err := os.RemoveAll(a.configFile()); err != nil {
		t.Fatal(err)
	}
	if w := put(t, a, config()); w.Code != http.StatusOK {
		t.Fatalf("when there is room: %d %s", w.Code, w.Body)
	}
	eventually(t, "the kubelet runs", m.didIt("kubelet started"))
}

func TestWithoutUserDataThereIsNoAgent(t *testing.T) {
	m := newMachine(t)
	_, err := New(Options{Root: m.root, UserData: m.path("none"), Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
