package catalog

import (
	"fmt"
	"io"
	"slices"

	"github.com/elotl/kip/internal/catalog/strict"
)

// InstanceData are types and prices of one's own, by region or by zone, in the format
// that Kip has had since its first version. They have no zones, architectures and spot
// prices: these stay the cloud's.
type InstanceData map[string][]InstanceType

// mostInstanceData is how large a file with them may be, in bytes.
const mostInstanceData = 64 << 20

// ReadInstanceData reads a file with InstanceData. The error names file, line and field of
// all that is wrong, up to twenty.
func ReadInstanceData(name string, from io.Reader) (InstanceData, error) {
	data, err := io.ReadAll(io.LimitReader(from, mostInstanceData+1))
	if err != nil {
		return nil, err
	}
	if len(data) > mostInstanceData {
		return nil, fmt.Errorf("%s: it is larger than %d MiB", name, mostInstanceData>>20)
	}
	file, top, err := strict.Open(name, data)
	if err != nil {
		return nil, err
	}
	all := InstanceData{}
	top.Object(func(place string, v strict.Value) {
		first := map[string]bool{}
		v.List(func(v strict.Value) {
			t, ok := instanceDatum(v)
			if ok && first[t.Name] {
				v.Bad("%q is there twice", t.Name)
			}
			first[t.Name] = true
			all[place] = append(all[place], t)
		})
	})
	return all, file.Err()
}

func instanceDatum(v strict.Value) (t InstanceType, ok bool) {
	const gib, most = 1 << 30, 1e12 // what is impossible, Check says
	field := v.Fields("instanceType", "price", "gpu", "supportedGPUTypes", "memory", "cpu", "burstable", "baseline")
	gpus := int64(field("gpu").Number(0, most))
	t = InstanceType{
		Name:        field("instanceType").In(v).Text(),
		Arch:        "any", // which the format does not say
		MilliCPU:    int64(field("cpu").In(v).Number(0, most)*1000 + 0.5),
		MemoryBytes: int64(field("memory").In(v).Number(0, most) * gib),
		Offerings:   []PurchaseOption{{PricePerHour: field("price").In(v).Number(-most, most)}},
	}
	baseline := int64(field("baseline").Number(0, most)*1000 + 0.5)
	if field("burstable").Bool() {
		t.BaselineMilliCPU = baseline
	}
	if models := field("supportedGPUTypes"); models.There() {
		models.Object(func(model string, n strict.Value) {
			t.GPUs = append(t.GPUs, GPU{Model: model, Count: int64(n.Number(1, most))})
		})
	} else if gpus > 0 {
		t.GPUs = []GPU{{Model: "gpu", Count: gpus}}
	}
	problems := t.Check()
	for _, p := range problems {
		v.Bad("%s", p)
	}
	return t, len(problems) == 0
}

// Replace returns the cloud's types as the data say they are: those that they name, with
// their sizes, and with their prices of what is neither spot nor dedicated. It is false, and
// the types as they were, where the data have neither the region nor one of the zones.
func (d InstanceData) Replace(types []InstanceType, region string) ([]InstanceType, bool) {
	var left []InstanceType
	found := d[region] != nil
	for _, t := range types {
		offerings := t.Offerings
		t.Offerings = nil
		known := false
		for _, o := range offerings {
			data := d[region]
			if of := d[o.Zone]; of != nil {
				data, found = of, true
			}
			i := slices.IndexFunc(data, func(own InstanceType) bool { return own.Name == t.Name })
			if i < 0 {
				continue
			}
			if !known {
				t.size(data[i])
				known = true
			}
			if !o.Spot && !o.Dedicated {
				o.PricePerHour, o.Unpriced = data[i].Offerings[0].PricePerHour, false
			}
			t.Offerings = append(t.Offerings, o)
		}
		if known {
			left = append(left, t)
		}
	}
	if !found {
		return types, false
	}
	return left, true
}

// size takes over another's sizes.
func (t *InstanceType) size(own InstanceType) {
	if own.MemoryBytes != t.MemoryBytes { // of another size, what a kernel sees is not known
		t.MemoryBytes, t.UsableBytes = own.MemoryBytes, 0
	}
	t.MilliCPU, t.BaselineMilliCPU = own.MilliCPU, own.BaselineMilliCPU
	if t.BaselineMilliCPU == 0 {
		t.CreditPerCPUHour = 0
	}
	if len(own.GPUs) > 0 && (len(t.GPUs) == 0 || own.GPUs[0].Model != "gpu") {
		t.GPUs = own.GPUs
	}
}
