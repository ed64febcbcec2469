package sim

import (
	"context"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

// This is what a model of a cloud's own API asks besides: it answers in that cloud's
// words, from these machines.

// Code is what EC2 calls an error, for a model that answers in EC2's words.
type Code string

// Codes.
const (
	CodeInsufficientCapacity Code = "InsufficientInstanceCapacity"
	CodeNoAddress            Code = "InsufficientFreeAddressesInSubnet"
	CodeVCPULimit            Code = "VcpuLimitExceeded"
	CodeInstanceLimit        Code = "InstanceLimitExceeded"
	CodeNotFound             Code = "InvalidInstanceID.NotFound"
	CodeState                Code = "IncorrectInstanceState"
	CodeUnsupported          Code = "UnsupportedOperation"
)

func (c Code) Error() string { return string(c) }

// Take lets a call arrive that does what no method does: it is counted and bounded, and
// meets its faults like any other. effect runs at most once, and must not call the cloud.
func (c *Cloud) Take(ctx context.Context, call Call, effect func() error) error {
	return c.do(ctx, call, func(time.Time) error { return effect() })
}

// Shown takes a call, and returns all machines as lists show them at that time, those
// included that have ended: they are Gone.
func (c *Cloud) Shown(ctx context.Context, call Call) ([]Instance, error) {
	var all []Instance
	err := c.do(ctx, call, func(now time.Time) error {
		c.forget(now)
		all = nil
		for _, i := range c.history {
			if c.byID[i.ID] == nil {
				all = append(all, gone(i))
			}
		}
		for _, m := range c.machines {
			v := m.seen(now)
			if v == nil {
				continue
			}
			i := m.Instance
			i.Instance = v.instance
			if v.gone {
				i = gone(i)
			}
			all = append(all, i.clone())
		}
		return nil
	})
	return all, err
}

func gone(i Instance) Instance {
	i = i.clone()
	i.State = cloud.Gone
	return i
}

// Unknown returns those IDs that calls do not know: of no machine, or not yet.
func (c *Cloud) Unknown(ids ...string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		m := c.byID[id]
		return c.ended[id] || m != nil && !now.Before(m.known)
	})
}
