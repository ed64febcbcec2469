package cloud

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/offering"
)

// MaxLaunch is the most machines of one LaunchRequest. A cloud whose own limit
// is lower splits the request.
const MaxLaunch = 50

// CapacityType is how an instance is bought.
type CapacityType = offering.CapacityType

const (
	OnDemand  = offering.OnDemand
	Spot      = offering.Spot
	Dedicated = offering.Dedicated
)

// LaunchSpec is what is to be launched, with nothing left to be decided. It is
// resolved once, from the pod, its annotations and the configuration, and stored:
// what is sent again is what was sent before.
type LaunchSpec struct {
	InstanceType string `json:"instanceType"`
	// Arch is the type's, as in catalog.InstanceType.
	Arch string `json:"arch,omitempty"`
	Zone string `json:"zone"`
	// Subnet is set where the offering has one.
	Subnet string `json:"subnet,omitempty"`
	// CapacityType is OnDemand when empty.
	CapacityType CapacityType `json:"capacityType,omitempty"`
	// Reservation is the one into which is launched; "" for none.
	Reservation string `json:"reservation,omitempty"`
	// RootDiskBytes is the root disk's size; 0 for what the cloud gives. A cloud
	// whose types have disks of their own size leaves it out of account.
	RootDiskBytes int64 `json:"rootDiskBytes,omitempty"`
	// Login says that the machine is to have users who can log in: with an image that has
	// none the launch is refused, where the cloud can tell.
	Login bool `json:"login,omitempty"`
	// Devices says that the machine is to have drivers of GPUs or other accelerators: so, too.
	Devices bool `json:"devices,omitempty"`
	Options
	// Tags are those of all machines.
	Tags map[string]string `json:"tags,omitempty"`
	// Resolved is what the cloud's Resolver has found for all of the above, and is sent in its
	// place. Nil for a cloud without one.
	Resolved *Resolved `json:"resolved,omitempty"`
}

// Resolved is what a launch is sent with, in the cloud's own terms.
type Resolved struct {
	// Image is the ID of what is booted, RootDevice what it calls its root disk.
	Image      string `json:"image"`
	RootDevice string `json:"rootDevice,omitempty"`
	// RootDiskBytes is what the image needs, at least.
	RootDiskBytes int64 `json:"rootDiskBytes,omitempty"`
	// RootDiskInitRate is how fast the root disk is filled from the image, in MiB a second; 0 for
	// what the cloud does by itself.
	RootDiskInitRate int32 `json:"rootDiskInitRate,omitempty"`
	// Key is the key that encrypts the root disk; "" for what the cloud takes by itself.
	Key string `json:"key,omitempty"`
	// SecurityGroups are the IDs of all, that which Kip makes included.
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// Tags are the configured ones of all that the launch makes. Those of LaunchSpec and of each machine win over them.
	Tags map[string]string `json:"tags,omitempty"`
	// PublicAddress says that each instance has one.
	PublicAddress bool `json:"publicAddress,omitempty"`
	// SecondaryAddress reports whether the pods of all instances have secondary addresses of their interfaces. If not,
	// those of several instances have addresses of prefixes.
	SecondaryAddress bool `json:"secondaryAddress,omitempty"`
	// CPUCredits are those of burstable instances, in the cloud's own words; "" for others.
	CPUCredits string `json:"cpuCredits,omitempty"`
	// Boosted reports whether the cloud is told by its Booster when the instances have started.
	Boosted bool `json:"boosted,omitempty"`
	// CapacityBlock says that the reservation is one, and AtMost for how many machines it has room;
	// 0 where that is no bound.
	CapacityBlock bool `json:"capacityBlock,omitempty"`
	AtMost        int  `json:"atMost,omitempty"`
}

// Spot says that the instances may be taken back.
func (s LaunchSpec) Spot() bool { return s.CapacityType == Spot }

// Pool is that of catalog.PurchaseOption: which of a type's machines are launched, where some run out
// by themselves.
func (s LaunchSpec) Pool() string {
	return catalog.PurchaseOption{Dedicated: s.CapacityType == Dedicated, Reservation: s.Reservation}.Pool()
}

// Options are what the configuration and a pod's annotations say of a launch,
// whatever the offering. A cloud ignores what it has no notion of.
type Options struct {
	// Image says what is booted, in the cloud's own terms; empty for Kip's own.
	Image map[string]string `json:"image,omitempty"`
	// SecurityGroups are attached besides the one that Kip makes; network tags on
	// GCE.
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// InstanceProfile is the name or ARN of an instance profile, or the e-mail
	// address of a service account; "" for none.
	InstanceProfile string `json:"instanceProfile,omitempty"`
	// PrivateIPOnly says that the instances get no public address.
	PrivateIPOnly bool `json:"privateIPOnly,omitempty"`
	// AllowMetadata says that a pod may reach the cloud's metadata service, where
	// the cloud can keep it from it.
	AllowMetadata bool `json:"allowMetadata,omitempty"`
	// CloudRoutes are what the cloud's network is to route to the one instance.
	CloudRoutes []netip.Prefix `json:"cloudRoutes,omitempty"`
}

// LaunchRequest is one call that launches machines of one LaunchSpec.
type LaunchRequest struct {
	// Token makes the launch idempotent; at most 64 ASCII characters (EC2's
	// limit for a ClientToken).
	Token string `json:"token"`
	LaunchSpec
	// UserData is that of all machines where Capabilities.SharedUserData says that they
	// must share it: then no Machine has any of its own, nor tags. Nil elsewhere. It
	// holds no key, and a secret: it reaches no log and no error.
	UserData []byte `json:"userData,omitempty"`
	// Machines are from 1 to MaxLaunch.
	Machines []Machine `json:"machines"`
}

// Machine is what one instance of a launch has of its own.
type Machine struct {
	// UserData is handed to the machine unchanged. It holds no key.
	UserData []byte `json:"userData"`
	// Tags are in addition to those of the LaunchSpec, and win over them. Together
	// they include TagOwner, and TagCell or TagBatch.
	Tags map[string]string `json:"tags"`
}

// TagsOf returns all tags of the nth machine; they are the caller's own.
func (r LaunchRequest) TagsOf(n int) map[string]string {
	tags := make(map[string]string, len(r.Tags)+len(r.Machines[n].Tags))
	maps.Copy(tags, r.Tags)
	maps.Copy(tags, r.Machines[n].Tags)
	return tags
}

// Shared says that the machines have their user data and their tags in common.
func (r LaunchRequest) Shared() bool { return r.UserData != nil }

// UserDataOf returns what the nth machine is handed.
func (r LaunchRequest) UserDataOf(n int) []byte {
	if r.Shared() {
		return r.UserData
	}
	return r.Machines[n].UserData
}

// OwnData says that a machine has user data or tags of its own.
func (r LaunchRequest) OwnData() bool {
	return slices.ContainsFunc(r.Machines, func(m Machine) bool { return m.UserData != nil || len(m.Tags) > 0 })
}

// LaunchResult is what became of one machine. Without an error there is an
// instance. With one NothingDone says whether there surely is none; if not, the
// call is to be repeated.
type LaunchResult struct {
	Instance Instance
	Err      error
}

// LaunchResults are one for each machine, in their order.
type LaunchResults []LaunchResult

// NotLaunched is the answer to a launch of n machines that has one error for all.
func NotLaunched(n int, err error) LaunchResults {
	results := make(LaunchResults, max(1, n))
	for i := range results {
		results[i].Err = err
	}
	return results
}

// AllLaunched is the answer to a launch that has succeeded.
func AllLaunched(instances ...Instance) LaunchResults {
	results := make(LaunchResults, len(instances))
	for n, i := range instances {
		results[n].Instance = i
	}
	return results
}

// All returns the instances if there is one for each machine.
func (r LaunchResults) All() ([]Instance, error) {
	if err := r.Err(); err != nil {
		return nil, err
	}
	return r.Instances(), nil
}

// Instances are those of all results; zero where there is none.
func (r LaunchResults) Instances() []Instance {
	all := make([]Instance, len(r))
	for n := range r {
		all[n] = r[n].Instance
	}
	return all
}

// Err joins the errors of all machines, each once; nil if there are none.
func (r LaunchResults) Err() error {
	errs := make([]error, len(r))
	for n := range r {
		errs[n] = r[n].Err
	}
	return join(errs)
}

// Result is what became of one instance in a call that names several.
type Result struct {
	ID  string
	Err error
}

// Results are one for each ID, in their order.
type Results []Result

// Each is the answer to a call that has one outcome for all.
func Each(err error, ids ...string) Results {
	results := make(Results, len(ids))
	for n, id := range ids {
		results[n] = Result{ID: id, Err: err}
	}
	return results
}

// Err joins the errors of all instances, each once; nil if there are none.
func (r Results) Err() error {
	errs := make([]error, len(r))
	for n := range r {
		errs[n] = r[n].Err
	}
	return join(errs)
}

// join is errors.Join without those that come again, as where all have the same.
// A single one is left as it is.
func join(errs []error) error {
	var first error
	same := true
	seen := map[string]bool{}
	var different []error
	for _, err := range errs {
		if err == nil || seen[err.Error()] {
			continue
		}
		seen[err.Error()] = true
		same, first = first == nil, err
		different = append(different, err)
	}
	if same {
		return first
	}
	return errors.Join(different...)
}
