package catalog

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func good() InstanceType {
	return InstanceType{
		Name: "m.large", Arch: "amd64", MilliCPU: 2000, MemoryBytes: 8 << 30, UsableBytes: 7 << 30, BaselineMilliCPU: 400, CreditPerCPUHour: 0.05,
		GPUs:      []GPU{{Model: "T4", Count: 1, MemoryBytes: 16 << 30}},
		Offerings: []PurchaseOption{{Zone: "a", PricePerHour: 0.1}, {Zone: "a", Spot: true, Unpriced: true}},
	}
}

func TestWhatIsWrongWithATypeIsNamed(t *testing.T) {
	if err := Validate([]InstanceType{good()}); err != nil {
		t.Fatal(err)
	}
	for want, breakIt := range map[string]func(*InstanceType){
		`name: "" is no name`:        func(t *InstanceType) { t.Name = "" },
		`name: "m large" is no name`: func(t *InstanceType) { t.Name = "m large" },
		"arch: there is no value":    func(t *InstanceType) { t.Arch = "" },
		"milliCPU: 0 is not possible": func(t *InstanceType) {
			t.MilliCPU, t.BaselineMilliCPU, t.CreditPerCPUHour = 0, 0, 0
		},
		"milliCPU: 9000000 is not possible":                           func(t *InstanceType) { t.MilliCPU = 9_000_000 },
		"memoryBytes: -1 is not possible":                             func(t *InstanceType) { t.MemoryBytes, t.UsableBytes = -1, 0 },
		"memoryBytes: 8 is not possible":                              func(t *InstanceType) { t.MemoryBytes, t.UsableBytes = 8, 0 },
		"usableBytes: 9663676416 is not possible":                     func(t *InstanceType) { t.UsableBytes = 9 << 30 },
		"baselineMilliCPU: 2001 is not possible":                      func(t *InstanceType) { t.BaselineMilliCPU = 2001 },
		"creditPerCPUHour: -1 is no price":                            func(t *InstanceType) { t.CreditPerCPUHour = -1 },
		"creditPerCPUHour: there is no baselineMilliCPU":              func(t *InstanceType) { t.BaselineMilliCPU = 0 },
		"diskBytes: -5 is not possible":                               func(t *InstanceType) { t.DiskBytes = -5 },
		"gpus[0].model: there is no value":                            func(t *InstanceType) { t.GPUs[0].Model = "" },
		"gpus[0].count: 0 is not possible":                            func(t *InstanceType) { t.GPUs[0].Count = 0 },
		"gpus[0].memoryBytes: -1 is not possible":                     func(t *InstanceType) { t.GPUs[0].MemoryBytes = -1 },
		"accelerators[0].count: 0 is not possible":                    func(t *InstanceType) { t.Accelerators = []Accelerator{{Model: "x"}} },
		"offerings[0].pricePerHour: 0 is no price":                    func(t *InstanceType) { t.Offerings[0].PricePerHour = 0 },
		"offerings[0].pricePerHour: -0.1 is no price":                 func(t *InstanceType) { t.Offerings[0].PricePerHour = -0.1 },
		"offerings[0].pricePerHour: NaN is no price":                  func(t *InstanceType) { t.Offerings[0].PricePerHour = math.NaN() },
		"offerings[0].pricePerHour: +Inf is no price":                 func(t *InstanceType) { t.Offerings[0].PricePerHour = math.Inf(1) },
		"offerings[0].pricePerHour: 96000 is no price":                func(t *InstanceType) { t.Offerings[0].PricePerHour = 96000 },
		"offerings[1].pricePerHour: 1 is there, and unpri":            func(t *InstanceType) { t.Offerings[1].PricePerHour = 1 },
		"offerings[1]: offerings[0] is the same offering":             func(t *InstanceType) { t.Offerings[1].Spot = false },
		`offerings[1].reservation: "cr-1" is there, and spot is true`: func(t *InstanceType) { t.Offerings[1].Reservation = "cr-1" },
		"offerings[0].orderedAt: -1 is no price":                      func(t *InstanceType) { t.Offerings[0].OrderedAt = -1 },
		`withheld: "the plan" is there, and there are 2 offerings`:    func(t *InstanceType) { t.Withheld = "the plan" },
		"offerings[1].dedicated: spot is true too":                    func(t *InstanceType) { t.Offerings[1].Dedicated = true },
	} {
		bad := good()
		breakIt(&bad)
		if err := Validate([]InstanceType{bad}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want only %q", err, want)
		}
	}
	if err := Validate([]InstanceType{good(), good()}); err == nil || err.Error() != `type "m.large" is there twice` {
		t.Errorf("twice: %v", err)
	}
	var many []InstanceType
	for range 50 {
		many = append(many, InstanceType{Name: "x y"})
	}
	if err := Validate(many); err == nil || strings.Count(err.Error(), "\n") != mostProblems || !strings.Contains(err.Error(), " more") {
		t.Errorf("of many problems: %v", err)
	}
}

func TestOnlyABurstableTypeWithoutCreditsSustainsLess(t *testing.T) {
	for want, typ := range map[int64]InstanceType{
		2000: {MilliCPU: 2000},
		3000: {MilliCPU: 3000, BaselineMilliCPU: 400, CreditPerCPUHour: 0.05},
		400:  {MilliCPU: 2000, BaselineMilliCPU: 400},
	} {
		if got := typ.SustainedMilliCPU(); got != want {
			t.Errorf("%+v sustains %d, want %d", typ, got, want)
		}
	}
}

func TestOfferingsWithoutAPriceComeLast(t *testing.T) {
	offerings := []PurchaseOption{{Unpriced: true}, {PricePerHour: 2}, {PricePerHour: 1}, {Unpriced: true}}
	slices.SortFunc(offerings, PurchaseOption.ComparePrice)
	if want := []PurchaseOption{{PricePerHour: 1}, {PricePerHour: 2}, {Unpriced: true}, {Unpriced: true}}; !slices.Equal(offerings, want) {
		t.Errorf("in order: %+v", offerings)
	}
}

func TestAPriceListSellsTypesByRegion(t *testing.T) {
	b := &PriceList{
		Cloud: "c",
		Types: []InstanceType{{Name: "a"}, {Name: "b"}},
		Regions: map[string]Region{"east": {
			Rates: Rates{DiskPerGiBMonth: 0.073}, ZoneGroups: [][]string{{"e1", "e2"}, {"e2"}},
			Sold: []Sold{{Type: 1, Zones: 1, Price: 0.1, Spot: new(0.03)}, {Type: 0, Zones: 0, Spot: new(float64)}},
		}},
	}
	types, rates, err := b.In("east")
	if err != nil || len(types) != 2 {
		t.Fatalf("%v, %v", types, err)
	}
	if got := types[0]; got.Name != "b" || len(got.Offerings) != 2 || got.Offerings[0] != (PurchaseOption{Zone: "e2", PricePerHour: 0.1}) ||
		got.Offerings[1] != (PurchaseOption{Zone: "e2", Spot: true, PricePerHour: 0.03}) {
		t.Errorf("with prices: %+v", got)
	}
	if got := types[1]; got.Name != "a" || len(got.Offerings) != 4 || got.Offerings[2] != (PurchaseOption{Zone: "e2", Unpriced: true}) ||
		got.Offerings[3] != (PurchaseOption{Zone: "e2", Spot: true, Unpriced: true}) {
		t.Errorf("without prices: %+v", got)
	}
	if price, known := rates.DiskPerHour(10 << 30); !known || math.Abs(price-0.001) > 1e-9 {
		t.Errorf("a disk of 10 GiB costs %v an hour, %t", price, known)
	}
	if _, known := (Rates{}).DiskPerHour(10 << 30); known {
		t.Error("a disk has a price where none is known")
	}
	const want = `region "west" is not in the catalogue of c, which has east`
	if _, _, err := b.In("west"); err == nil || err.Error() != want {
		t.Errorf("another region: %v", err)
	}
}
