package guard

import (
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Ground says on what ground an instance ends.
type Ground int

const (
	// Unrequested is an end that nobody has requested, and that may cost a running pod if it follows from a mistake of the cloud
	// or of Kip. It counts for the Limit. It is the zero value, so an end of which nothing is said is bounded.
	Unrequested Ground = iota
	// Harmless is an end that nobody has requested, and that costs no pod: the cell never ran one, or the cloud is sure that its
	// instance has ended.
	Harmless
	// Requested is an end whose pod has ended or was deleted.
	Requested
)

// End is the end of one instance.
type End struct {
	Instance string
	// Cell is empty for an instance without one.
	Cell string
	// Pod is that of the cell, or of the instance's tags; zero where there is none.
	Pod apiv1.PodReference
	// Why the instance is to end, for people.
	Why    string
	Ground Ground
	// LastHeartbeat is when the cell was last heard, or could not have been; zero where its end does not follow from silence, or has
	// begun.
	LastHeartbeat time.Time
	// Heard returns LastHeartbeat as it is now. The guard asks it after a wait for the store. Optional: the cell was not heard meanwhile.
	Heard func() time.Time
	// Disruption is why Kip may not be able to hear the cell at all, for people: most cells of its place are silent. Its lease then
	// counts as fresh, or a network that is down between Kip and its cells would end a share of them in each window
	// (TestWhenMostCellsAreSilentNoneIsEnded).
	Disruption string
}

// Reason is why an end is held back. It is a label of a metric.
type Reason string

const (
	ByLimit      Reason = "limit" // too many unrequested ends
	ByLease      Reason = "lease" // the cell was heard in the last 40 s
	ByDisruption Reason = "doubt" // Kip may not be able to hear the cell; dashboards know it by this value
	ByStore      Reason = "store" // the store may not know all instances
)

// HeldError is the answer to an end that the guard holds back.
type HeldError struct {
	Reason Reason
	Text   string
	// After is when it is worth asking again.
	After time.Duration
}

func (e *HeldError) Error() string { return e.Text }
