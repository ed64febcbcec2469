package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"path"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// Config is what a simulated cloud is made from.
type Config struct {
	// Name is the cloud's key in provider.yaml; "sim" when empty.
	Name string
	// Clock is time itself when nil, which is virtual in a synctest bubble.
	Clock clock.WithDelayedExecution
	// Seed makes another history of the same knobs.
	Seed uint64
	// Catalogue is what is for sale; it must not be empty.
	Catalogue []catalog.InstanceType
	Log       *slog.Logger // discards when nil

	// Boot is what runs in a machine: it is called in a goroutine of its own
	// when the machine has booted, and again when it has booted after Start. ctx
	// ends when the machine is stopped, gone, or the cloud closed; Close waits
	// for Boot to return. userData must not be modified. Nothing runs when nil.
	Boot func(ctx context.Context, i cloud.Instance, userData []byte)

	// End is called, in a goroutine of its own, when a machine has ended that had
	// booted once; Close waits for it, too. Its ctx ends with the cloud. Optional.
	End func(ctx context.Context, i cloud.Instance)

	// Fault is asked about each call when it arrives, before FailNth and
	// Knobs.Faults are; a zero Fault leaves the call to those. It may block.
	Fault func(Call) Fault

	// Mounted says that an instance uses a disk: for TornDisks. Optional. It is
	// called with the cloud locked and must not call it.
	Mounted func(disk, instance string) bool

	// Traits are what the cloud says of itself; Kip's usual ones of a cloud whose
	// list lags when nil.
	Traits *cloud.Traits
	// SharedUserData makes that trait true: a launch of several machines that have
	// user data or tags of their own is refused.
	SharedUserData bool
	// Resolves makes the cloud a cloud.Resolver, of Knobs.Images.
	Resolves bool
	// LikeEC2 is for a model of EC2 that stands before the cloud: of a launch without
	// room for all, the first places have the instances, one without the owner's tag is
	// not refused, and the first four addresses of a network are nobody's (VPC User
	// Guide, "Subnet CIDR blocks").
	LikeEC2 bool

	// ManagementCIDR and PodCIDR are where addresses are taken from, the same
	// offset in both, unique among the machines that hold one. By default
	// 127.64.0.0/10, which can be listened on without further ado on Linux, and
	// 10.64.0.0/10.
	ManagementCIDR, PodCIDR netip.Prefix
	// ReuseAddresses gives the address that was freed last to the next machine.
	// Otherwise an address comes again only after all others.
	ReuseAddresses bool

	Knobs
}

// Knobs are what can be changed while the cloud runs, with Change. Zero values
// are the ideal cloud: it does everything at once, has no bounds and no faults.
// Shares are probabilities, from 0 to 1.
type Knobs struct {
	// Pending is how long a machine is Pending, BootTimes how long it then takes to
	// boot: the first entry that is for its type.
	Pending   Distribution
	BootTimes []BootTime
	// AddressDelay is how long after its launch a machine has addresses. It
	// does not boot before.
	AddressDelay Distribution

	// Termination is how long a machine runs on after Terminate.
	Termination Distribution
	// TerminationLost is the share of terminations that are accepted and come
	// to nothing: the machine runs on until it is terminated again.
	TerminationLost float64
	// Stopping is how long a machine runs on after Stop.
	Stopping Distribution
	// StoppedKeepsAddresses as EC2 does; otherwise Start gives new ones.
	StoppedKeepsAddresses bool

	// Latency is how long a call takes, half of it before its effect. The entry
	// AnyKind is for the kinds without one.
	Latency map[Kind]Distribution
	// ListLag is how late List shows a change: a launch, an address, a state,
	// an end. What it has shown of a machine it does not take back.
	ListLag Distribution
	// StaleLists is the share of answers to List that are StaleBy older, so
	// that a later answer may be older than an earlier one.
	StaleLists float64
	StaleBy    time.Duration
	// BlindZones are where List cannot look, and of which Describe knows nothing.
	BlindZones []string
	// HidesBlindParts says that parts in BlindZones are not shown either.
	HidesBlindParts bool
	// UnknownFor is how long after a launch Describe, Terminate, Stop and Start do
	// not know the machine yet; Terminate then does nothing.
	UnknownFor Distribution

	// PartsLeft is the share of machines whose network interface outlives them.
	PartsLeft float64

	// Images are what there is to boot, where the cloud resolves launches: to the last one. A
	// launch of one that is not among them any more starts nothing, unless it did before.
	Images []string

	// Capacity bounds the machines of each pool; a launch needs room in all
	// pools that it belongs to.
	Capacity []Capacity
	// SubnetAddresses bounds the addresses of a subnet.
	SubnetAddresses map[string]int
	Quotas          []Quota
	// RateLimits are none where there is no entry; see EC2RateLimits.
	RateLimits map[Kind]RateLimit
	// Unauthorised refuses every call, as when credentials are revoked, and
	// ends what Interruptions has under way.
	Unauthorised bool
	// Faults happen by chance. The entry AnyKind is for the kinds without one.
	Faults map[Kind]FaultRates
	// TokenLife is how long a token is known after the last of its machines has
	// ended. When 0, 24 hours: EC2 keeps one for at least that long (AWS, "Ensuring
	// idempotency", EC2 API reference of 2016-11-15).
	TokenLife time.Duration

	// MTBF is the mean time until a machine vanishes, none when 0; for
	// machines launched from now on.
	MTBF time.Duration
	// SpotMTBF is the mean time until a spot machine is interrupted, none when
	// 0; for machines launched from now on.
	SpotMTBF time.Duration
	// InterruptionNotice is how long before its end that is announced. When
	// 0, the two minutes of EC2 (AWS, "Spot Instance interruption notices").
	InterruptionNotice time.Duration
	// NoticesLost is the share of interruptions that are not announced.
	NoticesLost float64
}

// BootTime is how long types take to boot.
type BootTime struct {
	// Types is a path.Match pattern of names ("c5.*", "*.metal"); "" is all.
	Types string
	Distribution
	// Never is the share that is Running and never boots.
	Never float64
}

// Pool is a set of offerings. As in cloud.Scope, an empty field stands
// for all, and so does a nil Spot.
type Pool struct {
	InstanceType, Zone, Subnet string
	Spot                       *bool
	// Apart is the Pool of cloud.LaunchSpec whose machines are meant; "" for those that all accounts
	// share.
	Apart string
}

func (p Pool) equals(q Pool) bool {
	if (p.Spot == nil) != (q.Spot == nil) || p.Spot != nil && *p.Spot != *q.Spot {
		return false
	}
	return p.InstanceType == q.InstanceType && p.Zone == q.Zone && p.Subnet == q.Subnet && p.Apart == q.Apart
}

func (p Pool) has(o offering) bool {
	return (p.InstanceType == "" || p.InstanceType == o.instanceType) &&
		(p.Zone == "" || p.Zone == o.zone) &&
		(p.Subnet == "" || p.Subnet == o.subnet) &&
		(p.Spot == nil || *p.Spot == o.spot) && p.Apart == o.pool
}

// Capacity is how many machines a pool has room for. Those that run already are
// not taken away when it shrinks.
type Capacity struct {
	Pool
	Instances int
}

// Quota bounds what the account may run. A request that would exceed it is
// refused as a whole.
type Quota struct {
	Name  string // for the error
	Types string // as BootTime.Types
	// Family is that of catalog.InstanceType; "" is all.
	Family string
	Spot   *bool // both when nil
	// VCPUs and Instances are no bound when 0.
	VCPUs     int64
	Instances int
}

// Bucket is a token bucket.
type Bucket = cloud.Bucket

// RateLimit bounds the calls of a kind: each takes a token of Requests, and one
// of Resources for each machine that it names. A repeated launch takes none of
// those.
type RateLimit = cloud.Budget

// EC2RateLimits returns about what an AWS account has in a Region by default. Both
// buckets are refilled once a second, and a call that finds too few tokens is
// answered RequestLimitExceeded. Source: AWS, "Request throttling for the Amazon
// EC2 API" (EC2 developer guide), for the resource buckets of RunInstances (1000
// and 2 a second) and TerminateInstances (1000 and 20) and for Describe calls with
// a filter (100 and 20), CreateTags (100 and 10) and other calls that change something
// (50 and 5). The resource bucket of StopInstances is unconfirmed.
func EC2RateLimits() map[Kind]RateLimit {
	return map[Kind]RateLimit{
		KindLaunch:     {Requests: Bucket{Capacity: 5, Refill: 2}, Resources: Bucket{Capacity: 1000, Refill: 2}},
		KindStart:      {Requests: Bucket{Capacity: 5, Refill: 2}, Resources: Bucket{Capacity: 1000, Refill: 2}},
		KindTerminate:  {Requests: Bucket{Capacity: 100, Refill: 5}, Resources: Bucket{Capacity: 1000, Refill: 20}},
		KindStop:       {Requests: Bucket{Capacity: 50, Refill: 5}, Resources: Bucket{Capacity: 1000, Refill: 20}},
		KindTag:        {Requests: Bucket{Capacity: 100, Refill: 10}},
		KindCreateDisk: {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindDeleteDisk: {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindAttachDisk: {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindDetachDisk: {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindRoute:      {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindUnroute:    {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindGrowDisk:   {Requests: Bucket{Capacity: 50, Refill: 5}},
		KindListDisks:  {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindList:       {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindDescribe:   {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindCatalogue:  {Requests: Bucket{Capacity: 100, Refill: 20}},

		KindInterruptions: {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindListParts:     {Requests: Bucket{Capacity: 100, Refill: 20}},
		KindDeleteParts:   {Requests: Bucket{Capacity: 50, Refill: 5}},
	}
}

// EC2 returns knobs that are like EC2 on an ordinary day: its documented rate
// limits, and delays of the size that its users see. The delays are plausible,
// not measured: AWS promises none.
func EC2() Knobs {
	return Knobs{
		Pending: Distribution{
			Median:     6 * time.Second,
			Spread:     1.4,
			Tail:       0.01,
			TailFactor: 5,
		},
		Termination: Distribution{
			Median:     30 * time.Second,
			Spread:     1.5,
			Tail:       0.02,
			TailFactor: 10,
		},
		Stopping: Distribution{
			Median:     30 * time.Second,
			Spread:     1.5,
			Tail:       0.02,
			TailFactor: 10,
		},
		BootTimes: []BootTime{
			{Types: "mac*", Distribution: Distribution{Median: 10 * time.Minute, Spread: 1.3}},
			{Types: "*.metal*", Distribution: Distribution{Median: 8 * time.Minute, Spread: 1.3}},
			{Distribution: Distribution{
				Median:     14 * time.Second,
				Spread:     1.3,
				Tail:       0.01,
				TailFactor: 6,
			}, Never: 0.0005},
		},
		Latency: map[Kind]Distribution{
			KindLaunch: {Median: 1500 * time.Millisecond, Spread: 1.5, Tail: 0.01, TailFactor: 5},
			AnyKind:    {Median: 300 * time.Millisecond, Spread: 1.5, Tail: 0.01, TailFactor: 5},
		},
		ListLag: Distribution{
			Median:     500 * time.Millisecond,
			Spread:     2,
			Tail:       0.01,
			TailFactor: 10,
		},
		UnknownFor: Distribution{
			Median:     200 * time.Millisecond,
			Spread:     2,
			Tail:       0.01,
			TailFactor: 10,
		},
		RateLimits:            EC2RateLimits(),
		StoppedKeepsAddresses: true,
	}
}

const (
	defaultTokenLife          = 24 * time.Hour
	defaultInterruptionNotice = 2 * time.Minute
)

// clone makes k safe from what the caller does with its own.
func (k Knobs) clone() Knobs {
	k.BootTimes, k.Capacity, k.Quotas = slices.Clone(k.BootTimes), slices.Clone(k.Capacity), slices.Clone(k.Quotas)
	k.Latency, k.SubnetAddresses = maps.Clone(k.Latency), maps.Clone(k.SubnetAddresses)
	k.RateLimits, k.Faults = maps.Clone(k.RateLimits), maps.Clone(k.Faults)
	k.BlindZones, k.Images = slices.Clone(k.BlindZones), slices.Clone(k.Images)
	return k
}

func (k Knobs) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	check := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	pattern := func(field, p string) {
		if _, err := path.Match(p, ""); err != nil {
			bad("%s is %q: want a pattern as of path.Match: %w", field, p, err)
		}
	}
	for _, d := range []struct {
		field string
		Distribution
	}{
		{"Pending", k.Pending}, {"AddressDelay", k.AddressDelay}, {"Termination", k.Termination},
		{"Stopping", k.Stopping}, {"ListLag", k.ListLag}, {"UnknownFor", k.UnknownFor},
	} {
		check(d.validate(d.field))
	}
	for i, b := range k.BootTimes {
		field := fmt.Sprintf("BootTimes[%d]", i)
		pattern(field+".Types", b.Types)
		check(b.Distribution.validate(field))
		check(share(field+".Never", b.Never))
	}
	for kind, d := range k.Latency {
		check(checkKind("Latency", kind))
		check(d.validate(fmt.Sprintf("Latency[%s]", kind)))
	}
	for kind, f := range k.Faults {
		check(checkKind("Faults", kind))
		check(f.validate(fmt.Sprintf("Faults[%s]", kind)))
	}
	for kind, l := range k.RateLimits {
		check(checkKind("RateLimits", kind))
		for name, b := range map[string]Bucket{"Requests": l.Requests, "Resources": l.Resources} {
			if !(b.Capacity >= 0) || !(b.Refill >= 0) || math.IsInf(b.Capacity+b.Refill, 0) || b.Capacity == 0 && b.Refill > 0 {
				bad("RateLimits[%s].%s is %+v: want a capacity above 0 and a refill of 0 or more, or neither", kind, name, b)
			}
		}
	}
	for i, p := range k.Capacity {
		if p.Instances < 0 {
			bad("Capacity[%d].Instances is %d: want 0 or more", i, p.Instances)
		}
	}
	for subnet, n := range k.SubnetAddresses {
		if n < 0 {
			bad("SubnetAddresses[%q] is %d: want 0 or more", subnet, n)
		}
	}
	for i, q := range k.Quotas {
		pattern(fmt.Sprintf("Quotas[%d].Types", i), q.Types)
		if q.VCPUs < 0 || q.Instances < 0 {
			bad("Quotas[%d] bounds %d vCPUs and %d instances: want 0 or more", i, q.VCPUs, q.Instances)
		}
	}
	for _, s := range []struct {
		field string
		p     float64
	}{{"TerminationLost", k.TerminationLost}, {"StaleLists", k.StaleLists}, {"NoticesLost", k.NoticesLost}, {"PartsLeft", k.PartsLeft}} {
		check(share(s.field, s.p))
	}
	for _, d := range []struct {
		field string
		d     time.Duration
	}{
		{"StaleBy", k.StaleBy}, {"TokenLife", k.TokenLife}, {"MTBF", k.MTBF},
		{"SpotMTBF", k.SpotMTBF}, {"InterruptionNotice", k.InterruptionNotice},
	} {
		if d.d < 0 {
			bad("%s is %v: want 0 or more", d.field, d.d)
		}
	}
	return errors.Join(errs...)
}

// matches says whether a pattern that was validated is for a type.
func matches(pattern, instanceType string) bool {
	ok, _ := path.Match(pattern, instanceType)
	return pattern == "" || ok
}

func (k Knobs) bootTime(instanceType string) BootTime {
	for _, b := range k.BootTimes {
		if matches(b.Types, instanceType) {
			return b
		}
	}
	return BootTime{}
}

func (k Knobs) tokenLife() time.Duration {
	if k.TokenLife == 0 {
		return defaultTokenLife
	}
	return k.TokenLife
}

func (k Knobs) interruptionNotice() time.Duration {
	if k.InterruptionNotice == 0 {
		return defaultInterruptionNotice
	}
	return k.InterruptionNotice
}

// offer is what a machine counts against.
type offering struct {
	instanceType, zone, subnet string
	spot                       bool
	pool                       string
}

func (o offering) String() string {
	s := o.instanceType + " in " + o.zone
	if o.subnet != "" {
		s += " " + o.subnet
	}
	if o.spot {
		s = "spot " + s
	}
	return s
}

// shop is the catalogue, made ready for look-ups.
type shop struct {
	types  []catalog.InstanceType
	vcpus  map[string]int64
	family map[string]string
	prices map[offering]float64 // dollars an hour
}

func newShop(types []catalog.InstanceType) (*shop, error) {
	if len(types) == 0 {
		return nil, errors.New("Catalogue is empty: want at least one instance type")
	}
	s := &shop{
		types:  slices.Clone(types),
		vcpus:  map[string]int64{},
		family: map[string]string{},
		prices: map[offering]float64{},
	}
	for i, t := range types {
		if _, twice := s.vcpus[t.Name]; twice || t.Name == "" {
			return nil, fmt.Errorf("Catalogue[%d].Name is %q: want a name that no other type has", i, t.Name)
		}
		s.vcpus[t.Name] = (t.MilliCPU + 999) / 1000
		s.family[t.Name] = t.Family
		for n, o := range t.Offerings {
			if !(o.PricePerHour >= 0) {
				return nil, fmt.Errorf("Catalogue[%d].Offerings[%d].PricePerHour of %s is %v: want 0 or more", i, n, t.Name, o.PricePerHour)
			}
			of := offering{
				instanceType: t.Name,
				zone:         o.Zone,
				subnet:       o.Subnet,
				spot:         o.Spot,
			}
			s.prices[of] = o.PricePerHour
		}
	}
	return s, nil
}
