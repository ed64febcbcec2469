// Package registries owns the credentials by which cells pull images from the cloud's
// registries: each set of repositories has them asked for once, and kept till shortly before
// their end. It must not decide which repositories a cell may pull from, nor know of
// cells more than that askers differ, so that none takes the turns of all.
package registries
