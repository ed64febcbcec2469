package sim

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

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
	// HidesBlindOwned says that parts in BlindZones are not shown either.
	HidesBlindOwned bool
	// UnknownFor is how long after a launch Describe, Terminate, Stop and Start do
	// not know the machine yet; Terminate then does nothing.
	UnknownFor Distribution

	// OwnedLeft is the share of machines whose network interface outlives them.
	OwnedLeft float64

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
	}{{"TerminationLost", k.TerminationLost}, {"StaleLists", k.StaleLists}, {"NoticesLost", k.NoticesLost}, {"OwnedLeft", k.OwnedLeft}} {
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
