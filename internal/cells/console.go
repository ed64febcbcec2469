package cells

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/keyed"
	"github.com/elotl/kip/internal/sanitize"
)

const (
	// consoleTimeout bounds the question for a console, its wait for the call included.
	consoleTimeout = 30 * time.Second
	// consoleLines and consoleBytes bound what is logged of one, and eventLines and eventBytes what an Event
	// tells, whose message has at most 1 KiB (Kubernetes API, Event).
	consoleLines, consoleBytes = 25, 4 << 10
	eventLines, eventBytes     = 6, 640
	// consolesAtOnce are how many are asked for at a time. Where more cells end they end for one reason,
	// and calls of the cloud are better spent on their ends. consolesOfOne are those of one namespace.
	consolesAtOnce, consolesOfOne = 4, 3
)

// agentsLine is one that the agent wrote, in the form of the kernel's.
var agentsLine = regexp.MustCompile(`^\[ *[0-9]+\.[0-9]+\] ` + agentapi.ConsolePrefix)

// agentsLast returns the last lines of the agent's among others.
func agentsLast(lines []string) []string {
	own := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !agentsLine.MatchString(line) })
	own = own[max(0, len(own)-eventLines):]
	for len(own) > 1 && len(strings.Join(own, " | ")) > eventBytes {
		own = own[1:]
	}
	for n, line := range own {
		own[n] = strings.ToValidUTF8(line[:min(len(line), eventBytes)], "")
	}
	return own
}

// consoles tells what machines wrote that have not joined.
type consoles struct {
	loop   *loop
	calls  *pipe.Pipe
	events *reporter
	places *keyed.Places[string] // of cells whose consoles are read, by namespace
}

// report tells what the machine of a cell that ends without having joined wrote last: what kept it
// has nowhere else to be said, and the machine is gone soon. The cell's end does not wait for it. Kip's
// log has all of these lines, and the pod's Event those of the agent: what else an operator's own image
// writes is none of a namespace's business.
func (s *consoles) report(ctx context.Context, cell *Cell) {
	from := s.calls.Optional().Console
	if from == nil || cell.Instance == nil || !cell.StepTime(apiv1.StepJoined).IsZero() {
		return
	}
	leave, ok := s.places.TryTake(cell.Pod.Namespace)
	if !ok {
		return
	}
	s.loop.spawn(ctx, "console", func(ctx context.Context) {
		defer leave()
		ctx, cancel := context.WithTimeout(ctx, consoleTimeout)
		defer cancel()
		text, err := from.Console(ctx, cell.Instance.ID)
		lines := sanitize.LastLines(text, consoleLines, consoleBytes)
		if !cell.StepTime(apiv1.StepCloudInit).IsZero() { // and what the operator's scripts write is theirs
			lines = agentsLast(lines)
		}
		switch {
		case errors.Is(err, cloud.ErrNotFound), errors.Is(err, context.Canceled), err == nil && len(lines) == 0:
		case err != nil:
			s.loop.log.Warn("read the console of a cell that has not joined", "cell", cell.ID, "instance", cell.Instance.ID, "err", err)
		default:
			s.loop.log.Warn("a cell has not joined, and its console ends so", "cell", cell.ID, "instance", cell.Instance.ID, "console", lines)
			if own := agentsLast(lines); len(own) > 0 {
				s.events.report(cell, events.NewCellConsole(cell.Instance.ID, own))
			}
		}
	})
}
