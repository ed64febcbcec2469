package aws

import (
	"strings"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

const (
	// bootMetal is for whole servers, whose firmware tests itself first. Median
	// boots of EC2's, by generation, were measured at 218 to 792 seconds, and the
	// slowest at 820 (gitlab.com/testing-farm/infrastructure, merge request 1526);
	// others saw more than 20 minutes (github.com/canonical/pycloudlib, pull
	// request 192).
	bootMetal = 30 * time.Minute
	// bootMac is for EC2's Macs, which take 6 to 20 minutes to launch
	// (github.com/github-aws-runners/terraform-aws-github-runner, pull request
	// 4930). Giving up is dear: the host is cleaned for up to 50 minutes with an
	// Intel processor and 110 with Apple's, before it takes another, and is paid
	// for 24 hours (EC2 User Guide, Stop or terminate your Amazon EC2 Mac instance).
	bootMac = 60 * time.Minute
)

// BootTimeout is the catalogue's BootTimeout of an instance type, by its family and
// size: m5.metal, c7i.metal-24xl, mac2.metal, mac-m4.metal. Every other type is a
// virtual machine.
func BootTimeout(instanceType string) time.Duration {
	family, size, dotted := strings.Cut(instanceType, ".")
	switch {
	case dotted && strings.HasPrefix(family, "mac"):
		return bootMac
	case dotted && (size == "metal" || strings.HasPrefix(size, "metal-")):
		return bootMetal
	}
	return catalog.BootTimeout
}
