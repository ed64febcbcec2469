package aws

import (
	"errors"
	"testing"
	"time"

	ec2api "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// owners are the instances that AWS Load Balancer Controller finds by the addresses of the pods of a batch.
func owners(t *testing.T, c *Cloud, batch string) (pods int, found []string) {
	t.Helper()
	list, err := c.List(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list.Instances {
		if i.Tags[cloud.TagBatch] != batch {
			continue
		}
		if !i.PodIP.IsValid() {
			t.Errorf("the pod of %s has no address", i.ID)
		}
		pods++
		out, err := c.api.DescribeNetworkInterfaces(t.Context(), &ec2api.DescribeNetworkInterfacesInput{
			Filters: []types.Filter{filter("addresses.private-ip-address", i.PodIP.String())},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range out.NetworkInterfaces {
			found = append(found, *n.Attachment.InstanceId)
			if *n.Attachment.InstanceId != i.ID {
				t.Errorf("the address of the pod on %s leads to %s", i.ID, *n.Attachment.InstanceId)
			}
		}
	}
	return pods, found
}

func TestPodsOfABatchAreFoundByTheirAddresses(t *testing.T) {
	c, _ := newCloud(t, sim.Knobs{})
	if _, err := c.Launch(t.Context(), resolved(t, c, request("batch", 3))).All(); err != nil {
		t.Fatal(err)
	}
	if pods, found := owners(t, c, "batch"); pods != 3 || len(found) != 3 {
		t.Errorf("of %d pods of a batch the interfaces %v are found, want 3", pods, found)
	}
}

// An account that takes no secondary addresses for several instances is asked once, and not again after a restart. The
// launch that it has refused is over: the next has a token of its own.
func TestAnAccountWithoutSecondaryAddressesForSeveralIsAskedOnce(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.LoneSecondaries = true
	model, url := serve(t, account)
	clk := clocktesting.NewFakeClock(time.Now())
	s := settings(url)
	s.Clock, s.Facts = clk, &memory{clock: clk, until: map[string]time.Time{}}
	c := open(t, s)
	if err := c.Launch(t.Context(), resolved(t, c, request("first", 3))).Err(); !errors.Is(err, cloud.ErrStale) || !cloud.NothingDone(err) {
		t.Fatalf("the first launch of several: %v, want one that is to be resolved anew", err)
	}
	batches := func(c *Cloud, token string) {
		t.Helper()
		got, err := c.Launch(t.Context(), resolved(t, c, request(token, 3))).All()
		if err != nil || len(got) != 3 {
			t.Fatalf("%s: %v, %v", token, got, err)
		}
		// What docs/aws.md says of prefixes.
		if pods, found := owners(t, c, token); pods != 3 || len(found) != 0 {
			t.Errorf("%s: of %d pods the interfaces %v are found, want none", token, pods, found)
		}
	}
	batches(c, "second")
	again := open(t, s) // Kip is started again
	batches(again, "third")
	if n := model.Calls()["RunInstances"]; n != 3 {
		t.Errorf("%d calls for three launches: EC2 was asked again for what it had refused", n)
	}
	if _, err := again.Launch(t.Context(), resolved(t, again, request("one", 1))).All(); err != nil {
		t.Fatal(err)
	}
	if pods, found := owners(t, again, "one"); pods != 1 || len(found) != 1 {
		t.Errorf("the pod of a launch of one is not found: %v", found)
	}
	clk.Step(7*24*time.Hour + time.Second)
	model.Change(func(cfg *ec2.Config) { cfg.LoneSecondaries = false })
	if _, err := again.Launch(t.Context(), resolved(t, again, request("later", 2))).All(); err != nil {
		t.Fatal(err)
	}
	if pods, found := owners(t, again, "later"); pods != 2 || len(found) != 2 {
		t.Errorf("after a week, of %d pods the interfaces %v are found, want 2", pods, found)
	}
}

// No source has EC2's words, so that none decide.
func TestALaunchWithPrefixesShowsThatEC2RefusesSecondaryAddressesForSeveral(t *testing.T) {
	for _, code := range []string{"SomethingNew", "Unsupported", "InvalidParameterCombination"} {
		account := anAccount(sim.Knobs{})
		account.LoneSecondaries, account.LoneCode = true, code
		model, url := serve(t, account)
		c := open(t, settings(url))
		if err := c.Launch(t.Context(), resolved(t, c, request("first", 2))).Err(); !errors.Is(err, cloud.ErrStale) || !cloud.NothingDone(err) {
			t.Fatalf("%s: secondary addresses of several: %v, want a launch that is resolved anew", code, err)
		}
		if c.holds(factNoSecondaries) {
			t.Errorf("%s: it is taken for a refusal of the addresses before EC2 has accepted a launch without them", code)
		}
		if !another(t, c).Resolved.SecondaryAddress {
			t.Errorf("%s: another subnet has prefixes before it is known that these are the remedy", code)
		}
		// The answer that shows it may be lost.
		again := resolved(t, c, request("second", 2))
		if err := model.Lose(cloudmodel.Loss{Call: cloud.CallLaunch, Nth: 1, After: true}); err != nil {
			t.Fatal(err)
		}
		if err := runLaunch(t.Context(), c, again).Err(); err == nil || cloud.Refused(err) || c.holds(factNoSecondaries) {
			t.Fatalf("%s: a launch whose answer is lost: %v", code, err)
		}
		if code == "Unsupported" { // EC2 then says that the instances of the token have been terminated
			for _, i := range model.Machines().Truth() {
				if err := c.Terminate(t.Context(), i.ID).Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := runLaunch(t.Context(), c, again).Err(); err != nil || again.Resolved.SecondaryAddress {
			t.Fatalf("%s: the next launch of the same: %v, want one with prefixes", code, err)
		}
		if !c.holds(factNoSecondaries) || another(t, c).Resolved.SecondaryAddress {
			t.Errorf("%s: EC2 has accepted prefixes alone, and others ask for secondary addresses", code)
		}
	}
}

// another is a launch of several in another subnet.
func another(t *testing.T, c *Cloud) cloud.LaunchRequest {
	t.Helper()
	r := request("another", 2)
	r.Subnet = "subnet-a2"
	return resolved(t, c, r)
}

// What several launches ask for alike may be refused for many causes, by codes and words that may also be meant so.
func TestARefusalForAnotherCauseTakesSecondaryAddressesFromNoLaunch(t *testing.T) {
	for _, code := range []string{"SomethingNew", "Unsupported", "InvalidParameterCombination"} {
		account := anAccount(sim.Knobs{})
		account.NoneTogether = code
		model, url := serve(t, account)
		c := open(t, settings(url))
		if err := c.Launch(t.Context(), resolved(t, c, request("first", 2))).Err(); !errors.Is(err, cloud.ErrStale) {
			t.Fatalf("%s: %v, want a launch that is resolved anew", code, err)
		}
		err := c.Launch(t.Context(), resolved(t, c, request("second", 2))).Err()
		if errors.Is(err, cloud.ErrStale) || !cloud.Refused(err) || codeOf(err) != code {
			t.Errorf("%s: without secondary addresses: %v, want EC2's refusal", code, err)
		}
		if n := model.Calls()["RunInstances"]; n != 2 {
			t.Errorf("%s: %d calls, want one more than without the doubt", code, n)
		}
		model.Change(func(cfg *ec2.Config) { cfg.NoneTogether = "" })
		for _, r := range []cloud.LaunchRequest{resolved(t, c, request("third", 2)), another(t, c)} {
			if _, err := runLaunch(t.Context(), c, r).All(); err != nil || !r.Resolved.SecondaryAddress || c.holds(factNoSecondaries) {
				t.Errorf("%s: %s: %v: it is launched without secondary addresses", code, r.Token, err)
			}
		}
	}
}

// A cause may pass, or be in what the first launch alone asked for. Then an accepted launch with prefixes shows nothing.
func TestALaunchWithPrefixesShowsNothingOfAnotherCauseThatHasPassed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before func(t *testing.T, c *Cloud)
		next   func(*cloud.LaunchRequest)
		wait   time.Duration
		still  bool // the same is to have prefixes
	}{
		{name: "EC2 has accepted secondary addresses of others", before: func(t *testing.T, c *Cloud) {
			t.Helper()
			if err := runLaunch(t.Context(), c, another(t, c)).Err(); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "other labels", next: func(r *cloud.LaunchRequest) { r.Tags["team"] = "b" }, still: true},
		{name: "other disks", next: func(r *cloud.LaunchRequest) { r.RootDiskBytes *= 2 }, still: true},
		{name: "one alone", next: func(r *cloud.LaunchRequest) { r.Machines = r.Machines[:1] }, still: true},
		{name: "much later", wait: trialFor},
	} {
		model, url := serve(t, anAccount(sim.Knobs{}))
		clk := clocktesting.NewFakeClock(time.Now())
		s := settings(url)
		s.Clock, s.Facts = clk, &memory{clock: clk, until: map[string]time.Time{}}
		c := open(t, s)
		if tc.before != nil {
			tc.before(t, c)
		}
		model.Change(func(cfg *ec2.Config) { cfg.NoneTogether = "SomethingNew" })
		if err := c.Launch(t.Context(), resolved(t, c, request("first", 2))).Err(); !errors.Is(err, cloud.ErrStale) {
			t.Fatalf("%s: %v", tc.name, err)
		}
		model.Change(func(cfg *ec2.Config) { cfg.NoneTogether = "" })
		r := resolved(t, c, request("same", 2)) // with prefixes
		clk.Step(tc.wait)
		if tc.next != nil {
			other := request("next", 2)
			tc.next(&other)
			other.Resolved, r = r.Resolved, other
		}
		if err := runLaunch(t.Context(), c, r).Err(); err != nil || c.holds(factNoSecondaries) {
			t.Errorf("%s: %v: it is taken for a refusal of secondary addresses", tc.name, err)
		}
		if after := resolved(t, c, request("after", 2)); after.Resolved.SecondaryAddress == tc.still {
			t.Errorf("%s: after that the same has secondary addresses: %v", tc.name, !tc.still)
		}
	}
}

// These refusals are of what EC2 has, of who asks, or name what is not there.
func TestARefusalThatIsOfNoAddressesBeginsNoTrial(t *testing.T) {
	for _, tc := range []struct {
		status        int
		code, message string
	}{
		{500, "InsufficientInstanceCapacity", "no capacity for more than one instance"},
		{400, "VcpuLimitExceeded", "You have requested more vCPU capacity than your limit"},
		{503, "RequestLimitExceeded", "Request limit exceeded."},
		{403, "UnauthorizedOperation", "You are not authorized to perform: iam:PassRole"},
		{400, "RequestExpired", "Request has expired."},
		{500, "InternalError", "An internal error has occurred"},
		{503, "SomethingNew", "secondary private IP addresses"},
		{403, "UnknownError", "a proxy's"},
		{400, "IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent"},
		{400, "InvalidKeyPair.NotFound", "The key pair does not exist"},
		{400, "InvalidAMIID.NotFound", "The image id does not exist"},
		{400, "InvalidParameterCombination", "The specified instance type is not eligible for Free Tier."},
	} {
		c := answering(t, "RunInstances", tc.status, tc.code, tc.message)
		r := resolved(t, c, request("several", 2))
		if err := runLaunch(t.Context(), c, r).Err(); err == nil {
			t.Fatalf("%s: it is launched", tc.code)
		}
		c.plan.until = time.Time{}
		if !resolved(t, c, request("next", 2)).Resolved.SecondaryAddress {
			t.Errorf("%d %s: %s: the next launch has prefixes", tc.status, tc.code, tc.message)
		}
	}
}

func TestOfTooManyTrialsTheOldestIsForgotten(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	_, url := serve(t, anAccount(sim.Knobs{}))
	s := settings(url)
	s.Clock = clk
	c := open(t, s)
	r := resolved(t, c, request("one", 2))
	refusal := &failed{code: "SomethingNew", err: &smithy.GenericAPIError{Code: "SomethingNew"}}
	onTrial := func(gib int64) bool {
		r.RootDiskBytes = gib * gibi
		return c.trials.onTrial(r.LaunchSpec, *r.Resolved)
	}
	for gib := range int64(maxTrials + 1) {
		r.RootDiskBytes = (10 + gib) * gibi
		c.trials.beginTrial(r, runInstances(r), refusal)
		clk.Step(time.Millisecond)
	}
	if onTrial(10) || !onTrial(11) || !onTrial(10+maxTrials) {
		t.Error("want the oldest trial gone, and no other")
	}
}

// A subnet without room for all of a batch takes some by themselves, whichever addresses it has.
func TestABatchForWhichASubnetIsTooSmallIsLaunchedOneByOne(t *testing.T) {
	for name, lone := range map[string]bool{"secondary addresses": false, "prefixes": true} {
		account := anAccount(sim.Knobs{})
		account.Subnets[0].Bits = 28 // five are EC2's, so that eleven are left
		account.LoneSecondaries = lone
		model, url := serve(t, account)
		c := open(t, settings(url))
		if lone {
			c.note(factNoSecondaries, time.Hour)
		}
		err := c.Launch(t.Context(), resolved(t, c, request("six", 6))).Err()
		if !errors.Is(err, cloud.ErrTogether) || !cloud.Refused(err) {
			t.Errorf("%s: six in one call: %v, want that they be launched one by one", name, err)
		}
		launched := 0
		for n := range 6 {
			err := c.Launch(t.Context(), resolved(t, c, request("one "+string(rune('a'+n)), 1))).Err()
			if err == nil {
				launched++
			} else if !errors.Is(err, cloud.ErrCapacity) || cloud.ScopeOf(err).Subnet != "subnet-a1" {
				t.Errorf("%s: one by itself: %v, want a shortage of the subnet", name, err)
			}
		}
		if launched != 5 || len(model.Machines().Truth()) != 5 {
			t.Errorf("%s: %d of 6 were launched, want the 5 for which there are addresses", name, launched)
		}
	}
}
