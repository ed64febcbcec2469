package pods

import (
	"fmt"
	"testing"

	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/placement"
)

func TestWhatIsNotAmongTheCandidatesIsCounted(t *testing.T) {
	list := []offering.Offering{
		{InstanceType: "a", PricePerHour: 1}, {InstanceType: "b", PricePerHour: 1}, {InstanceType: "dear", PricePerHour: 9},
	}
	granted, err := Grants{MaxPricePerHour: 2}.granted("ns", list)
	if err != nil {
		t.Fatal(err)
	}
	chosen := placement.Chosen{Offerings: list, RuledOut: []placement.Rejection{{Types: 2, Why: "have too few GPUs"}}, Types: 7}
	const want = "[{2 have too few GPUs} {1 is not granted to namespace ns} {4 come after these}]"
	if got := ruledOut("ns", chosen, granted); fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
