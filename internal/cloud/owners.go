package cloud

import (
	"cmp"
	"context"
	"slices"
)

// Owners is a cloud that tells of which Kips it has something: for a person who does not know whose an instance is.
type Owners interface {
	// ListOwners returns each value of TagOwner that something carries, in their order. It may lag as List does, and looks in every zone
	// or fails.
	ListOwners(ctx context.Context) ([]Owner, error)
}

// Owner is all that carries one value of TagOwner.
type Owner struct {
	ID        string
	Instances []Instance
	Owned     []OwnedResource
	Disks     []Disk
}

// ByOwner returns the owners of things by their tags.
func ByOwner(instances []Instance, owned []OwnedResource, disks []Disk) []Owner {
	var all []Owner
	of := func(tags map[string]string) *Owner {
		id := tags[TagOwner]
		n := slices.IndexFunc(all, func(o Owner) bool { return o.ID == id })
		if n < 0 {
			n, all = len(all), append(all, Owner{ID: id})
		}
		return &all[n]
	}
	for _, i := range instances {
		o := of(i.Tags)
		o.Instances = append(o.Instances, i)
	}
	for _, p := range owned {
		o := of(p.Tags)
		o.Owned = append(o.Owned, p)
	}
	for _, d := range disks {
		o := of(d.Tags)
		o.Disks = append(o.Disks, d)
	}
	slices.SortFunc(all, func(a, b Owner) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
