package cloudtest

import (
	"context"
	"reflect"
	"testing"

	"github.com/elotl/kip/internal/cloud"
)

// capable is a cloud with every feature. No call of it works.
type capable struct{ cloud.Cloud }

func (capable) Traits() cloud.Traits { return cloud.Traits{} }

func (capable) Features() cloud.Features {
	return cloud.Features{
		Stopper:     struct{ cloud.Stopper }{},
		Interrupter: struct{ cloud.Interrupter }{},
		Disks:       struct{ cloud.Disks }{},
		DiskChecker: struct{ cloud.DiskChecker }{},
		Router:      struct{ cloud.Router }{},
		DiskGrower:  struct{ cloud.DiskGrower }{},
		Console:     console{},
		Parts:       struct{ cloud.Parts }{},
		Tagger:      struct{ cloud.Tagger }{},
		Admitter:    struct{ cloud.Admitter }{},
		Resolver:    struct{ cloud.Resolver }{},
		Registries:  struct{ cloud.Registries }{},
		Checkup:     struct{ cloud.Checkup }{},
		Booster:     struct{ cloud.Booster }{},
		Egress:      struct{ cloud.Egress }{},
		Bounder:     struct{ cloud.Bounder }{},
		Owners:      struct{ cloud.Owners }{},
	}
}

type console struct{}

func (console) Console(context.Context, string) ([]byte, error) { return nil, nil }

// Undecorated returns the names of the features that decorate passes on as they are, in the
// order of cloud.Features. Calls by such a feature are not counted, bounded or fenced. It fails
// t if decorate drops a feature.
func Undecorated(t *testing.T, decorate func(cloud.Cloud) cloud.Cloud) (names []string) {
	t.Helper()
	after := reflect.ValueOf(decorate(capable{}).Features())
	for field, before := range reflect.ValueOf(capable{}.Features()).Fields() {
		switch after := after.FieldByIndex(field.Index); {
		case before.IsNil():
			t.Errorf("the test cloud lacks the feature %s: add it to capable in cloudtest", field.Name)
		case after.IsNil():
			t.Errorf("the decorated cloud lacks the feature %s", field.Name)
		case after.Elem().Type() == before.Elem().Type():
			names = append(names, field.Name)
		}
	}
	return names
}
