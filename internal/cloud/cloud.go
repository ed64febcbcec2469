// Package cloud is the contract between Kip and whatever sells machines.
//
// A cloud only translates: it launches, lists and terminates instances and says
// what it sells. Retrying, state, batching, back-off and selection live above
// it, once, in packages cells and pipe.
package cloud

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

// Cloud is implemented by each provider of machines. All methods are safe for
// concurrent use and return promptly when ctx ends. What a cloud can do is here and in
// Optional. How it is closed is no part of it: the package that opens one returns that.
type Cloud interface {
	// Name is the key of this cloud in provider.yaml: "local", "aws", …
	Name() string

	// Capabilities say how this cloud is to be treated. They never change.
	Capabilities() Capabilities

	// Optional are what this cloud can do besides. They never change.
	Optional() Optional

	// Catalogue returns the instance types that can be launched now, with
	// their prices. The result is not modified afterwards.
	Catalogue(ctx context.Context) ([]catalog.InstanceType, error)

	// Launch starts one instance for each of r.Machines, which differ in nothing
	// that costs money, in as few calls as the cloud allows. It is idempotent by
	// r.Token: a second call with the same token returns the instances of the
	// first and starts none, also after a crash of the caller. The same token with
	// another request is refused with ErrMismatch, where the cloud can tell.
	//
	// There is a result for each machine, in their order; a request without
	// machines has one. Where the request is Shared, the nth result is that of place n
	// (Instance.Place), whatever the order in which the cloud answers; the machine
	// itself learns its place from its cloud, and joins as the cell of that place.
	// The callers' rights and limits are the same for all
	// machines, capacity need not be. Addresses may still be unset when the cloud
	// assigns them later; List then reports them.
	Launch(ctx context.Context, r LaunchRequest) LaunchResults

	// List returns the instances that carry the tags of this owner (see
	// TagOwner), in any state short of gone, and says where it could not look. It
	// may lag behind Launch by Capabilities.ListLag.
	List(ctx context.Context, owner string) (Listing, error)

	// Describe says of each ID, in their order, what the cloud knows of that
	// instance: Gone only where the cloud is positive that it has ended for good,
	// Unknown where the cloud does not know it, or not yet, or no longer. Where it could not look,
	// as in a zone that does not answer, the State is empty.
	Describe(ctx context.Context, ids ...string) ([]Instance, error)

	// Terminate ends instances and removes all that belongs to them. It is
	// idempotent: an unknown ID is no error. It may return before the
	// instances are gone. There is a result for each ID, in their order.
	Terminate(ctx context.Context, ids ...string) Results
}

// Capabilities say how a cloud is to be treated.
type Capabilities struct {
	// ListLag is the longest that List lags behind a launch; 0 for a cloud whose
	// list does not.
	ListLag time.Duration
	// Poll is the least time between two calls of List.
	Poll time.Duration
	// RefillDelay is how long a standby pool waits once one of its cells is taken:
	// where machines share processors, one that boots slows the start of that pod.
	RefillDelay time.Duration
	// Region is that of all zones; "" where a zone is all there is.
	Region string
	// IPv6 says that instances have addresses of both families.
	IPv6 bool
	// DialPublic says that Kip reaches instances at their public addresses, since it
	// runs outside of their network.
	DialPublic bool
	// SharedKernel says that instances share the kernel of a host: what one sets that is not
	// namespaced, all have.
	SharedKernel bool
	// SharedUserData says that the machines of one call must share their user data
	// and their tags, as on EC2. Kip then sends a LaunchRequest with UserData, and
	// tells machines apart by Instance.Place, which launches and lists then have, and
	// which each machine is told by its cloud: EC2's ami-launch-index; a cloud that
	// names machines has the launch index in the name. A request of one machine with
	// data of its own is launched all the same.
	//
	// Not for a cloud whose machines share a link that one can answer on for another:
	// who reads the user data knows the join tokens of the whole call.
	SharedUserData bool
	// CatalogueEvery is how often the catalogue is worth reading again; 0 for one
	// that does not change.
	CatalogueEvery time.Duration
	// DiskDriver is the cloud's own CSI driver of Kubernetes', whose disks AttachDisk takes,
	// too; its Name is "" where there is none. The cloud has Disks.
	DiskDriver DiskDriver
	// Budgets are what the cloud allows of each kind of call; none where there is
	// no entry.
	Budgets map[Call]Budget
}

// DiskDriver is a CSI driver for disks of a cloud. Its controller makes, expands and removes
// disks; on cells it has no node plugin.
type DiskDriver struct {
	// Name is that in PersistentVolumes, whose volume handle is the ID of the disk.
	Name string
	// ZoneKey is the label of nodes by which its controller and its volumes know their zone.
	ZoneKey string
}

// Call is a kind of call to a cloud.
type Call string

// Kinds of calls.
const (
	CallCatalogue   Call = "catalogue"
	CallLaunch      Call = "launch"
	CallList        Call = "list"
	CallDescribe    Call = "describe"
	CallTerminate   Call = "terminate"
	CallStop        Call = "stop"
	CallStart       Call = "start"
	CallCreateDisk  Call = "createDisk"
	CallDeleteDisk  Call = "deleteDisk"
	CallListDisks   Call = "listDisks"
	CallAttachDisk  Call = "attachDisk"
	CallDetachDisk  Call = "detachDisk"
	CallCheckDisk   Call = "checkDisk"
	CallRoute       Call = "route"
	CallUnroute     Call = "unroute"
	CallGrowDisk    Call = "growDisk"
	CallListOwned   Call = "listParts"
	CallDeleteOwned Call = "deleteParts"
	CallTag         Call = "tag"
	CallAdmit       Call = "admit"
	CallConsole     Call = "console"
	CallResolve     Call = "resolve"
	// CallPullCredentials asks for what pulls some images.
	CallPullCredentials Call = "pullCredentials"
	// CallInterruptions asks which instances are to be taken back; a cloud that says so by
	// itself has none.
	CallInterruptions Call = "interruptions"
	// CallEndBoost ends the credits by which burstable instances start.
	CallEndBoost Call = "endBoost"
	// CallEgress asks for the ways from subnets to the internet.
	CallEgress Call = "egress"
	// CallBounds asks how much the machines of an owner may be.
	CallBounds Call = "bounds"
)

// Budget bounds one kind of call, as EC2 does: each call takes a token of Requests
// and one of Resources for each instance.
type Budget struct {
	Requests  Bucket
	Resources Bucket
}

// Bucket is a token bucket. It is full at first. A zero Bucket is no bound.
type Bucket struct {
	Capacity float64
	// Refill is how many tokens are added each whole second.
	Refill float64
}

// Optional are the optional interfaces of a cloud: nil where it lacks one. They are a struct, since what a cloud can do may depend on
// its configuration, and since a decorator then has exactly what its cloud has. package pipe is the decorator.
type Optional struct {
	Stopper        Stopper
	Interrupter    Interrupter
	Disks          Disks
	DiskChecker    DiskChecker
	Router         Router
	DiskGrower     DiskGrower
	Console        Console
	OwnedResources OwnedResources
	Tagger         Tagger
	Admitter       Admitter
	Resolver       Resolver
	Registries     Registries
	Booster        Booster
	Egress         Egress
	Bounder        Bounder
	Owners         Owners
}

// Booster is a cloud whose machines may use more CPU while they start than they are to have later.
type Booster interface {
	// EndBoost has instances use no more CPU than their type sustains from now on. It is idempotent: one that never had
	// more is no error. There is a result for each ID, in their order.
	EndBoost(ctx context.Context, ids ...string) Results
}

// Stopper is a cloud that can stop an instance, which then costs only its disk,
// and start it again with the same disk. Addresses may change. There is a result
// for each ID, in their order.
type Stopper interface {
	// Stop is idempotent; the instances are Stopped when List says so.
	Stop(ctx context.Context, ids ...string) Results
	// Start is idempotent. ErrCapacity when there is none for it now.
	Start(ctx context.Context, ids ...string) Results
}

// Interrupter is a cloud that takes instances back after a notice, and says so.
type Interrupter interface {
	// Interruptions notifies l of each instance that the cloud is going to take
	// back, at least once, until ctx ends. It returns early with an error when it
	// can no longer tell. A cloud that has to ask again and again does so by l.Look.
	Interruptions(ctx context.Context, l Listener) error
}

// Listener is who hears of interruptions. It is told one thing at a time.
type Listener struct {
	Notify func(Interruption)
	// Mine says whether an instance is one of the listener's. Optional: without it each is.
	Mine func(instanceID string) bool
	// Planned are the instances that have been told to be Planned, also by another call or an earlier
	// process, which may be called off. Optional.
	Planned func() (instanceIDs []string)
	// Send makes one call of kind CallInterruptions, when it is its turn. Optional: without
	// it no call waits.
	Send func(ctx context.Context, call func(context.Context) error) error
}

// Look makes a call that asks what is taken back.
func (l Listener) Look(ctx context.Context, call func(context.Context) error) error {
	if l.Send == nil {
		return call(ctx)
	}
	return l.Send(ctx, call)
}

// Interruption announces that the cloud takes an instance back.
type Interruption struct {
	InstanceID string
	At         time.Time // when the instance ends, by the cloud's clock
	// Left is how long that is from now, where the cloud says what it takes for now: its
	// clock need not be Kip's. 0 where it does not, and At is all that is known.
	Left   time.Duration
	Reason string // the cloud's words
	// Planned says that it is scheduled maintenance: the cloud may set it for another time, and it
	// says nothing of what the instance was bought as.
	Planned bool
	// CalledOff says that what was planned of the instance is not soon to come any more.
	CalledOff bool
	// Certain says that the cloud takes the instance back at a time that was agreed on when it was
	// bought, and may take half an hour over it: no other instance is worth waiting for.
	Certain bool
}

// Console is a cloud that keeps what machines write to their consoles.
type Console interface {
	// Console returns the end of it, which may lag, and is empty where nothing has been
	// kept yet. ErrNotFound for an unknown instance.
	Console(ctx context.Context, id string) ([]byte, error)
}

// OwnedResources is a cloud that makes things beside an instance which can outlive it:
// addresses, network interfaces, routes, groups, parameters.
type OwnedResources interface {
	// ListOwned returns every part that carries the tags of this owner (see
	// TagOwner), those in use included.
	ListOwned(ctx context.Context, owner string) ([]OwnedResource, error)
	// DeleteOwned is idempotent: an unknown ID is no error. A part that is in use is
	// not deleted, and its result is an ErrRefused. There is a result for each ID, in
	// their order.
	DeleteOwned(ctx context.Context, ids ...string) Results
}

// OwnedResource is one thing beside an instance.
type OwnedResource struct {
	ID   string
	Kind string // for people: "network interface"
	Zone string
	// Instance is the one that has the part now; "" for none.
	Instance string
	// Tags have TagCell where the part was made for one cell. One without, and
	// without an instance, is the owner's own, and stays until nothing else is left.
	Tags map[string]string
}

// Tagger is a cloud that can tag instances after their launch. Such tags are for
// people. One thing depends on them: when Kip's store was lost, TagPodUID narrows
// what an instance may run.
type Tagger interface {
	// Tag adds to the tags of each instance, or changes them. It is idempotent. No two taggings are of the same
	// instance. There is a result for each tagging, in their order. It is ErrNotYet, and the instance has
	// none of the tags, where the cloud does not know one of what it owns.
	Tag(ctx context.Context, taggings ...Tagging) Results
}

// Admitter is a cloud in which a rule about where Kip is lets it reach the agents of its
// cells.
type Admitter interface {
	// Admit renews that rule for the cells of this owner (see TagOwner), if Kip is elsewhere
	// than it says, and takes the rule back that was only once the new one stands. It is
	// idempotent, cheap where nothing has changed, and makes nothing where no cell was
	// launched yet. Launches make the rule themselves.
	Admit(ctx context.Context, owner string) error
}

// Resolver is a cloud in which what a launch is of, and in, is looked up: images and groups by
// their names, what the subnet is like.
type Resolver interface {
	// Resolve looks up all that a launch of the spec leaves to the cloud to find, and makes
	// what launches of this owner (see TagOwner) have in common. It is idempotent and launches
	// nothing. What it returns is stored with the launch as LaunchSpec.Resolved: Launch then
	// looks up nothing, and sends exactly that. It may be remembered, but no longer than until
	// the next catalogue, or until a launch was refused with ErrStale.
	Resolve(ctx context.Context, s LaunchSpec) (Resolved, error)
}

// Tagging is what is written on one instance.
type Tagging struct {
	ID   string            `json:"id"`
	Tags map[string]string `json:"tags"`
	// Owned are the IDs of what the instance has (Instance.Owned), which get the tags as well, as far as the cloud
	// lets them.
	Owned []string `json:"owned,omitempty"`
	// Whole has nothing tagged if the cloud does not let Kip tag a part: it may only not know the part yet.
	Whole bool `json:"whole,omitempty"`
}

// Tags that Kip puts on everything it makes in a cloud, in the launching call; but
// where machines share their user data, those that differ by machine are written
// afterwards, by a Tagger.
const (
	// TagOwner holds the controller's identity, derived from the cluster and
	// the node name, so that a lost volume orphans nothing.
	TagOwner = "KipControllerID"
	// TagBatch holds the ID of a launch whose machines share their user data. With
	// Instance.Place it says which cell an instance is.
	TagBatch = "KipBatch"
	// TagGeneration says which store an instance was launched by, and how many launches
	// that had stored then: a store that knows less is empty, older or another.
	TagGeneration = "KipGeneration"
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

// IsOwnTag reports whether Kip writes the tag with this key itself, or one whose key differs from it by case alone: policies of AWS take
// one for the other (IAM User Guide, "AWS global condition context keys", aws:ResourceTag). No tag of a user's choice takes its place.
func IsOwnTag(key string) bool {
	key = strings.ToLower(key)
	return key == strings.ToLower(TagName) || strings.HasPrefix(key, "kip")
}

// DropConfigured removes from the tags of machines those with the keys of configured tags, in whatever case. Labels of pods are among
// them, and whoever makes pods chooses these; the operator chooses the configured ones, which policies may trust. Kip's own tags stay.
func DropConfigured(tags, configured map[string]string) {
	is := map[string]bool{}
	for key := range configured {
		is[strings.ToLower(key)] = true
	}
	maps.DeleteFunc(tags, func(key, _ string) bool { return is[strings.ToLower(key)] && !IsOwnTag(key) })
}
