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
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pulse"
)

// Disk is a disk of the cloud that a cell's pod has as a volume. The record of a
// cell names its disks from the first: what may be attached to its instance is
// stored before anything is.
type Disk struct {
	ID string `json:"id"`
	// Volume is its PersistentVolume.
	Volume string `json:"volume"`
}

// A disk that is not free, or not there, is asked for again after diskPoll, and then
// less and less often.
const diskPoll, longestDiskPoll = 250 * time.Millisecond, 4 * time.Second

// attachAgain is after how many polls for a device, which take half a minute, the cloud is
// asked again to attach it.
const attachAgain = 10

const (
	// refusedTimeout is how long a cell waits for a disk that the cloud refuses to attach to it:
	// longer than what clouds take to know everywhere of what they have made.
	refusedTimeout = time.Minute
	// heldTimeout is the same for a disk that an instance has which no cell of an ending pod is:
	// longer than a node of Kubernetes' own takes to let go of a disk in good order.
	heldTimeout = 2 * time.Minute
)

// hasDisks says that the cloud has disks.
func (c *Controller) hasDisks() bool { return c.cfg.Calls.Features().Disks != nil }

// DiskInUseError says that a disk of the request is another pod's.
type DiskInUseError struct {
	Disk Disk
	Pod  apiv1.PodReference
}

func (e *DiskInUseError) Error() string {
	return fmt.Sprintf("volume %s (%s) is used by pod %s: a disk is on one machine at a time, and each pod has its own",
		e.Disk.Volume, e.Disk.ID, e.Pod)
}

// claimed returns an error for the first disk that a live cell has. A cell that is
// to end is live until its record says so: a Kip that starts from the records would
// have two live cells for one disk. The caller holds mu.
func (c *Controller) claimed(disks []Disk) error {
	for _, d := range disks {
		if e := c.byDisk[d.ID]; e != nil && e.cell().Live() {
			return &DiskInUseError{Disk: d, Pod: e.pod}
		}
	}
	return nil
}

// claim notes whose disks those of a reserved cell are. The caller holds mu.
func (c *Controller) claim(e *entry) {
	for _, d := range e.disks {
		if other := c.byDisk[d.ID]; other == nil || e.cell().Live() { // of two cells, the live one has the disk
			c.byDisk[d.ID] = e
		}
	}
}

// unclaim undoes claim. The caller holds mu.
func (c *Controller) unclaim(e *entry) {
	for _, d := range e.disks {
		if c.byDisk[d.ID] == e {
			delete(c.byDisk, d.ID)
		}
	}
}

// attach gives a ready cell its disks, before its kubelet sees the pod. It returns
// true when all disks are devices of the machine. It returns true as well when
// something else is to be done with the cell first.
func (c *Controller) attach(ctx context.Context, e *entry) (ready bool, again time.Duration, err error) {
	cell := e.cell()
	if len(cell.Disks) == 0 || cell.Stopped || e.disksShown {
		return true, 0, nil
	}
	if stays, err := c.stays(ctx, e); !stays {
		return err == nil, 0, err
	}
	if !c.hasDisks() {
		return false, 0, fmt.Errorf("cell %s has disks, and cloud %s has none", e.id, c.cfg.Calls.Name())
	}
	if !e.attached {
		if again, err := c.attachDisks(ctx, e); err != nil || again > 0 {
			return false, again, err
		}
		e.attached, e.diskPolls, e.refused = true, 0, time.Time{}
	}
	if !e.session.Connected() {
		return false, 0, nil // the tunnel wakes the cell
	}
	session := e.session
	err = c.aside(ctx, e, "hand over disks", func(ctx context.Context) error { return c.putDisks(ctx, e, session, diskIDs(cell.Disks)) })
	switch {
	case err == nil:
	case errors.Is(err, errUnderWay):
		return false, 0, err
	case errors.Is(err, agentapi.ErrNotYet):
		if e.diskPolls >= attachAgain {
			e.attached = false // the cloud has said yes, and may not have done it
		}
		c.tellDisk(ctx, e, events.FailedAttachVolume, fmt.Sprintf("Its cell does not show the device of a volume yet: %v", err))
		return false, c.nextDiskPoll(e), nil
	default:
		return false, 0, fmt.Errorf("hand cell %s its disks: %w", e.id, err)
	}
	e.disksShown, e.diskPolls = true, 0
	c.noteDisk(ctx, e, told{})
	c.report(cell, events.Event{Type: normal, Reason: events.SuccessfulAttachVolume,
		Message: "Attached to cell " + e.id + ": " + volumeNames(cell.Disks)})
	return true, 0, nil
}

// attachDisks has the cloud attach a cell's disks. It returns after how long to ask
// again where one is not free.
func (c *Controller) attachDisks(ctx context.Context, e *entry) (again time.Duration, err error) {
	cell := e.cell()
	err = c.aside(ctx, e, attachesDisks, func(ctx context.Context) error {
		for _, d := range cell.Disks {
			if err := c.cfg.Calls.Features().Disks.AttachDisk(ctx, d.ID, cell.Instance.ID); err != nil {
				return &attachError{d, err}
			}
		}
		return nil
	})
	var failed *attachError
	var inUse *cloud.InUseError
	switch {
	case ctx.Err() != nil, !errors.As(err, &failed):
		return 0, err
	case errors.As(err, &inUse):
		atMost := ""
		if c.letsGoOf(inUse.Instance) {
			e.refused = time.Time{}
		} else if c.noDisk(e, failed, heldTimeout) {
			return diskPoll, nil
		} else {
			atMost = fmt.Sprintf(", for %s at most: then its cell is ended, and the pod gets another after a pause", heldTimeout)
		}
		c.tellDisk(ctx, e, events.VolumeInUse,
			fmt.Sprintf("Volume %s waits until %s no longer has it%s", failed.disk.Volume, c.userOf(inUse.Instance), atMost))
		return c.nextDiskPoll(e), nil
	case errors.Is(err, cloud.ErrNotYet):
		e.refused = time.Time{}
	// What was throttled, or got no answer, says nothing of the disk: the time of a refusal goes on.
	case cloud.Refused(failed.err) && c.noDisk(e, failed, refusedTimeout):
		return diskPoll, nil
	}
	c.tellDisk(ctx, e, events.FailedAttachVolume, fmt.Sprintf("Volume %s: %v; retrying", failed.disk.Volume, failed.err))
	return 0, err
}

// noDisk gives a cell up that has waited so long for a disk.
func (c *Controller) noDisk(e *entry, failed *attachError, after time.Duration) bool {
	return c.giveUp(e, CauseNoDisk, events.FailedAttachVolume, "the cloud did not attach volume "+failed.disk.Volume, failed.err, after)
}

// giveUp ends a cell that has waited for so long for what the cloud surely does not give to it.
// Nobody else may have the machine meanwhile, and it is paid for; the pod gets another after a
// pause, which is longer each time. It is called by the cell's worker alone.
func (c *Controller) giveUp(e *entry, cause Cause, reason, what string, said error, after time.Duration) bool {
	now := c.cfg.Clock.Now()
	if e.refused.IsZero() {
		e.refused = now
	}
	if e.timeLeft(e.refused.Add(after+c.cfg.Late.Since(e.refused)).Sub(now)) > 0 {
		return false
	}
	why := fmt.Sprintf("%s in %s: %v", what, after, said)
	c.mu.Lock()
	begun := e.beginEnd(cause, why)
	c.mu.Unlock()
	if begun {
		c.warn(e.cell(), reason, "Cell %s is ended: %s; the pod gets another after a pause", e.id, why)
		c.queue.Add(e.id)
	}
	return true
}

// HasInstance reports whether an instance is that of a cell which is not Gone.
func (c *Controller) HasInstance(instance string) bool { return c.havingInstance(instance) != nil }

// letsGoOf reports whether an instance is that of a cell which ends, and so lets go of its disks.
func (c *Controller) letsGoOf(instance string) bool {
	e := c.havingInstance(instance)
	if e == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.ending != "" || !e.cell().Live()
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

// nextDiskPoll is after how long to ask again: what is asked often comes out of the
// budget of those whose disks are free.
func (c *Controller) nextDiskPoll(e *entry) time.Duration {
	e.diskPolls++
	return c.cfg.Random.After(e.diskPolls, diskPoll, longestDiskPoll)
}

// stays connects a cell that is to be given something for its pod. It returns false
// when the cell is to end first, or with an error.
func (c *Controller) stays(ctx context.Context, e *entry) (bool, error) {
	if why, _ := c.endingOf(e); why != "" {
		return false, nil
	}
	if err := c.connect(ctx, e); err != nil {
		return false, err
	}
	_, ends := c.interrupted(ctx, e)
	return !ends, nil
}

// userOf says whose instance has a disk, for people.
func (c *Controller) userOf(instance string) string {
	if e := c.havingInstance(instance); e != nil && e.cell().Pod.UID != "" {
		return fmt.Sprintf("the cell of pod %s (%s)", e.cell().Pod, e.cell().Phase)
	}
	return "instance " + instance
}

// tellDisk reports something about a cell's disks, unless it was the last thing
// that was. It is called by the cell's worker alone.
func (c *Controller) tellDisk(ctx context.Context, e *entry, reason, message string) {
	if c.noteDisk(ctx, e, told{reason, message}) {
		c.report(e.cell(), events.Event{Type: warning, Reason: reason, Message: message})
	}
}

// noteDisk keeps what a ready cell waits for, for WaitsFor, and tells observers of
// it; false if that is known.
func (c *Controller) noteDisk(ctx context.Context, e *entry, news told) bool {
	if e.diskTold == news {
		return false
	}
	c.mu.Lock()
	e.diskTold = news
	c.mu.Unlock()
	lockWriting(ctx, e) // the changes of a cell are told in their order
	defer e.writing.Unlock()
	c.observers.CellChanged(*e.cell())
	return true
}

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

// putDisks tells the agent which disks its cell is to have.
func (c *Controller) putDisks(ctx context.Context, e *entry, s Session, ids []string) error {
	return c.ask(ctx, e, s, func(ctx context.Context, agent agentapi.Client) error { return agent.PutDisks(ctx, ids) })
}

// patient says that a cell's containers have ended, or soon will have. What is on
// its volumes is then worth a wait.
func (*Controller) patient(e *entry) bool {
	cause := e.cell().Cause
	return cause == CausePodEnded || cause == CausePodDeleted
}

// reach waits until a cell that is being drained is connected, if that is worth a
// wait.
func (c *Controller) reach(ctx context.Context, e *entry) error {
	if err := c.connectNow(ctx, e); err != nil && e.session == nil {
		return err
	}
	if !e.session.Connected() {
		// After a restart, Kip may still be dialling. A lost cell is not waited for.
		if !c.patient(e) {
			return ErrNotConnected
		}
		if !e.ready(ctx) {
			return ErrNotConnected
		}
	}
	return nil
}

// ready waits until the cell's session is connected, or ctx ends: false.
func (e *entry) ready(ctx context.Context) bool {
	defer pulse.Wait(ctx, pulse.Cell)()
	select {
	case <-e.session.Ready():
		return true
	case <-ctx.Done():
		return false
	}
}

// detach takes the disks from a cell that is being drained. The agent unmounts
// them, so that all is written. They are then free for another cell before the
// instance is gone. A disk that cannot be unmounted is never torn off: the end of
// the instance frees the disk as surely.
func (c *Controller) detach(ctx context.Context, e *entry) error {
	if err := c.letsGo(ctx, e, diskPoll, func(ctx context.Context) error { return c.putDisks(ctx, e, e.session, nil) }); err != nil {
		return fmt.Errorf("unmount %s: %w", volumeNames(e.cell().Disks), err)
	}
	// What the agent took is not taken off the time for which the call may wait.
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	for _, d := range e.cell().Disks {
		if err := c.cfg.Calls.Features().Disks.DetachDisk(ctx, d.ID, e.cell().Instance.ID); err != nil {
			return fmt.Errorf("detach volume %s: %w", d.Volume, err)
		}
	}
	return nil
}
