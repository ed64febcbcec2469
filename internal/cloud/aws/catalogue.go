package aws

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/books"
)

// sold is a type in a zone.
type sold struct{ instanceType, zone string }

func (c *Cloud) catalogue(ctx context.Context) ([]catalog.InstanceType, error) {
	n, err := c.where(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	all := c.sold
	c.mu.Unlock()
	if all == nil {
		if all, err = c.readSold(ctx, n); err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.sold, c.soldAt, c.opened = all, c.cfg.Clock.Now(), true
		c.mu.Unlock()
	}
	if c.cfg.reserves() {
		// Without them there is all else, and what was known of them is better than nothing.
		if _, err := c.readReservations(ctx); ctx.Err() != nil {
			return nil, err
		} else if err != nil {
			c.cfg.Log.Warn("capacity reservations are those that were known before", "err", err)
		}
		all = c.withReserved(all, n)
	}
	return slices.DeleteFunc(c.withholding(all), func(t catalog.InstanceType) bool { return len(t.Offerings) == 0 && t.Withheld == "" }), nil
}

// readSold reads all types, with their offerings in the cells' subnets.
func (c *Cloud) readSold(ctx context.Context, n *network) ([]catalog.InstanceType, error) {
	kinds, sells, err := c.readTypes(ctx)
	if err != nil {
		return nil, err
	}
	if err := complete(kinds); err != nil {
		return nil, err
	}
	if c.cfg.CPUCredits != creditsUnlimited {
		sellNoCredits(kinds)
	}
	offered, err := c.readOfferings(ctx)
	if err != nil {
		return nil, err
	}
	spot, err := c.readSpotPrices(ctx)
	if err != nil {
		return nil, err
	}
	onDemand, err := c.onDemandPrices(ctx) // last: what time is left is theirs
	if err != nil {
		return nil, err
	}
	dedicated := c.dedicatedPrices(ctx)
	out, err := c.withoutUEFI(ctx, n)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.terms = sells
	c.mu.Unlock()
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
				t.Offerings = append(t.Offerings, catalog.Offering{
					Zone:         zone,
					Subnet:       id,
					PricePerHour: price.perHour,
					Unpriced:     !priced,
				})
			}
			if c.cfg.Dedicated && dedicable(t.Name) && sells[t.Name].onDemand {
				own := catalog.Offering{Zone: zone, Subnet: id, Dedicated: true}
				if p, told := dedicated[t.Name]; told {
					own.PricePerHour = p.perHour
				} else {
					own.Unpriced, own.OrderedAt = true, price.perHour
				}
				t.Offerings = append(t.Offerings, own)
			}
			if price, ok := spot[sold{t.Name, zone}]; ok && sells[t.Name].spot {
				t.Offerings = append(t.Offerings, catalog.Offering{
					Zone:         zone,
					Subnet:       id,
					Spot:         true,
					PricePerHour: price,
				})
			}
		}
	}
	return kinds, c.unusable(n, out, kinds)
}

// architectures are EC2's, in Kubernetes' words. Macs have others.
var architectures = map[types.ArchitectureType]string{types.ArchitectureTypeX8664: "amd64", types.ArchitectureTypeArm64: "arm64"}

// readTypes reads the types that can be cells: those of the Nitro system, whose disks are
// NVMe devices and whose interfaces take prefixes, with room for a pod's address and a
// firmware that boots by UEFI, as Kip's image does; and how EC2 sells each of them.
func (c *Cloud) readTypes(ctx context.Context) (all []catalog.InstanceType, sells map[string]terms, err error) {
	sells = map[string]terms{}
	pages := ec2.NewDescribeInstanceTypesPaginator(c.api, &ec2.DescribeInstanceTypesInput{
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

// bootModes are EC2's, in the catalogue's words.
var bootModes = map[types.BootModeType]string{types.BootModeTypeLegacyBios: bios, types.BootModeTypeUefi: "uefi"}

const bios = "bios"

// hasBIOS says that a type boots by a BIOS, too, or that this is not known of it.
func (c *Cloud) hasBIOS(instanceType string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := slices.IndexFunc(c.sold, func(t catalog.InstanceType) bool { return t.Name == instanceType })
	return n < 0 || len(c.sold[n].BootModes) == 0 || slices.Contains(c.sold[n].BootModes, bios)
}

// makersOfGPUs are those whose GPUs pods ask for by a resource, in EC2's words: the Gaudi of
// Habana is a GPU to EC2, and to no pod.
var makersOfGPUs = []string{"NVIDIA", "AMD"}

func typeOf(t types.InstanceTypeInfo) (catalog.InstanceType, bool) {
	nitro := t.Hypervisor == types.InstanceTypeHypervisorNitro || aws.ToBool(t.BareMetal)
	// A list that is not there says nothing.
	uefi := len(t.SupportedBootModes) == 0 || slices.Contains(t.SupportedBootModes, types.BootModeTypeUefi)
	if !nitro || !uefi || t.VCpuInfo == nil || t.MemoryInfo == nil || t.ProcessorInfo == nil || t.NetworkInfo == nil ||
		aws.ToInt32(t.NetworkInfo.Ipv4AddressesPerInterface) < 2 {
		return catalog.InstanceType{}, false
	}
	name := string(t.InstanceType)
	one := catalog.InstanceType{
		Name:             name,
		Family:           familyOf(name),
		MilliCPU:         int64(aws.ToInt32(t.VCpuInfo.DefaultVCpus)) * 1000,
		MemoryBytes:      aws.ToInt64(t.MemoryInfo.SizeInMiB) << 20,
		BaselineMilliCPU: baselines[name],
		BootTimeout:      BootTimeout(name),
		MaxDisks:         maxDisks(t),
	}
	for _, mode := range t.SupportedBootModes {
		if bootModes[mode] != "" {
			one.BootModes = append(one.BootModes, bootModes[mode])
		}
	}
	for _, a := range t.ProcessorInfo.SupportedArchitectures {
		if architectures[a] != "" {
			one.Arch = architectures[a]
		}
	}
	if t.GpuInfo != nil {
		for _, g := range t.GpuInfo.Gpus {
			if maker := aws.ToString(g.Manufacturer); maker != "" && !slices.Contains(makersOfGPUs, maker) {
				continue
			}
			one.GPUs = append(one.GPUs, catalog.GPU{Model: aws.ToString(g.Name), Count: int64(aws.ToInt32(g.Count))})
		}
	}
	return one, one.Arch != "" && one.MilliCPU > 0 && one.MemoryBytes > 0
}

// sharedAttachments is how many disks a type of the Nitro system takes that does not say how many: 28, less the
// interface. Source: EC2 User Guide, "Amazon EBS volume limits for Amazon EC2 instances".
const sharedAttachments = 27

// maxDisks is how many volumes a type takes besides its root disk. EC2 has subtracted what else counts of a cell:
// an interface and, where the limit is shared, the disks and the accelerators of the machine itself. It says
// "shared" of some machines of metal whose limit is not, which matters to those with more interfaces alone.
// Source: https://github.com/kubernetes-sigs/aws-ebs-csi-driver, pkg/cloud/limits and NodeService.getVolumesLimit.
func maxDisks(t types.InstanceTypeInfo) int64 {
	most := int64(sharedAttachments)
	if e := t.EbsInfo; e != nil && aws.ToInt32(e.MaximumEbsAttachments) > 0 {
		most = int64(*e.MaximumEbsAttachments)
	}
	return min(max(1, most-1), int64(len(deviceNames)))
}

// embeddedTypes are those of the embedded catalogue, read once: their prices, which are most
// of it, are not kept.
var embeddedTypes = sync.OnceValues(func() ([]catalog.InstanceType, error) {
	book, err := books.Open("aws")
	return book.Types, err
})

// complete adds to types what EC2's API does not tell, or in other words: what a kernel sees of
// their memory and, as far as the embedded catalogue knows the type, the memory of its GPUs and
// its other accelerators.
func complete(kinds []catalog.InstanceType) error {
	embedded, err := embeddedTypes()
	if err != nil {
		return err
	}
	for i := range kinds {
		t := &kinds[i]
		t.UsableBytes = catalog.CloudSees(t.MemoryBytes)
		at, found := slices.BinarySearchFunc(embedded, t.Name, func(known catalog.InstanceType, name string) int {
			return strings.Compare(known.Name, name)
		})
		if !found || embedded[at].MemoryBytes != t.MemoryBytes {
			continue
		}
		known := embedded[at]
		t.Accelerators = known.Accelerators
		if burstable(t.Name) {
			t.CreditPerCPUHour = known.CreditPerCPUHour
		}
		if len(known.GPUs) == 1 && len(t.GPUs) == 1 && known.GPUs[0].Count == t.GPUs[0].Count {
			t.GPUs[0].MemoryBytes = known.GPUs[0].MemoryBytes
		}
	}
	return nil
}

// readOfferings says which types there are in which zones.
func (c *Cloud) readOfferings(ctx context.Context) (map[sold]bool, error) {
	all := map[sold]bool{}
	pages := ec2.NewDescribeInstanceTypeOfferingsPaginator(c.api, &ec2.DescribeInstanceTypeOfferingsInput{
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
func (c *Cloud) readSpotPrices(ctx context.Context) (map[sold]float64, error) {
	all := map[sold]float64{}
	now := c.cfg.Clock.Now()
	pages := ec2.NewDescribeSpotPriceHistoryPaginator(c.api, &ec2.DescribeSpotPriceHistoryInput{
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

// families are what EC2's quotas of vCPUs count apart, by the letters that a type begins
// with. Source: EC2 User Guide, "Amazon EC2 instance type quotas".
var families = map[string]string{
	"dl": "dl", "f": "f", "g": "g and vt", "gr": "g and vt", "vt": "g and vt", "hpc": "hpc", "inf": "inf", "mac": "mac", "p": "p",
	"trn": "trn", "u": "high memory", "x": "x",
}

// familyOf is the family of a type; all of the others share one.
func familyOf(instanceType string) string {
	letters := instanceType
	if n := strings.IndexFunc(instanceType, func(r rune) bool { return r < 'a' || r > 'z' }); n >= 0 {
		letters = instanceType[:n]
	}
	if f := families[letters]; f != "" {
		return f
	}
	return "standard"
}

// baselines are what burstable types sustain, in thousandths of a vCPU, which EC2's API
// does not tell. Source: EC2 User Guide, "Key concepts for burstable performance
// instances", the table of baseline utilization a vCPU, times the vCPUs.
var baselines = func() map[string]int64 {
	all := map[string]int64{}
	for _, family := range []string{"t3", "t3a", "t4g"} {
		for size, milli := range map[string]int64{
			"nano": 100, "micro": 200, "small": 400, "medium": 400, "large": 600, "xlarge": 1600, "2xlarge": 3200,
		} {
			all[family+"."+size] = milli
		}
	}
	return all
}()

// sellNoCredits has burstable types sustain their baseline and no more. What their boot is charged above that is no part
// of their price.
func sellNoCredits(kinds []catalog.InstanceType) {
	for n := range kinds {
		kinds[n].CreditPerCPUHour = 0
	}
}

// burstable says that a type runs on credits.
func burstable(instanceType string) bool { return baselines[instanceType] > 0 }

// dedicable says that a type may be of dedicated instances as far as that is known before a launch:
// of the burstable ones t3 only (EC2 User Guide, "Burstable performance instances"). Of another that
// may not EC2 says so at its launch (Unsupported).
func dedicable(instanceType string) bool {
	return !burstable(instanceType) || strings.HasPrefix(instanceType, "t3.")
}
