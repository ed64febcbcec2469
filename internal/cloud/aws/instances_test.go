package aws

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// inBothZones launches instances in each zone, and returns their IDs by zone.
func inBothZones(t *testing.T, c *Cloud, n int) map[string][]string {
	t.Helper()
	there := request("b", n)
	there.Zone, there.Subnet = "us-east-1b", privateSubnet
	ids := map[string][]string{}
	for _, r := range []cloud.LaunchRequest{request("a", n), there} {
		got, err := runLaunch(t.Context(), c, r).All()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range got {
			ids[r.Zone] = append(ids[r.Zone], i.ID)
		}
	}
	return ids
}

// disrupt gives zones a service disruption, and ends those before.
func disrupt(t *testing.T, model *ec2.Model, zones ...string) {
	t.Helper()
	if err := model.Machines().Change(func(k *sim.Knobs) { k.BlindZones = zones }); err != nil {
		t.Fatal(err)
	}
}

// statesOf are what a description says of each ID.
func statesOf(t *testing.T, c *Cloud, ids ...string) (all []cloud.State) {
	t.Helper()
	got, err := c.Describe(t.Context(), ids...)
	if err != nil {
		t.Fatal(err)
	}
	for n, i := range got {
		if i.ID != ids[n] {
			t.Errorf("answer %d is of %s, want %s", n, i.ID, ids[n])
		}
		all = append(all, i.State)
	}
	return all
}

// A Kip that has begun during the disruption knows no zone of an instance from before.
func TestADisruptionOfAZoneHidesNoInstanceOfAnother(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	before := open(t, settings(url))
	ids := inBothZones(t, before, 3)
	a, b := ids["us-east-1a"], ids["us-east-1b"]
	if _, err := before.List(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	disrupt(t, model, "us-east-1a")
	if err := before.Terminate(t.Context(), b[0]).Err(); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]*Cloud{"one from before": before, "a new one": open(t, settings(url))} {
		list, err := c.List(t.Context(), owner)
		if err != nil || !slices.Equal(list.Missing, []string{"us-east-1a"}) || !list.Covers("us-east-1b") {
			t.Errorf("%s: the list lacks %v, %v: want us-east-1a alone", what, list.Missing, err)
		}
		var listed []string
		for _, i := range list.Instances {
			listed = append(listed, i.ID)
		}
		slices.Sort(listed)
		if want := slices.Sorted(slices.Values(b[1:])); !slices.Equal(listed, want) {
			t.Errorf("%s: it lists %v, want %v", what, listed, want)
		}
		if got := statesOf(t, c, a[0], b[1], a[1], b[2]); !slices.Equal(got, []cloud.State{"", cloud.Running, "", cloud.Running}) {
			t.Errorf("%s: of a, b, a and b it says %q", what, got)
		}
	}
	// Only one that has seen the ended instance knows that EC2 answers for its zone.
	if got := statesOf(t, before, a[0], b[0]); !slices.Equal(got, []cloud.State{"", cloud.Gone}) {
		t.Errorf("of one in the zone, and of one that has ended in the other, it says %q", got)
	}
	// An ID that nobody can place may be in the zone.
	if got := statesOf(t, before, a[0], "i-0123456789abcdef0"); !slices.Equal(got, []cloud.State{"", ""}) {
		t.Errorf("of one in the zone, and of an unknown one, it says %q", got)
	}
	disrupt(t, model)
	if list, err := before.List(t.Context(), owner); err != nil || !list.Complete() || len(list.Instances) != 5 {
		t.Errorf("after it: %d, %v, %v: want all 5", len(list.Instances), list.Missing, err)
	}
}

// A launch is sent again, and one of its instances has ended. A Kip that has begun since finds those that run by their interfaces.
func TestALaunchIsAnsweredInTheDisruptionOfAnotherZone(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	before := open(t, settings(url))
	ids := inBothZones(t, before, 3)
	r := request("b", 3)
	r.Zone, r.Subnet = "us-east-1b", privateSubnet
	first := ids[r.Zone]
	if err := before.Terminate(t.Context(), first[1]).Err(); err != nil {
		t.Fatal(err)
	}
	disrupt(t, model, "us-east-1a")
	fresh := open(t, settings(url))
	for what, tc := range map[string]struct {
		c     *Cloud
		found []bool
	}{
		"one from before": {before, []bool{true, true, true}},
		"a new one":       {fresh, []bool{true, false, true}},
	} {
		for n, one := range runLaunch(t.Context(), tc.c, r) {
			ended := n == 1
			switch {
			case !tc.found[n] && (one.Err == nil || cloud.NothingDone(one.Err) || cloud.CauseOf(one.Err) != ""):
				t.Errorf("%s: machine %d, which it does not find: %v", what, n, one.Err)
			case tc.found[n] && (one.Err != nil || one.Instance.ID != first[n] || (one.Instance.State == cloud.Gone) != ended):
				t.Errorf("%s: machine %d: %+v, want %s, ended %t", what, n, one, first[n], ended)
			}
		}
	}
	disrupt(t, model, r.Zone)
	for what, c := range map[string]*Cloud{"one from before": before, "a new one": fresh} {
		if err := runLaunch(t.Context(), c, r).Err(); err == nil || cloud.NothingDone(err) || cloud.CauseOf(err) != "" {
			t.Errorf("%s: in the disruption of its own zone: %v", what, err)
		}
	}
}

// A Kip that begins during it must find that its list is complete, or it gives no cell to pods that were there before. Nor does a
// list need the subnets once they are known.
func TestADisruptionOfAZoneThatKipDoesNotUseTakesNothingFromItsList(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Zones = []string{"us-east-1e"}
	model, _ := serve(t, account)
	refusing := false
	_, url := eavesdrop(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusing && r.PostForm.Get("Action") == "DescribeSubnets" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Response><Errors><Error><Code>UnauthorizedOperation</Code></Error></Errors></Response>")
			return
		}
		model.ServeHTTP(w, r)
	}))
	before := open(t, settings(url))
	inBothZones(t, before, 2)
	disrupt(t, model, "us-east-1e")
	fresh := open(t, settings(url))
	for range 2 {
		for what, c := range map[string]*Cloud{"one from before": before, "a new one": fresh} {
			list, err := c.List(t.Context(), owner)
			if err != nil || !list.Complete() || len(list.Instances) != 4 || !list.Covers("us-east-1b") {
				t.Errorf("%s: %d, without %v, %v: want all 4, and no zone missing", what, len(list.Instances), list.Missing, err)
			}
			if list.Covers("us-east-1e") {
				t.Errorf("%s: nothing shows that EC2 answers for us-east-1e", what)
			}
			c.caches.forget()
		}
		refusing = true
	}
	if list, err := open(t, settings(url)).List(t.Context(), owner); err == nil {
		t.Errorf("without knowing its zones it lists %+v", list)
	}
}

// Without them nobody knows which instances there are.
func TestWithoutItsInterfacesADisruptedRegionHasNoList(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	inBothZones(t, c, 1)
	disrupt(t, model, "us-east-1a")
	model.Machines().FailNth(sim.KindListOwned, 1, sim.Fault{Before: errors.New("InternalError")})
	if list, err := c.List(t.Context(), owner); err == nil {
		t.Errorf("the list is %+v", list)
	}
	if list, err := c.List(t.Context(), owner); err != nil || list.Complete() {
		t.Errorf("once the interfaces are told: %+v, %v", list, err)
	}
}

// A zone counts as looked at once EC2 has described an instance there: a Kip without a memory of its instances knows none in the
// zone otherwise, if EC2 shows no interfaces of it either.
func TestAZoneOfWhichNothingIsKnownIsNotLookedAt(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	ids := inBothZones(t, open(t, settings(url)), 2)
	if err := model.Machines().Change(func(k *sim.Knobs) { k.BlindZones, k.HidesBlindOwned = []string{"us-east-1a"}, true }); err != nil {
		t.Fatal(err)
	}
	c := open(t, settings(url))
	list, err := c.List(t.Context(), owner)
	if err != nil || list.Covers("us-east-1a") || !list.Covers("us-east-1b") || len(list.Silent) > 0 || len(list.Instances) != 2 {
		t.Errorf("%+v, %v: want the two of us-east-1b, and us-east-1a missing, of which nobody was asked", list, err)
	}
	if err := c.Terminate(t.Context(), ids["us-east-1b"]...).Err(); err != nil {
		t.Fatal(err)
	}
	if list, err := c.List(t.Context(), owner); err == nil && list.Complete() {
		t.Errorf("without an instance that EC2 describes: %+v", list)
	}
}

// EC2 need not say where an interface is. A call with one ID of the disrupted zone fails for all in it.
func TestInstancesWithoutAZoneMayBeInAny(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	ids := map[string][]string{}
	_, url := eavesdrop(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &answer{ResponseWriter: w, code: http.StatusOK}
		model.ServeHTTP(a, r)
		text := a.text.String()
		for _, of := range ids {
			text = regexp.MustCompile(`<availabilityZone>[^<]*</availabilityZone>(<attachment><instanceId>`+of[0]+`<)`).ReplaceAllString(text, "$1")
		}
		w.WriteHeader(a.code)
		fmt.Fprint(w, text)
	}))
	ids = inBothZones(t, open(t, settings(url)), 3)
	disrupt(t, model, "us-east-1a")
	list, err := open(t, settings(url)).List(t.Context(), owner)
	if err != nil || list.Covers("us-east-1a") || list.Covers("us-east-1b") || len(list.Instances) != 2 {
		t.Errorf("%d, without %q, %v: want two of us-east-1b, which does not have all, and no other zone", len(list.Instances), list.Missing, err)
	}
	if !slices.Equal(list.Silent, []string{"us-east-1a"}) {
		t.Errorf("nothing answers for %q, want us-east-1a", list.Silent)
	}
}

func TestAFaultThatPassesHidesNoZone(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	failing := ""
	_, url := eavesdrop(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if failing != "" && r.PostForm.Get("InstanceId.1") == failing {
			failing = ""
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, "<Response><Errors><Error><Code>InternalError</Code></Error></Errors></Response>")
			return
		}
		model.ServeHTTP(w, r)
	}))
	c := open(t, settings(url))
	ids := inBothZones(t, c, 3)
	disrupt(t, model, "us-east-1a")
	failing = slices.Min(ids["us-east-1b"])
	if list, err := c.List(t.Context(), owner); err != nil || !list.Covers("us-east-1b") || len(list.Instances) != 3 || failing != "" {
		t.Errorf("%d, without %v, %v: want the three of us-east-1b", len(list.Instances), list.Missing, err)
	}
}

// What EC2 says of the account is no fault of a zone: launches leave alone a zone that a list lacks.
func TestAThrottledDescriptionIsNoFaultOfAZone(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	calls := 0
	_, url := eavesdrop(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PostForm.Has("InstanceId.1") {
			if calls++; calls == 2 {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, "<Response><Errors><Error><Code>RequestLimitExceeded</Code></Error></Errors></Response>")
				return
			}
		}
		model.ServeHTTP(w, r)
	}))
	c := open(t, settings(url))
	inBothZones(t, c, 1)
	disrupt(t, model, "us-east-1b")
	if list, err := c.List(t.Context(), owner); !errors.Is(err, cloud.ErrThrottled) {
		t.Errorf("%+v, %v: want ErrThrottled", list, err)
	}
}

// EC2 refuses the whole call, and names those that it does not know, or perhaps not.
func TestInstancesThatEC2DoesNotKnowHideNoOthers(t *testing.T) {
	for what, tc := range map[string]struct {
		rewrite func(string) string
		most    int // calls
	}{
		"named":     {func(s string) string { return s }, 2},
		"not named": {func(string) string { return "Some instance IDs do not exist" }, 15},
		"cut off": {func(s string) string {
			first, _, more := strings.Cut(s, ",")
			if !more {
				return s
			}
			return first + "' do not exist"
		}, 3},
	} {
		model, _ := serve(t, anAccount(sim.Knobs{}))
		h, url := eavesdrop(t, rewriting(t, model, tc.rewrite))
		c := open(t, settings(url))
		got, err := runLaunch(t.Context(), c, request("t", 5)).All()
		if err != nil {
			t.Fatal(err)
		}
		ids := []string{got[0].ID, "i-00000000000000001", got[1].ID, got[2].ID, "i-00000000000000002", got[3].ID, got[4].ID, got[0].ID}
		runs, unknown := cloud.Running, cloud.Unknown
		want := []cloud.State{runs, unknown, runs, runs, unknown, runs, runs, runs}
		if states := statesOf(t, c, ids...); !slices.Equal(states, want) {
			t.Errorf("%s: it says %q, want %q", what, states, want)
		}
		if n := len(h.of("DescribeInstances")); n > tc.most {
			t.Errorf("%s: after %d calls, want at most %d", what, n, tc.most)
		}
	}
}

// answer is one that is written again.
type answer struct {
	http.ResponseWriter
	text strings.Builder
	code int
}

func (a *answer) Write(b []byte) (int, error) { return a.text.Write(b) }
func (a *answer) WriteHeader(code int)        { a.code = code }

// rewriting changes the messages of an API's refusals.
func rewriting(t *testing.T, api http.Handler, rewrite func(string) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &answer{ResponseWriter: w, code: http.StatusOK}
		api.ServeHTTP(a, r)
		text := a.text.String()
		if begin, after, is := strings.Cut(text, "<Message>"); is && a.code == http.StatusBadRequest {
			message, end, _ := strings.Cut(after, "</Message>")
			text = begin + "<Message>" + rewrite(message) + "</Message>" + end
		}
		w.WriteHeader(a.code)
		if _, err := fmt.Fprint(w, text); err != nil {
			t.Error(err)
		}
	})
}
