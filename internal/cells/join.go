package cells

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// configTimeout bounds the handing over of the agent's configuration, in which
// it starts the kubelet's process.
const configTimeout = 10 * time.Second

// podsPerCell is what a cell's kubelet says it can run. Its one pod is all that
// it is shown; the rest leaves room for a pod that is being replaced by itself.
const podsPerCell = 2

// join waits for the machine's agent to prove that it has the token, gives it
// its configuration, and waits for its kubelet.
func (c *Controller) join(ctx context.Context, e *entry) (time.Duration, error) {
	if why, _ := c.endingOf(e); why != "" {
		cause := c.causeOf(e)
		if err := c.startTerminating(ctx, e, why); err != nil {
			return 0, err
		}
		if cause == CauseLost || cause == CauseInterrupted {
			c.tellConsole(ctx, e.cell())
		}
		return 0, nil
	}
	if _, ends := c.interrupted(ctx, e); ends {
		return 0, nil
	}
	if c.mayRunMore(e) {
		c.mu.Lock()
		c.unsure = c.cfg.Clock.Now()
		if c.unsureSince.IsZero() {
			c.unsureSince = c.unsure
		}
		c.mu.Unlock()
		return time.Second, nil
	}
	left, what := c.bootTime(e, e.cell(), e.session)
	if left = e.timeLeft(left); left <= 0 {
		why := fmt.Sprintf("cell %s on %s was not %s in time: %s", e.id, e.cell().Instance.ID, what, e.waitsFor())
		c.warn(e.cell(), events.CellNotReady, "%s; it is terminated and another is tried", why)
		c.mu.Lock()
		e.cause = CauseNotReady
		noAgent := !e.goesOver.IsZero()
		if noAgent {
			e.cause = CauseUnfit
		}
		c.mu.Unlock()
		if noAgent {
			c.heardNoAgent(e.cell(), errors.New(why))
		}
		if err := c.startTerminating(ctx, e, why); err != nil {
			return 0, err
		}
		c.tellConsole(ctx, e.cell())
		return 0, nil
	}
	if !c.addressed(e.cell().Instance) {
		look, launched := c.inventory.last(), e.cell().launched()
		// What an instance had before it was stopped is of no use.
		found, there := look.byID[e.cell().Instance.ID]
		if there && look.began.After(launched) && c.addressed(&found) {
			found.Launched = launched // by Kip's clock, and when it was started again, which not every cloud tells
			if err := c.save(ctx, e, func(cell *Cell) error { cell.Instance = &found; return nil }); err != nil {
				return 0, err
			}
		} else {
			c.mu.Lock()
			if e.lacks = ""; there && look.began.After(launched) {
				e.lacks = addressLacking(&found)
			}
			c.mu.Unlock()
			c.pollSoon()
			return min(left, time.Second), nil
		}
	}
	if err := c.connect(ctx, e); err != nil {
		return c.notSetUp(ctx, e, left, err)
	}
	if !c.kubeletReady(e) {
		return left, nil // the tunnel and the kubelet wake the cell
	}
	return 0, c.arrive(ctx, e)
}

// kubeletReady says that the kubelet of a cell is ready, with the configuration that the
// agent has from this process: one that an earlier process gave it may be of another node.
func (c *Controller) kubeletReady(e *entry) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-e.api.NodeReady():
		return e.configured
	default:
		return false
	}
}

// addressed says that an instance has all the addresses that Kip needs.
func (c *Controller) addressed(i *cloud.Instance) bool {
	return i.ManagementIP.IsValid() && i.PodIP.IsValid() && i.DialIP(c.cfg.Calls.Traits().DialPublic).IsValid()
}

// noAddress is the wait of a cell without an address.
const noAddress = "it has no address yet"

// addressLacking says which address an instance that is not addressed has not got.
func addressLacking(i *cloud.Instance) string {
	switch {
	case !i.ManagementIP.IsValid():
		return noAddress
	case !i.PodIP.IsValid() && i.State == cloud.Running:
		return fmt.Sprintf("it runs, and the cloud has given it %s alone and no address for its pod", i.ManagementIP)
	case !i.PodIP.IsValid():
		return "it has no address for its pod yet"
	}
	return "it has no public address, at which Kip would reach it"
}

// readyTimeout is the least time that a kubelet has from the join: it needs about a
// second, on a machine that is being started perhaps ten. On a machine that was slow to
// join, such as an emulated one on a busy host, it has as long as the join took.
const readyTimeout = 2 * time.Minute

// bootTime is how much time a booting cell has left, and for what. What Kip was late, or
// kept the cell waiting, is not taken off.
func (c *Controller) bootTime(e *entry, cell *Cell, session Session) (left time.Duration, what string) {
	from, what := cell.StepTime(apiv1.StepJoined), "ready"
	limit := max(readyTimeout, min(from.Sub(cell.launched()), cell.Offer().BootTimeout))
	if begun := cell.StepTime(apiv1.StepCloudInit); from.IsZero() && !begun.IsZero() {
		from, limit, what = begun, cloudInitTimeout, "done with its cloud-init file"
	}
	if from.IsZero() || cell.launched().After(from) { // or started anew
		from, limit, what = cell.launched(), cell.Offer().BootTimeout, "joined"
	}
	if session != nil {
		if held := session.HeldBack(); held.After(from) {
			from = held
		}
	}
	if e.loaded {
		limit += c.unsureAfter(from)
	}
	return from.Add(limit + c.cfg.Late.Since(from)).Sub(c.cfg.Clock.Now()), what
}

// unsureAfter is how long since then loaded cells were not connected to, since they may run
// more than their records say.
func (c *Controller) unsureAfter(from time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsureSince.After(from) {
		from = c.unsureSince
	}
	return max(0, c.unsure.Sub(from))
}

// connect brings up the cell's API and its tunnel in this process, and has the agent
// given its configuration: errUnderWay until that has its answer.
func (c *Controller) connect(ctx context.Context, e *entry) error {
	for {
		configure, err := c.dialled(ctx, e)
		if err != nil {
			return err
		}
		if configure == nil {
			return c.connected(ctx, e)
		}
		if err := c.aside(ctx, e, "configure", configure); err != nil {
			return err
		}
	}
}

// connectNow does the same, and waits for the answer.
func (c *Controller) connectNow(ctx context.Context, e *entry) error {
	configure, err := c.dialled(ctx, e)
	if err != nil || configure == nil {
		return err
	}
	return configure(ctx)
}

// dialled brings up the cell's API and its tunnel in this process. It returns what
// gives the agent its configuration, where that is to be done and can be.
func (c *Controller) dialled(ctx context.Context, e *entry) (configure func(context.Context) error, err error) {
	if e.session == nil {
		offer := e.cell().Offer()
		capacity := corev1.ResourceList{
			corev1.ResourceCPU:              *resource.NewMilliQuantity(offer.MilliCPU, resource.DecimalSI),
			corev1.ResourceMemory:           *resource.NewQuantity(offer.MemoryBytes, resource.BinarySI),
			corev1.ResourceEphemeralStorage: *resource.NewQuantity(offer.DiskBytes, resource.BinarySI),
			corev1.ResourcePods:             *resource.NewQuantity(podsPerCell, resource.DecimalSI),
		}
		allocatable := capacity.DeepCopy()
		allocatable[corev1.ResourceMemory] = *resource.NewQuantity(offer.MemoryBytes-c.cfg.ReservedMemoryBytes, resource.BinarySI)
		node := c.nodeOf(e.cell())
		api := c.cfg.APIs.AddCell(e.id, cellapi.CellInfo{
			Node:        node,
			Capacity:    capacity,
			Allocatable: allocatable,
			NodeIP:      e.cell().Instance.ManagementIP,
			NodeIPv6:    e.cell().Instance.ManagementIPv6,
			PodIP:       e.cell().Instance.PodIP,
			PodIPv6:     e.cell().Instance.PodIPv6,
		})
		c.mu.Lock()
		e.api, e.node = api, node
		c.mu.Unlock()
		// Before the tunnel: a kubelet that hears that its pod is not there kills
		// the pod.
		if err := e.show(); err != nil {
			return nil, err
		}
		session, err := c.dial(ctx, e, hearing{api, c, e})
		if err != nil {
			return nil, err
		}
		wait, stop := context.WithCancel(ctx)
		c.running.Go(func() {
			select {
			case <-api.NodeReady():
				c.queue.Add(e.id)
			case <-wait.Done():
			}
		})
		c.mu.Lock()
		e.session, e.stopWait, e.connecting = session, stop, c.cfg.Clock.Now()
		c.mu.Unlock()
	}
	if err := e.show(); err != nil {
		return nil, err
	}
	c.tellAway(ctx, e)
	dns, connected, bound := c.clusterDNS(), e.session.Connected(), e.cell().Pod.UID != ""
	c.mu.Lock()
	defer c.mu.Unlock()
	e.configured = e.configured && connected
	if !connected || e.configured && (bound || slices.Equal(e.dns, dns)) {
		return nil, nil
	}
	session, breaks, config := e.session, e.breaks, c.agentConfig(e.cell(), e.node, dns)
	return func(ctx context.Context) error { return c.configure(ctx, e, session, config, breaks) }, nil
}

// tellsAway is how long a machine may not answer before observers look anew at why, and then at another reason: most machines
// answer sooner.
const tellsAway = time.Minute

// tellAway tells observers that a booting cell waits for what WaitsFor says now: its agent does not answer, for another reason
// than they know of.
func (c *Controller) tellAway(ctx context.Context, e *entry) {
	err, now := e.session.LastError(), c.cfg.Clock.Now()
	since := e.connecting
	if e.awayTold.After(since) {
		since = e.awayTold
	}
	if err == nil || e.session.Connected() || e.cell().Phase != apiv1.Booting || err.Error() == e.away || now.Sub(since) < tellsAway {
		return
	}
	e.away, e.awayTold = err.Error(), now
	lockWriting(ctx, e) // the changes of a cell are told in their order
	defer e.writing.Unlock()
	c.observers.CellChanged(*e.cell())
}

// configure hands the agent its configuration on a session that has had so many
// breaks.
func (c *Controller) configure(ctx context.Context, e *entry, session Session, config agentapi.Config, breaks int) error {
	if e.cell().StepTime(apiv1.StepJoined).IsZero() {
		c.heardStarted(e.cell())
	}
	if err := c.goOver(ctx, e, session); err != nil {
		return fmt.Errorf("go over to the agent of cell %s: %w", e.id, err)
	}
	if err := c.setUp(ctx, e, session); err != nil {
		return fmt.Errorf("set up cell %s: %w", e.id, err)
	}
	var told agentapi.Configured
	put := func(ctx context.Context, agent agentapi.Client) (err error) {
		told, err = agent.PutConfig(ctx, config)
		return err
	}
	if err := c.ask(ctx, e, session, put); err != nil {
		return fmt.Errorf("configure cell %s: %w", e.id, err)
	}
	if cell := e.cell(); cell.Phase == apiv1.Bound && len(cell.Disks) > 0 {
		// A machine that was started anew has its devices, not their paths.
		if err := c.putDisks(ctx, e, session, diskIDs(cell.Disks)); err != nil {
			return fmt.Errorf("hand cell %s its disks: %w", e.id, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.breaks == breaks { // else the break has queued the cell again
		e.configured, e.untold, e.dns, e.said = true, true, config.ClusterDNS, told
	}
	return nil
}

// connected says, and stores, that the agent has its configuration, where it does.
func (c *Controller) connected(ctx context.Context, e *entry) error {
	c.mu.Lock()
	configured, tell, told := e.configured, e.configured && e.untold, e.said
	e.untold = false
	c.mu.Unlock()
	if tell {
		c.observers.CellConnected(*e.cell(), e.session.Conn())
	}
	if !configured || !e.cell().StepTime(apiv1.StepJoined).IsZero() && !e.cell().bootIsNews(told.Boot) && !e.cell().agentIsNews(told.Agent) {
		return nil
	}
	defer c.tellCloudInit(e)
	defer c.tellVersion(e)
	return c.save(ctx, e, func(cell *Cell) error {
		cell.Token = ""
		now := c.cfg.Clock.Now()
		cell.step(apiv1.StepJoined, now)
		if cell.bootIsNews(told.Boot) {
			cell.Boot = Boot{Boot: told.Boot, Told: now}
		}
		if cell.agentIsNews(told.Agent) {
			cell.AgentRuns = told.Agent
		}
		return nil
	})
}

// show lets the kubelet of a bound cell see its pod.
func (e *entry) show() error {
	cell := e.cell()
	if e.shown || cell.Phase != apiv1.Bound && cell.Phase != apiv1.Draining {
		return nil
	}
	err := e.api.Bind(cell.Pod.Namespace, cell.Pod.Name, cell.Pod.UID)
	e.shown = err == nil
	return err
}

// dial starts the tunnel to the cell.
func (c *Controller) dial(ctx context.Context, e *entry, api http.Handler) (Session, error) {
	cell := e.cell()
	target := tunnel.Target{
		CellID:  cell.JoinID(),
		Addr:    netip.AddrPortFrom(cell.Instance.DialIP(c.cfg.Calls.Traits().DialPublic), agentapi.Port),
		KeyHash: cell.KeyHash,
		CA:      c.caOf(cell),
		Rank:    e.rank,
		OnState: func(connected bool, _ error) {
			if !connected {
				// Noted here: when the worker looks, the session may be connected
				// again, to an agent that has started anew.
				c.mu.Lock()
				e.configured = false
				e.breaks++
				c.mu.Unlock()
			}
			c.queue.Add(cell.ID)
		},
	}
	if cell.Token != "" {
		var err error
		if target.Token, err = pki.ParseToken(cell.Token); err != nil {
			return nil, fmt.Errorf("read the join token of cell %s: %w", cell.ID, err)
		}
	}
	return c.cfg.Tunnels.Keep(ctx, target, api, func(ctx context.Context, keyHash string) error { return c.spend(ctx, e, keyHash) })
}

// rank is who is connected first where not all can be at once: who runs a pod, then
// who is to run one, then who stands by.
func (e *entry) rank() int {
	switch cell := e.cell(); {
	case cell.Pod.UID == "":
		return 2
	case cell.Phase == apiv1.Booting, cell.Phase == apiv1.Ready:
		return 1
	}
	return 0
}

// spend records who spent the cell's token, before the certificate leaves Kip.
// The token is kept until the first session with that certificate: after a crash
// in between, the same machine proves once more that it has the token. A machine that
// comes too late is refused, whatever keeps the cell's worker from ending it.
func (c *Controller) spend(ctx context.Context, e *entry, keyHash string) error {
	c.mu.Lock()
	session := e.session
	c.mu.Unlock()
	return c.save(ctx, e, func(cell *Cell) error {
		if left, what := c.bootTime(e, cell, session); cell.KeyHash == "" && left <= 0 {
			return fmt.Errorf("cell %s was not %s in time", cell.ID, what)
		}
		if cell.KeyHash != "" && cell.KeyHash != keyHash {
			return fmt.Errorf("the token of cell %s is spent on another key", cell.ID)
		}
		cell.KeyHash = keyHash
		return nil
	})
}

// disconnect closes what this process holds for a cell.
func (c *Controller) disconnect(e *entry) {
	c.mu.Lock()
	session, stopWait, api := e.session, e.stopWait, e.api
	e.session, e.stopWait, e.api, e.shown, e.configured, e.disksShown = nil, nil, nil, false, false, false
	e.breaks++ // what is asked on this session yet says nothing of the next one
	c.mu.Unlock()
	if stopWait != nil {
		stopWait()
	}
	if session != nil {
		session.Close()
	}
	if api != nil {
		c.cfg.APIs.RemoveCell(e.id)
	}
}

// clusterDNS is where pods ask for names.
func (c *Controller) clusterDNS() []netip.Addr {
	if c.cfg.ClusterDNS == nil {
		return nil
	}
	return c.cfg.ClusterDNS.Addresses()
}

// agentConfig is what a cell is told after it has joined.
func (c *Controller) agentConfig(cell *Cell, node string, dns []netip.Addr) agentapi.Config {
	return agentapi.Config{
		NodeName:            node,
		NodeIP:              cell.Instance.ManagementIP,
		PodIP:               cell.Instance.PodIP,
		NodeIPv6:            cell.Instance.ManagementIPv6,
		PodIPv6:             cell.Instance.PodIPv6,
		ClusterDNS:          dns,
		ClusterDomain:       c.cfg.ClusterDomain,
		Routes:              c.routesOf(cell),
		ReservedMemoryBytes: c.cfg.ReservedMemoryBytes,
		RegistryMirrors:     c.cfg.RegistryMirrors,
		ImagesOfCloud:       c.cfg.ImagesOfCloud,
		Plugins:             c.cfg.HasPlugins || len(cell.Plugins) > 0,
	}
}

// ask asks a cell's agent on a session, which may be closed meanwhile.
func (c *Controller) ask(ctx context.Context, e *entry, s Session, do func(context.Context, agentapi.Client) error) error {
	return c.agents.Ask(ctx, &e.pace, e.cell().Pod.Namespace, configTimeout, func(ctx context.Context) error {
		return do(ctx, agentapi.Client{Conn: s.Conn()})
	})
}
