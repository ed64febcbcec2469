package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/quote"
)

// kipBoot is how long a cell is paid for before its pod runs, and end after it: more than
// is measured, so that Kip is not flattered. leastTime is what clouds charge at least.
const (
	kipBoot   = 45 * time.Second
	kipEnd    = 15 * time.Second
	leastTime = time.Minute
)

// compared is a pod's price on Kip and on Fargate, in dollars an hour.
type compared struct {
	shape
	typ          string
	kip, fargate float64
}

func (c compared) ratio() float64 { return c.kip / c.fargate }

// compare prices pods. Those that Fargate has no size for are counted.
func compare(p *quote.Prices, all []shape) (both []compared, noFargate int, kip float64, err error) {
	for _, s := range all {
		q := p.Of([]quote.Workload{s.workload()}).Pods[0]
		if q.PricePerHour == nil {
			return nil, 0, 0, fmt.Errorf("%+v has no price: %s", s, q.Reason)
		}
		kip += *q.PricePerHour
		if q.FargatePricePerHour == nil {
			noFargate++
			continue
		}
		both = append(both, compared{s, q.InstanceType, *q.PricePerHour, *q.FargatePricePerHour})
	}
	return both, noFargate, kip, nil
}

func cheaper(all []compared) (n int) {
	for _, c := range all {
		if c.kip < c.fargate {
			n++
		}
	}
	return n
}

func (s shape) String() string {
	return fmt.Sprintf("%g vCPU, %g GiB", float64(s.milliCPU)/1000, float64(s.memory)/gib)
}

// writer writes the page.
type writer struct{ strings.Builder }

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

func report() (string, error) {
	w := &writer{}
	amd, err := open("amd64")
	if err != nil {
		return "", err
	}
	arm, err := open("arm64")
	if err != nil {
		return "", err
	}
	w.line("# What Kip costs\n")
	w.line("<!-- Written by: make cost-report -->\n")
	w.line("Kip beside Fargate, and beside nodes that pods share. Where Kip is dearer comes first. All of it is computed, not measured: on")
	w.line("demand, AWS %s, prices of %s; the choice of types is Kip's own. `make cost-report` writes this page again. The pods", region, amd.asOf)
	w.line("and the seed that they follow from are in `test/cost/workload.go`, the packing is in `test/cost/nodes.go`.\n")
	w.line("- A cell has a disk of 8 GiB ($0.08 a GB and month), and no public address unless it is said. It sees 97 %% of the memory that its type")
	w.line("  promises, and keeps 128 MiB for itself. CPU above a burstable type's baseline is paid for all the time that a pod runs.")
	w.line("- Fargate's prices are those of Linux in us-east-1, March 2026, for the smallest of its sizes that has as much as the pod asks for.")
	w.line("  On EKS, Fargate adds 256 MiB to each pod, which may be the next size: that is left out, to its advantage.")
	w.line("- A cluster's control plane, traffic, and people's time are left out everywhere.")
	w.line("- Spot is left out. Kip [spreads it](placement.md#spot-is-spread) over pools that cost up to `cells.spotSpread` percent more than the")
	w.line("  cheapest, by default 10, so that fewer cells are taken back at once.\n")
	w.line("What your own cells have cost is told by [`kipctl cost`](kipctl.md#what-did-it-cost), what your manifests would cost by")
	w.line("[`kipctl price`](kipctl.md#what-will-it-cost).\n")
	if err := w.fargate(amd, arm); err != nil {
		return "", err
	}
	if err := w.thousand(amd); err != nil {
		return "", err
	}
	if err := w.bursts(amd); err != nil {
		return "", err
	}
	return w.String(), nil
}

// fargate compares each of Fargate's sizes.
func (w *writer) fargate(amd, arm market) error {
	var sizes []shape
	for _, s := range quote.FargateSizes() {
		sizes = append(sizes, shape{s.MilliCPU, s.MemoryBytes})
	}
	w.line("## Fargate's own sizes\n")
	w.line("A pod that asks for exactly one of Fargate's sizes has the most of Fargate.\n")
	w.line("| architecture | public address | Kip is dearer for | cheaper for | of |")
	w.line("| --- | --- | --- | --- | --- |")
	var losses [][]compared
	for _, m := range []market{amd, arm} {
		for _, public := range []bool{false, true} {
			p, with := m.kip, "no"
			if public {
				p, with = m.public, "of Kip only"
			}
			both, _, _, err := compare(p, sizes)
			if err != nil {
				return err
			}
			w.line("| %s | %s | %d | %d | %d |", m.arch, with, len(both)-cheaper(both), cheaper(both), len(both))
			if !public {
				losses = append(losses, slices.DeleteFunc(both, func(c compared) bool { return c.kip < c.fargate }))
			}
		}
	}
	w.line("\nThe sizes for which Kip is dearer, without a public address:\n")
	w.line("| architecture | size | Kip's type | Kip $ an hour | Fargate $ an hour | Kip to Fargate |")
	w.line("| --- | --- | --- | --- | --- | --- |")
	for i, m := range []market{amd, arm} {
		slices.SortStableFunc(losses[i], func(a, b compared) int { return int((b.ratio() - a.ratio()) * 1e6) })
		for _, c := range losses[i] {
			w.line("| %s | %s | %s | %.4f | %.4f | %.2f |", m.arch, c.shape, c.typ, c.kip, c.fargate, c.ratio())
		}
	}
	w.line("")
	return nil
}

// thousand compares pods of all shapes, that run all the time.
func (w *writer) thousand(m market) error {
	all := shapes(1000)
	both, none, kip, err := compare(m.kip, all)
	if err != nil {
		return err
	}
	var kipBoth, fargate float64
	for _, c := range both {
		kipBoth += c.kip
		fargate += c.fargate
	}
	least := bound(m, all)
	w.line("## 1,000 pods that always run\n")
	w.line("Of 0.1 to 16 vCPU and 0.125 to 128 GiB, amd64, seed %d. This is where nodes that are well packed win.\n", seed)
	w.line("| | $ an hour | Kip to it |")
	w.line("| --- | --- | --- |")
	w.line("| a packing that nobody reaches: pods cut in pieces, nothing idle, nothing reserved | %.2f | %.2f |", least, kip/least)
	var runs []run
	for _, s := range all {
		runs = append(runs, run{s, 0, time.Hour})
	}
	kinds := nodes(m)
	for i, kind := range kinds {
		dollars, used, left := packed(kinds, i, runs, time.Hour)
		_, _, alone, err := compare(m.kip, shapesOf(left))
		if err != nil {
			return err
		}
		w.line("| nodes of type %s, larger where a pod needs it: %.0f %% of their CPU is asked for | %.2f | %.2f |", kind.Name, used*100,
			dollars+alone, kip/(dollars+alone))
	}
	w.line("| Kip | %.2f | 1.00 |", kip)
	w.line("| Fargate, for the %d that it has a size for; Kip costs %.2f for these | %.2f | %.2f |", len(both), kipBoth, fargate, kipBoth/fargate)
	w.line("\nKip is dearer than Fargate for %d of these pods, and cheaper for %d. Fargate has no size for %d.\n", len(both)-cheaper(both),
		cheaper(both), none)
	w.line("Nodes are packed largest pod first. They keep for the system what EKS reckons, and pods that fit on none of them are on")
	w.line("machines of their own, at Kip's price.\n")
	return nil
}

func shapesOf(runs []run) (all []shape) {
	for _, r := range runs {
		all = append(all, r.shape)
	}
	return all
}

// bursts compares a day on which pods come and go.
func (w *writer) bursts(m market) error {
	runs := day()
	const whole = 24 * time.Hour
	var kip, fargate float64
	missing := 0
	for _, r := range runs {
		q := m.kip.Of([]quote.Workload{r.workload()}).Pods[0]
		if q.PricePerHour == nil {
			return fmt.Errorf("%+v has no price: %s", r.shape, q.Reason)
		}
		onKip := *q.PricePerHour * max(leastTime, kipBoot+r.takes+kipEnd).Hours()
		kip += onKip
		if q.FargatePricePerHour == nil {
			fargate += onKip
			missing++
			continue
		}
		fargate += *q.FargatePricePerHour * max(leastTime, r.takes).Hours()
	}
	w.line("## A day of bursts\n")
	w.line("20 pods that run all day, and 24 times a day, at any minute, 5 to 200 at once that take 1 to 30 minutes: %d pods, seed %d.", len(runs), seed)
	w.line("A cell is paid for a minute more than its pod runs. An autoscaler adds nodes at once, which take a minute to boot, and")
	w.line("removes one when it has had no pod for ten minutes, the default of Cluster Autoscaler. It moves no pods; one that does")
	w.line("(consolidation) would pay less, and interrupt them.\n")
	w.line("| | $ a day | Kip to it |")
	w.line("| --- | --- | --- |")
	kinds := nodes(m)
	for i, kind := range kinds {
		dollars, used, left := packed(kinds, i, runs, whole)
		for _, r := range left {
			q := m.kip.Of([]quote.Workload{r.workload()}).Pods[0]
			dollars += *q.PricePerHour * r.takes.Hours()
		}
		w.line("| nodes of type %s, larger where a pod needs it: %.0f %% of their CPU is asked for | %.2f | %.2f |", kind.Name, used*100, dollars,
			kip/dollars)
	}
	w.line("| Fargate, and Kip for the %d pods that it has no size for | %.2f | %.2f |", missing, fargate, kip/fargate)
	w.line("| Kip | %.2f | 1.00 |", kip)
	return nil
}
