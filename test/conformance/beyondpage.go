package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// beyondPage is docs/conformance-beyond.md.
func beyondPage(b *beyond, nodes, kip Results) string {
	var p strings.Builder
	p.WriteString("# Beyond conformance\n\n<!-- Generated from test/conformance by: make conformance-page SUITE=beyond -->\n" + `
Upstream has more specs than those of [conformance](conformance.md). This page lists those that an ordinary node passes on the development
cluster and Kip does not, with reasons.

` + "```\nmake conformance SUITE=beyond FOCUS='sig-node.*Sysctls'              # with Kip\n" +
		"make conformance SUITE=beyond FOCUS='sig-node.*Sysctls' MODE=nodes   # with ordinary nodes\n```\n\n" +
		"`test/conformance/beyond.yaml` chooses " + strconv.Itoa(len(kip.Specs)+len(kip.Missing)) + " specs of e2e.test " + Release +
		", unmodified.\n" + ranWithKip(kip) + "\nOrdinary nodes run what does not pass with Kip.\n\n")
	writeCounts(&p, nodes, kip)
	p.WriteString("\n## What an ordinary node passes and Kip does not\n\n")
	failing := notFine(kip, nil)
	writeExceptions(&p, b.Differ, failing)
	known := slices.Concat(b.Differ, b.Nodes)
	if rest := notFine(kip, known); len(rest) > 0 {
		p.WriteString("Not known yet:\n\n")
		for _, s := range rest {
			fmt.Fprintf(&p, "- %s: %s; on ordinary nodes: %s\n", escape(s), said(kip.Specs[s].Attempt), nodes.cell(s))
		}
		p.WriteString("\n")
	}
	p.WriteString("## What ordinary nodes do not pass here either\n\n")
	writeExceptions(&p, b.Nodes, failing)
	if rest := notFine(nodes, known); len(rest) > 0 {
		p.WriteString("Not known yet:\n\n")
		for _, s := range rest {
			fmt.Fprintf(&p, "- %s: %s\n", escape(s), said(nodes.Specs[s].Attempt))
		}
		p.WriteString("\n")
	}
	if len(kip.Missing) > 0 {
		p.WriteString("## What has not run yet\n\n")
		for _, s := range kip.Missing {
			fmt.Fprintf(&p, "- %s\n", escape(s))
		}
		p.WriteString("\n")
	}
	writeSkips(&p, kip)
	p.WriteString("## What is not run\n\n| specs | reason |\n| --- | --- |\n")
	for _, e := range b.Leave {
		fmt.Fprintf(&p, "| `%s` | %s |\n", strings.ReplaceAll(e.Specs, "|", `\|`), oneLine(e.Why))
	}
	return p.String()
}

// ranWithKip says how many of the chosen specs have run.
func ranWithKip(kip Results) string {
	if len(kip.Missing) == 0 {
		return "All have run with Kip."
	}
	return fmt.Sprintf("%d have run with Kip; [the others](#what-has-not-run-yet) have not run yet.", len(kip.Specs))
}

// writeSkips says what specs say that leave themselves out, and how many do.
func writeSkips(p *strings.Builder, kip Results) {
	count := map[string]int{}
	for _, r := range kip.Specs {
		if r.State == skipped {
			count[cmp.Or(shortened(r.Failure), "(not recorded)")]++
		}
	}
	if len(count) == 0 {
		return
	}
	p.WriteString("## What leaves itself out on this cluster\n\n| what it says | specs |\n| --- | --- |\n")
	for _, why := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(p, "| %s | %d |\n", escape(why), count[why])
	}
	p.WriteString("\n")
}

// notFine are those specs, in order, that ran and neither passed nor left themselves out, and are none of the known.
func notFine(r Results, known []exception) []string {
	return slices.DeleteFunc(r.list(), func(s string) bool {
		_, is := named(known, s)
		return is || r.Specs[s].State == passed || r.Specs[s].State == skipped
	})
}

// writeCounts says by area what became of the specs that have run.
func writeCounts(p *strings.Builder, nodes, kip Results) {
	p.WriteString("| area | with Kip: passed | not for this cluster | did not pass | ordinary nodes: passed | not for this cluster | did not pass |\n" +
		"| --- | --- | --- | --- | --- | --- | --- |\n")
	var areas []string
	for _, s := range slices.Concat(nodes.list(), kip.list()) {
		areas = append(areas, area(s))
	}
	slices.Sort(areas)
	for _, a := range slices.Compact(areas) {
		fmt.Fprintf(p, "| %s |%s |%s |\n", a, kip.counts(a), nodes.counts(a))
	}
	for _, r := range []Results{kip, nodes} {
		if len(r.Specs) > 0 {
			fmt.Fprintf(p, "\nWith %s on %s.\n", names[r.Mode], r.on())
		}
	}
}

// counts are three cells of a table: of an area, how many specs have passed, left themselves out, and did not pass.
func (r Results) counts(of string) string {
	var n [3]int
	for s, result := range r.Specs {
		switch {
		case area(s) != of:
		case result.State == passed:
			n[0]++
		case result.State == skipped:
			n[1]++
		default:
			n[2]++
		}
	}
	return fmt.Sprintf(" %d | %d | %d", n[0], n[1], n[2])
}

// writeExceptions says of each why, and which of the failing specs are its.
func writeExceptions(p *strings.Builder, list []exception, failing []string) {
	for _, e := range list {
		fmt.Fprintf(p, "%s", oneLine(e.Why))
		if e.Nature {
			p.WriteString(" This is the nature of one pod a machine.")
		}
		if e.Change != "" {
			fmt.Fprintf(p, " What would change it: %s", oneLine(e.Change))
		}
		p.WriteString("\n\n")
		of := slices.DeleteFunc(slices.Clone(failing), func(s string) bool {
			first, _ := named(list, s)
			return first.Specs != e.Specs
		})
		for _, s := range of {
			fmt.Fprintf(p, "- %s\n", escape(s))
		}
		if len(of) == 0 {
			fmt.Fprintf(p, "- `%s`\n", e.Specs)
		}
		p.WriteString("\n")
	}
}
