package aws

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws/images"
	"github.com/elotl/kip/internal/cloud/cloudtest"
	"github.com/elotl/kip/internal/cloud/sim"
)

// runLaunch launches as Kip does.
var runLaunch = cloudtest.Launch

// resolved is a request as it is stored, and read again.
func resolved(t *testing.T, c *Cloud, r cloud.LaunchRequest) (stored cloud.LaunchRequest) {
	t.Helper()
	found, err := c.Resolve(t.Context(), r.LaunchSpec)
	if err != nil {
		t.Fatal(err)
	}
	r.Resolved = &found
	text, err := json.Marshal(r)
	if err == nil {
		err = json.Unmarshal(text, &stored)
	}
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// drifts are what changes in an account so that a launch is resolved to something else.
var drifts = map[string]func(*ec2.Config){
	"there is a newer image, with another disk": func(cfg *ec2.Config) {
		cfg.Images = append(cfg.Images, ec2.Image{
			ID:         "ami-9",
			Name:       "kip-cell-9",
			Owner:      "self",
			Created:    "2026-09-01T00:00:00.000Z",
			RootDevice: "/dev/sdz",
			GiB:        9,
		})
	},
	"the image is gone": func(cfg *ec2.Config) {
		cfg.Images = slices.DeleteFunc(cfg.Images, func(i ec2.Image) bool { return i.ID == "ami-2" })
	},
	"the subnet has no route to the internet any more": func(cfg *ec2.Config) {
		cfg.Subnets[0].Public = false
	},
	"the group's name is another's": func(cfg *ec2.Config) {
		cfg.Groups[1].Name = "former"
		cfg.Groups = append(cfg.Groups, ec2.Group{ID: "sg-9", Name: "another", VPC: vpc})
	},
	"a group is gone": func(cfg *ec2.Config) {
		cfg.Groups = slices.DeleteFunc(cfg.Groups, func(g ec2.Group) bool { return g.Name == "another" })
	},
	"the cells' group is gone": func(cfg *ec2.Config) {
		cfg.Groups = slices.DeleteFunc(cfg.Groups, func(g ec2.Group) bool { return g.Tags[cloud.TagOwner] == owner })
	},
	"nothing": func(*ec2.Config) {},
}

// The answer to a launch is lost, and another Kip, which knows nothing of it but what is
// stored, sends it again.
func TestALaunchIsSentAgainAsItWasWhateverItsNamesMeanByThen(t *testing.T) {
	for what, drift := range drifts {
		model, url := serve(t, anAccount(sim.Knobs{}))
		r := resolved(t, open(t, settings(url)), request("t", 3))
		model.Machines().FailNth(cloud.CallLaunch, 1, sim.Fault{After: sim.ErrLost})
		if err := runLaunch(t.Context(), open(t, settings(url)), r).Err(); err == nil || cloud.NothingDone(err) {
			t.Fatalf("%s: a lost answer is %v", what, err)
		}
		model.Change(drift)
		elsewhere := settings(url)
		elsewhere.Subnets = []string{privateSubnet} // as it is configured now
		got, err := runLaunch(t.Context(), open(t, elsewhere), r).All()
		if err != nil {
			t.Errorf("%s: sent again it is %v", what, err)
			continue
		}
		if run := model.Machines().Truth(); len(run) != 3 || got[2].ID != run[2].ID {
			t.Errorf("%s: sent again it is %v, and %d run", what, got, len(run))
		}
	}
}

// A launch that has not reached EC2 yet is not changed either: where something of it is gone, it
// is to be launched anew, and that is resolved by what is there.
func TestALaunchOfWhatIsGoneIsStaleAndAnotherIsResolvedAnew(t *testing.T) {
	for what, tc := range map[string]struct {
		stale bool
		anew  string // the image, of which groups, and whether public; "" for a refusal
	}{
		"nothing": {anew: "ami-2 [own sg-2 sg-1] true"},
		"there is a newer image, with another disk":        {anew: "ami-2 [own sg-2 sg-1] true"}, // until the next catalogue
		"the image is gone":                                {stale: true, anew: "ami-1 [own sg-2 sg-1] true"},
		"the subnet has no route to the internet any more": {anew: "ami-2 [own sg-2 sg-1] true"},
		"the group's name is another's":                    {anew: "ami-2 [own sg-2 sg-1] true"},
		"a group is gone":                                  {stale: true},
		"the cells' group is gone":                         {stale: true, anew: "ami-2 [own sg-2 sg-1] true"},
	} {
		model, url := serve(t, anAccount(sim.Knobs{}))
		resolved(t, open(t, settings(url)), request("t", 3)) // it makes the group
		s, clk := settings(url), clocktesting.NewFakeClock(time.Now())
		s.Clock = clk
		c := open(t, s)
		r := resolved(t, c, request("t", 3))
		model.Change(drifts[what])
		err := runLaunch(t.Context(), c, r).Err()
		if tc.stale && (!errors.Is(err, cloud.ErrStale) || !cloud.Refused(err) || cloud.ScopeOf(err).Says()) || !tc.stale && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if run := model.Machines().Truth(); tc.stale == (len(run) > 0) {
			t.Errorf("%s: %d run", what, len(run))
		}
		again, err := c.Resolve(t.Context(), request("u", 3).LaunchSpec)
		if tc.stale && tc.anew == "" {
			if err == nil || cloud.Refused(err) {
				t.Errorf("%s: by one list without it: %v", what, err)
			}
			clk.Step(goneAfter)
			again, err = c.Resolve(t.Context(), request("u", 3).LaunchSpec)
		}
		own := ""
		for _, g := range model.Groups.All() {
			if g.Tags[cloud.TagOwner] == owner {
				own = g.ID
			}
		}
		for n, id := range again.SecurityGroups {
			if id == own {
				again.SecurityGroups[n] = "own"
			}
		}
		if got := fmt.Sprintf("%s %v %t", again.Image, again.SecurityGroups, again.PublicAddress); (err != nil) != (tc.anew == "") ||
			err != nil && !cloud.Refused(err) || err == nil && got != tc.anew {
			t.Errorf("%s: anew it is %s, %v; want %q", what, got, err, tc.anew)
		}
	}
}

// Whoever takes one subnet away takes it alone: the others go on being launched in.
func TestASubnetThatGoesKeepsNoLaunchFromTheOthers(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	s := settings(url)
	s.Subnets = []string{"subnet-a1", "subnet-a2"}
	clk := clocktesting.NewFakeClock(time.Now())
	s.Clock = clk
	c := open(t, s)
	gone := resolved(t, c, request("t", 1)) // in subnet-a1
	model.Change(func(cfg *ec2.Config) {
		cfg.Subnets = slices.DeleteFunc(cfg.Subnets, func(s ec2.Subnet) bool { return s.ID == "subnet-a1" })
	})
	if err := runLaunch(t.Context(), c, gone).Err(); !errors.Is(err, cloud.ErrStale) {
		t.Fatalf("in the one that is gone: %v", err)
	}
	_, err := c.Resolve(t.Context(), request("u", 1).LaunchSpec)
	if err == nil || cloud.Refused(err) {
		t.Errorf("by one list without the one that is gone: %v", err)
	}
	clk.Step(goneAfter)
	_, err = c.Resolve(t.Context(), request("u", 1).LaunchSpec)
	if got := cloud.ScopeOf(err); !cloud.Refused(err) || got != (cloud.Scope{Subnet: "subnet-a1"}) {
		t.Errorf("anew in the one that is gone: %v, which is about %+v", err, got)
	}
	other := request("v", 1)
	other.Subnet = "subnet-a2"
	if err := c.Launch(t.Context(), resolved(t, c, other)).Err(); err != nil {
		t.Errorf("in the other: %v", err)
	}
	if _, err := c.Catalogue(t.Context()); err != nil {
		t.Errorf("the catalogue: %v", err)
	}
	if _, err := open(t, s).Catalogue(t.Context()); err == nil {
		t.Error("a Kip that begins with a subnet that is not there says nothing")
	}
}

func TestWhatALaunchNeedsOfItsImageKipsOwnHasNot(t *testing.T) {
	if tagKipImage != images.TagArch {
		t.Errorf("%s is looked for, and %s is published", tagKipImage, images.TagArch)
	}
	account := anAccount(sim.Knobs{})
	for n := range account.Images {
		if account.Images[n].ID == "ami-1" {
			account.Images[n].Tags = map[string]string{images.TagArch: "amd64"}
		}
	}
	_, url := serve(t, account)
	for image, kips := range map[string]bool{"ami-1": true, "ami-2": false} {
		for _, login := range []bool{true, false} {
			s := request("t", 1).LaunchSpec
			s.Login, s.Image = login, map[string]string{imageID: image}
			_, err := open(t, settings(url)).Resolve(t.Context(), s)
			unfit := errors.Is(err, cloud.ErrUnfit) && strings.Contains(err.Error(), "nobody can log in on image "+image)
			if unfit != (kips && login) || !unfit && err != nil || cloud.Refused(err) || unfit && !cloud.NothingDone(err) {
				t.Errorf("image %s, login %t: %v", image, login, err)
			}
		}
		s := request("t", 1).LaunchSpec
		s.Devices, s.Image = true, map[string]string{imageID: image}
		_, err := open(t, settings(url)).Resolve(t.Context(), s)
		unfit := errors.Is(err, cloud.ErrUnfit) && strings.Contains(err.Error(), "image "+image+", which is Kip's own, has no driver of GPUs")
		if unfit != kips || !unfit && err != nil {
			t.Errorf("image %s for a pod with GPUs: %v", image, err)
		}
	}
}

// The types of the catalogue all have UEFI, and not all of them a BIOS.
func TestAnImageThatBootsByBIOSAloneIsRefusedWhereTheTypeHasNone(t *testing.T) {
	for mode, fits := range map[string]bool{"": true, "uefi": true, "uefi-preferred": true, "legacy-bios": false} {
		account := anAccount(sim.Knobs{})
		for n := range account.Images {
			account.Images[n].BootMode = mode
		}
		small, large := account.Sim.Catalogue[0].Name, account.Sim.Catalogue[1].Name
		account.Sim.Catalogue[1].BootModes = []string{"uefi"}
		_, url := serve(t, account)
		c := open(t, settings(url))
		if _, err := c.Catalogue(t.Context()); err != nil {
			t.Fatal(err)
		}
		for instanceType, fits := range map[string]bool{small: true, large: fits, "unknown": true} {
			s := request("t", 1).LaunchSpec
			s.Image, s.InstanceType = map[string]string{imageID: "ami-1"}, instanceType
			found, err := c.Resolve(t.Context(), s)
			if fits && (err != nil || found.Image != "ami-1") {
				t.Errorf("boot mode %q on %s: image %s, %v", mode, instanceType, found.Image, err)
			}
			const want = "image ami-1 has the boot mode legacy-bios, and c5.large boots by UEFI alone: want an image with the boot mode uefi"
			if !fits && (!errors.Is(err, cloud.ErrRefused) || !strings.Contains(err.Error(), want) ||
				cloud.ScopeOf(err).InstanceType != instanceType) {
				t.Errorf("boot mode %q on %s: %v, about %+v, want %q", mode, instanceType, err, cloud.ScopeOf(err), want)
			}
		}
	}
}

// Nobody would find, or end, the volumes that cells of such an image leave.
func TestAnImageWhoseVolumesOutliveTheirInstancesIsRefused(t *testing.T) {
	for _, ends := range []bool{true, false} {
		account := anAccount(sim.Knobs{})
		account.Images[0].Further, account.Images[0].Ends = "/dev/sdb", ends
		_, url := serve(t, account)
		s := request("t", 1).LaunchSpec
		s.Image = map[string]string{imageID: "ami-1"}
		found, err := open(t, settings(url)).Resolve(t.Context(), s)
		const want = "the volume /dev/sdb of ami-1 stays when an instance ends"
		switch {
		case ends && (err != nil || found.Image != "ami-1"):
			t.Errorf("one whose volumes end: image %s, %v", found.Image, err)
		case !ends && (!errors.Is(err, cloud.ErrRefused) || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What was stored has the rate that was configured then.
func TestARootDiskIsFilledAtTheRateThatIsConfigured(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	h, url := eavesdrop(t, model)
	s := settings(url)
	s.RootDiskInitRate = 250
	stored := resolved(t, open(t, s), request("t", 1))
	s.RootDiskInitRate = 100
	if err := runLaunch(t.Context(), open(t, s), stored).Err(); err != nil {
		t.Fatal(err)
	}
	if got := h.of("RunInstances")[0]["BlockDeviceMapping.1.Ebs.VolumeInitializationRate"]; got != "250" {
		t.Errorf("the rate is %q, want 250", got)
	}
}
