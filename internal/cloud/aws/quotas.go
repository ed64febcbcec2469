package aws

import (
	"cmp"
	"context"
	"maps"
	"sync"
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

// quotas reads the account's quotas of vCPUs, and what others in the account take of them.
type quotas struct {
	*base
	serviceQuotas *servicequotas.Client

	mu                     sync.Mutex
	quotasRead, othersRead map[catalog.Class]int64 // as they were read last; nil before
}

// newQuotas is the API of Service Quotas in the region.
func newQuotas(sdk aws.Config, cfg Config) *servicequotas.Client {
	return servicequotas.NewFromConfig(sdk, func(o *servicequotas.Options) {
		o.Region = cfg.Region
		o.HTTPClient, o.BaseEndpoint = cfg.reach("SERVICE_QUOTAS", o.HTTPClient, o.BaseEndpoint)
	})
}

// readOthers reads how much CPU others in the account run, by class. If that fails, it returns what was read last, and tells once.
func (e *quotas) readOthers(ctx context.Context, owner string) map[catalog.Class]int64 {
	some, cancel := context.WithTimeout(ctx, othersPatience)
	defer cancel()
	others, err := e.cpuOf(some, func(i types.Instance) bool { return mapOf(i.Tags)[cloud.TagOwner] != owner })
	told := codeOf(err)
	if err != nil && told == "" {
		told = "not whole"
	}
	if ctx.Err() == nil && e.isNews("others", told) && err != nil {
		e.cfg.Log.Warn("list what others in the account run: the capacity of virtual nodes is less what they ran when Kip read it last, if ever",
			"err", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.othersRead = others
	}
	return maps.Clone(e.othersRead)
}

// cpuOf returns how much CPU some of the account's instances take of each quota.
func (e *quotas) cpuOf(ctx context.Context, some func(types.Instance) bool) (map[catalog.Class]int64, error) {
	all := map[catalog.Class]int64{}
	in := &ec2.DescribeInstancesInput{Filters: []types.Filter{living}, MaxResults: aws.Int32(pageSize)}
	err := eachPage(ctx, ec2.NewDescribeInstancesPaginator(e.api, in), func(page *ec2.DescribeInstancesOutput) {
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
func (e *quotas) readQuotas(ctx context.Context) map[catalog.Class]int64 {
	ctx, cancel := context.WithTimeout(ctx, quotasPatience)
	defer cancel()
	quotas, err := e.listQuotas(ctx)
	told := codeOf(err)
	if err != nil && told == "" {
		told = "no answer"
	}
	if e.isNews("quotas", told) && err != nil {
		e.cfg.Log.Warn("AWS' quotas of vCPUs are not read: the capacity of virtual nodes is that of the quotas that were read last, if any",
			"err", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.quotasRead = quotas
	}
	return maps.Clone(e.quotasRead)
}

func (e *quotas) listQuotas(ctx context.Context) (map[catalog.Class]int64, error) {
	quotas := map[catalog.Class]int64{}
	var next *string
	for page := 0; ; page++ {
		if page == maxQuotaPages {
			return nil, errTooLong
		}
		out, err := e.serviceQuotas.ListServiceQuotas(ctx, &servicequotas.ListServiceQuotasInput{
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
