package firewall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agentapi"
)

var (
	// addresses of any family, a port or a range of ports, in a program of nft
	addressWords = regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+(/[0-9]+)?|[0-9a-f]*:[0-9a-f:.]*[0-9a-f:](/[0-9]+)?`)
	portLine     = regexp.MustCompile(`(?m)^\t\t(?:ip6? [sd]addr (@)\S+ )?(sctp|tcp|udp) dport \{ (.*) \} return$`)
)

// constants are the addresses that each program has.
var constants = addressWords.FindAllString(string(closed)+" ::, fe80::/10", -1)

// given are the addresses of rules, as nft is to see them.
func given(fw *agentapi.Firewall) (all []string) {
	for _, d := range []agentapi.Direction{fw.Ingress, fw.Egress} {
		for _, a := range d.Allowed {
			for _, p := range a.Addresses {
				all = append(all, p.String())
				if p.IsSingleIP() {
					all = append(all, p.Addr().String())
				}
			}
		}
	}
	if m := fw.Masquerade; m != nil {
		all = append(all, m.As.String(), "169.254.0.0/16", "224.0.0.0/4")
		for _, p := range m.Except {
			all = append(all, p.String())
		}
	}
	return append(all, podIP, podIPv6)
}

// wrong is what is wrong with rules that were accepted, "" for nothing.
func wrong(fw *agentapi.Firewall, pod6 netip.Addr) string {
	if fw.PodIP.String() != podIP || fw.PodIPv6 != pod6 {
		return "they are another pod's"
	}
	for _, d := range []agentapi.Direction{fw.Ingress, fw.Egress} {
		for _, a := range d.Allowed {
			if a.Any && len(a.Addresses) > 0 || a.AnyPort == (len(a.Ports) > 0) {
				return "they contradict themselves"
			}
			for _, p := range a.Addresses {
				if !p.IsValid() || p.Masked() != p {
					return "a network has bits beyond its length"
				}
			}
			for _, p := range a.Ports {
				if !slices.Contains([]string{"TCP", "UDP", "SCTP"}, p.Protocol) || p.First > p.Last {
					return "ports are none"
				}
			}
		}
	}
	if m := fw.Masquerade; m != nil && (!m.As.Is4() || slices.ContainsFunc(m.Except, func(p netip.Prefix) bool {
		return !p.Addr().Is4() || p.Masked() != p
	})) {
		return "what it masquerades as, or does not, is no IPv4"
	}
	return ""
}

// spans are the ports that rules allow, as nft is to see them, each with whom it is
// allowed: "" for anybody, or "@".
func spans(fw *agentapi.Firewall) map[string]bool {
	all := map[string]bool{}
	for _, d := range []agentapi.Direction{fw.Ingress, fw.Egress} {
		for _, a := range d.Allowed {
			for _, p := range a.Ports {
				span := strconv.Itoa(int(p.First))
				if p.Last != p.First {
					span += "-" + strconv.Itoa(int(p.Last))
				}
				span = strings.ToLower(p.Protocol) + " " + span
				switch {
				case !d.Isolated:
				case a.Any:
					all[span] = true
				case len(a.Addresses) > 0:
					all["@"+span] = true
				}
			}
		}
	}
	return all
}

// FuzzApply holds that a program of nft says no more than the rules that it is made of,
// and that what is wrong with rules is found before nft is asked.
func FuzzApply(f *testing.F) {
	add := func(fw agentapi.Firewall) {
		encoded, err := json.Marshal(fw)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(fw.PodIPv6.IsValid(), encoded)
	}
	add(sample())
	dual := sample()
	dual.PodIPv6 = netip.MustParseAddr(podIPv6)
	dual.AllowMetadata = true
	dual.Egress.Allowed = append(dual.Egress.Allowed, agentapi.Allowed{Addresses: prefixes("fd00::7/128", "::/0", "0.0.0.0/0"), AnyPort: true})
	add(dual)
	masqueraded := sample()
	masqueraded.Masquerade = &agentapi.Masquerade{As: netip.MustParseAddr(cellIP), Except: prefixes("10.0.0.0/8", "192.0.2.7/32")}
	add(masqueraded)
	for _, rules := range []string{
		`{}`,
		`{"podIP":"10.9.128.2","masquerade":{"as":"10.9.0.2 } chain x {"}}`,
		`{"podIP":"10.9.128.2","masquerade":{"as":"10.9.0.2","except":["10.0.0.0/8","10.1.0.0/16"]}}`,
		`{} {}`,
		`{"podIP":"10.9.128.2"}`,
		`{"podIP":"10.9.128.3"}`,
		`{"podIP":"10.9.128.2","secrecy":true}`,
		`{"podIP":"10.9.128.2","ingress":{"isolated":true}}`,
		`{"podIP":"10.9.128.2","egress":{"isolated":true,"allowed":[{"any":true,"anyPort":true}]}}`,
		`{"podIP":"10.9.128.2","egress":{"isolated":true,"allowed":[{"any":true,"ports":[{"protocol":"TCP","first":80,"last":81}]}]}}`,
		`{"podIP":"10.9.128.2","pod":"} \n table inet evil { chain x { accept"}`,
		`{"podIP":"10.9.128.2","egress":{"isolated":true,"allowed":[{"any":true}]}}`,
		`{"podIP":"10.9.128.2","egress":{"isolated":true,"allowed":[{"addresses":["10.0.0.1/8"],"anyPort":true}]}}`,
		`{"podIP":"10.9.128.2","egress":{"isolated":true,"allowed":[{"addresses":["::ffff:10.0.0.0/104","fe80::%eth0/64"],"anyPort":true}]}}`,
		`{"podIP":"10.9.128.2","egress":{"isolated":true,"allowed":[{"any":true,"ports":[{"protocol":"tcp dport 1 accept; #","first":1,"last":1}]}]}}`,
		`{"podIP":"10.9.128.2","egress":{"isolated":true,"allowed":[{"any":true,"ports":[{"protocol":"TCP","first":2,"last":1}]}]}}`,
		`{"podIP":"10.9.128.2","ingress":{"isolated":true,"allowed":[{"any":true,"addresses":["10.0.0.0/8"],"anyPort":true}]}}`,
		`{"podIP":"10.9.128.2","podIPv6":"fd00::1%} chain x {"}`,
	} {
		f.Add(false, []byte(rules))
		f.Add(true, []byte(rules))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, six bool, encoded []byte) {
		var program []byte
		asked := 0
		fire := New(dir, func(_ context.Context, args ...string) (string, error) {
			asked++
			var err error
			program, err = os.ReadFile(args[len(args)-1])
			return "", err
		}, noDevices, slog.New(slog.DiscardHandler))
		pod6 := netip.Addr{}
		if six {
			pod6 = netip.MustParseAddr(podIPv6)
		}
		if err := fire.Apply(t.Context(), netip.MustParseAddr(podIP), pod6, nil, encoded); err != nil {
			if !errors.As(err, new(ErrInvalid)) || asked != 0 || fire.Digest() != "" {
				t.Fatalf("nft was asked %d times, %q is in force: %v", asked, fire.Digest(), err)
			}
			return
		}
		var fw agentapi.Firewall
		d := json.NewDecoder(bytes.NewReader(encoded))
		d.DisallowUnknownFields()
		if err := d.Decode(&fw); err != nil || asked != 1 || fire.Digest() != agentapi.Digest(encoded) {
			t.Fatalf("nft was asked %d times, %q is in force: %v", asked, fire.Digest(), err)
		}
		if problem := wrong(&fw, pod6); problem != "" {
			t.Fatalf("accepted, though %s: %+v", problem, fw)
		}
		if bytes.ContainsFunc(program, func(r rune) bool { return r != '\t' && r != '\n' && (r < ' ' || r > '~') }) {
			t.Fatalf("not all of it is printable: %q", program)
		}
		depth := 0
		for _, line := range strings.Split(string(program), "\n") {
			depth += strings.Count(line, "{") - strings.Count(line, "}")
			if depth < 0 || depth > 3 || depth == 0 && !slices.Contains([]string{"table inet kip", "delete table inet kip", "}", ""}, line) {
				t.Fatalf("line %q is outside of the table:\n%s", line, program)
			}
		}
		if depth != 0 {
			t.Fatalf("its braces do not match:\n%s", program)
		}
		known := append(given(&fw), constants...)
		addresses := strings.ReplaceAll(string(program), ":"+sourcePorts+"\n", "\n")
		for _, address := range addressWords.FindAllString(addresses, -1) {
			if !slices.Contains(known, address) {
				t.Fatalf("%s is in no rule:\n%s", address, program)
			}
		}
		for name, d := range map[string]agentapi.Direction{"ingress": fw.Ingress, "egress": fw.Egress} {
			_, chain, isolated := strings.Cut(string(program), "\tchain "+name+" {\n")
			chain, _, _ = strings.Cut(chain, "\t}\n")
			if isolated != d.Isolated || isolated && !strings.HasSuffix(chain, "\t\tdrop\n") ||
				isolated != strings.Contains(string(program), "\t\tgoto "+name+"\n") {
				t.Fatalf("%s, isolated: %v, is as in:\n%s", name, d.Isolated, program)
			}
			everything := slices.ContainsFunc(d.Allowed, func(a agentapi.Allowed) bool { return a.Any && a.AnyPort })
			if isolated && strings.Contains("\n"+chain, "\n\t\treturn\n") != everything {
				t.Fatalf("%s allows everything, or does not:\n%s", name, program)
			}
		}
		listed := map[string]bool{}
		for _, m := range portLine.FindAllStringSubmatch(string(program), -1) {
			for _, span := range strings.Split(m[3], ", ") {
				listed[m[1]+m[2]+" "+span] = true
			}
		}
		if want := spans(&fw); !maps.Equal(listed, want) {
			t.Fatalf("it allows %v, the rules %v:\n%s", listed, want, program)
		}
	})
}
