package aws

import (
	_ "embed"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/pricing/types"

	"github.com/elotl/kip/internal/catalog"
)

// priced is how the price list names what is launched.
type priced struct{ family, tenancy string }

// sharedTenancy is what is launched without a word about tenancy. A machine of bare metal is its
// user's alone, whatever was asked for.
var sharedTenancy = []priced{{"Compute Instance", "Shared"}, {"Compute Instance (bare metal)", "Dedicated"}}

// dedicatedTenancy is a machine that shares its hardware with no other account's. Of those of bare
// metal it is sharedTenancy.
var dedicatedTenancy = []priced{{"Compute Instance", "Dedicated"}}

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
