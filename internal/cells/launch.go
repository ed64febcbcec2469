package cells

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agent/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"sigs.k8s.io/yaml"
)

// launchTimeout bounds one call to the cloud. A call that runs into it has an
// unknown outcome and is sent again with the same token.
const launchTimeout = time.Minute

// request stores the intent to launch, unless the pod has gone meanwhile.
func (c *Controller) request(ctx context.Context, e *entry) (time.Duration, error) {
	if why, _ := c.endingOf(e); why != "" {
		return 0, c.gone(ctx, e, why)
	}
	if clear, err := c.nobodyElseRuns(ctx, e); err != nil || !clear {
		c.pollSoon()
		return time.Second, err
	}
	return 0, c.save(ctx, e, func(cell *Cell) error {
		cell.Token = pki.NewToken().Reveal()
		return cell.enter(apiv1.Launching)
	})
}

// nobodyElseRuns says that the cloud shows no other instance for the pod: one
// that an earlier Kip launched, whose store was lost, would go on running it. It
// is terminated first.
func (c *Controller) nobodyElseRuns(ctx context.Context, e *entry) (bool, error) {
	cell, look := e.cell(), c.lastLook()
	if look.began.IsZero() {
		return false, nil
	}
	var other []string
	for id := range look.byPod[string(cell.Pod.UID)] {
		if look.byID[id].Tags[cloud.TagCell] != cell.ID {
			other = append(other, id)
		}
	}
	if len(other) == 0 {
		return true, nil
	}
	c.warn(cell, "CellUnknown", "Instances %v were launched for this pod by a Kip whose state is lost; they are terminated before another runs it", other)
	if err := c.cfg.Cloud.Terminate(ctx, other...); err != nil {
		return false, fmt.Errorf("terminate %v, which run the same pod: %w", other, err)
	}
	return false, nil
}

// launch sends the stored intent. Whether an earlier call with it worked or not,
// the same token leads to the same instance; so a cell that must end is launched
// all the same, to learn what there is to terminate.
func (c *Controller) launch(ctx context.Context, e *entry) (time.Duration, error) {
	for {
		offer := e.cell().Offer()
		data, err := userData(agentapi.UserData{CellID: e.cell().ID, CAHash: c.cfg.CAHash, Token: e.cell().Token})
		if err != nil {
			return 0, err
		}
		call, cancel := context.WithTimeout(ctx, launchTimeout)
		instance, err := c.cfg.Cloud.Launch(call, cloud.LaunchRequest{
			Token: e.cell().launchToken(c.cfg.ControllerID), InstanceType: offer.InstanceType, Zone: offer.Zone, Spot: offer.Spot,
			UserData: data, Tags: c.tags(e.cell()),
		})
		cancel()
		if err == nil {
			c.tell(e.cell(), "CellLaunched", "Launched instance %s (%s) as cell %s", instance.ID, offer, e.cell().ID)
			return 0, c.save(ctx, e, func(cell *Cell) error {
				cell.Instance = &instance
				cell.Reason = offer.Reason
				cell.step(apiv1.StepLaunched, c.cfg.Clock.Now())
				return cell.enter(apiv1.Booting)
			})
		}
		if !cloud.Refused(err) {
			// Throttled, or an answer that was lost: the instance may be there.
			return 0, fmt.Errorf("launch %s: %w", offer, err)
		}
		c.cfg.Unavailable(offer.InstanceType, offer.Zone, offer.Spot)
		if why, _ := c.endingOf(e); why != "" {
			return 0, c.gone(ctx, e, why)
		}
		reason := "CellNotLaunched"
		if errors.Is(err, cloud.ErrCapacity) {
			reason = "NoCapacity"
		}
		if len(e.cell().Offers) == 1 {
			c.warn(e.cell(), reason, "%s: %v; no other type fits now", offer, err)
			return 0, c.gone(ctx, e, fmt.Sprintf("%s: %v", offer, err))
		}
		c.warn(e.cell(), reason, "%s: %v; trying %s", offer, err, e.cell().Offers[1])
		if err := c.save(ctx, e, func(cell *Cell) error {
			cell.Offers = cell.Offers[1:]
			cell.Reason = cell.Offers[0].Reason
			return nil
		}); err != nil {
			return 0, err
		}
	}
}

func (c *Controller) tags(cell *Cell) map[string]string {
	return map[string]string{
		cloud.TagOwner:     c.cfg.ControllerID,
		cloud.TagCell:      cell.ID,
		cloud.TagNamespace: cell.Pod.Namespace,
		cloud.TagPod:       cell.Pod.Name,
		cloud.TagPodUID:    string(cell.Pod.UID),
		cloud.TagNameTag:   c.cfg.NameTag,
		cloud.TagName:      "Kip cell " + c.cfg.NameTag + " " + cell.Pod.Name,
	}
}

// userData renders what a machine is told when it is launched.
func userData(u agentapi.UserData) ([]byte, error) {
	body, err := yaml.Marshal(map[string]agentapi.UserData{"kip": u})
	if err != nil {
		return nil, fmt.Errorf("render user data: %w", err)
	}
	return append([]byte("#cloud-config\n"), body...), nil
}
