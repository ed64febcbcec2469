package aws

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// small is a request for n burstable machines, as Kip sends it.
func small(t *testing.T, c *Cloud, token string, n int) cloud.LaunchRequest {
	t.Helper()
	r := request(token, n)
	r.InstanceType = "t3.small"
	return resolved(t, c, r)
}

// creditsOf returns what the model has of the credits of an instance.
func creditsOf(t *testing.T, model *ec2.Model, id string) ec2.Credits {
	t.Helper()
	for _, i := range model.Machines().History() {
		if i.ID == id {
			return model.Credits.Of(i)
		}
	}
	t.Fatalf("there is no instance %s", id)
	return ec2.Credits{}
}

func launchOne(t *testing.T, c *Cloud, r cloud.LaunchRequest) string {
	t.Helper()
	got, err := runLaunch(t.Context(), c, r).All()
	if err != nil {
		t.Fatal(err)
	}
	return got[0].ID
}

// With standard credits a T3 starts with none, at a tenth of its speed. So it has unlimited ones until its pod runs, as
// soon as a call has shown that Kip may take them back, which Kip remembers.
func TestABurstableInstanceHasUnlimitedCreditsUntilItsPodRuns(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	s := settings(url)
	clk := clocktesting.NewFakeClock(time.Now())
	s.Clock, s.Facts = clk, &memory{clock: clk, until: map[string]time.Time{}}
	first := open(t, s)
	r := small(t, first, "first", 1)
	id := launchOne(t, first, r)
	if got := creditsOf(t, model, id); got.Option != "standard" || !r.Resolved.Boosted {
		t.Errorf("before Kip knows that it may change them the credits are %+v, and the cloud is told of it: %t", got, r.Resolved.Boosted)
	}
	if err := first.EndBoost(t.Context(), id).Err(); err != nil {
		t.Fatal(err)
	}
	again := open(t, s)
	r = small(t, again, "second", 2)
	got, err := runLaunch(t.Context(), again, r).All()
	if err != nil || !r.Resolved.Boosted {
		t.Fatal(err, r.Resolved)
	}
	for _, i := range got {
		if is := creditsOf(t, model, i.ID); is.Option != "unlimited" {
			t.Errorf("%s starts with %+v", i.ID, is)
		}
	}
	for range 2 { // a lost answer has it told again
		if err := again.EndBoost(t.Context(), got[0].ID, got[1].ID).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if n := model.Calls()["ModifyInstanceCreditSpecification"]; n != 3 {
		t.Errorf("%d calls for three ends of boosts", n)
	}
	for _, i := range got {
		if is := creditsOf(t, model, i.ID); is.Option != "standard" {
			t.Errorf("once its pod runs %s has %+v", i.ID, is)
		}
	}
	plain := resolved(t, again, request("plain", 1))
	if plain.Resolved.Boosted || plain.Resolved.CPUCredits != "" {
		t.Errorf("a type without credits is resolved to %+v", plain.Resolved)
	}
}

func TestTheKeyDecidesOnCredits(t *testing.T) {
	for _, tc := range []struct {
		key, reservation string
		want             string
		boosted          bool
		sold             float64
	}{
		{key: "boot", want: "unlimited", boosted: true},
		{key: "", want: "unlimited", boosted: true},
		{key: "standard", want: "standard"},
		{key: "unlimited", want: "unlimited", sold: 0.05},
		{key: "boot", reservation: "h-1", want: "standard"}, // where EC2 refuses others
	} {
		account := anAccount(sim.Knobs{})
		account.Hosts = []ec2.Host{{ID: "h-1", Family: "t3", Zone: "us-east-1a", VCPUs: 8}}
		model, url := serve(t, account)
		s := settings(url)
		s.CPUCredits, s.Hosts, s.Dedicated = tc.key, Choice{IDs: []string{"h-1"}}, true
		c := open(t, s)
		c.note(factCreditRight, time.Hour)
		sold, err := c.Catalogue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range sold {
			want := tc.sold
			if kind.Name != "t3.small" {
				want = 0
			}
			if kind.CreditPerCPUHour != want {
				t.Errorf("%q sells CPU above the baseline of %s at %v, want %v", tc.key, kind.Name, kind.CreditPerCPUHour, want)
			}
			onHost := false
			for _, o := range kind.Offerings {
				onHost = onHost || o.Reservation == "h-1"
			}
			// There a pod has the baseline alone, and others may have all.
			if kind.Name == "t3.small" && onHost == (tc.key == "unlimited") {
				t.Errorf("%q offers %s on a host: %t", tc.key, kind.Name, onHost)
			}
		}
		r := request("t", 1)
		r.InstanceType = "t3.small"
		if r.Reservation = tc.reservation; r.Reservation != "" {
			r.CapacityType = cloud.Dedicated
		}
		r = resolved(t, c, r)
		if r.Resolved.Boosted != tc.boosted {
			t.Errorf("%q in %q: boosted %t, want %t", tc.key, tc.reservation, r.Resolved.Boosted, tc.boosted)
		}
		if got := creditsOf(t, model, launchOne(t, c, r)); got.Option != tc.want {
			t.Errorf("%q in %q: credits %+v, want %s", tc.key, tc.reservation, got, tc.want)
		}
	}
	_, url := serve(t, anAccount(sim.Knobs{}))
	for key, region := range map[string]string{"free": "us-east-1", "unlimited": "cn-north-1"} {
		s := settings(url)
		s.CPUCredits, s.Region = key, region
		_, err := New(t.Context(), s)
		if err == nil || !strings.Contains(err.Error(), "cloud.aws.cpuCredits") || !strings.Contains(err.Error(), key) {
			t.Errorf("%s in %s: %v", key, region, err)
		}
	}
}

// A type that sustains its baseline alone is placed by that, one that sells more by all of it.
func TestWhatABurstableTypeSustainsIsWhatItsCreditsAre(t *testing.T) {
	for key, want := range map[string]int64{"boot": 400, "standard": 400, "unlimited": 2000} {
		_, url := serve(t, anAccount(sim.Knobs{}))
		s := settings(url)
		s.CPUCredits = key
		sold, err := open(t, s).Catalogue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var small catalog.InstanceType
		for _, kind := range sold {
			if kind.Name == "t3.small" {
				small = kind
			}
		}
		if got := small.SustainedMilliCPU(); got != want {
			t.Errorf("with %s credits t3.small sustains %d, want %d", key, got, want)
		}
	}
}

// Without the right to change credits Kip gives none that it could not take back, and asks again after a day.
func TestWithoutTheRightToChangeCreditsNoneAreGiven(t *testing.T) {
	without, err := ec2.ParsePolicy([]byte(strings.ReplaceAll(string(Policy()), "ec2:ModifyInstanceCreditSpecification", "ec2:DescribeTags")))
	if err != nil {
		t.Fatal(err)
	}
	with, err := ec2.ParsePolicy(Policy())
	if err != nil {
		t.Fatal(err)
	}
	account := anAccount(sim.Knobs{})
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": without, "AKIAOTHER": with}
	model, url := serve(t, account)
	s := settings(url)
	var log bytes.Buffer
	clk := clocktesting.NewFakeClock(time.Now())
	s.Clock, s.Facts, s.Log = clk, &memory{clock: clk, until: map[string]time.Time{}}, slog.New(slog.NewTextHandler(&log, nil))
	c := open(t, s)
	c.note(factCreditRight, rightFor) // which it had
	first, second := launchOne(t, c, small(t, c, "first", 1)), launchOne(t, c, small(t, c, "second", 1))
	for _, id := range []string{first, second} {
		if err := c.EndBoost(t.Context(), id).Err(); !errors.Is(err, cloud.ErrUnauthorised) {
			t.Errorf("without the right: %v", err)
		}
	}
	if n := strings.Count(log.String(), "Kip may not change CPU credits"); n != 1 {
		t.Errorf("it was told of %d times: %s", n, log.String())
	}
	r := small(t, c, "third", 1)
	if got := creditsOf(t, model, launchOne(t, c, r)); got.Option != "standard" || r.Resolved.Boosted {
		t.Errorf("credits that could not be taken back: %+v, %t", got, r.Resolved.Boosted)
	}
	clk.Step(noRightFor + time.Second)
	s.AccessKeyID = "AKIAOTHER"
	c = open(t, s)
	fourth := launchOne(t, c, small(t, c, "fourth", 1))
	if got := creditsOf(t, model, fourth); got.Option != "standard" {
		t.Errorf("before the right is known again: %+v", got)
	}
	if err := c.EndBoost(t.Context(), first, second, fourth).Err(); err != nil {
		t.Errorf("with the right: %v", err)
	}
	for _, id := range []string{first, second} {
		if got := creditsOf(t, model, id); got.Option != "standard" {
			t.Errorf("%s has %+v still", id, got)
		}
	}
	if got := creditsOf(t, model, launchOne(t, c, small(t, c, "fifth", 1))); got.Option != "unlimited" {
		t.Errorf("with the right again: %+v", got)
	}
}

// EC2 refuses a call whole for one instance that Kip has no right to. That says nothing of the right to others, nor does
// a refusal of Kip's credentials.
func TestARefusalOfOtherThanTheRightSaysNothingOfIt(t *testing.T) {
	c, model, _ := underPolicy(t, sim.Knobs{})
	id := launchOne(t, c, small(t, c, "a", 1))
	others := model.Machines().Launch(t.Context(), cloud.LaunchRequest{
		Token:      "of-somebody-who-is-not-kip",
		LaunchSpec: cloud.LaunchSpec{InstanceType: "t3.small", Zone: "us-east-1a", Subnet: "subnet-a1"},
		UserData:   []byte{},
		Machines:   make([]cloud.Machine, 1),
	})
	if err := others.Err(); err != nil {
		t.Fatal(err)
	}
	other := others[0].Instance.ID
	c.note(factCreditRight, rightFor)
	c.note(factNoCreditRight, noRightFor) // as once
	results := c.EndBoost(t.Context(), other, id)
	if !errors.Is(results[0].Err, cloud.ErrUnauthorised) || results[1].Err != nil {
		t.Errorf("another's and its own: %v", results)
	}
	if c.holds(factNoCreditRight) || !c.holds(factCreditRight) {
		t.Error("Kip does not know its right")
	}
	if err := c.EndBoost(t.Context(), other).Err(); !errors.Is(err, cloud.ErrUnauthorised) || c.holds(factNoCreditRight) {
		t.Errorf("another's alone: %v, no right: %t", err, c.holds(factNoCreditRight))
	}
	expired := c.cfg
	expired.AccessKeyID = "AKIAEXPIRED"
	c = open(t, expired)
	if err := c.EndBoost(t.Context(), id).Err(); !errors.Is(err, cloud.ErrUnauthorised) || c.holds(factNoCreditRight) {
		t.Errorf("with a key that nobody has: %v, no right: %t", err, c.holds(factNoCreditRight))
	}
}

// A policy may name Kip's own value of the tag, and deny one of its instances for something else.
func TestOneInstanceThatKipMayNotChangeKeepsNoOtherFromTheEndOfItsBoost(t *testing.T) {
	const kept, tag = "kept", "aws:ResourceTag/"
	doc := policyOf(permissions)
	for n := range doc.Statement {
		if doc.Statement[n].Sid == "KipEndsBootCredits" {
			doc.Statement[n].Condition = map[string]map[string][]string{"StringEquals": {tag + cloud.TagOwner: {owner}}}
		}
	}
	doc.Statement = append(doc.Statement, statement{
		Sid:       "KeepsCredits",
		Effect:    "Deny",
		Action:    []string{"ec2:ModifyInstanceCreditSpecification"},
		Resource:  []string{"*"},
		Condition: map[string]map[string][]string{"StringEquals": {tag + kept: {"yes"}}},
	})
	policy, err := ec2.ParsePolicy(doc.text())
	if err != nil {
		t.Fatal(err)
	}
	account := anAccount(sim.Knobs{})
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
	model, url := serve(t, account)
	s := settings(url)
	s.Owner = owner
	c := open(t, s)
	var ids []string
	for n, tags := range []map[string]string{
		{cloud.TagOwner: owner, kept: "yes"}, {cloud.TagOwner: owner}, {cloud.TagOwner: "kip-another"}, {cloud.TagOwner: owner},
		{cloud.TagOwner: owner, kept: "yes"},
	} {
		r := small(t, c, fmt.Sprint("t", n), 1)
		r.Tags = tags
		ids = append(ids, launchOne(t, c, r))
		c.note(factCreditRight, rightFor) // so that the next ones are boosted
	}
	for n, r := range c.EndBoost(t.Context(), ids...) {
		denied := n != 1 && n != 3
		if r.ID != ids[n] || errors.Is(r.Err, cloud.ErrUnauthorised) != denied || (r.Err != nil) != denied {
			t.Errorf("instance %d: %v, want a refusal: %t", n, r.Err, denied)
		}
		if got := creditsOf(t, model, ids[n]).Option; n > 0 && (got == creditsUnlimited) != denied {
			t.Errorf("instance %d has %s credits", n, got)
		}
	}
	if err := c.EndBoost(t.Context(), ids[2]).Err(); !errors.Is(err, cloud.ErrUnauthorised) {
		t.Errorf("another's alone: %v", err)
	}
	if c.holds(factNoCreditRight) || !c.holds(factCreditRight) {
		t.Error("Kip does not know its right")
	}
}

// An instance that ends may lose its tags first, or be none to IAM. No source says how EC2 answers for it, so its refusal says nothing.
func TestARefusalOfAnInstanceThatEndsSaysNothingOfTheRight(t *testing.T) {
	without, err := ec2.ParsePolicy([]byte(strings.ReplaceAll(string(Policy()), "ec2:ModifyInstanceCreditSpecification", "ec2:DescribeTags")))
	if err != nil {
		t.Fatal(err)
	}
	account := anAccount(sim.Knobs{Termination: sim.Distribution{Median: time.Hour}})
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": without}
	_, url := serve(t, account)
	c := open(t, settings(url))
	id := launchOne(t, c, small(t, c, "a", 1))
	if err := c.Terminate(t.Context(), id).Err(); err != nil {
		t.Fatal(err)
	}
	if got := statesOf(t, c, id); !slices.Equal(got, []cloud.State{cloud.Terminating}) {
		t.Fatalf("it is %q", got)
	}
	c.note(factCreditRight, rightFor)
	if err := c.EndBoost(t.Context(), id).Err(); !errors.Is(err, cloud.ErrNotFound) || c.holds(factNoCreditRight) {
		t.Errorf("of one that ends: %v, no right: %t", err, c.holds(factNoCreditRight))
	}
}

// EC2 answers by instance: what is wrong with one says nothing of the others.
func TestTheEndOfABoostIsAnsweredByInstance(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	id, ended := launchOne(t, c, small(t, c, "a", 1)), launchOne(t, c, small(t, c, "b", 1))
	plain := launchOne(t, c, resolved(t, c, request("c", 1)))
	if err := model.Machines().Interrupter.Vanish(ended); err != nil {
		t.Fatal(err)
	}
	results := c.EndBoost(t.Context(), id, plain, ended, "i-00000000000000009")
	for n, want := range []error{nil, nil, cloud.ErrNotFound, cloud.ErrNotFound} {
		if err := results[n].Err; want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", results[n].ID, err, want)
		}
	}
}
