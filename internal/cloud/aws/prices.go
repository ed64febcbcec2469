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
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/pricing"

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
		o.HTTPClient, o.BaseEndpoint = cfg.reach("PRICING", o.HTTPClient, o.BaseEndpoint)
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

// priceList reads on-demand prices.
type priceList struct {
	*base
	pricing *pricing.Client // nil where there is none to ask

	mu        sync.Mutex
	opened    bool             // the catalogue was read before
	denied    bool             // it was told that Kip may not read prices
	dedicated map[string]price // of dedicated instances, as they were told last
}

// dedicatedPrices are what types cost an hour as dedicated instances, as far as AWS' price list says
// so: what it said last where it is not read now.
func (e *priceList) dedicatedPrices(ctx context.Context) map[string]price {
	if !e.cfg.Dedicated || e.pricing == nil {
		return nil
	}
	now, ignored, err := e.readPrices(ctx, dedicatedTenancy)
	if err != nil || len(now) == 0 {
		e.tellUnread(e.cfg.Log.With("region", e.cfg.Region, "tenancy", "dedicated", "read", len(now), "ignored", ignored), err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dedicated == nil {
		e.dedicated = map[string]price{}
	}
	maps.Copy(e.dedicated, now)
	return maps.Clone(e.dedicated)
}

// onDemandPrices are those of types by name: what AWS' price list says now, else the embedded
// ones. Which of these and of what was told before are newer is for the caller to see, by
// when they were told.
func (e *priceList) onDemandPrices(ctx context.Context) (map[string]price, error) {
	prices, own, err := embeddedPrices(e.cfg.Region)
	if err != nil {
		return nil, err
	}
	log := e.cfg.Log.With("region", e.cfg.Region, "currency", currencyOf(e.cfg.Region))
	if !own {
		log = log.With("embedded_of", map[string]string{dollars: standIn, yuan: standInChina}[currencyOf(e.cfg.Region)])
	}
	if e.pricing == nil {
		log.Info("on-demand prices are the embedded ones", "age", e.ageOf(prices), "types", len(prices))
		return prices, nil
	}
	now, ignored, err := e.readPrices(ctx, sharedTenancy)
	if err != nil || len(now) == 0 {
		e.tellUnread(log.With("read", len(now), "embedded_age", e.ageOf(prices), "ignored", ignored), err)
	} else {
		e.pricesRead()
		log.Info("on-demand prices are read", "types", len(now), "ignored", ignored)
		if !own {
			clear(prices) // another region's say nothing of what this one's list does not have
		}
	}
	maps.Copy(prices, now)
	return prices, nil
}

// ageOf is that of the newest of prices, in days.
func (e *priceList) ageOf(prices map[string]price) string {
	var newest time.Time
	for _, p := range prices {
		if p.told.After(newest) {
			newest = p.told
		}
	}
	return fmt.Sprintf("%d days", int(e.cfg.Clock.Since(newest)/(24*time.Hour)))
}

// tellUnread says that the price list was not read, for want of a right once.
func (e *priceList) tellUnread(log *slog.Logger, err error) {
	if errors.Is(err, cloud.ErrUnauthorised) {
		e.mu.Lock()
		told := e.denied
		e.denied = true
		e.mu.Unlock()
		if told {
			return
		}
	}
	log.Warn("AWS' price list is not read: on-demand prices are those of before, or the embedded ones", "err", cmp.Or(err, errNoPrices))
}

// pricesRead has a right that is missing later told again.
func (e *priceList) pricesRead() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.denied = false
}

var errNoPrices = errors.New("it has no price of an instance type of the region")

// open notes that the catalogue was read.
func (e *priceList) open() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opened = true
}

// readPrices reads AWS' price list, and counts what it ignores by the reason. What it has read
// before an error counts.
func (e *priceList) readPrices(ctx context.Context, all []priced) (prices map[string]price, ignored map[string]int, err error) {
	e.mu.Lock()
	patience := pricesPatience
	if !e.opened {
		patience = firstPrices
	}
	e.mu.Unlock()
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
			out, err := e.pricing.GetProducts(ctx, &pricing.GetProductsInput{
				ServiceCode: aws.String("AmazonEC2"),
				Filters:     of.filters(e.cfg.Region),
				MaxResults:  aws.Int32(pricesCall),
				NextToken:   next,
			})
			if err != nil {
				return prices, ignored, fmt.Errorf("read AWS' price list: %w", classifyBeside(err))
			}
			now := e.cfg.Clock.Now().UTC().Truncate(time.Second)
			for _, text := range out.PriceList {
				size += len(text)
				name, perHour, why := of.read(text, e.cfg.Region)
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
