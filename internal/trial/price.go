package trial

import (
	"fmt"
	"time"
)

const (
	// Cap is what a trial may cost, in US dollars.
	Cap = 1.0
	// ending is how long an instance may live after its pod was deleted.
	ending = 3 * time.Minute
	// runsFor bounds the steps of a trial, and livesFor all that it makes: then the cluster itself removes it.
	runsFor, livesFor = 50 * time.Minute, time.Hour
)

// What is paid beside instances, at most, in US dollars. These are bounds for all regions, not prices: us-east-1 costs half.
const (
	// A load balancer costs $0.0225 an hour and $0.006 a capacity unit in us-east-1, and an hour that has begun counts as whole:
	// https://aws.amazon.com/elasticloadbalancing/pricing/ (Network Load Balancer). A trial that is killed may begin a second one.
	balancerCosts = 2 * 0.05
	// A NAT gateway costs $0.045 a GB in us-east-1, which an image takes in a private subnet: https://aws.amazon.com/vpc/pricing/.
	largeImageCosts = 0.10
	// A GB of gp3 costs $0.08 a month in us-east-1: https://aws.amazon.com/ebs/pricing/.
	volumeCosts = 0.01
)

// Price is what a trial may cost, in US dollars.
type Price struct {
	// AtMost is the most that all may cost, also if kipctl is killed.
	AtMost float64 `json:"atMost"`
	// MaxPerHour is the most that one instance may cost an hour: Kip launches none that is dearer.
	MaxPerHour float64 `json:"maxPerHour"`
	// QuotedPerHour is what the instance of the dearest pod is expected to cost an hour; nil if that is not known.
	QuotedPerHour *float64 `json:"quotedPerHour"`
	// Steps are the most that each step may cost while kipctl runs, and Killed is what comes to it if kipctl is killed.
	Steps  []StepPrice `json:"steps"`
	Killed float64     `json:"killed"`
}

// StepPrice is what a step may cost.
type StepPrice struct {
	Name  string `json:"name"`
	What  string `json:"what"`
	Cells int    `json:"cells"`
	// Lasts is the longest time that one of its instances may live, in seconds.
	Lasts int64 `json:"lasts"`
	// Beside is what is paid beside instances.
	Beside float64 `json:"beside,omitempty"`
	AtMost float64 `json:"atMost"`
}

// price returns what the steps may cost. The error says that this is too much.
func (t *Trial) price(groups [][]step) (Price, error) {
	p := Price{MaxPerHour: t.MaxPricePerHour}
	most := 0
	for _, group := range groups {
		// The pods of a step live until the last step of its group has ended.
		var lasts time.Duration
		for _, s := range group {
			lasts += s.most
		}
		cells := 0
		for _, s := range group {
			if t.skipped(s.name) {
				continue
			}
			one := StepPrice{
				Name:   s.name,
				What:   s.what,
				Beside: s.beside,
			}
			if !s.launchesNone {
				one.Cells = len(s.pods)
			}
			if one.Cells > 0 {
				one.Lasts = int64((lasts + ending).Seconds())
			}
			one.AtMost = float64(one.Cells)*p.MaxPerHour*(lasts+ending).Hours() + s.beside
			cells += one.Cells
			p.AtMost += one.AtMost
			p.Steps = append(p.Steps, one)
			t.quote(s, &p)
		}
		most = max(most, cells)
	}
	p.Killed = float64(most) * p.MaxPerHour * (livesFor + ending).Hours()
	p.AtMost += p.Killed
	if p.QuotedPerHour != nil && *p.QuotedPerHour > p.MaxPerHour {
		return p, fmt.Errorf("--max-price-per-hour is %v: it must be at least %.4f, which the cheapest instance costs that these pods fit on",
			p.MaxPerHour, *p.QuotedPerHour)
	}
	if p.AtMost > Cap {
		return p, fmt.Errorf("a trial may cost $%.2f: it must be at most $%.2f. Lower --max-price-per-hour (%v), or leave steps out with --skip",
			p.AtMost, Cap, p.MaxPerHour)
	}
	return p, nil
}

// quote notes what the dearest pod of a step is expected to cost.
func (t *Trial) quote(s step, p *Price) {
	if t.Price == nil || s.launchesNone {
		return
	}
	for _, pod := range s.pods {
		if hour := t.Price(pod); hour != nil && (p.QuotedPerHour == nil || *hour > *p.QuotedPerHour) {
			p.QuotedPerHour = hour
		}
	}
}

// ledger is what the cells of a trial have cost.
type ledger map[string]*entry

// entry is a cell as it was last seen.
type entry struct {
	instance, controller string
	perHour              float64 // 0 if it is not known
	since, seen          time.Time
}

// spent is what they have cost, by the clocks of Kip and of kipctl. Clouds charge a minute at least.
func (l ledger) spent() (dollars float64) {
	for _, e := range l {
		if !e.since.IsZero() {
			dollars += e.perHour * max(e.seen.Sub(e.since), time.Minute).Hours()
		}
	}
	return dollars
}
