package cells

import (
	"context"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/costs"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// What other packages ask of a Controller. Each is answered by the part that knows.

// Load reads the stored cells and takes up their lives again. From then on the observers are told what becomes of cells, one after the
// other in their order. Call it once, before Run.
func (c *Controller) Load(ctx context.Context, all ...Observer) error {
	*c.core.observers = all
	return c.oversight.loading.load(ctx)
}

// Ready is closed when cells are being moved.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// End ends Run for a reason.
func (c *Controller) End(why error) { c.core.loop.fail(why) }

// Request asks for a cell for a pod, by those of the offerings that the pod's namespace can pay,
// which the cell that it returns has. It takes a standby cell of the type that the pod would get,
// where there is one. It returns when the request is stored. The error is ErrHasCell where the pod
// has a cell that is not Gone, a *DiskInUseError where a live cell of another pod has one of the
// disks, a *BudgetError where the namespace can pay none of the offerings, and ErrConnecting.
func (c *Controller) Request(ctx context.Context, r Request) (Cell, error) {
	return c.launches.requests.request(ctx, r)
}

// Affords returns an error, a *BudgetError, where the namespace of a pod could pay none of a request's offerings if the pod's cell
// ended now.
func (c *Controller) Affords(ctx context.Context, r Request) error {
	return c.launches.requests.affords(ctx, r)
}

// CurrentImage returns what a cell would boot if it were launched now; "" of a cloud that does not say.
func (c *Controller) CurrentImage(ctx context.Context, cell Cell) (string, error) {
	return c.launches.launching.resolving.image(ctx, cell)
}

// WouldTake returns the standby cell that a request would be given now.
func (c *Controller) WouldTake(r Request) (Cell, bool) { return c.launches.standbys.wouldTake(r) }

// PodRunning notes that a pod runs on its cell, which then has started. It may be told of that more than once.
func (c *Controller) PodRunning(pod types.UID) { c.upkeep.boosting.podRunning(pod) }

// Release lets a pod's cell go: its instance is terminated. podEnded says that
// the pod ran to its end. Its logs are then saved first. A pod without a cell is no
// error.
func (c *Controller) Release(pod types.UID, why string, podEnded bool) {
	c.ends.releases.release(pod, why, podEnded)
}

// ReleaseFailed lets the cell of a failed pod go, whose instance is to stay for a time: its logs are saved and its
// volumes freed at once. Later calls do not change that time, but Release ends it, with podEnded, as does EmptyPools. If the pod's
// namespace has most such cells already, this one is only let go, and an Event of the pod says so.
func (c *Controller) ReleaseFailed(pod types.UID, why string, keep time.Duration, most int) {
	c.ends.releases.failed(pod, why, keep, most)
}

// ReleaseVanished lets a pod's cell go of which nobody has seen that it was deleted: the
// API server may have lost it. It returns false while the end of a cell that runs the pod
// is held back.
func (c *Controller) ReleaseVanished(ctx context.Context, pod types.UID, why string) bool {
	return c.ends.releases.vanished(ctx, pod, why)
}

// ReleaseUnbound lets a pod's cell go if its kubelet has not seen the pod. From
// then on the kubelet cannot see the pod. It returns false when the cell is bound:
// the kubelet then ends the pod.
func (c *Controller) ReleaseUnbound(pod types.UID, why string) bool {
	return c.ends.releases.unbound(pod, why)
}

// ForPod returns the cell of a pod.
func (c *Controller) ForPod(uid types.UID) (Cell, bool) { return c.core.table.forPod(uid) }

// List returns all cells that are not Gone.
func (c *Controller) List() []Cell { return c.core.table.list() }

// PodsNamed returns the pods of this name, of the past or the present, that have
// a cell.
func (c *Controller) PodsNamed(name cache.ObjectName) []types.UID {
	return c.core.table.podsNamed(name)
}

// HasInstance reports whether an instance is that of a cell which is not Gone.
func (c *Controller) HasInstance(instance string) bool {
	return c.core.table.havingInstance(instance) != nil
}

// Launched reports whether an instance with this Kip's tags was launched by it, or by one before it.
func (c *Controller) Launched(i cloud.Instance) bool { return c.oversight.foreign.launched(i) }

// Endpoints returns the agents of all bound cells.
func (c *Controller) Endpoints() []Endpoint { return c.oversight.queries.endpoints() }

// Conn leads to the agent of the pod's cell, for people, who may read slowly. ErrNoCell when the pod has
// none, ErrNotConnected when its tunnel is down.
func (c *Controller) Conn(pod types.UID) (agentapi.Conn, error) { return c.oversight.queries.conn(pod) }

// Machine leads to the agent of a cell, as Conn does. ErrNoCell when there is no such cell.
func (c *Controller) Machine(id string) (agentapi.Conn, error) {
	return c.oversight.queries.machine(id)
}

// Link returns the state of a cell's connection; false when there is none yet.
func (c *Controller) Link(id string) (Link, bool) { return c.oversight.queries.link(id) }

// StatusTrouble is what is wrong with the last status of its pod that a cell's kubelet sent, "" for
// nothing.
func (c *Controller) StatusTrouble(id string) string { return c.oversight.queries.statusTrouble(id) }

// Connected is how many cells this process is connected to.
func (c *Controller) Connected() int { return c.oversight.queries.connected() }

// WaitsFor returns what a cell waits for; "" if for nothing that Kip knows of.
func (c *Controller) WaitsFor(id string) string { return c.oversight.queries.waitsFor(id, c.stepOf) }

// NodeOf returns the virtual node of a cell's pod; for a standby cell that of which its
// kubelet is.
func (c *Controller) NodeOf(cell Cell) string { return c.shared.nodeNames.of(&cell) }

// NodesOf returns NodeOf for many cells at one moment: for standby cells that are launched
// alike Config.Nodes is asked once, which goes through the catalogue.
func (c *Controller) NodesOf() func(Cell) string { return c.shared.nodeNames.ofMany() }

// NodesChanged has standby cells checked again: Config.Nodes may answer otherwise.
func (c *Controller) NodesChanged() { c.core.loop.wakeStandby() }

// EmptyPools ends the standby cells and makes no others, until the process ends. It also ends the cells of failed pods that
// would stay for a time.
func (c *Controller) EmptyPools() {
	c.core.pools.empty()
	c.ends.releases.endAllKept()
}

// Standby returns the pools' states, in order of name.
func (c *Controller) Standby() []StandbyState {
	return c.core.pools.states(c.core.table.standbyCells())
}

// Costs returns what all cells have cost until now, those that are gone
// included, also over restarts. The order is by type.
func (c *Controller) Costs() []Cost { return c.shared.costs.total() }

// CostsByNamespace returns what the cells of each namespace have cost until now, since
// Kip's state began, those that are gone included. Cells without a pod are
// costs.NoPod's. A number of namespaces have a sum of their own, which does not decrease;
// the others are costs.Others. What stood idle is that of cells that are gone, and of cells
// without a pod: of the others it is not stored, and would decrease when Kip starts anew.
func (c *Controller) CostsByNamespace() map[string]Amount { return c.shared.costs.byNamespace() }

// Spent calls each with what was spent on each day from one to another, the last included,
// by whom, until now: some of it several times for one key and day, in no order. Days
// are known as long as costs.Kept says, and names as far as they fit into the bytes of a day.
func (c *Controller) Spent(ctx context.Context, first, last costs.Day, each func(costs.Key, costs.Day, costs.Amount)) error {
	return c.shared.costs.spent(ctx, first, last, each)
}

// Behind returns why this Kip launches nothing, and ends nothing that nobody has asked to
// end; "" if it does. Before the cloud has listed the instances of every zone once, sure is
// false.
func (c *Controller) Behind() (why string, sure bool) { return c.core.generation.whyBehind() }

// EndDuplicates ends whatever may run a pod besides its cell, if it has one. It returns why it is not certain yet that nothing
// does; "" if it is. Before the cloud has listed the instances once, sure is false. Where noEarlierCell is as in Request, a
// list has nothing to say.
func (c *Controller) EndDuplicates(pod types.UID, created time.Time, noEarlierCell bool) (why string, sure bool) {
	return c.ends.duplicates.endAll(pod, created, noEarlierCell)
}

// Generation returns what the store knows of now.
func (c *Controller) Generation() Generation { return c.oversight.generationChecks.now() }

// TakeOver has the store take over the instances that it does not know of, as a person
// has decided who was shown those: from then on they are instances without a cell, which
// end. The caller reloads then. Where nothing is done the error is ErrNotBehind,
// ErrNotAllSeen or ErrShownOther.
func (c *Controller) TakeOver(ctx context.Context, shown string) error {
	return c.oversight.generationChecks.takeOver(ctx, shown)
}

// Reload ends Run with ErrTakenOver.
func (c *Controller) Reload() { c.core.loop.fail(ErrTakenOver) }

// Refused returns why most cells, which are well, do not obey this Kip; "" if they do. They are
// not lost.
func (c *Controller) Refused() string { return c.oversight.health.refusals.refused() }

// Unmoved are the cells that know Kip by the CA from before, in order of their IDs, launches that are under way among
// them. As long as there are any the old CA is not dropped.
func (c *Controller) Unmoved() []Unmoved { return c.upkeep.trust.unmovedCells() }

// Untold is how many cells may trust a CA yet that Kip has dropped.
func (c *Controller) Untold() int { return c.upkeep.trust.untoldCells() }

// EndUnmoved ends the cells that are Unmoved, as a person has decided who was shown them.
// It ends none if there are others by now: the error is ErrOtherUnmoved then.
func (c *Controller) EndUnmoved(shown string) ([]Unmoved, error) {
	return c.upkeep.trust.endUnmoved(shown)
}
