package host

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// agentPort is that of the agents, agentapi.Port, which only Kip dials.
	agentPort = 6421
	// nftTimeout bounds one run of nft, which takes some 20 ms.
	nftTimeout = 20 * time.Second
)

// agentsTable names what keeps cells and pods from the agents of others: a table of the
// bridge's firewall, and one of the host's.
func (c Config) agentsTable() string { return "kip-agents-" + c.Bridge }

// cableGroup is the group of devices of all cables on the bridge, guests' included. Rules
// know them by it: not every kernel tells them of which bridge a device is.
func (c Config) cableGroup() uint32 {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte("kip " + c.Bridge))
	return sum.Sum32()>>2 | 1<<30 // far from the small numbers that people give
}

// agentsRules is the program for nft that drops what comes to the agents from anywhere but
// this host, where Kip is, and AgentSources. Pods may have the same port for what they like.
//
// On the bridge other protocols are dropped as well. A machine takes a frame for its own
// whatever empty VLAN tags are before the packet, and no rule looks behind two. What is
// forwarded is that of who sends by the host, from wherever.
func (c Config) agentsRules() string {
	bits := c.CIDR.Bits()
	var rules string
	for _, source := range c.AgentSources {
		rules += fmt.Sprintf("ip saddr %s tcp dport %d accept\n\t\t", source, agentPort)
	}
	rules += fmt.Sprintf("ip daddr != %s tcp dport %d drop", netip.PrefixFrom(network{c.CIDR}.pod(0), bits+1), agentPort)
	six := fmt.Sprintf("meta protocol ip6 tcp dport %d drop", agentPort)
	if c.IPv6CIDR.IsValid() {
		six = fmt.Sprintf("ip6 daddr != %s tcp dport %d drop", netip.PrefixFrom(c.networkIPv6().pod(0), maxIPv6Bits+bits+1), agentPort)
	}
	return fmt.Sprintf(`add table bridge %[1]s
delete table bridge %[1]s
add table inet %[1]s
delete table inet %[1]s
table bridge %[1]s {
	chain forward {
		type filter hook forward priority filter
		iifgroup != %[2]d accept
		ether type != { ip, ip6, arp } drop
		%[4]s
		%[5]s
	}
}
table inet %[1]s {
	chain forward {
		type filter hook forward priority filter
		oifname != "%[3]s" accept
		%[4]s
		%[5]s
	}
}
`, c.agentsTable(), c.cableGroup(), c.Bridge, rules, six)
}

// guardAgents brings the rules into force, in the place of earlier ones. Without them
// the agents guard themselves, so a host that cannot have them is told of it, and used.
func guardAgents(ctx context.Context, cfg Config) {
	if _, err := nft(ctx, cfg.agentsRules(), "-f", "-"); err != nil {
		cfg.Log.WarnContext(ctx, "the host keeps cells and pods from no agent of others, which refuse them themselves",
			"bridge", cfg.Bridge, "mend", "install nftables, and a kernel that has tables of the bridge (CONFIG_NF_TABLES_BRIDGE)", "err", err)
	}
}

// group has the rules know a cable.
func group(cfg Config, l netlink.Link) error {
	if err := netlink.LinkSetGroup(l, int(cfg.cableGroup())); err != nil {
		return fmt.Errorf("give network device %s its group: %w", l.Attrs().Name, err)
	}
	return nil
}

// agentsTables are the tables of this cloud that there are, as nft names them.
func agentsTables(ctx context.Context, cfg Config) (tables []string) {
	if cfg.guest() {
		return nil
	}
	out, err := nft(ctx, "", "list", "tables")
	if err != nil {
		return nil // no nft, or a kernel without it: nobody has made any
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == cfg.agentsTable() {
			tables = append(tables, f[1]+" "+f[2])
		}
	}
	return tables
}

// unguardAgents removes the tables.
func unguardAgents(ctx context.Context, cfg Config) error {
	for _, t := range agentsTables(ctx, cfg) {
		if _, err := nft(ctx, "delete table "+t+"\n", "-f", "-"); err != nil {
			return fmt.Errorf("remove the nftables table %s: %w", t, err)
		}
	}
	return nil
}

// nft runs the program nft, and returns what it printed.
func nft(ctx context.Context, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, nftTimeout)
	defer cancel()
	path, err := exec.LookPath("nft")
	if err != nil {
		path = "/usr/sbin/nft" // as where PATH is a user's
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out))
	}
	return string(out), nil
}
