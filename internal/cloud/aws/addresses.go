package aws

import (
	"crypto/sha256"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

const (
	// takenFor is how long it counts that EC2 has accepted secondary addresses for several instances, and refusedFor how long that it
	// has refused them.
	takenFor, refusedFor = 24 * time.Hour, 7 * 24 * time.Hour
	// trialFor is how long a trial waits for the call that decides it, and maxTrials how many wait.
	trialFor, maxTrials = 5 * time.Minute, 200
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

// trial is a call for several instances with secondary addresses that EC2 has refused. The next call that asks for the same
// with prefixes shows whether the addresses were the cause. Whether EC2 takes secondary addresses for several is undecided. The
// reference said no ("You cannot specify this option if you're launching more than one instance in a RunInstances request").
// It has that no more (SDK ec2@v1.344.1, types.InstanceNetworkInterfaceSpecification), while the parameters beside it have it
// still. No source has the code or the words of such a refusal.
type trial struct {
	refusal string
	tags    map[string]string
	until   time.Time
}

// addressTrials finds out whether EC2 takes secondary addresses for several instances.
type addressTrials struct {
	*base

	mu     sync.Mutex
	trials map[[sha256.Size]byte]trial // by what was asked for
}

// triesPrefixes learns from the answer to a launch of several whether EC2 takes secondary addresses for them. It returns whether
// EC2 may have refused the launch because of these. It then begins a trial: the next launch of the same is resolved to prefixes.
// The answer to that ends the trial. If EC2 accepts it, Kip notes that the addresses were the cause. It notes nothing if EC2 has
// accepted them in another launch: something else was the cause, and has passed.
func (e *addressTrials) triesPrefixes(r cloud.LaunchRequest, in *ec2.RunInstancesInput, err error) bool {
	accepted := err == nil || codeOf(err) == codeTerminated // instances of the token have run
	switch {
	case aws.ToInt32(in.MaxCount) == 1 || !accepted && !mayBeOfAddresses(err):
	case r.Resolved.SecondaryAddress && accepted:
		if !e.holds(factSecondaries) {
			e.note(factSecondaries, takenFor)
		}
	case r.Resolved.SecondaryAddress:
		e.beginTrial(r, in, err)
		return true
	default:
		if t, is := e.endTrial(r, in); is && accepted && !e.holds(factSecondaries) {
			e.note(factNoSecondaries, refusedFor)
			e.cfg.Log.Warn("EC2 refuses secondary addresses in a launch of several instances: these get prefixes of /28, by which AWS Load "+
				"Balancer Controller does not find their pods", "for", refusedFor, "err", t.refusal)
		}
	}
	return false
}

// mayBeOfAddresses reports whether EC2 may have refused a launch because of the addresses that it asks for. EC2 finds fault with
// what is asked for, and the code names nothing that is not there.
func mayBeOfAddresses(err error) bool {
	said := saidOf(err)
	if said == nil || !ofEC2(err) || !refusal(err) {
		return false
	}
	if m, known := meanings[said.code]; known {
		return m.cause == cloud.ErrRefused
	}
	return !strings.HasSuffix(said.code, ".NotFound") && !slices.Contains(codesStale, said.code) && !slices.Contains(codesOfServer, said.code)
}

// beginTrial begins the trial of what a call asks for. The oldest trial goes where there are too many.
func (e *addressTrials) beginTrial(r cloud.LaunchRequest, in *ec2.RunInstancesInput, err error) {
	now := e.cfg.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.trials, func(_ [sha256.Size]byte, t trial) bool { return !now.Before(t.until) })
	if len(e.trials) >= maxTrials {
		delete(e.trials, slices.MinFunc(slices.Collect(maps.Keys(e.trials)), func(a, b [sha256.Size]byte) int {
			return e.trials[a].until.Compare(e.trials[b].until)
		}))
	}
	e.trials[trialKey(in)] = trial{refusal: saidOf(err).Error(), tags: trialTags(r), until: now.Add(trialFor)}
}

// endTrial ends the trial of what a call with prefixes asks for, and returns it. A call with other tags ends none: tags may be what
// EC2 finds fault with.
func (e *addressTrials) endTrial(r cloud.LaunchRequest, in *ec2.RunInstancesInput) (trial, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.trials) == 0 {
		return trial{}, false
	}
	key := trialKey(in)
	t, is := e.trials[key]
	if !is || !e.cfg.Clock.Now().Before(t.until) || !maps.Equal(t.tags, trialTags(r)) {
		return trial{}, false
	}
	delete(e.trials, key)
	return t, true
}

// onTrial reports whether a launch is to have prefixes since there is a trial of what it asks for.
func (e *addressTrials) onTrial(s cloud.LaunchSpec, resolved cloud.Resolved) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.trials) == 0 {
		return false
	}
	s.Resolved = &resolved
	t, is := e.trials[trialKey(runInstances(cloud.LaunchRequest{LaunchSpec: s, Machines: make([]cloud.Machine, 1)}))]
	return is && e.cfg.Clock.Now().Before(t.until)
}

// trialKey is the same for calls that ask for the same. It leaves out the addresses of pods, and what each launch has of its own.
func trialKey(in *ec2.RunInstancesInput) [sha256.Size]byte {
	same, n := *in, in.NetworkInterfaces[0]
	n.SecondaryPrivateIpAddressCount, n.Ipv4PrefixCount = nil, nil
	same.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{n}
	return kindOf(&same, "")
}

// trialTags are the tags of a launch without those that each launch has of its own. Labels of pods are among them.
func trialTags(r cloud.LaunchRequest) map[string]string {
	tags := launchTags(r)
	delete(tags, cloud.TagBatch)
	delete(tags, cloud.TagGeneration)
	return tags
}
