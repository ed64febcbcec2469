package cloudtest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/elotl/kip/internal/cloud"
)

// parts are those of an owner that match, by their IDs, in order.
func (t *trial) parts(p cloud.OwnedResources, owner string, match func(cloud.OwnedResource) bool) (all []string) {
	t.Helper()
	list, err := p.ListOwned(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range list {
		if part.ID == "" || part.Kind == "" || part.Tags[cloud.TagOwner] != owner {
			t.Errorf("a part of %s has no ID, no kind, or not the tag of its owner: %+v", owner, part)
		}
		if match(part) {
			all = append(all, part.ID)
		}
	}
	slices.Sort(all)
	return all
}

func anyPart(cloud.OwnedResource) bool { return true }

// shared says of a part that it is for all cells of its owner.
func shared(p cloud.OwnedResource) bool { return p.Instance == "" && p.Tags[cloud.TagCell] == "" }

// keepsParts looks that what is in use is not deleted.
func (t *trial) keepsParts(p cloud.OwnedResources, owner string, used []string) {
	t.Helper()
	for n, r := range p.DeleteOwned(t.Context(), used...) {
		if r.ID != used[n] || !errors.Is(r.Err, cloud.ErrRefused) {
			t.Errorf("the deletion of %s, which is in use, answered of %q: %v: want ErrRefused", used[n], r.ID, r.Err)
		}
	}
	for _, id := range used {
		if !slices.Contains(t.parts(p, owner, anyPart), id) {
			t.Errorf("%s is gone, though it is in use", id)
		}
	}
}

// deleteParts deletes all that an owner without instances has.
func (t *trial) deleteParts(p cloud.OwnedResources, owner string) {
	t.Helper()
	var all []string
	t.until(func() string { // what belonged to an instance may be freed after it is gone
		left := t.parts(p, owner, anyPart)
		all = append(all, left...)
		if err := p.DeleteOwned(t.Context(), left...).Err(); err != nil {
			return fmt.Sprintf("there is a part that nothing uses, and that is not deleted: %v", err)
		}
		if left = t.parts(p, owner, anyPart); len(left) > 0 {
			return fmt.Sprintf("%v are listed, though they were deleted", left)
		}
		return ""
	})
	for n, r := range p.DeleteOwned(t.Context(), all...) {
		if r.ID != all[n] || r.Err != nil {
			t.Errorf("the deletion of %s, which is gone, answered of %q: %v", all[n], r.ID, r.Err)
		}
	}
}

func listsParts(t *trial) {
	p := t.cloud.Optional().OwnedResources
	if p == nil {
		t.Skip("this cloud makes nothing beside instances")
	}
	got, others := t.some(Owners[0], 2), t.some(Owners[1], 1)
	t.eventuallyRunning(Owners[0], ids(got))
	t.eventuallyRunning(Owners[1], ids(others))
	var used []string
	for _, i := range got {
		its := t.parts(p, Owners[0], func(part cloud.OwnedResource) bool { return part.Instance == i.ID })
		if len(its) == 0 {
			t.Errorf("no part is that of instance %s, which runs", i.ID)
		}
		used = append(used, its...)
	}
	t.keepsParts(p, Owners[0], used)
	if other := t.parts(p, Owners[1], func(part cloud.OwnedResource) bool { return slices.Contains(used, part.ID) }); len(other) > 0 {
		t.Errorf("another owner is shown %v", other)
	}
	t.terminate(ids(got)...)
	t.eventuallyEmpty(Owners[0])
	t.deleteParts(p, Owners[0])
	if len(t.parts(p, Owners[1], func(part cloud.OwnedResource) bool { return part.Instance == others[0].ID })) == 0 {
		t.Errorf("the parts of instance %s, which is another owner's, are gone", others[0].ID)
	}
	t.terminate(ids(others)...)
	t.eventuallyEmpty(Owners[1])
	t.deleteParts(p, Owners[1])
}

func admits(t *trial) {
	a, p := t.cloud.Optional().Admitter, t.cloud.Optional().OwnedResources
	if a == nil || p == nil {
		t.Skip("no rule of this cloud lets Kip in")
	}
	admit := func(want []string) {
		t.Helper()
		for range 2 {
			if err := a.Admit(t.Context(), Owners[0]); err != nil {
				t.Fatal(err)
			}
		}
		if has := t.parts(p, Owners[0], shared); !slices.Equal(has, want) {
			t.Errorf("Kip was let in, and the cells share %v: want %v", has, want)
		}
	}
	admit(nil)
	for range 2 { // what was deleted is made again
		got := t.launch(t.request(Owners[0], 1))
		t.eventuallyRunning(Owners[0], ids(got))
		rule := t.parts(p, Owners[0], shared)
		if len(rule) == 0 {
			t.Fatal("nothing that the cells share lets Kip in")
		}
		admit(rule)
		t.keepsParts(p, Owners[0], rule)
		admit(rule)
		t.terminate(ids(got)...)
		t.eventuallyEmpty(Owners[0])
		t.deleteParts(p, Owners[0])
		admit(nil)
	}
}
