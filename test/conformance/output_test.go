package main

import (
	"os"
	"strings"
	"testing"
)

// read tells what a reader understands of a text.
func read(text string, known []string) []outcome {
	var told []outcome
	r := &reader{known: known, tell: func(o outcome) { told = append(told, o) }}
	for line := range strings.Lines(text) {
		if strings.HasSuffix(line, "\n") {
			r.line(line)
		}
	}
	r.end()
	return told
}

const (
	one = "[sig-node] Pods should be updated [NodeConformance] [Conformance]"
	two = "[sig-apps] Job should delete a job [Conformance]"
	// Its name begins like that of another.
	three = "[sig-apps] Job should delete a job [Conformance] too"
)

func TestOutcomesAreReadAsTheyAreTold(t *testing.T) {
	known := []string{one, two, three}
	for name, tc := range map[string]struct {
		file string
		want []outcome
	}{
		"several at once": {"testdata/parallel.txt", []outcome{
			{spec: one, Attempt: Attempt{State: passed, Seconds: 4.523}},
			{spec: two, Attempt: Attempt{State: "failed", Seconds: 12.001, Failure: "Timed out after 10s.\nExpected\n<int>: 1\nto equal\n<int>: 2"}},
			{spec: three, Attempt: Attempt{State: "skipped", Seconds: 0.1, Failure: "not on this platform"}},
		}},
		"one at a time": {"testdata/serial.txt", []outcome{
			{spec: one, Attempt: Attempt{State: passed, Seconds: 4.523}},
			{spec: two, Attempt: Attempt{State: "panicked", Seconds: 1, Failure: "Test Panicked"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(tc.file)
			if err != nil {
				t.Fatal(err)
			}
			got := read(string(text), known)
			if len(got) != len(tc.want) {
				t.Fatalf("told %d outcomes, want %d: %+v", len(got), len(tc.want), got)
			}
			for i, want := range tc.want {
				if got[i] != want {
					t.Errorf("outcome %d is\n%+v, want\n%+v", i+1, got[i], want)
				}
			}
			// A killed run's output ends somewhere: nothing is told that was not said.
			for cut := range len(text) {
				for i, o := range read(string(text[:cut]), known) {
					if o.spec != tc.want[i].spec || o.State != tc.want[i].State {
						t.Fatalf("of the first %d bytes, outcome %d is %+v", cut, i+1, o)
					}
				}
			}
		})
	}
}

func TestALongFailureIsCutBetweenCharacters(t *testing.T) {
	text := delimiter + "\n• [FAILED] [1.000 seconds]\n" + one + "\n\n  [FAILED] " + strings.Repeat("ü", maxFailure) +
		"\n  In [It] at: x.go:1\n" + delimiter + "\n"
	got := read(text, []string{one})
	if len(got) != 1 || len(got[0].Failure) > maxFailure || strings.Trim(got[0].Failure, "ü") != "" {
		t.Errorf("told %+v, want a failure of at most %d bytes", got, maxFailure)
	}
}
