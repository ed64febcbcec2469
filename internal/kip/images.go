package kip

import (
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/registries"
)

// imageCredentials has what pulls images from the cloud's registries, until this process leads
// no more; nil where the cloud has none.
func (t *term) imageCredentials(machines *pipe.Pipe) cellapi.ImageCredentials {
	of := machines.Optional().Registries
	if of == nil {
		return nil
	}
	all := registries.New(registries.Config{Cloud: of, Clock: t.clock, Log: t.Log})
	t.atEnd(all.Close)
	return all
}

// imagesOfCloud are patterns of the images in those registries.
func imagesOfCloud(machines *pipe.Pipe) []string {
	if of := machines.Optional().Registries; of != nil {
		return of.Images()
	}
	return nil
}
