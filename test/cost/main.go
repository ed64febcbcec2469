// Command cost writes docs/cost.md: what pods cost on Kip, on Fargate and on nodes that
// many of them share, by the embedded catalogue. It changes nothing else, and asks nobody.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/pricelists"
	"github.com/elotl/kip/internal/quote"
)

func main() {
	out := flag.String("out", "docs/cost.md", "`file` to write")
	flag.Parse()
	text, err := report()
	if err == nil {
		err = os.WriteFile(*out, []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Where all is compared: the only region whose prices are all known, and Fargate's too.
const (
	cloud  = "aws"
	region = "us-east-1"
)

const gib = 1 << 30

// options are Kip's, but for the disk: small ones are of no use with images of today.
func options(arch string, private bool) quote.Options {
	return quote.Options{
		Arch:                arch,
		DiskBytes:           8 * gib,
		ReservedMemoryBytes: 128 << 20,
		PrivateIPOnly:       private,
	}
}

// market is what can be had for pods of one architecture.
type market struct {
	arch string
	// kip has cells without a public address, public those with one.
	kip, public *quote.Prices
	types       []catalog.InstanceType
	rates       catalog.Rates
	asOf        string
}

func open(arch string) (market, error) {
	m := market{arch: arch}
	book, err := pricelists.Open(cloud)
	if err != nil {
		return m, err
	}
	if m.types, m.rates, err = book.In(region); err != nil {
		return m, err
	}
	m.asOf = book.AsOf
	if m.kip, err = quote.In(book, region, options(arch, true)); err != nil {
		return m, err
	}
	m.public, err = quote.In(book, region, options(arch, false))
	return m, err
}
