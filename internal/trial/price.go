package trial

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// Cap is what a trial may cost, in US dollars.
	Cap = 1.0
	// ending is how long an instance may live after its pod was deleted.
	ending = 3 * time.Minute
	// runsFor bounds the steps of a trial, and livesFor all that it makes: then the cluster itself removes it.
	runsFor, livesFor = 50 * time.Minute, time.Hour
)

// extra is what a step may cost beside instances, in US dollars. It is a bound for all regions, not a price: us-east-1 costs half.
type extra struct {
	part   string
	atMost float64
	// gib is the size of a disk that is there for livesFor; 0 for no disk. Of all else no catalogue of Kip has a price.
	gib int
	// why says what the bound is of.
	why string
}

var (
	// A load balancer costs $0.0225 an hour and $0.006 a capacity unit in us-east-1, and an hour that has begun counts as whole:
	// https://aws.amazon.com/elasticloadbalancing/pricing/ (Network Load Balancer). A trial that is killed may begin a second one.
	balancerCosts = extra{"load balancer", 2 * 0.05, 0, "two hours; the bound is twice the price in us-east-1"}
	// A NAT gateway costs $0.045 a GB in us-east-1, which an image takes in a private subnet: https://aws.amazon.com/vpc/pricing/.
	largeImageCosts = extra{"NAT gateway", 0.10, 0, "1 GB of an image; the bound is twice the price in us-east-1"}
	// A GB of gp3 costs $0.08 a month in us-east-1: https://aws.amazon.com/ebs/pricing/.
	volumeCosts = extra{"volume", 0.01, 1, "1 GiB for an hour"}
)

// Catalogue has the prices of the cluster's region, in US dollars.
type Catalogue struct {
	Region string
	AsOf   string // the date of the prices
	// DiskPerGiBMonth and AddressPerHour are of a disk and of a public address; 0 is a price that it does not have.
	DiskPerGiBMonth, AddressPerHour float64
	// Types returns the types that fit a pod, the cheapest first, as far as they are worth a question.
	Types func(*corev1.Pod) []string
	// Quote returns what it has of the instance that Kip would launch for a pod; false if it has no type for it.
	Quote func(*corev1.Pod) (Quote, bool)
}

// Quote is what an instance is expected to cost an hour, in US dollars. nil is a price that is not known.
type Quote struct {
	InstanceType           string
	Machine, Disk, Address *float64
}

// sum is what is known of it; nil if the machine's price is not known.
func (q Quote) sum() *float64 {
	if q.Machine == nil {
		return nil
	}
	sum := *q.Machine
	for _, part := range []*float64{q.Disk, q.Address} {
		if part != nil {
			sum += *part
		}
	}
	return &sum
}

// Price is what a trial may cost, in US dollars.
type Price struct {
	// AtMost is the most that all may cost, also if kipctl is killed. Catalogue is what it would cost by the catalogue's prices if each
	// instance lived for as long as it may, with the bounds of what the catalogue does not have; nil if it has no prices of the instances.
	AtMost    float64  `json:"atMost"`
	Catalogue *float64 `json:"catalogue"`
	// Region and AsOf are those of the catalogue's prices; empty without any.
	Region string `json:"region,omitempty"`
	AsOf   string `json:"asOf,omitempty"`
	// MaxPerHour is the most that one instance may cost an hour: Kip launches none that is dearer.
	MaxPerHour float64 `json:"maxPerHour"`
	// QuotedPerHour is what the instance of the dearest pod is expected to cost an hour; nil if that is not known.
	QuotedPerHour *float64    `json:"quotedPerHour"`
	Steps         []StepPrice `json:"steps"`
	// Parts are the same dollars as those of Steps and Killed, by what they are paid for.
	Parts []PartPrice `json:"parts"`
	// Killed is what comes to the steps if kipctl is killed.
	Killed float64 `json:"killed"`
}

// StepPrice is what a step may cost while kipctl runs.
type StepPrice struct {
	Name  string `json:"name"`
	What  string `json:"what"`
	Cells int    `json:"cells"`
	// InstanceType is what the catalogue expects; "" if it has none.
	InstanceType string `json:"instanceType,omitempty"`
	// Lasts is the longest time that one of its instances may live, in seconds.
	Lasts int64 `json:"lasts"`
	// Beside is what is paid beside instances.
	Beside float64 `json:"beside,omitempty"`
	AtMost float64 `json:"atMost"`
}

// PartPrice is what one kind of thing may cost in all steps.
type PartPrice struct {
	Name string `json:"name"`
	// Of is the part that this is a part of; "" for none.
	Of string `json:"of,omitempty"`
	// Catalogue is the sum by the catalogue's prices; nil if it has none.
	Catalogue *float64 `json:"catalogue"`
	// AtMost is nil for a part of another, whose bound holds for all of it.
	AtMost *float64 `json:"atMost"`
	Why    string   `json:"why"`
}

// bill is what instances cost by the catalogue; nil is a sum of which some is not known.
type bill struct{ machines, disks, addresses *float64 }

func newBill() bill { return bill{new(0.0), new(0.0), new(0.0)} }

// add adds so many hours of another bill.
func (b *bill) add(other bill, hours float64) {
	for _, part := range []struct{ sum, price **float64 }{
		{&b.machines, &other.machines}, {&b.disks, &other.disks}, {&b.addresses, &other.addresses},
	} {
		if *part.sum == nil || *part.price == nil {
			*part.sum = nil
			continue
		}
		*part.sum = new(**part.sum + **part.price*hours)
	}
}

// sum is what is known of it; nil if that is not what the machines cost.
func (b bill) sum() *float64 {
	return Quote{Machine: b.machines, Disk: b.disks, Address: b.addresses}.sum()
}

// price returns what the steps may cost. The error says that this is too much.
func (t *Trial) price(groups [][]step) (Price, error) {
	p := Price{MaxPerHour: t.MaxPricePerHour, Parts: []PartPrice{}}
	if t.Catalogue != nil {
		p.Region, p.AsOf = t.Catalogue.Region, t.Catalogue.AsOf
	}
	all, dearest, most, instances := newBill(), newBill(), 0, 0.0
	var extras []extra
	for _, group := range groups {
		// The pods of a step live until the last step of its group has ended.
		lasts := ending
		for _, s := range group {
			lasts += s.most
		}
		cells, hourly := 0, newBill()
		for _, s := range group {
			if t.skipped(s.name) {
				continue
			}
			one := StepPrice{Name: s.name, What: s.what}
			if !s.launchesNone && len(s.pods) > 0 {
				one.Cells, one.Lasts = len(s.pods), int64(lasts.Seconds())
				hourly.add(t.quote(s, &one, &p), 1)
			}
			one.AtMost = float64(one.Cells) * p.MaxPerHour * lasts.Hours()
			instances += one.AtMost
			if s.beside.atMost > 0 {
				one.Beside, one.AtMost = s.beside.atMost, one.AtMost+s.beside.atMost
				extras = append(extras, s.beside)
			}
			cells += one.Cells
			p.Steps = append(p.Steps, one)
		}
		all.add(hourly, lasts.Hours())
		most = max(most, cells)
		if dearest.sum() != nil && (hourly.sum() == nil || *hourly.sum() > *dearest.sum()) {
			dearest = hourly
		}
	}
	killed := newBill()
	killed.add(dearest, (livesFor + ending).Hours())
	p.Killed = float64(most) * p.MaxPerHour * (livesFor + ending).Hours()
	t.parts(&p, instances, all, extras, killed)
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

// quote returns what an hour of a step's instances costs by the catalogue, and notes the type and what the dearest one costs.
func (t *Trial) quote(s step, one *StepPrice, p *Price) bill {
	b := newBill()
	for _, pod := range s.pods {
		q, has := Quote{}, false
		if t.Catalogue != nil {
			q, has = t.Catalogue.Quote(pod)
		}
		if hour := q.sum(); has && hour != nil {
			one.InstanceType = q.InstanceType
			if p.QuotedPerHour == nil || *hour > *p.QuotedPerHour {
				p.QuotedPerHour = hour
			}
		}
		b.add(bill{q.Machine, q.Disk, q.Address}, 1)
	}
	return b
}

// parts lists what is paid for, and adds it up.
func (t *Trial) parts(p *Price, instances float64, all bill, extras []extra, killed bill) {
	const name = "instances"
	known := func(price float64, unit string) string {
		if price == 0 {
			return "the catalogue has no price"
		}
		return "$" + strconv.FormatFloat(price, 'f', -1, 64) + unit
	}
	var c Catalogue
	if t.Catalogue != nil {
		c = *t.Catalogue
	}
	types := "the catalogue has no price"
	if p.QuotedPerHour != nil {
		types = fmt.Sprintf("the dearest costs $%.4f an hour with disk and address", *p.QuotedPerHour)
	}
	p.Parts = append(p.Parts,
		PartPrice{name, "", all.sum(), &instances,
			fmt.Sprintf("Kip launches none that costs more than $%v an hour with disk and address", p.MaxPerHour)},
		PartPrice{"machines", name, all.machines, nil, types},
		PartPrice{"root disks", name, all.disks, nil, known(c.DiskPerGiBMonth, " a GiB and month")},
		PartPrice{"public addresses", name, all.addresses, nil, known(c.AddressPerHour, " an hour, if cells have one")})
	for _, e := range extras {
		part := PartPrice{Name: e.part, AtMost: new(e.atMost), Why: e.why}
		if e.gib > 0 && c.DiskPerGiBMonth > 0 {
			part.Catalogue = new(float64(e.gib) * c.DiskPerGiBMonth / hoursPerMonth * livesFor.Hours())
			part.Why += ", at " + known(c.DiskPerGiBMonth, " a GiB and month")
		}
		p.Parts = append(p.Parts, part)
	}
	p.Parts = append(p.Parts, PartPrice{"if kipctl is killed", "", killed.sum(), new(p.Killed),
		fmt.Sprintf("what runs then ends by itself, within %s", livesFor+ending)})
	p.Catalogue = new(0.0)
	for _, part := range p.Parts {
		if part.Of != "" {
			continue
		}
		p.AtMost += *part.AtMost
		switch {
		case part.Catalogue == nil && (part.Name == name || all.sum() == nil):
			p.Catalogue = nil
		case p.Catalogue == nil:
		case part.Catalogue == nil:
			*p.Catalogue += *part.AtMost
		default:
			*p.Catalogue += *part.Catalogue
		}
	}
}

// hoursPerMonth is how clouds count a month.
const hoursPerMonth = 730

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
