package aws

import (
	"errors"
	"testing"
	"time"

	ec2api "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	clocktesting "k8s.io/utils/clock/testing"

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

// What EC2 says is not known for sure. A refusal that names something else blames no addresses, one that is unclear does
// for an hour, lest no batch is launched at all.
func TestARefusalOfSeveralCountsAsLongAsItIsClear(t *testing.T) {
	for _, tc := range []struct {
		code, message string
		lasts         time.Duration
	}{
		{"InvalidParameterCombination", "secondaryPrivateIpAddressCount may not be specified when launching more than one instance", refusedFor},
		{"InvalidParameterValue", "The number of private IP addresses cannot be given when launching multiple instances", refusedFor},
		{"InvalidParameterCombination", "The parameters do not go together", unclearFor},
		{"InvalidParameterCombination", "The specified instance type is not eligible for Free Tier.", 0},
		{"InvalidParameterValue", "Invalid IAM Instance Profile name", 0},
		{"InsufficientInstanceCapacity", "no more than one instance", 0},
	} {
		c := answering(t, "RunInstances", 400, tc.code, tc.message)
		clk := clocktesting.NewFakeClock(time.Now())
		c.cfg.Facts = &memory{clock: clk, until: map[string]time.Time{}}
		err := c.Launch(t.Context(), resolved(t, c, request("one", 1))).Err()
		if err == nil || errors.Is(err, cloud.ErrStale) || c.holds(factNoSecondaries) {
			t.Errorf("%s of a launch of one: %v", tc.message, err)
		}
		err = c.Launch(t.Context(), resolved(t, c, request("several", 2))).Err()
		if got := errors.Is(err, cloud.ErrStale); got != (tc.lasts > 0) || err == nil {
			t.Errorf("%s: %v", tc.message, err)
		}
		if tc.lasts > 0 {
			clk.Step(tc.lasts - time.Second)
		}
		if held := c.holds(factNoSecondaries); held != (tc.lasts > 0) {
			t.Errorf("%s: it counts: %v, want that until %s", tc.message, held, tc.lasts)
		}
		clk.Step(time.Second)
		if c.holds(factNoSecondaries) {
			t.Errorf("%s: it counts still after %s", tc.message, tc.lasts)
		}
	}
}

// A stored launch of an earlier Kip is sent again as that Kip sent it, whatever EC2 takes: its token has been used with
// those parameters.
func TestAStoredLaunchOfAnEarlierKipIsSentAsItWas(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	h, url := eavesdrop(t, model)
	c := open(t, settings(url))
	stored := resolved(t, c, request("resolved", 2))
	stored.Resolved.SecondaryAddress = false // which that Kip did not know
	unresolved := request("unresolved", 2)
	one := resolved(t, c, request("one", 1))
	one.Resolved.SecondaryAddress = false
	for _, r := range []cloud.LaunchRequest{stored, unresolved, one} {
		before := len(h.of("RunInstances"))
		if err := c.Launch(t.Context(), r).Err(); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "1"}
		call, several := h.of("RunInstances")[before], len(r.Machines) > 1
		if call["NetworkInterface.1.Ipv4PrefixCount"] != want[several] ||
			call["NetworkInterface.1.SecondaryPrivateIpAddressCount"] != want[!several] {
			t.Errorf("%s: %v", r.Token, call)
		}
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
