package stack

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/test/netlab"
)

// lab is a machine with an uplink and two bridges, a host of the internet, and a cell on each bridge. Each is
// a network namespace; the machine's is the Host's.
type lab struct {
	*netlab.Lab
	internet netns.NsHandle
	cells    [2]netns.NsHandle
}

const (
	internetAddress = "203.0.113.1"
	machineAddress  = "203.0.113.2"
	metadataAddress = "169.254.169.254"
	wireServer      = "168.63.129.16"   // Azure's
	alibabaAddress  = "100.100.100.200" // of Alibaba Cloud's metadata service
)

// What must come through has until a hang is certain. What must not is tried several times for shortly: a packet
// that is dropped is never answered.
const (
	untilHang = 2 * time.Minute
	shortly   = 200 * time.Millisecond
	tries     = 3
)

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{}
	l.Lab = netlab.New(t, &l.internet, &l.cells[0], &l.cells[1])
	l.Wire("uplink", l.internet, internetAddress+"/24", metadataAddress+"/32", wireServer+"/32", alibabaAddress+"/32")
	l.Run("ip address add " + machineAddress + "/24 dev uplink")
	l.Run("ip route add default via " + internetAddress)
	for i, cell := range l.cells {
		l.Run(fmt.Sprintf("ip link add kip%d type bridge", i))
		l.Run(fmt.Sprintf("ip address add 10.11%d.0.1/16 dev kip%d", i, i))
		l.Run(fmt.Sprintf("ip link set kip%d up", i))
		device := fmt.Sprintf("cell%d", i)
		l.Wire(device, cell, fmt.Sprintf("10.11%d.0.2/16", i))
		l.Run(fmt.Sprintf("ip link set %s master kip%d", device, i))
		l.Within(cell, func() { l.Run(fmt.Sprintf("ip route add default via 10.11%d.0.1", i)) })
	}
	// The internet knows the way to the cells, as a machine in the same network may.
	l.Within(l.internet, func() { l.Run("ip route add 10.110.0.0/15 via " + machineAddress) })
	return l
}

// reaches fails the test unless the internet sees a cell as this machine.
func (l *lab) reaches(cell int) {
	l.Helper()
	if got := l.Sees(l.cells[cell], l.internet, "", internetAddress, untilHang); got != machineAddress {
		l.Errorf("the internet sees cell %d as %q, want the machine's address", cell, got)
	}
}

// cannotReach fails the test if something comes through. After each try the machine itself asks the same address,
// so that nothing but the rules is in the way.
func (l *lab) cannotReach(from, to netns.NsHandle, address string) {
	l.Helper()
	for range tries {
		if seen := l.Sees(from, to, "", address, shortly); seen != "" {
			l.Errorf("%s is reached, and sees %q", address, seen)
		}
		if l.Sees(l.Host, to, "", address, untilHang) == "" {
			l.Errorf("the machine itself does not reach %s", address)
		}
	}
}

func (l *lab) forwards(device string) string {
	l.Helper()
	b, err := os.ReadFile(forwarding(device))
	if err != nil {
		l.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// stack is a run of kip-dev on a bridge of the lab.
func (l *lab) stack(i int) *Stack {
	l.Helper()
	bridge := fmt.Sprintf("kip%d", i)
	return wire(&site{
		opts: Options{
			State: l.TempDir(), Bridge: bridge, CIDR: netip.MustParsePrefix(fmt.Sprintf("10.11%d.0.0/16", i)), Masquerade: true,
			Log: slog.New(slog.NewTextHandler(l.Output(), nil)),
		},
		kips: []*kip{{bridge: bridge}},
	})
}

func (l *lab) start(s *Stack) {
	l.Helper()
	if err := s.masquerading.masquerade(l.Context()); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) stop(s *Stack) {
	l.Helper()
	if err := s.masquerading.stopMasquerade(l.Context()); err != nil {
		l.Fatal(err)
	}
	if left, err := s.masquerading.masqueradeLeftovers(); err != nil || len(left) > 0 {
		l.Errorf("after the end there are %q (%v)", left, err)
	}
}

func TestCellsReachTheInternetAndNobodyThereReachesThem(t *testing.T) {
	l := newLab(t)
	l.cannotReach(l.cells[0], l.internet, internetAddress) // before masquerading
	s := l.stack(0)
	l.start(s)
	l.reaches(0)
	// Of metadata services of this machine's own cloud.
	for _, address := range []string{metadataAddress, wireServer, alibabaAddress} {
		l.cannotReach(l.cells[0], l.internet, address)
	}
	if err := setForwarding("kip1", "1"); err != nil { // as another program has it for its machines
		t.Fatal(err)
	}
	for i, address := range []string{"10.110.0.2", "10.111.0.2"} {
		l.cannotReach(l.internet, l.cells[i], address)
	}
	left, err := s.masquerading.masqueradeLeftovers()
	if err != nil || len(left) != 1 || !strings.Contains(left[0], s.masquerading.masqueradeTable()) {
		t.Errorf("a run that was killed leaves %q (%v), want its table", left, err)
	}
	l.stop(s)
	l.cannotReach(l.cells[0], l.internet, internetAddress)
	if got := l.forwards("uplink"); got != "0" {
		t.Errorf("after the end the uplink forwards: %s", got)
	}
	l.stop(s) // there is nothing to do
}

func TestTheLastRunOnAMachineEndsItsForwarding(t *testing.T) {
	for _, forwarded := range []string{"0", "1"} {
		l := newLab(t)
		if err := os.WriteFile(forwarding("uplink"), []byte(forwarded), 0); err != nil {
			t.Fatal(err)
		}
		first, second := l.stack(0), l.stack(1)
		l.start(first)
		l.start(second)
		l.stop(first)
		l.reaches(1) // after the first has ended
		l.stop(second)
		if got := l.forwards("uplink"); got != forwarded {
			t.Errorf("the uplink forwarded %s before, and %s after", forwarded, got)
		}
	}
}

func TestOnAMachineWithoutInternetNothingIsMasqueraded(t *testing.T) {
	l := newLab(t)
	l.Run("ip route delete default")
	s := l.stack(0)
	if err := s.masquerading.masquerade(t.Context()); !errors.Is(err, errNoUplink) {
		t.Errorf("without a default route: %v", err)
	}
	if left, err := s.masquerading.masqueradeLeftovers(); err != nil || len(left) > 0 {
		t.Errorf("there are %q (%v)", left, err)
	}
}

// In many containers these are read-only.
func TestAMachineWhoseForwardingCannotBeChangedRunsAllTheSame(t *testing.T) {
	for _, readOnly := range []string{"/proc/sys", "/run"} {
		t.Run(readOnly, func(t *testing.T) {
			l := newLab(t)
			l.mountReadOnly(readOnly)
			var logged bytes.Buffer
			s := l.stack(0)
			s.opts.Log = slog.New(slog.NewTextHandler(&logged, nil))
			s.masquerading.startMasquerade(t.Context())
			const warning = "pods reach no address beyond the bridge"
			if said := logged.String(); !strings.Contains(said, warning) || !strings.Contains(said, readOnly+"/") {
				t.Errorf("the warnings are %q", said)
			}
			l.stop(s)
		})
	}
}

// mountReadOnly has the thread see a folder that cannot be written to.
func (l *lab) mountReadOnly(dir string) {
	l.Helper()
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		l.Fatal(err)
	}
	for _, step := range []struct {
		source, target string
		flags          uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{dir, dir, unix.MS_BIND | unix.MS_REC},
		{"", dir, unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY},
	} {
		if err := unix.Mount(step.source, step.target, "", step.flags, ""); err != nil {
			l.Fatalf("mount %s read-only: %v", dir, err)
		}
	}
}

func TestForwardingThatOthersTurnOnMeanwhileStaysOn(t *testing.T) {
	l := newLab(t)
	s := l.stack(0)
	l.start(s)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	l.stop(s)
	if l.forwards("uplink") != "1" {
		t.Error("the uplink forwards nothing any more")
	}
}

func TestForwardingEndsEvenIfSomebodyFlushesTheRules(t *testing.T) {
	l := newLab(t)
	s := l.stack(0)
	l.start(s)
	l.Run("nft flush ruleset")
	l.stop(s)
	if l.forwards("uplink") != "0" {
		t.Error("the uplink still forwards")
	}
}

// What other programs have in nftables is no concern of Kip's, whatever its form.
func TestSetsOfOthersAreLeftAlone(t *testing.T) {
	l := newLab(t)
	if err := nft(t.Context(), `table ip others {
  set closed { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 80 }; }
}
`); err != nil {
		t.Fatal(err)
	}
	s := l.stack(0)
	l.start(s)
	l.stop(s)
	out, err := exec.CommandContext(t.Context(), "nft", "list", "tables").Output()
	if err != nil || strings.TrimSpace(string(out)) != "table ip others" {
		t.Errorf("the tables are %q (%v)", out, err)
	}
}
