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

// What other packages ask of a Controller. Each method hands over to the part that knows. Any goroutine may call them, after Load. Those
// with a context may wait for the store; CurrentImage alone waits for the cloud, and none for an agent.

// Load reads the stored cells and takes up their lives again. From then on it tells the observers what becomes of cells, one after the
// other in their order. Call it once, before Run. It returns an error if the store cannot be read.
func (c *Controller) Load(ctx context.Context, all ...Observer) error {
	*c.core.observers = all
	return c.oversight.loading.load(ctx)
}

// Ready returns a channel that Run closes when its workers move cells.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// End has Run return why.
func (c *Controller) End(why error) { c.core.loop.fail(why) }

// Request gets a pod a cell, and returns it when the request is stored. That is a standby cell of the type that the pod would get, or a
// new one with those of the offerings that the pod's namespace can pay.
//
// The error is ErrHasCell if the pod has a cell that is not Gone, a *DiskInUseError if a live cell of another pod has one of the disks,
// a *BudgetError if the namespace can pay none of the offerings, ErrConnecting if a standby cell may fit in a moment, or the store's.
func (c *Controller) Request(ctx context.Context, r Request) (Cell, error) {
	return c.launches.requests.request(ctx, r)
}

// Affords returns nil if the namespace of a pod could pay one of a request's offerings, should the pod's cell end now. Otherwise it
// returns a *BudgetError, or the error of the store.
func (c *Controller) Affords(ctx context.Context, r Request) error {
	return c.launches.requests.affords(ctx, r)
}

// CurrentImage asks the cloud what a cell would boot if it were launched now, in the cloud's own words. It returns "" for a cloud that
// resolves no images. It waits for the cloud.
func (c *Controller) CurrentImage(ctx context.Context, cell Cell) (string, error) {
	return c.launches.launching.resolving.image(ctx, cell)
}

// WouldTake returns the standby cell that Request would give to a pod now; false if there is none. It takes nothing.
func (c *Controller) WouldTake(r Request) (Cell, bool) { return c.launches.standbys.wouldTake(r) }

// PodRunning notes that a pod runs on its cell, so that the extra CPU of the machine's start ends. Further calls do nothing.
func (c *Controller) PodRunning(pod types.UID) { c.upkeep.boosting.podRunning(pod) }

// Release begins the end of a pod's cell, for the reason why, and returns at once. If podEnded, the pod ran to its end, and its logs are
// saved first. It does nothing for a pod without a cell, or whose cell ends already.
func (c *Controller) Release(pod types.UID, why string, podEnded bool) {
	c.ends.releases.release(pod, why, podEnded)
}

// ReleaseFailed releases the cell of a failed pod, and keeps its instance for a time. The logs are saved and the volumes freed at once.
// Later calls do not change the time; Release with podEnded ends it, as does EmptyPools. If the pod's namespace keeps most cells already,
// this one ends as with Release, and an Event of the pod says so.
func (c *Controller) ReleaseFailed(pod types.UID, why string, keep time.Duration, most int) {
	c.ends.releases.failed(pod, why, keep, most)
}

// ReleaseVanished releases the cell of a pod that is gone although nobody saw its deletion: the API server may have lost it. It returns
// false while the termination guard holds back the end of a cell that runs the pod. Call it again then.
func (c *Controller) ReleaseVanished(ctx context.Context, pod types.UID, why string) bool {
	return c.ends.releases.vanished(ctx, pod, why)
}

// ReleaseUnbound releases a pod's cell if its kubelet has not seen the pod, and never shows it the pod then. It returns false if the cell
// is bound: the kubelet has to end the pod.
func (c *Controller) ReleaseUnbound(pod types.UID, why string) bool {
	return c.ends.releases.unbound(pod, why)
}

// ForPod returns the cell of a pod; false if it has none that is not Gone.
func (c *Controller) ForPod(uid types.UID) (Cell, bool) { return c.core.table.forPod(uid) }

// List returns all cells that are not Gone, in no order.
func (c *Controller) List() []Cell { return c.core.table.list() }

// PodsNamed returns the UIDs of the pods of this name that have a cell. Pods of the past may be among them, since names are reused.
func (c *Controller) PodsNamed(name cache.ObjectName) []types.UID {
	return c.core.table.podsNamed(name)
}

// HasInstance reports whether a cell that is not Gone has an instance, by the cloud's ID of it.
func (c *Controller) HasInstance(instance string) bool {
	return c.core.table.havingInstance(instance) != nil
}

// Launched reports whether this Kip, or an earlier one of its identity, has launched an instance that has this Kip's tags.
func (c *Controller) Launched(i cloud.Instance) bool { return c.oversight.foreign.launched(i) }

// Endpoints returns the agents of all bound cells, in no order. Those of cells whose tunnel is down have no Conn.
func (c *Controller) Endpoints() []Endpoint { return c.oversight.queries.endpoints() }

// Conn returns a connection to the agent of a pod's cell, for people, who may read slowly. The error is ErrNoCell if the pod has no cell,
// or ErrNotConnected if the cell's tunnel is down.
func (c *Controller) Conn(pod types.UID) (agentapi.Conn, error) { return c.oversight.queries.conn(pod) }

// Machine is Conn for the ID of a cell, which needs no pod.
func (c *Controller) Machine(id string) (agentapi.Conn, error) {
	return c.oversight.queries.machine(id)
}

// Link returns the state of a cell's connection, by the cell's ID; false if this process has not begun to connect.
func (c *Controller) Link(id string) (Link, bool) { return c.oversight.queries.link(id) }

// StatusTrouble returns why the last status of its pod that a cell's kubelet sent was refused or cut; "" if it is stored as it was sent.
func (c *Controller) StatusTrouble(id string) string { return c.oversight.queries.statusTrouble(id) }

// Connected returns to how many cells this process is connected now.
func (c *Controller) Connected() int { return c.oversight.queries.connected() }

// WaitsFor returns what a cell waits for, as a sentence for people; "" for nothing that Kip knows of.
func (c *Controller) WaitsFor(id string) string { return c.oversight.queries.waitsFor(id, c.stepOf) }

// NodeOf returns the name of the virtual node that a cell's pod is on. For a standby cell it is the node that its kubelet runs as.
func (c *Controller) NodeOf(cell Cell) string { return c.shared.nodeNames.of(&cell) }

// NodesOf returns a function that is NodeOf as of one moment. It asks Config.Nodes, which goes through the catalogue, once for all standby
// cells that are launched alike.
func (c *Controller) NodesOf() func(Cell) string { return c.shared.nodeNames.ofMany() }

// NodesChanged has standby cells checked again. Call it when Config.Nodes may answer differently.
func (c *Controller) NodesChanged() { c.core.loop.wakeStandby() }

// EmptyPools begins the end of all standby cells, and of those that ReleaseFailed keeps. This process makes no standby cells any more.
func (c *Controller) EmptyPools() {
	c.core.pools.empty()
	c.ends.releases.endAllKept()
}

// Standby returns the states of the standby pools, in order of their names.
func (c *Controller) Standby() []StandbyState {
	return c.core.pools.states(c.core.table.standbyCells())
}

// Costs returns what all cells have cost until now, in dollars and seconds, in order of type. Cells that are gone count, those of earlier
// processes, too.
func (c *Controller) Costs() []Cost { return c.shared.costs.total() }

// CostsByNamespace returns what the cells of each namespace have cost until now, since Kip's state began. Cells that are gone count. Those
// without a pod are costs.NoPod's. A bounded number of namespaces have a sum of their own, which never decreases; the others are
// costs.Others. Idle time is that of cells that are gone or have no pod: for the others it is not stored, and would decrease at a restart.
func (c *Controller) CostsByNamespace() map[string]Amount { return c.shared.costs.byNamespace() }

// Spent calls each with what was spent from the first day to the last, both included, by key and day. One key and day may come several
// times, in any order: add them up. Days are known for costs.Kept; names as far as they fit into the bytes of a day.
func (c *Controller) Spent(ctx context.Context, first, last costs.Day, each func(costs.Key, costs.Day, costs.Amount)) error {
	return c.shared.costs.spent(ctx, first, last, each)
}

// Behind returns why this Kip launches nothing, and ends nothing whose end nobody has requested: its store may be older than its cells. It
// returns "" if the store is not. sure is false until the cloud has listed the instances of every zone once.
func (c *Controller) Behind() (why string, sure bool) { return c.core.generation.whyBehind() }

// EndDuplicates ends all instances that may run a pod, except that of its cell. It returns why it is not certain yet that none does; ""
// if it is. sure is false until the cloud has listed the instances once. created is by the API server's clock, and noEarlierCell as in
// Request: such a pod needs no list.
func (c *Controller) EndDuplicates(pod types.UID, created time.Time, noEarlierCell bool) (why string, sure bool) {
	return c.ends.duplicates.endAll(pod, created, noEarlierCell)
}

// Generation returns which launch the store knows of last, and which instances of the cloud it does not know of.
func (c *Controller) Generation() Generation { return c.oversight.generationChecks.now() }

// TakeOver has the store take over the instances that it does not know, as a person has decided who was shown them. From then on they are
// instances without a cell, which end. Call Reload then. The error is ErrNotBehind, ErrNotAllSeen or ErrShownOther if nothing was done.
func (c *Controller) TakeOver(ctx context.Context, shown string) error {
	return c.oversight.generationChecks.takeOver(ctx, shown)
}

// Reload has Run return ErrTakenOver.
func (c *Controller) Reload() { c.core.loop.fail(ErrTakenOver) }

// Refused returns why most cells refuse this Kip although they run; "" if they do not. Kip ends none of them for that.
func (c *Controller) Refused() string { return c.oversight.health.refusals.refused() }

// Unmoved returns the cells that still know Kip by the old CA, in order of their IDs, with launches that are under way. While there are
// any, Kip does not drop the old CA.
func (c *Controller) Unmoved() []Unmoved { return c.upkeep.trust.unmovedCells() }

// Untold returns how many cells may still trust a CA that Kip has dropped.
func (c *Controller) Untold() int { return c.upkeep.trust.untoldCells() }

// EndUnmoved begins the end of the cells that are Unmoved, as a person has decided who was shown them by ShownUnmoved, and returns them. If
// others are Unmoved by now it ends none, and the error is ErrOtherUnmoved.
func (c *Controller) EndUnmoved(shown string) ([]Unmoved, error) {
	return c.upkeep.trust.endUnmoved(shown)
}
