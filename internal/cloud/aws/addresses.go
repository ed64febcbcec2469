package aws

import (
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

const (
	// refusedFor is how long EC2's refusal of secondary addresses for several instances counts, and unclearFor how long
	// one that may be meant so.
	refusedFor, unclearFor = 7 * 24 * time.Hour, time.Hour
)

// nic returns the one interface of each machine, with an address of its pod's. A secondary address can be found in the
// VPC (DescribeNetworkInterfaces, addresses.private-ip-address), as AWS Load Balancer Controller does; one of a /28
// cannot, and costs the subnet seventeen addresses a cell and not two. An interface of the pod's own would exclude a
// public address.
func nic(r cloud.LaunchRequest) types.InstanceNetworkInterfaceSpecification {
	n := types.InstanceNetworkInterfaceSpecification{
		DeviceIndex:              aws.Int32(0),
		SubnetId:                 aws.String(r.Subnet),
		Groups:                   r.Resolved.SecurityGroups,
		DeleteOnTermination:      aws.Bool(true),
		AssociatePublicIpAddress: aws.Bool(r.Resolved.PublicAddress),
	}
	if len(r.Machines) == 1 || r.Resolved.SecondaryAddress {
		n.SecondaryPrivateIpAddressCount = aws.Int32(1)
	} else {
		n.Ipv4PrefixCount = aws.Int32(1)
	}
	return n
}

// namesAddresses matches what EC2 may say of a call that asks for a number of secondary addresses for several instances:
// no source has the words.
var namesAddresses = regexp.MustCompile(`(?i)secondary|private ?ip|(more than one|multiple) instance`)

// refusesSecondaries reports whether EC2 has refused a call for several instances because of their secondary addresses.
// It then notes that, so that the next launch is resolved to prefixes. Whether EC2 takes such a call is undecided: the
// reference said no ("You cannot specify this option if you're launching more than one instance in a RunInstances
// request") and has it no more (SDK ec2@v1.344.1, types.InstanceNetworkInterfaceSpecification), while the parameters
// beside it have it still.
func (c *Cloud) refusesSecondaries(r cloud.LaunchRequest, err error) bool {
	said := saidOf(err)
	if said == nil || len(r.Machines) == 1 || !r.Resolved.SecondaryAddress || !ofEC2(err) {
		return false
	}
	lasts := unclearFor
	switch named := namesAddresses.MatchString(said.message); {
	case named && strings.HasPrefix(said.code, "InvalidParameter"), named && said.code == "UnsupportedOperation":
		lasts = refusedFor
	case said.code != "InvalidParameterCombination", strings.Contains(said.message, "Free Tier"):
		return false
	}
	c.note(factNoSecondaries, lasts)
	c.cfg.Log.Warn("EC2 refuses secondary addresses in a launch of several instances: these get prefixes of /28, by which AWS Load Balancer "+
		"Controller does not find their pods", "for", lasts, "err", said)
	return true
}
