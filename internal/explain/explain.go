package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/capacity"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/sanitize"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Config of an Explainer. All fields are required but Console.
type Config struct {
	// Node is the virtual node's name.
	Node string
	// Pods are those of the node, by namespace and name.
	Pods  cache.Store
	Loop  Loop
	Cells Cells
	// Mirror are the Cell resources.
	Mirror        Mirror
	Shortages     Shortages
	InstanceTypes InstanceTypes
	// Console is nil where the cloud keeps none.
	Console Console
}

// Console is a cloud that keeps what machines write to their consoles.
type Console interface {
	// Console returns the end of what an instance wrote; adminapi.ErrNotFound where the cloud
	// no longer has the instance.
	Console(ctx context.Context, instance string) ([]byte, error)
}

// Mirror is what this package needs of the Cell resources.
type Mirror interface {
	// Status is what the resource says of a cell.
	Status(cells.Cell) apiv1.CellStatus
}

// Shortages are what is out of capacity.
type Shortages interface {
	// List is all of it now.
	List() []capacity.Shortage
}

// InstanceTypes is what there is to choose of.
type InstanceTypes interface {
	// PricesTold is when prices on demand were last told.
	PricesTold() time.Time
}

// Loop is what this package needs of the loop that matches pods to cells, which is above it.
type Loop interface {
	Choose(ctx context.Context, pod *corev1.Pod) (cells.Request, error)
	Rank(ctx context.Context, pod *corev1.Pod, cell cells.Cell) (placement.Standing, bool)
	Waiting(uid types.UID) string
}

// Cells is what this package needs of package cells.
type Cells interface {
	List() []cells.Cell
	ForPod(uid types.UID) (cells.Cell, bool)
	Link(id string) (cells.Link, bool)
	Conn(uid types.UID) (agentapi.Conn, error)
	WaitsFor(id string) string
	StatusTrouble(id string) string
	Standby() []cells.StandbyState
	WouldTake(r cells.Request) (cells.Cell, bool)
}

var (
	_ Cells              = (*cells.Controller)(nil)
	_ Mirror             = (*cells.Mirror)(nil)
	_ Shortages          = (*capacity.Shortages)(nil)
	_ adminapi.Explainer = (*Explainer)(nil)
)

// Explainer tells people what Kip knows.
type Explainer struct{ cfg Config }

// New returns an explainer.
func New(cfg Config) *Explainer { return &Explainer{cfg} }

// Why puts together what Kip knows of where a pod stands. Events are not Kip's to
// read: who asks adds them.
func (x *Explainer) Why(ctx context.Context, namespace, name string) (adminapi.Explanation, error) {
	obj, exists, err := x.cfg.Pods.GetByKey(namespace + "/" + name)
	if err != nil {
		return adminapi.Explanation{}, err
	}
	if !exists {
		return adminapi.Explanation{}, fmt.Errorf("pod %s/%s on node %s: %w", namespace, name, x.cfg.Node, adminapi.ErrNotFound)
	}
	pod := obj.(*corev1.Pod)
	e := adminapi.Explanation{
		Pod:      apiv1.Ref(pod),
		Node:     pod.Spec.NodeName,
		Profile:  pod.Annotations[placement.AnnotationProfile],
		PodPhase: string(pod.Status.Phase),
		Ended:    adminapi.EndOf(pod),
		Waiting:  x.cfg.Loop.Waiting(pod.UID),
	}
	cell, has := x.cfg.Cells.ForPod(pod.UID)
	none := apiv1.WithoutMachine(pod)
	switch {
	case !has && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
		// It has ended, and gets no other cell.
	case !has && none != nil:
		e.NoMachine = none.Message
	case !has:
		e.Placement = x.placement(ctx, pod)
	default:
		c := x.cell(cell)
		e.Placement = placed(cell)
		x.rank(ctx, pod, cell, e.Placement)
		e.Cell = &c
		e.StatusTrouble = x.cfg.Cells.StatusTrouble(cell.ID)
		if e.Waiting == "" {
			e.Waiting = x.waiting(pod, cell)
		}
		if cell.Phase == apiv1.Booting && c.Tunnel != nil && c.Tunnel.Connected {
			c.Agent = x.agent(ctx, cell)
		}
		c.Console = x.console(ctx, cell)
	}
	return e, nil
}

// waiting says what a pod with a cell waits for, "" if for nothing.
func (x *Explainer) waiting(pod *corev1.Pod, cell cells.Cell) string {
	if cell.Phase != apiv1.Bound {
		is := fmt.Sprintf("its cell %s (%s) is %s: %s", cell.ID, cell.Offering(), cell.Phase, x.cfg.Cells.WaitsFor(cell.ID))
		return strings.TrimSuffix(is, ": ")
	}
	var parts []string
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			parts = append(parts, strings.TrimSuffix(fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, w.Message), ": "))
		}
	}
	return strings.Join(parts, "; ")
}

// placed is what was chosen for a cell: what it is, and before its launch has an
// answer also what else is tried.
func placed(cell cells.Cell) *adminapi.Placement {
	if cell.Phase != apiv1.Requested && cell.Phase != apiv1.Launching {
		cell.Offerings = cell.Offerings[:min(len(cell.Offerings), 1)]
	}
	p := &adminapi.Placement{Candidates: cell.Candidates(), Rejected: rejected(cell.RuledOut)}
	if cell.Standby != "" && cell.Live() && len(p.Candidates) > 0 {
		p.Candidates[0].Why = cell.Reason // the offering's is why the pool has it
	}
	return p
}

// rank says where a cell stands among the choices of its pod.
func (x *Explainer) rank(ctx context.Context, pod *corev1.Pod, cell cells.Cell, p *adminapi.Placement) {
	is, ranked := x.cfg.Loop.Rank(ctx, pod, cell)
	if !ranked || !cell.Live() {
		return
	}
	p.Rank, p.Ranks, p.MovesBack = is.Rank, is.Of, is.MovesBack
	for i, err := range is.WhyNot {
		why := "can be launched now"
		if err != nil {
			why = err.Error()
		}
		p.Better = append(p.Better, adminapi.Better{Rank: i + 1, Why: why})
	}
}

func rejected(list []apiv1.RuledOut) (all []adminapi.Rejection) {
	for _, r := range list {
		all = append(all, adminapi.Rejection{What: adminapi.Count(r.Types, "type"), Why: r.Why})
	}
	return all
}

// placement is what Kip would choose for a pod without a cell now, by its own choice.
func (x *Explainer) placement(ctx context.Context, pod *corev1.Pod) *adminapi.Placement {
	request, err := x.cfg.Loop.Choose(ctx, pod)
	p := &adminapi.Placement{
		Candidates: cells.Candidates(request.Offerings),
		PricesTold: x.cfg.InstanceTypes.PricesTold(),
		Rejected:   rejected(request.RuledOut),
	}
	if err != nil {
		p.Error = err.Error()
	} else if cell, would := x.cfg.Cells.WouldTake(request); would {
		p.Standby = cell.ID
	}
	var unplaceable *placement.UnplaceableError
	if errors.As(err, &unplaceable) {
		p.Need = unplaceable.Need
		for _, r := range unplaceable.Rejections {
			p.Rejected = append(p.Rejected, adminapi.Rejection{What: adminapi.Count(r.Types, "type"), Why: r.Why})
		}
	}
	var none *placement.NoCapacityError
	if errors.As(err, &none) {
		p.Need = none.Need
		for _, t := range none.Types {
			p.Rejected = append(p.Rejected, adminapi.Rejection{What: t, Why: "no capacity now"})
		}
	}
	return p
}

// Cells returns every cell with what Kip alone knows of it.
func (x *Explainer) Cells(context.Context) ([]adminapi.Cell, error) {
	all := x.cfg.Cells.List()
	list := make([]adminapi.Cell, 0, len(all))
	for _, c := range all {
		list = append(list, x.cell(c))
	}
	return list, nil
}

func (x *Explainer) cell(c cells.Cell) adminapi.Cell {
	shown := adminapi.Cell{Name: c.ID, Status: x.cfg.Mirror.Status(c)}
	if link, ok := x.cfg.Cells.Link(c.ID); ok {
		shown.Tunnel = &adminapi.Tunnel{Connected: link.Connected}
		if !link.LastHeard.IsZero() {
			shown.Tunnel.LastHeard = &link.LastHeard
		}
		if link.LastError != nil {
			shown.Tunnel.Error = link.LastError.Error()
		}
	}
	return shown
}

// agentTimeout bounds the question to the agent of a cell that is not ready.
const agentTimeout = 2 * time.Second

// agent asks the agent of a cell how the parts of its system fare.
func (x *Explainer) agent(ctx context.Context, cell cells.Cell) *adminapi.Agent {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	conn, err := x.cfg.Cells.Conn(cell.Pod.UID)
	if err != nil {
		return &adminapi.Agent{Error: err.Error()}
	}
	return askAgent(ctx, conn, cell.ID)
}

func askAgent(ctx context.Context, conn agentapi.Conn, cell string) *adminapi.Agent {
	status, err := agentapi.Client{Conn: conn}.Status(ctx)
	if err != nil {
		return &adminapi.Agent{Error: fmt.Sprintf("ask the agent of cell %s: %v", cell, err)}
	}
	a := &adminapi.Agent{}
	for _, c := range status.Components {
		a.Components = append(a.Components, adminapi.Component{
			Name:     c.Name,
			PID:      c.PID,
			Restarts: c.Restarts,
			Waiting:  c.Waiting,
		})
	}
	return a
}

const (
	// consoleTimeout bounds the question to the cloud, its wait for its turn included.
	consoleTimeout = 5 * time.Second
	// consoleLines and consoleBytes bound what is told of a console: a screen of its end.
	consoleLines, consoleBytes = 25, 4 << 10
)

// console asks the cloud what the machine of a cell that has not joined wrote last: the
// agent, or what keeps it from starting, has nowhere else to say what is wrong.
func (x *Explainer) console(ctx context.Context, cell cells.Cell) *adminapi.Console {
	if x.cfg.Console == nil || cell.Instance == nil || cell.Phase == apiv1.Gone || !cell.StepTime(apiv1.StepJoined).IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, consoleTimeout)
	defer cancel()
	text, err := x.cfg.Console.Console(ctx, cell.Instance.ID)
	if err != nil {
		return &adminapi.Console{Error: fmt.Sprintf("read the console of cell %s: %v", cell.ID, err)}
	}
	return &adminapi.Console{Lines: sanitize.LastLines(text, consoleLines, consoleBytes)}
}

// Console asks the cloud what the machine of a cell wrote to its console, whatever became of
// the cell: some clouds keep a console for a while after the machine.
func (x *Explainer) Console(ctx context.Context, cell string) (adminapi.ConsoleText, error) {
	all := x.cfg.Cells.List()
	n := slices.IndexFunc(all, func(c cells.Cell) bool { return c.ID == cell })
	switch {
	case n < 0:
		return adminapi.ConsoleText{}, fmt.Errorf("cell %s: %w", cell, adminapi.ErrNotFound)
	case x.cfg.Console == nil:
		return adminapi.ConsoleText{}, fmt.Errorf("console of cell %s: its cloud keeps no consoles: %w", cell, adminapi.ErrNotFound)
	}
	is := adminapi.ConsoleText{Cell: cell, Phase: all[n].Phase}
	if all[n].Instance == nil {
		return is, nil
	}
	is.Instance = all[n].Instance.ID
	ctx, cancel := context.WithTimeout(ctx, consoleTimeout)
	defer cancel()
	text, err := x.cfg.Console.Console(ctx, is.Instance)
	if err != nil {
		return adminapi.ConsoleText{}, fmt.Errorf("read the console of cell %s: %w", cell, err)
	}
	is.Text = text[max(0, len(text)-adminapi.MaxConsole):]
	return is, nil
}

// Standby returns how the standby pools fare.
func (x *Explainer) Standby(context.Context) ([]adminapi.Pool, error) {
	var list []adminapi.Pool
	for _, s := range x.cfg.Cells.Standby() {
		list = append(list, adminapi.Pool{
			Name:    s.Name,
			Want:    s.Want,
			Ready:   s.Ready,
			Booting: s.Booting,
			Why:     s.Why,
		})
	}
	return list, nil
}

// Capacity returns what is out of capacity now.
func (x *Explainer) Capacity(context.Context) ([]adminapi.Shortage, error) {
	var list []adminapi.Shortage
	for _, s := range x.cfg.Shortages.List() {
		one := adminapi.Shortage{
			InstanceType:  s.InstanceType,
			Family:        s.Family,
			LeastMilliCPU: s.LeastMilliCPU,
			Zone:          s.Zone,
			Subnet:        s.Subnet,
			Until:         s.Until,
			Why:           s.Why,
		}
		if s.Spot != nil {
			one.LaunchType = apiv1.LaunchType(*s.Spot, s.Pool == catalog.Dedicated)
		}
		list = append(list, one)
	}
	return list, nil
}
