package sizes

import "testing"

func TestTypesGrowInSizeAndPrice(t *testing.T) {
	types := Types("arm64")
	if len(types) != 7 || types[0].Name != "nano" || types[6].Name != "2xlarge" {
		t.Fatalf("want the 7 types nano … 2xlarge, got %+v", types)
	}
	for i, it := range types {
		if it.Arch != "arm64" {
			t.Errorf("%s: arch %q, want arm64", it.Name, it.Arch)
		}
		if len(it.Offerings) != 1 || it.Offerings[0].Zone != Zone || it.Offerings[0].Spot || it.Offerings[0].PricePerHour <= 0 {
			t.Errorf("%s: want one priced on-demand offering in zone %s, got %+v", it.Name, Zone, it.Offerings)
		}
		if i == 0 {
			continue
		}
		last := types[i-1]
		if it.MilliCPU < last.MilliCPU || it.MemoryBytes != 2*last.MemoryBytes || it.DiskBytes < last.DiskBytes {
			t.Errorf("%s is not the step after %s: %+v, %+v", it.Name, last.Name, it, last)
		}
		if it.Offerings[0].PricePerHour <= last.Offerings[0].PricePerHour {
			t.Errorf("%s does not cost more than %s", it.Name, last.Name)
		}
	}
}

func TestTypesAreOfferedInEachZone(t *testing.T) {
	for _, it := range Types("amd64", "a", "b") {
		if o := it.Offerings; len(o) != 2 || o[0].Zone != "a" || o[1].Zone != "b" || o[0].PricePerHour != o[1].PricePerHour {
			t.Errorf("%s: want an offering in zone a and one in b, at the same price, got %+v", it.Name, o)
		}
	}
}

func TestATypeHasGPUsWhereTheyAreWanted(t *testing.T) {
	if types := WithGPUs("amd64", 0, "a"); len(types) != 0 {
		t.Errorf("without GPUs there is %+v", types)
	}
	types := WithGPUs("arm64", 2, "a", "b")
	if len(types) != 1 || types[0].Name != "medium-gpu" || types[0].Arch != "arm64" || len(types[0].Offerings) != 2 ||
		len(types[0].GPUs) != 1 || types[0].GPUs[0].Count != 2 {
		t.Fatalf("with two GPUs there is %+v", types)
	}
	for _, it := range Types("arm64", "a", "b") {
		if it.Offerings[0].PricePerHour >= types[0].Offerings[0].PricePerHour || len(it.GPUs) != 0 {
			t.Errorf("%s costs as much as one with GPUs, or has some: %+v", it.Name, it)
		}
	}
}
