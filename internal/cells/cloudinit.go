package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/events"
)

const (
	// cloudInitTimeout is how long a cell may take to carry out the operator's cloud-init
	// file: an image's package manager takes minutes.
	cloudInitTimeout = 10 * time.Minute
	// firstSetUpPoll and longestSetUpPoll are how long it is left alone before it is asked
	// whether it is done, twice as long each time: a file without scripts is written within
	// milliseconds.
	firstSetUpPoll, longestSetUpPoll = 25 * time.Millisecond, 5 * time.Second
)

// CloudInit is the operator's cloud-init file, which changes. What a launch names of it is
// kept as long as a cell does.
type CloudInit interface {
	// Digest names the content that counts for the next launch, which is stored; "" for none.
	Digest() string
	// NeedsLogin says that that content has users, or their keys.
	NeedsLogin() bool
	// Document returns a content by its digest.
	Document(ctx context.Context, digest string) ([]byte, error)
	// Unfit tells the operator why cells with the content that counts are not launched, again
	// and again as long as they are not. It does not block.
	Unfit(why string)
}

// cloudInit is the digest of the file that counts for the next launch.
func (c *Controller) cloudInit() string {
	if c.cfg.CloudInit == nil {
		return ""
	}
	return c.cfg.CloudInit.Digest()
}

// template names what a cell is made of, with this cloud-init file.
func (c *Controller) template(cloudInit string) string {
	if cloudInit == "" {
		return c.cfg.Template
	}
	return c.cfg.Template + "-" + cloudInit[:min(len(cloudInit), 16)]
}

// CloudInit is the digest of the cloud-init file that the cell was launched with; "" for none.
func (c Cell) CloudInit() string {
	if c.Launch == nil {
		return ""
	}
	return c.Launch.CloudInit
}

// errNoCloudInit: the agent cannot carry the file out, and will not do so later.
var errNoCloudInit = errors.New("its cloud-init file cannot be carried out")

// setUp has the agent carry out the cloud-init file of the cell's launch: before it is joined,
// and so before its kubelet runs. The error is agentapi.ErrNotYet as long as that goes on.
func (c *Controller) setUp(ctx context.Context, e *entry, session Session) error {
	digest := e.cell().CloudInit()
	if digest == "" || !e.cell().StepTime(apiv1.StepJoined).IsZero() {
		return nil
	}
	if c.cfg.CloudInit == nil {
		return fmt.Errorf("%w: this Kip has none", errNoCloudInit)
	}
	c.mu.Lock()
	sent := e.setUpSent
	c.mu.Unlock()
	var failures []string
	var err error
	if sent {
		failures, err = c.setUpDone(ctx, e, session, digest)
	} else {
		failures, err = c.beginSetUp(ctx, e, session, digest)
	}
	c.mu.Lock()
	e.setUpSent = sent || errors.Is(err, agentapi.ErrNotYet)
	if errors.Is(err, errNotBegun) {
		e.setUpSent = false
	}
	if err == nil {
		e.setUp = failures
	}
	c.mu.Unlock()
	if err == nil {
		c.heardFit(e.cell())
	}
	return err
}

// beginSetUp gives the agent the file.
func (c *Controller) beginSetUp(ctx context.Context, e *entry, session Session, digest string) (failures []string, err error) {
	document, err := c.cfg.CloudInit.Document(ctx, digest)
	if err != nil {
		return nil, err
	}
	err = c.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) (err error) {
		failures, err = agent.PutCloudInit(ctx, document)
		return err
	})
	if answered(err, http.StatusBadRequest, http.StatusNotFound) {
		err = fmt.Errorf("%w: %w", errNoCloudInit, err)
	}
	return failures, err
}

// errNotBegun: the agent knows nothing of the file, and is to be given it once more.
var errNotBegun = fmt.Errorf("the agent has not begun with the cloud-init file: %w", agentapi.ErrNotYet)

// setUpDone asks the agent, which has the file, whether it is done. One that can only be asked
// by giving it the file says that it knows no such method.
func (c *Controller) setUpDone(ctx context.Context, e *entry, session Session, digest string) (failures []string, err error) {
	err = c.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) (err error) {
		failures, err = agent.CloudInitDone(ctx, digest)
		return err
	})
	if answered(err, http.StatusNotFound, http.StatusMethodNotAllowed) {
		return nil, errNotBegun
	}
	return failures, err
}

// answered says that an agent has answered with one of some codes of HTTP.
func answered(err error, codes ...int) bool {
	refused, is := errors.AsType[*agentapi.StatusError](err)
	return is && slices.Contains(codes, refused.Code)
}

// notSetUp takes an error of connecting: a cell whose agent or cloud-init file is under way is
// asked again soon, one that cannot have them ends; of one that cannot carry out its file no
// other is launched like it for a while. What else there is is the caller's.
func (c *Controller) notSetUp(ctx context.Context, e *entry, left time.Duration, err error) (time.Duration, error) {
	switch {
	case errors.Is(err, errNoAgent):
		why := fmt.Sprintf("cell %s on %s: %v", e.id, e.cell().Instance.ID, err)
		c.heardNoAgent(e.cell(), err)
		c.warn(e.cell(), events.AgentNotStarted, "%s; it is terminated and another is tried", why)
		return 0, c.endNotSetUp(ctx, e, CauseUnfit, why)
	case errors.Is(err, errNoCloudInit):
		why := fmt.Sprintf("cell %s on %s: %v", e.id, e.cell().Instance.ID, err)
		c.heardUnfit(e.cell(), err)
		c.warn(e.cell(), events.CloudInitUnfit, "%s; it is terminated, and another is launched when whoever runs Kip has mended it", why)
		return 0, c.endNotSetUp(ctx, e, CauseUnfit, why)
	case errors.Is(err, errAgentFetched):
		return min(left, agentPoll), nil
	case errors.Is(err, agentapi.ErrNotYet) && e.cell().CloudInit() != "" && e.cell().StepTime(apiv1.StepJoined).IsZero():
		if e.cell().StepTime(apiv1.StepCloudInit).IsZero() {
			// Stored, since a Kip that begins anew is not to take it for one that does not join.
			if err := c.save(ctx, e, func(cell *Cell) error {
				cell.step(apiv1.StepCloudInit, c.cfg.Clock.Now())
				return nil
			}); err != nil {
				return 0, err
			}
		}
		e.setUpPolls++
		return min(left, c.cfg.Random.After(e.setUpPolls, firstSetUpPoll, longestSetUpPoll)), nil
	}
	return left, err
}

// endNotSetUp ends a cell that cannot have what it is to have.
func (c *Controller) endNotSetUp(ctx context.Context, e *entry, cause Cause, why string) error {
	c.mu.Lock()
	e.cause = cause
	c.mu.Unlock()
	return c.startTerminating(ctx, e, why)
}

// tellCloudInit tells, once, what of the file could not be done.
func (c *Controller) tellCloudInit(e *entry) {
	c.mu.Lock()
	failures := e.setUp
	e.setUp = nil
	c.mu.Unlock()
	if len(failures) > 0 {
		c.warn(e.cell(), events.CloudInitFailed, "Cell %s runs, and not all of its cloud-init file could be done: %s", e.id,
			strings.Join(failures, "; "))
	}
}
