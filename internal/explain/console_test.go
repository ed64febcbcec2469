package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// console is that of a cloud for which a function answers.
type console func(ctx context.Context, instance string) ([]byte, error)

func (f console) Console(ctx context.Context, instance string) ([]byte, error) {
	return f(ctx, instance)
}

func TestTheConsoleOfACellThatNeverJoinedIsTold(t *testing.T) {
	pod := asking("100Mi")
	k := newKip(t, pod)
	var asked []string
	var fails error
	k.explains.cfg.Console = console(func(ctx context.Context, instance string) ([]byte, error) {
		asked = append(asked, instance)
		if end, has := ctx.Deadline(); !has || time.Until(end) > consoleTimeout {
			t.Errorf("the cloud has until %s to answer", end)
		}
		return []byte("one\r\n\ntwo\n"), fails
	})
	machine := &cloud.Instance{ID: "i-1"}
	joined := []apiv1.Step{{Name: apiv1.StepJoined, Time: metav1.NowMicro()}}
	for name, tc := range map[string]struct {
		cell  cells.Cell
		asked bool
	}{
		"it boots":               {cells.Cell{Phase: apiv1.Booting, Instance: machine}, true},
		"it was given up":        {cells.Cell{Phase: apiv1.Terminating, Instance: machine}, true},
		"it has joined":          {cells.Cell{Phase: apiv1.Booting, Instance: machine, Steps: joined}, false},
		"it has no machine":      {cells.Cell{Phase: apiv1.Launching}, false},
		"its machine is no more": {cells.Cell{Phase: apiv1.Gone, Instance: machine}, false},
	} {
		asked, fails = nil, nil
		tc.cell.ID = "cell-1"
		k.requests.has = &tc.cell
		e, err := k.explains.Why(t.Context(), pod.Namespace, pod.Name)
		if err != nil {
			t.Fatal(err)
		}
		if (e.Cell.Console != nil) != tc.asked || (fmt.Sprint(asked) == "[i-1]") != tc.asked {
			t.Errorf("%s: asked for %q, told %+v", name, asked, e.Cell.Console)
		}
		if tc.asked && fmt.Sprint(e.Cell.Console.Lines) != "[one two]" {
			t.Errorf("%s: told %q", name, e.Cell.Console.Lines)
		}
	}

	k.requests.has = &cells.Cell{ID: "cell-1", Phase: apiv1.Booting, Instance: machine}
	fails = errors.New("no right to read it")
	if e, err := k.explains.Why(t.Context(), pod.Namespace, pod.Name); err != nil || e.Cell.Console.Lines != nil ||
		e.Cell.Console.Error != "read the console of cell cell-1: no right to read it" {
		t.Errorf("told %+v, %v", e.Cell.Console, err)
	}
	k.explains.cfg.Console = nil
	if e, err := k.explains.Why(t.Context(), pod.Namespace, pod.Name); err != nil || e.Cell.Console != nil {
		t.Errorf("a cloud without consoles: told %+v, %v", e.Cell.Console, err)
	}
}

func TestTheConsoleOfAnyCellIsHandedOnAsItWasWritten(t *testing.T) {
	k := newKip(t, asking("100Mi"))
	var fails error
	k.explains.cfg.Console = console(func(ctx context.Context, instance string) ([]byte, error) {
		if end, has := ctx.Deadline(); !has || time.Until(end) > consoleTimeout || instance != "i-1" {
			t.Errorf("asked for %s, with the time until %s", instance, end)
		}
		return []byte("a\x1b[2J\xffb\r\n"), fails
	})
	for name, tc := range map[string]struct {
		cell   cells.Cell
		fails  error
		text   string
		says   string // the error
		absent bool   // the error is ErrNotFound
	}{
		"one that runs its pod": {cell: cells.Cell{Phase: apiv1.Bound}, text: "a\x1b[2J\xffb\r\n"},
		"one that is gone":      {cell: cells.Cell{Phase: apiv1.Gone}, text: "a\x1b[2J\xffb\r\n"},
		"a machine that is gone": {
			cell:   cells.Cell{Phase: apiv1.Gone},
			fails:  fmt.Errorf("%w: no i-1", adminapi.ErrNotFound),
			says:   "read the console of cell cell-1: not found: no i-1",
			absent: true,
		},
		"no right to read it": {
			cell:  cells.Cell{Phase: apiv1.Booting},
			fails: errors.New("no right"),
			says:  "read the console of cell cell-1: no right",
		},
	} {
		fails = tc.fails
		tc.cell.ID, tc.cell.Instance = "cell-1", &cloud.Instance{ID: "i-1"}
		k.requests.has = &tc.cell
		got, err := k.explains.Console(t.Context(), "cell-1")
		if tc.says == "" && (err != nil || got.Instance != "i-1" || got.Phase != tc.cell.Phase || string(got.Text) != tc.text) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if tc.says != "" && (err == nil || err.Error() != tc.says || errors.Is(err, adminapi.ErrNotFound) != tc.absent) {
			t.Errorf("%s: error %v, want %q", name, err, tc.says)
		}
	}
	k.requests.has = &cells.Cell{ID: "cell-1", Phase: apiv1.Launching}
	if got, err := k.explains.Console(t.Context(), "cell-1"); err != nil || got.Instance != "" || got.Phase != apiv1.Launching ||
		got.Text != nil {
		t.Errorf("one without a machine: %+v, %v", got, err)
	}
	if _, err := k.explains.Console(t.Context(), "cell-2"); !errors.Is(err, adminapi.ErrNotFound) || !strings.Contains(err.Error(), "cell-2") {
		t.Errorf("one that is not there: %v", err)
	}
	k.explains.cfg.Console = nil
	if _, err := k.explains.Console(t.Context(), "cell-1"); !errors.Is(err, adminapi.ErrNotFound) ||
		!strings.Contains(err.Error(), "keeps no consoles") {
		t.Errorf("a cloud without consoles: %v", err)
	}
}

func TestNoMoreOfAConsoleIsToldThanIsPromised(t *testing.T) {
	pod := asking("100Mi")
	k := newKip(t, pod)
	k.explains.cfg.Console = console(func(context.Context, string) ([]byte, error) {
		return append(make([]byte, 10*adminapi.MaxConsole), "end"...), nil
	})
	k.requests.has = &cells.Cell{ID: "cell-1", Phase: apiv1.Booting, Instance: &cloud.Instance{ID: "i-1"}}
	is, err := k.explains.Console(t.Context(), "cell-1")
	if err != nil || len(is.Text) != adminapi.MaxConsole || !strings.HasSuffix(string(is.Text), "end") {
		t.Errorf("%d bytes are told, %v", len(is.Text), err)
	}
}
