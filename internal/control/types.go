package control

import (
	"context"
	"errors"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Paths of the API. All are asked with GET.
const (
	// PathVersion returns a Version.
	PathVersion = "/v1/version"
	// PathWhy returns an Explanation; the query has namespace and pod.
	PathWhy = "/v1/why"
	// PathCells returns a list of Cell.
	PathCells = "/v1/cells"
)

// SocketName is the socket's name in its folder.
const SocketName = "kip.sock"

// Explainer knows what the socket tells.
type Explainer interface {
	// Why explains where a pod stands. The error is ErrNotFound for a pod that
	// is not on this Kip's node.
	Why(ctx context.Context, namespace, pod string) (Explanation, error)
	// Cells returns every cell of this Kip, in any order.
	Cells(ctx context.Context) ([]Cell, error)
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
	// PodPhase is the pod's phase in the API.
	PodPhase string `json:"podPhase,omitempty"`
	// Waiting says what the pod waits for; empty when it waits for nothing.
	Waiting string `json:"waiting,omitempty"`
	// Cell is the pod's cell; nil when it has none.
	Cell *Cell `json:"cell,omitempty"`
	// Placement is how a type is, or would now be, chosen; nil when it is not
	// known.
	Placement *Placement `json:"placement,omitempty"`
	// Events on the pod, oldest first.
	Events []Event `json:"events,omitempty"`
}

// Placement is a choice among instance types.
type Placement struct {
	// Need is what the pod needs, with what the cell takes itself.
	Need string `json:"need,omitempty"`
	// Candidates would be tried in this order, cheapest first.
	Candidates []Candidate `json:"candidates,omitempty"`
	// Rejected types do not fit, or are not to be had now.
	Rejected []Rejection `json:"rejected,omitempty"`
	// Error is why there is no candidate, or why the pod cannot be placed.
	Error string `json:"error,omitempty"`
}

// Candidate is one way to launch a cell.
type Candidate struct {
	InstanceType string `json:"instanceType"`
	Zone         string `json:"zone,omitempty"`
	LaunchType   string `json:"launchType,omitempty"`
	// PricePerHour is in US dollars, as decimal text.
	PricePerHour string `json:"pricePerHour,omitempty"`
	// Why says what speaks for it.
	Why string `json:"why,omitempty"`
}

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
