package aws

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/pricing/types"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// pricesJSON is the file with on-demand prices, which says where they are from. They stand in
// where AWS' price list is not to be had, until it is.
//
//go:embed prices.json
var pricesJSON []byte

// embedded are prices by region and type, all of one day.
type embedded struct {
	AsOf   string                        `json:"asOf"`
	Prices map[string]map[string]float64 `json:"prices"`
}

// priceFile is such a file. Prices are in dollars, those of Yuan in yuan.
type priceFile struct {
	embedded
	Yuan embedded `json:"yuan"`
}

// standIn and standInChina are the regions whose prices order the types where a region's own are
// not known.
const standIn, standInChina = "us-east-1", "cn-north-1"

// price is what a type costs on demand.
type price struct {
	perHour float64 // in the region's currency
	told    time.Time
}

// Currencies of the price list. In China all prices are in yuan, those of spot instances, too.
const dollars, yuan = "USD", "CNY"

// currencyOf is what AWS bills a region in.
func currencyOf(region string) string {
	if partitionOf(region).name == "aws-cn" {
		return yuan
	}
	return dollars
}

// embeddedPrices are those of a region in the file, and whether they are its own.
func embeddedPrices(region string) (prices map[string]price, own bool, err error) {
	var file priceFile
	if err := json.Unmarshal(pricesJSON, &file); err != nil {
		return nil, false, fmt.Errorf("read the embedded prices: %w", err)
	}
	list, other := file.embedded, standIn
	if currencyOf(region) == yuan {
		list, other = file.Yuan, standInChina
	}
	asOf, err := time.Parse(time.DateOnly, list.AsOf)
	if err != nil {
		return nil, false, fmt.Errorf("read the embedded prices: %w", err)
	}
	byType, own := list.Prices[region]
	if !own {
		byType = list.Prices[other]
	}
	prices = make(map[string]price, len(byType))
	for name, perHour := range byType {
		prices[name] = price{perHour, asOf}
	}
	return prices, own, nil
}

// pricingRegion is where the price list of a region is asked for; "" where AWS has no such
// endpoint in its partition. Source: AWS Billing User Guide, "AWS Price List Query API", the
// endpoints; in GovCloud there is none.
func pricingRegion(region string) string {
	switch p := partitionOf(region); {
	case p.name == "aws-cn":
		return "cn-northwest-1"
	case p.name != "aws":
		return ""
	case strings.HasPrefix(region, "ap-"):
		return "ap-south-1"
	case strings.HasPrefix(region, "eu-"):
		return "eu-central-1"
	}
	return "us-east-1"
}

// newPricing is the price list's API; nil where there is none to ask.
func newPricing(sdk aws.Config, cfg Config) *pricing.Client {
	region, at := pricingRegion(cfg.Region), cfg.endpointOf("PRICING")
	if region == "" && at == nil {
		cfg.Log.Info("on-demand prices are not asked for: AWS has no price list to ask in this partition", "region", cfg.Region)
		return nil
	}
	client := pricing.NewFromConfig(sdk, func(o *pricing.Options) {
		o.Region = cmp.Or(region, cfg.Region)
		o.HTTPClient = cfg.bound(o.HTTPClient)
		if at != nil {
			o.BaseEndpoint = at
		}
	})
	if at == nil && client.Options().EndpointOptions.UseFIPSEndpoint == aws.FIPSEndpointStateEnabled {
		cfg.Log.Info("on-demand prices are not asked for: AWS' price list has no endpoint that is validated for FIPS 140")
		return nil
	}
	return client
}

const (
	// pricesCall is the most that a page has (Price List API reference, "GetProducts").
	pricesCall = 100
	// maxPricePages and maxPriceBytes bound what is read of one list: some 1,400 types, each with
	// the terms of its reservations, are below 100 MiB.
	maxPricePages, maxPriceBytes = 100, 256 << 20
	// pricesPatience bounds the reading of the list, which takes seconds; pricesMargin is what it
	// leaves of the time that its caller has, who has all else by then.
	pricesPatience, pricesMargin = time.Minute, 3 * time.Second
	// firstPrices is what the first reading of a process may take of its start: whoever has opened
	// the cloud reads again soon where prices are old.
	firstPrices = 2 * time.Second
)

// priced is how the price list names what is launched.
type priced struct{ family, tenancy string }

// sharedTenancy is what is launched without a word about tenancy. A machine of bare metal is its
// user's alone, whatever was asked for.
var sharedTenancy = []priced{{"Compute Instance", "Shared"}, {"Compute Instance (bare metal)", "Dedicated"}}

// dedicatedTenancy is a machine that shares its hardware with no other account's. Of those of bare
// metal it is sharedTenancy.
var dedicatedTenancy = []priced{{"Compute Instance", "Dedicated"}}

// dedicatedPrices are what types cost an hour as dedicated instances, as far as AWS' price list says
// so: what it said last where it is not read now.
func (c *Cloud) dedicatedPrices(ctx context.Context) map[string]price {
	if !c.cfg.Dedicated || c.pricing == nil {
		return nil
	}
	now, ignored, err := c.readPrices(ctx, dedicatedTenancy)
	if err != nil || len(now) == 0 {
		c.tellUnread(c.cfg.Log.With("region", c.cfg.Region, "tenancy", "dedicated", "read", len(now), "ignored", ignored), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dedicated == nil {
		c.dedicated = map[string]price{}
	}
	maps.Copy(c.dedicated, now)
	return maps.Clone(c.dedicated)
}

// onDemandPrices are those of types by name: what AWS' price list says now, else the embedded
// ones. Which of these and of what was told before are newer is for the caller to see, by
// when they were told.
func (c *Cloud) onDemandPrices(ctx context.Context) (map[string]price, error) {
	prices, own, err := embeddedPrices(c.cfg.Region)
	if err != nil {
		return nil, err
	}
	log := c.cfg.Log.With("region", c.cfg.Region, "currency", currencyOf(c.cfg.Region))
	if !own {
		log = log.With("embedded_of", map[string]string{dollars: standIn, yuan: standInChina}[currencyOf(c.cfg.Region)])
	}
	if c.pricing == nil {
		log.Info("on-demand prices are the embedded ones", "age", c.ageOf(prices), "types", len(prices))
		return prices, nil
	}
	now, ignored, err := c.readPrices(ctx, sharedTenancy)
	if err != nil || len(now) == 0 {
		c.tellUnread(log.With("read", len(now), "embedded_age", c.ageOf(prices), "ignored", ignored), err)
	} else {
		c.pricesRead()
		log.Info("on-demand prices are read", "types", len(now), "ignored", ignored)
		if !own {
			clear(prices) // another region's say nothing of what this one's list does not have
		}
	}
	maps.Copy(prices, now)
	return prices, nil
}

// ageOf is that of the newest of prices, in days.
func (c *Cloud) ageOf(prices map[string]price) string {
	var newest time.Time
	for _, p := range prices {
		if p.told.After(newest) {
			newest = p.told
		}
	}
	return fmt.Sprintf("%d days", int(c.cfg.Clock.Since(newest)/(24*time.Hour)))
}

// tellUnread says that the price list was not read, for want of a right once.
func (c *Cloud) tellUnread(log *slog.Logger, err error) {
	if errors.Is(err, cloud.ErrUnauthorised) {
		c.mu.Lock()
		told := c.pricesDenied
		c.pricesDenied = true
		c.mu.Unlock()
		if told {
			return
		}
	}
	log.Warn("AWS' price list is not read: on-demand prices are those of before, or the embedded ones", "err", cmp.Or(err, errNoPrices))
}

// pricesRead has a right that is missing later told again.
func (c *Cloud) pricesRead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pricesDenied = false
}

var errNoPrices = errors.New("it has no price of an instance type of the region")

// readPrices reads AWS' price list, and counts what it ignores by the reason. What it has read
// before an error counts.
func (c *Cloud) readPrices(ctx context.Context, all []priced) (prices map[string]price, ignored map[string]int, err error) {
	c.mu.Lock()
	patience := pricesPatience
	if !c.opened {
		patience = firstPrices
	}
	c.mu.Unlock()
	end, has := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if has {
		ctx, cancel = context.WithDeadline(ctx, end.Add(-pricesMargin))
		defer cancel()
	}
	prices, ignored = map[string]price{}, map[string]int{}
	pages, size := 0, 0
	for _, of := range all {
		var next *string
		for more := true; more; more = aws.ToString(next) != "" {
			if pages++; pages > maxPricePages || size > maxPriceBytes {
				return prices, ignored, fmt.Errorf("read AWS' price list: it has no end: more than %d pages, or %d bytes", maxPricePages, maxPriceBytes)
			}
			out, err := c.pricing.GetProducts(ctx, &pricing.GetProductsInput{
				ServiceCode: aws.String("AmazonEC2"),
				Filters:     of.filters(c.cfg.Region),
				MaxResults:  aws.Int32(pricesCall),
				NextToken:   next,
			})
			if err != nil {
				return prices, ignored, fmt.Errorf("read AWS' price list: %w", classifyBeside(err))
			}
			now := c.cfg.Clock.Now().UTC().Truncate(time.Second)
			for _, text := range out.PriceList {
				size += len(text)
				name, perHour, why := of.read(text, c.cfg.Region)
				if why != "" {
					ignored[why]++
				} else if perHour > prices[name].perHour { // of two the dearer: no bound on a price is passed unseen
					prices[name] = price{perHour, now}
				}
			}
			next = out.NextToken
		}
	}
	return prices, ignored, nil
}

// attributes are what a product of the list has that is launched in a region: Linux, nothing
// besides it, paid by the hour while it runs.
func (p priced) attributes(region string) map[string]string {
	return map[string]string{
		"regionCode":      region,
		"operatingSystem": "Linux",
		"preInstalledSw":  "NA",
		"tenancy":         p.tenancy,
		"capacitystatus":  "Used",
		"marketoption":    "OnDemand",
	}
}

func (p priced) filters(region string) (all []types.Filter) {
	wanted := p.attributes(region)
	wanted["productFamily"] = p.family
	for _, field := range slices.Sorted(maps.Keys(wanted)) {
		all = append(all, types.Filter{Type: types.FilterTypeTermMatch, Field: aws.String(field), Value: aws.String(wanted[field])})
	}
	return all
}

// product is one of the price list, as far as Kip reads it. Sources: AWS Billing User Guide, "Using
// the AWS Price List Query API"; "Reading price list files".
type product struct {
	Product struct {
		Family     string            `json:"productFamily"`
		Attributes map[string]string `json:"attributes"`
	} `json:"product"`
	Terms struct {
		OnDemand map[string]struct {
			Dimensions map[string]struct {
				Unit  string            `json:"unit"`
				Price map[string]string `json:"pricePerUnit"`
			} `json:"priceDimensions"`
		} `json:"OnDemand"`
	} `json:"terms"`
}

// Why a product is ignored.
const (
	unreadable   = "unreadable"
	otherProduct = "another product"
	otherUnit    = "not by the hour"
	otherMoney   = "another currency"
	noPrice      = "no price"
)

// read reads a product of the list: the type, and what it costs an hour; or why it is ignored. The
// list is believed in nothing that it was asked for.
func (p priced) read(text, region string) (name string, perHour float64, why string) {
	var one product
	if err := json.Unmarshal([]byte(text), &one); err != nil {
		return "", 0, unreadable
	}
	has := one.Product.Attributes
	for field, value := range p.attributes(region) {
		if !strings.EqualFold(has[field], value) {
			return "", 0, otherProduct
		}
	}
	if name = has["instanceType"]; name == "" || one.Product.Family != p.family {
		return "", 0, otherProduct
	}
	why = noPrice
	for _, term := range one.Terms.OnDemand {
		for _, d := range term.Dimensions {
			amount, is := d.Price[currencyOf(region)]
			v, err := strconv.ParseFloat(amount, 64)
			switch {
			case d.Unit != "Hrs":
				why = otherUnit
			case !is:
				why = otherMoney
			case err == nil && catalog.CheckPrice(v) == "":
				perHour = max(perHour, v)
			}
		}
	}
	if perHour > 0 {
		return name, perHour, ""
	}
	return "", 0, why
}
