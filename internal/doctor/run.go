package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/elotl/kip/internal/finding"
)

// sayEvery is how often Runner says which check it waits for.
const sayEvery = 2 * time.Second

// Result is a finding, and the check that found it.
type Result struct {
	Area  string `json:"area"`
	Check string `json:"check"`
	finding.Finding
}

// Runner runs checks one after the other, and keeps what they find.
type Runner struct {
	// Limit bounds each check.
	Limit time.Duration
	// Say is told every two seconds which check has not answered yet.
	Say func(line string)

	Results []Result
	// failed are the checks that others may need and that did not succeed.
	failed map[string]bool
}

// Run runs checks. When ctx ends it notes the rest as not checked.
func (r *Runner) Run(ctx context.Context, checks ...finding.Check) {
	if r.failed == nil {
		r.failed = map[string]bool{}
	}
	for n, c := range checks {
		id := c.Area + "/" + c.Name
		var found []finding.Finding
		switch {
		case ctx.Err() != nil:
			found = []finding.Finding{finding.Unchecked("interrupted")}
		case c.Needs != "" && r.failed[c.Area+"/"+c.Needs]:
			found = []finding.Finding{finding.Unchecked("it needs the check %q, which did not succeed", c.Needs)}
		default:
			found = r.one(ctx, c, fmt.Sprintf("%s: %s, check %d of %d", c.Area, c.Name, n+1, len(checks)))
		}
		for _, f := range found {
			if f.Outcome == finding.Failed || f.Outcome == finding.NotChecked {
				r.failed[id] = true
			}
			// What is of the cluster is found once, however many Kips it has.
			if one := (Result{Area: c.Area, Check: c.Name, Finding: f}); !slices.Contains(r.Results, one) {
				r.Results = append(r.Results, one)
			}
		}
	}
}

// one runs one check within Limit. A check that does not return in time is left to end by itself: a client that hangs, such as a program
// that gets credentials, must not hold up the others.
func (r *Runner) one(ctx context.Context, c finding.Check, what string) []finding.Finding {
	limited, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	done := make(chan []finding.Finding, 1)
	go func() { done <- c.Run(limited) }()
	slow := time.NewTicker(sayEvery)
	defer slow.Stop()
	for began := time.Now(); ; {
		select {
		case found := <-done:
			if limited.Err() == nil {
				return found
			} // else its words are about the time that is over
		case <-slow.C:
			r.Say(fmt.Sprintf("waiting for %s, for %s of at most %s", what, time.Since(began).Round(time.Second), r.Limit))
			continue
		case <-limited.Done():
		}
		if ctx.Err() != nil {
			return []finding.Finding{finding.Unchecked("interrupted")}
		}
		return []finding.Finding{finding.Unchecked("no answer within %s", r.Limit)}
	}
}

// Report is all that was found.
type Report struct {
	// Kipctl is the version that has asked.
	Kipctl     string    `json:"kipctl"`
	Time       time.Time `json:"time"`
	Failed     int       `json:"failed"`
	Warnings   int       `json:"warnings"`
	NotChecked int       `json:"notChecked"`
	Results    []Result  `json:"results"`
}

// NewReport counts results.
func NewReport(version string, now time.Time, results []Result) Report {
	rep := Report{Kipctl: version, Time: now.UTC(), Results: results}
	for _, r := range results {
		switch r.Outcome {
		case finding.Failed:
			rep.Failed++
		case finding.Warning:
			rep.Warnings++
		case finding.NotChecked:
			rep.NotChecked++
		}
	}
	return rep
}
