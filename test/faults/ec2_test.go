package faults

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// subnetOf is the only one of a zone.
func subnetOf(zone string) string { return "subnet-" + zone }

// unusedZone is one of the region where Kip has no subnet.
const unusedZone = "c"

// volumeStep is how long each step of a volume takes.
const volumeStep = 1500 * time.Millisecond

// What the account of a story has beside what each has: capacity for one machine each, which is
// paid for whether it is used or not.
const (
	oneReserved = "cr-1"
	oneHost     = "h-1"
)

// newModel is a model of EC2 before the simulated machines.
func newModel(machines sim.Config, disks cloudmodel.Disks, s setting) (*ec2.Model, error) {
	machines.Catalogue = slices.Clone(machines.Catalogue)
	for n, t := range machines.Catalogue {
		t.Offerings = slices.Clone(t.Offerings)
		for i, o := range t.Offerings {
			t.Offerings[i].Subnet = subnetOf(o.Zone)
		}
		machines.Catalogue[n] = t
	}
	policy, err := ec2.ParsePolicy(aws.Policy())
	if err != nil {
		return nil, err
	}
	cfg := ec2.Config{
		Sim:      machines,
		Subnets:  []ec2.Subnet{{ID: subnetOf("a"), VPC: "vpc-1", Zone: "a"}, {ID: subnetOf("b"), VPC: "vpc-1", Zone: "b"}},
		Zones:    []string{unusedZone},
		Images:   ec2Images(1, 1),
		Policies: map[string]*ec2.Policy{ec2Key: policy},
		Disks:    disks,

		VolumeStep: volumeStep,
	}
	if s.reserved {
		cfg.Reservations = []ec2.Reservation{{ID: oneReserved, Type: "small", Zone: "a", Total: 1}}
		cfg.Hosts = []ec2.Host{{ID: oneHost, Type: "small", Zone: "a", VCPUs: 1}}
	}
	return ec2.New(cfg)
}

const ec2Key = "AKIATESTS"

// newDriver is that of one life of Kip, which remembers nothing of the life before.
func newDriver(k *kip) (*aws.Cloud, error) {
	cfg := aws.Config{
		Region:          "us-east-1",
		AccessKeyID:     ec2Key,
		SecretAccessKey: "secret",
		VPC:             "vpc-1",
		Endpoint:        "http://ec2.test",
		Clock:           kipClock{k: k},
		Transport:       wire{k},
		ExtraCIDRs:      []netip.Prefix{networkOf(k.life)},
		// The quiet hour is long.
		InterruptionsEvery: cmp.Or(k.w.looksEvery, time.Hour),
	}
	if k.w.reserved {
		cfg.Reservations, cfg.Hosts = aws.Choice{IDs: []string{oneReserved}}, aws.Choice{IDs: []string{oneHost}}
	}
	return aws.New(k.ctx, cfg)
}

// onEC2 is a launch with what only EC2 asks for.
func onEC2(s cloud.LaunchSpec) cloud.LaunchSpec {
	s.Subnet, s.Image = subnetOf(s.Zone), map[string]string{"name": "cell-*"}
	return s
}

// sold is a launch as the machines behind EC2 know it.
func (w *world) sold(s cloud.LaunchSpec) cloud.LaunchSpec {
	if w.model != nil {
		s.Subnet = subnetOf(s.Zone)
	}
	return s
}

// ec2Images are those of some lives, each newer than the one before and with another disk.
func ec2Images(first, last int) (all []ec2.Image) {
	for n := first; n <= last; n++ {
		all = append(all, ec2.Image{
			ID:         fmt.Sprint("ami-", n),
			Name:       fmt.Sprint("cell-", n),
			Owner:      "self",
			Created:    time.Date(2026, 1, 1, 0, n, 0, 0, time.UTC).Format(time.RFC3339),
			RootDevice: fmt.Sprint("/dev/xvd", n),
			GiB:        1 + n%8,
		})
	}
	return all
}

// networkOf is from where a life of Kip may reach its cells.
func networkOf(life int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(life), 0}), 24)
}

// wire carries the requests of one Kip to the model, in this process. Kip can be killed
// before each leaves, and before its answer comes.
type wire struct{ k *kip }

func (t wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w := t.k.w
	if err := t.k.alive(); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	action := form.Get("Action")
	n := 0
	// How many looks at spot requests and at maintenance fit between two calls is the clock's affair.
	if !slices.Contains([]string{"DescribeSpotInstanceRequests", "DescribeInstanceStatus"}, action) {
		n = w.nextPoint()
	}
	if err := w.point(n, false); err != nil {
		return nil, err
	}
	w.happened("EC2 " + action)
	got := r.Clone(r.Context())
	got.Body = io.NopCloser(bytes.NewReader(body))
	answer, err := cloudmodel.Answer(w.model, got)
	if w.heard != nil {
		w.heard(action, codeOf(answer), err == nil)
	}
	if err != nil {
		return nil, err
	}
	if err := w.point(n, true); err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

// errorCode is where EC2 says what is wrong.
var errorCode = regexp.MustCompile(`<Code>([^<]*)</Code>`)

// codeOf is that of an answer; "" for success.
func codeOf(answer *httptest.ResponseRecorder) string {
	if answer.Code == http.StatusOK {
		return ""
	}
	if code := errorCode.FindSubmatch(answer.Body.Bytes()); code != nil {
		return string(code[1])
	}
	return answer.Result().Status
}

// spotLooks is how often EC2's driver looks for what is taken back in a story that has some: often
// enough for a notice of two minutes.
const spotLooks = 20 * time.Second

// ofEC2 are the stories that are played on EC2 as well, by name.
var ofEC2 = map[string]bool{
	"a pod runs to its end":                                       true,
	"a pod is deleted while it runs":                              true,
	"a burst shares its user data":                                true,
	"a part of a batch finds room, and the answer is lost":        true,
	deletedIn("Launching").name:                                   true,
	"a stopped standby cell is taken":                             true,
	"the cloud takes an instance back":                            true,
	"an eviction that a disruption budget forbids is tried again": true,
	"a pod with a disk runs to its end":                           true,
	"a disk goes from one pod to the next":                        true,
	"a disk is taken from a cell that is lost":                    true,
	"a disk is taken from a cell that is cut off for ever":        true,
	"a disk is made, used and deleted":                            true,
}

// madeDisk is about a disk that Kip makes, as its provisioner asks for it: by one token, until Kip
// is told of the disk.
func madeDisk(s *stage) {
	var made cloud.Disk
	s.until("a disk is made", s.asks(func(ctx context.Context, k *kip) (err error) {
		made, err = k.machines.Optional().Disks.CreateDisk(ctx, cloud.DiskRequest{
			Token:     "pvc-1",
			SizeBytes: 1 << 30,
			Zone:      diskZone,
			Tags:      map[string]string{cloud.TagOwner: owner},
		})
		return err
	}))
	if s.lost {
		return
	}
	s.shows("it was made once", len(s.disksNow()) == diskCount+1)
	s.disks = append(s.disks, made.ID)
	uid := s.podOnDisk(corev1.RestartPolicyAlways, diskCount)
	s.until("a pod runs on it", s.runs(uid))
	const grown = 2 << 30
	s.until("it grows", s.asks(func(ctx context.Context, k *kip) error {
		now, err := k.machines.Optional().DiskGrower.GrowDisk(ctx, made.ID, grown)
		if err == nil && now.SizeBytes != grown {
			err = fmt.Errorf("it has %d bytes", now.SizeBytes)
		}
		return err
	}))
	s.delete(uid)
	s.until("the pod is gone", s.gone(uid))
	s.until("the disk is deleted", s.asks(func(ctx context.Context, k *kip) error {
		return k.machines.Optional().Disks.DeleteDisk(ctx, made.ID)
	}))
	s.shows("it is gone, and no other", len(s.disksNow()) == diskCount)
}

// asks does something by the Kip that runs, within the time of a call, and says whether that succeeded.
func (s *stage) asks(do func(context.Context, *kip) error) func() bool {
	return func() bool {
		s.mu.Lock()
		k := s.kip
		up := k != nil && k.up
		s.mu.Unlock()
		if !up {
			return false
		}
		ctx, cancel := context.WithTimeout(k.ctx, callTimeout)
		defer cancel()
		return do(ctx, k) == nil
	}
}

// onlyOnEC2 are about what Kip looks up and makes there.
var onlyOnEC2 = []scenario{
	{ec2: true, name: "what a launch is made of changes, and its answer is lost", story: func(s *stage) {
		s.cloud.FailNth(sim.KindLaunch, 1, sim.Fault{Then: func() { s.model.Change(changed) }, After: sim.ErrLost})
		uids := []types.UID{s.pod(corev1.RestartPolicyAlways, "small"), s.pod(corev1.RestartPolicyAlways, "small")}
		s.until("they run", s.runs(uids...))
		s.shows("an instance was launched of which Kip was not told", s.called(sim.KindLaunch, sim.Lost))
		if s.alive() {
			s.shows("they run on what was launched first", len(s.cloud.History()) == len(uids))
		}
	}},
	{ec2: true, name: "what a launch is made of is gone before it is sent", story: func(s *stage) {
		var once sync.Once
		s.mu.Lock()
		s.decided = func(k sim.Kind) {
			if k == sim.KindLaunch {
				once.Do(func() { s.model.Change(changed) })
			}
		}
		s.mu.Unlock()
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		if s.alive() {
			s.shows("the launch was stale", s.told(uid, events.LaunchDelayed))
		}
	}},
	{ec2: true, name: "a disk is made, used and deleted", story: madeDisk},
	{ec2: true, routed: true, name: "a network is led to a pod, and to the next", story: led},
	{ec2: true, reserved: true, every: 8, name: "capacity that is reserved is taken, and is full", story: func(s *stage) {
		in := func() (places []string) {
			for _, i := range s.cloud.Truth() {
				places = append(places, s.model.Launched.ReservedOf(i))
			}
			slices.Sort(places)
			return places
		}
		var uids []types.UID
		for range 3 {
			uids = append(uids, s.pod(corev1.RestartPolicyAlways, "reserved"))
			s.until("it runs", s.runs(uids...))
		}
		s.until("one is in the reservation, one on the host, and one is in neither", func() bool {
			return slices.Equal(in(), []string{"", oneReserved, oneHost})
		})
		s.delete(uids[0])
		s.until("the pod is gone, and so is its machine", func() bool { return s.gone(uids[0])() && len(in()) == 2 })
	}},
	{ec2: true, every: 64, name: "Kip begins while a zone is disrupted that it does not use", story: func(s *stage) {
		s.cloud.SetCapacity(sim.Pool{InstanceType: "small", Zone: "a"}, 1)
		uids := []types.UID{s.pod(corev1.RestartPolicyAlways, "small"), s.pod(corev1.RestartPolicyAlways, "small")}
		s.until("one runs in each zone", s.runs(uids...))
		s.change(func(k *sim.Knobs) { k.BlindZones = []string{unusedZone} })
		s.kill()
		waits := s.pod(corev1.RestartPolicyAlways, "large")
		s.until("a pod runs that was there before Kip", s.runs(append(uids, waits)...))
		s.change(func(k *sim.Knobs) { k.BlindZones = nil })
	}},
	{ec2: true, name: "Kip comes back from elsewhere", story: func(s *stage) {
		uid := s.pod(corev1.RestartPolicyAlways, "small")
		s.until("it runs", s.runs(uid))
		s.kill()
		s.until("only this life is let in", s.letIn)
		s.until("it runs", s.runs(uid))
	}},
}

// behindPod is a network that a pod is the way to.
var behindPod = netip.MustParsePrefix("10.20.0.0/16")

// led is about a network that the cloud leads to a pod, and then to another one.
func led(s *stage) {
	routed := func() types.UID {
		s.mu.Lock()
		s.annotations = map[string]string{placement.AnnotationCloudRoute: behindPod.String()}
		s.mu.Unlock()
		return s.pod(corev1.RestartPolicyAlways, "small")
	}
	// leads says that all routes lead to the one instance that runs.
	leads := func() bool {
		routes, now := s.model.Routing.Routes(), s.cloud.Truth()
		return len(routes) > 0 && len(now) == 1 && !slices.ContainsFunc(routes, func(r ec2.Route) bool {
			return r.To != behindPod || r.Instance != now[0].ID
		})
	}
	for range 2 {
		uid := routed()
		s.until("it runs", s.runs(uid))
		s.until("its network is led to it", leads)
		s.delete(uid)
		s.until("the pod is gone", s.gone(uid))
		s.until("nothing leads anywhere", func() bool { return len(s.model.Routing.Routes()) == 0 })
	}
}

// changed is an account in which all that a launch looks up is another thing now.
func changed(c *ec2.Config) {
	c.Images = ec2Images(200, 200)
	c.Groups = slices.DeleteFunc(c.Groups, func(g ec2.Group) bool { return g.Tags[cloud.TagOwner] == owner })
	for n := range c.Subnets {
		c.Subnets[n].Public, c.Subnets[n].MapPublic = !c.Subnets[n].Public, !c.Subnets[n].MapPublic
	}
}

// letIn says that the group of the cells lets in the life of Kip that runs, and none before.
func (s *stage) letIn() bool {
	s.mu.Lock()
	life, runs := s.lives, s.kip != nil
	s.mu.Unlock()
	sources := map[string]bool{}
	for _, g := range s.model.Groups.All() {
		for _, r := range g.Rules {
			if r.From == agentapi.Port {
				sources[r.Source] = true
			}
		}
	}
	return runs && maps.Equal(sources, map[string]bool{"10.0.0.0/8": true, networkOf(life).String(): true})
}

// TestKipIsKilledBetweenAnyTwoCallsToEC2 plays stories of any cloud on a model of EC2, by the driver and
// its SDK: each request of a call is one at which Kip is killed.
func TestKipIsKilledBetweenAnyTwoCallsToEC2(t *testing.T) {
	names := map[string]bool{}
	var chosen []scenario
	for _, sc := range slices.Concat(scenarios, diskScenarios, onlyOnEC2) {
		names[sc.name] = true
		if ofEC2[sc.name] && !sc.ec2 {
			chosen = append(chosen, sc)
		}
	}
	for name := range ofEC2 {
		if !names[name] {
			t.Errorf("there is no story %q", name)
		}
	}
	killedOnEC2(t, chosen, leastDeathsBetweenCalls)
}

// TestKipIsKilledInWhatOnlyEC2Has plays the stories that no other cloud has in the same way.
func TestKipIsKilledInWhatOnlyEC2Has(t *testing.T) {
	killedOnEC2(t, onlyOnEC2, leastDeathsOnlyOnEC2)
}

// killedOnEC2 plays each story on the model of EC2, once for each request at which Kip is killed. With fewer
// deaths than least in all it fails.
func killedOnEC2(t *testing.T, stories []scenario, least int) {
	t.Helper()
	deaths := 0
	for n, sc := range stories {
		step := max(sc.every, 1)
		if testing.Short() { // neighbours are of one request, or nearly: in a row of stories each is met
			step = max(step, *shortEveryFlag)
		}
		t.Run(strings.ReplaceAll(sc.name, " ", "_"), func(t *testing.T) {
			sc.ec2, sc.shared = true, true
			violations, passed := playUntil(t, sc, failpoint{})
			if len(violations) > 0 {
				t.Fatalf("%s on EC2, and Kip is not killed:\n  %s", sc.name, strings.Join(violations, "\n  "))
			}
			if len(passed) < leastOnEC2 {
				t.Errorf("%s on EC2 has %d points at which to die: want %d or more", sc.name, len(passed), leastOnEC2)
			}
			for _, f := range passed {
				if *pointFlag != 0 && f.n != *pointFlag || *pointFlag == 0 && f.n%step != n%step {
					continue
				}
				if violations, _ := playUntil(t, sc, f); len(violations) > 0 {
					t.Fatalf("%s on EC2, and Kip is killed %s write or call %d:\n  %s\nreplay: go test ./test/faults -run '%s' -point %d [-trace]",
						sc.name, map[bool]string{false: "before", true: "after"}[f.after], f.n, strings.Join(violations, "\n  "), t.Name(), f.n)
				}
				deaths++
			}
			t.Logf("%d points at which to die", len(passed))
		})
	}
	t.Log(fmt.Sprint(deaths, " deaths"))
	if whole() && deaths < least {
		t.Errorf("Kip was killed %d times, want %d or more", deaths, least)
	}
}

// leastOnEC2 are the least points at which to die of a story on EC2: a launch alone is
// eight requests. The others are the least deaths of a test, little below what they are.
const leastOnEC2, leastDeathsBetweenCalls, leastDeathsOnlyOnEC2 = 50, 3500, 1200
