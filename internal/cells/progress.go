package cells

import "time"

// progress is what has come of a step of a cell's life, or of a preparation. With an error it says nothing: the error is a failure, and
// the step runs again after a back-off (loop.retry).
type progress struct {
	state progressState
	why   string        // what a cell waits for, as a sentence for people and for Kip's log
	again time.Duration // after how long a cell that waits is to run its step again; 0 means that something else wakes it
}

type progressState int

const (
	isWaiting  progressState = iota // for something that wakes it, or for a time
	isUnderWay                      // for what is done aside: what failed before is not forgotten, since it may fail again
	isDone                          // a preparation: the cell has it, or needs none; a step: the cell is through with its phase, or idle
	isLeaving                       // the cell ends, or is stopped: nothing more is prepared
	isAnew                          // what the step went by is over: it runs again at once
)

// What a step or a preparation returns, with the functions that follow.
var (
	done  = progress{state: isDone}
	leave = progress{state: isLeaving}
	anew  = progress{state: isAnew}
)

// notConnected is the wait of a cell for its agent.
const notConnected = "its agent is not connected"

// await returns the progress of a cell that something wakes when it need not wait any more.
func await(why string) progress { return progress{why: why} }

// waitFor returns the progress of a cell that is to check again after a time.
func waitFor(why string, again time.Duration) progress { return progress{why: why, again: again} }

// underWay returns the progress of a cell for which something is done aside, which wakes it.
func underWay(why string) progress { return progress{state: isUnderWay, why: why} }

// waits reports whether the cell waits.
func (p progress) waits() bool { return p.state == isWaiting || p.state == isUnderWay }

// isDone reports whether there is nothing to wait for: the preparation, or the step, has what it needs.
func (p progress) isDone() bool { return p.state == isDone }

// atMost returns a wait that lasts at most so long, if that is not 0.
func (p progress) atMost(again time.Duration) progress {
	if p.waits() && again > 0 && (p.again == 0 || p.again > again) {
		p.again = again
	}
	return p
}
