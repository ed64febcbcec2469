package cells

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/cloud"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// An upgrade keeps the cells: another name would lose what an earlier Kip wrote.
func TestACellIsStoredByTheseNames(t *testing.T) {
	var full Cell
	fill(reflect.ValueOf(&full).Elem())
	stored, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	var byName map[string]json.RawMessage
	if err := json.Unmarshal(stored, &byName); err != nil {
		t.Fatal(err)
	}
	const names = "id pod node account podCreated phase attempt offerings best ruledOut options needs room instance launch standby template " +
		"stopped disks plugins kernel unsafeSysctls hugePages swapBytes gpus accelerators healthyTimeout interrupted planned " +
		"certain unconfirmed token keyHash ca oldCA reason cause special refusals boostEnded stale noLabels podEnded keepUntil " +
		"billedSeconds boot agentRuns steps"
	if got, want := slices.Sorted(maps.Keys(byName)), slices.Sorted(strings.FieldsSeq(names)); !slices.Equal(got, want) {
		t.Errorf("stored are\n%s, want\n%s", got, want)
	}
	var back Cell
	if err := json.Unmarshal(stored, &back); err != nil || back.Token != "x" || back.Template != "x" || !back.Planned || len(back.Best) != 1 {
		t.Errorf("read back is %+v (%v)", back, err)
	}
}

// fill gives every field that is exported, of any depth, a value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
			return
		}
		for n := range v.NumField() {
			if v.Field(n).CanSet() {
				fill(v.Field(n))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte("{}"))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(1)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

func TestThePhasesFormALineWithTwoWaysBack(t *testing.T) {
	// Besides, a phase may be entered again.
	allowed := map[apiv1.Phase][]apiv1.Phase{
		apiv1.Requested:   {apiv1.Launching, apiv1.Gone},
		apiv1.Launching:   {apiv1.Requested, apiv1.Booting, apiv1.Terminating, apiv1.Gone},
		apiv1.Booting:     {apiv1.Ready, apiv1.Terminating},
		apiv1.Ready:       {apiv1.Booting, apiv1.Bound, apiv1.Terminating},
		apiv1.Bound:       {apiv1.Draining, apiv1.Terminating},
		apiv1.Draining:    {apiv1.Terminating},
		apiv1.Terminating: {apiv1.Gone},
		apiv1.Gone:        nil,
	}
	for from, to := range allowed {
		for phase := range allowed {
			cell := Cell{ID: "c", Phase: from}
			err := cell.enter(phase)
			want := phase == from || slices.Contains(to, phase)
			if (err == nil) != want || (cell.Phase == phase) != want {
				t.Errorf("%s → %s: %v, and the cell is %s; allowed %t", from, phase, err, cell.Phase, want)
			}
		}
	}
}

func TestTheLaunchTokenNamesOneLaunch(t *testing.T) {
	base := Cell{Launch: &Launch{ID: "launch-a", Cells: 2}, Offerings: []Offering{{InstanceType: "nano", Zone: "z"}}}
	token := base.launchToken("me")
	if len(token) > 64 {
		t.Fatalf("%d characters; EC2 takes 64", len(token))
	}
	if other := base.clone(); other.launchToken("me") != token {
		t.Fatal("the same launch has two tokens")
	}
	other := base.clone()
	other.Launch.ID = "launch-b"
	if other.launchToken("me") == token || base.launchToken("you") == token {
		t.Error("another launch, or another Kip's, has the same token")
	}
}

// Tags anybody may write who may write tags; the token of a launch nobody can afterwards. What else EC2
// tells of an instance it may change: it moves one to another host, and has all of a VPC be dedicated.
func TestAnInstanceIsKipsByTheTokenOfItsLaunch(t *testing.T) {
	cell := Cell{Launch: &Launch{ID: "launch-a", Cells: 7}, Offerings: []Offering{{InstanceType: "nano", Zone: "z", Subnet: "s"}}}
	of := func(launch string) cloud.Instance {
		return cloud.Instance{
			InstanceType: "small", Zone: "y", Subnet: "t", Spot: true,
			Tags:   map[string]string{cloud.TagBatch: launch},
			Origin: cloud.Origin{Token: cell.launchToken("me"), Dedicated: true, Reservation: "h-2"},
		}
	}
	if i := of("launch-a"); !launchedBy("me", i) || launchedBy("you", i) {
		t.Errorf("mine %t, yours %t", launchedBy("me", i), launchedBy("you", i))
	}
	if launchedBy("me", of("launch-b")) {
		t.Error("of another launch it is mine, too")
	}
	if !launchedBy("me", cloud.Instance{}) || launchedBy("me", cloud.Instance{Origin: cloud.Origin{Token: "fleet-0"}}) {
		t.Error("one without a token is mine, as far as can be known, and one with another's is not")
	}
}

func TestCandidatesShowWhatIsPaidAndWhatElseThereWas(t *testing.T) {
	is := Offering{
		InstanceType:   "t3.small",
		Zone:           "a",
		PricePerHour:   0.02,
		BurstPerHour:   0.01,
		DiskUnpriced:   true,
		AddressPerHour: 0.005,
		Reason:         "cheapest",
	}
	spot := Offering{InstanceType: "c5.large", Zone: "a", Spot: true, Unpriced: true}
	c := Cell{Offerings: []Offering{is}, Considered: Considered{
		Best: []Offering{{InstanceType: "t3.nano", Zone: "a"}, is, spot, is, is, spot, spot, spot},
	}}
	got := c.Candidates()
	if len(got) != apiv1.MaxCandidates || got[1].InstanceType != "t3.nano" {
		t.Errorf("candidates are %+v", got)
	}
	want := apiv1.Candidate{
		InstanceType:   "t3.small",
		Zone:           "a",
		LaunchType:     "On-Demand",
		PricePerHour:   "0.02",
		BurstPerHour:   "0.01",
		DiskPerHour:    apiv1.Unknown,
		AddressPerHour: "0.005",
		CostPerHour:    "0.035",
		Why:            "cheapest",
	}
	if got[0] != want {
		t.Errorf("the first is %+v, want %+v", got[0], want)
	}
	if s := got[2]; s.LaunchType != "Spot" || s.PricePerHour != apiv1.Unknown || s.CostPerHour != apiv1.Unknown {
		t.Errorf("an offering of unknown price is shown as %+v", s)
	}
	if status := (&Mirror{waitsFor: func(string) string { return "" }}).Status(c); len(status.Candidates) != apiv1.MaxCandidates {
		t.Errorf("the Cell resource has %+v", status.Candidates)
	}
}

// People are told of a cell what its costs are told as.
// Cells of a reservation go in calls of their own, which name it; people see which it is.
func TestACellIsLaunchedIntoItsReservation(t *testing.T) {
	with := Offering{InstanceType: "m5.large", Zone: "a", Reservation: "cr-1"}
	without := with
	without.Reservation = ""
	c := &callBuilder{recipe: &recipe{}}
	for _, o := range []Offering{with, without} {
		s := c.spec(Cell{Offerings: []Offering{o}}, "")
		if s.Reservation != o.Reservation || s.Pool() != o.Pool() || s.CapacityType != cloud.OnDemand {
			t.Errorf("%s is launched as %+v", o, s)
		}
	}
	if with.Key() == without.Key() || with.Pool() != "cr-1" || with.String() != "m5.large (reservation cr-1) in a" {
		t.Errorf("%+v, %q, %s", with.Key(), with.Pool(), with)
	}
}

func TestADedicatedCellIsShownAsOne(t *testing.T) {
	crd, err := apiv1.CustomResourceDefinition()
	if err != nil {
		t.Fatal(err)
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["launchType"]
	for _, offering := range []Offering{{}, {Spot: true}, {Dedicated: true}} {
		status := (&Mirror{waitsFor: func(string) string { return "" }}).Status(Cell{Offerings: []Offering{offering}})
		shown := candidateOf(offering).LaunchType
		if !strings.EqualFold(shown, string(offering.CapacityType())) || status.LaunchType != shown {
			t.Errorf("what is bought as %s is shown as %s, its cell as %s", offering.CapacityType(), shown, status.LaunchType)
		}
		if !slices.ContainsFunc(schema.Enum, func(v apiextensionsv1.JSON) bool { return string(v.Raw) == strconv.Quote(shown) }) {
			t.Errorf("no Cell may be %s", shown)
		}
	}
}
