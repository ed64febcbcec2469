package kip

import (
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/registries"
)

// imageCredentials has what pulls images from the cloud's registries, until this process leads
// no more; nil where the cloud has none.
func (l *cloudSide) imageCredentials() cellapi.ImageCredentials {
	of := l.machines.Optional().Registries
	if of == nil {
		return nil
	}
	all := registries.New(registries.Config{Cloud: of, Clock: l.clock, Log: l.Log})
	l.atEnd(all.Close)
	return all
}

// imagesOfCloud are patterns of the images in those registries.
func (l *cloudSide) imagesOfCloud() []string {
	if of := l.machines.Optional().Registries; of != nil {
		return of.Images()
	}
	return nil
}
