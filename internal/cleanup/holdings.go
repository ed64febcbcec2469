package cleanup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cloud"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
)

const (
	// lookEvery is how often a cleanup looks at what it waits for, and
	// sayEvery how often it says so.
	lookEvery, sayEvery = time.Second, 5 * time.Second
	// betweenLooks is the least time between the two looks at the cloud that
	// prove that nothing is left; a list that lags asks for more.
	betweenLooks = 2 * time.Second
)

// holdings are what one Kip has in its cloud.
type holdings struct {
	cloud   cloud.Cloud
	disks   cloud.Disks // nil if the cloud has none
	owner   string
	ours    func(cloud.Instance) bool
	listLag time.Duration
	clock   clock.Clock
	// mayEnd returns an error if nothing may end now. Optional.
	mayEnd func(context.Context) error
	// shown becomes true once a list shows anything. Optional.
	shown *bool
}

// note records whether a list has shown anything.
func (h holdings) note(count int) {
	if h.shown != nil && count > 0 {
		*h.shown = true
	}
}

// Names are what there is of a Kip in its cloud, for people.
type Names struct {
	// Instances: the ID, and the cell.
	Instances []string `json:"instances"`
	// Parts are what the cloud has beside the instances: the kind and the ID.
	Parts []string `json:"parts"`
	// Disks of PersistentVolumes: the ID, its size, its volume and claim. No cleanup ends them.
	Disks []string `json:"disks"`
}

// Left names what there is of all that a cleanup ends.
func (n Names) Left() []string {
	return adminapi.Holdings{Instances: n.Instances, Parts: n.Parts}.Left()
}

// names lists what there is, in order. It adds to errs what could not be listed.
func (h holdings) names(ctx context.Context, errs *[]error) Names {
	n := Names{Instances: []string{}, Parts: []string{}, Disks: []string{}}
	instances, err := h.listed(ctx)
	if err != nil {
		*errs = append(*errs, err)
	}
	for _, i := range instances {
		n.Instances = append(n.Instances, fmt.Sprintf("%s of %s", i.ID, cmp.Or(i.Tags[cloud.TagCell], i.Tags[cloud.TagBatch])))
	}
	parts, err := h.parts(ctx)
	if err != nil {
		*errs = append(*errs, err)
	}
	for _, p := range parts {
		n.Parts = append(n.Parts, p.Kind+" "+p.ID)
	}
	if h.disks != nil {
		disks, err := h.disks.ListDisks(ctx, h.owner)
		if err != nil {
			*errs = append(*errs, fmt.Errorf("list the disks of cloud %s: %w", h.cloud.Name(), err))
		}
		h.note(len(disks))
		for _, d := range disks {
			n.Disks = append(n.Disks, fmt.Sprintf("%s of %s: %s", d.ID, resource.NewQuantity(d.SizeBytes, resource.BinarySI), d.Tags[cloud.TagName]))
		}
	}
	for _, names := range [][]string{n.Instances, n.Parts, n.Disks} {
		slices.Sort(names)
	}
	return n
}

// listed returns our instances. A list that lacks a zone is an error: nothing can be
// said to be gone by it.
func (h holdings) listed(ctx context.Context) ([]cloud.Instance, error) {
	listing, err := h.cloud.List(ctx, h.owner)
	if err != nil {
		return nil, fmt.Errorf("list the instances of cloud %s: %w", h.cloud.Name(), err)
	}
	listing.Instances = slices.DeleteFunc(listing.Instances, func(i cloud.Instance) bool { return !h.ours(i) })
	h.note(len(listing.Instances))
	if !listing.Complete() {
		return listing.Instances, fmt.Errorf("list the instances of cloud %s: it does not answer for %s", h.cloud.Name(),
			strings.Join(listing.Missing, ", "))
	}
	return listing.Instances, nil
}

// parts returns what our instances have, or have left, in the cloud beside themselves.
func (h holdings) parts(ctx context.Context) ([]cloud.OwnedResource, error) {
	source := h.cloud.Optional().OwnedResources
	if source == nil {
		return nil, nil
	}
	parts, err := source.ListOwned(ctx, h.owner)
	if err != nil {
		return nil, fmt.Errorf("list the parts of instances of cloud %s: %w", h.cloud.Name(), err)
	}
	parts = slices.DeleteFunc(parts, func(p cloud.OwnedResource) bool {
		of, tagged := p.Tags[cloud.TagOwner]
		return tagged && of != h.owner
	})
	h.note(len(parts))
	return parts, nil
}

// removeParts deletes what is left of instances that are gone, and what they all
// shared.
func (h holdings) removeParts(ctx context.Context) (string, error) {
	parts, err := h.parts(ctx)
	if err != nil || len(parts) == 0 {
		return "", err
	}
	ids, names := make([]string, len(parts)), make([]string, len(parts))
	for n, p := range parts {
		ids[n], names[n] = p.ID, p.Kind+" "+p.ID
	}
	if h.mayEnd != nil {
		if err := h.mayEnd(ctx); err != nil {
			return "", err
		}
	}
	if err := h.cloud.Optional().OwnedResources.DeleteOwned(ctx, ids...).Err(); err != nil {
		return "", fmt.Errorf("delete %s: %w", adminapi.Some(names), err)
	}
	return fmt.Sprintf("waiting for %s of instances to go: %s", adminapi.Count(len(parts), "part"), adminapi.Some(names)), nil
}

// clearing removes the parts until the cloud has shown none twice.
type clearing struct {
	holdings
	empty  bool // the last look showed none
	looked time.Time
}

func (c *clearing) step(ctx context.Context) (string, error) {
	wait := max(betweenLooks, c.listLag)
	again := fmt.Sprintf("the cloud shows no part of instances; looking once more, %s later", wait)
	if c.empty && c.clock.Since(c.looked) < wait {
		return again, nil
	}
	waits, err := c.removeParts(ctx)
	if err != nil || waits != "" {
		c.empty = false
		return waits, err
	}
	if c.empty || c.cloud.Optional().OwnedResources == nil {
		return "", nil
	}
	c.empty, c.looked = true, c.clock.Now()
	return again, nil
}

// terminate ends instances, and takes all routes back that lead to them: a cloud need not say what led to them once they have ended.
func (h holdings) terminate(ctx context.Context, instances []string) error {
	if h.mayEnd != nil {
		if err := h.mayEnd(ctx); err != nil {
			return err
		}
	}
	if err := h.cloud.Terminate(ctx, instances...).Err(); err != nil {
		return fmt.Errorf("terminate %s: %w", adminapi.Some(instances), err)
	}
	router := h.cloud.Optional().Router
	if router == nil {
		return nil
	}
	for _, id := range instances {
		if err := router.Unroute(ctx, id, nil); err != nil {
			return fmt.Errorf("take the routes to instance %s back: %w", id, err)
		}
	}
	return nil
}

// emptying waits until the cloud has shown no instance twice. It terminates an instance that it has seen twice.
type emptying struct {
	holdings
	say        func(string)
	before, of string // words of its messages

	empty  int // looks in a row that showed nothing
	looked time.Time
	seen   map[string]bool
}

// restart says that what was seen to be empty may not be so any more.
func (e *emptying) restart() { e.empty, e.looked = 0, e.clock.Now() }

func (e *emptying) step(ctx context.Context) (string, error) {
	if wait := max(betweenLooks, e.listLag); e.clock.Since(e.looked) < wait {
		return fmt.Sprintf("%slooking at the cloud twice, %s apart", e.before, wait), nil
	}
	instances, err := e.listed(ctx)
	e.looked = e.clock.Now()
	if err != nil {
		e.empty = 0
		return "", err
	}
	if len(instances) == 0 {
		if e.empty++; e.empty < 2 {
			return "the cloud shows no instance; looking once more", nil
		}
		e.say("the cloud has shown no instance twice")
		return "", nil
	}
	e.empty = 0
	if e.seen == nil {
		e.seen = map[string]bool{}
	}
	var names, orphans []string
	for _, i := range instances {
		names = append(names, fmt.Sprintf("%s (%s)", i.ID, i.State))
		if e.seen[i.ID] && i.State != cloud.Terminating {
			orphans = append(orphans, i.ID)
		}
		e.seen[i.ID] = true
	}
	if len(orphans) > 0 {
		e.say(fmt.Sprintf("terminating %s%s: %s", adminapi.Count(len(orphans), "instance"), e.of, adminapi.Some(orphans)))
		if err := e.terminate(ctx, orphans); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("waiting for %s of the cloud: %s", adminapi.Count(len(instances), "instance"), adminapi.Some(names)), nil
}

// finalError ends a cleanup: trying again would not help.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// until takes a step each second until it waits for nothing. It says what it
// waits for when that begins, and every few seconds, and of what fails the first
// time at once.
func until(ctx context.Context, c clock.Clock, say func(string), step func(context.Context) (waits string, err error)) error {
	var said time.Time
	failed := ""
	for {
		waits, err := step(ctx)
		if final, is := errors.AsType[finalError](err); is {
			return final.error
		}
		news := false
		if err != nil {
			waits = err.Error() + "; retrying"
			news, failed = waits != failed, waits
		}
		if waits == "" {
			return nil
		}
		if now := c.Now(); ctx.Err() == nil && (news || now.Sub(said) >= sayEvery) {
			say(waits)
			said = now
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.After(lookEvery):
		}
	}
}
