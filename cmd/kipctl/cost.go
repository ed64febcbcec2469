package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/costs"
	"github.com/elotl/kip/internal/quote"
)

func costOf(k *kipctl) *cobra.Command {
	var by, since, until string
	cmd := &cobra.Command{
		Use:   "cost",
		Short: "Tell what cells have cost, by pod, owner, namespace, day, type or label, from Kip's local socket",
		Long: "Tell what cells have cost, in US dollars, by pod, owner, namespace, day, type or label: their machines, root disks\n" +
			"and public addresses, at the price at which each was chosen. Kip keeps it for 400 days. Days are in UTC. What cells without a pod have cost,\n" +
			"those of standby pools, is shown as (no pod). Without -n it is that of all namespaces.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := k.costQuery(by, since, until)
			if err != nil {
				return err
			}
			path, _ := k.socketPath()
			costs, err := adminapi.NewClient(path).Costs(cmd.Context(), q)
			if err != nil {
				return err
			}
			return k.print(costs, func(w io.Writer) error { return k.costTable(w, q, costs) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&by, "by", "namespace", "`what` the cost is summed by: pod, owner, namespace, day, type, or label=KEY")
	flags.StringVar(&since, "since", "30d", "first `day`: a date such as 2026-11-01, or a number of days with today such as 30d")
	flags.StringVar(&until, "until", "", "last `day`: a date such as 2026-11-30 (default: today)")
	return cmd
}

func (k *kipctl) costQuery(by, since, until string) (adminapi.CostQuery, error) {
	today := costs.DayOf(k.clock.Now())
	q := adminapi.CostQuery{By: by, Until: today, Namespace: k.namespace}
	if err := adminapi.CheckBy(by); err != nil {
		return q, fmt.Errorf("--by: %w", err)
	}
	oldest := today - costs.Kept
	if count, is := strings.CutSuffix(since, "d"); is {
		n, err := strconv.ParseUint(count, 10, 16)
		if err != nil || n == 0 || n > costs.Kept {
			return q, fmt.Errorf("--since: %q is no number of days: it must be from 1d to %dd, as long as costs are kept", since, costs.Kept)
		}
		q.Since = today + 1 - costs.Day(n)
	} else {
		var err error
		if q.Since, err = costs.ParseDay(since); err != nil {
			return q, fmt.Errorf("--since: %w, and no number of days such as 30d", err)
		}
	}
	if until != "" {
		var err error
		if q.Until, err = costs.ParseDay(until); err != nil {
			return q, fmt.Errorf("--until: %w", err)
		}
	}
	switch {
	case q.Since < oldest:
		return q, fmt.Errorf("--since: %s is not kept any more: costs are kept for %d days, since %s", q.Since, costs.Kept, oldest)
	case q.Since > today:
		return q, fmt.Errorf("--since: %s is after today, %s", q.Since, today)
	case q.Until < q.Since:
		return q, fmt.Errorf("--until: %s is before --since, %s", q.Until, q.Since)
	}
	return q, nil
}

// spent writes dollars, "unknown" where no price is.
func spent(d *float64) string {
	switch {
	case d == nil:
		return "unknown"
	case *d > 0 && *d < 0.0001:
		return "<0.0001"
	default:
		return quote.Amount(*d)
	}
}

// costNames are the columns of what costs are summed by, and a cost's names in them.
func costNames(q adminapi.CostQuery) (columns []string, names func(adminapi.Cost) []string) {
	switch q.By {
	case "pod":
		columns = []string{"NAMESPACE", "POD", "OWNER"}
		names = func(c adminapi.Cost) []string { return []string{c.Namespace, c.Pod, c.Owner} }
	case "owner":
		columns = []string{"NAMESPACE", "OWNER"}
		names = func(c adminapi.Cost) []string { return []string{c.Namespace, c.Owner} }
	case "namespace":
		columns = []string{"NAMESPACE"}
		names = func(c adminapi.Cost) []string { return []string{c.Namespace} }
	case "day":
		columns = []string{"DAY"}
		names = func(c adminapi.Cost) []string { return []string{c.Day} }
	case "type":
		columns = []string{"TYPE", "LAUNCH"}
		names = func(c adminapi.Cost) []string { return []string{c.InstanceType, c.LaunchType} }
	default:
		key, _ := q.Label()
		columns = []string{strings.ToUpper(key)}
		names = func(c adminapi.Cost) []string { return []string{c.Label} }
	}
	return columns, names
}

func (k *kipctl) costTable(w io.Writer, q adminapi.CostQuery, costs adminapi.Costs) error {
	if len(costs.Costs) == 0 {
		fmt.Fprintf(k.err, "Nothing was spent from %s to %s%s.\n", costs.Since, costs.Until, in(q.Namespace))
		return nil
	}
	fmt.Fprintf(w, "%s to %s (UTC)%s, in US dollars\n\n", costs.Since, costs.Until, in(q.Namespace))
	columns, names := costNames(q)
	columns = append(columns, "HOURS", "COST")
	beside := costs.Total.Disk != nil || costs.Total.Address != nil
	if beside {
		columns = append(columns, "MACHINE", "DISK", "ADDRESS")
	}
	measured := costs.Total.MeasuredHours > 0
	if measured {
		columns = append(columns, "IDLE")
	}
	unknown := costs.Total.UnknownPriceHours > 0
	if unknown {
		columns = append(columns, "PRICE UNKNOWN")
	}
	t := table(w, columns...)
	row := func(c adminapi.Cost, names ...string) {
		hours := func(n float64) string { return strconv.FormatFloat(n, 'f', 2, 64) }
		names = append(names, hours(c.Hours), spent(c.Known()))
		if beside {
			names = append(names, spent(c.Dollars), spentBeside(c.Disk), spentBeside(c.Address))
		}
		if measured {
			names = append(names, spentIdle(c))
		}
		if unknown {
			names = append(names, hours(c.UnknownPriceHours)+" h")
		}
		t.row(names...)
	}
	for _, c := range costs.Costs {
		row(c, names(c)...)
	}
	all := names(adminapi.Cost{})
	for i := range all {
		all[i] = "-"
	}
	all[0] = "all"
	row(costs.Total, all...)
	if err := t.w.Flush(); err != nil {
		return err
	}
	if measured {
		fmt.Fprintf(k.err, "IDLE is what was paid for CPU and memory that pods did not use, whichever they used more of. It is known for %.2f of %.2f hours.\n",
			costs.Total.MeasuredHours, costs.Total.Hours)
	}
	if unknown {
		fmt.Fprintf(k.err, "The price of %.2f hours is not known: they are in no sum.\n", costs.Total.UnknownPriceHours)
	}
	for _, part := range []struct {
		of    string
		spent *adminapi.Part
	}{{"disks", costs.Total.Disk}, {"addresses", costs.Total.Address}} {
		if part.spent != nil && part.spent.UnknownPriceHours > 0 {
			fmt.Fprintf(k.err, "The price of %s is not known for %.2f hours: they are in no sum.\n", part.of, part.spent.UnknownPriceHours)
		}
	}
	return nil
}

// spentIdle writes what was paid for what stood idle; "-" where that was not measured.
func spentIdle(c adminapi.Cost) string {
	if c.IdleDollars == nil {
		return "-"
	}
	return spent(c.IdleDollars)
}

func spentBeside(p *adminapi.Part) string {
	if p == nil {
		return spent(new(float64))
	}
	return spent(p.Dollars)
}
