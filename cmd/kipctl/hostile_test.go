package main

import (
	"bytes"
	"encoding/json"
	"io"
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
		PodPhase:      owned,
		Ended:         owned,
		StatusTrouble: owned,
		Waiting:       owned,
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

// Nor does what comes by another way: an error, a warning, any column, or JSON.
func TestNothingIsWrittenThatSteersATerminal(t *testing.T) {
	const owned = "a\x1b]0;owned\x07\x1b[2J\u009b31m\u202eb\tc\n"
	var out, warned bytes.Buffer
	k := &kipctl{out: &out, err: &warned, clock: clock.RealClock{}}
	root := newRoot(k, "kipctl")
	root.SetArgs([]string{"get", owned})
	if err := root.Execute(); err == nil {
		t.Error("it was taken for a command")
	}
	if _, err := k.err.Write([]byte(owned)); err != nil {
		t.Error(err)
	}
	for _, format := range []string{"table", "json", "yaml"} {
		k.output = format
		if err := k.print(map[string]string{"said": owned}, func(w io.Writer) error {
			_, err := io.WriteString(w, owned)
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	for _, text := range []string{out.String(), warned.String()} {
		if strings.ContainsAny(text, "\x1b\x07\u009b\u202e") || strings.Count(text, "owned") < 2 {
			t.Errorf("written: %q", text)
		}
	}
	if text := out.String(); !strings.HasPrefix(text, "a?]0;owned??[2J?31m?b\tc\n") {
		t.Errorf("the table has %q", text)
	}
	// A program reads in JSON what was said.
	out.Reset()
	k.output = "json"
	if err := k.print(map[string]string{"said": owned}, nil); err != nil {
		t.Fatal(err)
	}
	var read map[string]string
	if err := json.Unmarshal(out.Bytes(), &read); err != nil || read["said"] != owned {
		t.Errorf("read %q, %v", read["said"], err)
	}
}
