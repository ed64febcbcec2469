package aws

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

const (
	// quotasPatience bounds the reading of quotas: Service Quotas may have no way to a VPC that has one to EC2.
	quotasPatience = 10 * time.Second
	// othersPatience bounds the list of what others in the account run, of which there may be any number.
	othersPatience = 30 * time.Second
	// quotasCall is the most that a page has (Service Quotas API reference, "ListServiceQuotas"), and maxQuotaPages bounds the
	// list: EC2 has some 200.
	quotasCall, maxQuotaPages = 100, 50
	// addressesOfCell are those that a cell takes of its subnet: its own and its pod's, or a /28 for that.
	addressesOfCell, addressesWithPrefix = 2, 1 + 16
)

// quotaCodes are the quotas of vCPUs, by their codes in Service Quotas. P5 and the older types of P share the family p, and only
// spot has two quotas for them. The names are those of EC2 User Guide, "Amazon EC2 instance type quotas" and "Spot Instance quotas".
// Source of the codes: an account's list, github.com/gruntwork-io/terraform-aws-utilities, docs/quotas.md. AWS publishes none.
var quotaCodes = map[string]catalog.Class{
	"L-1216C47A": {Family: "standard"},
	"L-6E869C2A": {Family: "dl"},
	"L-74FC7D96": {Family: "f"},
	"L-DB2E81BA": {Family: "g and vt"},
	"L-43DA4232": {Family: "high memory"},
	"L-F7808C92": {Family: "hpc"},
	"L-1945791B": {Family: "inf"},
	"L-417A185B": {Family: "p"},
	"L-2C3B7624": {Family: "trn"},
	"L-7295265B": {Family: "x"},
	"L-34B43A08": {Family: "standard", Spot: true},
	"L-85EED4F7": {Family: "dl", Spot: true},
	"L-88CF9481": {Family: "f", Spot: true},
	"L-3819A6DF": {Family: "g and vt", Spot: true},
	"L-B5D1601B": {Family: "inf", Spot: true},
	"L-7212CCBC": {Family: "p", Spot: true}, // P4, P3 and P2
	"L-C4BD4855": {Family: "p", Spot: true}, // P5
	"L-6B0D517C": {Family: "trn", Spot: true},
	"L-E3A00192": {Family: "x", Spot: true},
}

// newQuotas is the API of Service Quotas in the region.
func newQuotas(sdk aws.Config, cfg Config) *servicequotas.Client {
	return servicequotas.NewFromConfig(sdk, func(o *servicequotas.Options) {
		o.Region = cfg.Region
		o.HTTPClient = cfg.bound(o.HTTPClient)
		if at := cfg.endpointOf("SERVICE_QUOTAS"); at != nil {
			o.BaseEndpoint = at
		}
	})
}

// Bounds implements cloud.Bounder: the free addresses of the cells' subnets, and the quotas of vCPUs less what others in the account
// run. Source: EC2 API reference, "Subnet": AvailableIpAddressCount counts the addresses of stopped instances as taken.
func (c *Cloud) Bounds(ctx context.Context, owner string) (catalog.Bounds, error) {
	b, err := c.bounds(ctx, owner)
	if err != nil {
		return catalog.Bounds{}, fmt.Errorf("read the free addresses of the cells' subnets: %w", err)
	}
	return b, nil
}

func (c *Cloud) bounds(ctx context.Context, owner string) (catalog.Bounds, error) {
	n, err := c.where(ctx)
	if err != nil {
		return catalog.Bounds{}, err
	}
	subnets, err := c.readSubnets(ctx)
	if err != nil {
		return catalog.Bounds{}, err
	}
	b := catalog.Bounds{Machines: map[string]int64{}}
	each := int64(addressesOfCell)
	if c.holds(factNoSecondaries) {
		each = addressesWithPrefix
	}
	for _, s := range subnets {
		if _, is := n.subnets[aws.ToString(s.SubnetId)]; is && s.AvailableIpAddressCount != nil {
			b.Machines[*s.SubnetId] = int64(*s.AvailableIpAddressCount) / each
		}
	}
	of := filter("tag:"+cloud.TagOwner, owner)
	own, err := c.describe(ctx, &ec2.DescribeInstancesInput{Filters: []types.Filter{of, living}, MaxResults: aws.Int32(pageSize)})
	if err != nil {
		return catalog.Bounds{}, err
	}
	for _, i := range own {
		if _, known := b.Machines[i.Subnet]; known {
			b.Machines[i.Subnet]++
		}
	}
	b.MilliCPU = c.readQuotas(ctx)
	for class, milliCPU := range c.readOthers(ctx, owner) {
		if most, known := b.MilliCPU[class]; known {
			b.MilliCPU[class] = max(0, most-milliCPU)
		}
	}
	return b, nil
}

// readOthers reads how much CPU others in the account run, by class. If that fails, it returns what was read last, and tells once.
func (c *Cloud) readOthers(ctx context.Context, owner string) map[catalog.Class]int64 {
	some, cancel := context.WithTimeout(ctx, othersPatience)
	defer cancel()
	others, err := c.cpuOf(some, func(i types.Instance) bool { return mapOf(i.Tags)[cloud.TagOwner] != owner })
	told := codeOf(err)
	if err != nil && told == "" {
		told = "not whole"
	}
	if ctx.Err() == nil && c.isNews("others", told) && err != nil {
		c.cfg.Log.Warn("list what others in the account run: the capacity of virtual nodes is less what they ran when Kip read it last, if ever",
			"err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.othersRead = others
	}
	return maps.Clone(c.othersRead)
}

// cpuOf returns how much CPU some of the account's instances take of each quota.
func (c *Cloud) cpuOf(ctx context.Context, some func(types.Instance) bool) (map[catalog.Class]int64, error) {
	all := map[catalog.Class]int64{}
	in := &ec2.DescribeInstancesInput{Filters: []types.Filter{living}, MaxResults: aws.Int32(pageSize)}
	err := eachPage(ctx, ec2.NewDescribeInstancesPaginator(c.api, in), func(page *ec2.DescribeInstancesOutput) {
		for _, r := range page.Reservations {
			for _, i := range r.Instances {
				if some(i) {
					class, milliCPU := quotaOf(i)
					all[class] += milliCPU
				}
			}
		}
	})
	return all, err
}

// quotaOf is what an instance takes of which quota: its vCPUs while it is pending or running. Source: EC2 User Guide, "On-Demand
// Instance quotas" and "Spot Instance quotas".
func quotaOf(i types.Instance) (class catalog.Class, milliCPU int64) {
	class = catalog.Class{
		Family: familyOf(string(i.InstanceType)),
		Spot:   i.InstanceLifecycle == types.InstanceLifecycleTypeSpot,
	}
	runs := i.State != nil && (i.State.Name == types.InstanceStateNamePending || i.State.Name == types.InstanceStateNameRunning)
	if !runs || i.CpuOptions == nil {
		return class, 0
	}
	return class, 1000 * int64(aws.ToInt32(i.CpuOptions.CoreCount)) * int64(cmp.Or(aws.ToInt32(i.CpuOptions.ThreadsPerCore), 1))
}

// readQuotas reads the quotas of vCPUs. If that fails, it returns those that were read last; none where Kip may not, or cannot, read
// them at all, which it tells once.
func (c *Cloud) readQuotas(ctx context.Context) map[catalog.Class]int64 {
	ctx, cancel := context.WithTimeout(ctx, quotasPatience)
	defer cancel()
	quotas, err := c.listQuotas(ctx)
	told := codeOf(err)
	if err != nil && told == "" {
		told = "no answer"
	}
	if c.isNews("quotas", told) && err != nil {
		c.cfg.Log.Warn("AWS' quotas of vCPUs are not read: the capacity of virtual nodes is that of the quotas that were read last, if any",
			"err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.quotasRead = quotas
	}
	return maps.Clone(c.quotasRead)
}

func (c *Cloud) listQuotas(ctx context.Context) (map[catalog.Class]int64, error) {
	quotas := map[catalog.Class]int64{}
	var next *string
	for page := 0; ; page++ {
		if page == maxQuotaPages {
			return nil, errTooLong
		}
		out, err := c.quotas.ListServiceQuotas(ctx, &servicequotas.ListServiceQuotasInput{
			ServiceCode: aws.String("ec2"),
			MaxResults:  aws.Int32(quotasCall),
			NextToken:   next,
		})
		if err != nil {
			return nil, classifyBeside(err)
		}
		for _, q := range out.Quotas {
			if class, is := quotaCodes[aws.ToString(q.QuotaCode)]; is && q.Value != nil && *q.Value >= 0 {
				quotas[class] += int64(*q.Value * 1000)
			}
		}
		if next = out.NextToken; aws.ToString(next) == "" {
			return quotas, nil
		}
	}
}
