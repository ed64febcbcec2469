package hardware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/elotl/kip/dev/cloudmodel"
)

// gateway is what is between the instances' subnets and the internet: it lets pass of an instance what its cloud does
// (cloudmodel.Outbound), and drops all else that this host would forward from the bridge. What it knows of an instance is in the sets of an
// nftables table, which goes with the link.
type gateway struct {
	bridge string
	log    *slog.Logger
}

func gatewayTable(bridge string) string { return "kip-model-" + bridge }

// openGateway lets nothing pass of these networks, which are the instances' and their pods'. A host without
// nftables goes on without: there the bridge's pods reach what the host forwards.
func openGateway(ctx context.Context, bridge string, networks []netip.Prefix, log *slog.Logger) *gateway {
	var all []string
	for _, p := range networks {
		all = append(all, p.String())
	}
	g := &gateway{bridge: bridge, log: log}
	// What translates any address has none here: who runs this host translates, or nobody does.
	g.tell(ctx, "table ip "+gatewayTable(bridge)+` {
  set translated { type ipv4_addr; }
  map public { type ipv4_addr : ipv4_addr; }
  set nat { type ipv4_addr; flags interval; }
  chain forward {
    type filter hook forward priority filter; policy accept;
    iifname != "`+bridge+`" return
    oifname "`+bridge+`" return
    ct state established,related return
    ip saddr @translated return
    ip saddr @nat return
    ip saddr { `+strings.Join(all, ", ")+` } drop
  }
  chain postrouting {
    type nat hook postrouting priority srcnat + 10; policy accept;
    oifname != "`+bridge+`" snat to ip saddr map @public
  }
}
`)
	return g
}

func (g *gateway) tell(ctx context.Context, program string) {
	if err := runNft(ctx, program); err != nil {
		g.log.Warn("the internet gateway of the cloud's model does not know all: nothing is dropped or translated for it", "bridge", g.bridge, "err", err)
	}
}

// plug lets pass what the cloud does of an instance, as often as one likes.
func (g *gateway) plug(ctx context.Context, out cloudmodel.Outbound) { g.change(ctx, "add", out) }

// unplug takes that back.
func (g *gateway) unplug(ctx context.Context, out cloudmodel.Outbound) { g.change(ctx, "delete", out) }

func (g *gateway) change(ctx context.Context, verb string, out cloudmodel.Outbound) {
	table, program := gatewayTable(g.bridge), ""
	element := func(set, format string, args ...any) {
		program += fmt.Sprintf("%s element ip %s %s { %s }\n", verb, table, set, fmt.Sprintf(format, args...))
	}
	if out.Public.IsValid() {
		element("translated", "%s", out.Primary)
		element("public", "%s : %s", out.Primary, out.Public)
	}
	if out.NAT {
		element("nat", "%s, %s", out.Primary, out.Pods)
	}
	if program != "" {
		g.tell(ctx, program)
	}
}

// closeGateway removes the table, if there is one. A host without nft has none.
func closeGateway(ctx context.Context, bridge string) error {
	table := "table ip " + gatewayTable(bridge)
	// What is added if it is missing can be deleted, so that a failure is never that there is none.
	if err := runNft(ctx, "add "+table+"\ndelete "+table+"\n"); !errors.Is(err, exec.ErrNotFound) {
		return err
	}
	return nil
}

func runNft(ctx context.Context, program string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(program)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft -f -: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
