package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// uplinkTable is beside the other table, since it is of another family.
const uplinkTable = "kip_uplink"

// uplinkRules guard the metadata services where packets leave a device: the output
// hook does not see those of packet sockets, which the pod of the host's network has
// with a capability that is there by default.
//
// Who sends them also says, to the kernel, of which protocol they are, and may tag
// them: so they are looked at as they are, byte by byte from the beginning of the
// Ethernet frame. What is neither IP nor ARP, or has no beginning, as what is sent
// around the queues, does not leave. Names may be asked for, as in metadataRules: in
// whole packets without options. The hook does not see what leaves by an XDP socket.
//
//	96: EtherType
//	112: version and length of IPv4   160: flags and fragment   184: protocol   240: destination   288: its port
//	160: next header of IPv6   304: destination   448: its port
const uplinkRules = `	chain metadata {
		@ll,96,16 0x0800 @ll,112,8 0x45 @ll,160,16 & 0x3fff == 0 @ll,184,8 { 6, 17 } @ll,288,16 53 return
		@ll,96,16 0x86dd @ll,160,8 { 6, 17 } @ll,448,16 53 return
		@ll,96,16 0x0800 @ll,240,32 { 0xa9fea9fe, 0xa9feaa02, 0xa9feaa17 } drop
		@ll,96,16 0x0800 @ll,240,32 0xa83f8110 @ll,184,8 6 @ll,112,8 != 0x45 drop
		@ll,96,16 0x0800 @ll,240,32 0xa83f8110 @ll,184,8 6 @ll,160,16 & 0x3fff != 0 drop
		@ll,96,16 0x0800 @ll,240,32 0xa83f8110 @ll,184,8 6 @ll,288,16 { 80, 32526 } drop
		@ll,96,16 0x86dd @ll,304,128 { 0xfd000ec2000000000000000000000254, 0xfd000ec2000000000000000000000023, 0xfd2000ce000000000000000000000254 } drop
	}
`

// hookTrial uses the hook as the guard does, and lets all pass; hookTrialEnd takes that
// back. lo is in every network namespace.
const (
	hookTrial = "table netdev kip_trial\ndelete table netdev kip_trial\n" +
		"table netdev kip_trial {\n\tchain egress {\n\t\ttype filter hook egress device \"lo\" priority filter; policy accept;\n\t}\n}\n"
	hookTrialEnd = "delete table netdev kip_trial\n"
)

// Uplink is a device by which the cell is connected.
type Uplink struct {
	Name  string
	Index int // another one for a device that comes in the place of one of this name
}

// Devices are the Ethernet devices of a network namespace.
type Devices struct {
	// Uplinks are all but the pod's, and those of pods beside it.
	Uplinks []Uplink
	// Pod says that the pod has one, and so a network of its own: who is in the machine's cannot
	// make one without the right to change the firewall itself.
	Pod bool
}

// Look returns the devices of this network namespace.
func Look() (d Devices, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return d, fmt.Errorf("list the network devices: %w", err)
	}
	for _, i := range all {
		switch {
		case len(i.HardwareAddr) != 6 || i.Flags&net.FlagLoopback != 0:
		case strings.HasPrefix(i.Name, "pod"):
			d.Pod = true
		case strings.HasPrefix(i.Name, besideInterfaces):
		default:
			d.Uplinks = append(d.Uplinks, Uplink{i.Name, i.Index})
		}
	}
	return d, nil
}

// followRetry is how long Follow waits after a failure.
const followRetry = time.Second

// Follow guards uplinks that are plugged in later, and exempts the agent once the pod has a network
// of its own, until ctx ends: as soon as the kernel tells, as a rule before a device is brought up. subscribe is
// netlink.LinkSubscribe. What fails is logged, and tried again.
func (f *Firewall) Follow(ctx context.Context, subscribe func(chan<- netlink.LinkUpdate, <-chan struct{}) error) {
	for {
		err := f.follow(ctx, subscribe)
		if ctx.Err() != nil {
			return
		}
		f.log.Error("guard the network devices that are plugged in", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(followRetry):
		}
	}
}

func (f *Firewall) follow(ctx context.Context, subscribe func(chan<- netlink.LinkUpdate, <-chan struct{}) error) error {
	changes, done := make(chan netlink.LinkUpdate), make(chan struct{})
	if err := subscribe(changes, done); err != nil {
		return fmt.Errorf("subscribe to changes of network devices: %w", err)
	}
	defer func() {
		close(done)
		for range changes { // whoever sends them waits until they are taken
		}
	}()
	for {
		// Whatever has changed: what counts is which there are now.
		if err := f.cover(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-changes:
			if !ok {
				return errors.New("the kernel tells no more of network devices")
			}
		}
	}
}

// cover guards all uplinks that there are, if they are to be guarded and one of them is not, and sees
// whether the agent is exempt.
func (f *Firewall) cover(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.begun || !f.guarded {
		return nil
	}
	d, err := f.look()
	if err != nil {
		return err
	}
	exempt := f.closed || d.Pod
	late := f.hooked && slices.ContainsFunc(d.Uplinks, func(u Uplink) bool { return !slices.Contains(f.covered, u) })
	if !late && f.exempt != nil && *f.exempt == exempt {
		return nil
	}
	program := setExemption(exempt, f.hooked && !late)
	if late {
		program = append(program, uplinkGuard(true, exempt, d.Uplinks)...)
	}
	if err := f.run(ctx, program); err != nil {
		return err
	}
	if late {
		f.covered = d.Uplinks
	}
	f.exempt = &exempt
	return nil
}

// guardInForce finds the guard of the uplinks in what nft lists.
var guardInForce = regexp.MustCompile(`(?m)^table netdev ` + uplinkTable + ` \{\n(\s*chain )?`)

// uplinkGuard is the guard of these devices, as a program of nft that replaces what
// there was. exempt lets the agent's own packets pass.
func uplinkGuard(guarded, exempt bool, devices []Uplink) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "table netdev %[1]s\ndelete table netdev %[1]s\n", uplinkTable)
	if !guarded { // an agent that starts anew finds that there is none, and why
		fmt.Fprintf(&b, "table netdev %s {\n}\n", uplinkTable)
		return []byte(b.String())
	}
	fmt.Fprintf(&b, "table netdev %s {\n%s", uplinkTable, uplinkRules)
	b.WriteString("\tchain agent {\n")
	if exempt {
		b.WriteString("\t\t" + exemption + "\n")
	}
	b.WriteString("\t}\n")
	for i, d := range devices {
		fmt.Fprintf(&b, "\tchain egress%d {\n\t\ttype filter hook egress device %q priority filter; policy accept;\n\t\tjump agent\n"+
			"\t\t@ll,96,16 { 0x0800, 0x0806, 0x86dd } goto metadata\n\t\tdrop\n\t}\n", i, d.Name)
	}
	b.WriteString("}\n")
	return []byte(b.String())
}
