// Package progress owns how work that takes a while is shown to a person: one line
// a phase. It does none of the work.
package progress

import (
	"fmt"
	"io"
	"time"

	"k8s.io/utils/clock"
)

// dotEvery is how often a phase that still runs shows that it does.
const dotEvery = 2 * time.Second

// Line shows phases, one a line: its name, a dot every two seconds that it
// takes, and how long it took.
type Line struct {
	Out   io.Writer
	Clock clock.WithTicker
}

// Phase shows that do runs, and how it ended.
func (p Line) Phase(name string, do func() error) error {
	began := p.Clock.Now()
	fmt.Fprintf(p.Out, "%s ...", name)
	dots := p.Clock.NewTicker(dotEvery)
	defer dots.Stop()
	done := make(chan error, 1)
	go func() { done <- do() }()
	for {
		select {
		case <-dots.C():
			fmt.Fprint(p.Out, ".")
		case err := <-done:
			took := p.Clock.Since(began).Seconds()
			if err != nil {
				fmt.Fprintf(p.Out, " failed after %.1fs\n", took)
				return err
			}
			fmt.Fprintf(p.Out, " %.1fs\n", took)
			return nil
		}
	}
}
