package stack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud/host"
	"github.com/elotl/kip/internal/netdump"
)

// With Options.Masquerade this machine routes what pods and cells send to the internet, as the network of a
// node does. The rules are one nftables table for each stack. Its set named closed has the devices that
// forwarded no packets before. Once no stack needs them, they forward none again.

// masqueradePrefix begins the names of the tables.
const masqueradePrefix = "kip-masquerade-"

// masqueradeLock serializes the changes of several runs on this machine.
const masqueradeLock = "/run/kip-masquerade.lock"

// masquerading are the rules of this machine by which cells and pods reach the internet.
type masquerading struct{ *site }

// masqueradeTable is named for the state folder, so that no run removes the rules of another.
func (s *masquerading) masqueradeTable() string {
	sum := sha256.Sum256([]byte(s.opts.State))
	return masqueradePrefix + hex.EncodeToString(sum[:4])
}

// masqueradeRecord is the file that lists the closed devices, from before they forward packets until they
// forward none again: somebody may flush this machine's nftables in between.
func (s *masquerading) masqueradeRecord() string { return s.path("masquerade.json") }

// forwarding is the file that says whether packets that come in by a device are forwarded.
func forwarding(device string) string {
	return filepath.Join("/proc/sys/net/ipv4/conf", device, "forwarding")
}

// startMasquerade adds the rules. The bridges are there. A machine that cannot masquerade, or has no default
// route, runs all the same: its pods reach no address beyond the bridge.
func (s *masquerading) startMasquerade(ctx context.Context) {
	if !s.opts.Masquerade {
		return
	}
	switch err := s.masquerade(ctx); {
	case errors.Is(err, errNoUplink):
		s.opts.Log.WarnContext(ctx, "this machine has no default IPv4 route: pods reach no address beyond the bridge", "bridge", s.opts.Bridge)
	case err != nil:
		s.opts.Log.WarnContext(ctx, "this machine does not masquerade: pods reach no address beyond the bridge",
			"bridge", s.opts.Bridge, "err", err)
	default:
		s.warnOfFirewall(ctx)
	}
}

var errNoUplink = errors.New("no default IPv4 route")

// masquerade adds the rules. stopMasquerade removes what it adds before an error.
func (s *masquerading) masquerade(ctx context.Context) error {
	uplinks, err := uplinks()
	if err != nil {
		return err
	}
	if len(uplinks) == 0 {
		return errNoUplink
	}
	unlock, err := lockMasquerade()
	if err != nil {
		return err
	}
	defer unlock()
	closed, err := closedUplinks(ctx, uplinks)
	if err != nil {
		return err
	}
	if err := s.recordMasquerade(closed); err != nil {
		return err
	}
	if err := nft(ctx, s.masqueradeRules(uplinks, closed)); err != nil {
		return err
	}
	for _, device := range append(closed, s.bridges()...) {
		if err := setForwarding(device, "1"); err != nil {
			return fmt.Errorf("forward packets from device %s: %w", device, err)
		}
	}
	return nil
}

// setForwarding writes only what changes: in many containers /proc/sys is read-only.
func setForwarding(device, to string) error {
	is, err := os.ReadFile(forwarding(device))
	if err != nil || string(bytes.TrimSpace(is)) == to {
		return err
	}
	return os.WriteFile(forwarding(device), []byte(to+"\n"), 0)
}

func (s *masquerading) recordMasquerade(closed []string) error {
	b, err := json.Marshal(closed)
	if err != nil {
		return fmt.Errorf("record the devices that forward no packets: %w", err)
	}
	if err := os.WriteFile(s.masqueradeRecord(), b, 0o600); err != nil {
		return fmt.Errorf("record the devices that forward no packets: %w", err)
	}
	return nil
}

// warnOfFirewall names the firewall that drops what this machine forwards, as Docker sets it up. No rule of
// another table can accept what one drops.
func (s *masquerading) warnOfFirewall(ctx context.Context) {
	if host.FirewallDrops(ctx, s.opts.Bridge) {
		const fix = "iptables -I FORWARD -i %[1]s -j ACCEPT; " +
			"iptables -I FORWARD -o %[1]s -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
		s.opts.Log.WarnContext(ctx, "the firewall of this machine drops what pods send to the internet",
			"bridge", s.opts.Bridge, "fix", fmt.Sprintf(fix, s.opts.Bridge))
	}
}

// masqueradeRules is the table as nft reads it. The filter comes before the masquerade: nobody beyond the
// uplinks begins a connection to a cell, and to nobody else by a device that forwarded nothing before. The
// addresses of metadata services are for this machine alone, with the credentials of its cloud: link-local,
// Azure's WireServer 168.63.129.16, Alibaba Cloud's 100.100.100.200 (as their references say).
func (s *masquerading) masqueradeRules(uplinks, closed []string) string {
	set := func(name string, devices []string) string {
		elements := ""
		if len(devices) > 0 {
			elements = " elements = { \"" + strings.Join(devices, `", "`) + `" };`
		}
		return fmt.Sprintf("  set %s { type ifname;%s }\n", name, elements)
	}
	return "table ip " + s.masqueradeTable() + " {\n" +
		set("bridges", s.bridges()) + set("uplinks", uplinks) + set("closed", closed) +
		`  chain forward {
    type filter hook forward priority filter - 10; policy accept;
    iifname @bridges ip daddr { 169.254.0.0/16, 168.63.129.16, 100.100.100.200 } drop
    iifname @uplinks oifname @bridges ct state != { established, related } drop
    iifname @closed ct state != { established, related } drop
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr ` + s.opts.CIDR.String() + ` oifname @uplinks masquerade
  }
}
`
}

// stopMasquerade removes the rules of this stack, also those of a run that was killed.
func (s *masquerading) stopMasquerade(ctx context.Context) error {
	b, err := os.ReadFile(s.masqueradeRecord())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which devices forwarded no packets: %w", err)
	}
	var closed []string
	if err := json.Unmarshal(b, &closed); err != nil {
		return fmt.Errorf("read which devices forwarded no packets from %s: %w", s.masqueradeRecord(), err)
	}
	unlock, err := lockMasquerade()
	if err != nil {
		return err
	}
	defer unlock()
	tables, err := masqueradeTables(ctx)
	if err != nil {
		s.opts.Log.WarnContext(ctx, "this machine's nftables cannot be listed", "err", err) // then it has none of Kip's
	}
	_, there := tables[s.masqueradeTable()]
	delete(tables, s.masqueradeTable())
	if err := stopForwarding(closed, slices.Concat(slices.Collect(maps.Values(tables))...)); err != nil {
		return err
	}
	if there {
		if err := nft(ctx, "delete table ip "+s.masqueradeTable()+"\n"); err != nil {
			return err
		}
	}
	return os.Remove(s.masqueradeRecord())
}

// stopForwarding has devices forward no more packets, but for those that other stacks have opened too: the
// last one closes them. Somebody who has turned forwarding on for the whole machine since needs them open.
func stopForwarding(closed, opened []string) error {
	all, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		return fmt.Errorf("read whether this machine forwards packets: %w", err)
	}
	if string(bytes.TrimSpace(all)) != "0" {
		return nil
	}
	for _, device := range closed {
		if slices.Contains(opened, device) {
			continue
		}
		if err := setForwarding(device, "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forward no more packets from device %s: %w", device, err)
		}
	}
	return nil
}

// masqueradeLeftovers names what this stack has changed on this machine.
func (s *masquerading) masqueradeLeftovers() ([]string, error) {
	switch _, err := os.Stat(s.masqueradeRecord()); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []string{"nftables table ip " + s.masqueradeTable()}, nil
}

// uplinks are the devices of this machine's IPv4 default routes.
func uplinks() ([]string, error) {
	routes, err := netdump.Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list this machine's routes: %w", err)
	}
	var devices []string
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		indexes := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
		for _, index := range indexes {
			if link, err := netlink.LinkByIndex(index); err == nil { // else it has gone, or there are several
				devices = append(devices, link.Attrs().Name)
			}
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices), nil
}

// closedUplinks are those that forward nothing, but for a stack that runs.
func closedUplinks(ctx context.Context, uplinks []string) (closed []string, err error) {
	tables, err := masqueradeTables(ctx)
	if err != nil {
		return nil, err
	}
	opened := slices.Concat(slices.Collect(maps.Values(tables))...)
	for _, device := range uplinks {
		b, err := os.ReadFile(forwarding(device))
		if err != nil {
			return nil, fmt.Errorf("read whether device %s forwards packets: %w", device, err)
		}
		if string(bytes.TrimSpace(b)) == "0" || slices.Contains(opened, device) {
			closed = append(closed, device)
		}
	}
	return closed, nil
}

// masqueradeTables are the closed devices of all stacks on this machine, by the name of the table. A machine
// without nft has none.
func masqueradeTables(ctx context.Context) (map[string][]string, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, nil
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "nft", "-j", "list", "sets", "ip")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list this machine's nftables sets: %w: %s", err, stderr.Bytes())
	}
	var listing struct {
		Nftables []struct {
			Set struct {
				Table, Name string
				Elem        json.RawMessage // of sets of others it may have any form
			}
		}
	}
	if err := json.Unmarshal(out, &listing); err != nil {
		return nil, fmt.Errorf("read the list of nftables sets: %w", err)
	}
	tables := map[string][]string{}
	for _, o := range listing.Nftables {
		if o.Set.Name != "closed" || !strings.HasPrefix(o.Set.Table, masqueradePrefix) {
			continue
		}
		var devices []string
		if len(o.Set.Elem) > 0 { // nft leaves an empty list out
			if err := json.Unmarshal(o.Set.Elem, &devices); err != nil {
				return nil, fmt.Errorf("read the nftables set closed of %s: %w", o.Set.Table, err)
			}
		}
		tables[o.Set.Table] = devices
	}
	return tables, nil
}

func nft(ctx context.Context, rules string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft -f -: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func lockMasquerade() (unlock func(), err error) {
	f, err := os.OpenFile(masqueradeLock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the rules of masquerading: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the rules of masquerading: %w", err)
	}
	return func() { f.Close() }, nil
}
