package ec2

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const (
	// pricingTarget begins the header that names an action of the Price List API: JSON 1.1.
	pricingTarget = "AWSPriceListService."
	// priceFormat is the only one of its answers.
	priceFormat = "aws_v1"
	// priceService is EC2's name in it.
	priceService = "AmazonEC2"
	// mostPrices bounds a page (Price List API reference, "GetProducts").
	mostPrices = 100
)

// PriceFaults are what is wrong with the answers of the Price List API.
type PriceFaults struct {
	// Throttled is how many calls are refused next.
	Throttled int
	// FailsAfter is how many calls are answered before all others fail; 0 for all, below it for none.
	FailsAfter int
	// Odd are on the first page besides, in front of what is right.
	Odd []string
	// Missing is a type that is not in the list.
	Missing string
	// Unfiltered answers with all products, whatever is asked for.
	Unfiltered bool
	// Endless has each page name another one.
	Endless bool
}

// prices are the price list.
type prices struct {
	*base
	callers *callers

	faults PriceFaults
}

// Fail changes what is wrong with prices.
func (m *prices) Fail(f PriceFaults) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = f
}

// servePricing answers a call of the Price List API.
func (m *prices) servePricing(w http.ResponseWriter, r *http.Request) {
	serveTarget(m.callers, w, r, jsonService{
		name:      "pricing",
		target:    pricingTarget,
		action:    "GetProducts",
		malformed: "InvalidParameterException",
		message:   "Message",
	}, m.getProducts)
}

// productsCall is what a call of GetProducts may have.
type productsCall struct {
	ServiceCode   string
	FormatVersion string
	asks
	Filters []struct{ Type, Field, Value string }
}

func (m *prices) getProducts(_ *request, in productsCall) (any, error) {
	faults, err := m.priceFaults()
	if err != nil {
		return nil, err
	}
	switch {
	case in.ServiceCode != priceService:
		return nil, bad("InvalidParameterException", "The model has prices of %s, not of '%s'", priceService, in.ServiceCode)
	case in.FormatVersion != "" && in.FormatVersion != priceFormat:
		return nil, bad("InvalidParameterException", "The format version '%s' is not valid", in.FormatVersion)
	}
	all := slices.DeleteFunc(m.products(), func(p product) bool { return faults.Missing != "" && p.is("instanceType", faults.Missing) })
	if !faults.Unfiltered {
		for _, f := range in.Filters {
			if f.Type != "TERM_MATCH" {
				return nil, bad("InvalidParameterException", "The model knows filters of type TERM_MATCH, not '%s'", f.Type)
			}
			all = slices.DeleteFunc(all, func(p product) bool { return !p.is(f.Field, f.Value) })
		}
	}
	some, next, err := pageOf(m.base, all, in.asks, mostPrices, "InvalidParameterException", "InvalidNextTokenException")
	if err != nil {
		return nil, err
	}
	answer := map[string]any{"FormatVersion": priceFormat}
	list := []string{}
	if in.NextToken == "" {
		list = append(list, faults.Odd...)
	}
	for _, p := range some {
		list = append(list, p.text(m.currency()))
	}
	if faults.Endless {
		next = cmp.Or(next, strconv.Itoa(len(all)))
	}
	if answer["PriceList"] = list; next != "" {
		answer["NextToken"] = next
	}
	return answer, nil
}

// priceFaults are those of one call.
func (m *prices) priceFaults() (PriceFaults, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.faults
	if f.Throttled > 0 {
		m.faults.Throttled--
		return f, bad("ThrottlingException", "Rate exceeded")
	}
	if f.FailsAfter > 0 {
		if m.faults.FailsAfter--; m.faults.FailsAfter == 0 {
			m.faults.FailsAfter = -1
		}
	}
	if f.FailsAfter < 0 {
		return f, &apiError{http.StatusInternalServerError, "InternalErrorException", "An error on the server occurred."}
	}
	return f, nil
}

// product is one of the price list.
type product struct {
	attributes map[string]string
	price      float64
}

// is says whether a product passes a filter, which compares without case.
func (p product) is(field, value string) bool { return strings.EqualFold(p.attributes[field], value) }

// products are those of the types for sale: Linux on demand at its price, and what the list has
// besides: dedicated instances, other systems and reserved capacity, each at another price.
func (m *prices) products() (all []product) {
	for _, t := range m.cfg.Sim.Catalogue {
		for _, o := range t.Offerings {
			if o.Spot {
				continue
			}
			family, shared := "Compute Instance", "Shared"
			if strings.Contains(t.Name, ".metal") {
				family, shared = "Compute Instance (bare metal)", "Dedicated" // which is all that it can be
			}
			of := func(price float64, but map[string]string) {
				p := product{price: price, attributes: map[string]string{
					"servicecode":     priceService,
					"serviceCode":     priceService,
					"productFamily":   family,
					"regionCode":      m.cfg.Region,
					"locationType":    "AWS Region",
					"instanceType":    t.Name,
					"vcpu":            strconv.FormatInt(t.MilliCPU/1000, 10),
					"operatingSystem": "Linux",
					"preInstalledSw":  "NA",
					"tenancy":         shared,
					"capacitystatus":  "Used",
					"marketoption":    "OnDemand",
					"operation":       "RunInstances",
				}}
				for k, v := range but {
					p.attributes[k] = v
				}
				all = append(all, p)
			}
			of(3*o.PricePerHour, map[string]string{"operatingSystem": "Windows", "operation": "RunInstances:0002"})
			of(2*o.PricePerHour, map[string]string{"preInstalledSw": "SQL Web", "operation": "RunInstances:0200"})
			if shared == "Shared" {
				of(1.1*o.PricePerHour, map[string]string{"tenancy": "Dedicated"})
			}
			of(o.PricePerHour, nil)
			of(0, map[string]string{"capacitystatus": "AllocatedCapacityReservation"})
			of(4*o.PricePerHour, map[string]string{"regionCode": "eu-west-3"})
			break // the zones of a region have one price
		}
	}
	return all
}

// text is a product as the price list has it, JSON: with terms of reservations, and one on demand.
func (p product) text(currency string) string {
	const onDemand, reserved = "JRTCKXETXF", "4NA7Y494T4"
	attributes := map[string]string{}
	for k, v := range p.attributes {
		if k != "productFamily" && k != "serviceCode" {
			attributes[k] = v
		}
	}
	sku := fmt.Sprintf("%.15s", strings.ToUpper(fmt.Sprintf("%x", p.attributes["instanceType"]+p.attributes["operation"]+"00000000")))
	term := func(kind, unit, price string) map[string]any {
		return map[string]any{sku + "." + kind: map[string]any{
			"sku":             sku,
			"effectiveDate":   "2026-11-01T00:00:00Z",
			"offerTermCode":   kind,
			"termAttributes":  map[string]any{},
			"priceDimensions": map[string]any{sku + "." + kind + ".6YS6EN2CT7": p.dimension(currency, sku+"."+kind, unit, price)},
		}}
	}
	text, err := json.Marshal(map[string]any{
		"product":     map[string]any{"productFamily": p.attributes["productFamily"], "sku": sku, "attributes": attributes},
		"serviceCode": priceService,
		"terms": map[string]any{
			"OnDemand": term(onDemand, "Hrs", fmt.Sprintf("%.10f", p.price)),
			"Reserved": term(reserved, "Quantity", fmt.Sprintf("%.0f", 5000*p.price)),
		},
		"version":         "20261120000000",
		"publicationDate": "2026-11-20T00:00:00Z",
	})
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}

// currency is that of prices in the partition.
func (m *prices) currency() string {
	if name, _ := m.partition(); name == "aws-cn" {
		return "CNY"
	}
	return "USD"
}

func (p product) dimension(currency, of, unit, price string) map[string]any {
	return map[string]any{
		"unit":         unit,
		"rateCode":     of + ".6YS6EN2CT7",
		"beginRange":   "0",
		"endRange":     "Inf",
		"description":  price + " per " + p.attributes["operatingSystem"] + " " + p.attributes["instanceType"] + " " + unit,
		"appliesTo":    []string{},
		"pricePerUnit": map[string]string{currency: price},
	}
}
