package cloud

import "time"

// Facts are what has turned out of an account, which a cloud says only when it refuses a call. They are kept over restarts
// of Kip, so that a call that was refused is not tried again. Both methods are for concurrent use and do not block.
type Facts interface {
	// Holds reports whether a fact was noted and its time is not over.
	Holds(fact string) bool
	// Note notes that a fact holds for a time.
	Note(fact string, lasts time.Duration)
}
