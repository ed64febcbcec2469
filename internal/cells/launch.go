package cells

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"sigs.k8s.io/yaml"
)

const (
	// callTimeout bounds one call to the cloud. A call that runs into it has an
	// unknown outcome.
	callTimeout = time.Minute
	// A launch whose outcome stays unknown is given up after both: the cloud
	// cannot say what is wrong with this offering, and another may work.
	giveUpTries = 5
	giveUpAfter = time.Minute
	// Between two tries of a launch.
	firstRetry, longestRetry = 200 * time.Millisecond, 15 * time.Second
)

// request hands a cell to be launched with others, as soon as nobody else can be
// running its pod.
func (c *Controller) request(ctx context.Context, e *entry) (time.Duration, error) {
	c.mu.Lock()
	launching := e.launching
	c.mu.Unlock()
	if launching {
		return 0, nil // it is its group's, which may be storing the launch, and gives it back
	}
	if why, _ := c.endingOf(e); why != "" {
		return 0, c.gone(ctx, e, why)
	}
	if clear, err := c.nobodyElseRuns(ctx, e); err != nil || !clear {
		c.pollSoon()
		return time.Second, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !e.launching {
		e.launching = true
		c.launches.add(e)
	}
	return 0, nil
}

// nobodyElseRuns says that the cloud shows no other instance that may run the
// pod: one that a Kip launched whose store was lost would go on running it. It is
// terminated first.
func (c *Controller) nobodyElseRuns(ctx context.Context, e *entry) (bool, error) {
	cell, look := e.cell(), c.lastLook()
	if look.began.IsZero() {
		return false, nil
	}
	other := slices.Clone(look.strangers)
	for _, id := range look.byPod[cell.Pod.UID] {
		if look.byID[id].Tags[cloud.TagCell] != cell.ID {
			other = append(other, id)
		}
	}
	if len(other) == 0 {
		return true, nil
	}
	c.warn(cell, "CellUnknown", "Instances %v may run this pod: they were launched by a Kip whose state is lost. They are terminated before another runs it", other)
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.cfg.Cloud.Terminate(call, other...); err != nil {
		return false, fmt.Errorf("terminate %v, which may run the same pod: %w", other, err)
	}
	return false, nil
}

// launchAll stores the intents to launch what has come together, a group for
// each offering, and sends them.
func (c *Controller) launchAll(ctx context.Context, entries []*entry) {
	groups := map[offering][]*entry{}
	for _, e := range entries {
		if why, _ := c.endingOf(e); why != "" {
			c.landed(e)
			continue
		}
		o := e.cell().Offer().offering()
		groups[o] = append(groups[o], e)
	}
	for _, all := range groups {
		for group := range slices.Chunk(all, cloud.MaxLaunch) {
			launch := Launch{ID: newID("launch-"), Cells: len(group), NameTag: c.cfg.NameTag}
			err := c.commit(ctx, group, func(n int, cell *Cell) error {
				l := launch
				l.Index = n
				cell.Launch, cell.Token = &l, pki.NewToken().Reveal()
				return cell.enter(apiv1.Launching)
			})
			if err != nil {
				for _, e := range group {
					c.mu.Lock()
					e.launching = false
					c.mu.Unlock()
					c.again(e, err)
				}
				continue
			}
			c.running.Go(func() { c.send(ctx, group, false) })
		}
	}
}

// landed gives cells that were being launched back to their workers.
func (c *Controller) landed(entries ...*entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		e.launching = false
		c.queue.Add(e.id)
	}
}

// resume sends a stored launch that nobody in this process is sending: an earlier
// Kip may have sent it, or not.
func (c *Controller) resume(ctx context.Context, e *entry) (time.Duration, error) {
	launch := e.cell().Launch
	if launch == nil {
		return 0, fmt.Errorf("cell %s is %s and its record has no launch", e.id, e.cell().Phase)
	}
	group := make([]*entry, launch.Cells)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.cells {
		l := other.cell().Launch
		if l == nil || l.ID != launch.ID || other.cell().Phase != apiv1.Launching {
			continue
		}
		if other.launching {
			return 0, nil // being sent
		}
		group[l.Index] = other
	}
	if n := slices.Index(group, nil); n >= 0 {
		return 0, fmt.Errorf("cell %d of %d of launch %s has no record", n, launch.Cells, launch.ID)
	}
	for _, member := range group {
		member.launching = true
	}
	c.running.Go(func() { c.send(ctx, group, true) })
	return 0, nil
}

// send sends a stored launch until its outcome is known and stored. Whether an
// earlier call with it worked or not, the same token leads to the same instances;
// so cells that must end are launched all the same, to learn what there is to
// terminate. unsure says that a call may have been made whose outcome is unknown:
// what the cloud refuses now it may then have started all the same.
func (c *Controller) send(ctx context.Context, group []*entry, unsure bool) {
	defer c.landed(group...)
	offer := group[0].cell().Offer()
	request, err := c.launchRequest(group)
	if err != nil {
		c.fail(err)
		return
	}
	began, wait := c.cfg.Clock.Now(), firstRetry
	for try := 1; ; try++ {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		instances, err := c.cfg.Cloud.Launch(call, request)
		cancel()
		if err == nil && len(instances) != len(group) {
			err = fmt.Errorf("the cloud answered a launch of %d with %d instances", len(group), len(instances))
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			c.resolve(ctx, group, func(n int, cell *Cell) (outcome, error) { return c.launched(cell, instances[n]) })
			return
		case cloud.Refused(err) && !unsure:
			c.cfg.Cool(offer, err)
			c.resolve(ctx, group, func(_ int, cell *Cell) (outcome, error) { return c.refused(cell, err) })
			return
		case cloud.Refused(err), try >= giveUpTries && c.cfg.Clock.Since(began) >= giveUpAfter && !errors.Is(err, cloud.ErrThrottled):
			c.cfg.Cool(offer, err)
			c.resolve(ctx, group, func(_ int, cell *Cell) (outcome, error) { return c.abandoned(cell, err) })
			return
		}
		// Throttled calls did nothing; any other may have.
		unsure = unsure || !errors.Is(err, cloud.ErrThrottled)
		if try == 1 {
			for _, e := range group {
				c.warn(e.cell(), "LaunchDelayed", "%s: %v; it is tried again", offer, err)
			}
		}
		c.cfg.Log.Warn("launch cells, it is tried again", "offer", offer.String(), "cells", len(group), "try", try, "err", err)
		if !c.sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, longestRetry)
	}
}

// sleep returns false when ctx ends.
func (c *Controller) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c.cfg.Clock.After(d):
		return true
	}
}

// outcome is what to report of a launch, once it is stored.
type outcome struct{ kind, reason, message string }

// resolve stores the outcome of a launch, for as long as it takes: nobody else
// knows it.
func (c *Controller) resolve(ctx context.Context, group []*entry, result func(n int, cell *Cell) (outcome, error)) {
	outcomes := make([]outcome, len(group))
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		err := c.commit(ctx, group, func(n int, cell *Cell) (err error) {
			outcomes[n], err = result(n, cell)
			return err
		})
		switch {
		case err == nil, errors.Is(err, errMoved): // an earlier commit of the same worked
			for n, e := range group {
				if outcomes[n] != (outcome{}) {
					c.report(e.cell(), outcomes[n].kind, outcomes[n].reason, outcomes[n].message)
				}
			}
			return
		case refusedWrite(err):
			c.fail(err)
			return
		}
		c.cfg.Log.Warn("store the outcome of a launch, it is tried again", "cell", group[0].id, "cells", len(group), "err", err)
		if !c.sleep(ctx, wait) {
			return
		}
	}
}

func (c *Controller) launched(cell *Cell, instance cloud.Instance) (outcome, error) {
	offer := cell.Offer()
	if instance.ID == "" {
		err := &cloud.CapacityError{InstanceType: offer.InstanceType, Zone: offer.Zone, Subnet: offer.Subnet, Spot: &offer.Spot, Err: errors.New("the cloud started fewer than were asked for")}
		c.cfg.Cool(offer, err)
		return c.refused(cell, err)
	}
	cell.Instance, cell.Reason, cell.Offers = &instance, offer.Reason, cell.Offers[:1]
	cell.step(apiv1.StepLaunched, c.cfg.Clock.Now())
	if instance.State == cloud.Terminating {
		// A launch that is sent again is answered with what it once started.
		cell.Reason, cell.Token, cell.Cause = "instance "+instance.ID+" has ended before its launch was known", "", CauseLost
		cell.step(apiv1.StepEnded, c.cfg.Clock.Now())
		return outcome{warning, "CellLost", "Cell " + cell.ID + " is lost: " + cell.Reason}, cell.enter(apiv1.Terminating)
	}
	return outcome{normal, "CellLaunched", fmt.Sprintf("Launched instance %s (%s) as cell %s", instance.ID, offer, cell.ID)}, cell.enter(apiv1.Booting)
}

// refused moves a cell that the cloud has surely not launched to its next offer,
// or to its end.
func (c *Controller) refused(cell *Cell, refusal error) (outcome, error) {
	offer := cell.Offer()
	left := slices.DeleteFunc(slices.Clone(cell.Offers[1:]), c.cfg.Unavailable)
	reason := "CellNotLaunched"
	if errors.Is(refusal, cloud.ErrCapacity) {
		reason = "NoCapacity"
	}
	cell.Launch, cell.Token = nil, ""
	if len(left) == 0 {
		cell.Reason, cell.Cause = fmt.Sprintf("%s: %v", offer, refusal), CauseNotLaunched
		cell.step(apiv1.StepTerminated, c.cfg.Clock.Now())
		return outcome{warning, reason, cell.Reason + "; no other type fits now"}, cell.enter(apiv1.Gone)
	}
	cell.Offers, cell.Reason = left, left[0].Reason
	return outcome{warning, reason, fmt.Sprintf("%s: %v; trying %s", offer, refusal, left[0])}, cell.enter(apiv1.Requested)
}

// abandoned ends a cell of which nobody knows whether it has an instance.
func (c *Controller) abandoned(cell *Cell, err error) (outcome, error) {
	cell.Reason, cell.Token, cell.Cause = fmt.Sprintf("%s: %v", cell.Offer(), err), "", CauseNotLaunched
	cell.step(apiv1.StepEnded, c.cfg.Clock.Now())
	return outcome{warning, "CellNotLaunched", cell.Reason + "; it is given up, and another is tried when the cloud surely has no instance of it"}, cell.enter(apiv1.Terminating)
}

// launchRequest is the call of a stored launch, the same each time.
func (c *Controller) launchRequest(group []*entry) (cloud.LaunchRequest, error) {
	first := group[0].cell()
	offer := first.Offer()
	r := cloud.LaunchRequest{
		Token: first.launchToken(c.cfg.ControllerID), InstanceType: offer.InstanceType, Zone: offer.Zone, Subnet: offer.Subnet, Spot: offer.Spot,
	}
	for _, e := range group {
		cell := e.cell()
		data, err := userData(agentapi.UserData{CellID: cell.ID, CAHash: c.cfg.CAHash, Token: cell.Token})
		if err != nil {
			return r, err
		}
		r.Machines = append(r.Machines, cloud.Machine{UserData: data, Tags: c.tags(cell)})
	}
	return r, nil
}

func (c *Controller) tags(cell *Cell) map[string]string {
	tags := map[string]string{
		cloud.TagOwner:   c.cfg.ControllerID,
		cloud.TagCell:    cell.ID,
		cloud.TagNameTag: cell.Launch.NameTag,
		cloud.TagName:    "Kip cell " + cell.Launch.NameTag + " standby",
	}
	// A standby cell that is taken while its launch is unknown keeps the tags
	// that it was launched with: Pod is set no earlier than that is resolved.
	if cell.Pod.UID != "" {
		tags[cloud.TagNamespace], tags[cloud.TagPod], tags[cloud.TagPodUID] = cell.Pod.Namespace, cell.Pod.Name, string(cell.Pod.UID)
		tags[cloud.TagName] = "Kip cell " + cell.Launch.NameTag + " " + cell.Pod.Name
	}
	return tags
}

// userData renders what a machine is told when it is launched.
func userData(u agentapi.UserData) ([]byte, error) {
	body, err := yaml.Marshal(map[string]agentapi.UserData{"kip": u})
	if err != nil {
		return nil, fmt.Errorf("render user data: %w", err)
	}
	return append([]byte("#cloud-config\n"), body...), nil
}
