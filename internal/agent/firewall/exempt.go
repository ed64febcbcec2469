package firewall

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// agentMark is on what the agent itself asks metadata services. Who is in the machine's network may
// set it, too, as a pod of the host's network may: so it counts only on a machine that has no such pod.
// Bits 14 and 15 are kube-proxy's, which changes what has them (--iptables-masquerade-bit).
const agentMark = 0x6b690001

// Exempt marks a socket, as Control of a net.Dialer, so that it reaches metadata services where the
// firewall keeps everybody else from them. Who may set no mark goes on without it: a machine that
// needs it has an agent that may.
func Exempt(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, agentMark) }); e != nil {
		return e
	}
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mark a socket: %w", err)
	}
	return nil
}

// exemption is the rule that lets the agent's own packets pass.
var exemption = fmt.Sprintf("meta mark %#x accept", agentMark)

// setExemption is a program of nft that changes the rule, and nothing else of the tables: hooks at
// devices that are in use stay as they are. hooked says that the uplinks are guarded.
func setExemption(exempt, hooked bool) []byte {
	program := ""
	set := func(table string) {
		program += "add chain " + table + " agent\nflush chain " + table + " agent\n"
		if exempt {
			program += "add rule " + table + " agent " + exemption + "\n"
		}
	}
	set("inet kip")
	if hooked {
		set("netdev " + uplinkTable)
	}
	return []byte(program)
}
