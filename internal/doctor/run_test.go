package doctor

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/finding"
)

func check(name, needs string, run func(context.Context) []finding.Finding) finding.Check {
	return finding.Check{Area: "test", Name: name, Needs: needs, Run: run}
}

func fine(context.Context) []finding.Finding { return one(finding.Fine("fine")) }

func TestACheckThatHangsIsNotCheckedAndHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		var said []string
		r := &Runner{Limit: 5 * time.Second, Say: func(line string) { said = append(said, line) }}
		r.Run(t.Context(),
			check("deaf", "", func(context.Context) []finding.Finding { <-over; return nil }),
			check("obedient", "", func(ctx context.Context) []finding.Finding {
				<-ctx.Done()
				return one(finding.Fail("", "its words are about the time: %v", ctx.Err()))
			}),
			check("quick", "", fine),
		)
		close(over)
		want := []finding.Outcome{finding.NotChecked, finding.NotChecked, finding.OK}
		for n, res := range r.Results {
			if res.Outcome != want[n] || n < 2 && res.Message != "no answer within 5s" {
				t.Errorf("%+v, want %s", res, want[n])
			}
		}
		if len(said) != 4 || !strings.Contains(said[0], "waiting for test: deaf, check 1 of 3, for 2s of at most 5s") {
			t.Errorf("said %q", said)
		}
	})
}

func TestACheckWhoseNeedDidNotSucceedIsNotRun(t *testing.T) {
	for name, first := range map[string]finding.Finding{
		"failed": finding.Fail("", "x"), "not checked": finding.Unchecked("x"), "ok": finding.Fine("x"), "warning": finding.Warn("", "x"),
	} {
		ran := false
		r := &Runner{Limit: time.Minute}
		r.Run(t.Context(), check("first", "", func(context.Context) []finding.Finding { return one(first) }))
		r.Run(t.Context(), check("second", "first", func(context.Context) []finding.Finding { ran = true; return one(finding.Fine("x")) }))
		if want := name == "ok" || name == "warning"; ran != want {
			t.Errorf("after %s the second ran: %v", name, ran)
		}
		if last := r.Results[1]; !ran && (last.Outcome != finding.NotChecked || !strings.Contains(last.Message, `needs the check "first"`)) {
			t.Errorf("after %s: %+v", name, last)
		}
	}
}

func TestAnInterruptLeavesTheRestNotChecked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := &Runner{Limit: time.Minute}
	r.Run(ctx, check("first", "", func(ctx context.Context) []finding.Finding { cancel(); <-ctx.Done(); return nil }), check("second", "", fine))
	for _, res := range r.Results {
		if res.Outcome != finding.NotChecked || res.Message != "interrupted" {
			t.Errorf("%+v", res)
		}
	}
	rep := NewReport("v1", time.Now(), append(r.Results, Result{Finding: finding.Fail("", "")}, Result{Finding: finding.Warn("", "")}))
	if len(r.Results) != 2 || rep.NotChecked != 2 || rep.Failed != 1 || rep.Warnings != 1 {
		t.Errorf("%+v", rep)
	}
}
