// Package crd owns the definition of the Cell resource in a cluster: it checks, installs and updates it. It must not touch
// any other definition, nor cells.
package crd
