package watches

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Follower takes the objects of a kind that Kip watches for all cells. Its methods
// are called one at a time; the objects belong to the watches.
type Follower interface {
	// Replace gets all objects: at first, and when changes have been missed.
	Replace(objects []runtime.Object)
	// Set gets an object that is new or has changed, Delete the last state of
	// one that is gone.
	Set(o runtime.Object)
	Delete(o runtime.Object)
}

// Follow tells f of a kind that all cells are shown, without another watch on the
// API server, until ctx ends. Run must run.
func (w *Watches) Follow(ctx context.Context, resource schema.GroupVersionResource, f Follower) error {
	src := w.shared[resource]
	if src == nil {
		return fmt.Errorf("watches: %s are not watched for all cells", resource.Resource)
	}
	select {
	case <-src.Collection.synced:
	case <-ctx.Done():
		return nil
	}
	for ctx.Err() == nil {
		objects, _, next := src.Collection.Snapshot()
		all := make([]runtime.Object, len(objects))
		for i, o := range objects {
			all[i] = o.APIObject
		}
		f.Replace(all)
		for ctx.Err() == nil {
			events, _, changed, ok := src.Collection.Since(next)
			if !ok {
				break // too far behind
			}
			for _, e := range events {
				if e.Kind == watch.Deleted {
					f.Delete(e.Object.APIObject)
				} else {
					f.Set(e.Object.APIObject)
				}
			}
			next += uint64(len(events))
			if len(events) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// Refusal returns why the API server does not let Kip watch a kind that all cells
// are shown; nil when it does, or did not say.
func (w *Watches) Refusal(resource schema.GroupVersionResource) error {
	if src := w.shared[resource]; src != nil {
		return src.Refusal()
	}
	return nil
}
