// Package boot boots disks on virtual machines of QEMU's own network and reads their
// consoles. Its tests do so with the image that make image built, and see on the consoles,
// and from the agents, that it does what a cloud's machine must. It needs QEMU, and neither
// root nor KVM.
package boot

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/elotl/kip/internal/cloud/qemu/vm"
	"github.com/elotl/kip/test/loopback"
)

// AgentPort is where the agent listens on a machine.
const AgentPort = 6421

// Line is one of a console.
type Line struct {
	Text string
	// Seen is when it was there to be read.
	Seen time.Time
}

// stamp is the time since the kernel's start with which it, and itzo, begin a line.
var stamp = regexp.MustCompile(`^\[ *([0-9]+\.[0-9]+)\] `)

// Stamp is the time since the kernel's start that the line has, if it has one.
func (l Line) Stamp() (time.Duration, bool) {
	m := stamp.FindStringSubmatch(l.Text)
	if m == nil {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(m[1], 64)
	return time.Duration(seconds * float64(time.Second)), err == nil
}

// Machine is one that runs. Whoever starts it closes it.
type Machine struct {
	// Agent is where its agent's port is on this host.
	Agent   string
	cmd     *exec.Cmd
	monitor string

	mu    sync.Mutex
	lines []Line
	// grew is closed and replaced at each line; ended is closed with the machine.
	grew  chan struct{}
	ended chan struct{}
}

// Start boots a machine as it is described, with its console read. With a card, and no tap
// device for it, its agent can be reached at Agent.
func Start(what vm.Machine) (*Machine, error) {
	m := &Machine{monitor: what.Monitor, grew: make(chan struct{}), ended: make(chan struct{})}
	if what.Card != nil && what.Card.Tap == "" {
		free, err := net.Listen("tcp", netip.AddrPortFrom(loopback.Own(), 0).String())
		if err != nil {
			return nil, err
		}
		m.Agent = free.Addr().String()
		if err := free.Close(); err != nil {
			return nil, err
		}
		card := *what.Card
		card.User = strings.TrimPrefix(card.User+",", ",") + fmt.Sprintf("hostfwd=tcp:%s-:%d", m.Agent, AgentPort)
		what.Card = &card
	}
	m.cmd = exec.Command(what.Program(), what.Args()...)
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.cmd.Stderr = m.cmd.Stdout
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (Debian's packages qemu-system-x86 and qemu-system-arm have it)", err)
	}
	go m.read(bufio.NewScanner(out))
	return m, nil
}

// Close cuts the machine's power, if it still runs.
func (m *Machine) Close() {
	_ = m.cmd.Process.Kill() // it has ended, or is to
	<-m.ended
}

// escapes are what firmware and systemd write to move on a screen, and to colour it.
var escapes = regexp.MustCompile(`\x1b\[[0-9;=?]*[a-zA-Z]`)

func (m *Machine) read(s *bufio.Scanner) {
	for s.Scan() {
		m.mu.Lock()
		m.lines = append(m.lines, Line{Text: strings.TrimSpace(escapes.ReplaceAllString(s.Text(), "")), Seen: time.Now()})
		close(m.grew)
		m.grew = make(chan struct{})
		m.mu.Unlock()
	}
	_ = m.cmd.Wait() // however it ended, the console says why
	close(m.ended)
}

// Ended is closed when the machine is off.
func (m *Machine) Ended() <-chan struct{} { return m.ended }

// Lines are what the console has said.
func (m *Machine) Lines() []Line {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lines[:len(m.lines):len(m.lines)]
}

// Console is what the machine has said.
func (m *Machine) Console() string {
	var b strings.Builder
	for _, l := range m.Lines() {
		b.WriteString(l.Text + "\n")
	}
	return b.String()
}

// Says waits for a line with this on the console, and returns the first. Errors have the
// whole console.
func (m *Machine) Says(ctx context.Context, want string) (Line, error) {
	for from := 0; ; {
		m.mu.Lock()
		lines, grew := m.lines, m.grew
		m.mu.Unlock()
		for ; from < len(lines); from++ {
			if strings.Contains(lines[from].Text, want) {
				return lines[from], nil
			}
		}
		select {
		case <-grew:
			continue
		case <-ctx.Done():
			return Line{}, fmt.Errorf("the console never said %q: %w\n%s", want, context.Cause(ctx), m.Console())
		case <-m.ended:
		}
		if from == len(m.Lines()) {
			return Line{}, fmt.Errorf("the machine has ended, and its console never said %q:\n%s", want, m.Console())
		}
	}
}

// Ends waits until the machine is off.
func (m *Machine) Ends(ctx context.Context) error {
	select {
	case <-m.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the machine is not off: %w\n%s", context.Cause(ctx), m.Console())
	}
}

// Press presses the power button.
func (m *Machine) Press(ctx context.Context) error {
	monitor, err := vm.Dial(ctx, m.monitor, vm.AnswerLimit)
	if err != nil {
		return err
	}
	defer monitor.Close()
	return monitor.Do(ctx, "system_powerdown", nil, nil)
}
