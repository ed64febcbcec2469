package machine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agent/console"
	"github.com/elotl/kip/internal/agent/dhcp"
	"github.com/elotl/kip/internal/agent/userdata"
	"github.com/elotl/kip/internal/agentapi"
)

func lifeBelow(t *testing.T) life {
	t.Helper()
	dir := t.TempDir()
	return life{pods: filepath.Join(dir, "kubelet/pods"), mark: filepath.Join(dir, "itzo/mark")}
}

func TestAPodHasOneLife(t *testing.T) {
	l := lifeBelow(t)
	for range 2 { // a machine that was stopped before a pod came goes on
		if err := l.check(); err != nil {
			t.Fatal(err)
		}
		w, err := l.watch()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		w.run(ctx, console.New(os.Stderr))
	}
	if err := l.check(); err != nil {
		t.Fatalf("no pod was there: %v", err)
	}
	w, err := l.watch()
	if err != nil {
		t.Fatal(err)
	}
	pod := filepath.Join(l.pods, "0a1b")
	if err := os.Mkdir(pod, 0o750); err != nil {
		t.Fatal(err)
	}
	w.run(context.Background(), console.New(os.Stderr)) // returns once it has the mark
	if _, err := os.Stat(l.mark); err != nil {
		t.Errorf("a pod came, and the mark: %v", err)
	}
	// Either of both is enough: the kubelet removes its folder after the pod.
	if err := os.Remove(pod); err != nil {
		t.Fatal(err)
	}
	if err := l.check(); !errors.Is(err, errSecondLife) {
		t.Errorf("with the mark: %v", err)
	}
	if err := errors.Join(os.Remove(l.mark), os.Mkdir(pod, 0o750)); err != nil {
		t.Fatal(err)
	}
	if err := l.check(); !errors.Is(err, errSecondLife) {
		t.Errorf("with the pod's folder: %v", err)
	}
}

func TestAMarkThatCannotBeWrittenIsTold(t *testing.T) {
	l := lifeBelow(t)
	w, err := l.watch()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(l.mark, 0o755), os.Mkdir(filepath.Join(l.pods, "0a1b"), 0o750)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w.run(context.Background(), console.New(&out))
	if !strings.Contains(out.String(), "mark that a pod is here") {
		t.Errorf("the console has %q", out.String())
	}
}

func TestSettingsAreWrittenEachByItself(t *testing.T) {
	dir := t.TempDir()
	for _, s := range settings[1:] {
		p := filepath.Join(dir, s.Key)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		if s.Why == "" {
			t.Errorf("nobody says why %s is set", s.Key)
		}
	}
	if err := set(dir, settings); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("one that this kernel does not have: %v", err)
	}
	last := settings[len(settings)-1]
	if b, err := os.ReadFile(filepath.Join(dir, last.Key)); err != nil || string(b) != last.Value {
		t.Errorf("%s is %q (%v), want %q", last.Key, b, err, last.Value)
	}
}

func TestWhatTheKernelIsGivenIsToldWithAReasonEach(t *testing.T) {
	all := Settings()
	if len(all) != len(settings)+1 || all[len(all)-1].Key != minFree {
		t.Errorf("%d settings are told, want %d and %s", len(all), len(settings), minFree)
	}
	for _, s := range all {
		if s.Value == "" || s.Why == "" {
			t.Errorf("%s has the value %q, since %q", s.Key, s.Value, s.Why)
		}
	}
}

func TestWhatTheAgentStartsIsEndedLast(t *testing.T) {
	proc := t.TempDir()
	p := filepath.Join(proc, "self/oom_score_adj")
	if err := errors.Join(os.Mkdir(filepath.Dir(p), 0o755), os.WriteFile(p, []byte("0\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	// None of the settings is there, and this one is written all the same.
	if err := settle(proc); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without settings: %v", err)
	}
	if b, err := os.ReadFile(p); err != nil || string(b) != "-999" {
		t.Errorf("its oom_score_adj is %q (%v), want -999", b, err)
	}
}

func TestASmallMachinesKernelKeepsLittleFree(t *testing.T) {
	for _, tc := range []struct{ total, kept, want int64 }{
		{1 << 30, 45056, 8192},   // as huge pages would have it
		{1 << 30, 8192, 8192},    // an agent that takes over
		{1 << 30, 4004, 4004},    // a kernel without huge pages
		{16 << 30, 67584, 67584}, // no small machine
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "vm/min_free_kbytes")
		if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, fmt.Appendln(nil, tc.kept), 0o644)); err != nil {
			t.Fatal(err)
		}
		if err := leaveToPods(dir, tc.total); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(tc.want) {
			t.Errorf("of %d bytes the kernel keeps %q KiB (%v), and not %d", tc.total, b, err, tc.want)
		}
		if err := os.WriteFile(file, []byte("much"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := leaveToPods(dir, tc.total); err == nil {
			t.Error("what is no number is believed")
		}
	}
	if n, err := memory(); err != nil || n < 64<<20 {
		t.Errorf("this machine has %d bytes, %v", n, err)
	}
}

func TestWhatIsMountedIsKnownByWhereAndWhat(t *testing.T) {
	const info = `22 1 254:0 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/lower
24 22 0:21 / /run rw - ramfs old rw
25 22 0:22 / /run rw,nosuid shared:5 master:2 - tmpfs tmpfs rw,mode=755
`
	got, err := mounted(strings.NewReader(info))
	if want := map[string]string{"/": "overlay", "/run": "tmpfs"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := mounted(strings.NewReader("22 1 254:0 / /run rw tmpfs\n")); err == nil {
		t.Error("a line that is none is read")
	}
}

func TestWhatTheAgentLooksForIsThere(t *testing.T) {
	root := t.TempDir()
	for p, text := range map[string]string{
		"sys/class/dmi/id/product_uuid": "abc\n", "etc/hostname": "cell\n", "var/lib/cloud/seed/launch-index": "9",
	} {
		p = filepath.Join(root, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o400)); err != nil {
			t.Fatal(err)
		}
	}
	n := &network{lease: dhcp.Lease{
		Address:  netip.MustParsePrefix("10.0.0.5/24"),
		DNS:      []netip.Addr{netip.MustParseAddr("10.0.0.2")},
		Hostname: "ip-10-0-0-5",
		Search:   []string{"ec2.internal", "example.com"},
	}}
	read := func(p string) string {
		b, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	if err := leave(root, userdata.Data{Document: []byte("#cloud-config\n"), Place: "3"}, n); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{
		"etc/hostname": "ip-10-0-0-5\n", "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n10.0.0.5 ip-10-0-0-5\n",
		"etc/resolv.conf": "nameserver 10.0.0.2\nsearch ec2.internal example.com\n", "var/lib/cloud/seed/user-data": "#cloud-config\n",
		"var/lib/cloud/seed/launch-index": "3",
	} {
		if got := read(p); got != want {
			t.Errorf("/%s is %q, want %q", p, got, want)
		}
	}
	id := read("etc/machine-id")
	if len(id) != 33 {
		t.Errorf("the machine's ID is %q", id)
	}
	if info, err := os.Stat(filepath.Join(root, "var/lib/cloud/seed/user-data")); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("who may read the user data: %v (%v)", info.Mode(), err)
	}
	// Another boot: the same ID, the cloud's name, no place any more.
	if err := leave(root, userdata.Data{Document: []byte("x"), Hostname: "named"}, n); err != nil {
		t.Fatal(err)
	}
	again, name, place := read("etc/machine-id"), read("etc/hostname"), read("var/lib/cloud/seed/launch-index")
	if again != id || name != "named\n" || !strings.Contains(place, "no such file") {
		t.Errorf("at another boot: ID %q, name %q, place %q", again, name, place)
	}
	n.lease = dhcp.Lease{}
	long := userdata.Data{Document: []byte("x"), Hostname: strings.Repeat("n", 65)}
	if err := leave(root, long, n); err != nil || read("etc/hostname") != "cell\n" {
		t.Errorf("a name that is too long: %q (%v)", read("etc/hostname"), err)
	}
	if got := read("etc/resolv.conf"); !strings.HasPrefix(got, "# No nameserver") {
		t.Errorf("without nameservers: %q", got)
	}
}

// A disk that is full can take no file: here, since a folder is in the way of each new one.
func TestABootOnAFullDiskGoesOnWithWhatTheLastOneLeft(t *testing.T) {
	root := t.TempDir()
	p := filepath.Join(root, "sys/class/dmi/id/product_uuid")
	folders := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.Mkdir(filepath.Join(root, "etc"), 0o755),
		os.MkdirAll(filepath.Join(root, "var/lib/cloud/seed"), 0o755))
	if err := errors.Join(folders, os.WriteFile(p, []byte("abc\n"), 0o400)); err != nil {
		t.Fatal(err)
	}
	n := &network{lease: dhcp.Lease{Address: netip.MustParsePrefix("10.0.0.5/24"), Hostname: "ip-10-0-0-5"}}
	data := userdata.Data{Document: []byte("#cloud-config\n"), Place: "3"}
	if err := leave(root, data, n); err != nil {
		t.Fatal(err)
	}
	files := []string{"etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id", "var/lib/cloud/seed/user-data",
		"var/lib/cloud/seed/launch-index"}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(f), "."+filepath.Base(f)+".new", "in the way"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := leave(root, data, n); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	data.Hostname = "another"
	if err := leave(root, data, n); err == nil || !strings.Contains(err.Error(), "etc/.hostname.new") {
		t.Errorf("another name: %v", err)
	}
	for _, f := range files {
		if info, err := os.Stat(filepath.Join(root, f)); err != nil || info.Size() == 0 {
			t.Errorf("what the last boot left at %s: %v", f, err)
		}
	}
}

func TestRoutesOnTheLinkComeFirst(t *testing.T) {
	lease := dhcp.Lease{
		Address: netip.MustParsePrefix("10.128.0.7/32"),
		Routes: []dhcp.Route{
			{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.128.0.1")},
			{To: netip.MustParsePrefix("10.128.0.1/32")},
		},
	}
	got := routesOf(2, lease)
	if len(got) != 2 || got[0].Dst.String() != "10.128.0.1/32" || got[0].Scope != netlink.SCOPE_LINK || got[0].Gw != nil {
		t.Fatalf("the first of %v", got)
	}
	// The router is not in the machine's own network of one address.
	if got[1].Dst.String() != "0.0.0.0/0" || got[1].Gw.String() != "10.128.0.1" || got[1].Flags&int(netlink.FLAG_ONLINK) == 0 {
		t.Errorf("the second is %+v", got[1])
	}
	lease.Address = netip.MustParsePrefix("10.128.0.7/20")
	if got := routesOf(2, lease); got[1].Flags&int(netlink.FLAG_ONLINK) != 0 {
		t.Errorf("a router of the machine's own network: %+v", got[1])
	}
}

func TestAMachineWithoutACardSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looked := 0
		_, err := wait(context.Background(), func() ([]netlink.Link, error) { looked++; return nil, nil })
		if err == nil || !strings.Contains(err.Error(), "no network card after 10s") || looked < 10 {
			t.Errorf("looked %d times: %v", looked, err)
		}
		late := &netlink.Dummy{}
		begun := time.Now()
		found, err := wait(context.Background(), func() ([]netlink.Link, error) {
			if time.Since(begun) < 3*time.Second {
				return nil, nil
			}
			return []netlink.Link{late}, nil
		})
		if err != nil || len(found) != 1 {
			t.Errorf("a card that comes late: %v (%v)", found, err)
		}
	})
	sys := t.TempDir()
	for name, link := range map[string]string{"eth0": "1\n", "eth1": "0\n"} {
		p := filepath.Join(sys, name, "carrier")
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(link), 0o444)); err != nil {
			t.Fatal(err)
		}
	}
	if !carrier(sys, "eth0") || carrier(sys, "eth1") || carrier(sys, "eth2") {
		t.Error("which card has a link is not seen")
	}
}

func TestTheCloudsClockIsAskedFirst(t *testing.T) {
	cloud, local := netip.MustParseAddr("169.254.169.123"), netip.MustParseAddr("10.0.0.1")
	got := servers(userdata.Source{Clock: cloud}, dhcp.Lease{NTP: []netip.Addr{local}})
	if !slices.Equal(got, []netip.Addr{cloud, local}) {
		t.Errorf("asked are %v", got)
	}
	var out bytes.Buffer
	k := timekeeper{console: console.New(&out), servers: servers(userdata.Source{}, dhcp.Lease{})}
	k.keep(context.Background(), k.begin(context.Background())) // returns: there is nobody to ask
	if !strings.Contains(out.String(), "the clock is the hardware's") {
		t.Errorf("the console has %q", out.String())
	}
}

// A board without a battery begins in 1970, and certificates are judged by the clock.
func TestAClockThatIsWrongByYearsIsSetAndTold(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, tc := range []struct {
		name   string
		offset time.Duration
		refuse error
		want   string
	}{
		{name: "behind", offset: 56 * year, want: "the clock was wrong by 490560h0m0s and is set"},
		{name: "ahead", offset: -24 * year, want: "the clock was wrong by -210240h0m0s and is set"},
		{
			name:   "and stays so",
			offset: 56 * year,
			refuse: errors.New("not permitted"),
			want:   "set the clock, which is wrong by 490560h0m0s: not permitted",
		},
	} {
		var out bytes.Buffer
		var asked []netip.Addr
		var set []time.Time
		dead, well := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		k := timekeeper{
			console: console.New(&out),
			servers: []netip.Addr{dead, well},
			ask: func(_ context.Context, server netip.Addr) (time.Duration, error) {
				asked = append(asked, server)
				if server == dead {
					return 0, errors.New("it does not answer")
				}
				return tc.offset, nil
			},
			set: func(to time.Time) error {
				set = append(set, to)
				return tc.refuse
			},
			adjust: func(*unix.Timex) error { return nil },
			now:    func() time.Time { return time.Now().Add(-tc.offset) },
		}
		begun := time.Now()
		k.begin(context.Background())
		if !strings.Contains(out.String(), tc.want) || !slices.Equal(asked, []netip.Addr{dead, well}) {
			t.Errorf("%s: asked %v; the console has %q, want %q", tc.name, asked, out.String(), tc.want)
		}
		if len(set) != 1 || set[0].Before(begun) || set[0].After(time.Now()) {
			t.Errorf("%s: it is set to %v, want %v", tc.name, set, begun)
		}
	}
}

// Who answers for a time server may be anybody on the network: no time counts in which no certificate is valid.
func TestATimeThatCannotBeIsNotTaken(t *testing.T) {
	var out bytes.Buffer
	k := timekeeper{
		console: console.New(&out),
		servers: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		ask:     func(context.Context, netip.Addr) (time.Duration, error) { return 100 * 365 * 24 * time.Hour, nil },
		set: func(to time.Time) error {
			t.Errorf("the clock is set to %v", to)
			return nil
		},
	}
	done, text := k.begin(t.Context()), out.String()
	if done || !strings.Contains(text, "10.0.0.1 tells the time 21") || !strings.Contains(text, "which cannot be") {
		t.Errorf("the console has %q", &out)
	}
}

func TestAClockThatNobodySetsIsTold(t *testing.T) {
	for at, wrong := range map[string]bool{
		"1980-01-01T00:00:05Z": true, "2026-10-31T23:59:59Z": true, "2027-01-02T03:04:05Z": false, "2080-01-01T00:00:21Z": true,
	} {
		var out bytes.Buffer
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		timekeeper{console: console.New(&out), now: func() time.Time { return now }}.begin(t.Context())
		if got := out.String(); !strings.Contains(got, "the clock is the hardware's, nobody else tells the time: "+at) ||
			strings.Contains(got, "that is wrong by years, since this agent was written at 2026-11-01: ") != wrong {
			t.Errorf("at %s the console has %q; is it wrong: %t", at, got, wrong)
		}
	}
}

// One lost packet must not keep a machine with a wrong clock from joining for a quarter of an hour.
func TestATimeServerThatDoesNotAnswerIsAskedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var asked []time.Duration
		begun := time.Now()
		k := timekeeper{
			console: console.New(&out),
			servers: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			ask: func(context.Context, netip.Addr) (time.Duration, error) {
				if asked = append(asked, time.Since(begun)); len(asked) <= 3 {
					return 0, errors.New("no answer")
				}
				return written.Sub(time.Unix(0, 0)), nil
			},
			set:    func(time.Time) error { return nil },
			adjust: func(*unix.Timex) error { return nil },
			now:    func() time.Time { return time.Unix(5, 0) },
			random: func() float64 { return 1 },
		}
		done := k.begin(t.Context())
		if text := out.String(); done || !strings.Contains(text, "clock: FAILED") || !strings.Contains(text, "no answer") ||
			!strings.Contains(text, "that is wrong by years") {
			t.Errorf("done: %t; the console has %q", done, text)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		k.keep(ctx, done)
		want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 7*time.Second + clockEvery, 7*time.Second + 2*clockEvery,
			7*time.Second + 3*clockEvery}
		if !slices.Equal(asked, want) || !strings.Contains(out.String(), "the clock was wrong by 498192h0m0s and is set") {
			t.Errorf("asked at %v, want %v; the console has %q", asked, want, &out)
		}
	})
}

func TestThePowerButtonIsKnown(t *testing.T) {
	event := func(kind, code uint16, value uint32) []byte {
		e := make([]byte, eventBytes)
		binary.NativeEndian.PutUint16(e[16:], kind)
		binary.NativeEndian.PutUint16(e[18:], code)
		binary.NativeEndian.PutUint32(e[20:], value)
		return e
	}
	for name, tc := range map[string]struct {
		e    []byte
		want bool
	}{
		"pressed":     {event(1, 116, 1), true},
		"let go":      {event(1, 116, 0), false},
		"another key": {event(1, 30, 1), false},
		"no key":      {event(0, 116, 1), false},
		"cut":         {event(1, 116, 1)[:20], false},
	} {
		if got := powered(tc.e); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestDevicesThatComeLaterHaveTheirDrivers(t *testing.T) {
	for message, want := range map[string]string{
		"add@/devices/pci/1\x00ACTION=add\x00MODALIAS=virtio:d00000002v00001AF4\x00": "virtio:d00000002v00001AF4",
		"remove@/devices/pci/1\x00MODALIAS=virtio:d00000002\x00":                     "",
		"add@/devices/x\x00ACTION=add\x00":                                           "",
		"libudev\x00\xfe\xed":                                                        "",
	} {
		if got := modalias([]byte(message)); got != want {
			t.Errorf("%q asks for %q, want %q", message, got, want)
		}
	}
}

func TestTheFirstInitSaysWhenItBegan(t *testing.T) {
	for said, want := range map[string]time.Duration{"2.613s": 2613 * time.Millisecond, "": 0, "soon": 0} {
		if got := began(said); got != want {
			t.Errorf("%q is taken for %v, want %v", said, got, want)
		}
	}
}

func TestOnlyTheFirstProcessIsInit(t *testing.T) {
	ran := false
	if code := Main(io.Discard, func(context.Context, agentapi.Boot) error { ran = true; return nil }); code != 2 || ran {
		t.Errorf("as an ordinary process: code %d, the agent ran: %v", code, ran)
	}
}
