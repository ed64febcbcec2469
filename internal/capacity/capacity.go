package capacity

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elotl/kip/internal/offering"
	"k8s.io/utils/clock"
)

// Cooldown is how long an offering counts as unavailable after a launch of it
// failed: the time that the original and karpenter use. Shorter wastes launches,
// longer wastes money on the next dearer type.
const Cooldown = 3 * time.Minute

// Shortage says of what, and where, there is no capacity. An empty field stands for
// all: a subnet without free addresses can take no type, and an exhausted quota of
// spot instances counts everywhere. A Shortage with all fields empty is one of
// everything.
type Shortage struct {
	InstanceType string `json:"instanceType,omitempty"`
	// Family is that of types whose quota is used up.
	Family string `json:"family,omitempty"`
	// LeastMilliCPU is of how much CPU types are short: those with less may fit yet. 0 for all.
	LeastMilliCPU int64  `json:"leastMilliCPU,omitempty"`
	Zone          string `json:"zone,omitempty"`
	Subnet        string `json:"subnet,omitempty"`
	// Spot is nil where it does not matter.
	Spot *bool `json:"spot,omitempty"`
	// Pool is the one in which InstanceType is missing, "" for that which all accounts share.
	// It says nothing without InstanceType.
	Pool string `json:"pool,omitempty"`
	// For is how long it lasts from when it was marked; 0 for Cooldown.
	For time.Duration `json:"for,omitempty"`
	// Until is when the shortage is over.
	Until time.Time `json:"until"`
	// Why is the cloud's reason, for people.
	Why string `json:"why,omitempty"`
}

// Shortages are what is unavailable now. It is safe for concurrent use.
type Shortages struct {
	clock clock.PassiveClock

	// shapes are those of the keys in marked, a bit each. It is read without the
	// lock: when nothing is marked, as nearly always, a question costs one load.
	shapes atomic.Uint32

	mu     sync.RWMutex
	marked map[key]mark
}

// key is what a Shortage says of where it holds. Its empty fields stand for all.
type key struct {
	instanceType, family, zone, subnet string
	pool                               string // "" where instanceType is

	capacityType capacityType
}

type capacityType uint8

const (
	anyCapacityType capacityType = iota
	onDemand
	spot
)

func capacityTypeOf(isSpot *bool) capacityType {
	switch {
	case isSpot == nil:
		return anyCapacityType
	case *isSpot:
		return spot
	}
	return onDemand
}

// shape is which fields of a key are not empty, a bit each. Offerings are looked up
// once for each shape in use, of which there are at most 32 and mostly one or two.
type shape uint8

const (
	hasType shape = 1 << iota
	hasZone
	hasSubnet
	hasCapacityType
	hasFamily
)

func (k key) shape() (s shape) {
	if k.instanceType != "" {
		s |= hasType
	}
	if k.zone != "" {
		s |= hasZone
	}
	if k.subnet != "" {
		s |= hasSubnet
	}
	if k.capacityType != anyCapacityType {
		s |= hasCapacityType
	}
	if k.family != "" {
		s |= hasFamily
	}
	return s
}

// key is the only one of that shape which an offering can match.
func (s shape) key(o *offering.Key) (k key) {
	if s&hasType != 0 {
		k.instanceType, k.pool = o.InstanceType, o.Pool
	}
	if s&hasZone != 0 {
		k.zone = o.Zone
	}
	if s&hasSubnet != 0 {
		k.subnet = o.Subnet
	}
	if s&hasCapacityType != 0 {
		k.capacityType = capacityTypeOf(&o.Spot)
	}
	if s&hasFamily != 0 {
		k.family = o.Family
	}
	return k
}

type mark struct {
	until  time.Time
	lasted time.Duration
	least  int64 // Shortage.LeastMilliCPU
	why    string
}

// New returns an empty record.
func New(c clock.PassiveClock) *Shortages {
	return &Shortages{clock: c, marked: map[key]mark{}}
}

// Longest bounds how long a shortage counts, whatever the cloud says: Azure's
// longest was seen to be 23 hours.
const Longest = 24 * time.Hour

// lasts is how long a shortage counts.
func (s Shortage) lasts() time.Duration {
	if s.For <= 0 {
		return Cooldown
	}
	return min(s.For, Longest)
}

// Mark notes a shortage and returns the time until which it counts: For from now,
// or Cooldown. The Until of what it is given is not read.
func (s *Shortages) Mark(shortage Shortage) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	shortage.Until = now.Add(shortage.lasts())
	s.put(shortage)
	s.sweep(now)
	return shortage.Until
}

// Load adds shortages that List returned earlier, before a restart perhaps. Those
// that are over are left out, and none counts from now for longer than it did at first: a
// clock that was wrong when they were marked must not keep capacity away.
func (s *Shortages) Load(shortages []Shortage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	for _, shortage := range shortages {
		if latest := now.Add(shortage.lasts()); shortage.Until.After(latest) {
			shortage.Until = latest
		}
		s.put(shortage)
	}
	s.sweep(now)
}

// put adds a shortage, unless the same is known to last longer.
func (s *Shortages) put(shortage Shortage) {
	k := key{
		instanceType: shortage.InstanceType,
		family:       shortage.Family,
		zone:         shortage.Zone,
		subnet:       shortage.Subnet,
		capacityType: capacityTypeOf(shortage.Spot),
	}
	if k.instanceType != "" {
		k.pool = shortage.Pool
	}
	known, marked := s.marked[k]
	if marked && s.clock.Now().Before(known.until) {
		// What is short of a small type is so of a large one, until either is over.
		shortage.LeastMilliCPU = min(shortage.LeastMilliCPU, known.least)
	}
	if !shortage.Until.Before(known.until) {
		s.marked[k] = mark{
			until:  shortage.Until,
			lasted: shortage.For,
			least:  shortage.LeastMilliCPU,
			why:    shortage.Why,
		}
		return
	}
	known.least = shortage.LeastMilliCPU
	s.marked[k] = known
}

// sweep forgets what is over, which would be kept for ever otherwise, and notes the
// shapes of what is left.
func (s *Shortages) sweep(now time.Time) {
	var shapes uint32
	for k, m := range s.marked {
		if !now.Before(m.until) {
			delete(s.marked, k)
			continue
		}
		shapes |= 1 << k.shape()
	}
	s.shapes.Store(shapes)
}

// Unavailable reports whether an offering falls under a shortage that is not over.
func (s *Shortages) Unavailable(o offering.Key) bool {
	if s.shapes.Load() == 0 {
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for left := s.shapes.Load(); left != 0; left &= left - 1 {
		shape := shape(bits.TrailingZeros32(left))
		if shape&hasFamily != 0 && o.Reserved() { // quotas count a reservation as a whole, used or not, and a launch into it no more
			continue
		}
		// The clock is read for what is marked only.
		if m, marked := s.marked[shape.key(&o)]; marked && o.MilliCPU >= m.least && s.clock.Now().Before(m.until) {
			return true
		}
	}
	return false
}

// List returns the shortages that are not over, in order of type, zone, subnet, capacity type
// and pool; wider ones come first.
func (s *Shortages) List() []Shortage {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.clock.Now()
	var list []Shortage
	for k, m := range s.marked {
		if !now.Before(m.until) {
			continue
		}
		shortage := Shortage{
			InstanceType:  k.instanceType,
			Family:        k.family,
			LeastMilliCPU: m.least,
			Zone:          k.zone,
			Subnet:        k.subnet,
			Pool:          k.pool,
			For:           m.lasted,
			Until:         m.until,
			Why:           m.why,
		}
		if k.capacityType != anyCapacityType {
			shortage.Spot = new(k.capacityType == spot)
		}
		list = append(list, shortage)
	}
	slices.SortFunc(list, func(a, b Shortage) int {
		return cmp.Or(cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Zone, b.Zone),
			cmp.Compare(a.Subnet, b.Subnet), cmp.Compare(capacityTypeOf(a.Spot), capacityTypeOf(b.Spot)), cmp.Compare(a.Pool, b.Pool))
	})
	return list
}
