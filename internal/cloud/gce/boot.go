// Package gce owns what is known of Compute Engine's machines. It must not know how a
// launch is decided on.
package gce

import (
	"strings"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

// bootMetal is for whole servers, whose firmware tests itself first: as long as is
// known to be enough for EC2's.
const bootMetal = 30 * time.Minute

// BootTimeout is the catalogue's BootTimeout of a machine type, by its name:
// c3-standard-192-metal. Every other type is a virtual machine.
func BootTimeout(machineType string) time.Duration {
	if strings.HasSuffix(machineType, "-metal") {
		return bootMetal
	}
	return catalog.BootTimeout
}
