package catalog

import (
	"reflect"
	"strings"
	"testing"
)

func TestInstanceDataReplaceSizesAndPrices(t *testing.T) {
	data, err := ReadInstanceData("d.json", strings.NewReader(`{
	"r": [
		{"instanceType": "t3.nano", "price": 0.004, "gpu": 0, "supportedGPUTypes": {}, "memory": 0.5, "cpu": 2, "burstable": true, "baseline": 0.1},
		{"instanceType": "g4.large", "price": 0.5, "gpu": 1, "supportedGPUTypes": {"nvidia-tesla-t4": 1}, "memory": 16, "cpu": 4, "burstable": false, "baseline": 4},
		{"instanceType": "sold.nowhere", "price": 0.5, "memory": 16, "cpu": 4}
	],
	"z2": [{"instanceType": "t3.nano", "price": 0.008, "memory": 0.5, "cpu": 2}]
}`))
	if err != nil {
		t.Fatal(err)
	}
	types := func() []InstanceType {
		return []InstanceType{
			{Name: "t3.nano", Arch: "amd64", MilliCPU: 1000, MemoryBytes: 1 << 29, UsableBytes: 1 << 28, BaselineMilliCPU: 50,
				CreditPerCPUHour: 0.05,
				Offerings: []PurchaseOption{{Zone: "z1", PricePerHour: 9}, {Zone: "z1", Spot: true, PricePerHour: 0.001},
					{Zone: "z2", Unpriced: true}}},
			{Name: "g4.large", Arch: "amd64", MilliCPU: 4000, MemoryBytes: 8 << 30, UsableBytes: 7 << 30, GPUs: []GPU{{Model: "x", Count: 9}},
				Offerings: []PurchaseOption{{Zone: "z1", PricePerHour: 9}}},
			{Name: "other", Arch: "amd64", MilliCPU: 4000, MemoryBytes: 8 << 30, Offerings: []PurchaseOption{{Zone: "z1", PricePerHour: 9}}},
		}
	}
	want := []InstanceType{
		{Name: "t3.nano", Arch: "amd64", MilliCPU: 2000, MemoryBytes: 1 << 29, UsableBytes: 1 << 28, BaselineMilliCPU: 100,
			CreditPerCPUHour: 0.05,
			Offerings: []PurchaseOption{{Zone: "z1", PricePerHour: 0.004}, {Zone: "z1", Spot: true, PricePerHour: 0.001},
				{Zone: "z2", PricePerHour: 0.008}}},
		{Name: "g4.large", Arch: "amd64", MilliCPU: 4000, MemoryBytes: 16 << 30, GPUs: []GPU{{Model: "nvidia-tesla-t4", Count: 1}},
			Offerings: []PurchaseOption{{Zone: "z1", PricePerHour: 0.5}}},
	}
	before := types()
	if got, found := data.Replace(before, "r"); !found || !reflect.DeepEqual(got, want) || !reflect.DeepEqual(before, types()) {
		t.Errorf("got  %+v, %t\nwant %+v", got, found, want)
	}
	// By zone alone, what it has no data for is left out.
	if got, found := data.Replace(types(), "elsewhere"); !found || len(got) != 1 || len(got[0].Offerings) != 1 ||
		got[0].Offerings[0].Zone != "z2" {
		t.Errorf("by zone: %+v, %t", got, found)
	}
	delete(data, "z2")
	if got, found := data.Replace(types(), "elsewhere"); found || !reflect.DeepEqual(got, types()) {
		t.Errorf("of another region: %+v, %t", got, found)
	}
}

func TestWrongInstanceDataAreRefusedWithFileLineAndField(t *testing.T) {
	const good = `{"instanceType": "a", "price": 1, "memory": 1, "cpu": 1}`
	for _, c := range [][2]string{
		{"", "d.json: the file is empty"},
		{"{\"r\": [\n", "d.json: yaml: "},
		{"{\"r\": {}}", "d.json:1: r: want a list"},
		{"{\"r\": [],\n\"r\":[]}", "d.json:2: r: it is there twice: first on line 1"},
		{"{\"r\": [" + good + ",\n" + good + "]}", "d.json:2: r[1]: \"a\" is there twice"},
		{"{\"r\": [\n" + strings.Replace(good, `"price": 1, `, "", 1) + "]}", "d.json:2: r[0].price: it is missing"},
		{"{\"r\": [\n" + strings.Replace(good, `"price": 1`, `"price": 0`, 1) + "]}",
			"d.json:2: r[0]: offerings[0].pricePerHour: 0 is no price"},
		{"{\"r\": [\n" + strings.Replace(good, `"price": 1`, `"price": -1`, 1) + "]}",
			"d.json:2: r[0]: offerings[0].pricePerHour: -1 is no price"},
		{"{\"r\": [\n" + strings.Replace(good, `"price": 1`, `"price": NaN`, 1) + "]}", "d.json:2: r[0].price: NaN is no number"},
		{"{\"r\": [\n" + strings.Replace(good, `"price": 1`, `"price": "1"`, 1) + "]}", "d.json:2: r[0].price: want a number"},
		{"{\"r\": [\n" + strings.Replace(good, `"memory": 1`, `"memory": 1e9`, 1) + "]}",
			"d.json:2: r[0]: memoryBytes: 1073741824000000000 is not possible"},
		{"{\"r\": [\n" + strings.Replace(good, `"cpu": 1`, `"cpu": 0`, 1) + "]}", "d.json:2: r[0]: milliCPU: 0 is not possible"},
		{"{\"r\": [\n" + strings.Replace(good, `"cpu": 1`, `"cpus": 1`, 1) + "]}", "d.json:2: r[0].cpus: it is unknown"},
	} {
		text, want := c[0], c[1]
		_, err := ReadInstanceData("d.json", strings.NewReader(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
