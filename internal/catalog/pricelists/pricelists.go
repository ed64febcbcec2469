// Package pricelists has the catalogues of clouds that Kip is built with: figures of a date,
// for where the cloud itself is not asked. It changes nothing in them.
package pricelists

import (
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/catalog"
)

// files are made by make catalog.
//
//go:embed *.json.gz
var files embed.FS

const extension = ".json.gz"

// Clouds are the names of the clouds that have a catalogue, sorted.
func Clouds() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // of a folder in memory
	}
	var all []string
	for _, e := range entries {
		all = append(all, strings.TrimSuffix(e.Name(), extension))
	}
	return all
}

// Open returns the catalogue of a cloud. Each call reads it anew, which takes some tenths
// of a second: keep it.
func Open(cloud string) (*catalog.PriceList, error) {
	list := &catalog.PriceList{}
	return list, read(cloud, func(d *json.Decoder) error { return d.Decode(list) })
}

// Rates returns what is paid beside the machines of a cloud in a region, as far as that is
// known; nil for a cloud without a catalogue, where nothing is paid.
func Rates(cloud, region string) (*catalog.Rates, error) {
	if !slices.Contains(Clouds(), cloud) {
		return nil, nil
	}
	var only struct {
		Regions map[string]struct{ catalog.Rates } `json:"regions"`
	}
	if err := read(cloud, func(d *json.Decoder) error { return d.Decode(&only) }); err != nil {
		return nil, err
	}
	rates := only.Regions[region].Rates
	return &rates, nil
}

func read(cloud string, decode func(*json.Decoder) error) error {
	f, err := files.Open(cloud + extension)
	if err != nil {
		return fmt.Errorf("there is no catalogue of cloud %q: want one of %s", cloud, strings.Join(Clouds(), ", "))
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err == nil {
		err = decode(json.NewDecoder(z))
	}
	if err != nil {
		return fmt.Errorf("catalogue of %s: %w", cloud, err)
	}
	return nil
}

// Dates are those of the prices, by cloud. They stand at the beginning of each catalogue,
// so that the rest is not read.
func Dates() (map[string]string, error) {
	dates := map[string]string{}
	for _, cloud := range Clouds() {
		err := read(cloud, func(d *json.Decoder) error {
			var last json.Token
			for {
				token, err := d.Token()
				if err != nil {
					return err
				}
				if last == "asOf" {
					dates[cloud], _ = token.(string)
					return nil
				}
				last = token
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return dates, nil
}
