package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/events"
)

// Disk is a disk of the cloud that a cell's pod has as a volume. The record of a
// cell names its disks from the first: what may be attached to its instance is
// stored before anything is.
type Disk struct {
	ID string `json:"id"`
	// Volume is its PersistentVolume.
	Volume string `json:"volume"`
}

// attachAgain is after how many polls for a device, which take half a minute, the cloud is
// asked again to attach it.
const attachAgain = 10

// refusedTimeout is how long a cell waits for a disk that the cloud refuses to attach to it:
// longer than what clouds take to know everywhere of what they have made.
const refusedTimeout = time.Minute

// hasDisks reports whether the cloud has disks.
func hasDisks(c *pipe.Pipe) bool { return c.Optional().Disks != nil }

// DiskInUseError reports that a disk of the request is another pod's.
type DiskInUseError struct {
	Disk Disk
	Pod  apiv1.PodReference
}

func (e *DiskInUseError) Error() string {
	return fmt.Sprintf("volume %s (%s) is used by pod %s: a disk is on one machine at a time, and each pod has its own",
		e.Disk.Volume, e.Disk.ID, e.Pod)
}

// disks gives ready cells the disks of their pods' volumes.
type disks struct {
	table  *table
	loop   *loop
	calls  *pipe.Pipe
	agents *asking
	events *reporter
	waits  *bindWaits
	given  perCell[disksGiven] // of their workers
}

var _ preparation = (*disks)(nil)

// disksGiven is how far that is.
type disksGiven struct {
	attached bool         // the cloud has attached them, for this process
	shown    agentSession // that on which the agent has them
}

// prepare gives a ready cell its disks, before its kubelet sees the pod. It is done
// when all disks are devices of the machine.
func (s *disks) prepare(ctx context.Context, e *entry) (progress, error) {
	cell, given, session := e.cell(), s.given.of(e), e.session()
	if len(cell.Disks) == 0 || given.shown.opened() && given.shown == session {
		return done, nil
	}
	if !hasDisks(s.calls) {
		return progress{}, fmt.Errorf("cell %s has disks, and cloud %s has none", e.id, s.calls.Name())
	}
	if !given.attached {
		if got, err := s.attach(ctx, e); err != nil || !got.isDone() {
			return got, err
		}
		given.attached = true
		s.waits.restart(e)
	}
	if !session.connected() {
		return await(notConnected), nil // the tunnel wakes the cell
	}
	got, err := s.loop.async(ctx, e, handsOverDisks, func(ctx context.Context) error {
		return s.agents.putDisks(ctx, e, session, diskIDs(cell.Disks))
	})
	switch {
	case !got.isDone():
		return got, nil
	case err == nil:
	case errors.Is(err, agentapi.ErrNotYet):
		if s.waits.polls(e) >= attachAgain {
			given.attached = false // the cloud has said yes, and may not have done it
		}
		return s.waits.wait(ctx, e, bindWait{
			by:       s,
			progress: waitFor("its machine does not show its disks yet", diskPoll),
			longest:  longestDiskPoll,
			event:    events.NewDeviceNotShown(err),
		})
	default:
		return progress{}, fmt.Errorf("hand cell %s its disks: %w", e.id, err)
	}
	given.shown = session
	s.waits.over(ctx, e)
	s.events.report(cell, events.NewVolumesAttached(e.id, volumeNames(cell.Disks)))
	return done, nil
}

// attach has the cloud attach a cell's disks. The cell waits for one that is not free, and leaves if it has waited too long.
func (s *disks) attach(ctx context.Context, e *entry) (progress, error) {
	cell := e.cell()
	got, err := s.loop.async(ctx, e, attachesDisks, func(ctx context.Context) error {
		for _, d := range cell.Disks {
			if err := s.calls.Optional().Disks.AttachDisk(ctx, d.ID, cell.Instance.ID); err != nil {
				return &attachError{d, err}
			}
		}
		return nil
	})
	var failed *attachError
	if !got.isDone() || ctx.Err() != nil || !errors.As(err, &failed) {
		return got, err
	}
	var inUse *cloud.InUseError
	w := bindWait{by: s, failure: err, event: events.NewVolumeNotAttached(failed.disk.Volume, failed.err)}
	switch {
	case errors.As(err, &inUse):
		if !s.table.letsGoOf(inUse.Instance) {
			w.timeout = heldTimeout
		}
		w.event = events.NewVolumeHeld(failed.disk.Volume, s.table.userOf(inUse.Instance), w.timeout)
		w.failure, w.progress, w.longest = nil, waitFor("another instance has one of its disks", diskPoll), longestDiskPoll
	case errors.Is(err, cloud.ErrNotYet):
	case cloud.Refused(failed.err):
		w.timeout = refusedTimeout
	default: // A call that was throttled or not answered does not begin the timeout of a refusal anew.
		s.waits.report(ctx, e, w.event)
		return progress{}, err
	}
	why := fmt.Sprintf("the cloud did not attach volume %s in %s: %v", failed.disk.Volume, w.timeout, failed.err)
	w.end = cellEnd{CauseNoDisk, why, events.NewVolumeGivenUp(e.id, why)}
	return s.waits.wait(ctx, e, w)
}

// waitsForLocked returns what keeps the call from being sent that attaches a cell's disks. The caller holds table.mu.
func (s *disks) waitsForLocked(e *entry) string {
	if e.async.waitsFor() != attachesDisks {
		return ""
	}
	return s.calls.Waits(cloud.CallAttachDisk)
}

// attachError: a disk could not be attached.
type attachError struct {
	disk Disk
	err  error
}

func (e *attachError) Error() string {
	return fmt.Sprintf("attach volume %s: %v", e.disk.Volume, e.err)
}
func (e *attachError) Unwrap() error { return e.err }

func volumeNames(disks []Disk) string {
	var text string
	for i, d := range disks {
		if i > 0 {
			text += ", "
		}
		text += d.Volume
	}
	return text
}

func diskIDs(disks []Disk) []string {
	ids := make([]string, 0, len(disks))
	for _, d := range disks {
		ids = append(ids, d.ID)
	}
	slices.Sort(ids)
	return ids
}
