package firewall

import (
	"fmt"
	"strings"
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

// uplinkGuard is the guard of these devices, as a program of nft that replaces what
// there was.
func uplinkGuard(devices []string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "table netdev %[1]s\ndelete table netdev %[1]s\n", uplinkTable)
	if len(devices) == 0 { // an agent that starts anew finds that there is none, and why
		fmt.Fprintf(&b, "table netdev %s {\n}\n", uplinkTable)
		return []byte(b.String())
	}
	fmt.Fprintf(&b, "table netdev %s {\n%s", uplinkTable, uplinkRules)
	for i, d := range devices {
		fmt.Fprintf(&b, "\tchain egress%d {\n\t\ttype filter hook egress device %q priority filter; policy accept;\n"+
			"\t\t@ll,96,16 { 0x0800, 0x0806, 0x86dd } goto metadata\n\t\tdrop\n\t}\n", i, d)
	}
	b.WriteString("}\n")
	return []byte(b.String())
}
