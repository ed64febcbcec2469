package main

import (
	"os"
	"os/exec"
	"path/filepath"
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
	around := t.TempDir()
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(around))
	below := filepath.Join(around, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	expect := func(dir, want string) {
		t.Helper()
		if got := commit(t.Context(), dir); !strings.HasPrefix(got, want) {
			t.Errorf("%s is of commit %q, want %q", dir, got, want)
		}
	}
	expect(below, "unknown: exit status")
	for _, args := range [][]string{{"init", "-q"}, {"commit", "-q", "--allow-empty", "-m", "a"}} {
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com", "-C", around}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	expect(below, "unknown: the checkout around it is another's")
	out, err := exec.Command("git", "-C", around, "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	expect(around, strings.TrimSpace(string(out)))
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
