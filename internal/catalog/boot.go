package catalog

import (
	"strings"
	"time"
)

// How long a machine may take from its launch until its kubelet is ready, before it
// counts as one that never will be. They are limits, far above what is usual: giving
// up too early starts a machine again that was about to be ready, and again after it.
const (
	// bootVirtual is for virtual machines. EC2's were measured to answer 26 seconds
	// after the launch (github.com/brevdev/ec2-coldboot-research); the rest is for
	// images, user data and a busy day. The cells of the local cloud boot in seconds,
	// but share one host's processors: the last of many waits for the others.
	bootVirtual = 10 * time.Minute
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

// BootTimeout returns how long a machine of an instance type may take from its launch
// to a ready kubelet, by its family. It knows the names of EC2 (m5.metal,
// c7i.metal-24xl, mac2.metal, mac-m4.metal) and of Compute Engine
// (c3-standard-192-metal), and takes every other type for a virtual machine.
func BootTimeout(instanceType string) time.Duration {
	family, size, ec2 := strings.Cut(instanceType, ".")
	switch {
	case ec2 && strings.HasPrefix(family, "mac"):
		return bootMac
	case ec2 && (size == "metal" || strings.HasPrefix(size, "metal-")), strings.HasSuffix(instanceType, "-metal"):
		return bootMetal
	}
	return bootVirtual
}
