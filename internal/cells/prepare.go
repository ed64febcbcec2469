package cells

import (
	"context"
	"time"
)

// preparation gives a cell something that it needs before the next one, or before its kubelet sees the pod.
type preparation interface {
	prepare(ctx context.Context, e *entry) (progress, error)
}

// progress is what has come of a preparation. The zero value is a wait that something else ends.
type progress struct {
	state progressState
	again time.Duration // of a wait: after how long to run again; 0 means that something else wakes the cell
}

type progressState int

const (
	isWaiting progressState = iota // the cell does not have it yet
	isDone                         // the cell has it, or needs none
	isLeaving                      // the cell ends, or is stopped: nothing more is prepared
)

// What a preparation returns, with waitFor.
var (
	done  = progress{state: isDone}
	leave = progress{state: isLeaving}
)

// waitFor is the progress of a cell whose preparation is to run again after a time.
func waitFor(again time.Duration) progress { return progress{again: again} }
