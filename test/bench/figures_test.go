package main

import (
	"context"
	"slices"
	"strings"
	"testing"
)

func TestAMedianIsBetweenTheMiddleValues(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		before := slices.Clone(test.values)
		if got := median(test.values); got != test.want || !slices.Equal(before, test.values) {
			t.Errorf("the median of %v is %v, want %v; they are now %v", before, got, test.want, test.values)
		}
	}
}

func TestTheCommitIsNamed(t *testing.T) {
	if got := commit(context.Background(), t.TempDir()); !strings.HasPrefix(got, "unknown: ") {
		t.Errorf("a folder that is no repository is commit %q", got)
	}
}

func TestRatiosAreOfPairs(t *testing.T) {
	got := ratios([]float64{1, 2, 6}, []float64{2, 8, 6})
	if want := []float64{0.5, 0.25, 1}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTheProductsTakeTurns(t *testing.T) {
	var firsts []bool
	for pair := range 4 {
		firsts = append(firsts, kipFirst(pair))
	}
	if want := []bool{true, false, true, false}; !slices.Equal(firsts, want) {
		t.Errorf("Kip is first: %v, want %v", firsts, want)
	}
}

func TestPodsOfAScrapeAreCounted(t *testing.T) {
	text := "# TYPE pod_cpu_usage_seconds_total counter\n" +
		"pod_cpu_usage_seconds_total{namespace=\"a\",pod=\"x\"} 1 2\npod_cpu_usage_seconds_total{namespace=\"a\",pod=\"y\"} 1 2\n" +
		"pod_memory_working_set_bytes{namespace=\"a\",pod=\"x\"} 1 2\n"
	if n := scraped(text); n != 2 {
		t.Errorf("%v pods, want 2", n)
	}
}
