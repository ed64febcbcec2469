package cells

import (
	"errors"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/store"
)

// What the errors of the cloud and of the store mean for cells.

// isShortage reports whether the cloud does not have what was asked for.
func isShortage(err error) bool {
	return errors.Is(err, cloud.ErrCapacity) || errors.Is(err, cloud.ErrQuota)
}

// denied reports whether Kip has no right to the one offering, perhaps to others.
func denied(err error) bool {
	s := cloud.ScopeOf(err)
	return errors.Is(err, cloud.ErrUnauthorised) && s.Says() && !s.Account
}

// ofTheCell reports whether the cloud found fault with what a cell's pod asks for, and not with what
// it has: others may be launched as the same offering. A pod that asks for nothing of its own
// is not at fault.
func ofTheCell(cell *Cell, err error) bool {
	return cell.Special && cloud.Refused(err) && !errors.Is(err, cloud.ErrCapacity) && !errors.Is(err, cloud.ErrQuota) &&
		!errors.Is(err, cloud.ErrUnauthorised) && !errors.Is(err, cloud.ErrUnexplained) && !cloud.ScopeOf(err).Says()
}

// perhapsOfTheCell is ofTheCell, and also true for refusals without a known reason. Otherwise a pod that is at fault itself would
// cool one offering after the other.
func perhapsOfTheCell(cell *Cell, err error) bool {
	return ofTheCell(cell, err) || cell.Special && errors.Is(err, cloud.ErrUnexplained)
}

// ofDisks reports whether the account lacks room for the cell's disk. No other offering has more, and no offering
// is short: other cells may have smaller disks.
func ofDisks(err error) bool { return cloud.ScopeOf(err).Disks }

// unfitForType reports whether another type may go together with what the operator has configured.
func unfitForType(err error) bool {
	return errors.Is(err, cloud.ErrUnfit) && cloud.ScopeOf(err).InstanceType != ""
}

// whyUnfit returns what a cloud found to be the operator's fault, without the call that it said so of;
// "" for any other error.
func whyUnfit(err error) string {
	if !errors.Is(err, cloud.ErrUnfit) {
		return ""
	}
	if answer, ok := errors.AsType[*cloud.Error](err); ok {
		return answer.Error()
	}
	return err.Error()
}

// retryAfter returns after how long a call is worth trying again, as the cloud says; 0 if it does
// not.
func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		return min(e.RetryAfter, pipe.LongestRetryAfter)
	}
	return 0
}

// refusedWrite reports whether somebody else writes our records.
func refusedWrite(err error) bool {
	return errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotLeader)
}
