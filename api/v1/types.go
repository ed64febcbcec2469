package v1

import (
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// GroupVersion of the Cell resource.
var GroupVersion = schema.GroupVersion{Group: "kip.elotl.co", Version: "v1"}

// Resource is the REST resource of Cell; its scope is the cluster.
var Resource = GroupVersion.WithResource("cells")

// Kind of the Cell resource.
const Kind = "Cell"

// Phase of a cell's life, in the order in which a cell passes through them.
type Phase string

const (
	// Requested: a pod needs this cell; nothing has been sent to the cloud.
	Requested Phase = "Requested"
	// Launching: the launch is stored and is being sent to the cloud.
	Launching Phase = "Launching"
	// Booting: the cloud has the instance; its agent has not joined yet, or
	// its kubelet is not ready.
	Booting Phase = "Booting"
	// Ready: the cell's kubelet can take a pod.
	Ready Phase = "Ready"
	// Bound: the cell has its pod, for good.
	Bound Phase = "Bound"
	// Draining: the pod has ended; what must outlive the cell is saved.
	Draining Phase = "Draining"
	// Terminating: the cloud has been, or is being, told to end the instance.
	Terminating Phase = "Terminating"
	// Gone: the cloud no longer has the instance. The record goes next.
	Gone Phase = "Gone"
)

// Cell is one instance that Kip made for one pod.
type Cell struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Status            CellStatus `json:"status,omitempty"`
}

// CellStatus is all that a Cell says; it has no spec, since nobody but Kip asks
// for a cell.
type CellStatus struct {
	Phase Phase `json:"phase"`
	// Waiting says what the cell waits for; empty when it waits for nothing. It
	// and Reason are written when empty too: a merge patch would keep the old.
	Waiting string `json:"waiting"`
	// Reason says why the cell is on this type, or why it ends.
	Reason string `json:"reason"`
	// Pod that runs, or will run, here.
	Pod PodReference `json:"pod"`
	// Node is the virtual node that the cell belongs to.
	Node string `json:"node"`
	// ControllerID is the identity of the Kip that owns the cell, the same as
	// on the instance's tags.
	ControllerID string `json:"controllerID"`
	// Attempt counts the cells that were launched for this pod, from 1.
	Attempt      int    `json:"attempt"`
	InstanceID   string `json:"instanceID,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	// LaunchType is On-Demand, Spot or Dedicated.
	LaunchType string `json:"launchType,omitempty"`
	// PricePerHour is in US dollars, as decimal text ("0.0104").
	PricePerHour string `json:"pricePerHour,omitempty"`
	ManagementIP string `json:"managementIP,omitempty"`
	// IP is the pod's address, routable around the cell.
	IP string `json:"ip,omitempty"`
	// IPv6 is the pod's IPv6 address, if it has one.
	IPv6 string `json:"ipv6,omitempty"`
	// Candidates are the best that could be had when the cell was chosen, at most MaxCandidates;
	// the first is what it is, or is to be.
	Candidates []Candidate `json:"candidates,omitempty"`
	// RuledOut says why other types are not among them, by count.
	RuledOut []RuledOut `json:"ruledOut,omitempty"`
	// Steps are the moments at which the cell entered each phase, and those
	// of the steps between (seen, placed, launched, joined, ready, bound, …),
	// oldest first.
	Steps []Step `json:"steps,omitempty"`
	// Boot is how the machine started, as its agent says; nil where no kernel was started
	// for it, as on the local cloud.
	Boot *Boot `json:"boot,omitempty"`
	// Agent is the one that ran on the machine when the pod was given it, as it said itself.
	Agent *Agent `json:"agent,omitempty"`
	// Image is what the machine has booted, in the cloud's own terms; empty where the cloud does not say.
	Image string `json:"image,omitempty"`
	// Old says what of the cell is older than what a cell has that is launched now: "image", "agent" or both; empty for neither. It is written
	// when empty, too, since a merge patch would keep the old one.
	Old string `json:"old"`
	// Beside are the pods of DaemonSets that run beside the pod, as the cell's kubelet says.
	Beside []BesidePod `json:"beside,omitempty"`
}

// BesidePod is the copy of a DaemonSet's pod on a cell.
type BesidePod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Ready     bool   `json:"ready"`
	Restarts  int32  `json:"restarts,omitempty"`
	// Message says why it is not ready, or why it does not run here.
	Message string `json:"message,omitempty"`
}

// Agent is a cell's agent.
type Agent struct {
	Version string `json:"version,omitempty"`
	// SHA256 is the digest of its program, where cells.itzo says which agent is wanted.
	SHA256 string `json:"sha256,omitempty"`
	// Kip is Kip's own version, where the agent is of another one that cells.itzo does not name. It is
	// written when empty, too, since a merge patch would keep the old one.
	Kip string `json:"kip"`
}

// Boot are moments of a machine's start, each as the time since its kernel started. What is
// not known is left out.
type Boot struct {
	// Kernel is when the kernel started the first process.
	Kernel *metav1.Duration `json:"kernel,omitempty"`
	// UserSpace is when that process had the root that the agent runs in.
	UserSpace *metav1.Duration `json:"userSpace,omitempty"`
	// Network is when the machine had its address.
	Network *metav1.Duration `json:"network,omitempty"`
	// Joined is when Kip gave the agent its configuration.
	Joined *metav1.Duration `json:"joined,omitempty"`
	// Ready is when the kubelet was ready: what it took from Joined on is by Kip's clock.
	Ready *metav1.Duration `json:"ready,omitempty"`
}

// MaxCandidates is how many candidates people are shown.
const MaxCandidates = 5

// Unknown stands for a price that is not known.
const Unknown = "unknown"

// Candidate is one way to launch a cell. Prices are in US dollars an hour, as decimal
// text, or Unknown; what is empty is not paid.
type Candidate struct {
	InstanceType string `json:"instanceType"`
	Zone         string `json:"zone,omitempty"`
	LaunchType   string `json:"launchType,omitempty"`
	// PricePerHour is the machine's.
	PricePerHour string `json:"pricePerHour,omitempty"`
	// BurstPerHour is for what the pod asks of CPU above a burstable type's baseline.
	BurstPerHour   string `json:"burstPerHour,omitempty"`
	DiskPerHour    string `json:"diskPerHour,omitempty"`
	AddressPerHour string `json:"addressPerHour,omitempty"`
	// CostPerHour is the sum of what is known; Unknown where the machine's price is.
	CostPerHour string `json:"costPerHour,omitempty"`
	// Why says what speaks for it.
	Why string `json:"why,omitempty"`
}

// RuledOut counts types that were not chosen for one reason.
type RuledOut struct {
	Types int `json:"types"`
	// Why begins with a verb: "have too little memory (largest: x2 with 8Gi)".
	Why string `json:"why"`
}

// Launch types, as people are told them.
const (
	OnDemand  = "On-Demand"
	Spot      = "Spot"
	Dedicated = "Dedicated"
)

// LaunchType is the one of what is bought as spot, as dedicated, or as neither.
func LaunchType(spot, dedicated bool) string {
	switch {
	case spot:
		return Spot
	case dedicated:
		return Dedicated
	}
	return OnDemand
}

// Price is dollars an hour as a CellStatus has it: to a millionth, which is finer
// than any cloud's price.
func Price(dollars float64) string {
	return strconv.FormatFloat(math.Round(dollars*1e6)/1e6, 'f', -1, 64)
}

// PodReference names a pod for good.
type PodReference struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// Ref is the reference to pod p.
func Ref(p *corev1.Pod) PodReference {
	return PodReference{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

func (r PodReference) String() string { return r.Namespace + "/" + r.Name }

// Step is something that happened to a cell, and when.
type Step struct {
	Name string           `json:"name"`
	Time metav1.MicroTime `json:"time"`
}

// Names of steps, in the usual order.
const (
	StepSeen       = "seen"       // Kip saw the pod on its node
	StepPlaced     = "placed"     // placement chose a type
	StepLaunched   = "launched"   // the cloud answered with an instance
	StepBoosted    = "boosted"    // it has more CPU to start, until its pod runs
	StepJoined     = "joined"     // the agent has its certificate; the tunnel is up
	StepCloudInit  = "cloudInit"  // the agent carries out the operator's cloud-init file
	StepReady      = "ready"      // the kubelet is ready
	StepGiven      = "given"      // a pod took the standby cell
	StepBound      = "bound"      // the kubelet may see the pod
	StepEnded      = "ended"      // the pod ended, or was deleted
	StepLogsSaved  = "logsSaved"  // container logs are kept by Kip
	StepKept       = "kept"       // its pod has failed, and people may look inside for a time
	StepTerminated = "terminated" // the cloud no longer has the instance
)
