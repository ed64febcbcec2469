package placement

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/catalog"
)

func TestALadderKeepsWhatHasAsMuch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 13))
	for _, n := range []int{0, 1, 63, 64, 65, 200} {
		sizes := make([]size, n)
		for i := range sizes {
			sizes[i].memory = rng.Int64N(12) - 1
		}
		l := ladderOf(sizes, func(s *size) int64 { return s.memory })
		for least := int64(-2); least < 13; least++ {
			rows, want := newSet(n), []int{}
			for i := range sizes {
				if i%3 == 0 { // what is not in the set stays out
					continue
				}
				rows.add(i)
				if sizes[i].memory >= least {
					want = append(want, i)
				}
			}
			l.keep(rows, least)
			got := []int{}
			for i := rows.next(0); i >= 0; i = rows.next(i + 1) {
				got = append(got, i)
			}
			if !slices.Equal(got, want) || rows.count() != len(want) {
				t.Errorf("%d rows, at least %d: %v, %d of them, want %v", n, least, got, rows.count(), want)
			}
		}
	}
}

func TestAPatternIsLookedForOnceAndFewAreKept(t *testing.T) {
	var types []catalog.InstanceType
	for i := range 3 * mostPatterns {
		types = append(types, catalog.InstanceType{
			Name:      fmt.Sprintf("c%03d.large", i),
			Arch:      "amd64",
			MilliCPU:  1000,
			Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 1}, {Zone: "b", PricePerHour: 1, Spot: true}},
		})
	}
	p := placer(t, types, Config{})
	first := func(pattern, launchType string) string {
		t.Helper()
		pod := podOf("cpu=1")
		pod.Annotations = map[string]string{AnnotationInstanceType: pattern, AnnotationLaunchType: launchType}
		got, err := p.Offerings(pod, nil)
		if err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		return fmt.Sprint(got[0].InstanceType, " ", got[0].Zone, " ", got[0].Reason)
	}
	const long = "c007.l*"
	for range 2 {
		for i := range 3 * mostPatterns {
			for launchType, zone := range map[string]string{"on-demand": "a", "spot": "b"} {
				got := first(fmt.Sprintf("c%03d.*", i), launchType)
				if !strings.HasPrefix(got, fmt.Sprintf("c%03d.large %s cheapest of 1 type ", i, zone)) {
					t.Fatalf("pattern %d: %s", i, got)
				}
			}
			if n := len(p.patterns.named); n > mostPatterns {
				t.Fatalf("%d patterns are kept, want %d at most", n, mostPatterns)
			}
		}
	}
	if got := first(long+strings.Repeat("*", longestPattern), "spot"); !strings.HasPrefix(got, "c007.large b ") {
		t.Errorf("a long pattern: %s", got)
	}
	if _, err := p.Offerings(annotated(podOf("cpu=1"), AnnotationInstanceType, "d*"), nil); err == nil {
		t.Error("a pattern that no name matches is taken")
	}
	for pattern := range p.patterns.named {
		if len(pattern) > longestPattern || pattern == "d*" {
			t.Errorf("pattern %q is kept", pattern)
		}
	}
	found := 0
	for range 2 {
		once := p.patterns.of("c00*", func() matches { found++; return p.matching(pattern{"c00", ""}) })
		if !reflect.DeepEqual(once, p.matching(pattern{"c00", ""})) {
			t.Errorf("types named c00*: %v", once)
		}
	}
	if found != 1 {
		t.Errorf("a pattern is looked for %d times, want once", found)
	}
}
