// Package v1 is the Cell resource, cells.kip.elotl.co/v1: a mirror, for people,
// of what Kip knows about each cell. Kip writes it and never reads it back.
package v1
