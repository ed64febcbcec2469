package aws

import (
	"slices"
	"sync"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// soldTypes is what EC2 sells in the cells' subnets, without the offerings of reservations.
type soldTypes struct {
	mu    sync.Mutex
	sold  []catalog.InstanceType // nil before it was read
	at    time.Time              // when it was read
	stale bool                   // it is to be read again
}

// read returns what EC2 sells, and when that was read; nil if it is to be read.
func (e *soldTypes) read() (all []catalog.InstanceType, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stale {
		return nil, time.Time{}
	}
	return e.sold, e.at
}

// forget has it read again. Until then types are what they were.
func (e *soldTypes) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stale = true
}

// set notes what EC2 sells.
func (e *soldTypes) set(all []catalog.InstanceType, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sold, e.at, e.stale = all, at, false
}

// typeNamed returns the catalogue's type of a name. It returns false if the catalogue was not read yet, or has none.
func (e *soldTypes) typeNamed(name string) (catalog.InstanceType, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := slices.IndexFunc(e.sold, func(t catalog.InstanceType) bool { return t.Name == name })
	if n < 0 {
		return catalog.InstanceType{}, false
	}
	return e.sold[n], true
}

// wantsDriver reports whether a launch is to boot an image with a driver: its pod asks for devices, or its machine has
// GPUs, since a standby cell has no pod yet.
func (e *soldTypes) wantsDriver(s cloud.LaunchSpec) bool {
	t, _ := e.typeNamed(s.InstanceType)
	return s.Devices || len(t.GPUs) > 0
}

// hasBIOS says that a type boots by a BIOS, too, or that this is not known of it.
func (e *soldTypes) hasBIOS(instanceType string) bool {
	t, _ := e.typeNamed(instanceType)
	return len(t.BootModes) == 0 || slices.Contains(t.BootModes, bios)
}
