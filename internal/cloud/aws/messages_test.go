package aws

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// No right of Kip's is missing, no type and no pod is at fault.
func TestAnImageThatTheAccountMayNotUseWaitsForTheOperator(t *testing.T) {
	for what, tc := range map[string]struct {
		change   func(*ec2.Image)
		plan     ec2.Plan
		says, do string
	}{
		"withdrawn": {
			func(i *ec2.Image) { i.Withdrawn, i.Listed = true, true }, ec2.Plan{},
			"Not authorized for images: [ami-2]", "ask the owner",
		},
		"of AWS Marketplace": {func(i *ec2.Image) { i.Product = "abc" }, ec2.Plan{}, "OptInRequired", "subscribe to the product"},
		"not of the Free plan": {
			func(i *ec2.Image) { i.Paid = true }, ec2.Plan{Free: true, Eligible: []string{"c5.large"}},
			"image is not eligible", "upgrade the account",
		},
	} {
		account := anAccount(sim.Knobs{})
		account.Plan = tc.plan
		tc.change(&account.Images[1])
		model, url := serve(t, account)
		clk := clocktesting.NewFakeClock(time.Now())
		s := settings(url)
		s.Clock = clk
		c := open(t, s)
		r := request("t", 2)
		r.Arch = "amd64"
		waits := func(err error) {
			t.Helper()
			scope := cloud.ScopeOf(err)
			if cloud.CauseOf(err) != cloud.ErrUnfit || !cloud.NothingDone(err) || scope.Account || scope.InstanceType != "c5.large" {
				t.Fatalf("%s: %v for %+v: want the configuration's fault", what, err, scope)
			}
			for _, want := range []string{"cells.bootImageSpec", "ami-2", tc.says, tc.do} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: no word of %q: %v", what, want, err)
				}
			}
		}
		waits(runLaunch(t.Context(), c, r).Err())
		calls := model.Calls()["RunInstances"]
		_, err := c.Resolve(t.Context(), r.LaunchSpec)
		waits(err)
		if n := model.Calls()["RunInstances"]; n != calls {
			t.Errorf("%s: %d launches to learn what is known", what, n-calls)
		}
		// What is newer is found at once, what has been put right in a while.
		model.Change(func(cfg *ec2.Config) {
			better := cfg.Images[0]
			better.ID, better.Name, better.Created = "ami-9", "kip-cell-9", "2026-09-01T00:00:00.000Z"
			cfg.Images = append(cfg.Images, better)
		})
		c.caches.forget()
		if found, err := c.Resolve(t.Context(), r.LaunchSpec); err != nil || found.Image != "ami-9" {
			t.Errorf("%s: with a newer one: %s, %v", what, found.Image, err)
		}
		model.Change(func(cfg *ec2.Config) {
			cfg.Images = slices.DeleteFunc(cfg.Images, func(i ec2.Image) bool { return i.ID == "ami-9" })
			one := &cfg.Images[1]
			one.Withdrawn, one.Product, one.Paid = false, "", false
		})
		clk.Step(barredFor)
		c.caches.forget()
		if err := runLaunch(t.Context(), c, r).Err(); err != nil {
			t.Errorf("%s, and put right: %v", what, err)
		}
	}
}

// The launch was resolved before: the image's share is withdrawn, and lists show it no more.
func TestALaunchOfAnImageThatIsSharedNoMoreIsResolvedAnew(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	c := open(t, settings(url))
	r := resolved(t, c, request("t", 1))
	if r.Resolved.Image != "ami-2" {
		t.Fatalf("resolved to %s", r.Resolved.Image)
	}
	model.Change(func(cfg *ec2.Config) { cfg.Images[1].Withdrawn = true })
	if err := runLaunch(t.Context(), c, r).Err(); !errors.Is(err, cloud.ErrUnfit) {
		t.Errorf("it is launched: %v", err)
	}
	again, err := c.Resolve(t.Context(), request("u", 1).LaunchSpec)
	if err != nil || again.Image != "ami-1" {
		t.Errorf("anew it is %s, %v: want the newest that is left", again.Image, err)
	}
}

// The same codes without those words are the account's.
func TestACodeWithOtherWordsIsTheAccounts(t *testing.T) {
	for code, status := range map[string]int{"AuthFailure": 401, "OptInRequired": 401} {
		c := answering(t, "RunInstances", status, code, "You are not authorized to use the requested service.")
		err := runLaunch(t.Context(), c, request("t", 1)).Err()
		if cloud.CauseOf(err) != cloud.ErrUnauthorised || !cloud.ScopeOf(err).Account {
			t.Errorf("%s: %v for %+v", code, err, cloud.ScopeOf(err))
		}
	}
}
