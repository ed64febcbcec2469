package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// Values of Config.CPUCredits. The latter two are also EC2's.
const (
	creditsBoot      = "boot"
	creditsStandard  = "standard"
	creditsUnlimited = "unlimited"
)

var allCredits = []string{creditsBoot, creditsStandard, creditsUnlimited}

const (
	// rightFor is how long it counts that Kip may change CPU credits, and noRightFor that it may not.
	rightFor, noRightFor = 30 * 24 * time.Hour, 24 * time.Hour
)

// checkCredits returns an error that says what is wrong with Config.CPUCredits.
func (cfg *Config) checkCredits() error {
	switch {
	case !slices.Contains(allCredits, cfg.CPUCredits):
		return fmt.Errorf("cloud.aws.cpuCredits: %q is not valid: want one of %q", cfg.CPUCredits, allCredits)
	case cfg.CPUCredits == creditsUnlimited && currencyOf(cfg.Region) == yuan:
		// The embedded price is in dollars, and that of China is in no source.
		return fmt.Errorf("cloud.aws.cpuCredits: %s is not valid in region %s, where Kip does not know the price of credits: want %s or %s",
			creditsUnlimited, cfg.Region, creditsBoot, creditsStandard)
	}
	return nil
}

// cpuCredits chooses the CPU credits of burstable instances, and takes back what their boot was given.
type cpuCredits struct {
	*base
	instances *instances
}

// creditsOf returns the CPU credits that instances are launched with, "" for types without, and whether EndBoost is to
// be told of them.
//
// T3, T3a and T4g have no launch credits with standard ones: they start at their baseline, a t3.nano at a tenth of a
// CPU. With unlimited ones they start at full speed, and EC2 charges the surplus when they are changed to standard
// ones: at $0.05 a vCPU-hour, ten seconds of a CPU are $0.00014. Sources: EC2 User Guide, "Standard mode concepts for
// burstable performance instances" (Launch credits) and "Unlimited mode concepts" (When unlimited mode can incur
// charges). On Dedicated Hosts there are standard ones alone: EC2 API reference, "InstanceCreditSpecificationRequest".
//
// What Kip cannot take back it does not give: instances have unlimited credits once a call has shown that Kip may
// change credits. EndBoost is told of the first ones, too, which is that call.
func (e *cpuCredits) creditsOf(s cloud.LaunchSpec) (credits string, boosted bool) {
	switch {
	case !burstable(s.InstanceType):
		return "", false
	case isHost(s.Reservation) || e.cfg.CPUCredits == creditsStandard:
		return creditsStandard, false
	case e.cfg.CPUCredits == creditsUnlimited:
		return creditsUnlimited, false
	case e.holds(factNoCreditRight):
		return creditsStandard, false
	case e.holds(factCreditRight):
		return creditsUnlimited, true
	}
	return creditsStandard, true
}

// EndBoost implements cloud.Booster: it gives the instances standard CPU credits. EC2 refuses a call whole where Kip has
// no right to one of its instances, such as one that has lost its tags or has ended. So what a refused call named is looked
// up, and the call made again for those that are Kip's still.
func (e *cpuCredits) EndBoost(ctx context.Context, ids ...string) cloud.Results {
	results, err := e.giveStandardCredits(ctx, ids)
	if codeOf(err) != unauthorized {
		return results
	}
	all, lookErr := e.instances.Describe(ctx, ids...)
	if lookErr != nil {
		return cloud.Each(errors.Join(err, lookErr), ids...)
	}
	var own []string
	for n, i := range all {
		switch {
		case i.State == cloud.Unknown || i.State == cloud.Gone || i.State == cloud.Terminating:
			// Of one that ends, no source says for how long IAM knows its tags.
			ended := cloud.No(cloud.ErrNotFound, cloud.Scope{}, errors.New("it ends, or has ended"))
			results[n].Err = fmt.Errorf("give %s standard CPU credits: %w", i.ID, ended)
		case i.Tags[cloud.TagOwner] != "" && (e.cfg.Owner == "" || i.Tags[cloud.TagOwner] == e.cfg.Owner):
			own = append(own, i.ID)
		}
	}
	for _, r := range e.endOwnBoosts(ctx, own) {
		results[slices.Index(ids, r.ID)].Err = r.Err
	}
	return results
}

// endOwnBoosts ends the boosts of instances that EC2 has just described as Kip's own. It halves a call that EC2 refuses: a policy
// may deny one of them. Only a refusal of one by itself, while no call succeeds, shows that the right is missing. Then Kip halves
// no more, since each half would be refused.
func (e *cpuCredits) endOwnBoosts(ctx context.Context, own []string) (all cloud.Results) {
	var missing error
	done := false
	for parts := [][]string{own}; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		if len(part) == 0 {
			continue
		}
		results, err := e.giveStandardCredits(ctx, part)
		switch {
		case codeOf(err) != unauthorized:
			done = done || err == nil
		case len(part) == 1:
			missing = err
		case missing == nil || done:
			half := len(part) / 2
			parts = append([][]string{part[:half], part[half:]}, parts...)
			continue
		}
		all = append(all, results...)
	}
	if missing != nil && !done {
		e.noCreditRight(missing)
	}
	return all
}

// giveStandardCredits makes the call of EndBoost. The error is that of the call, which all results have then.
func (e *cpuCredits) giveStandardCredits(ctx context.Context, ids []string) (cloud.Results, error) {
	results := cloud.Each(nil, ids...)
	in := &ec2.ModifyInstanceCreditSpecificationInput{}
	for _, id := range ids {
		in.InstanceCreditSpecifications = append(in.InstanceCreditSpecifications, types.InstanceCreditSpecificationRequest{
			InstanceId: aws.String(id),
			CpuCredits: aws.String(creditsStandard),
		})
	}
	out, err := e.api.ModifyInstanceCreditSpecification(ctx, in)
	if err != nil {
		err = fmt.Errorf("give %d instances standard CPU credits: %w", len(ids), classifyNamed(err))
		return cloud.Each(err, ids...), err
	}
	if !e.holds(factCreditRight) || e.holds(factNoCreditRight) {
		e.note(factCreditRight, rightFor)
		e.note(factNoCreditRight, 0)
	}
	said := map[string]error{}
	for _, i := range out.SuccessfulInstanceCreditSpecifications {
		said[aws.ToString(i.InstanceId)] = nil
	}
	for _, i := range out.UnsuccessfulInstanceCreditSpecifications {
		said[aws.ToString(i.InstanceId)] = creditFault(i)
	}
	for n, id := range ids {
		err, is := said[id]
		if !is {
			err = errors.New("EC2 does not say whether it did")
		}
		if err != nil {
			results[n].Err = fmt.Errorf("give %s standard CPU credits: %w", id, err)
		}
	}
	return results, nil
}

// creditFault returns why EC2 has not changed the credits of an instance; nil if it has none.
func creditFault(i types.UnsuccessfulInstanceCreditSpecificationItem) error {
	if i.Error == nil {
		return errors.New("EC2 does not say why not")
	}
	said := &failed{code: string(i.Error.Code), message: aws.ToString(i.Error.Message)}
	switch i.Error.Code {
	case types.UnsuccessfulInstanceCreditSpecificationErrorCodeInstanceCreditSpecificationNotSupported:
		return nil
	case types.UnsuccessfulInstanceCreditSpecificationErrorCodeInstanceNotFound:
		return cloud.No(cloud.ErrNotFound, cloud.Scope{}, said)
	case types.UnsuccessfulInstanceCreditSpecificationErrorCodeIncorrectInstanceState: // such as stopping
		return cloud.No(cloud.ErrNotYet, cloud.Scope{}, said)
	}
	return cloud.No(cloud.ErrRefused, cloud.Scope{}, said)
}

// noCreditRight notes that Kip may not change CPU credits.
func (e *cpuCredits) noCreditRight(err error) {
	known := e.holds(factNoCreditRight)
	e.note(factCreditRight, 0)
	e.note(factNoCreditRight, noRightFor)
	if !known {
		e.cfg.Log.Warn("Kip may not change CPU credits, so burstable cells start with standard ones, slowly: want the right to "+
			"ec2:ModifyInstanceCreditSpecification, or cloud.aws.cpuCredits: standard", "for", noRightFor, "err", err)
	}
}
