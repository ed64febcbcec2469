package main

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// reasonList says why specs do not pass with Kip.
//
//go:embed reasons.yaml
var reasonList []byte

// Reason says why a spec does not pass with Kip.
type Reason struct {
	Spec string `json:"spec"`
	// Nature is true when it cannot, since each pod has a machine of its own.
	Nature bool   `json:"nature"`
	Why    string `json:"why"`
	// Change is what would let it pass.
	Change string `json:"change"`
}

// readReasons reads the reasons, of known specs only.
func readReasons(data []byte, specs []string) (map[string]Reason, error) {
	var all []Reason
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		return nil, fmt.Errorf("reasons.yaml: %w", err)
	}
	reasons := map[string]Reason{}
	for i, r := range all {
		switch {
		case !slices.Contains(specs, r.Spec):
			return nil, fmt.Errorf("reasons.yaml: item %d: spec %q is not in specs.txt", i+1, r.Spec)
		case r.Why == "" || r.Change == "":
			return nil, fmt.Errorf("reasons.yaml: %s: it needs why and change", r.Spec)
		case reasons[r.Spec].Spec != "":
			return nil, fmt.Errorf("reasons.yaml: %s is there twice", r.Spec)
		}
		reasons[r.Spec] = r
	}
	return reasons, nil
}

// summary is the page's first line.
func summary(specs []string, nodes, kip Results) string {
	line := fmt.Sprintf("Conformance %s: ordinary nodes %d of %d, Kip %d of %d", Release, nodes.passing(specs), len(specs),
		kip.passing(specs), len(specs))
	if a, b := nodes.on(), kip.on(); a != b {
		line += fmt.Sprintf("; they are of different commits, ordinary nodes of %s and Kip of %s", a, b)
	}
	for _, r := range []Results{nodes, kip} {
		if lacks := len(specs) - len(r.Specs); lacks > 0 {
			line += fmt.Sprintf("; %s: %d specs have not run", names[r.Mode], lacks)
		}
		for _, commit := range slices.Sorted(maps.Keys(r.commits())) {
			if open := len(r.doubtful(commit)); open > 0 {
				line += fmt.Sprintf("; %s: %d specs are in doubt, by how their run ended", names[r.Mode], open)
			}
		}
	}
	return line
}

// names are what the page calls the modes.
var names = map[string]string{"nodes": "ordinary nodes", "kip": "Kip"}

// on names the commits of the results.
func (r Results) on() string { return strings.Join(slices.Sorted(maps.Keys(r.commits())), ", ") }

// page is docs/conformance.md.
func page(specs []string, nodes, kip Results, reasons map[string]Reason) string {
	var b strings.Builder
	b.WriteString(summary(specs, nodes, kip) + `

<!-- Generated from test/conformance by: make conformance-page -->

# Conformance

Kubernetes' own conformance tests (e2e.test ` + Release + `, unmodified), run against the control plane of ` + "`make run`" + ` in two modes: with
ordinary nodes only, upstream kubelets as machines on one host, which says what the tests can reach here at all; and with
Kip, where the only nodes that pods can be placed on are virtual ones: two of one Kip, or, in runs whose flags do not name
` + "`--virtual-nodes=2`" + `, one each of two Kips. Kip runs in its host's network beside a kube-proxy, as on an ordinary node of a cluster.
Runs whose flags name ` + "`--daemonset-machines`" + ` give pods of DaemonSets machines, which [Kip does only if it is asked](nodes.md#pods-of-daemonsets).

` + "`make conformance`" + ` runs them, ` + "`make conformance MODE=nodes`" + ` the ordinary nodes. [Contributing](../CONTRIBUTING.md) has the rest of it. What of
upstream's other tests does not pass: [beyond conformance](conformance-beyond.md).

The images that the tests name are stand-ins, built from Kubernetes' sources and Debian's packages and served under their
original names. One bears a text of the original: the image kitten says of itself that it is Alpine Linux, for which a test of
image volumes looks.
`)
	b.WriteString("\n## Runs\n\n")
	writeRuns(&b, specs, nodes, kip)
	b.WriteString("\n## What does not pass with Kip\n\n")
	writeFailing(&b, specs, kip, reasons)
	if failing := notPassing(specs, nodes); len(failing) > 0 {
		b.WriteString("\n## What does not pass with ordinary nodes\n\n")
		for _, s := range failing {
			fmt.Fprintf(&b, "- %s: %s\n", escape(s), said(nodes.Specs[s].Attempt))
		}
	}
	b.WriteString("\n## All\n")
	areas := map[string][]string{}
	var names []string
	for _, s := range specs {
		a := area(s)
		if areas[a] == nil {
			names = append(names, a)
		}
		areas[a] = append(areas[a], s)
	}
	slices.Sort(names)
	for _, a := range names {
		fmt.Fprintf(&b, "\n### %s: ordinary nodes %d of %d, Kip %d of %d\n\n| spec | nodes | Kip |\n| --- | --- | --- |\n",
			a, nodes.passing(areas[a]), len(areas[a]), kip.passing(areas[a]), len(areas[a]))
		for _, s := range areas[a] {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", escape(s), nodes.cell(s), kip.cell(s))
		}
	}
	return b.String()
}

// cell is a spec's in the page's list.
func (r Results) cell(spec string) string {
	switch result, ran := r.Specs[spec]; {
	case !ran:
		return "not run"
	case result.Attempts > 1:
		return fmt.Sprintf("%s, attempts %d", result.State, result.Attempts)
	default:
		return result.State
	}
}

// notPassing are the specs that ran and did not pass.
func notPassing(specs []string, r Results) []string {
	var out []string
	for _, s := range specs {
		if result, ran := r.Specs[s]; ran && result.State != passed {
			out = append(out, s)
		}
	}
	return out
}

// said is how an attempt ended.
func said(a Attempt) string {
	if a.Failure == "" {
		return a.State
	}
	return a.State + ", `" + shortened(a.Failure) + "`"
}

// writeRuns says how the results came about.
func writeRuns(b *strings.Builder, specs []string, nodes, kip Results) {
	b.WriteString(`An attempt is one end of a spec. Nothing is run again by itself: each attempt after the first was somebody's command. What has
not passed keeps its count on the next commit.

| | ordinary nodes | Kip |
| --- | --- | --- |
`)
	row := func(name string, of func(Results) string) {
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, of(nodes), of(kip))
	}
	row("commit", Results.on)
	row("runs on it", func(r Results) string {
		var runs []string
		for _, run := range r.Runs {
			// Runs on other commits have nothing left here but first failures, below.
			if r.commits()[run.Commit] == 0 {
				continue
			}
			text := fmt.Sprintf("%s: %s; %d specs", run.Date, run.Flags, run.Specs)
			if run.Seconds > 0 {
				text += fmt.Sprintf(" in %s", time.Duration(run.Seconds)*time.Second)
			}
			runs = append(runs, escape(oneLine(text+"; ended: "+run.Ended)))
		}
		return strings.Join(runs, "<br>")
	})
	row("attempts in all", func(r Results) string {
		n := 0
		for _, result := range r.Specs {
			n += result.Attempts
		}
		return strconv.Itoa(n)
	})
	row("specs that needed more than one attempt", func(r Results) string { return strconv.Itoa(len(r.again(specs))) })
	row("specs that have not run", func(r Results) string { return strconv.Itoa(len(specs) - len(r.Specs)) })
	for _, r := range []Results{nodes, kip} {
		again := r.again(specs)
		if len(again) == 0 {
			continue
		}
		fmt.Fprintf(b, "\nMore than one attempt, %s:\n\n", names[r.Mode])
		for _, s := range again {
			result := r.Specs[s]
			fmt.Fprintf(b, "- %s: %s, attempts %d", escape(s), result.State, result.Attempts)
			if first, failed := result.firstFailure(); failed {
				fmt.Fprintf(b, "; the first failure of which is known, on %s: %s", r.Runs[first.Run].Commit, said(first))
			}
			b.WriteString("\n")
		}
	}
}

// again are the specs that ran more than once.
func (r Results) again(specs []string) []string {
	return slices.DeleteFunc(slices.Clone(specs), func(s string) bool { return r.Specs[s].Attempts < 2 })
}

// writeFailing says what does not pass with Kip, and why.
func writeFailing(b *strings.Builder, specs []string, kip Results, reasons map[string]Reason) {
	failing := notPassing(specs, kip)
	if len(failing) == 0 {
		b.WriteString("Nothing of what has run.\n")
	}
	for _, nature := range []bool{true, false} {
		of := slices.DeleteFunc(slices.Clone(failing), func(s string) bool { return reasons[s].Nature != nature })
		switch {
		case len(of) == 0:
			continue
		case nature:
			b.WriteString("By the nature of one pod a machine:\n\n")
		default:
			b.WriteString("For other reasons:\n\n")
		}
		for _, s := range of {
			r, known := reasons[s]
			if !known {
				r.Why, r.Change = "not known yet; "+said(kip.Specs[s].Attempt), "a look into it."
			}
			fmt.Fprintf(b, "- %s\n  - Why: %s\n  - What would change it: %s\n", escape(s), oneLine(r.Why), oneLine(r.Change))
		}
		b.WriteString("\n")
	}
}

var markdown = strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`)

// escape lets a text stand in Markdown as it is.
func escape(text string) string { return markdown.Replace(text) }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// shortened is the beginning of what a spec said, in one line.
func shortened(text string) string {
	text = strings.ReplaceAll(oneLine(text), "`", "'")
	if most := 200; len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + " …"
	}
	return text
}
