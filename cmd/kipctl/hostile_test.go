package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
)

// What a cell says of its pod and itself reaches a terminal without escape sequences.
func TestNothingThatACellSaysSteersATerminal(t *testing.T) {
	const owned = "\x1b]0;owned\x07\x1b[2J\u009b31m"
	var out bytes.Buffer
	k := &kipctl{out: &out, err: &out, clock: clock.RealClock{}}
	e := &adminapi.Explanation{
		PodPhase: owned,
		Waiting:  owned,
		Cell: &adminapi.Cell{
			Tunnel: &adminapi.Tunnel{Error: owned},
			Agent:  &adminapi.Agent{Error: owned, Components: []adminapi.Component{{Name: owned, Waiting: owned}}},
		},
		Placement: &adminapi.Placement{Error: owned},
		Events:    []adminapi.Event{{Time: time.Now(), Type: owned, Reason: owned, Message: owned}},
	}
	e.Cell.Status = apiv1.CellStatus{Reason: owned, Steps: []apiv1.Step{{Name: owned}}}
	if err := k.explanation(&out, e); err != nil {
		t.Fatal(err)
	}
	table := table(&out, "NAME")
	table.row(owned)
	if err := table.w.Flush(); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\x07\u009b") || strings.Count(text, "owned") < 10 {
		t.Errorf("written: %q", text)
	}
}
