package aws

import (
	"bytes"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud/sim"
)

// ofLBC is how the AWS Load Balancer Controller describes its rules. Source: its pkg/targetgroupbinding,
// networking_manager.go.
const ofLBC = "elbv2.k8s.aws/targetGroupBinding=shared"

// cellsGroupOf is a model's only group of cells.
func cellsGroupOf(t *testing.T, model *ec2.Model) ec2.Group {
	t.Helper()
	all := model.Groups.All()
	n := slices.IndexFunc(all, func(g ec2.Group) bool { return g.Name == nameOfGroup(owner) })
	if n < 0 {
		t.Fatalf("there is no group of cells among %+v", all)
	}
	return all[n]
}

// changeRules changes the rules of the group of cells, as somebody else does.
func changeRules(t *testing.T, model *ec2.Model, change func([]ec2.Rule) []ec2.Rule) {
	t.Helper()
	id := cellsGroupOf(t, model).ID
	model.Change(func(cfg *ec2.Config) {
		n := slices.IndexFunc(cfg.Groups, func(g ec2.Group) bool { return g.ID == id })
		cfg.Groups[n].Rules = change(slices.Clone(cfg.Groups[n].Rules))
	})
}

// byDescription are the sources of the rules of the agents' port and of those of others, by their description.
func byDescription(g ec2.Group) map[string][]string {
	all := map[string][]string{}
	for _, r := range g.Rules {
		if r.Description != ownDescription || r.From == agentPort {
			all[r.Description] = append(all[r.Description], r.Source)
		}
	}
	for _, sources := range all {
		slices.Sort(sources)
	}
	return all
}

func is(t *testing.T, what string, got, want map[string][]string) {
	t.Helper()
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%s: the sources of rules are %v, want %v", what, got, want)
	}
}

func TestRulesOfOthersStayInTheGroupOfCells(t *testing.T) {
	var log bytes.Buffer
	model, url := serve(t, anAccount(sim.Knobs{}))
	cfg := settings(url)
	cfg.KipSources, cfg.Log = []string{"sg-here"}, slog.New(slog.NewTextHandler(&log, nil))
	c := open(t, cfg)
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	changeRules(t, model, func(rules []ec2.Rule) []ec2.Rule {
		return append(rules,
			ec2.Rule{Protocol: "tcp", From: 1024, To: 65535, Source: "sg-lb", Description: ofLBC},
			ec2.Rule{Protocol: "tcp", From: 22, To: 22, Source: "192.0.2.0/24"},
			// What Kip wants soon, described by somebody else.
			ec2.Rule{Protocol: "tcp", From: agentPort, To: agentPort, Source: "sg-next", Description: "bastion"})
	})
	admit := func(what string, want map[string][]string) {
		t.Helper()
		if err := c.Admit(t.Context(), owner); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		is(t, what, byDescription(cellsGroupOf(t, model)), want)
	}
	others := map[string][]string{ofLBC: {"sg-lb"}, "": {"192.0.2.0/24"}, "bastion": {"sg-next"}}
	with := func(own ...string) map[string][]string {
		all := maps.Clone(others)
		if len(own) > 0 {
			all[ownDescription] = own
		}
		return all
	}
	admit("beside Kip's", with("sg-here"))
	c.cfg.KipSources = []string{"sg-there"}
	admit("after a move", with("sg-there"))
	c.cfg.KipSources = []string{"sg-next"}
	admit("with a rule of somebody else that serves Kip", with())
	changes := model.Calls()
	admit("and again", with())
	for _, action := range []string{"AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"} {
		if now := model.Calls()[action]; now != changes[action] {
			t.Errorf("nothing has changed, and %s was called", action)
		}
	}
}

// Kip removes what it made, and tells of what others made.
func TestRulesOfOthersAreLeftAloneAndTold(t *testing.T) {
	var log bytes.Buffer
	model, url := serve(t, anAccount(sim.Knobs{}))
	cfg := settings(url)
	var told []string
	cfg.KipSources, cfg.Log = []string{"sg-here"}, slog.New(slog.NewTextHandler(&log, nil))
	cfg.AgentsOpen = func(_ string, _ int, rules string) { told = append(told, rules) }
	c := open(t, cfg)
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil || len(told) > 0 {
		t.Fatal(err, told)
	}
	changeRules(t, model, func(rules []ec2.Rule) []ec2.Rule {
		return append(rules, ec2.Rule{Protocol: "tcp", From: agentPort, To: agentPort, Source: "sg-before"},
			ec2.Rule{Protocol: "tcp", From: 1024, To: 65535, Source: "0.0.0.0/0", Description: "temporary"},
			ec2.Rule{Protocol: "tcp", From: 22, To: 22, Source: "0.0.0.0/0", Description: "bastion"})
	})
	for range 2 {
		if err := c.Admit(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
	}
	is(t, "with rules of others", byDescription(cellsGroupOf(t, model)), map[string][]string{
		ownDescription: {"sg-here"}, "": {"sg-before"}, "temporary": {"0.0.0.0/0"}, "bastion": {"0.0.0.0/0"},
	})
	if len(told) != 1 {
		t.Errorf("want it told once that rules open agents: %q", told)
	}
	for _, source := range []string{"tcp 6421-6421 from sg-before", "tcp 1024-65535 from 0.0.0.0/0"} {
		if len(told) > 0 && !strings.Contains(told[0], source) {
			t.Errorf("no word of %s: %s", source, told[0])
		}
	}
	if text := log.String(); strings.Count(text, "reach the port of agents") != 1 || strings.Contains(text, "22-22") ||
		!strings.Contains(text, "tcp 1024-65535 from 0.0.0.0/0") {
		t.Errorf("want it told once what lets others reach agents: %s", text)
	}
	changeRules(t, model, func(rules []ec2.Rule) []ec2.Rule {
		return append(rules, ec2.Rule{Protocol: "-1", Source: "198.51.100.0/24", Description: "debug"})
	})
	if err := c.Admit(t.Context(), owner); err != nil || len(told) != 2 || !strings.Contains(told[1], "198.51.100.0/24") {
		t.Errorf("with another rule: %v, %q", err, told)
	}
	c.cfg.KipSources = []string{"sg-there"}
	if err := c.Admit(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	is(t, "after a move", byDescription(cellsGroupOf(t, model)), map[string][]string{
		ownDescription: {"sg-there"}, "": {"sg-before"}, "temporary": {"0.0.0.0/0"}, "bastion": {"0.0.0.0/0"}, "debug": {"198.51.100.0/24"},
	})
}

// That a rule is there for a while may be what an attacker wants, so each time counts. A rule without a description is what a person
// types.
func TestARuleThatComesAgainIsToldAgain(t *testing.T) {
	for _, tc := range []struct {
		what, log, not string
		rule           ec2.Rule
		told           int // Events
	}{
		{"that opens the agents", "reach the port of agents", "remove those that you do not need",
			ec2.Rule{Protocol: "tcp", From: agentPort, To: agentPort, Source: "0.0.0.0/0"}, 2},
		{"that does not", "remove those that you do not need", "reach the port of agents",
			ec2.Rule{Protocol: "udp", From: 0, To: 65535, Source: "0.0.0.0/0"}, 0},
	} {
		var log bytes.Buffer
		model, url := serve(t, anAccount(sim.Knobs{}))
		cfg, told := settings(url), 0
		cfg.KipSources, cfg.Log = []string{"sg-here"}, slog.New(slog.NewTextHandler(&log, nil))
		cfg.AgentsOpen = func(string, int, string) { told++ }
		c := open(t, cfg)
		if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
			t.Fatal(err)
		}
		own := cellsGroupOf(t, model).Rules
		for range 2 {
			changeRules(t, model, func([]ec2.Rule) []ec2.Rule { return append(slices.Clone(own), tc.rule) })
			for range 2 {
				if err := c.Admit(t.Context(), owner); err != nil {
					t.Fatal(err)
				}
			}
			changeRules(t, model, func([]ec2.Rule) []ec2.Rule { return own })
			if err := c.Admit(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
		}
		if text := log.String(); strings.Count(text, tc.log) != 2 || strings.Contains(text, tc.not) || told != tc.told {
			t.Errorf("a rule %s comes twice: %d Events, want %d; and the log says %s", tc.what, told, tc.told, text)
		}
	}
}

func TestAGroupThatIsFullOfRulesOfOthersSaysSo(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	c := open(t, settings(url))
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	changeRules(t, model, func(rules []ec2.Rule) []ec2.Rule {
		for n := len(rules); n < maxRules; n++ {
			rules = append(rules, ec2.Rule{Protocol: "tcp", From: n, To: n, Source: "sg-lb", Description: ofLBC})
		}
		return rules
	})
	c.cfg.ExtraCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	err := c.Admit(t.Context(), owner)
	if err == nil || !strings.Contains(err.Error(), "which has 60: remove rules that others made, or raise the quota") {
		t.Errorf("%v", err)
	}
	if got := byDescription(cellsGroupOf(t, model))[ofLBC]; len(got) != maxRules-5 {
		t.Errorf("%d rules of others are left, want %d", len(got), maxRules-5)
	}
}
