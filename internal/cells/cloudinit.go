package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	// cloudInitPoll is how often it is asked whether it is done.
	cloudInitPoll = time.Second
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
	document, err := c.cfg.CloudInit.Document(ctx, digest)
	if err != nil {
		return err
	}
	var failures []string
	err = c.ask(ctx, e, session, func(ctx context.Context, agent agentapi.Client) (err error) {
		failures, err = agent.PutCloudInit(ctx, document)
		return err
	})
	var refused *agentapi.StatusError
	if errors.As(err, &refused) && (refused.Code == http.StatusBadRequest || refused.Code == http.StatusNotFound) {
		return fmt.Errorf("%w: %w", errNoCloudInit, err)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.setUp = failures
	return nil
}

// notSetUp takes an error of connecting: a cell whose agent or cloud-init file is under way is
// asked again soon, one that cannot have them ends. What else there is is the caller's.
func (c *Controller) notSetUp(ctx context.Context, e *entry, left time.Duration, err error) (time.Duration, error) {
	switch {
	case errors.Is(err, errNoAgent):
		return 0, c.endNotSetUp(ctx, e, events.AgentNotStarted, err)
	case errors.Is(err, errNoCloudInit):
		return 0, c.endNotSetUp(ctx, e, events.CloudInitFailed, err)
	case errors.Is(err, errAgentFetched):
		return min(left, cloudInitPoll), nil
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
		return min(left, cloudInitPoll), nil
	}
	return left, err
}

// endNotSetUp ends a cell that cannot have what it is to have, and says why.
func (c *Controller) endNotSetUp(ctx context.Context, e *entry, reason string, err error) error {
	why := fmt.Sprintf("cell %s on %s: %v", e.id, e.cell().Instance.ID, err)
	c.warn(e.cell(), reason, "%s; it is terminated and another is tried", why)
	c.mu.Lock()
	e.cause = CauseNotReady
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
