package cloudtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// Subject is a cloud to be tested.
type Subject struct {
	// New returns a cloud that shows no instance to any of Owners, and ends it
	// with t.
	New func(t *testing.T) cloud.Cloud
	// Bubble runs each test: testing/synctest.Test for a cloud on virtual time.
	// Without it, tests wait in real time.
	Bubble func(t *testing.T, test func(*testing.T))
	// Offering picks what is launched; the cheapest when nil.
	Offering func([]catalog.InstanceType) (catalog.InstanceType, catalog.PurchaseOption)
	// UserData is given to each machine.
	UserData []byte
	// Patience is how long a cloud may take to show what was done; five minutes
	// when 0.
	Patience time.Duration
	// ComparesRequests is for a cloud that compares all of a request with the one
	// that its token was first used for, as EC2 does.
	ComparesRequests bool
	// ForgetsTokens is for a cloud that forgets a token with its instances.
	ForgetsTokens bool
	// Others are what a launch is changed to, to be another one; what is not set is not
	// changed. All is called "changed" when nil.
	Others *cloud.Options
	// OneAddress is for a cloud that was seen to fail PodAddresses: the other checks then wait
	// for no address of a pod.
	OneAddress bool
	// OneByOne is for a cloud that was seen to fail Batches: the checks that only need several
	// instances then launch each by itself.
	OneByOne bool
}

// T is what a check needs of a test.
type T interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
	Skip(...any)
}

// Owners are the values of cloud.TagOwner that the tests use.
var Owners = []string{"cloudtest-a", "cloudtest-b"}

// Run tests a cloud.
func Run(t *testing.T, s Subject) {
	if s.Bubble == nil {
		s.Bubble = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	for _, check := range Checks() {
		t.Run(check.Name, func(t *testing.T) {
			s.Bubble(t, func(t *testing.T) { check.Of(t, s, s.New(t)) })
		})
	}
}

// Check is one thing that every cloud promises.
type Check struct {
	Name string
	run  func(*trial)
}

// Of checks a cloud that shows nothing to any of Owners. It uses neither New nor Bubble.
func (c Check) Of(t T, s Subject, of cloud.Cloud) {
	if s.Offering == nil {
		s.Offering = Cheapest
	}
	s.Patience = cmp.Or(s.Patience, 5*time.Minute)
	if s.Others == nil {
		s.Others = &cloud.Options{
			Image:           map[string]string{"name": "changed"},
			SecurityGroups:  []string{"changed"},
			InstanceProfile: "changed",
			PrivateIPOnly:   true,
		}
	}
	c.run(&trial{T: t, Subject: s, cloud: of})
}

// Names of checks on which others are built.
const (
	Batches      = "launches a batch that shares its user data, each machine at its place"
	PodAddresses = "gives each instance an address for its pod"
)

// Checks are all of them.
func Checks() []Check {
	return []Check{
		{"has a name and something to sell", catalogue},
		{"launches an instance for each machine, in their order", launchesInOrder},
		{Batches, launchesBatches},
		{"launches once for a token", launchesOnce},
		{"launches once for a token used by many at a time", launchesOnceAtATime},
		{"launches nothing anew when the instances of a token have ended", remembersTokens},
		{"launches nothing when a token is used for another request", refusesOtherRequests},
		{"refuses bad requests, having started nothing", refusesBadRequests},
		{"lists the instances of the owner only", listsByOwner},
		{"describes what is there and what has ended", describes},
		{"gives each instance the address that Kip dials", givesAddresses},
		{PodAddresses, givesPodAddresses},
		{"answers by instance", answersByInstance},
		{"terminates, again and again", terminatesRepeatedly},
		{"terminates what it knows among what it does not know", terminatesUnknown},
		{"gives each answer to its caller alone", sharesNothing},
		{"does nothing when the context has ended", heedsContext},
		{"tags what it has launched", tags},
		{"stops and starts", stopsAndStarts},
		{"makes a disk once for a token, and removes it", makesDisks},
		{"gives a disk to one instance at a time", attachesDisks},
		{"grows a disk that an instance has", growsDisks},
		{"frees the disks of an instance that ends", freesDisks},
		{"leads other networks to one instance at a time", leadsNetworks},
		{"lists what belongs to instances, and deletes what none uses", listsParts},
		{"lets Kip in by a rule of the cells, which goes with them", admits},
		{"watches for interruptions until the context ends", watchesInterruptions},
	}
}

// Cheapest is what costs least.
func Cheapest(types []catalog.InstanceType) (catalog.InstanceType, catalog.PurchaseOption) {
	var best catalog.InstanceType
	var offering catalog.PurchaseOption
	for _, t := range types {
		for _, o := range t.Offerings {
			if best.Name == "" || o.PricePerHour < offering.PricePerHour {
				best, offering = t, o
			}
		}
	}
	return best, offering
}

// trial is one test of one cloud.
type trial struct {
	T
	Subject
	cloud  cloud.Cloud
	tokens int
}

// request is for n machines, with a token of its own. They share what they must.
func (t *trial) request(owner string, n int) cloud.LaunchRequest {
	t.Helper()
	if n > 1 && t.cloud.Capabilities().SharedUserData {
		return t.batch(owner, n)
	}
	return t.separate(owner, n)
}

// few is a number of machines of one call, of which the cloud launches as many.
func (t *trial) few(n int) int {
	if t.OneByOne {
		return 1
	}
	return n
}

// some launches n instances, together if that is seen to work.
func (t *trial) some(owner string, n int) (all []cloud.Instance) {
	t.Helper()
	for ; n > 0; n -= t.few(n) {
		all = append(all, t.launch(t.request(owner, t.few(n)))...)
	}
	return all
}

// separate is a request for n machines with user data and tags of their own.
func (t *trial) separate(owner string, n int) cloud.LaunchRequest {
	t.Helper()
	types, err := t.cloud.Catalogue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	typ, offering := t.Offering(types)
	t.tokens++
	r := cloud.LaunchRequest{
		Token: fmt.Sprintf("cloudtest-%d-%d", time.Now().UnixNano(), t.tokens),
		LaunchSpec: cloud.LaunchSpec{
			InstanceType: typ.Name,
			Zone:         offering.Zone,
			Subnet:       offering.Subnet,
			CapacityType: cloud.OnDemand,
		},
	}
	if offering.Spot {
		r.CapacityType = cloud.Spot
	}
	r.Tags = map[string]string{cloud.TagOwner: owner, cloud.TagName: "Kip's cloud tests"}
	for i := range n {
		r.Machines = append(r.Machines, cloud.Machine{UserData: t.UserData, Tags: map[string]string{
			cloud.TagCell: fmt.Sprintf("cell-%d-%d", t.tokens, i),
		}})
	}
	return r
}

func (t *trial) launch(r cloud.LaunchRequest) []cloud.Instance {
	t.Helper()
	got, err := t.cloud.Launch(t.Context(), r).All()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A cloud that costs money is left empty, whatever the test found.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		t.cloud.Terminate(ctx, ids(got)...)
	})
	if len(got) != len(r.Machines) {
		t.Fatalf("launched %d machines; got %d instances", len(r.Machines), len(got))
	}
	for i, instance := range got {
		if instance.ID == "" {
			t.Fatalf("machine %d was not started; the tests need a cloud with capacity for it", i)
		}
	}
	return got
}

func (t *trial) list(owner string) []cloud.Instance {
	t.Helper()
	listing, err := t.cloud.List(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	if !listing.Complete() {
		t.Fatalf("the list of %s lacks the zones %v", owner, listing.Missing)
	}
	list := listing.Instances
	slices.SortFunc(list, func(a, b cloud.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

func ids(list []cloud.Instance) []string {
	var all []string
	for _, i := range list {
		if i.ID != "" {
			all = append(all, i.ID)
		}
	}
	slices.Sort(all)
	return all
}

// eventually waits until the owner's list is as wanted.
func (t *trial) eventually(owner, what string, wanted func([]cloud.Instance) bool) (list []cloud.Instance) {
	t.Helper()
	t.until(func() string {
		if list = t.list(owner); wanted(list) {
			return ""
		}
		return fmt.Sprintf("the list of %s is not %s: %+v", owner, what, list)
	})
	return list
}

// until waits until nothing is amiss any more.
func (t *trial) until(amiss func() string) {
	t.Helper()
	deadline := time.Now().Add(t.Patience)
	for what := amiss(); what != ""; what = amiss() {
		if time.Now().After(deadline) {
			t.Fatalf("after %v %s", t.Patience, what)
		}
		// Of a cloud there is no other news than the next list.
		select {
		case <-time.After(t.Patience / 300):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

func (t *trial) eventuallyRunning(owner string, want []string) []cloud.Instance {
	t.Helper()
	return t.eventually(owner, fmt.Sprintf("%v, running, with addresses", want), func(list []cloud.Instance) bool {
		for _, i := range list {
			if i.State != cloud.Running || !i.ManagementIP.IsValid() || !i.PodIP.IsValid() && !t.OneAddress {
				return false
			}
		}
		return slices.Equal(ids(list), want)
	})
}

func (t *trial) eventuallyEmpty(owner string) {
	t.Helper()
	t.eventually(owner, "empty", func(list []cloud.Instance) bool { return len(list) == 0 })
}

func (t *trial) terminate(ids ...string) {
	t.Helper()
	if err := t.cloud.Terminate(t.Context(), ids...).Err(); err != nil {
		t.Fatal(err)
	}
}

func catalogue(t *trial) {
	if t.cloud.Name() == "" {
		t.Error("the cloud has no name")
	}
	types, err := t.cloud.Catalogue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(types) == 0 {
		t.Fatal("the catalogue is empty")
	}
	seen := map[string]bool{}
	for _, typ := range types {
		if typ.Name == "" || seen[typ.Name] || typ.MilliCPU <= 0 || typ.MemoryBytes <= 0 || typ.Arch == "" {
			t.Errorf("type %q is there twice or lacks something: %+v", typ.Name, typ)
		}
		if withheld := typ.Withheld != ""; withheld != (len(typ.Offerings) == 0) {
			t.Errorf("type %s has %d offerings and is withheld for %q: want one of them", typ.Name, len(typ.Offerings), typ.Withheld)
		}
		seen[typ.Name] = true
		for _, o := range typ.Offerings {
			if o.Zone == "" || !(o.PricePerHour >= 0) {
				t.Errorf("type %s has the offering %+v", typ.Name, o)
			}
		}
	}
}

func launchesInOrder(t *trial) {
	r := t.request(Owners[0], 3)
	got := t.launch(r)
	wanted := map[string]map[string]string{}
	check := func(i cloud.Instance) {
		t.Helper()
		if i.InstanceType != r.InstanceType || i.Zone != r.Zone || i.Subnet != r.Subnet || i.Spot != r.Spot() {
			t.Errorf("requested %+v; got %+v", r, i)
		}
		if i.Launched.IsZero() {
			t.Errorf("instance %s does not say when it was launched", i.ID)
		}
		for k, v := range wanted[i.ID] {
			if i.Tags[k] != v {
				t.Errorf("instance %s has the tag %s=%q: want %q", i.ID, k, i.Tags[k], v)
			}
		}
	}
	for n, i := range got {
		if _, twice := wanted[i.ID]; twice {
			t.Fatalf("two machines have the ID %s", i.ID)
		}
		wanted[i.ID] = r.TagsOf(n)
		check(i)
	}
	addresses := map[any]string{}
	for _, i := range t.eventuallyRunning(Owners[0], ids(got)) {
		check(i)
		if i.ManagementIPv6.IsValid() != i.PodIPv6.IsValid() {
			t.Errorf("instance %s has one IPv6 address: %v and %v", i.ID, i.ManagementIPv6, i.PodIPv6)
		}
		all := []any{i.ManagementIP}
		if i.PodIP.IsValid() {
			all = append(all, i.PodIP)
		}
		if i.PodIPv6.IsValid() {
			all = append(all, i.ManagementIPv6, i.PodIPv6)
		}
		for _, a := range all {
			if other := addresses[a]; other != "" && other != i.ID {
				t.Errorf("instances %s and %s have the address %s", other, i.ID, a)
			}
			addresses[a] = i.ID
		}
	}
}

// batch is a request for n machines that share their user data and tags.
func (t *trial) batch(owner string, n int) cloud.LaunchRequest {
	t.Helper()
	r := t.separate(owner, n)
	r.UserData, r.Machines = t.UserData, make([]cloud.Machine, n)
	r.Tags[cloud.TagBatch] = fmt.Sprintf("launch-%d", t.tokens)
	return r
}

// launchesBatches looks for an instance at each place, in the answers and in lists.
func launchesBatches(t *trial) {
	if !t.cloud.Capabilities().SharedUserData {
		results := t.cloud.Launch(t.Context(), t.batch(Owners[0], 2))
		if err := results.Err(); err == nil || !cloud.Refused(err) {
			t.Errorf("a cloud whose machines have secrets of their own launched a batch that shares one: %v, %v", ids(results.Instances()), err)
		}
		return
	}
	own := t.separate(Owners[0], 2)
	if err := t.cloud.Launch(t.Context(), own).Err(); err == nil || !cloud.Refused(err) {
		t.Errorf("one call launched machines with user data of their own: %v", err)
	}
	r := t.batch(Owners[0], 3)
	got := t.launch(r)
	wanted := map[string]string{}
	for n, i := range got {
		wanted[i.ID] = cloud.PlaceOf(n)
		if i.Place != wanted[i.ID] {
			t.Errorf("result %d is of place %q", n, i.Place)
		}
	}
	for n, i := range t.launch(r) {
		if i.ID != got[n].ID || i.Place != cloud.PlaceOf(n) {
			t.Errorf("when it is launched again, place %d has %s at %q: want %s", n, i.ID, i.Place, got[n].ID)
		}
	}
	list := t.eventually(Owners[0], fmt.Sprintf("%v", ids(got)), func(list []cloud.Instance) bool { return slices.Equal(ids(list), ids(got)) })
	for _, i := range list {
		if i.Place != wanted[i.ID] || i.Tags[cloud.TagBatch] != r.Tags[cloud.TagBatch] {
			t.Errorf("instance %s is listed at place %q of batch %q: want %q of %q", i.ID, i.Place, i.Tags[cloud.TagBatch], wanted[i.ID],
				r.Tags[cloud.TagBatch])
		}
	}
	one := t.request(Owners[0], 1)
	if again := t.launch(one); again[0].Tags[cloud.TagCell] != one.Machines[0].Tags[cloud.TagCell] {
		t.Errorf("a call for one machine with tags of its own launched %+v", again)
	}
}

func tags(t *trial) {
	tagger := t.cloud.Optional().Tagger
	if tagger == nil {
		t.Skip("this cloud tags nothing after its launch")
	}
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	const unknown = "i-0123456789abcdef0"
	taggings := []cloud.Tagging{
		{ID: got[1].ID, Tags: map[string]string{cloud.TagPod: "b", cloud.TagName: "other"}},
		{ID: unknown, Tags: map[string]string{cloud.TagPod: "c"}},
		{ID: got[0].ID, Tags: map[string]string{cloud.TagPod: "a"}},
	}
	for range 2 {
		results := tagger.Tag(t.Context(), taggings...)
		if len(results) != len(taggings) {
			t.Fatalf("%d taggings got %d results", len(taggings), len(results))
		}
		for n, r := range results {
			if r.ID != taggings[n].ID || (r.Err != nil) != (r.ID == unknown) {
				t.Errorf("result %d is of %s: %v", n, r.ID, r.Err)
			}
		}
	}
	t.eventually(Owners[0], "tagged", func(list []cloud.Instance) bool {
		for _, i := range list {
			n := slices.IndexFunc(got, func(g cloud.Instance) bool { return g.ID == i.ID })
			if n < 0 || i.Tags[cloud.TagPod] != []string{"a", "b"}[n] || i.Tags[cloud.TagCell] != got[n].Tags[cloud.TagCell] ||
				i.Tags[cloud.TagOwner] != Owners[0] {
				return false
			}
		}
		return len(list) == 2
	})
}

func launchesOnce(t *trial) {
	r := t.request(Owners[0], t.few(2))
	first := t.launch(r)
	for range 3 {
		if again := t.launch(r); !slices.EqualFunc(first, again, func(a, b cloud.Instance) bool { return a.ID == b.ID }) {
			t.Fatalf("the same token launched %v and then %v", ids(first), ids(again))
		}
	}
	r2 := t.request(Owners[0], 1)
	second := t.launch(r2)
	t.eventuallyRunning(Owners[0], ids(append(second, first...)))
}

func launchesOnceAtATime(t *trial) {
	r := t.request(Owners[0], t.few(2))
	var wg sync.WaitGroup
	got := make([][]cloud.Instance, 5)
	for n := range got {
		wg.Go(func() {
			for range 20 {
				var err error
				if got[n], err = t.cloud.Launch(t.Context(), r).All(); err == nil {
					return
				} else if cloud.Refused(err) {
					t.Errorf("a repeated launch was refused: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	first := t.launch(r)
	for _, g := range got {
		if !slices.Equal(ids(g), ids(first)) {
			t.Errorf("the same token launched %v and %v", ids(first), ids(g))
		}
	}
	t.eventuallyRunning(Owners[0], ids(first))
}

func remembersTokens(t *trial) {
	if t.ForgetsTokens {
		t.Skip("this cloud forgets a token with its instances")
	}
	r := t.request(Owners[0], 1)
	first := t.launch(r)
	t.eventuallyRunning(Owners[0], ids(first))
	t.terminate(ids(first)...)
	t.eventuallyEmpty(Owners[0])
	if again := t.launch(r); !slices.Equal(ids(again), ids(first)) {
		t.Errorf("the token of %v, which have ended, launched %v", ids(first), ids(again))
	}
	// What a list does not show now might still come: another launch, whose
	// end is awaited, shows that time has passed.
	t.eventuallyRunning(Owners[0], ids(t.launch(t.request(Owners[0], 1))))
}

func refusesOtherRequests(t *trial) {
	r := t.request(Owners[0], 1)
	first := t.launch(r)
	changes := map[string]func(*cloud.LaunchRequest){
		"number of machines": func(r *cloud.LaunchRequest) { r.Machines = append(slices.Clip(r.Machines), r.Machines[0]) },
		"user data":          func(r *cloud.LaunchRequest) { r.Machines[0].UserData = []byte("#cloud-config\n# changed\n") },
		"tag":                func(r *cloud.LaunchRequest) { r.Tags[cloud.TagNameTag] = "changed" },
		"tag of a machine":   func(r *cloud.LaunchRequest) { r.Machines[0].Tags[cloud.TagPod] = "changed" },
		"root disk":          func(r *cloud.LaunchRequest) { r.RootDiskBytes = 1 << 40 },
	}
	if t.Others.PrivateIPOnly {
		changes["choice of an address"] = func(r *cloud.LaunchRequest) { r.PrivateIPOnly = true }
	}
	if t.Others.Image != nil {
		changes["image"] = func(r *cloud.LaunchRequest) { r.Image = t.Others.Image }
	}
	if t.Others.SecurityGroups != nil {
		changes["security group"] = func(r *cloud.LaunchRequest) { r.SecurityGroups = t.Others.SecurityGroups }
	}
	if t.Others.InstanceProfile != "" {
		changes["instance profile"] = func(r *cloud.LaunchRequest) { r.InstanceProfile = t.Others.InstanceProfile }
	}
	for what, change := range changes {
		if !t.ComparesRequests && what != "number of machines" {
			continue
		}
		other := r
		other.Tags, other.Machines = maps.Clone(r.Tags), slices.Clone(r.Machines)
		other.Machines[0].Tags = maps.Clone(r.Machines[0].Tags)
		change(&other)
		results := t.cloud.Launch(t.Context(), other)
		if err := results.Err(); !errors.Is(err, cloud.ErrMismatch) || cloud.NothingDone(err) {
			t.Errorf("the token of %v with another %s got %v, %v: want ErrMismatch, which does not say that nothing was done", ids(first), what,
				ids(results.Instances()), err)
		}
	}
	t.eventuallyRunning(Owners[0], ids(append(t.launch(t.request(Owners[0], 1)), first...)))
}

func refusesBadRequests(t *trial) {
	good := t.request(Owners[0], 1)
	for _, bad := range []struct {
		what  string
		spoil func(*cloud.LaunchRequest)
	}{
		{"no token", func(r *cloud.LaunchRequest) { r.Token = "" }},
		{"an unknown type", func(r *cloud.LaunchRequest) { r.InstanceType = "no-such-type" }},
		{"an unknown zone", func(r *cloud.LaunchRequest) { r.Zone = "no-such-zone" }},
		{"no machine", func(r *cloud.LaunchRequest) { r.Machines = nil }},
		{"too many machines", func(r *cloud.LaunchRequest) {
			for len(r.Machines) <= cloud.MaxLaunch {
				r.Machines = append(r.Machines, r.Machines[0])
			}
		}},
	} {
		r := good
		r.Token = fmt.Sprintf("%s-%s", good.Token, bad.what)[:min(64, len(good.Token)+1+len(bad.what))]
		r.Machines = slices.Clone(good.Machines)
		bad.spoil(&r)
		results := t.cloud.Launch(t.Context(), r)
		got, err := results.Instances(), results.Err()
		if len(results) != max(1, len(r.Machines)) {
			t.Errorf("a request with %s got %d results for %d machines", bad.what, len(results), len(r.Machines))
		}
		if err == nil || !cloud.Refused(err) {
			t.Errorf("a request with %s got %v, %v: want a refusal", bad.what, ids(got), err)
		}
		t.terminate(ids(got)...)
	}
	t.eventuallyRunning(Owners[0], ids(t.launch(good)))
}

func listsByOwner(t *trial) {
	a, b := t.some(Owners[0], 2), t.some(Owners[1], 1)
	t.eventuallyRunning(Owners[0], ids(a))
	t.eventuallyRunning(Owners[1], ids(b))
	if list := t.list("cloudtest-nobody"); len(list) != 0 {
		t.Errorf("an owner of nothing is shown %v", ids(list))
	}
	t.terminate(ids(a)...)
	t.eventuallyEmpty(Owners[0])
	t.eventuallyRunning(Owners[1], ids(b))
}

func terminatesRepeatedly(t *trial) {
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	t.terminate(ids(got)...)
	t.terminate(ids(got)...)
	t.eventuallyEmpty(Owners[0])
	t.terminate(ids(got)...)
	t.terminate()
}

func terminatesUnknown(t *trial) {
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	const unknown = "i-0123456789abcdef0"
	t.terminate(unknown)
	t.terminate(got[0].ID, unknown, got[1].ID)
	t.eventuallyEmpty(Owners[0])
}

func describes(t *trial) {
	const unknown = "i-0123456789abcdef0"
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	describe := func(ids ...string) (states []cloud.State) {
		t.Helper()
		all, err := t.cloud.Describe(t.Context(), ids...)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != len(ids) {
			t.Fatalf("asked for %v; got %+v", ids, all)
		}
		for n, i := range all {
			if i.ID != ids[n] {
				t.Errorf("asked for %v; result %d is of %q", ids, n, i.ID)
			}
			states = append(states, i.State)
		}
		return states
	}
	if states := describe(got[1].ID, got[0].ID); states[0] != cloud.Running || states[1] != cloud.Running {
		t.Errorf("two instances that run are described as %v", states)
	}
	if states := describe(unknown); states[0] != cloud.Unknown && states[0] != cloud.Gone {
		t.Errorf("an instance that never was is described as %v", states)
	}
	describe()
	t.terminate(got[0].ID)
	t.eventuallyRunning(Owners[0], []string{got[1].ID})
	deadline := time.Now().Add(t.Patience)
	for states := describe(got[0].ID, got[1].ID); states[0] != cloud.Gone; states = describe(got[0].ID, got[1].ID) {
		if states[1] != cloud.Running || time.Now().After(deadline) {
			t.Fatalf("one that has ended and one that runs are described as %v", states)
		}
		<-time.After(t.Patience / 300)
	}
}

func givesAddresses(t *trial) {
	capabilities := t.cloud.Capabilities()
	for _, i := range t.eventuallyRunning(Owners[0], ids(t.some(Owners[0], 2))) {
		if !i.DialIP(capabilities.DialPublic).IsValid() {
			t.Errorf("instance %s has no address for Kip: %+v", i.ID, i)
		}
		if i.ManagementIPv6.IsValid() != capabilities.IPv6 {
			t.Errorf("instance %s has the IPv6 address %v: Capabilities.IPv6 is %t", i.ID, i.ManagementIPv6, capabilities.IPv6)
		}
	}
}

// givesPodAddresses looks at instances that were launched alone and together.
func givesPodAddresses(t *trial) {
	all := append(t.some(Owners[0], 1), t.some(Owners[0], 2)...)
	t.until(func() string {
		list := t.list(Owners[0])
		taken := map[netip.Addr]string{}
		for _, i := range list {
			switch other := taken[i.PodIP]; {
			case i.State == cloud.Running && !i.PodIP.IsValid():
				return fmt.Sprintf("instance %s, of %d that run, has no address for its pod: %+v", i.ID, len(list), i)
			case !i.PodIP.IsValid():
				return fmt.Sprintf("instance %s is %s: want it running, with an address for its pod", i.ID, i.State)
			case i.PodIP == i.ManagementIP:
				return fmt.Sprintf("instance %s has %s for itself and for its pod", i.ID, i.PodIP)
			case other != "":
				return fmt.Sprintf("instances %s and %s have %s for their pods", other, i.ID, i.PodIP)
			}
			taken[i.PodIP] = i.ID
		}
		if want := ids(all); !slices.Equal(ids(list), want) {
			return fmt.Sprintf("the list has %v: want %v", ids(list), want)
		}
		return ""
	})
}

func answersByInstance(t *trial) {
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	all := []string{got[1].ID, got[0].ID}
	check := func(what string, results cloud.Results) {
		t.Helper()
		if len(results) != len(all) {
			t.Fatalf("%s of %v: %d results", what, all, len(results))
		}
		for n, r := range results {
			if r.ID != all[n] || r.Err != nil {
				t.Errorf("%s of %v: result %d is of %q: %v", what, all, n, r.ID, r.Err)
			}
		}
	}
	if s := t.cloud.Optional().Stopper; s != nil && !got[0].Spot {
		check("stop", s.Stop(t.Context(), all...))
	}
	check("termination", t.cloud.Terminate(t.Context(), all...))
	t.eventuallyEmpty(Owners[0])
}

func sharesNothing(t *trial) {
	r := t.request(Owners[0], 1)
	got := t.launch(r)
	cell := got[0].Tags[cloud.TagCell]
	got[0].Tags[cloud.TagCell] = "changed"
	r.Machines[0].Tags[cloud.TagCell] = "changed"
	list := t.eventuallyRunning(Owners[0], ids(got))
	if was := list[0].Tags[cloud.TagCell]; was != cell {
		t.Errorf("a caller has changed the tag of an instance from %q to %q", cell, was)
	}
	list[0].Tags[cloud.TagCell] = "changed"
	if was := t.list(Owners[0])[0].Tags[cloud.TagCell]; was != cell {
		t.Errorf("a caller has changed the tag of a listed instance from %q to %q", cell, was)
	}
}

func heedsContext(t *trial) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r := t.request(Owners[0], 1)
	if got, err := t.cloud.Launch(ended, r).All(); err == nil {
		t.Errorf("a launch whose context has ended launched %v", ids(got))
	} else if cloud.Refused(err) {
		t.Errorf("a launch whose context has ended was refused, which says too much: %v", err)
	}
	if _, err := t.cloud.List(ended, Owners[0]); err == nil {
		t.Error("a list whose context has ended was answered")
	}
	// Whatever the launch did, repeating it finds it.
	t.eventuallyRunning(Owners[0], ids(t.launch(r)))
}

func stopsAndStarts(t *trial) {
	s := t.cloud.Optional().Stopper
	if s == nil {
		t.Skip("this cloud stops no instances")
	}
	if t.request(Owners[0], 1).Spot() {
		t.Skip("the offering is spot")
	}
	got := t.some(Owners[0], 2)
	t.eventuallyRunning(Owners[0], ids(got))
	for range 2 {
		if err := s.Stop(t.Context(), ids(got)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	t.eventually(Owners[0], "stopped", func(list []cloud.Instance) bool {
		return len(list) == 2 && list[0].State == cloud.Stopped && list[1].State == cloud.Stopped
	})
	for range 2 {
		if err := s.Start(t.Context(), got[0].ID).Err(); err != nil {
			t.Fatal(err)
		}
	}
	t.eventually(Owners[0], "one running and one stopped", func(list []cloud.Instance) bool {
		for _, i := range list {
			want := cloud.Stopped
			if i.ID == got[0].ID {
				want = cloud.Running
			}
			if i.State != want || want == cloud.Running && !i.ManagementIP.IsValid() {
				return false
			}
		}
		return len(list) == 2
	})
	t.terminate(ids(got)...)
	t.eventuallyEmpty(Owners[0])
}

func watchesInterruptions(t *trial) {
	w := t.cloud.Optional().Interrupter
	if w == nil {
		t.Skip("this cloud interrupts no instances")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Interruptions(ctx, cloud.Listener{Notify: func(cloud.Interruption) {}}) }()
	// A launch gives the watch time to fail, if it is going to.
	t.eventuallyRunning(Owners[0], ids(t.launch(t.request(Owners[0], 1))))
	select {
	case err := <-ended:
		t.Fatalf("the watch ended by itself: %v", err)
	default:
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(t.Patience):
		t.Fatal("the watch goes on though its context has ended")
	}
}
