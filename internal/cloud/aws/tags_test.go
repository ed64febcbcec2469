package aws

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// wantsTeam denies all that Kip makes without a tag. Source: AWS Organizations User Guide, "Example SCPs for tagging
// resources".
const wantsTeam = `{"Version": "2012-10-17", "Statement": [
	{"Sid": "DenyLaunchWithoutTeam", "Effect": "Deny", "Action": "ec2:RunInstances", "Resource": [
		"arn:aws:ec2:*:*:instance/*", "arn:aws:ec2:*:*:volume/*", "arn:aws:ec2:*:*:network-interface/*",
		"arn:aws:ec2:*:*:spot-instances-request/*"],
	 "Condition": {"Null": {"aws:RequestTag/team": "true"}}},
	{"Sid": "DenyTheRestWithoutTeam", "Effect": "Deny", "Action": ["ec2:CreateVolume", "ec2:CreateSecurityGroup"],
	 "Resource": ["arn:aws:ec2:*:*:volume/*", "arn:aws:ec2:*:*:security-group/*"],
	 "Condition": {"Null": {"aws:RequestTag/team": "true"}}}]}`

// inOrganization is a Kip in an account whose organization wants a tag.
func inOrganization(t *testing.T, change func(*Config)) (*Cloud, *ec2.Model, *heard) {
	t.Helper()
	denies, err := ec2.ParsePolicy([]byte(wantsTeam))
	if err != nil {
		t.Fatal(err)
	}
	allows, err := ec2.ParsePolicy(Policy())
	if err != nil {
		t.Fatal(err)
	}
	account := anAccount(sim.Knobs{})
	account.Organization, account.Policies = denies, map[string]*ec2.Policy{"AKIATESTS": allows}
	model, _ := serve(t, account)
	h, url := eavesdrop(t, model)
	cfg := settings(url)
	change(&cfg)
	return open(t, cfg), model, h
}

func TestWhatAnOrganizationWantsTaggedIsTaggedInTheCallThatMakesIt(t *testing.T) {
	bare, _, _ := inOrganization(t, func(*Config) {})
	const noGroup = "ec2:CreateSecurityGroup on arn:aws:ec2:us-east-1:123456789012:security-group/* is denied by statement DenyTheRestWithoutTeam"
	if err := runLaunch(t.Context(), bare, request("group", 1)).Err(); !errors.Is(err, cloud.ErrUnauthorised) ||
		!strings.Contains(err.Error(), noGroup) {
		t.Errorf("a group without the tag: %v", err)
	}
	r := resolved(t, open(t, settings(serveURL(t))), request("bare", 1))
	r.Resolved.Tags = nil
	if _, err := bare.api.RunInstances(t.Context(), runInstances(r)); err == nil ||
		!strings.Contains(err.Error(), "is denied by statement DenyLaunchWithoutTeam") {
		t.Errorf("a launch without the tag: %v", err)
	}

	c, model, h := inOrganization(t, func(cfg *Config) {
		cfg.Cluster, cfg.Tags = "prod", map[string]string{"team": "a", cloud.TagOwner: "thief"}
	})
	spot := request("spot", 2)
	spot.CapacityType = cloud.Spot
	for _, r := range []cloud.LaunchRequest{request("batch", 3), request("one", 1), spot} {
		if err := c.Launch(t.Context(), resolved(t, c, r)).Err(); err != nil {
			t.Errorf("%s: %v", r.Token, err)
		}
	}
	if _, err := c.CreateDisk(t.Context(), diskRequest("disk")); err != nil {
		t.Errorf("a disk: %v", err)
	}
	for _, call := range h.of("RunInstances") {
		for n, kind := range []string{"1", "2", "3", "4"} {
			at := "TagSpecification." + kind + "."
			if n == 3 && call["InstanceMarketOptions.MarketType"] == "" {
				continue
			}
			got := tagsIn(call, at)
			if got["team"] != "a" || got["kubernetes.io/cluster/prod"] != "owned" || got[cloud.TagOwner] != owner {
				t.Errorf("%s: a %s has the tags %v", call["ClientToken"], call[at+"ResourceType"], got)
			}
		}
	}
	for _, v := range model.Volumes.All() {
		if v.Tags["team"] != "a" || v.Tags["kubernetes.io/cluster/prod"] != "owned" || v.Tags[cloud.TagOwner] != owner {
			t.Errorf("the disk has the tags %v", v.Tags)
		}
	}
	want := map[string]string{"team": "a", cloud.TagOwner: owner, cloud.TagName: nameOfGroup(owner)}
	if got := cellsGroupOf(t, model).Tags; !maps.Equal(got, want) {
		t.Errorf("the group has the tags %v, want %v", got, want)
	}
}

// serveURL is the address of another model.
func serveURL(t *testing.T) string {
	t.Helper()
	_, url := serve(t, anAccount(sim.Knobs{}))
	return url
}

// tagsIn are the tags that a call has below a parameter.
func tagsIn(call map[string]string, at string) map[string]string {
	tags := map[string]string{}
	for name, value := range call {
		if n, is := strings.CutPrefix(name, at+"Tag."); is && strings.HasSuffix(n, ".Key") {
			tags[value] = call[at+"Tag."+strings.TrimSuffix(n, "Key")+"Value"]
		}
	}
	return tags
}

// A launch that is stored is sent as it was stored, or its token would be refused with another request.
func TestALaunchHasTheTagsThatItWasResolvedWith(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	h, url := eavesdrop(t, model)
	cfg := settings(url)
	cfg.Tags = map[string]string{"team": "a"}
	r := resolved(t, open(t, cfg), request("t", 2))
	cfg.Tags = map[string]string{"team": "b", "more": "c"}
	again := open(t, cfg)
	for range 2 {
		if err := runLaunch(t.Context(), again, r).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, call := range h.of("RunInstances") {
		if got := tagsIn(call, "TagSpecification.1."); got["team"] != "a" || got["more"] != "" {
			t.Errorf("it was sent with the tags %v", got)
		}
	}
}

// The AWS Load Balancer Controller wants exactly one group of an interface to have the cluster's tag.
func TestTheGroupOfCellsGetsTheTagsOfTheFileAndKeepsThoseOfOthers(t *testing.T) {
	allows, err := ec2.ParsePolicy(Policy())
	if err != nil {
		t.Fatal(err)
	}
	account := anAccount(sim.Knobs{})
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": allows}
	model, url := serve(t, account)
	cfg := settings(url)
	cfg.Cluster = "prod" // which is not for the group
	c := open(t, cfg)
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	own := map[string]string{cloud.TagOwner: owner, cloud.TagName: nameOfGroup(owner)}
	if got := cellsGroupOf(t, model).Tags; !maps.Equal(got, own) {
		t.Errorf("at first the group has the tags %v, want %v", got, own)
	}
	id := cellsGroupOf(t, model).ID
	model.Change(func(cfg *ec2.Config) {
		n := slices.IndexFunc(cfg.Groups, func(g ec2.Group) bool { return g.ID == id })
		cfg.Groups[n].Tags = with(own, "auditor", "seen")
	})
	cfg.GroupTags = map[string]string{"kubernetes.io/cluster/prod": "owned"}
	c = open(t, cfg)
	for range 2 {
		if err := c.Admit(t.Context(), owner); err != nil {
			t.Error(err)
		}
	}
	want := with(with(own, "auditor", "seen"), "kubernetes.io/cluster/prod", "owned")
	if got := cellsGroupOf(t, model).Tags; !maps.Equal(got, want) {
		t.Errorf("then the group has the tags %v, want %v", got, want)
	}
	if n := model.Calls()["CreateTags"]; n != 1 {
		t.Errorf("they were written %d times", n)
	}
}

// with are tags with one more.
func with(tags map[string]string, key, value string) map[string]string {
	return merged(tags, map[string]string{key: value})
}

// oneInstance is a driver with one instance and its parts, whose rights are a policy's.
func oneInstance(t *testing.T, policy []byte) (*Cloud, *ec2.Model, cloud.Instance) {
	t.Helper()
	allows, err := ec2.ParsePolicy(policy)
	if err != nil {
		t.Fatal(err)
	}
	account := anAccount(sim.Knobs{})
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": allows}
	model, url := serve(t, account)
	c := open(t, settings(url))
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), owner)
	if err != nil || len(list.Instances) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	return c, model, list.Instances[0]
}

func TestTagsAreWrittenOnAnInstanceItsRootDiskAndItsInterface(t *testing.T) {
	c, model, i := oneInstance(t, Policy())
	disk := makeDisk(t, c, diskRequest("claim"))
	if err := c.AttachDisk(t.Context(), disk.ID, i.ID); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	i = list.Instances[0]
	if len(i.Owned) != 2 || slices.Contains(i.Owned, disk.ID) {
		t.Fatalf("its parts are %v: want its root disk and its interface, and not %s", i.Owned, disk.ID)
	}
	tags := map[string]string{"team": "a", cloud.TagPod: "b"}
	if err := c.Tag(t.Context(), cloud.Tagging{ID: i.ID, Owned: i.Owned, Tags: tags}).Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range i.Owned {
		if got := model.Parts.Tags()[id]; got["team"] != "a" || got[cloud.TagPod] != "b" || got[cloud.TagOwner] != owner {
			t.Errorf("%s has the tags %v", id, got)
		}
	}
	if n := model.Calls()["CreateTags"]; n != 1 {
		t.Errorf("it took %d calls", n)
	}
	for _, v := range model.Volumes.All() {
		if v.Tags["team"] != "" {
			t.Errorf("the disk of a claim has the tags %v", v.Tags)
		}
	}
}

// EC2 shows no root disk of an instance that is pending.
func TestAnInstanceSaysThatItsRootDiskIsNotShownYet(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	account := anAccount(sim.Knobs{Pending: short(time.Minute)})
	account.Sim.Clock = clk
	_, url := serve(t, account)
	c := open(t, settings(url))
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	for _, late := range []bool{true, false} {
		list, err := c.List(t.Context(), owner)
		if err != nil || len(list.Instances) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		i := list.Instances[0]
		if root := slices.ContainsFunc(i.Owned, isVolume); i.OwnedLate != late || root == late {
			t.Errorf("one that is %s: late is %t, its parts are %v", i.State, i.OwnedLate, i.Owned)
		}
		clk.Step(time.Hour)
	}
}

// Lists may show a root disk before CreateTags knows it. Tags on the instance alone would say that its parts have them, too.
func TestAnInstanceIsTaggedOnceEC2KnowsItsParts(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	account := anAccount(sim.Knobs{})
	account.Sim.Clock, account.VolumeStep = clk, time.Minute
	model, url := serve(t, account)
	c := open(t, settings(url))
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), owner)
	if err != nil || len(list.Instances) != 1 || list.Instances[0].OwnedLate {
		t.Fatalf("%+v, %v", list, err)
	}
	i, tags := list.Instances[0], map[string]string{cloud.TagPod: "a"}
	for what, parts := range map[string][]string{"its root disk": i.Owned, "an interface": {"eni-0123456789abcdef0"}} {
		err := c.Tag(t.Context(), cloud.Tagging{ID: i.ID, Owned: parts, Tags: tags}).Err()
		if has := model.Machines().Truth()[0].Tags[cloud.TagPod]; !errors.Is(err, cloud.ErrNotYet) || has != "" {
			t.Errorf("while EC2 does not know %s: %v, the instance has the tag %q", what, err, has)
		}
	}
	clk.Step(time.Hour)
	if err := c.Tag(t.Context(), cloud.Tagging{ID: i.ID, Owned: i.Owned, Tags: tags}).Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range i.Owned {
		if got := model.Parts.Tags()[id]; got[cloud.TagPod] != "a" {
			t.Errorf("then %s has the tags %v", id, got)
		}
	}
}

// A policy that asks for the tags of a root disk denies all to one that EC2 does not know yet, if IAM judges it first.
func TestAnInstanceIsNotTaggedAloneWhileItsRootDiskMayNotBeKnown(t *testing.T) {
	allows, err := ec2.ParsePolicy(Policy())
	if err != nil {
		t.Fatal(err)
	}
	clk := clocktesting.NewFakeClock(time.Now())
	account := anAccount(sim.Knobs{})
	account.Sim.Clock, account.VolumeStep, account.RightsFirst = clk, time.Minute, true
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": allows}
	model, url := serve(t, account)
	c := open(t, settings(url))
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), owner)
	if err != nil || len(list.Instances) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	i := list.Instances[0]
	tagging := cloud.Tagging{ID: i.ID, Owned: i.Owned, Tags: map[string]string{cloud.TagPod: "a"}, Whole: true}
	err = c.Tag(t.Context(), tagging).Err()
	if has := model.Machines().Truth()[0].Tags[cloud.TagPod]; !errors.Is(err, cloud.ErrUnauthorised) || has != "" {
		t.Errorf("while EC2 does not know its root disk: %v, the instance has the tag %q", err, has)
	}
	clk.Step(time.Hour)
	if err := c.Tag(t.Context(), tagging).Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range i.Owned {
		if got := model.Parts.Tags()[id]; got[cloud.TagPod] != "a" {
			t.Errorf("then %s has the tags %v", id, got)
		}
	}
}

func isVolume(id string) bool { return strings.HasPrefix(id, "vol-") }

// A narrower policy lets it tag instances alone.
func TestAnInstanceIsTaggedAlsoWhereItsPartsCannotBe(t *testing.T) {
	doc := policyOf(permissions)
	for n := range doc.Statement {
		if doc.Statement[n].Sid == "KipTagsCells" {
			doc.Statement[n].Resource = []string{resource("instance")}
		}
	}
	c, model, i := oneInstance(t, doc.text())
	if err := c.Tag(t.Context(), cloud.Tagging{ID: i.ID, Owned: i.Owned, Tags: map[string]string{cloud.TagPod: "a"}}).Err(); err != nil {
		t.Error(err)
	}
	if list, err := c.List(t.Context(), owner); err != nil || list.Instances[0].Tags[cloud.TagPod] != "a" {
		t.Errorf("it has the tags %v, %v", list.Instances[0].Tags, err)
	}
	for _, id := range i.Owned {
		if got := model.Parts.Tags()[id]; got[cloud.TagPod] != "" {
			t.Errorf("%s has the tags %v", id, got)
		}
	}
}

// A label that is left of an earlier configuration is written with the tags of its pod.
func TestTagsOfTheConfigurationAreNotReplaced(t *testing.T) {
	_, url := serve(t, anAccount(sim.Knobs{}))
	cfg := settings(url)
	cfg.Tags = map[string]string{"team": "ops", "Stage": "prod"}
	c := open(t, cfg)
	launched := c.Launch(t.Context(), resolved(t, c, request("t", 1)))
	if err := launched.Err(); err != nil {
		t.Fatal(err)
	}
	id := launched[0].Instance.ID
	tags := map[string]string{"team": "security", "stage": "none", "app": "x", cloud.TagPod: "a"}
	if err := c.Tag(t.Context(), cloud.Tagging{ID: id, Tags: tags}).Err(); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), owner)
	if err != nil || len(list.Instances) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list.Instances[0].Tags; got["team"] != "ops" || got["stage"] != "" || got["Stage"] != "prod" || got["app"] != "x" ||
		got[cloud.TagPod] != "a" {
		t.Errorf("it has the tags %v", got)
	}
}
