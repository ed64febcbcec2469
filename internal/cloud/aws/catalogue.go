package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/catalog"
)

// sold is a type in a zone.
type sold struct{ instanceType, zone string }

// catalogues reads what EC2 sells where cells are launched.
type catalogues struct {
	*base
	networks     *networks
	images       *bootImages
	prices       *priceList
	plan         *freePlan
	reservations *reservations
	sold         *soldTypes
	caches       *caches
}

func (e *catalogues) catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	n, err := e.networks.where(ctx)
	if err != nil {
		return nil, err
	}
	all, _ := e.sold.read()
	if all == nil {
		if all, err = e.readSold(ctx, n); err != nil {
			return nil, err
		}
		e.sold.set(all, e.cfg.Clock.Now())
		e.prices.open()
	}
	if e.cfg.reserves() {
		// Without them there is all else, and what was known of them is better than nothing.
		if _, err := e.reservations.readReservations(ctx); ctx.Err() != nil {
			return nil, err
		} else if err != nil {
			e.cfg.Log.Warn("capacity reservations are those that were known before", "err", err)
		}
		all = e.reservations.withReserved(all, n)
	}
	return slices.DeleteFunc(e.plan.withholding(all), func(t catalog.InstanceType) bool {
		return len(t.Offerings) == 0 && t.Withheld == ""
	}), nil
}

// readSold reads all types, with their offerings in the cells' subnets.
func (e *catalogues) readSold(ctx context.Context, n *network) ([]catalog.InstanceType, error) {
	kinds, sells, err := e.readTypes(ctx)
	if err != nil {
		return nil, err
	}
	if err := complete(kinds); err != nil {
		return nil, err
	}
	if e.cfg.CPUCredits != creditsUnlimited {
		sellNoCredits(kinds)
	}
	offered, err := e.readOfferings(ctx)
	if err != nil {
		return nil, err
	}
	spot, err := e.readSpotPrices(ctx)
	if err != nil {
		return nil, err
	}
	onDemand, err := e.prices.onDemandPrices(ctx) // last: what time is left is theirs
	if err != nil {
		return nil, err
	}
	dedicated := e.prices.dedicatedPrices(ctx)
	out, err := e.withoutUEFI(ctx, n)
	if err != nil {
		return nil, err
	}
	e.plan.sells(sells)
	ids := slices.Sorted(maps.Keys(n.subnets))
	for i := range kinds {
		t := &kinds[i]
		price, priced := onDemand[t.Name]
		t.PricesTold = price.told
		for _, id := range ids {
			zone := n.subnets[id].zone
			if _, no := out[id]; !offered[sold{t.Name, zone}] || no && t.Arch == archX86 {
				continue
			}
			if sells[t.Name].onDemand {
				t.Offerings = append(t.Offerings, catalog.PurchaseOption{
					Zone:         zone,
					Subnet:       id,
					PricePerHour: price.perHour,
					Unpriced:     !priced,
				})
			}
			if e.cfg.Dedicated && dedicable(t.Name) && sells[t.Name].onDemand {
				own := catalog.PurchaseOption{Zone: zone, Subnet: id, Dedicated: true}
				if p, told := dedicated[t.Name]; told {
					own.PricePerHour = p.perHour
				} else {
					own.Unpriced, own.OrderedAt = true, price.perHour
				}
				t.Offerings = append(t.Offerings, own)
			}
			if price, ok := spot[sold{t.Name, zone}]; ok && sells[t.Name].spot {
				t.Offerings = append(t.Offerings, catalog.PurchaseOption{
					Zone:         zone,
					Subnet:       id,
					Spot:         true,
					PricePerHour: price,
				})
			}
		}
	}
	return kinds, e.unusable(n, out, kinds)
}

// readTypes reads the types that can be cells: those of the Nitro system, whose disks are
// NVMe devices and whose interfaces take prefixes, with room for a pod's address and a
// firmware that boots by UEFI, as Kip's image does; and how EC2 sells each of them.
func (e *catalogues) readTypes(ctx context.Context) (all []catalog.InstanceType, sells map[string]terms, err error) {
	sells = map[string]terms{}
	pages := ec2.NewDescribeInstanceTypesPaginator(e.api, &ec2.DescribeInstanceTypesInput{
		Filters: []types.Filter{filter("processor-info.supported-architecture", "x86_64", "arm64")},
	})
	err = eachPage(ctx, pages, func(page *ec2.DescribeInstanceTypesOutput) {
		for _, t := range page.InstanceTypes {
			if one, ok := typeOf(t); ok {
				all, sells[one.Name] = append(all, one), termsOf(t)
			}
		}
	})
	slices.SortFunc(all, func(a, b catalog.InstanceType) int { return strings.Compare(a.Name, b.Name) })
	return all, sells, err
}

// readOfferings says which types there are in which zones.
func (e *catalogues) readOfferings(ctx context.Context) (map[sold]bool, error) {
	all := map[sold]bool{}
	pages := ec2.NewDescribeInstanceTypeOfferingsPaginator(e.api, &ec2.DescribeInstanceTypeOfferingsInput{
		LocationType: types.LocationTypeAvailabilityZone,
		MaxResults:   aws.Int32(pageSize),
	})
	err := eachPage(ctx, pages, func(page *ec2.DescribeInstanceTypeOfferingsOutput) {
		for _, o := range page.InstanceTypeOfferings {
			all[sold{string(o.InstanceType), aws.ToString(o.Location)}] = true
		}
	})
	return all, err
}

// readSpotPrices reads those of now.
func (e *catalogues) readSpotPrices(ctx context.Context) (map[sold]float64, error) {
	all := map[sold]float64{}
	now := e.cfg.Clock.Now()
	pages := ec2.NewDescribeSpotPriceHistoryPaginator(e.api, &ec2.DescribeSpotPriceHistoryInput{
		StartTime:           aws.Time(now),
		ProductDescriptions: []string{"Linux/UNIX"},
		MaxResults:          aws.Int32(pageSize),
	})
	err := eachPage(ctx, pages, func(page *ec2.DescribeSpotPriceHistoryOutput) {
		for _, p := range page.SpotPriceHistory {
			price, err := strconv.ParseFloat(aws.ToString(p.SpotPrice), 64)
			if err != nil || !(price > 0) {
				continue // not a price to choose by
			}
			at := sold{string(p.InstanceType), aws.ToString(p.AvailabilityZone)}
			if _, newer := all[at]; !newer { // the newest comes first
				all[at] = price
			}
		}
	})
	return all, err
}

// soldEvery is how often is read what EC2 sells.
const soldEvery = 12 * time.Hour

// catalogueEvery is how long a catalogue counts. One that withholds types counts as long as they are withheld.
func (e *catalogues) catalogueEvery() time.Duration {
	if e.cfg.reserves() {
		return reservationsEvery
	}
	if withheld := e.plan.left(); withheld > 0 {
		return min(withheld, soldEvery)
	}
	return soldEvery
}

// Catalogue implements cloud.Cloud. It also reads anew where instances can be launched,
// and what images and groups are called; but where reservations are configured, most times it
// reads these alone. Where the account's plan has turned out to lack types, it reads nothing.
func (e *catalogues) Catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	_, at := e.sold.read()
	if changed := e.plan.takeChange(); !changed && (!e.cfg.reserves() || e.cfg.Clock.Since(at) >= soldEvery) {
		e.caches.forget()
	}
	list, err := e.catalogue(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what EC2 sells in %s: %w", e.cfg.Region, err)
	}
	return list, nil
}
