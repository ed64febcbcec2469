package cellapi

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Follower takes the objects of a kind that Kip watches for all cells. Its methods
// are called one at a time; the objects belong to the server.
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
func (s *Server) Follow(ctx context.Context, resource schema.GroupVersionResource, f Follower) error {
	src := s.shared[resource]
	if src == nil {
		return fmt.Errorf("cell API: %s are not watched for all cells", resource.Resource)
	}
	select {
	case <-src.collection.synced:
	case <-ctx.Done():
		return nil
	}
	for ctx.Err() == nil {
		objects, _, next := src.collection.snapshot()
		all := make([]runtime.Object, len(objects))
		for i, o := range objects {
			all[i] = o.apiObject
		}
		f.Replace(all)
		for ctx.Err() == nil {
			events, _, changed, ok := src.collection.since(next)
			if !ok {
				break // too far behind
			}
			for _, e := range events {
				if e.kind == watch.Deleted {
					f.Delete(e.object.apiObject)
				} else {
					f.Set(e.object.apiObject)
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
func (s *Server) Refusal(resource schema.GroupVersionResource) error {
	if src := s.shared[resource]; src != nil {
		return src.lastError.refusal()
	}
	return nil
}
