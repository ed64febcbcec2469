package explain

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/costs"
)

// ledger tells of what was spent.
type ledger func(each func(costs.Key, costs.Day, costs.Amount)) error

func (l ledger) Spent(_ context.Context, _, _ costs.Day, each func(costs.Key, costs.Day, costs.Amount)) error {
	return l(each)
}

// ofTeams has two pods of a Deployment, a standby cell, one without a price, and what was summed.
func ofTeams(each func(costs.Key, costs.Day, costs.Amount)) error {
	const hour = 3600
	pod := func(namespace, name, labels string) costs.Key {
		return costs.Key{
			Namespace:    namespace,
			Owner:        "Deployment/web",
			Pod:          name,
			Labels:       labels,
			InstanceType: "c5.large",
			LaunchType:   "on-demand",
		}
	}
	each(pod("shop", "web-1", "app=x,team=blue"), 20000, costs.Amount{Seconds: 2 * hour, Dollars: 2})
	each(pod("shop", "web-1", "app=x,team=blue"), 20001, costs.Amount{Seconds: hour, Dollars: 1})
	each(pod("shop", "web-2", "team=red"), 20001, costs.Amount{Seconds: 4 * hour, Dollars: 4})
	each(pod("lab", "web-3", "myteam=red"), 20001, costs.Amount{Seconds: 3 * hour, Unpriced: 3 * hour})
	idle := costs.Key{Owner: "Standby/small", InstanceType: "small", LaunchType: "spot"}
	idle.Namespace = costs.NoPod
	each(idle, 20000, costs.Amount{Seconds: hour, Dollars: .5})
	others := pod("shop", costs.Others, "")
	others.Owner = costs.Others
	each(others, 20000, costs.Amount{Seconds: hour, Dollars: .25})
	return nil
}

func shown(c adminapi.Cost) string {
	price := "unknown"
	if c.Dollars != nil {
		price = fmt.Sprintf("$%v", *c.Dollars)
	}
	var names []string
	for _, name := range []string{c.Namespace, c.Owner, c.Pod, c.Day, c.InstanceType, c.LaunchType, c.Label} {
		if name != "" {
			names = append(names, name)
		}
	}
	return fmt.Sprintf("%s %vh %vh %s", strings.Join(names, " "), c.Hours, c.UnknownPriceHours, price)
}

func TestCostsAreSummedByWhatIsAskedFor(t *testing.T) {
	for _, tc := range []struct {
		by, namespace string
		want          []string
		total         string
	}{
		{"namespace", "", []string{"shop 8h 0h $7.25", "(no pod) 1h 0h $0.5", "lab 3h 3h unknown"}, " 12h 3h $7.75"},
		{"owner", "shop", []string{"shop Deployment/web 7h 0h $7", "shop (others) 1h 0h $0.25"}, " 8h 0h $7.25"},
		{"pod", "shop", []string{"shop Deployment/web web-2 4h 0h $4", "shop Deployment/web web-1 3h 0h $3",
			"shop (others) (others) 1h 0h $0.25"},
			" 8h 0h $7.25"},
		{"day", "", []string{"2024-10-04 4h 0h $2.75", "2024-10-05 8h 3h $5"}, " 12h 3h $7.75"},
		{"type", "", []string{"c5.large on-demand 11h 3h $7.25", "small spot 1h 0h $0.5"}, " 12h 3h $7.75"},
		{"label=team", "", []string{"red 4h 0h $4", "blue 3h 0h $3", "(no pod) 1h 0h $0.5", "(others) 1h 0h $0.25", " 3h 3h unknown"},
			" 12h 3h $7.75"},
		{"namespace", "nobody", nil, " 0h 0h $0"},
	} {
		q := adminapi.CostQuery{By: tc.by, Since: 20000, Until: 20001}
		q.Namespace = tc.namespace
		costs, err := Costs(t.Context(), ledger(ofTeams), []string{"team"}, q)
		if err != nil {
			t.Errorf("by %s: %v", tc.by, err)
		}
		var got []string
		for _, c := range costs.Costs {
			got = append(got, shown(c))
		}
		if strings.Join(got, "; ") != strings.Join(tc.want, "; ") || shown(costs.Total) != tc.total {
			t.Errorf("by %s in %q:\n%q, in all %q\nwant %q, in all %q", tc.by, tc.namespace, got, shown(costs.Total), tc.want, tc.total)
		}
		if costs.By != tc.by || costs.Since != "2024-10-04" || costs.Until != "2024-10-05" {
			t.Errorf("it says %+v", costs)
		}
	}
}

func TestDisksAndAddressesAreToldByThemselves(t *testing.T) {
	const hour = 3600
	l := ledger(func(each func(costs.Key, costs.Day, costs.Amount)) error {
		web, lab := costs.Key{Namespace: "web"}, costs.Key{Namespace: "lab"}
		each(web, 20000, costs.Amount{Seconds: hour, Dollars: 1, DiskDollars: 0.5, AddressDollars: 0.25})
		each(web, 20000, costs.Amount{Seconds: hour, Dollars: 1, DiskUnpriced: hour})
		each(lab, 20000, costs.Amount{Seconds: hour, Dollars: 2.5, DiskUnpriced: hour})
		return nil
	})
	costs, err := Costs(t.Context(), l, nil, adminapi.CostQuery{By: "namespace", Since: 20000, Until: 20001})
	if err != nil || len(costs.Costs) != 2 {
		t.Fatalf("%+v, %v", costs, err)
	}
	web, lab := costs.Costs[0], costs.Costs[1] // the disk makes web the dearer
	if web.Namespace != "web" || *web.Known() != 2.75 || *web.Dollars != 2 || *web.Disk.Dollars != 0.5 || web.Disk.UnknownPriceHours != 1 ||
		*web.Address.Dollars != 0.25 {
		t.Errorf("%+v, disk %+v, address %+v", web, web.Disk, web.Address)
	}
	if lab.Disk.Dollars != nil || lab.Disk.UnknownPriceHours != 1 || lab.Address != nil || *lab.Known() != 2.5 ||
		*costs.Total.Known() != 5.25 {
		t.Errorf("%+v, disk %+v, address %+v, in all %v", lab, lab.Disk, lab.Address, *costs.Total.Known())
	}
}

func TestALabelThatIsNotKeptIsAnErrorThatSaysWhichAre(t *testing.T) {
	q := adminapi.CostQuery{By: "label=stage", Since: 20000, Until: 20001}
	for _, tc := range []struct {
		labels []string
		want   string
	}{{[]string{"team", "app"}, "team, app"}, {nil, "none"}} {
		_, err := Costs(t.Context(), ledger(ofTeams), tc.labels, q)
		if !errors.Is(err, adminapi.ErrBadQuery) || !strings.Contains(fmt.Sprint(err), `"stage"`) ||
			!strings.HasSuffix(fmt.Sprint(err), ": "+tc.want) {
			t.Errorf("%v", err)
		}
	}
	q.By = "label=app" // not configured any more, and kept before
	if _, err := Costs(t.Context(), ledger(ofTeams), nil, q); err != nil {
		t.Error(err)
	}
	broken := errors.New("no store")
	fails := ledger(func(func(costs.Key, costs.Day, costs.Amount)) error { return broken })
	if _, err := Costs(t.Context(), fails, nil, q); !errors.Is(err, broken) {
		t.Errorf("%v, want that of the ledger", err)
	}
}

func TestAnAnswerIsBoundedAndLosesNothing(t *testing.T) {
	const pods = 5*mostCosts + 7
	many := func(each func(costs.Key, costs.Day, costs.Amount)) error {
		for n := range pods {
			s := costs.Key{Namespace: "ns", Owner: "Job/x", Pod: fmt.Sprint("x-", (n*7919)%pods), InstanceType: "small"}
			each(s, 20000, costs.Amount{Seconds: 3600, Dollars: float64((n * 7919) % pods)})
		}
		return nil
	}
	got, err := Costs(t.Context(), ledger(many), nil, adminapi.CostQuery{By: "pod", Since: 20000, Until: 20000})
	if err != nil {
		t.Fatal(err)
	}
	others := false
	for _, c := range got.Costs {
		others = others || c.Pod == costs.Others
	}
	if n := len(got.Costs); n > mostCosts+1 || n < mostCosts || !others {
		t.Errorf("%d names, others %t", n, others)
	}
	if want := float64(pods) * (pods - 1) / 2; got.Total.Hours != pods || math.Abs(*got.Total.Dollars-want) > 1e-3 {
		t.Errorf("%+v hours and $%v, want %d and $%v", got.Total.Hours, *got.Total.Dollars, pods, want)
	}
}
