package main

import (
	"context"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/adminapi"
)

// costing answers with some costs, and notes what it was asked.
func costing(asked *adminapi.CostQuery) func(*adminapi.Config) {
	return func(c *adminapi.Config) {
		c.Costs = func(_ context.Context, q adminapi.CostQuery) (adminapi.Costs, error) {
			*asked = q
			dollars := func(d float64) *float64 { return &d }
			costs := adminapi.Costs{
				By:    q.By,
				Since: q.Since.String(),
				Until: q.Until.String(),
				Costs: []adminapi.Cost{},
			}
			if q.Namespace == "empty" {
				return costs, nil
			}
			costs.Costs = []adminapi.Cost{
				{
					Namespace:    "shop",
					Owner:        "Deployment/web",
					Pod:          "web-1",
					Day:          "2026-06-30",
					InstanceType: "c5.large",
					LaunchType:   "spot",
					Label:        "blue",
					Hours:        240,
					Dollars:      dollars(20.4),
				},
				{
					Namespace:    "(no pod)",
					Owner:        "Standby/small",
					Day:          "2026-07-01",
					InstanceType: "small",
					LaunchType:   "on-demand",
					Hours:        0.001,
					Dollars:      dollars(0.00001),
				},
			}
			costs.Total = adminapi.Cost{Hours: 240.001, Dollars: dollars(20.40001)}
			if q.Namespace == "lab" {
				costs.Costs = append(costs.Costs, adminapi.Cost{Namespace: "lab\x1b[2J", Pod: "gpu", Hours: 3, UnknownPriceHours: 3})
				costs.Total = adminapi.Cost{Hours: 243.001, Dollars: dollars(20.40001), UnknownPriceHours: 3}
			}
			if q.Namespace == "idle" {
				costs.Costs = []adminapi.Cost{
					{Namespace: "idle", Hours: 4, Dollars: dollars(8), MeasuredHours: 3, IdleDollars: dollars(4.5)},
					{Namespace: "short", Hours: 0.1, Dollars: dollars(0.2)},
				}
				costs.Total = adminapi.Cost{Hours: 4.1, Dollars: dollars(8.2), MeasuredHours: 3, IdleDollars: dollars(4.5)}
			}
			if q.Namespace == "paid" {
				costs.Costs = []adminapi.Cost{
					{
						Namespace: "paid",
						Hours:     2,
						Dollars:   dollars(20),
						Disk:      &adminapi.Part{Dollars: dollars(1.5), UnknownPriceHours: 1},
						Address:   &adminapi.Part{UnknownPriceHours: 2},
					},
					{Namespace: "other", Hours: 2, UnknownPriceHours: 2, Address: &adminapi.Part{Dollars: dollars(1)}},
				}
				costs.Total = adminapi.Cost{
					Hours:             4,
					Dollars:           dollars(20),
					UnknownPriceHours: 2,
					Disk:              costs.Costs[0].Disk,
					Address:           &adminapi.Part{Dollars: dollars(1), UnknownPriceHours: 2},
				}
			}
			return costs, nil
		}
	}
}

func TestCostsAreShown(t *testing.T) {
	var asked adminapi.CostQuery
	socket(t, costing(&asked))
	var all strings.Builder
	for _, args := range []string{
		"cost", "cost --by pod -n lab", "cost --by owner", "cost --by day --since 7d", "cost --by type --since 2026-06-01 --until 2026-06-30",
		"cost --by label=team", "cost -n empty", "cost -n lab -o json", "cost --by pod -o yaml",
		"cost -n paid", "cost -n paid -o json", "cost -n idle", "cost -n idle -o json",
	} {
		got := run(t, nil, strings.Fields(args)...)
		if got.failed != nil {
			t.Errorf("kipctl %s: %v", args, got.failed)
		}
		all.WriteString("$ kipctl " + args + "\n" + got.out + got.err + "\n")
	}
	golden(t, "cost", all.String())
}

func TestTheDaysOfCostsAreThoseThatAreSaid(t *testing.T) { // today is 2026-07-01
	var asked adminapi.CostQuery
	socket(t, costing(&asked))
	for args, want := range map[string]string{
		"":                                      "2026-06-02 2026-07-01 ",
		"--since 1d":                            "2026-07-01 2026-07-01 ",
		"--since 400d -n ns":                    "2025-05-28 2026-07-01 ns",
		"--since 2025-05-27":                    "2025-05-27 2026-07-01 ",
		"--since 2026-06-10 --until 2026-06-10": "2026-06-10 2026-06-10 ",
		"--until 2030-01-01":                    "2026-06-02 2030-01-01 ",
	} {
		if got := run(t, nil, strings.Fields("cost "+args)...); got.failed != nil {
			t.Errorf("%s: %v", args, got.failed)
		}
		if got := asked.Since.String() + " " + asked.Until.String() + " " + asked.Namespace; got != want {
			t.Errorf("%s: asked for %s, want %s", args, got, want)
		}
	}
}

func TestNonsenseAboutCostsIsRefused(t *testing.T) {
	asked := adminapi.CostQuery{}
	socket(t, costing(&asked))
	for args, want := range map[string]string{
		"x":                                     `takes no arguments: got "x"`,
		"--by colour":                           `--by: "colour" is nothing that costs are summed by: it must be pod, owner, namespace, day, type, or label=KEY`,
		"--by label=":                           `--by: "" is no name of a label`,
		"--by label=a,b":                        `--by: "a,b" is no name of a label`,
		"--since 0d":                            `--since: "0d" is no number of days: it must be from 1d to 400d`,
		"--since -3d":                           "--since",
		"--since 401d":                          "it must be from 1d to 400d, as long as costs are kept",
		"--since 99999999999999d":               "no number of days",
		"--since 3h":                            `--since: "3h" is no date such as 2026-11-01, and no number of days such as 30d`,
		"--since yesterday":                     "no date",
		"--since 2026-02-30":                    "no date",
		"--since 2026-07-02":                    "--since: 2026-07-02 is after today, 2026-07-01",
		"--since 2025-05-26":                    "--since: 2025-05-26 is not kept any more: costs are kept for 400 days, since 2025-05-27",
		"--until 30d":                           `--until: "30d" is no date`,
		"--since 7d --until 2026-06":            "--until",
		"--since 2026-06-20 --until 2026-06-19": "--until: 2026-06-19 is before --since, 2026-06-20",
		"-o wide":                               "is not a format",
		"--socket /none/k.sock":                 "no Kip serves this socket",
	} {
		got := run(t, nil, strings.Fields("cost "+args)...)
		if got.failed == nil || !strings.Contains(got.failed.Error(), want) {
			t.Errorf("kipctl cost %s: %v, want %q", args, got.failed, want)
		}
	}
	if asked.By != "" {
		t.Errorf("Kip was asked: %+v", asked)
	}
}
