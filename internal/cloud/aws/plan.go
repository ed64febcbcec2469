package aws

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// terms are how EC2 sells a type.
type terms struct {
	onDemand, spot bool
	freePlan       bool // also to accounts on AWS' Free plan
}

// termsOf returns those of a type. Other types than these two are sold in Capacity Blocks alone, into which only a
// reservation leads. A list that is not there says nothing. Source: EC2 API reference, "InstanceTypeInfo".
func termsOf(t types.InstanceTypeInfo) terms {
	all := t.SupportedUsageClasses
	return terms{
		onDemand: len(all) == 0 || slices.Contains(all, types.UsageClassTypeOnDemand),
		spot:     len(all) == 0 || slices.Contains(all, types.UsageClassTypeSpot),
		freePlan: aws.ToBool(t.FreeTierEligible),
	}
}

// freePlanFor is how long Kip takes the account to be on AWS' Free plan since EC2 has said so. EC2 does not say
// when the account leaves it: the next catalogue after that has all types, and one launch shows whether it has.
const freePlanFor = time.Hour

// freePlan knows whether the account is on AWS' Free plan, which lacks types.
type freePlan struct {
	*base

	mu      sync.Mutex
	terms   map[string]terms // how EC2 sells each type
	until   time.Time        // the account counts as one of the Free plan
	changed bool             // and the catalogue has not shown that yet
}

// notInPlan returns what it means that the account's plan lacks the type of a launch. It notes the plan: the next
// catalogue withholds all such types, rather than have each pod try them one after the other.
func (e *freePlan) notInPlan(r cloud.LaunchRequest, said *failed) error {
	asked, now := askedFor(r.LaunchSpec), e.cfg.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	no := cloud.No(cloud.ErrQuota, cloud.Scope{InstanceType: asked.InstanceType, Spot: asked.Spot, Pool: asked.Pool}, said)
	if e.terms[r.InstanceType].freePlan { // it is refused for something else, such as its capacity type
		return no
	}
	no.Err = fmt.Errorf("%w; %s", said, e.freePlanHas())
	no.Catalogue = !now.Before(e.until)
	e.changed = e.changed || no.Catalogue
	e.until = now.Add(freePlanFor)
	return no
}

// mostNamed is how many types of the Free plan a message names. There are six.
const mostNamed = 10

// freePlanHas says which types the account can have. The caller holds mu.
func (e *freePlan) freePlanHas() string {
	has := slices.DeleteFunc(slices.Sorted(maps.Keys(e.terms)), func(name string) bool { return !e.terms[name].freePlan })
	which := "has few types"
	if len(has) > 0 {
		which = "has only " + strings.Join(has[:min(len(has), mostNamed)], ", ")
	}
	return "AWS' Free plan " + which + ": use one of these, or upgrade the account to the Paid plan"
}

// sells notes how EC2 sells each type.
func (e *freePlan) sells(types map[string]terms) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.terms = types
}

// takeChange reports whether the plan has turned out to be another one since it was last called.
func (e *freePlan) takeChange() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed := e.changed
	e.changed = false
	return changed
}

// left returns for how long types are withheld yet; none or less if they are not.
func (e *freePlan) left() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.until.Sub(e.cfg.Clock.Now())
}

// withheld says why the account can have none of a type; "" where it can, or where that is not known. The caller
// holds mu.
func (e *freePlan) withheld(instanceType string) string {
	t, known := e.terms[instanceType]
	if !known || t.freePlan || !e.cfg.Clock.Now().Before(e.until) {
		return ""
	}
	// An endpoint that calls no type eligible does not say so of any.
	for _, t := range e.terms {
		if t.freePlan {
			return e.freePlanHas()
		}
	}
	return ""
}

// withholding returns types without the offerings of those that are withheld. The types are not changed.
func (e *freePlan) withholding(all []catalog.InstanceType) []catalog.InstanceType {
	e.mu.Lock()
	defer e.mu.Unlock()
	all = slices.Clone(all)
	for i := range all {
		if t := &all[i]; len(t.Offerings) > 0 {
			if t.Withheld = e.withheld(t.Name); t.Withheld != "" {
				t.Offerings = nil
			}
		}
	}
	return all
}

// tellPaidImage warns once of an image that AWS' Free plan lacks by what EC2 says of it, if the account is on that plan. EC2 then
// refuses a launch: "The specified image is not eligible for Free Tier" (https://github.com/bitnami/vms/issues/1838, of an image of
// AWS Marketplace). The field is of the SDK's type Image. No source says what it is for an image of the account's own, nor
// whether EC2 refuses that: so Kip launches it all the same.
func (e *freePlan) tellPaidImage(boot image) {
	e.mu.Lock()
	onPlan := e.cfg.Clock.Now().Before(e.until)
	e.mu.Unlock()
	if onPlan && boot.paid && e.isNews("the Free plan and image "+boot.id, "") {
		e.cfg.Log.Warn("the account is on AWS' Free plan, and EC2 says that the image of cells is not eligible for it: if launches are refused, "+
			"upgrade the account to the Paid plan, or name another image in cells.bootImageSpec", "image", boot.id)
	}
}

// mayHave returns an error if a type is withheld, as for a pod that was placed before that was known.
func (e *freePlan) mayHave(s cloud.LaunchSpec) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	why := e.withheld(s.InstanceType)
	if why == "" {
		return nil
	}
	asked := askedFor(s)
	return cloud.No(cloud.ErrQuota, cloud.Scope{InstanceType: asked.InstanceType, Spot: asked.Spot, Pool: asked.Pool},
		fmt.Errorf("%s is not in the account's plan: %s", s.InstanceType, why))
}
