package quote

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
	"github.com/elotl/kip/internal/suggest"
)

// Quote is what the pods of manifests would cost.
type Quote struct {
	Pods []Pod `json:"pods"`
}

// Pod is what the pods of one workload would cost. Prices are those of one of its pods,
// in dollars an hour, with all that is paid for it: the machine, CPU above a burstable
// type's baseline, its root disk, a public address; nil is a price that is not known.
type Pod struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	// Owner is kind and name such as Deployment/web; "" for a pod of its own.
	Owner string `json:"owner"`
	// Replicas is how many run at once.
	Replicas     int64  `json:"replicas"`
	InstanceType string `json:"instanceType"`
	// Zone is "" where the catalogue does not name zones.
	Zone string `json:"zone"`
	// LaunchType is on-demand, spot or dedicated.
	LaunchType string `json:"launchType"`

	PricePerHour *float64 `json:"pricePerHour"`
	// SpotPricePerHour is the same for the cheapest type as spot.
	SpotPricePerHour *float64 `json:"spotPricePerHour"`
	// FargatePricePerHour is what Fargate charges for a task that has what the pod asks for.
	FargatePricePerHour *float64 `json:"fargatePricePerHour"`
	// Reason says why it is this type, or why there is none, and what is not known.
	Reason string `json:"reason"`

	// PricePerMonth is that of all replicas, 730 hours long, or of the runs of a month; nil
	// where that is not known.
	PricePerMonth *float64 `json:"-"`
	// Failed reports whether no type can be had for it, which Reason explains.
	Failed bool `json:"-"`
	// NotOnKip reports whether such pods do not run on Kip.
	NotOnKip bool `json:"-"`
}

// Options are what a cluster's provider.yaml would say.
type Options struct {
	// Arch is that of pods that name none.
	Arch string
	// DiskBytes is the size of the root disk of pods that name none.
	DiskBytes int64
	// ReservedMemoryBytes is what a cell needs beside its pod.
	ReservedMemoryBytes int64
	// PrivateIPOnly says that cells have no public address.
	PrivateIPOnly bool
	// InstanceData replace sizes and prices of the catalogue; nil for none.
	InstanceData catalog.InstanceData
	// Beside is what the DaemonSets request that run beside each pod, as [BesideEach] says.
	Beside corev1.ResourceList
	// RunHours is how long a run of a Job or CronJob takes; 0 where it is not known.
	RunHours float64
}

// Prices are those of a region.
type Prices struct {
	Region string
	// AsOf is their date, and Rates what is paid beside machines, as the catalogue has both.
	AsOf    string
	Rates   catalog.Rates
	options Options
	placer  *placement.Placer
	// fargate reports whether Fargate's prices are those of this region.
	fargate bool
}

// In returns the prices of a region out of a catalogue.
func In(list *catalog.PriceList, region string, o Options) (*Prices, error) {
	return in(list, region, o, func(r catalog.Rates) *catalog.Rates { return &r })
}

// in is In with what is paid beside a machine, by what the catalogue says.
func in(list *catalog.PriceList, region string, o Options, beside func(catalog.Rates) *catalog.Rates) (*Prices, error) {
	types, rates, err := list.In(region)
	if err != nil {
		if nearest := suggest.Nearest(region, slices.Sorted(maps.Keys(list.Regions))); nearest != "" {
			return nil, fmt.Errorf("%w; did you mean %s?", err, nearest)
		}
		return nil, err
	}
	if o.InstanceData != nil {
		var found bool
		if types, found = o.InstanceData.Replace(types, region); !found {
			return nil, fmt.Errorf("the instance data have neither region %q nor one of its zones", region)
		}
	}
	placer, err := placement.New(types, placement.Config{
		DefaultArch:         o.Arch,
		ReservedMemoryBytes: o.ReservedMemoryBytes,
		DefaultDiskBytes:    o.DiskBytes,
		Rates:               beside(rates),
		PrivateIPOnly:       o.PrivateIPOnly,
	})
	if err != nil {
		return nil, err
	}
	return &Prices{
		Region:  region,
		AsOf:    list.AsOf,
		Rates:   rates,
		options: o,
		placer:  placer,
		fargate: region == fargateRegion,
	}, nil
}

// Of returns what the workloads would cost in that region.
func (p *Prices) Of(workloads []Workload) Quote {
	q := Quote{Pods: make([]Pod, 0, len(workloads))}
	for _, w := range workloads {
		q.Pods = append(q.Pods, p.of(w))
	}
	return q
}

func (p *Prices) of(w Workload) Pod {
	q := Pod{
		Name:      w.Name,
		Namespace: w.Namespace,
		Owner:     w.Owner,
		Replicas:  w.Replicas,
	}
	if w.NotOnKip != "" {
		q.Reason, q.NotOnKip = w.NotOnKip, true
		return q
	}
	pod, best, err := p.best(w.Pod)
	if err != nil {
		q.Reason, q.Failed = err.Error(), true
		return q
	}
	q.InstanceType, q.Zone = best.InstanceType, best.Zone
	q.LaunchType = string(best.CapacityType())
	parts := PartsOf(best)
	q.PricePerHour = parts.Sum()
	q.Reason = best.Reason + parts.text()

	spot := *pod
	spot.Annotations = maps.Clone(pod.Annotations)
	if spot.Annotations == nil {
		spot.Annotations = map[string]string{}
	}
	spot.Annotations[placement.AnnotationLaunchType] = string(placement.Spot)
	if asSpot, err := p.placer.Offerings(&spot, nil); err == nil {
		q.SpotPricePerHour = PartsOf(asSpot[0]).Sum()
	}
	if p.fargate {
		if price, ok := Fargate(best.Arch, placement.ResourcesOf(w.Pod)); ok {
			q.FargatePricePerHour = &price
		}
	}
	q.month(w, p.options.RunHours)
	return q
}

// Best returns what Kip would launch for a pod.
func (p *Prices) Best(pod *corev1.Pod) (offering.Offering, error) {
	_, best, err := p.best(pod)
	return best, err
}

// Types returns the types that Kip could launch for a pod, the cheapest first; none if no type fits.
func (p *Prices) Types(pod *corev1.Pod) (names []string) {
	made, err := p.admitted(pod)
	if err != nil {
		return nil
	}
	offerings, err := p.placer.Offerings(made, nil)
	if err != nil {
		return nil
	}
	for _, o := range offerings {
		if !slices.Contains(names, o.InstanceType) {
			names = append(names, o.InstanceType)
		}
	}
	return names
}

// admitted is a pod as Kip's webhook makes it, and as it is placed with what runs beside it.
func (p *Prices) admitted(pod *corev1.Pod) (*corev1.Pod, error) {
	made, err := admitted(pod)
	if err != nil {
		return nil, err
	}
	return placement.With(made, p.options.Beside), nil
}

// BesideEach sums what pods of DaemonSets request that run beside each pod. Other workloads are errors.
func BesideEach(sets []Workload) (corev1.ResourceList, error) {
	sum := corev1.ResourceList{}
	for _, w := range sets {
		if !strings.HasPrefix(w.Owner, "DaemonSet/") {
			return nil, fmt.Errorf("%s does not run beside pods: want DaemonSets", cmp.Or(w.Owner, "Pod/"+w.Name))
		}
		for name, q := range resource.PodRequests(w.Pod, resource.PodResourcesOptions{}) {
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
	return sum, nil
}

// best also returns the pod as it is placed.
func (p *Prices) best(pod *corev1.Pod) (*corev1.Pod, offering.Offering, error) {
	made, err := p.admitted(pod)
	if err != nil {
		return nil, offering.Offering{}, err
	}
	offerings, err := p.placer.Offerings(made, nil)
	if err != nil {
		return nil, offering.Offering{}, err
	}
	return made, offerings[0], nil
}

// leastHours is what clouds, and Fargate, charge at least: a minute.
const leastHours = 1.0 / 60

// month sets the price of a month.
func (q *Pod) month(w Workload, runHours float64) {
	if w.Owner != "" && strings.HasPrefix(w.Owner, "CronJob/") {
		q.Reason += fmt.Sprintf("; it runs %s times a month", strconv.FormatFloat(math.Round(w.RunsPerMonth*100)/100, 'f', -1, 64))
	}
	hours := float64(catalog.HoursPerMonth)
	switch {
	case q.Replicas == 0:
	case w.Ends && runHours == 0:
		q.Reason += "; how long a run takes is not known, so the price of a month is not"
		return
	case w.Ends:
		hours = max(runHours, leastHours) * cmp.Or(w.RunsPerMonth, 1)
	}
	if q.PricePerHour != nil {
		q.PricePerMonth = new(*q.PricePerHour * hours * float64(q.Replicas))
	}
}

// Parts are what is paid for a pod, in dollars an hour.
type Parts struct {
	// Machine is nil where its price is not known.
	Machine *float64
	// Burst is for CPU above a burstable type's baseline.
	Burst float64
	// Disk and Address are nil where their price is not known; an address that the machine
	// has not costs 0.
	Disk, Address *float64
	// DiskBytes is the root disk's size.
	DiskBytes int64
}

// PartsOf returns what is paid for a pod on a machine.
func PartsOf(o offering.Offering) Parts {
	known := func(price *float64, unpriced bool) *float64 {
		if unpriced {
			return nil
		}
		return price
	}
	return Parts{
		Machine:   known(&o.PricePerHour, o.Unpriced),
		Burst:     o.BurstPerHour,
		Disk:      known(&o.DiskPerHour, o.DiskUnpriced),
		Address:   known(&o.AddressPerHour, o.AddressUnpriced),
		DiskBytes: o.DiskBytes,
	}
}

// Sum is what is known of them; nil where the machine's price is not.
func (p Parts) Sum() *float64 {
	if p.Machine == nil {
		return nil
	}
	sum := *p.Machine + p.Burst
	for _, part := range []*float64{p.Disk, p.Address} {
		if part != nil {
			sum += *part
		}
	}
	return &sum
}

// text says what is beside the machine.
func (p Parts) text() string {
	if p.Machine == nil {
		return ""
	}
	var with, without []string
	part := func(name string, price *float64) {
		switch {
		case price == nil:
			without = append(without, name)
		case *price > 0:
			with = append(with, fmt.Sprintf("$%s for %s", Amount(*price), name))
		}
	}
	part("the machine", p.Machine)
	part(fmt.Sprintf("a disk of %dGi", (p.DiskBytes+gib-1)/gib), p.Disk)
	part("a public address", p.Address)
	s := ""
	if len(with) > 1 {
		s = "; " + strings.Join(with, ", ")
	}
	if len(without) > 0 {
		s += "; without " + strings.Join(without, " and ") + ", whose price is unknown"
	}
	return s
}

// Amount writes dollars with as many digits as small prices need.
func Amount(dollars float64) string {
	if dollars < 10 {
		return fmt.Sprintf("%.4f", dollars)
	}
	return fmt.Sprintf("%.2f", dollars)
}

// Total is what all pods of a quote cost; nil where the price of one is not known.
type Total struct {
	PricePerHour        *float64 `json:"pricePerHour"`
	SpotPricePerHour    *float64 `json:"spotPricePerHour"`
	FargatePricePerHour *float64 `json:"fargatePricePerHour"`
	PricePerMonth       *float64 `json:"pricePerMonth"`
	// Unknown is how many workloads have no price, or no type that fits.
	Unknown int `json:"unknown"`
}

// Total adds up.
func (q Quote) Total() Total {
	var t Total
	sum := func(price func(Pod) *float64, times func(Pod) float64) *float64 {
		total := 0.0
		for _, p := range q.Pods {
			one := price(p)
			switch {
			case p.NotOnKip:
			case one == nil && p.Replicas > 0:
				return nil
			case one != nil:
				total += *one * times(p)
			}
		}
		return &total
	}
	replicas := func(p Pod) float64 { return float64(p.Replicas) }
	t.PricePerHour = sum(func(p Pod) *float64 { return p.PricePerHour }, replicas)
	t.SpotPricePerHour = sum(func(p Pod) *float64 { return p.SpotPricePerHour }, replicas)
	t.FargatePricePerHour = sum(func(p Pod) *float64 { return p.FargatePricePerHour }, replicas)
	t.PricePerMonth = sum(func(p Pod) *float64 { return p.PricePerMonth }, func(Pod) float64 { return 1 })
	for _, p := range q.Pods {
		if !p.NotOnKip && p.PricePerHour == nil {
			t.Unknown++
		}
	}
	return t
}

// RegionTotal is what a quote comes to in one region.
type RegionTotal struct {
	Cloud  string `json:"cloud"`
	Region string `json:"region"`
	AsOf   string `json:"asOf"`
	Total
}

// Compare returns what the machines of the workloads would cost in all regions of some
// clouds, the cheapest first, those where a price is not known last. Disks and public
// addresses are left out, since their prices are not known everywhere.
func Compare(clouds []string, workloads []Workload, o Options) ([]RegionTotal, error) {
	var all []RegionTotal
	for _, cloud := range clouds {
		list, err := pricelists.Open(cloud)
		if err != nil {
			return nil, err
		}
		for region := range list.Regions {
			prices, err := in(list, region, o, func(catalog.Rates) *catalog.Rates { return &catalog.Rates{} })
			if err != nil {
				return nil, fmt.Errorf("%s in %s: %w", cloud, region, err)
			}
			all = append(all, RegionTotal{
				Cloud:  cloud,
				Region: region,
				AsOf:   list.AsOf,
				Total:  prices.Of(workloads).Total(),
			})
		}
	}
	price := func(r RegionTotal) float64 {
		if r.PricePerHour == nil {
			return math.Inf(1)
		}
		return *r.PricePerHour
	}
	slices.SortFunc(all, func(a, b RegionTotal) int {
		return cmp.Or(cmp.Compare(price(a), price(b)), cmp.Compare(a.Cloud, b.Cloud), cmp.Compare(a.Region, b.Region))
	})
	return all, nil
}
