// Package cloud is the narrow interface between Kip and whatever sells machines.
//
// A cloud only translates: it launches, lists and terminates instances and says
// what it sells. Retrying, state, batching, back-off and selection live above
// it, once, in package cells.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

// Cloud is implemented by each provider of machines. All methods are safe for
// concurrent use and return promptly when ctx ends.
type Cloud interface {
	// Name is the key of this cloud in provider.yaml: "local", "aws", …
	Name() string

	// Catalogue returns the instance types that can be launched now, with
	// their prices. The result is not modified afterwards.
	Catalogue(ctx context.Context) ([]catalog.InstanceType, error)

	// Launch starts one instance for each of r.Machines, which differ in nothing
	// that costs money, in as few calls as the cloud allows. It is idempotent by
	// r.Token: a second call with the same token returns the instances of the
	// first and starts none, also after a crash of the caller. The result has
	// an instance for each machine, in their order; one with an empty ID was
	// not started, for lack of capacity. Addresses may still be unset when the
	// cloud assigns them later; List then reports them.
	// An error for which Refused holds means that nothing was started; after
	// any other the outcome is unknown and the call is to be repeated.
	Launch(ctx context.Context, r LaunchRequest) ([]Instance, error)

	// List returns every instance that carries the tags of this owner (see
	// TagOwner), in any state short of gone. It may lag behind Launch.
	List(ctx context.Context, owner string) ([]Instance, error)

	// Terminate ends instances and removes all that belongs to them. It is
	// idempotent: an unknown ID is no error. It may return before the
	// instances are gone; they are gone when List no longer shows them.
	Terminate(ctx context.Context, ids ...string) error
}

// Tags that Kip puts on everything it makes in a cloud, in the launching call.
const (
	// TagOwner holds the controller's identity, derived from the cluster and
	// the node name, so that a lost volume orphans nothing.
	TagOwner = "KipControllerID"
	// TagCell holds the cell's ID.
	TagCell = "KipCell"
	// TagNamespace and TagPod name the pod, for people who read the bill.
	TagNamespace = "KipNamespace"
	TagPod       = "KipPodName"
	TagPodUID    = "KipPodUID"
	// TagName and TagNameTag are for people too: cells.nametag.
	TagName    = "Name"
	TagNameTag = "KipNametag"
)

// MaxLaunch is the most machines of one LaunchRequest. A cloud whose own limit
// is lower splits the request.
const MaxLaunch = 50

// LaunchRequest says what to launch.
type LaunchRequest struct {
	// Token makes the launch idempotent; at most 64 ASCII characters (EC2's
	// limit for a ClientToken).
	Token        string
	InstanceType string
	Zone         string
	// Subnet is set where the offering has one.
	Subnet string
	Spot   bool
	// Machines are from 1 to MaxLaunch.
	Machines []Machine
}

// Machine is what one instance of a launch has of its own.
type Machine struct {
	// UserData is handed to the machine unchanged. It holds no key.
	UserData []byte
	// Tags include TagOwner and TagCell.
	Tags map[string]string
}

// Stopper is a cloud that can stop an instance, which then costs only its disk,
// and start it again with the same disk. Addresses may change.
type Stopper interface {
	// Stop is idempotent; the instances are Stopped when List says so.
	Stop(ctx context.Context, ids ...string) error
	// Start is idempotent. ErrCapacity when there is none for it now.
	Start(ctx context.Context, ids ...string) error
}

// Interrupter is a cloud that takes instances back after a notice, and says so.
type Interrupter interface {
	// Interruptions calls notice for each instance that the cloud is going to
	// take back, at least once, until ctx ends. It returns early with an error
	// when it can no longer tell.
	Interruptions(ctx context.Context, notice func(Interruption)) error
}

// Interruption announces that the cloud takes an instance back.
type Interruption struct {
	InstanceID string
	At         time.Time // when the instance ends
	Reason     string    // the cloud's words
}

// State of an instance, as far as Kip cares.
type State string

const (
	Pending     State = "pending"
	Running     State = "running"
	Terminating State = "terminating"
	Stopping    State = "stopping"
	Stopped     State = "stopped"
)

// Instance is one machine.
type Instance struct {
	ID           string     `json:"id"`
	InstanceType string     `json:"instanceType"`
	Zone         string     `json:"zone,omitempty"`
	Subnet       string     `json:"subnet,omitempty"`
	Spot         bool       `json:"spot,omitempty"`
	State        State      `json:"state"`
	ManagementIP netip.Addr `json:"managementIP"` // where the agent listens
	PodIP        netip.Addr `json:"podIP"`        // routable address of its pod
	// ManagementIPv6 and PodIPv6 are the same in IPv6: both, or none.
	ManagementIPv6 netip.Addr        `json:"managementIPv6,omitzero"`
	PodIPv6        netip.Addr        `json:"podIPv6,omitzero"`
	Launched       time.Time         `json:"launched"`
	Tags           map[string]string `json:"tags,omitempty"`
}

// Causes that a caller decides on; match with errors.Is. ErrCapacity is matched
// by every *CapacityError.
var (
	ErrCapacity     = errors.New("no capacity")
	ErrQuota        = errors.New("quota exceeded")
	ErrThrottled    = errors.New("throttled by the cloud")
	ErrUnauthorised = errors.New("not authorised by the cloud")
	// ErrRefused is for every other definite no: the cloud understood the
	// request and started nothing.
	ErrRefused = errors.New("refused by the cloud")
)

// Refused says that err is a cloud's definite no: nothing was started. An error
// that nobody classified is not one, since an answer may have been lost after
// its effect.
func Refused(err error) bool {
	for _, no := range []error{ErrCapacity, ErrQuota, ErrUnauthorised, ErrRefused} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// CapacityError says of what, and where, a cloud has no capacity now. An empty
// field stands for all: a subnet without free addresses can take no type.
type CapacityError struct {
	InstanceType, Zone, Subnet string
	// Spot is nil where it does not matter.
	Spot *bool
	Err  error
}

func (e *CapacityError) Error() string {
	what := "instances"
	if e.InstanceType != "" {
		what = e.InstanceType
	}
	if e.Spot != nil {
		what = map[bool]string{false: "on-demand ", true: "spot "}[*e.Spot] + what
	}
	where := ""
	for _, place := range []string{e.Zone, e.Subnet} {
		if place != "" {
			where += " in " + place
		}
	}
	return fmt.Sprintf("no capacity for %s%s: %v", what, where, e.Err)
}

func (e *CapacityError) Unwrap() []error { return []error{ErrCapacity, e.Err} }
