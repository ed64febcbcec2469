//go:build e2e

package boot

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/agent/gpt"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/test/tier"
)

// otherAgent serves another agent than the image's, which is the same with bytes behind it
// that nobody reads, to machines whose network QEMU makes.
func otherAgent(t *testing.T) (a agentapi.Agent) {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(image(t))), "itzo-lite"))
	if err != nil {
		t.Fatal(err)
	}
	program = append(program, "another agent"...)
	sum := sha256.Sum256(program)
	a = agentapi.Agent{Version: "v0.0.2", SHA256: map[string]string{runtime.GOARCH: hex.EncodeToString(sum[:])}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/kip/itzo-v0.0.2-"+runtime.GOARCH {
			t.Errorf("asked for %s", r.URL)
		}
		_, _ = w.Write(program)
	}))
	t.Cleanup(server.Close)
	// QEMU leads what is sent there to the loopback of this host.
	a.URL = strings.Replace(server.URL, "127.0.0.1", "10.0.2.2", 1) + "/kip"
	return a
}

// crashes has a kernel panic where its machine gets an interrupt that nobody explains: the EFI
// program's stub takes further arguments of the kernel from the firmware.
var crashes = []string{"-smbios", "type=11,value=io.systemd.stub.kernel-cmdline-extra=unknown_nmi_panic"}

// smbios are QEMU's arguments for a string with user data.
func smbios(userData string) []string {
	return []string{"-smbios", "type=11,value=kip.user-data=" + base64.StdEncoding.EncodeToString([]byte(userData))}
}

// TestAMachineBootsJoinsAndLivesOnce follows one disk through four boots: the first, in
// which it is told by a NoCloud disk and goes over to another agent; one that finds its disk
// full; one on a larger disk, told by SMBIOS; and one after the kernel has crashed while a pod was there.
func TestAMachineBootsJoinsAndLivesOnce(t *testing.T) {
	tier.All(t)
	disk := newDisk(t)
	k := newKip(t)
	user, token := k.userData(), k.token
	var boot agentapi.Boot
	// join connects to the agent as Kip does, and has it start a kubelet, which waits for
	// containerd and its pause image. The agent is first to go over to another one, if any.
	// With a plugin, its kubelet is told of a pod.
	join := func(m machine, token pki.Token, other *agentapi.Agent, plugins ...agentapi.Plugin) (joined time.Time) {
		ctx := within(t)
		agent, leave := k.join(m, token)
		defer leave()
		joined = time.Now()
		until := func(what string, done func() error) {
			for err := done(); err != nil; err = done() {
				select {
				case <-ctx.Done():
					t.Fatalf("%s: %v\n%s", what, err, m.Console())
				case <-time.After(100 * time.Millisecond):
				}
			}
		}
		if other != nil {
			until("go over to another agent", func() error { return agent.PutAgent(ctx, *other) })
		}
		// An agent that is just beginning wants to be asked again.
		until("take the configuration", func() error {
			told, err := agent.PutConfig(ctx, agentapi.Config{
				NodeName:            "kip-0",
				NodeIP:              netip.MustParseAddr("10.0.2.15"), // QEMU's first lease
				PodIP:               netip.MustParseAddr("10.0.2.77"),
				ClusterDomain:       "cluster.local",
				ReservedMemoryBytes: 64 << 20,
				Plugins:             true,
			})
			boot = told.Boot
			return err
		})
		if boot.Kernel == 0 || boot.Kernel > boot.UserSpace || boot.UserSpace > boot.Network || boot.Network > boot.Joined {
			t.Errorf("the agent tells of its machine's start: %+v", boot)
		}
		until("run containerd and the kubelet", func() error {
			status, err := agent.Status(ctx)
			if err != nil {
				return err
			}
			for _, c := range status.Components {
				if c.PID == 0 || c.Restarts > 0 {
					err = fmt.Errorf("%+v", status)
				}
			}
			if len(status.Components) != 2 || status.CellID != "c-1" {
				err = fmt.Errorf("%+v", status)
			}
			return err
		})
		if len(plugins) > 0 {
			until("take a pod", func() error { return agent.PutPlugins(ctx, plugins) })
			m.says("a pod is here: this machine does not start again after it")
		}
		return joined
	}

	first := describe(t, disk, "", true)
	first.More = noCloud(t, t.TempDir(), user)
	m := run(t, first)
	m.says("user data of a NoCloud disk (")
	begins := m.says("the agent begins")
	seen := time.Now()
	other := otherAgent(t)
	joined := join(m, token, &other).Sub(seen)
	m.says("another agent takes over")
	t.Logf("since the kernel started, in seconds: init %.2f, root and state %.2f, user space %.2f, drivers %.2f, network %.2f, agent %.2f, "+
		"joined %.2f",
		at(t, m.says("init begins")), at(t, m.says("lay them over each other")), at(t, m.says("first life")), at(t, m.says("drivers")),
		at(t, m.says("network (")), at(t, begins), at(t, begins)+joined.Seconds())
	m.press()
	m.ends()
	for _, want := range []string{"the power button was pressed", "itzo stops", "power off"} {
		m.says(want)
	}

	// Without room for a file it cannot start, and with some it can.
	fill(t, disk)
	m = start(t, disk, user, true)
	m.ends()
	m.says("this machine cannot boot, and is switched off: lay them over each other: nothing can be written to the state, which has 0 bytes free of ")

	// Stopped before a pod came, it may start again; its disk has grown meanwhile, which gives it room.
	if err := os.Truncate(disk, diskBytes+1<<30); err != nil {
		t.Fatal(err)
	}
	again := describe(t, disk, "", true)
	again.Reboots, again.More = true, slices.Concat(crashes, smbios(user))
	m = run(t, again)
	m.says("user data of the SMBIOS string kip.user-data= (")
	m.says("going over to the agent that was fetched before")
	m.says("the agent begins")
	// The kubelet makes a pod's folder before it looks for its image, which nobody has.
	join(m, pki.Token{}, nil, agentapi.Plugin{Driver: "none.example.org", Pod: []byte(`{"apiVersion": "v1", "kind": "Pod",
		"metadata": {"name": "` + agentapi.PluginPod("none.example.org") + `", "namespace": "` + agentapi.PluginNamespace + `"},
		"spec": {"hostNetwork": true, "containers": [{"name": "main", "image": "none.example.org/none:1", "imagePullPolicy": "Never"}]}}`)})

	// Its kernel panics, and starts the machine again, which is its second life.
	m.do("inject-nmi", nil)
	m.says("Kernel panic - not syncing: NMI: Not continuing")
	m.ends()
	said := m.Console()
	_, second, crashed := strings.Cut(said, "Kernel panic")
	if !crashed || !strings.Contains(second, "a pod was on this machine before it was started again, and must not start twice") ||
		!strings.Contains(second, "power off") || strings.Contains(second, "the agent begins") {
		t.Errorf("after the crash there is no end, or a second life:\n%s", said)
	}
	state := stateOf(t, disk)
	if blocks := blocksOf(t, disk, state); blocks*4096 != state.Sectors()*gpt.Sector || state.Sectors()*gpt.Sector < 3<<30 {
		t.Errorf("the state's file system has %d blocks, its partition %d sectors", blocks, state.Sectors())
	}
}

// fill leaves no room on the state partition of a machine that is off, whose free blocks become
// those of some files.
func fill(t *testing.T, disk string) {
	t.Helper()
	p := stateOf(t, disk)
	dir := t.TempDir()
	state, rest := filepath.Join(dir, "state"), filepath.Join(dir, "rest")
	run := func(stdin, name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		// e2fsck has mended what it found, which is that the journal was not empty.
		if exit := new(exec.ExitError); err != nil && !(name == "e2fsck" && errors.As(err, &exit) && exit.ExitCode() == 1) {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	place := fmt.Sprint(p.First * gpt.Sector)
	size := fmt.Sprint(p.Sectors() * gpt.Sector)
	run("", "dd", "if="+disk, "of="+state, "bs=1M", "iflag=skip_bytes,count_bytes", "skip="+place, "count="+size, "conv=sparse", "status=none")
	run("", "e2fsck", "-fy", state)
	var orders strings.Builder
	for n := blocksOf(t, disk, p); n > 0; n -= (n + 15) / 16 {
		fmt.Fprintf(&orders, "write /dev/null full-%[1]d\nfallocate full-%[1]d 0 %[2]d\n", n, n-1)
	}
	// It leaves some, which a file takes that is too large.
	if err := os.WriteFile(rest, bytes.Repeat([]byte("full"), 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&orders, "write %s rest\n", rest)
	run(orders.String(), "debugfs", "-w", "-f", "-", state)
	run("", "e2fsck", "-fy", state)
	run("", "fallocate", "-p", "-o", place, "-l", size, disk)
	run("", "dd", "if="+state, "of="+disk, "bs=1M", "oflag=seek_bytes", "seek="+place, "conv=sparse,notrunc", "status=none")
}

// spoil changes a disk, or a copy of one.
func spoil(t *testing.T, disk string, how func(f *os.File, root gpt.Partition) error) string {
	t.Helper()
	root := partition(t, disk, "kip-root")
	f, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(how(f, root), f.Close()); err != nil {
		t.Fatal(err)
	}
	return disk
}

// TestABadStartEndsInAMessage: whatever is wrong, the console says it and the machine is
// off, so that the cloud sees it. Where a machine goes on, it says what is wrong all the same.
func TestABadStartEndsInAMessage(t *testing.T) {
	tier.All(t)
	for _, tc := range []struct {
		name, userData string
		spoil          func(f *os.File, root gpt.Partition) error
		card           vm.Card
		noCard, noLink bool
		stays          bool // since no more runs than firmware, which looks on
		more           func(dir string) []string
		want           []string
	}{
		{
			name: "no user data",
			want: []string{"find user data: FAILED after ", "no user data: this machine has none of QEMU's firmware configuration"},
		},
		{
			// Nobody tells the time either, and the hardware's clock is wrong by years.
			name:     "garbage, and a wrong clock",
			userData: "\x00\xff garbage",
			more:     func(string) []string { return []string{"-rtc", "base=2001-01-01T00:00:00"} },
			want: []string{
				"the clock is the hardware's, nobody else tells the time: 2001-01-01T00:",
				"that is wrong by years, since this agent was written at 2026-11-01: no certificate is valid then, and Kip cannot join",
				`the first line is not "#cloud-config"`,
			},
		},
		{name: "no network card", userData: "#cloud-config\n", noCard: true, want: []string{"no network card after 10s"}},
		{
			name:     "a card without a link",
			userData: "#cloud-config\n",
			noLink:   true,
			want:     []string{"eth0: it has no link, as if its cable were out"},
		},
		{
			name: "a spoiled root",
			// EROFS has its superblock behind the first KiB.
			spoil: func(f *os.File, root gpt.Partition) error {
				_, err := f.WriteAt(make([]byte, 4096), int64(root.First)*gpt.Sector)
				return err
			},
			want: []string{"whose content is not an image's root"},
		},
		{
			name: "the root of another build",
			spoil: func(f *os.File, root gpt.Partition) error {
				info, err := f.Stat()
				if err != nil {
					return err
				}
				table, err := gpt.Read(f, uint64(info.Size())/gpt.Sector)
				if err != nil {
					return err
				}
				n := slices.IndexFunc(table.Partitions, func(p gpt.Partition) bool { return p.ID == root.ID })
				table.Partitions[n].ID = gpt.Random([16]byte{1})
				return table.Write(f)
			},
			want: []string{"find the disk with the root ", "not there after 30s: ", "none of its 2 partitions is that root"},
		},
		{
			name: "a disk cut short",
			spoil: func(f *os.File, root gpt.Partition) error {
				return f.Truncate(int64(root.First+root.Last) / 2 * gpt.Sector)
			},
			want: []string{`partition "kip-root" has the sectors `, "not on the disk"},
		},
		{
			name:  "too small a disk",
			spoil: func(f *os.File, root gpt.Partition) error { return f.Truncate(int64(root.Last+1)*gpt.Sector + 32<<20) },
			want:  []string{"the disk is too small: it has ", ", and a cell needs 64 more"},
		},
		{
			name: "no ESP",
			spoil: func(f *os.File, _ gpt.Partition) error {
				_, err := f.WriteAt(make([]byte, 4096), gpt.Align*gpt.Sector)
				return err
			},
			stays: true,
			want:  []string{"BdsDxe: failed to load"},
		},
		{
			// It is alone on its network, where nobody answers for the metadata service.
			name: "EC2 without a metadata service",
			card: vm.Card{User: "restrict=on"},
			more: func(string) []string { return []string{"-smbios", "type=1,manufacturer=Amazon EC2"} },
			want: []string{"user data of EC2's metadata service: FAILED after "},
		},
		{
			name: "garbage in SMBIOS",
			more: func(string) []string { return smbios("garbage") },
			want: []string{"user data of the SMBIOS string kip.user-data= (", `the first line is not "#cloud-config"`},
		},
		{
			name: "garbage on a NoCloud disk",
			more: func(dir string) []string { return noCloud(t, dir, "garbage") },
			want: []string{"user data of a NoCloud disk (", `the first line is not "#cloud-config"`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			disk := newDisk(t)
			if tc.spoil != nil {
				disk = spoil(t, disk, tc.spoil)
			}
			what := describe(t, disk, tc.userData, false)
			if !tc.noCard {
				what.Card = &tc.card
			}
			if tc.more != nil {
				what.More = tc.more(t.TempDir())
			}
			what.Paused = tc.noLink
			m := run(t, what)
			if tc.noLink {
				m.do("set_link", map[string]any{"name": "card", "up": false})
				m.do("cont", nil)
			}
			if tc.stays {
				m.says(tc.want[len(tc.want)-1])
			} else {
				m.ends()
			}
			got := m.Console()
			for _, want := range tc.want {
				if !strings.Contains(got, want) || strings.Contains(got, "Kernel panic") {
					t.Errorf("the console has no %q:\n%s", want, got)
				}
			}
		})
	}
}

// An agent that crashes is the machine's first process, and the kernel's end: the console has its report.
func TestTheConsoleHasTheReportOfAnAgentThatCrashes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	k := newKip(t)
	m := start(t, newDisk(t), k.userData(), true)
	m.says("the agent begins")
	k.runs(m, "runcmd: [kill -QUIT 1]\n")
	m.says("SIGQUIT: quit")
	m.says("goroutine 1 ")
	m.says("Kernel panic - not syncing: Attempted to kill init!")
	m.ends() // it would start again, and end as after a crash of the kernel
}

// partition returns one of a disk.
func partition(t *testing.T, disk, name string) gpt.Partition {
	t.Helper()
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	table, err := gpt.Read(f, uint64(info.Size())/gpt.Sector)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range table.Partitions {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("there is no partition %s: %+v", name, table.Partitions)
	return gpt.Partition{}
}

func stateOf(t *testing.T, disk string) gpt.Partition { return partition(t, disk, "kip-state") }

// blocksOf is how many blocks the ext4 of a partition says that it has.
func blocksOf(t *testing.T, disk string, p gpt.Partition) uint64 {
	t.Helper()
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [4]byte
	if _, err := f.ReadAt(b[:], int64(p.First)*gpt.Sector+1024+4); err != nil {
		t.Fatal(err)
	}
	return uint64(binary.LittleEndian.Uint32(b[:]))
}
