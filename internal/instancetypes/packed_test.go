package instancetypes

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/store"
)

// A region of EC2 sells some 1,300 types, and cells may have six subnets.
func TestALargeCatalogueFitsInTheStoreAndComesBackAsItWas(t *testing.T) {
	var types []catalog.InstanceType
	for n := range 1300 {
		one := catalog.InstanceType{
			Name:        fmt.Sprintf("m%d.%dxlarge", n, n%48),
			MilliCPU:    int64(n) * 1000,
			MemoryBytes: int64(n) << 30,
			Arch:        "amd64",
		}
		for subnet := range 6 {
			for _, o := range []catalog.PurchaseOption{{}, {Spot: true}, {Dedicated: true, Unpriced: true, OrderedAt: 1.5}} {
				o.Zone, o.Subnet = fmt.Sprintf("us-east-1%c", 'a'+subnet), fmt.Sprintf("subnet-%017x", n*7919+subnet)
				o.PricePerHour = float64(n*7+subnet) / 1000
				one.Offerings = append(one.Offerings, o)
			}
		}
		types = append(types, one)
	}
	r := record{Cloud: "aws", Region: "us-east-1", Types: types}
	stored, err := r.packed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := json.Marshal(types); err != nil || len(plain) < store.MaxBytes || len(text) > store.MaxBytes {
		t.Errorf("%d bytes are stored, of %d (%v): want %d at most", len(text), len(plain), err, store.MaxBytes)
	}
	var back record
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if err := back.unpack(); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("it comes back with %d types: %v", len(back.Types), err)
	}
	for what, b := range map[string][]byte{"none": {}, "cut off": stored.Packed[:len(stored.Packed)/2], "no gzip": []byte("[]")} {
		if bad := (record{Packed: b}); bad.unpack() == nil {
			t.Errorf("%s is unpacked", what)
		}
	}
}
