package adminapi

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/costs"
)

func TestCostsAreAskedForAsTheyAreServed(t *testing.T) {
	price := 1.5
	want := Costs{
		By:    "label=a.b/team",
		Since: "2026-11-01",
		Until: "2026-11-23",
		Costs: []Cost{{Label: "blue", Hours: 3, Dollars: &price}, {Hours: 1, UnknownPriceHours: 1}},
		Total: Cost{Hours: 4, Dollars: &price, UnknownPriceHours: 1},
	}
	first, err := costs.ParseDay("2026-11-01")
	if err != nil {
		t.Fatal(err)
	}
	asked := CostQuery{By: "label=a.b/team", Since: first, Until: first + 22, Namespace: "ns"}
	dir := t.TempDir()
	costs := func(_ context.Context, q CostQuery) (Costs, error) {
		if q.By == "pod" {
			return Costs{}, fmt.Errorf("%w: no pods today", ErrBadQuery)
		}
		if q != asked {
			t.Errorf("asked for %+v, want %+v", q, asked)
		}
		return want, nil
	}
	serve(t, Config{Dir: dir, Version: "v1", Explainer: answers{}, Log: slog.New(slog.DiscardHandler), Costs: costs})
	c := NewClient(filepath.Join(dir, SocketName))
	if got, err := c.Costs(t.Context(), asked); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for by, says := range map[string]string{
		"pod":       "no pods today",
		"colour":    "nothing that costs are summed by",
		"label=":    "no name of a label",
		"label=a b": "no name of a label",
		"":          "nothing",
	} {
		if _, err := c.Costs(t.Context(), CostQuery{By: by, Since: first, Until: first}); !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("by %q: %v, want %q", by, err, says)
		}
	}
	query := map[string][]string{"by": {"day"}, "since": {"2026-11-01"}, "until": {"x"}}
	if err := c.get(t.Context(), PathCost, query, new(Costs)); !strings.Contains(fmt.Sprint(err), "until: ") {
		t.Errorf("until x: %v", err)
	}
}
