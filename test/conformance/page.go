package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

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
	return fmt.Sprintf("Conformance %s: ordinary nodes %d of %d, Kip %d of %d", Release, nodes.passing(specs), len(specs), kip.passing(specs), len(specs))
}

// page is docs/conformance.md.
func page(specs []string, nodes, kip Results, reasons map[string]Reason) string {
	var b strings.Builder
	b.WriteString(summary(specs, nodes, kip) + `

<!-- Generated from test/conformance by: make conformance-page -->

# Conformance

Kubernetes' own conformance tests (e2e.test ` + Release + `, unmodified), run against the control plane of ` + "`make run`" + ` in two modes: with
ordinary nodes only, upstream kubelets as machines on one host, which says what the tests can reach here at all; and with
Kip, where the only nodes that pods can be placed on are the virtual ones of two Kips. These run in their host's network
beside a kube-proxy, as on an ordinary node of a cluster.

` + "`make conformance`" + ` runs them, ` + "`make conformance MODE=nodes`" + ` the ordinary nodes. [Contributing](../CONTRIBUTING.md) has the rest of it.

The images that the tests name are stand-ins, built from Kubernetes' sources and Debian's packages and served under their
original names. One bears a text of the original: the image kitten says of itself that it is Alpine Linux, for which a test of
image volumes looks.
`)
	var failing []string
	missing, missingNodes := 0, 0
	for _, s := range specs {
		switch r, ran := kip.Specs[s]; {
		case !ran:
			missing++
		case r.State != passed:
			failing = append(failing, s)
		}
		if _, ran := nodes.Specs[s]; !ran {
			missingNodes++
		}
	}
	fmt.Fprintf(&b, "\n## What does not pass with Kip\n\n")
	if len(failing) == 0 {
		b.WriteString("Nothing of what has run.\n")
	}
	for _, nature := range []bool{true, false} {
		some := false
		for _, s := range failing {
			r, known := reasons[s]
			if r.Nature != nature {
				continue
			}
			if !some {
				some = true
				if nature {
					b.WriteString("By the nature of one pod a machine:\n\n")
				} else {
					b.WriteString("For other reasons:\n\n")
				}
			}
			if !known {
				r.Why, r.Change = "not known yet; it says: `"+shortened(kip.Specs[s].Failure)+"`", "a look into it."
			}
			fmt.Fprintf(&b, "- %s\n  - Why: %s\n  - What would change it: %s\n", escape(s), oneLine(r.Why), oneLine(r.Change))
		}
		if some {
			b.WriteString("\n")
		}
	}
	if missing+missingNodes > 0 {
		fmt.Fprintf(&b, "\n%d have not run with Kip yet, %d not with ordinary nodes: in the list below they have no result.\n", missing, missingNodes)
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
			fmt.Fprintf(&b, "| %s | %s | %s |\n", escape(s), nodes.Specs[s].State, kip.Specs[s].State)
		}
	}
	return b.String()
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
