package faults

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/events"
)

var dayFlag = flag.Int("day-pods", 0, "the measure of the day of AWS, about how many pods it has at noon; 0 is what a stage has time for")

// The sizes of a day where nobody says one: that of a stage, and with -short.
const dayPods, dayPodsShort = 40, 10

// The batch on spot has so many pods, whatever the size of the day, and with -short.
const spotPods, spotPodsShort = 220, 12

// part is one of the day: what goes wrong in it, and how many pods come.
type part struct {
	from, to time.Duration // since midnight
	name     string
	// waves of pods come in it one after the other, each of a share of the day's size.
	waves int
	share float64
	sizes []string // that they ask for, in turn
	// each of them runs so long, or longer by up to as much again.
	runs time.Duration
	// begin and end change the world; every is called with each wave.
	begin, end func(*day)
	every      func(*day)
	kill       bool // Kip, at some call in it
	faulty     bool // calls fail, or have no answer

	tally partTally
}

type partTally struct {
	made, done, launched, calls, throttled, lost, failed int
	waits                                                []time.Duration
}

// theDay is what happens when.
func theDay() []*part {
	jobs := []string{"small", "spot", "large", "spot"}
	// quiet is a part in which nothing goes wrong but that Kip may be killed.
	quiet := func(name string, waves int, share float64, runs time.Duration) *part {
		return &part{
			name:  name,
			waves: waves,
			share: share,
			sizes: jobs,
			runs:  runs,
		}
	}
	// bad is one in which something does.
	bad := func(name string, waves int, share float64, begin, end func(*day)) *part {
		p := quiet(name, waves, share, 20*time.Minute)
		p.begin, p.end, p.kill = begin, end, true
		return p
	}
	fails := func(name string, rates sim.FaultRates) *part {
		p := bad(name, 6, 0.08, func(d *day) { d.faults(name, rates) }, func(d *day) { d.faults(name, sim.FaultRates{}) })
		p.faulty = true
		return p
	}
	night, ramp := quiet("night", 6, 0.1, 20*time.Minute), quiet("the morning's ramp", 18, 0.06, time.Hour)
	night.kill, ramp.kill = true, true
	batch := quiet("a batch on spot", 1, 0, 2*time.Hour)
	batch.begin = (*day).batch
	taken := bad("spot is taken back", 10, 0, nil, nil)
	taken.every = (*day).reclaim
	away := fails(apiAway, sim.FaultRates{Failed: 0.4, LostBefore: 0.4, HangBefore: 0.2})
	away.every = (*day).cancel
	all, from := []*part{}, time.Duration(0)
	until := func(hours, minutes int, p *part) {
		p.from, p.to = from, time.Duration(hours)*time.Hour+time.Duration(minutes)*time.Minute
		all, from = append(all, p), p.to
	}
	until(6, 0, night)
	until(9, 30, ramp)
	until(9, 40, bad(otherProgram, 2, 0.15, (*day).neighbour, nil))
	until(10, 30, quiet("before noon", 2, 0.1, 20*time.Minute))
	until(13, 30, bad("zone a has no room", 9, 0.1, (*day).fill, func(d *day) { d.w.cloud.SetCapacity(sim.Pool{Zone: "a"}, -1) }))
	until(14, 40, batch)
	until(14, 50, taken)
	until(16, 0, quiet("afternoon", 2, 0.1, 30*time.Minute))
	until(17, 0, fails(answersLost, sim.FaultRates{LostBefore: 0.05, LostAfter: 0.1, HangAfter: 0.02}))
	until(18, 0, quiet("late afternoon", 2, 0.1, 40*time.Minute))
	until(19, 0, away)
	until(20, 30, quiet("evening", 3, 0.08, 20*time.Minute))
	until(22, 45, &part{name: "all goes home", begin: (*day).goHome})
	return all
}

// Parts that are looked at afterwards.
const (
	otherProgram = "another program takes the account's calls"
	answersLost  = "answers are lost"
	apiAway      = "the region's API is away"
)

// work is what a Job wants done by one pod. A pod that fails, or is moved away, is made anew.
type work struct {
	size    string
	takes   time.Duration // of its containers, from when they run; 0 is until it is cancelled
	policy  corev1.RestartPolicy
	disk    string
	pod     types.UID // now; "" for none
	done    bool
	running time.Time // since when they do
}

// day is a world for a day.
type day struct {
	w     *world
	r     *rand.Rand
	size  int
	spot  int // pods of the batch on spot
	parts []*part
	works []*work

	mu        sync.Mutex
	pods      map[types.UID]*part  // all that were made, and in which part
	deleted   map[types.UID]bool   // by people
	why       map[types.UID]string // what kipctl why would have said then
	calls     map[string]*callTally
	reclaimed int
	others    int // calls of the other program
	most      int // instances at a time
	kills     []time.Duration
}

// callTally is of one action of EC2's.
type callTally struct {
	total, throttled, lost, failed int
	minutes                        map[int]int
}

// now is the part of the day.
func (d *day) now() *part {
	at := time.Since(d.w.began)
	for _, p := range d.parts {
		if at < p.to {
			return p
		}
	}
	return d.parts[len(d.parts)-1]
}

// heard enters a call to EC2, and what came of it: a code of EC2's, or "" for success.
func (d *day) heard(action, code string, answered bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, p := d.calls[action], d.now()
	if c == nil {
		c = &callTally{minutes: map[int]int{}}
		d.calls[action] = c
	}
	c.total++
	c.minutes[int(time.Since(d.w.began)/time.Minute)]++
	p.tally.calls++
	switch {
	case !answered:
		c.lost++
		p.tally.lost++
	case code == "RequestLimitExceeded":
		c.throttled++
		p.tally.throttled++
	case code != "":
		c.failed++
		p.tally.failed++
	}
}

// faults has each call meet one of these by chance, or none again.
func (d *day) faults(name string, rates sim.FaultRates) {
	d.w.change(func(k *sim.Knobs) { k.Faults = map[sim.Kind]sim.FaultRates{sim.AnyKind: rates} })
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if rates == (sim.FaultRates{}) {
		delete(d.w.lasting, name)
		d.w.troubled(time.Now())
		return
	}
	d.w.lasting[name] = true
}

// neighbour is another program of the account, which has instances, too. For the time of a part it
// makes all the calls that it can, and a moment later again where it is told to slow down.
func (d *day) neighbour() {
	until := d.w.began.Add(d.now().to)
	limits := sim.EC2RateLimits()
	for place, kind := range []sim.Kind{sim.KindLaunch, sim.KindTerminate, sim.KindTag, sim.KindList, sim.KindDescribe, sim.KindCatalogue} {
		// A call takes some 300 ms: so many at a time are more than the bucket gets.
		for n := range 1 + int(limits[kind].Requests.Refill) {
			r := rand.New(rand.NewPCG(d.w.seed, uint64(1000*place+n)))
			go func() {
				for time.Now().Before(until) {
					err := d.w.cloud.Take(d.w.ctx, sim.Call{Kind: kind}, func() error { return nil })
					d.mu.Lock()
					d.others++
					d.mu.Unlock()
					if err != nil && !sleep(d.w.ctx, time.Second+time.Duration(r.Int64N(int64(time.Second)))) {
						return
					}
				}
			}()
		}
	}
}

// reclaim takes a tenth of what runs on spot back, with the notice, and all that is left at last.
func (d *day) reclaim() {
	var ids []string
	for _, i := range d.w.cloud.Truth() {
		if i.Spot && i.State == cloud.Running {
			ids = append(ids, i.ID)
		}
	}
	if share := 1 + d.spot/10; len(ids) > share {
		ids = ids[:share]
	}
	before := len(d.w.cloud.Interrupter.Announced())
	if err := d.w.cloud.Interrupter.Interrupt(ids...); err != nil {
		d.w.violate("interrupt instances that run: %v", err)
	}
	d.reclaimed += len(d.w.cloud.Interrupter.Announced()) - before
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.strikes = time.Now().Add(noticeTime)
}

// fill leaves no room in zone a, where pods come that have a disk there.
func (d *day) fill() {
	d.w.cloud.SetCapacity(sim.Pool{Zone: "a"}, 0)
	for _, disk := range d.w.disks {
		d.works = append(d.works, &work{size: "small", policy: corev1.RestartPolicyAlways, disk: disk})
	}
}

// cancel deletes some pods, as people do: one in ten, and those that wait.
func (d *day) cancel() {
	for n, k := range d.works {
		if k.takes == 0 || k.done || k.pod == "" || (n+len(d.works))%10 != 0 {
			continue
		}
		d.end(k)
	}
}

// end deletes the pod of a work that nobody wants any more.
func (d *day) end(k *work) {
	d.why[k.pod] = d.whyWaits(k.pod)
	for _, p := range d.w.api.list() {
		if p.UID == k.pod && d.w.deletePod(p, nil) {
			d.deleted[k.pod] = true
		}
	}
	k.done = true
}

// whyWaits is what a Kip that runs says of a pod that waits.
func (d *day) whyWaits(uid types.UID) string {
	d.w.mu.Lock()
	k := d.w.kip
	up := k != nil && k.up
	d.w.mu.Unlock()
	if !up {
		return ""
	}
	if cell, has := k.cells.ForPod(uid); has {
		return k.cells.WaitsFor(cell.ID)
	}
	return k.pods.Waiting(uid)
}

// goHome ends what would run for ever.
func (d *day) goHome() {
	for _, k := range d.works {
		if k.takes == 0 && !k.done {
			d.end(k)
		}
	}
}

// batch brings many pods for spot at once.
func (d *day) batch() {
	for range d.spot {
		d.works = append(d.works, &work{size: "spot", takes: 2 * time.Hour, policy: corev1.RestartPolicyOnFailure})
	}
}

// wave brings pods.
func (d *day) wave(p *part) {
	for n := range int(math.Ceil(float64(d.size) * p.share)) {
		policy := corev1.RestartPolicyOnFailure
		if d.r.IntN(3) == 0 {
			policy = corev1.RestartPolicyNever
		}
		d.works = append(d.works, &work{
			size:   p.sizes[n%len(p.sizes)],
			takes:  p.runs + time.Duration(d.r.Int64N(int64(p.runs))),
			policy: policy,
		})
	}
}

// tend does what Jobs and Deployments do: it makes the pods that are wanted, and lets those end
// whose time is over.
func (d *day) tend() {
	list := map[types.UID]*corev1.Pod{}
	for _, p := range d.w.api.list() {
		list[p.UID] = p
	}
	d.w.mu.Lock()
	runs := map[types.UID]*machine{}
	for _, m := range d.w.machines {
		if m.up && m.running {
			runs[m.pod] = m
		}
	}
	for _, k := range d.works {
		m := runs[k.pod]
		if m == nil || k.done || k.takes == 0 {
			continue
		}
		if k.running.IsZero() {
			k.running = time.Now()
		}
		if time.Since(k.running) >= k.takes && m.exit == nil {
			m.exit = new(int)
			m.poke()
		}
	}
	d.w.mu.Unlock()
	for _, k := range d.works {
		if k.done {
			continue
		}
		p := list[k.pod]
		switch {
		case p == nil:
			d.make(k)
		case p.Status.Phase == corev1.PodSucceeded:
			k.done = true
			d.pods[p.UID].tally.done++
			d.w.deletePod(p, nil) // as ttlSecondsAfterFinished does
		case p.Status.Phase == corev1.PodFailed && p.DeletionTimestamp == nil:
			d.w.deletePod(p, nil)
		}
	}
}

// make makes the pod of a work.
func (d *day) make(k *work) {
	if k.disk != "" {
		d.w.mu.Lock()
		d.w.nextDisk = k.disk
		d.w.mu.Unlock()
	}
	k.running = time.Time{}
	if k.pod = d.w.addPod(k.policy, k.size, true, 30); k.pod == "" {
		d.w.violate("the API server takes no pod more")
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.now()
	p.tally.made++
	d.pods[k.pod] = p
}

// tick is how often Jobs are tended.
const tick = 10 * time.Second

// live lets the day pass.
func (d *day) live() {
	for range d.size / 10 { // Deployments: they run until the evening
		d.works = append(d.works, &work{size: "small", policy: corev1.RestartPolicyAlways})
	}
	dying, since := 0, time.Duration(0) // the life that is about to end, also in the next part, and since when
	for _, p := range d.parts {
		if p.begin != nil {
			p.begin(d)
		}
		killAt := p.to
		if p.kill {
			killAt = p.from + time.Duration(d.r.Int64N(int64(p.to-p.from)))
		}
		wave := 0
		for ticks := 0; time.Since(d.w.began) < p.to && !d.w.failed(); ticks++ {
			at := time.Since(d.w.began)
			if wave < p.waves && at >= p.from+time.Duration(wave)*(p.to-p.from)/time.Duration(p.waves) {
				wave++
				d.wave(p)
				if p.every != nil {
					p.every(d)
				}
			}
			switch {
			case p.kill && at >= killAt:
				p.kill = false
				dying, since = d.kill(), at
			case dying == d.life() && at > since+time.Minute: // the call had no answer after which to die
				d.w.kill()
			}
			d.tend()
			d.most = max(d.most, len(d.w.cloud.Truth()))
			if ticks%6 == 0 {
				d.w.rest()
				d.w.check()
			}
			time.Sleep(tick)
		}
		if p.end != nil {
			p.end(d)
		}
	}
}

// life counts those of Kip.
func (d *day) life() int {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	return d.w.lives
}

// kill has Kip die at one of its next writes or calls, and be down for up to two minutes. It returns
// which life that ends.
func (d *day) kill() (life int) {
	d.kills = append(d.kills, time.Since(d.w.began).Round(time.Second))
	d.w.mu.Lock()
	d.w.downtime = time.Duration(d.r.Int64N(int64(2 * time.Minute)))
	d.w.mu.Unlock()
	d.w.arm(1+d.r.IntN(12), d.r.IntN(2) == 0)
	return d.life()
}

// TestADayOfAWS plays a day on a model of EC2, by its driver and SDK, with all that goes wrong on
// some days, and prints what came of it.
func TestADayOfAWS(t *testing.T) {
	size := cmp.Or(*dayFlag, dayPods)
	if *dayFlag == 0 && testing.Short() {
		size = dayPodsShort
	}
	spot, looks := spotPods, 5*time.Second // as Kip's own
	if testing.Short() {
		spot, looks = spotPodsShort, spotLooks
	}
	seed := *seedFlag
	if seed == 0 && *dayFlag != 0 {
		seed = uint64(time.Now().UnixNano()) // as the histories
	}
	seed = cmp.Or(seed, 1)
	cryptotest.SetGlobalRandom(t, seed)
	defer watchdog("the day of AWS", time.Hour)()
	began, cpu := time.Now(), cpuTime()
	var report string
	var violations []string
	synctest.Test(t, func(*testing.T) {
		d := &day{
			r:       rand.New(rand.NewPCG(seed, 2)),
			size:    size,
			spot:    spot,
			parts:   theDay(),
			pods:    map[types.UID]*part{},
			deleted: map[types.UID]bool{},
			why:     map[types.UID]string{},
			calls:   map[string]*callTally{},
		}
		d.w = newWorld(setting{
			seed:       seed,
			knobs:      dayKnobs(),
			ec2:        true,
			shared:     true,
			most:       100*size + 2*spot,
			looksEvery: looks,
			heard:      d.heard,
		})
		d.w.rest()
		d.live()
		if !d.w.failed() {
			d.w.finish()
			d.w.compareDays()
		}
		described := ""
		if violations = d.w.check(); len(violations) > 0 {
			described = d.w.describe()
		}
		d.w.close()
		d.w.rest() // what was sent for a Kip that was killed is entered, too: nothing changes any more
		if len(violations) == 0 {
			violations = d.judge()
		}
		report = d.report(seed) + described
	})
	t.Logf("\n%s\nplayed in %s, %s of CPU", report, time.Since(began).Round(time.Second), (cpuTime() - cpu).Round(time.Second))
	if len(violations) > 0 {
		t.Fatalf("a day of %d pods, seed %d:\n  %s\nagain: go test ./test/faults -run '^TestADayOfAWS$' -v -seed %d [-day-pods %d]", size, seed,
			strings.Join(violations, "\n  "), seed, size)
	}
}

// dayKnobs are EC2's of an ordinary day. An instance takes less than a minute to end, as outliveBound says.
func dayKnobs() sim.Knobs {
	k := sim.EC2()
	k.Termination = sim.Distribution{Median: 15 * time.Second, Spread: 1.3}
	return k
}

// judge looks at what the day has come to, and whether what it is about happened in it.
func (d *day) judge() (violations []string) {
	for _, k := range d.works {
		if !k.done {
			d.w.violate("a %s pod that was to run for %s has not ended well by the evening", k.size, k.takes)
		}
	}
	if silent := d.neverRan()[""]; silent > 0 {
		d.w.violate("%d pods never ran, and nothing says why", silent)
	}
	if n := d.doubles(); n > 0 {
		d.w.violate("%d times a pod had two instances", n)
	}
	if calm, _ := d.outlived(); calm > outliveBound {
		d.w.violate("an instance ran on for %s after the end of its pod: want %s at most", calm, outliveBound)
	}
	for _, p := range d.parts {
		// What the other program has taken comes back in minutes. Kip and EC2 do not count by the same
		// second, and a Kip that begins does not know what the last one has spent.
		if n := p.tally.throttled; n > p.tally.calls/100 && p.name != otherProgram && p.from != d.named(otherProgram).to {
			d.w.violate("%d calls were throttled, which Kip alone made: %s", n, p.name)
		}
	}
	shows := map[string]bool{
		"spot instances are taken back by the hundred":  d.reclaimed >= min(d.spot, 200),
		"a zone has no room":                            d.w.cloud.Calls()[sim.CallKey{Kind: sim.KindLaunch, Outcome: sim.NoCapacity}] > 0,
		"Kip is killed":                                 d.life() == 2+len(d.kills) && len(d.kills) >= 7,
		"a pod that only fits there is told":            d.w.plays["Event "+events.NoCapacity] > 0,
		"the other program leaves Kip too few calls":    d.named(otherProgram).tally.throttled > 0,
		"answers are lost":                              d.named(answersLost).tally.lost > 0,
		"no call succeeds while the API is away":        d.awayAllAlong(),
		"pods come and are deleted while it is away":    d.named(apiAway).tally.made > 0 && len(d.deleted) > 0,
		"spot pods are evicted before their machine is": d.w.plays["Event "+events.Evicted] > 0,
	}
	for what, is := range shows {
		if !is {
			d.w.violate("the day does not show: %s", what)
		}
	}
	return d.w.violations
}

func (d *day) named(name string) *part {
	n := slices.IndexFunc(d.parts, func(p *part) bool { return p.name == name })
	return d.parts[n]
}

func (d *day) awayAllAlong() bool {
	t := d.named(apiAway).tally
	// What was under way when it began, or is when it is over, has an answer.
	return t.calls > 0 && t.lost+t.failed >= t.calls-5
}

// neverRan are the pods that never ran, by the reason that they were told last; "" for none.
func (d *day) neverRan() map[string]int {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	reasons := map[string]int{}
	for uid := range d.pods {
		if d.w.ran[uid] > 0 {
			continue
		}
		reason := ""
		for _, r := range d.w.reports[uid] {
			if r.kind == corev1.EventTypeWarning {
				reason = r.reason
			}
		}
		if reason == "" && d.why[uid] != "" {
			reason = "as kipctl why says: " + d.why[uid]
		}
		reasons[reason]++
	}
	return reasons
}

// doubles counts instances that a pod had while it had another.
func (d *day) doubles() (n int) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	last := map[types.UID]time.Time{}
	all := d.w.cloud.History()
	slices.SortFunc(all, func(a, b sim.Instance) int { return a.Launched.Compare(b.Launched) })
	for _, i := range all {
		// Of one that Kip has never heard of its tags tell.
		pod := cmp.Or(d.w.books.podOf[i.ID], types.UID(i.Tags[cloud.TagPodUID]))
		if pod == "" {
			continue
		}
		if i.Launched.Before(last[pod]) {
			n++
		}
		if last[pod] = i.Ended; i.Ended.IsZero() {
			last[pod] = time.Now()
		}
	}
	return n
}

// outlived is the longest that an instance ran on after the end of its pod: where nothing but
// shortages went wrong meanwhile, and at all.
func (d *day) outlived() (calm, ever time.Duration) {
	d.w.api.mu.Lock()
	endings := maps.Clone(d.w.api.ended)
	d.w.api.mu.Unlock()
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	for _, i := range d.w.cloud.History() {
		pod := d.w.books.podOf[i.ID]
		ended, is := endings[pod]
		if !is || !i.Ended.After(ended) {
			continue
		}
		took := i.Ended.Sub(ended)
		ever = max(ever, took)
		if !d.troubled(ended, i.Ended) {
			calm = max(calm, took)
		}
	}
	return calm, ever
}

// troubled says whether a fault, or a death of Kip, was in a time.
func (d *day) troubled(from, to time.Time) bool {
	for _, p := range d.parts {
		if p.faulty && from.Before(d.w.began.Add(p.to)) && to.After(d.w.began.Add(p.from)) {
			return true
		}
	}
	return slices.ContainsFunc(d.kills, func(at time.Duration) bool {
		return from.Before(d.w.began.Add(at+3*time.Minute)) && to.After(d.w.began.Add(at))
	})
}

// report is the day in tables.
func (d *day) report(seed uint64) string {
	for uid, p := range d.pods {
		if at := d.w.started[uid]; !at.IsZero() {
			p.tally.waits = append(p.tally.waits, at.Sub(d.w.created[uid]))
		}
	}
	for _, i := range d.w.cloud.History() {
		for _, p := range d.parts {
			if at := i.Launched.Sub(d.w.began); at >= p.from && at < p.to {
				p.tally.launched++
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "A day of AWS in virtual time, with %d pods for its measure; seed %d\n\n", d.size, seed)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "from\tto\tpods\tended well\tinstances\twait, median\tlongest\tcalls\tthrottled\tlost\tfailed\t  part\n")
	for _, p := range d.parts {
		t := p.tally
		slices.Sort(t.waits)
		median, longest := "–", "–"
		if n := len(t.waits); n > 0 {
			median, longest = t.waits[n/2].Round(time.Second).String(), t.waits[n-1].Round(time.Second).String()
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%d\t%d\t%d\t%d\t  %s\n", hour(p.from), hour(p.to), t.made, t.done, t.launched,
			median, longest, t.calls, t.throttled, t.lost, t.failed, p.name)
	}
	_ = table.Flush() // into memory
	d.reportCalls(&b)
	d.reportSums(&b)
	return b.String()
}

func hour(at time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(at.Hours()), int(at.Minutes())%60)
}

// documented is the bucket that EC2 has for an action. Source: as of sim.EC2RateLimits.
func documented(action string) cloud.Bucket {
	limits := sim.EC2RateLimits()
	kind := map[string]sim.Kind{
		"RunInstances":       sim.KindLaunch,
		"StartInstances":     sim.KindStart,
		"StopInstances":      sim.KindStop,
		"TerminateInstances": sim.KindTerminate,
		"CreateTags":         sim.KindTag,
	}[action]
	switch {
	case kind != "":
	case strings.HasPrefix(action, "Describe"):
		kind = sim.KindDescribe
	default:
		kind = sim.KindAttachDisk // as all that changes something
	}
	return limits[kind].Requests
}

// reportCalls has the calls of each action beside what EC2 would have taken.
func (d *day) reportCalls(b *strings.Builder) {
	b.WriteString("\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "calls\tof EC2's budget\tthrottled\tlost\tfailed\tbusiest minute\tEC2 allows a minute\t  action\n")
	for _, action := range slices.Sorted(maps.Keys(d.calls)) {
		c, bucket := d.calls[action], documented(action)
		busiest := slices.Max(slices.Collect(maps.Values(c.minutes)))
		fmt.Fprintf(table, "%d\t%.2f %%\t%d\t%d\t%d\t%d\t%.0f\t  %s\n", c.total,
			100*float64(c.total)/(bucket.Capacity+bucket.Refill*24*60*60), c.throttled, c.lost, c.failed, busiest,
			bucket.Capacity+bucket.Refill*60, action)
	}
	_ = table.Flush() // into memory
	fmt.Fprintf(b, "\nThe other program made %d calls in its ten minutes.\n", d.others)
}

// reportSums has what holds of the whole day.
func (d *day) reportSums(b *strings.Builder) {
	ran := 0
	for uid := range d.pods {
		if d.w.ran[uid] > 0 {
			ran++
		}
	}
	fmt.Fprintf(b, "%d pods: %d ran", len(d.pods), ran)
	for reason, n := range d.neverRan() {
		fmt.Fprintf(b, ", %d never did (%s)", n, cmp.Or(reason, "and nothing says why"))
	}
	fmt.Fprintf(b, "; %d were deleted by people.\n", len(d.deleted))
	fmt.Fprintf(b, "%d instances, %d at a time; %d spot instances were taken back in ten minutes.\n",
		len(d.w.cloud.History()), d.most, d.reclaimed)
	b.WriteString("Kip was killed at")
	for _, at := range d.kills {
		b.WriteString(" " + hour(at))
	}
	b.WriteString(". Events:")
	for _, what := range slices.Sorted(maps.Keys(d.w.plays)) {
		if reason, is := strings.CutPrefix(what, "Event "); is {
			fmt.Fprintf(b, " %s %d,", reason, d.w.plays[what])
		}
	}
	calm, ever := d.outlived()
	fmt.Fprintf(b, "\nTwo instances for one pod: %d. Instances left: %d.\n", d.doubles(), len(d.w.cloud.Truth()))
	fmt.Fprintf(b, "An instance ran on for %s at most after the end of its pod; for %s where a fault, or a death of Kip, lay between.\n",
		calm.Round(time.Second), ever.Round(time.Second))
	billed := 0.0
	for _, c := range d.w.cloud.Bill() {
		billed += c.Dollars
	}
	counted := 0.0
	d.w.mu.Lock()
	for _, c := range d.w.books.costs(time.Now()) {
		counted += c.Dollars
	}
	d.w.mu.Unlock()
	fmt.Fprintf(b, "EC2 bills $%.2f, Kip counts $%.2f.\n", billed, counted)
}
