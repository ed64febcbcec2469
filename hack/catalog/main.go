// Command catalog makes the catalogues of internal/catalog/pricelists from the figures in
// hack/catalog/data. It asks no network: who has newer figures puts them there.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/catalog/strict"
)

func main() {
	data := flag.String("data", "hack/catalog/data", "`folder` with the figures")
	out := flag.String("out", "internal/catalog/pricelists", "`folder` for the catalogues")
	flag.Parse()
	if err := run(*data, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(data, out string) error {
	lists, err := read(folder(data))
	if err != nil {
		return err
	}
	for _, b := range lists {
		packed, err := pack(b)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, b.Cloud+".json.gz"), packed, 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d types in %d regions, %d bytes, as of %s\n", b.Cloud, len(b.Types), len(b.Regions), len(packed), b.AsOf)
	}
	return nil
}

// pack is what is embedded. The same list gives the same bytes.
func pack(b *catalog.PriceList) ([]byte, error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(z).Encode(b); err != nil {
		return nil, err
	}
	err = z.Close() // which writes the rest
	return buf.Bytes(), err
}

// source is a folder with the figures.
type source interface {
	ReadFile(name string) ([]byte, error)
}

type folder string

func (f folder) ReadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(string(f), name))
}

// read makes the lists of all clouds.
func read(data source) ([]*catalog.PriceList, error) {
	var lists []*catalog.PriceList
	var errs []error
	for _, cloud := range []func(*figures) *catalog.PriceList{aws, gce, azure} {
		f := &figures{source: data}
		list := cloud(f)
		errs = append(errs, f.err())
		if f.err() != nil {
			continue
		}
		slices.SortFunc(list.Sources, strings.Compare)
		lists = append(lists, list)
	}
	return lists, errors.Join(errs...)
}

// figures are the files of one cloud.
type figures struct {
	source
	files  []*strict.File
	failed []error
	// sources are those that the files name.
	sources []string
}

// open returns the fields of a file, which must be among the known. Without the file
// there is nothing to go on with.
func (f *figures) open(name string, known ...string) (field func(string) strict.Value) {
	empty := func(string) strict.Value { return strict.Value{} }
	data, err := f.ReadFile(name)
	if err != nil {
		f.failed = append(f.failed, err)
		return empty
	}
	file, top, err := strict.Open(name, data)
	if err != nil {
		f.failed = append(f.failed, err)
		return empty
	}
	f.files = append(f.files, file)
	field = top.Fields(append(known, "asOf", "licence", "source", "unit")...)
	field("asOf").In(top).Text()
	f.sources = append(f.sources, field("source").In(top).Texts()...)
	return field
}

func (f *figures) err() error {
	errs := f.failed
	for _, file := range f.files {
		errs = append(errs, file.Err())
	}
	return errors.Join(errs...)
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

// common reads what all clouds' files say of types in the same words. Types of an
// architecture that is no Kubernetes name are left out: no pod runs there.
func common(name string, v strict.Value, field func(string) strict.Value) (t catalog.InstanceType, ok bool) {
	archs := field("arch").In(v).Texts()
	for _, arch := range []string{"amd64", "arm64"} {
		if slices.Contains(archs, arch) {
			t.Arch = arch
		}
	}
	memory := int64(field("memoryMiB").In(v).Number(64, 128<<20) * mib)
	t.Name = name
	t.MilliCPU = int64(field("vcpu").In(v).Number(0.1, 4096) * 1000)
	t.MemoryBytes, t.UsableBytes = memory, catalog.CloudSees(memory)
	t.BaselineMilliCPU = int64(field("baselineVcpu").Number(0.01, 4096)*1000 + 0.5)
	t.BareMetal = field("bareMetal").Bool()
	if t.BaselineMilliCPU >= t.MilliCPU { // all of it is sustained
		t.BaselineMilliCPU = 0
	}
	if t.Arch == "arm64" {
		t.BootModes = []string{"uefi"}
	}
	if gpu := field("gpu"); gpu.There() {
		of := gpu.Fields("count", "manufacturer", "memoryMiB", "name", "partition")
		of("manufacturer").In(gpu).Text()
		of("partition").Number(0, 1)
		t.GPUs = []catalog.GPU{{
			Model:       of("name").In(gpu).Text(),
			Count:       int64(of("count").In(gpu).Number(1, 1024)),
			MemoryBytes: int64(of("memoryMiB").Number(1, 1<<21) * mib),
		}}
	}
	field("accelerators").List(func(a strict.Value) {
		of := a.Fields("cores", "count", "kind", "manufacturer", "memoryMiB", "name")
		of("cores").Number(1, 1024)
		of("memoryMiB").Number(1, 1<<21)
		t.Accelerators = append(t.Accelerators, catalog.Accelerator{
			Maker: of("manufacturer").In(a).Text(),
			Model: of("name").In(a).Text(),
			Kind:  of("kind").In(a).Text(),
			Count: int64(of("count").In(a).Number(1, 1024)),
		})
	})
	return t, t.Arch != ""
}

// add checks a type and takes it into the list.
func add(b *catalog.PriceList, at map[string]int, v strict.Value, t catalog.InstanceType) {
	for _, p := range t.Check() {
		v.Bad("%s", p)
	}
	at[t.Name] = len(b.Types)
	b.Types = append(b.Types, t)
}

// price is that of a machine an hour.
func price(v strict.Value) float64 {
	p := v.Number(-1e12, 1e12)
	if wrong := catalog.CheckPrice(p); v.There() && wrong != "" {
		v.Bad("%s", wrong)
	}
	return p
}

// sell adds a region, in which something is sold.
func sell(b *catalog.PriceList, name string, r catalog.Region) {
	if len(r.Sold) == 0 {
		return
	}
	slices.SortFunc(r.Sold, func(a, b catalog.Sold) int { return a.Type - b.Type })
	b.Regions[name] = r
}
