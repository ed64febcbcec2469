package offering

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
)

// Cells are stored with their offerings: another name would lose what an earlier Kip wrote.
func TestAnOfferingIsStoredByTheseNames(t *testing.T) {
	got, err := json.Marshal(Offering{
		InstanceType:    "m5.large",
		Zone:            "a",
		Subnet:          "s",
		Spot:            true,
		Dedicated:       true,
		Reservation:     "cr-1",
		Family:          "standard",
		Arch:            "amd64",
		HasGPUs:         true,
		PricePerHour:    1,
		Unpriced:        true,
		BurstPerHour:    2,
		DiskPerHour:     3,
		AddressPerHour:  4,
		DiskUnpriced:    true,
		AddressUnpriced: true,
		MilliCPU:        5,
		MemoryBytes:     6,
		DiskBytes:       7,
		OwnDisk:         true,
		BootTimeout:     time.Second,
		Reason:          "cheapest",
	})
	const want = `{"instanceType":"m5.large","zone":"a","subnet":"s","spot":true,"dedicated":true,"reservation":"cr-1",` +
		`"family":"standard","arch":"amd64","hasGPUs":true,"pricePerHour":1,"unpriced":true,"burstPerHour":2,"diskPerHour":3,` +
		`"addressPerHour":4,"diskUnpriced":true,"addressUnpriced":true,"milliCPU":5,"memoryBytes":6,"diskBytes":7,"ownDisk":true,` +
		`"bootTimeout":1000000000,"reason":"cheapest"}`
	if err != nil || string(got) != want {
		t.Errorf("stored as\n%s, %v; want\n%s", got, err, want)
	}
}

// A launch that fails marks the key of its cell's offering, and placement asks by that of the catalogue's.
func TestAnOfferingHasTheKeyOfWhatIsSold(t *testing.T) {
	typ := catalog.InstanceType{Name: "m5.large", Family: "standard", MilliCPU: 2000, MemoryBytes: 8 << 30}
	for _, sold := range []catalog.PurchaseOption{
		{Zone: "a", Subnet: "s", PricePerHour: 1}, {Zone: "b", Spot: true}, {Zone: "b", Dedicated: true},
		{Zone: "a", Reservation: "cr-1"},
	} {
		if got, want := Of(&typ, &sold, 4<<30).Key(), KeyOf(&typ, &sold); got != want {
			t.Errorf("%+v: the key is %+v, want %+v", sold, got, want)
		}
	}
}
