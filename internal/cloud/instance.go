package cloud

import (
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// State of an instance, as far as Kip cares.
type State string

const (
	Pending     State = "pending"
	Running     State = "running"
	Terminating State = "terminating"
	Stopping    State = "stopping"
	Stopped     State = "stopped"
	// Gone is what Describe says of an instance that has ended for good: it runs
	// nothing, has no disk and no address, and never comes back.
	Gone State = "gone"
	// Unknown is what Describe says of an instance that the cloud does not know,
	// which proves nothing: right after its launch a cloud may not know it yet.
	Unknown State = "unknown"
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
	ManagementIPv6 netip.Addr `json:"managementIPv6,omitzero"`
	PodIPv6        netip.Addr `json:"podIPv6,omitzero"`
	// PublicIP leads to ManagementIP from outside of the cloud's network; unset
	// where there is none.
	PublicIP netip.Addr `json:"publicIP,omitzero"`
	Launched time.Time  `json:"launched"`
	// Place is the instance's in the call that launched it: its launch index, in
	// decimal. With TagBatch it says which cell the instance is. "" where the cloud
	// does not tell, as one without Capabilities.SharedUserData need not.
	Place string            `json:"place,omitempty"`
	Tags  map[string]string `json:"tags,omitempty"`
	// Owned are the IDs of what the instance has that is billed by itself and ends with it: disks and interfaces.
	// Empty where the cloud does not tell.
	Owned []string `json:"-"`
	// OwnedLate says that the cloud does not show all of Owned yet.
	OwnedLate bool `json:"-"`
	// Origin is what the cloud tells of the call that launched the instance.
	Origin Origin `json:"-"`
	// Fault is why the cloud has ended or stopped the instance by itself, also after it had answered the
	// launch: an *Error with its cause and scope, where they are known. Nil where somebody asked
	// for the end, and where the cloud does not say.
	Fault error `json:"-"`
}

// Origin is what a cloud tells of where an instance is from, and whoever may write tags cannot change.
type Origin struct {
	// Token is that of the call, "" where the cloud does not tell it, or there was none. It stays.
	Token string
	// Dedicated and Reservation are as in an offering, by what the cloud has made of it: an instance may be in
	// a reservation, or on hardware, for which nobody asked, and be moved to another host.
	Dedicated   bool
	Reservation string
}

// PlaceOf is the place of the nth machine of a launch.
func PlaceOf(n int) string { return strconv.Itoa(n) }

// DialIP is the address at which Kip dials the agent: ManagementIP, or PublicIP
// where Capabilities.DialPublic says that Kip is outside. Kip dials only what the cloud
// told of that very instance, so that no other can pass for it. The result is not
// valid as long as the instance has no such address.
func (i Instance) DialIP(public bool) netip.Addr {
	if public {
		return i.PublicIP
	}
	return i.ManagementIP
}

// Listing is an answer of List.
type Listing struct {
	Instances []Instance `json:"instances"`
	// Missing are the zones where the cloud could not look. That an instance of
	// theirs is not listed says nothing.
	Missing []string `json:"missing,omitempty"`
	// Silent are those of Missing that did not answer. Of the others the cloud did not show
	// that it could look there.
	Silent []string `json:"silent,omitempty"`
	// Looked are the zones where the cloud showed that it could look, if it showed that of these alone: then the listing
	// covers no other zone. It is nil if the cloud could look everywhere but in Missing.
	Looked []string `json:"looked"`
}

// Complete says that every zone was looked at that the cloud knows to be Kip's.
func (l Listing) Complete() bool { return len(l.Missing) == 0 }

// Covers says that an instance in the zone would have been listed. Of one whose
// zone is not known only a complete listing says anything.
func (l Listing) Covers(zone string) bool {
	switch {
	case zone == "":
		return l.Complete()
	case l.Looked != nil:
		return slices.Contains(l.Looked, zone)
	}
	return !slices.Contains(l.Missing, zone)
}
