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

	// Launch starts one instance. It is idempotent by Request.Token: a second
	// call with the same token returns the instance of the first and starts
	// none, also after a crash of the caller. Instance addresses may still be
	// unset when the cloud assigns them later; List then reports them.
	// An error for which Refused holds means that nothing was started; after
	// any other the outcome is unknown and the call is to be repeated.
	Launch(ctx context.Context, r LaunchRequest) (Instance, error)

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

// LaunchRequest says what to launch.
type LaunchRequest struct {
	// Token makes the launch idempotent; at most 64 ASCII characters (EC2's
	// limit for a ClientToken).
	Token        string
	InstanceType string
	Zone         string
	Spot         bool
	// UserData is handed to the machine unchanged. It holds no key.
	UserData []byte
	// Tags include TagOwner and TagCell.
	Tags map[string]string
}

// State of an instance, as far as Kip cares.
type State string

const (
	Pending     State = "pending"
	Running     State = "running"
	Terminating State = "terminating"
)

// Instance is one machine.
type Instance struct {
	ID           string            `json:"id"`
	InstanceType string            `json:"instanceType"`
	Zone         string            `json:"zone,omitempty"`
	Spot         bool              `json:"spot,omitempty"`
	State        State             `json:"state"`
	ManagementIP netip.Addr        `json:"managementIP"` // where the agent listens
	PodIP        netip.Addr        `json:"podIP"`        // routable address of its pod
	Launched     time.Time         `json:"launched"`
	Tags         map[string]string `json:"tags,omitempty"`
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

// CapacityError says of what, and where, a cloud has no capacity now.
type CapacityError struct {
	InstanceType, Zone string
	Spot               bool
	Err                error
}

func (e *CapacityError) Error() string {
	kind := "on-demand"
	if e.Spot {
		kind = "spot"
	}
	return fmt.Sprintf("no %s capacity for %s in %s: %v", kind, e.InstanceType, e.Zone, e.Err)
}

func (e *CapacityError) Unwrap() []error { return []error{ErrCapacity, e.Err} }
