package adminapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Paths of the API. All are asked with GET, and change nothing then.
const (
	// PathVersion returns a Version.
	PathVersion = "/v1/version"
	// PathWhy returns an Explanation; the query has namespace and pod.
	PathWhy = "/v1/why"
	// PathCells returns a list of Cell.
	PathCells = "/v1/cells"
	// PathConsole returns a ConsoleText; the query has cell.
	PathConsole = "/v1/console"
	// PathStandby returns a list of Pool.
	PathStandby = "/v1/standby"
	// PathCapacity returns a list of Shortage.
	PathCapacity = "/v1/capacity"
	// PathUsage returns a list of CellUsage.
	PathUsage = "/v1/usage"
	// PathBackup streams a backup of the store. One that is cut off, for a
	// reason that may stand in the trailer BackupError, is worth nothing.
	PathBackup = "/v1/backup"
	// PathCleanup returns the Holdings. POST ends them and streams Progress, a
	// line each.
	PathCleanup = "/v1/cleanup"
	// PathHeld returns a list of HeldEnd. POST lets those pass once that are held back
	// since the time "seen" (RFC 3339) or for longer, and returns them.
	PathHeld = "/v1/held"
	// PathGeneration returns a Generation. POST has the store take over what it does not
	// know of, and returns the Generation of before; Kip then loads its cells anew.
	PathGeneration = "/v1/generation"
	// PathCA returns a CA. POST begins a rotation, and returns the CA of then; Kip then
	// loads its cells anew.
	PathCA = "/v1/ca"
	// PathUnmoved ends, by POST, the cells that CA.Shown names, and returns them.
	PathUnmoved = "/v1/ca/unmoved"
)

// BackupError is the HTTP trailer that says why a backup was cut off.
const BackupError = "Kip-Error"

// SocketName is the socket's name in its folder.
const SocketName = "kip.sock"

// Explainer knows what the socket tells.
type Explainer interface {
	// Why explains where a pod stands. The error is ErrNotFound for a pod that
	// is not on this Kip's node.
	Why(ctx context.Context, namespace, pod string) (Explanation, error)
	// Cells returns every cell of this Kip, in any order.
	Cells(ctx context.Context) ([]Cell, error)
	// Console returns the end of what a cell's machine wrote to its console. The error is
	// ErrNotFound for a cell that this Kip does not have, or whose cloud keeps no console of it.
	Console(ctx context.Context, cell string) (ConsoleText, error)
	// Standby returns the standby pools, in order of name.
	Standby(ctx context.Context) ([]Pool, error)
	// Capacity returns what is known to be out of capacity now.
	Capacity(ctx context.Context) ([]Shortage, error)
}

// Cleaner ends what this Kip has made.
type Cleaner interface {
	// Holdings says what there is, and changes nothing.
	Holdings(ctx context.Context) (Holdings, error)
	// Clean ends it, and tells what it waits for by say. It returns what there
	// is afterwards, and an error if that is not nothing.
	Clean(ctx context.Context, say func(string)) (Holdings, error)
}

// Holder holds back ends that may be a mistake.
type Holder interface {
	// Held returns what is held back now.
	Held() []HeldEnd
	// Allow lets what is held back since then, or for longer, pass once, and returns it.
	Allow(seen time.Time) []HeldEnd
}

// CellUsage is what a cell has asked of the Kip that answers, since that began to serve it.
type CellUsage struct {
	Cell string `json:"cell"`
	// Pod is empty for a cell without one.
	Pod      apiv1.PodReference `json:"pod,omitzero"`
	Requests uint64             `json:"requests"`
	// SentBytes are those of the bodies of its requests, AnsweredBytes those of the answers.
	SentBytes     uint64 `json:"sentBytes"`
	AnsweredBytes uint64 `json:"answeredBytes"`
	// WorkedSeconds is how long Kip has worked on what it sent.
	WorkedSeconds float64 `json:"workedSeconds"`
	// RefusedBy counts refused requests by the limit that the cell was beyond, or by the
	// reason where it was none.
	RefusedBy map[string]uint64 `json:"refusedBy,omitempty"`
}

// Refused is how many requests were refused.
func (u CellUsage) Refused() (n uint64) {
	for _, of := range u.RefusedBy {
		n += of
	}
	return n
}

// WorstFirst orders cells by what they cost: by the time that Kip worked for them, then
// by what they were refused, and then by bytes.
func WorstFirst(a, b CellUsage) int {
	return cmp.Or(cmp.Compare(b.WorkedSeconds, a.WorkedSeconds), cmp.Compare(b.Refused(), a.Refused()),
		cmp.Compare(b.SentBytes+b.AnsweredBytes, a.SentBytes+a.AnsweredBytes), cmp.Compare(a.Cell, b.Cell))
}

// StoreGeneration knows which launches the store knows of.
type StoreGeneration interface {
	Generation() Generation
	// TakeOver stores that a person has decided on what Generation.Shown names; it is an
	// error if that is not what there is now. Reload lets Kip go by it, when the answer is
	// sent.
	TakeOver(ctx context.Context, shown string) error
	Reload()
}

// Generation is what the store knows of.
type Generation struct {
	// Store is the store's own name, Number that of its last launch.
	Store  string `json:"store"`
	Number uint64 `json:"number"`
	// Behind says why Kip launches and sweeps nothing; empty if it does.
	Behind string `json:"behind,omitempty"`
	// Unknown are the instances of the cloud's last list that the store does not know of.
	Unknown []UnknownInstance `json:"unknown"`
	// Shown names them, for TakeOver.
	Shown string `json:"shown,omitempty"`
	// Incomplete says why there may be others, so that there is no take-over; empty if there
	// are none.
	Incomplete string `json:"incomplete,omitempty"`
}

// UnknownInstance is one that another store, or a newer one, has launched.
type UnknownInstance struct {
	Instance string `json:"instance"`
	// Generation is its tag; empty for an instance of a Kip that wrote none.
	Generation string `json:"generation,omitempty"`
	// Pod is that of its tags; zero where they name none: it may run any.
	Pod      apiv1.PodReference `json:"pod,omitzero"`
	Launched time.Time          `json:"launched"`
}

// CAKeeper keeps the CA by which cells know Kip.
type CAKeeper interface {
	CA() CA
	// RotateCA stores a new CA beside the old one. Reload lets Kip go by it, when the
	// answer is sent.
	RotateCA(ctx context.Context) (CA, error)
	Reload()
	// EndUnmoved ends the cells that CA.Shown names; it is an error if others are there
	// now.
	EndUnmoved(shown string) ([]UnmovedCell, error)
}

// CA is the CA by which cells know Kip.
type CA struct {
	// Signs is the one that signs, Before the one from which cells are being moved to it;
	// nil while none are.
	Signs  Authority  `json:"signs"`
	Before *Authority `json:"before,omitempty"`
	// Unmoved are the cells that know Kip by Before, and Shown names them, for EndUnmoved.
	Unmoved []UnmovedCell `json:"unmoved"`
	Shown   string        `json:"shown,omitempty"`
	// Waits says why Before is not dropped; empty where it is in a moment.
	Waits string `json:"waits,omitempty"`
	// Untold is how many cells may trust a CA yet that was dropped.
	Untold int `json:"untold,omitempty"`
}

// Authority is one CA.
type Authority struct {
	// Hash is the lower-case hex SHA-256 of its certificate (DER).
	Hash string    `json:"hash"`
	Made time.Time `json:"made"`
	Ends time.Time `json:"ends"`
}

// UnmovedCell is a cell that depends on the old CA.
type UnmovedCell struct {
	Cell string             `json:"cell"`
	Pod  apiv1.PodReference `json:"pod,omitzero"`
	// Why is what it waits for.
	Why string `json:"why"`
}

// HeldEnd is the end of an instance that Kip holds back.
type HeldEnd struct {
	Instance string `json:"instance"`
	// Cell is empty for an instance without one.
	Cell string             `json:"cell,omitempty"`
	Pod  apiv1.PodReference `json:"pod,omitzero"`
	// Why it is to end, and HeldBack why it does not.
	Why      string    `json:"why"`
	HeldBack string    `json:"heldBack"`
	Since    time.Time `json:"since"`
}

// ErrNotFound says that what was asked for is not known here.
var ErrNotFound = errors.New("not found")

// Version is what runs behind the socket.
type Version struct {
	Version string `json:"version"`
	// Kubernetes is the release of the kubelet on the cells.
	Kubernetes string `json:"kubernetes"`
	Go         string `json:"go"`
}

// Explanation says where a pod stands and why.
type Explanation struct {
	Pod apiv1.PodReference `json:"pod"`
	// Node is the virtual node that the pod is bound to.
	Node string `json:"node,omitempty"`
	// Profile is that of provider.yaml which chose the pod, as its annotation says; empty where none did.
	Profile string `json:"profile,omitempty"`
	// PodPhase is the pod's phase in the API.
	PodPhase string `json:"podPhase,omitempty"`
	// Ended says why a pod has failed: the reason and message of its status.
	Ended string `json:"ended,omitempty"`
	// StatusTrouble says why the API does not have the pod's status as its kubelet last sent it.
	StatusTrouble string `json:"statusTrouble,omitempty"`
	// Waiting says what the pod waits for; empty when it waits for nothing.
	Waiting string `json:"waiting,omitempty"`
	// NoMachine says why a pod of a DaemonSet gets no cell; empty for all others.
	NoMachine string `json:"noMachine,omitempty"`
	// Cell is the pod's cell; nil when it has none.
	Cell *Cell `json:"cell,omitempty"`
	// Placement is what was chosen for the pod's cell or, where it has none, would
	// be now; nil when it is not known.
	Placement *Placement `json:"placement,omitempty"`
	// Events on the pod, oldest first.
	Events []Event `json:"events,omitempty"`
}

// EndOf returns why a pod has failed, as its kubelet or Kip says; "" for another pod, and for one that
// says no reason.
func EndOf(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodFailed {
		return ""
	}
	return strings.Join(NonEmpty(pod.Status.Reason, pod.Status.Message), ": ")
}

// Placement is a choice among instance types.
type Placement struct {
	// Need is what the pod needs, with what the cell takes itself.
	Need string `json:"need,omitempty"`
	// Standby is the standby cell that the pod would take; "" for none.
	Standby string `json:"standby,omitempty"`
	// Candidates would be tried in this order, cheapest first, at most
	// apiv1.MaxCandidates. Of a cell that is launched the first is what it is, and the
	// others are what else was best then.
	Candidates []Candidate `json:"candidates,omitempty"`
	// PricesTold is when the prices on demand were told that a choice made now goes by; zero of
	// one that was made.
	PricesTold time.Time `json:"pricesTold,omitzero"`
	// Rejected types do not fit, or are not to be had now.
	Rejected []Rejection `json:"rejected,omitempty"`
	// Error is why there is no candidate, or why the pod cannot be placed.
	Error string `json:"error,omitempty"`
	// Rank is which of the pod's choices its cell is, from 1, and Ranks how many choices the pod has; 0 of a pod that has only
	// one, and where that is not known.
	Rank  int `json:"rank,omitempty"`
	Ranks int `json:"ranks,omitempty"`
	// Better are the choices that come before it, as they are now.
	Better []Better `json:"better,omitempty"`
	// MovesBack is when Kip evicts the pod if a better one can be launched then; zero if it does not.
	MovesBack time.Time `json:"movesBack,omitzero"`
}

// Better is a choice that comes before the one that a pod has.
type Better struct {
	Rank int    `json:"rank"`
	Why  string `json:"why"` // it is not had
}

// Candidate is one way to launch a cell.
type Candidate = apiv1.Candidate

// Rejection is why some types were not chosen.
type Rejection struct {
	// What was rejected: a type ("c5.large in us-east-1a"), or how many
	// ("3 types").
	What string `json:"what"`
	Why  string `json:"why"`
}

// Cell is a cell with what Kip alone knows of it.
type Cell struct {
	Name   string           `json:"name"`
	Status apiv1.CellStatus `json:"status"`
	// Tunnel is Kip's connection to the cell; nil when there is none yet, or
	// when it is not known.
	Tunnel *Tunnel `json:"tunnel,omitempty"`
	// Agent is what a booting cell's agent says; nil when it was not asked.
	Agent *Agent `json:"agent,omitempty"`
	// Console is what the machine of a cell that has not joined says; nil when the cloud
	// was not asked, or keeps no consoles.
	Console *Console `json:"console,omitempty"`
}

// Console is the end of what a machine wrote to its console.
type Console struct {
	// Lines are fit for a terminal, the oldest first.
	Lines []string `json:"lines,omitempty"`
	// Error is why the cloud did not tell.
	Error string `json:"error,omitempty"`
}

// MaxConsole is how many bytes of a console are told: as many as EC2 keeps.
const MaxConsole = 64 << 10

// ConsoleText is what the machine of a cell wrote to its console, as far as its cloud keeps
// and shows it now.
type ConsoleText struct {
	Cell  string      `json:"cell"`
	Phase apiv1.Phase `json:"phase"`
	// Instance is the machine; empty for a cell that has none yet.
	Instance string `json:"instance,omitempty"`
	// Text is the end of it, at most MaxConsole, byte by byte: it is not fit for a terminal, since
	// whoever is root on the machine writes what he likes.
	Text []byte `json:"text"`
}

// Agent is how the parts of a cell's system fare.
type Agent struct {
	Components []Component `json:"components,omitempty"`
	// Error is why the agent could not be asked.
	Error string `json:"error,omitempty"`
}

// Component is one process that the agent supervises.
type Component struct {
	Name string `json:"name"`
	// PID is 0 when it does not run.
	PID      int `json:"pid"`
	Restarts int `json:"restarts,omitempty"`
	// Waiting says what a component that does not run waits for.
	Waiting string `json:"waiting,omitempty"`
}

// Pool is how a standby pool fares.
type Pool struct {
	Name    string `json:"name"`
	Want    int    `json:"want"`
	Ready   int    `json:"ready"`
	Booting int    `json:"booting"`
	// Why says why it is not full; empty when it only takes time.
	Why string `json:"why,omitempty"`
}

// Shortage is what is out of capacity. An empty field stands for all.
type Shortage struct {
	InstanceType string `json:"instanceType,omitempty"`
	// Family is that of types whose quota is used up, for types with LeastMilliCPU or more.
	Family        string `json:"family,omitempty"`
	LeastMilliCPU int64  `json:"leastMilliCPU,omitempty"`
	Zone          string `json:"zone,omitempty"`
	Subnet        string `json:"subnet,omitempty"`
	// LaunchType is Spot or On-Demand.
	LaunchType string `json:"launchType,omitempty"`
	// Until is when launches of it are tried again.
	Until time.Time `json:"until"`
	// Why is the cloud's reason.
	Why string `json:"why,omitempty"`
}

// Holdings are what one Kip has in the cloud, in the cluster and in its store.
type Holdings struct {
	// Node is the virtual node, NodeExists whether the cluster has its object
	// and NodeLease whether it has its lease.
	Node       string `json:"node"`
	NodeExists bool   `json:"nodeExists"`
	NodeLease  bool   `json:"nodeLease"`
	// Pods bound to the node: NAMESPACE/POD.
	Pods []string `json:"pods"`
	// Cells: the name and what it does or waits for.
	Cells []string `json:"cells"`
	// Instances that the cloud lists for this Kip: the ID, and the cell.
	Instances []string `json:"instances"`
	// Parts are what the cloud has beside the instances, such as network interfaces
	// and security groups: the kind and the ID.
	Parts []string `json:"parts"`
	// CellResources are the objects of kind Cell of this Kip.
	CellResources []string `json:"cellResources"`
	// Disks of PersistentVolumes in the cloud: the ID, its size, its volume and
	// claim. They hold data, and are not part of what Clean ends.
	Disks []string `json:"disks"`
	// Records are those of the store, counted by the first part of their keys.
	// They are not part of what Clean ends.
	Records map[string]int `json:"records"`
	// Store is where the records are, and how they are removed.
	Store string `json:"store"`
}

// Left names what there is of all that Clean ends; empty if there is nothing.
func (h Holdings) Left() []string {
	var left []string
	for _, part := range []struct {
		what  string
		names []string
	}{{"instance", h.Instances}, {"part", h.Parts}, {"cell", h.Cells}, {"pod", h.Pods}, {"Cell resource", h.CellResources}} {
		if len(part.names) > 0 {
			left = append(left, fmt.Sprintf("%s (%s)", Count(len(part.names), part.what), Some(part.names)))
		}
	}
	if h.NodeExists {
		left = append(left, "node "+h.Node)
	}
	if h.NodeLease {
		left = append(left, "the lease of node "+h.Node)
	}
	return left
}

// Count says how many there are of a thing.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Some joins the first names of a list that may be long.
func Some(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Progress is a line of the answer to a POST at PathCleanup. The last has
// Holdings, or Error, or both; all others have Message.
type Progress struct {
	Time    time.Time `json:"time"`
	Message string    `json:"message,omitempty"`
	// Holdings is what is left.
	Holdings *Holdings `json:"holdings,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// Tunnel is how the connection to a cell fares.
type Tunnel struct {
	Connected bool `json:"connected"`
	// LastHeard is when the cell last gave a sign of life; nil if never.
	LastHeard *time.Time `json:"lastHeard,omitempty"`
	// Error is the last thing that went wrong.
	Error string `json:"error,omitempty"`
}

// Event is a Kubernetes Event on a pod, in short.
type Event struct {
	// Time is when it last happened.
	Time    time.Time `json:"time"`
	Count   int32     `json:"count,omitempty"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// problem is the body of an answer that is an error.
type problem struct {
	Error string `json:"error"`
}

// NonEmpty leaves out the words that are empty.
func NonEmpty(words ...string) []string {
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}
