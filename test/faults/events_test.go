package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/placement"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// event is one step of a history. What its numbers mean depends on what there is
// when it is played, so that a history stays one when events are taken out of it.
type event struct {
	kind string
	a, b uint32
	t    time.Duration
}

func (e event) String() string {
	return fmt.Sprintf("{%q, %d, %d, %d}, // %s", e.kind, e.a, e.b, int64(e.t), e.t)
}

// kind is a kind of event and how often it comes.
type kind struct {
	kind   string
	weight int
	play   func(w *world, e event)
	lasts  bool // until it is played again
}

var kinds = []kind{
	{"wait", 40, (*world).pass, false},
	{"create", 12, func(w *world, e event) {
		if w.createPod(e.a, e.b) {
			w.happened("create")
		}
	}, false},
	{"burst", 2, func(w *world, e event) {
		made := 0
		for n := range 3 + e.a%4 {
			if w.createPod(e.a+n, e.b) {
				made++
			}
		}
		if made > 1 {
			w.happened("burst")
		}
	}, false},
	{"delete", 7, func(w *world, e event) {
		w.withPod(e.a, func(p *corev1.Pod) {
			if w.deletePod(p, nil) && p.DeletionTimestamp == nil {
				w.happened("delete")
			}
		})
	}, false},
	{"delete by force", 2, func(w *world, e event) {
		w.withPod(e.a, func(p *corev1.Pod) {
			if w.deletePod(p, new(int64(0))) {
				w.happened("delete by force")
			}
		})
	}, false},
	{"exit", 6, func(w *world, e event) { w.exitPod(e.a, int(e.b%2), e.b%8 < 2) }, false},
	{"annotate", 1, func(w *world, e event) { w.withPod(e.a, func(p *corev1.Pod) { w.annotate(p, e.b) }) }, false},
	{"kill", 4, func(w *world, e event) { w.killFor(e) }, false},
	{"kill at", 8, func(w *world, e event) { w.arm(int(1+e.a%12), e.b%2 == 1) }, false},
	{"cloud fault", 16, (*world).failCloud, false},
	{"cloud faults", 4, func(w *world, e event) { w.toggle("cloud faults", e) }, true},
	{"store fault", 4, (*world).failStore, false},
	{"store faults", 2, func(w *world, e event) { w.toggle("store faults", e) }, true},
	{"api faults", 5, func(w *world, e event) { w.toggle("api faults", e) }, true},
	{"watch lag", 1, func(w *world, e event) { w.setLag(e) }, true},
	{"watches end", 1, func(w *world, _ event) { w.api.cutWatches("watches end") }, false},
	{"capacity", 5, (*world).setCapacity, false},
	{"vanish", 3, func(w *world, e event) {
		if w.strike(e.a, w.cloud.Interrupter.Vanish) {
			w.happened("vanish")
		}
	}, false},
	{"interrupt", 5, func(w *world, e event) { w.strike(e.a, w.cloud.Interrupter.Interrupt) }, false},
	{"watch too old", 1, func(w *world, _ event) { w.expireWatches(0) }, false},
	{"list fails", 1, func(w *world, e event) { w.expireWatches(int(1 + e.a%3)) }, false},
	{"eviction blocked", 3, func(w *world, e event) { w.blockEvictions(int(1 + e.a%3)) }, false},
	{"store unread", 1, (*world).failLoad, false},
	{"quota", 4, func(w *world, e event) { w.toggle("quota", e) }, true},
	{"notices end", 1, func(w *world, _ event) { w.cloud.Interrupter.CutInterruptions(errQueueGone) }, false},
	{"cut off", 6, func(w *world, e event) { w.cutOff(e) }, false},
	{"heal one by one", 8, (*world).healSlowly, false},
	{"heal", 5, func(w *world, _ event) {
		if w.healLinks() {
			w.happened("heal")
		}
	}, false},
	{"stuck", 5, func(w *world, e event) { w.stick(e.a) }, false},
	{"stray", 3, func(w *world, e event) { w.stray() }, false},
	{"list lag", 2, (*world).setListLag, false},
	{"slow boots", 4, func(w *world, e event) { w.toggle("slow boots", e) }, true},
	{"slow ends", 2, func(w *world, e event) { w.toggle("slow ends", e) }, true},
	{"late calls", 5, func(w *world, e event) { w.toggle("late calls", e) }, true},
	{"unauthorised", 1, func(w *world, e event) { w.toggle("unauthorised", e) }, true},
	{"throttling", 1, func(w *world, e event) { w.toggle("throttling", e) }, true},
	{"partial list", 5, func(w *world, e event) { w.toggle("partial list", e) }, true},
	{"empty list", 1, func(w *world, e event) { w.toggle("empty list", e) }, true},
	{"living forgotten", 2, func(w *world, e event) { w.toggle("living forgotten", e) }, true},
	{"termination refused", 5, func(w *world, e event) { w.toggle("termination refused", e) }, true},
	{"store reads", 4, func(w *world, e event) { w.toggle("store reads", e) }, true},
	{"kubelet hangs", 8, (*world).hangKubelet, false},
	{"pause", 6, func(w *world, e event) {
		if e.b%2 == 0 { // and another leads meanwhile
			w.deposeKip(e.t % longestStall)
			return
		}
		w.pauseKip(e)
	}, false},
	{"blind zone", 1, func(w *world, e event) { w.toggle("blind zone", e) }, true},
	{"cell refuses", 3, (*world).refuseKip, false},
	{"list lacks", 3, func(w *world, e event) { w.lackPod(e) }, false},
}

// errQueueGone is why notices of interruptions end.
var errQueueGone = errors.New("the queue was deleted")

// history draws n events. In a mild one nothing goes wrong for long, and it waits
// longer: the bounds of the invariants are counted from the last fault.
func history(r *rand.Rand, n int, mild bool) []event {
	kinds := slices.Clone(kinds)
	if mild {
		kinds = slices.DeleteFunc(kinds, func(k kind) bool { return k.lasts })
	}
	return drawEvents(r, kinds, n, mild)
}

// drawEvents draws n events of some kinds.
func drawEvents(r *rand.Rand, kinds []kind, n int, mild bool) []event {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	list := make([]event, n)
	for i := range list {
		x := r.IntN(total)
		for _, k := range kinds {
			if x -= k.weight; x < 0 {
				list[i] = event{kind: k.kind, a: r.Uint32(), b: r.Uint32(), t: duration(r)}
				if mild && k.kind == "wait" && r.IntN(4) == 0 {
					list[i].t = time.Duration(r.Int64N(int64(2 * reachBound)))
				}
				break
			}
		}
	}
	return list
}

// duration is mostly short, since that is where races are, and sometimes as long
// as what Kip waits for.
func duration(r *rand.Rand) time.Duration {
	most := []time.Duration{10 * time.Millisecond, 200 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second,
		2 * time.Minute, 8 * time.Minute}
	return time.Duration(r.Int64N(int64(most[min(r.IntN(len(most)), r.IntN(len(most)))]))) + 1
}

// ec2Share is how many histories there are for each that is played on EC2, by its driver.
const ec2Share = 15

// draw makes the setting of a history.
func draw(r *rand.Rand) setting {
	s := setting{mild: r.IntN(3) == 0, seed: r.Uint64(), cloudAPI: r.IntN(4) == 0, movingAddr: r.IntN(2) == 0,
		maxTries: []int{0, 0, 3, 10}[r.IntN(4)]}
	s.shared = s.seed%3 == 0
	if r.IntN(3) > 0 {
		s.pools = append(s.pools, poolOf{"small", 1 + r.IntN(3), r.IntN(3) == 0})
	}
	s.knobs = sim.Knobs{
		Pending:     sim.Distribution{Median: 2 * time.Second, Spread: 1.5},
		BootTimes:   []sim.BootTime{{Distribution: sim.Distribution{Median: 10 * time.Second, Spread: 1.5}}},
		Termination: sim.Distribution{Median: 10 * time.Second, Spread: 1.5},
		Stopping:    sim.Distribution{Median: 10 * time.Second, Spread: 1.5},
		Latency: map[sim.Kind]sim.Distribution{sim.KindLaunch: {Median: 500 * time.Millisecond, Spread: 1.5},
			sim.AnyKind: {Median: 100 * time.Millisecond, Spread: 1.5}},
		ListLag: sim.Distribution{Median: 500 * time.Millisecond, Spread: 1.5},
	}
	if r.IntN(3) == 0 {
		s.knobs.AddressDelay = sim.Distribution{Median: time.Second, Spread: 2}
	}
	if r.IntN(3) == 0 {
		s.knobs.UnknownFor = sim.Distribution{Median: 500 * time.Millisecond, Spread: 2}
	}
	if r.IntN(3) == 0 {
		s.knobs.NoticesLost = 0.3
	}
	if s.reuse = r.IntN(3) == 0; r.IntN(3) == 0 {
		tail := func(d sim.Distribution) sim.Distribution { d.Tail, d.TailFactor = 0.03, 4; return d }
		s.knobs.Pending, s.knobs.Termination, s.knobs.Stopping = tail(s.knobs.Pending), tail(s.knobs.Termination), tail(s.knobs.Stopping)
		s.knobs.BootTimes[0].Distribution, s.knobs.ListLag = tail(s.knobs.BootTimes[0].Distribution), tail(s.knobs.ListLag)
		for kind, d := range s.knobs.Latency {
			s.knobs.Latency[kind] = tail(d)
		}
	}
	if r.IntN(3) == 0 { // as small beside these histories as EC2's are beside a thousand pods
		s.knobs.RateLimits = sim.EC2RateLimits()
		for kind, limit := range s.knobs.RateLimits {
			limit.Requests = sim.Bucket{Capacity: 3, Refill: 0.5}
			if limit.Resources != (sim.Bucket{}) {
				limit.Resources = sim.Bucket{Capacity: 6, Refill: 0.5}
			}
			s.knobs.RateLimits[kind] = limit
		}
	}
	// The SDK is dear: a few are enough for what the driver makes of faults.
	if s.ec2 = s.seed%ec2Share == 0; s.ec2 {
		s.shared, s.movingAddr, s.looksEvery = true, false, spotLooks
	}
	offset := func() time.Duration { return time.Duration(r.IntN(5)-2) * time.Minute }
	s.cloudClock, s.apiClock = offset(), offset()
	return s
}

// pass lets time pass; nothing may be written meanwhile if nothing is under way.
func (w *world) pass(e event) {
	w.rest()
	if e.t > time.Second && w.settled() && w.untouched() && !w.moveBack() {
		w.quiet(e.t)
		return
	}
	for left := e.t; left > 0 && !w.failed(); left -= time.Minute {
		time.Sleep(min(left, time.Minute))
		w.rest()
		w.check()
	}
}

// untouched says that nothing is planned to go wrong later.
func (w *world) untouched() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deadly == (failpoint{}) && len(w.cloudFail) == 0 && time.Now().After(w.strikes) && time.Since(w.lastEvent) > 20*time.Second
}

// createPod says whether there is a pod more.
func (w *world) createPod(a, b uint32) bool {
	policy := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}[a%3]
	switch {
	case b%16 == 15:
		return w.addDaemon() != ""
	case b%16 == 14 && b/16%4 == 3:
		return w.addShipper(bad) != ""
	case b%16 == 14:
		return w.addShipper("") != ""
	}
	if a%5 == 1 {
		w.mu.Lock()
		w.nextDisk = w.disks[(a/5)%diskCount]
		w.mu.Unlock()
	}
	if policy == corev1.RestartPolicyNever {
		w.mu.Lock()
		w.annotations = map[string]string{placement.AnnotationKeepFailed: []string{"30s", "3m", longestKept.String()}[b%3]}
		w.mu.Unlock()
	}
	size := sizes[b%uint32(len(sizes))]
	if size == "spot" && policy != corev1.RestartPolicyNever {
		w.mu.Lock()
		w.annotations = map[string]string{placement.AnnotationMoveBack: "5m", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
		w.mu.Unlock()
	}
	return w.addPod(policy, size, a%5 != 0, int64(1+b%30)) != ""
}

// addDaemon makes a pod of a DaemonSet, as addPod does.
func (w *world) addDaemon() types.UID {
	w.mu.Lock()
	w.nextOwner = metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "logs", UID: "logs", Controller: new(true)}
	w.mu.Unlock()
	return w.addPod(corev1.RestartPolicyAlways, "small", true, 5)
}

// sizes are what pods ask for; nothing fits a huge one.
var sizes = []string{"small", "small", "small", "small", "small", "large", "large", "spot", "spot", "huge"}

// addPod makes a pod; it returns no UID when there are enough, or one of its name.
func (w *world) addPod(policy corev1.RestartPolicy, size string, controlled bool, grace int64) types.UID {
	most := cmp.Or(w.most, 12)
	if w.stormy {
		most = mostStormPods
	}
	if len(w.api.list()) >= most {
		return ""
	}
	w.mu.Lock()
	w.serial++
	// Names are reused, as those of a StatefulSet are.
	name, uid := fmt.Sprintf("pod-%d", w.serial%(most+4)), types.UID(fmt.Sprintf("uid-%d", w.serial))
	node := firstNode
	if w.serial%2 == 0 {
		node = secondNode
	}
	w.policies[uid], w.created[uid] = policy, time.Now()
	labels := map[string]string{"size": size}
	if w.nextDisk != "" {
		labels[diskLabel], w.diskOf[uid], w.nextDisk = w.nextDisk, w.nextDisk, ""
	}
	annotations, owner := w.annotations, w.nextOwner
	if w.nextCopies != "" {
		labels[copiesLabel] = w.nextCopies
	}
	w.keeps[uid] = placement.KeepFailed(annotations)
	if owner.Kind == "" {
		owner = metav1.OwnerReference{Kind: "Job", Name: "job", UID: "job", Controller: new(true)}
	}
	w.annotations, w.nextOwner, w.nextCopies = nil, metav1.OwnerReference{}, ""
	w.mu.Unlock()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid, Labels: labels, Annotations: annotations,
			CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{NodeName: node, RestartPolicy: policy, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if controlled {
		p.OwnerReferences = []metav1.OwnerReference{owner}
	}
	if !w.api.create(p) {
		return ""
	}
	return uid
}

func (w *world) withPod(a uint32, do func(*corev1.Pod)) {
	if list := w.api.list(); len(list) > 0 {
		do(list[int(a)%len(list)])
	}
}

// deletePod says whether the API server took the request.
func (w *world) deletePod(p *corev1.Pod, grace *int64) bool {
	return w.api.remove(nameOf(p), metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &p.UID}}) == nil
}

func (w *world) annotate(p *corev1.Pod, b uint32) {
	w.mu.Lock()
	w.keeps[p.UID] = 0
	w.mu.Unlock()
	err := w.api.edit(nameOf(p), &metav1.Preconditions{UID: &p.UID}, func(p *corev1.Pod) watch.EventType {
		p.Annotations = map[string]string{"example.com/note": fmt.Sprint(b)}
		if p.Labels["size"] == "huge" {
			p.Labels = maps.Clone(p.Labels)
			p.Labels["size"] = "small"
		}
		return watch.Modified
	})
	if err == nil {
		w.happened("annotate")
	}
}

// exitPod has the containers of a pod that runs exit. One that is cut has no connection as soon
// as the end is reported.
func (w *world) exitPod(a uint32, code int, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*machine
	for _, m := range w.machines {
		if m.up && m.running {
			list = append(list, m)
		}
	}
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b *machine) int { return strings.Compare(string(a.pod), string(b.pod)) })
	m := list[int(a)%len(list)]
	m.exit, m.cutAtEnd = &code, cut
	m.poke()
}

// stick has a kubelet never again end its pod, while it renews its lease.
func (w *world) stick(a uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, id := range slices.Sorted(maps.Keys(w.machines)) {
		if n == int(a)%len(w.machines) {
			w.machines[id].stuck = true
		}
	}
}

// proven says that the store has launched instances, and that lists have shown it to be new.
func (w *world) proven() bool {
	const key = "generation"
	var g struct {
		Number   uint64
		Unproven bool
	}
	w.mu.Lock()
	w.auditing[key]++
	w.mu.Unlock()
	_, err := w.store.Get(context.Background(), key, &g)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.auditing[key]--; err != nil {
		panic(err)
	}
	return g.Number > 0 && !g.Unproven
}

// stray lets an instance of ours appear that no cell has.
func (w *world) stray() {
	if !w.proven() {
		return // any instance is ahead of a store that may be a lost one's successor
	}
	w.mu.Lock()
	w.serial++
	id := fmt.Sprintf("cell-stray-%06d", w.serial) // as long as EC2's reservations
	w.straying++
	w.mu.Unlock()
	go func() { // there may be no capacity, and no answer
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.straying--
		}()
		ctx, cancel := context.WithTimeout(w.ctx, callTimeout)
		defer cancel()
		list, err := w.cloud.Launch(ctx, cloud.LaunchRequest{
			Token:      id,
			LaunchSpec: w.sold(cloud.LaunchSpec{InstanceType: "small", Zone: "a"}),
			Machines:   []cloud.Machine{{Tags: map[string]string{cloud.TagOwner: owner, cloud.TagCell: id}}},
		}).All()
		if err == nil && len(list) == 1 {
			w.happened("stray")
		}
	}()
}

func (w *world) killFor(e event) {
	w.mu.Lock()
	if w.kip != nil { // who is dead has a downtime already
		w.downtime = e.t
	}
	if e.kind == "kill" && w.kip != nil && w.kip.up && w.kip.ctx.Err() == nil {
		w.plays["kill"]++
	}
	w.mu.Unlock()
	w.kill()
}

func (w *world) arm(n int, after bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadly = failpoint{w.points + n, after}
}

func (w *world) failCloud(e event) {
	kinds := []sim.Kind{
		sim.KindLaunch, sim.KindLaunch, sim.KindLaunch, sim.KindTerminate, sim.KindTerminate, sim.KindStop, sim.KindStop,
		sim.KindStart, sim.KindStart, sim.KindStart, sim.KindStart, sim.KindAttachDisk, sim.KindAttachDisk, sim.KindList,
		sim.KindDescribe, sim.AnyKind, sim.AnyKind,
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f := cloudFaults[e.b/10%uint32(len(cloudFaults))]
	fault := f.fault
	if f.name == "late" {
		fault.Delay = e.t
	}
	kind := kinds[e.a%uint32(len(kinds))]
	if kind == sim.KindLaunch && e.t%2 == 0 { // a call that is surely refused costs a cell
		f.name, fault = "refused", refused
	}
	for range 1 + e.b/1000%3 { // sometimes several in a row
		w.cloudFail = append(w.cloudFail, cloudFault{kind, int(1 + e.b%3), f.name, fault})
	}
}

// errPlanned marks the answers of single calls that were to fail, which must not
// count as those of a fault that lasts.
var errPlanned = errors.New("planned")

var refused = sim.Fault{Before: fmt.Errorf("%w: %w: bad subnet", errPlanned, cloud.ErrRefused)}

// cloudFaults are what happens to single calls to the cloud.
var cloudFaults = []struct {
	name  string
	fault sim.Fault
}{
	{"internal error", sim.Fault{Before: fmt.Errorf("%w: %w", errPlanned, sim.ErrInternal)}},
	{"lost before", sim.Fault{Before: fmt.Errorf("%w: %w", errPlanned, sim.ErrLost)}},
	{"lost after", sim.Fault{After: fmt.Errorf("%w: %w", errPlanned, sim.ErrLost)}},
	{"hangs before", sim.Fault{HangBefore: true}},
	{"hangs after", sim.Fault{HangAfter: true}},
	{"throttled", sim.Fault{Before: fmt.Errorf("%w: %w", errPlanned, cloud.ErrThrottled)}},
	{"over quota", sim.Fault{Before: fmt.Errorf("%w: %w", errPlanned, cloud.ErrQuota)}},
	{"unauthorised", sim.Fault{Before: fmt.Errorf("%w: %w", errPlanned, cloud.ErrUnauthorised)}},
	{"no capacity", sim.Fault{Before: fmt.Errorf("%w: %w", errPlanned, cloud.ErrCapacity)}},
	{"refused", refused},
	{"late", sim.Fault{}},
}

// storeError is what the store says when it fails by an event of a kind: it counts
// when Kip is told.
type storeError struct{ kind string }

func (*storeError) Error() string { return "etcdserver: request timed out" }

var errStore = &storeError{"store fault"}

// failStore has one of the next writes fail, or its answer lost. None is slow: who
// waits for a mutex is not at rest for synctest, and Kip holds some while it writes.
func (w *world) failStore(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := int(1 + e.a%4)
	w.storeFail = func(op string) (before, after error) {
		if op == "applied" {
			left--
		}
		switch {
		case e.b%2 == 0 && left == 1 && op != "applied":
			left--
			w.troubled(time.Now())
			return errStore, nil
		case e.b%2 == 1 && left == 0 && op == "applied":
			w.troubled(time.Now())
			return nil, errStore
		}
		return nil, nil
	}
}

// toggle begins or ends a fault that lasts.
func (w *world) toggle(what string, e event) {
	w.mu.Lock()
	on := !w.lasting[what]
	w.mu.Unlock()
	w.set(what, on, e)
}

func (w *world) set(what string, on bool, e event) {
	knobs := func(change func(*sim.Knobs)) {
		if err := w.cloud.Change(change); err != nil {
			panic(err)
		}
	}
	switch what {
	case "cloud faults":
		knobs(func(k *sim.Knobs) {
			k.Faults = nil
			if on {
				k.Faults = map[sim.Kind]sim.FaultRates{sim.AnyKind: {Failed: 0.1, LostBefore: 0.1, LostAfter: 0.2, HangBefore: 0.02, HangAfter: 0.05}}
			}
		})
	case "quota":
		knobs(func(k *sim.Knobs) {
			k.Quotas = nil
			if on {
				k.Quotas = []sim.Quota{{Name: "all", Instances: int(2 + e.a%4)}, {Name: "large", Types: "large", VCPUs: 2}}
			}
		})
	case "unauthorised":
		knobs(func(k *sim.Knobs) { k.Unauthorised = on })
	case "throttling":
		knobs(func(k *sim.Knobs) {
			k.RateLimits = w.knobs.RateLimits
			if on {
				k.RateLimits = map[sim.Kind]sim.RateLimit{}
				for _, kind := range []sim.Kind{sim.KindLaunch, sim.KindTerminate, sim.KindList, sim.KindStart, sim.KindStop} {
					k.RateLimits[kind] = sim.RateLimit{Requests: sim.Bucket{Capacity: 2, Refill: 0.2}, Resources: sim.Bucket{Capacity: 3, Refill: 0.3}}
				}
			}
		})
	case "blind zone":
		knobs(func(k *sim.Knobs) {
			k.BlindZones = nil
			if on {
				k.BlindZones = []string{[]string{"a", "b"}[e.a%2]}
			}
		})
	case "slow boots":
		knobs(func(k *sim.Knobs) {
			k.BootTimes = slices.Clone(w.knobs.BootTimes)
			if on {
				k.BootTimes[0].Never, k.BootTimes[0].Median = 0.3, time.Minute
			}
		})
	case "slow ends":
		knobs(func(k *sim.Knobs) {
			k.Termination, k.TerminationLost = w.knobs.Termination, 0
			if on {
				k.Termination.Median, k.Termination.Tail, k.TerminationLost = terminationMax/4, 0, 0.3
			}
		})
	}
	if what == "api faults" {
		w.api.mu.Lock()
		r := rand.New(rand.NewPCG(uint64(e.a), uint64(e.b)))
		w.api.fail = func(after bool) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if !w.lasting["api faults"] || r.IntN(4) == 0 || after != (r.IntN(2) == 0) {
				return nil
			}
			return errAPI
		}
		w.api.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch what {
	case "store faults":
		r := rand.New(rand.NewPCG(uint64(e.a), uint64(e.b)))
		w.storeFail = func(string) (before, after error) {
			switch {
			case !on:
			case r.IntN(5) == 0:
				before = &storeError{what}
			case r.IntN(5) == 0:
				after = &storeError{what}
			}
			return before, after
		}
	case "store reads":
		// A running Kip reads to learn what became of a write whose answer was lost.
		r := rand.New(rand.NewPCG(uint64(e.a), uint64(e.b)))
		w.storeFail = func(op string) (before, after error) {
			if on && op == "applied" && r.IntN(4) == 0 {
				after = &storeError{"store faults"}
			}
			return nil, after
		}
		w.readFail = func() error {
			if on && r.IntN(2) == 0 {
				return &storeError{what}
			}
			return nil
		}
		w.storeTrouble = time.Now()
	case "partial list", "termination refused", "living forgotten":
		w.salt[what] = e.a
	case "late calls":
		w.late = on
	}
	if on {
		w.lasting[what] = true
	} else if w.lasting[what] {
		delete(w.lasting, what)
		w.troubled(time.Now())
	}
}

// hit says whether a fault that lasts is of an instance: of every other, or of more.
func (w *world) hit(what, instance string) bool {
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, instance, w.salt[what])
	share := uint32(2)
	if what == "termination refused" || what == "partial list" { // they show in one kind of call only, which is made seldom
		share = 3
	}
	return w.lasting[what] && h.Sum32()%4 < share
}

// omit takes instances out of an answer of the cloud's list: all while it is empty,
// some while it is partial, and those that the cloud has forgotten.
func (w *world) omit(list []cloud.Instance) []cloud.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Who has no other instance cannot know that a list is empty by mistake.
	empty := w.lasting["empty list"] && slices.ContainsFunc(list, func(i cloud.Instance) bool {
		return w.livesLocked(i) && time.Since(i.Launched) > listLag
	})
	return slices.DeleteFunc(list, func(i cloud.Instance) bool {
		for what, is := range map[string]bool{
			"empty list":       empty,
			"partial list":     w.livesLocked(i) && w.hit("partial list", i.ID),
			"living forgotten": w.livesLocked(i) && w.hit("living forgotten", i.ID),
		} {
			if is {
				w.plays[what]++
				return true
			}
		}
		return false
	})
}

// livesLocked says that an instance is that of a cell that Kip has not let go.
func (w *world) livesLocked(i cloud.Instance) bool {
	a := w.books.cells[w.cellOfLocked(i)]
	return a != nil && a.cell.Live() && a.cell.Instance != nil && a.cell.Instance.ID == i.ID && i.State != cloud.Terminating
}

// forget has the cloud know nothing of living instances.
func (w *world) forget(list []cloud.Instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, i := range list {
		if w.livesLocked(i) && w.hit("living forgotten", i.ID) {
			list[n] = cloud.Instance{ID: i.ID, State: cloud.Unknown}
		}
	}
}

// refuses says that the cloud lets one of these instances not be terminated: then
// it does nothing to any of them.
func (w *world) refuses(ids []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if w.hit("termination refused", id) {
			w.plays["termination refused"]++
			return fmt.Errorf("%w: OperationNotPermitted: instance %s may not be terminated", cloud.ErrRefused, id)
		}
	}
	return nil
}

// hangKubelet stops a kubelet on a machine whose link is alive, for a while: it does
// nothing, and renews no lease. The containers run on.
func (w *world) hangKubelet(e event) {
	w.mu.Lock()
	var list []*machine
	for _, m := range w.machines {
		if m.up && !m.hung && !m.started.IsZero() {
			list = append(list, m)
		}
	}
	if len(list) == 0 {
		w.mu.Unlock()
		return
	}
	slices.SortFunc(list, func(a, b *machine) int { return strings.Compare(a.id, b.id) })
	m := list[int(e.a)%len(list)]
	if s := m.session; s != nil {
		s.api.freezeBeat()
	}
	m.hung, m.missed = true, false
	w.lasting["hung"] = true
	w.mu.Unlock()
	go func() {
		if sleep(w.ctx, e.t) {
			w.wakeKubelets(m)
		}
	}()
}

// wakeKubelets lets kubelets go on.
func (w *world) wakeKubelets(list ...*machine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range list {
		m.hung = false
		m.poke()
	}
	for _, m := range w.machines {
		if m.up && m.hung {
			return
		}
	}
	if w.lasting["hung"] {
		delete(w.lasting, "hung")
		w.troubled(time.Now())
	}
}

// pauseKip stops Kip for a while, as SIGSTOP does.
func (w *world) pauseKip(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paused != nil || w.kip == nil || !w.kip.up || w.kip.ctx.Err() != nil {
		return
	}
	for _, a := range w.kip.apis {
		a.freezeBeat()
	}
	over := make(chan struct{})
	w.paused, w.held = over, false
	w.lasting["pause"] = true
	go func() {
		if !sleep(w.ctx, e.t) {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.paused == over {
			w.resumeLocked()
		}
	}()
}

const (
	// leaseTime is when another replica leads: the lease of 8 s has run out.
	leaseTime = 9 * time.Second
	// noticesLoss is how long a Kip that has lost its lease acts when it wakes.
	noticesLoss = time.Second
	// longestStall is how long it may sleep while another leads.
	longestStall = 90 * time.Second
)

// deposeKip stops Kip between two of its steps, wherever it is, lets another one lead,
// and has the first go on for a moment after a while.
func (w *world) deposeKip(stall time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.kip
	if w.paused != nil || k == nil || !k.up || k.ctx.Err() != nil || k.stalled != nil || w.stallsUntil.After(time.Now()) {
		return
	}
	for _, a := range k.apis {
		a.freezeBeat()
	}
	stalled := make(chan struct{})
	k.stalled = stalled
	w.linksChanged()
	w.lasting["deposed"] = true
	w.stallsUntil = time.Now().Add(leaseTime + stall + noticesLoss + time.Second)
	go func() {
		if !sleep(w.ctx, leaseTime) {
			return
		}
		close(k.deposed)
		sleep(w.ctx, stall)
		w.mu.Lock()
		if k.ctx.Err() == nil && w.kip != k {
			w.plays["deposed"]++
		}
		k.stalled = nil
		close(stalled)
		w.linksChanged()
		w.mu.Unlock()
		sleep(w.ctx, noticesLoss)
		k.cancel()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.lasting, "deposed")
		w.troubled(time.Now())
	}()
}

func (w *world) resumeLocked() {
	if w.paused == nil {
		return
	}
	close(w.paused)
	w.paused, w.resumed = nil, time.Now()
	delete(w.lasting, "pause")
	w.troubled(time.Now())
	if w.held {
		w.plays["pause"]++
	}
}

// longestLag is how far a watch may lag behind.
const longestLag = 40 * time.Second

func (w *world) setLag(e event) {
	lag := time.Duration(0)
	if e.a%2 == 0 {
		lag = e.t % longestLag
	}
	w.api.mu.Lock()
	w.api.lag = lag
	w.api.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.lasting, "watch lag"); lag > 0 {
		w.lasting["watch lag"] = true
	}
	w.troubled(time.Now().Add(longestLag))
}

func (w *world) setCapacity(e event) {
	pools := []sim.Pool{{InstanceType: "small"}, {InstanceType: "small", Zone: "a"}, {InstanceType: "small", Spot: new(true)},
		{InstanceType: "large"}, {}}
	p := pools[e.a%uint32(len(pools))]
	n := int(e.b%5) - 1
	w.cloud.SetCapacity(p, n)
	w.mu.Lock()
	defer w.mu.Unlock()
	key := fmt.Sprintf("capacity %d", e.a%uint32(len(pools)))
	if delete(w.short, key); n >= 0 {
		w.short[key] = p
	}
	w.troubled(time.Now())
}

// slowest is what a distribution stays under but once in some millions.
func slowest(d sim.Distribution) time.Duration {
	return time.Duration(float64(d.Median) * math.Pow(max(d.Spread, 1), 5) * max(d.TailFactor, 1))
}

func (w *world) setListLag(e event) {
	lag := []sim.Distribution{{}, {Median: 500 * time.Millisecond, Spread: 1.5}, {Median: 3 * time.Second},
		{Median: listLag - time.Second}}[e.a%4]
	// What was launched under a longer lag keeps it; with the staleness of an answer
	// it may not come to more than Kip is told.
	w.slowestList = max(w.slowestList, slowest(lag))
	if err := w.cloud.Change(func(k *sim.Knobs) {
		k.ListLag = lag
		k.StaleLists, k.StaleBy = 0, 0
		if e.b%3 == 0 {
			k.StaleLists, k.StaleBy = 0.3, min(e.t, listLag-w.slowestList-time.Second)
			k.StaleBy = max(k.StaleBy, 0)
		}
	}); err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lagging = e.a%4 != 0 || e.b%3 == 0
	w.troubled(time.Now().Add(listLag))
}

// noticeTime is longer than what the simulated cloud announces an interruption
// ahead.
const noticeTime = 2*time.Minute + time.Second

// strike hits an instance that exists. It says whether one was hit that did not end
// anyway.
func (w *world) strike(a uint32, do func(...string) error) bool {
	truth := w.cloud.Truth()
	if len(truth) == 0 {
		return false
	}
	i := truth[int(a)%len(truth)]
	err := do(i.ID) // it may end at this moment
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strikes = time.Now().Add(noticeTime)
	w.troubled(time.Now())
	return err == nil && i.State != cloud.Terminating
}

// cutOff breaks the link to a machine, or to all; for a while, or until heal.
func (w *world) cutOff(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*machine
	for _, m := range w.machines {
		if m.up && !m.cutOff {
			list = append(list, m)
		}
	}
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b *machine) int { return strings.Compare(a.id, b.id) })
	cut := list
	if e.b%6 != 0 {
		n := int(e.a) % len(list)
		cut = list[n : n+1]
	}
	broken := false
	for _, m := range cut {
		if s := m.session; s != nil {
			broken = broken || s.flows()
			s.api.freezeBeat()
		}
		m.cutOff = true
	}
	if broken {
		w.plays["cut off"]++
	}
	w.lasting["cut off"] = true
	w.linksChanged()
	if e.b%4 != 1 || w.mild {
		go func() {
			if sleep(w.ctx, e.t) {
				w.healLinks()
			}
		}()
	}
}

// refuseKip has one cell say for a while that another Kip has connected to it, of a term that no Kip has. That is a lie.
func (w *world) refuseKip(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*machine
	for _, m := range w.machines {
		if m.up && m.session != nil && m.session.flows() {
			list = append(list, m)
		}
	}
	if len(list) == 0 || w.lasting["cell refuses"] { // most cells that say so are believed, and another had begun already
		return
	}
	slices.SortFunc(list, func(a, b *machine) int { return strings.Compare(a.id, b.id) })
	m := list[int(e.a)%len(list)]
	m.session.api.freezeBeat()
	m.refuses, m.session = true, nil
	w.lasting["cell refuses"] = true
	w.linksChanged()
	go func() {
		if sleep(w.ctx, e.t) {
			w.obeyKip()
		}
	}()
}

// obeyKip ends the lies of cells.
func (w *world) obeyKip() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		m.refuses = false
	}
	if w.lasting["cell refuses"] {
		delete(w.lasting, "cell refuses")
		w.troubled(time.Now())
	}
	w.linksChanged()
}

// lackPod has the next list of pods lack one that runs, as that of an API server whose etcd was restored. Informers take that for a
// deletion that they have not seen. After a while they list anew.
func (w *world) lackPod(e event) {
	var all []*corev1.Pod
	for _, p := range w.api.list() {
		if p.DeletionTimestamp == nil && !terminal(p) {
			all = append(all, p)
		}
	}
	w.api.mu.Lock()
	lacks := len(all) > 0 && w.api.lacks == ""
	if lacks {
		w.api.lacks = all[int(e.a)%len(all)].UID
	}
	w.api.mu.Unlock()
	if !lacks {
		return
	}
	w.mu.Lock()
	w.lasting["list lacks"] = true
	w.mu.Unlock()
	w.expireWatches(0)
	go func() {
		if sleep(w.ctx, e.t) {
			w.listAll()
		}
	}()
}

// listAll has lists show all pods again.
func (w *world) listAll() {
	w.api.mu.Lock()
	lacked := w.api.lacks != ""
	w.api.lacks = ""
	w.api.mu.Unlock()
	if !lacked {
		return
	}
	w.mu.Lock()
	delete(w.lasting, "list lacks")
	w.mu.Unlock()
	w.expireWatches(0)
}

// expireWatches ends the watches, and what was watched is too old: informers list
// anew, which fails so often first.
func (w *world) expireWatches(failures int) {
	w.api.mu.Lock()
	w.api.tooOld, w.api.failLists = true, failures
	w.api.mu.Unlock()
	w.api.cutWatches("")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.troubled(time.Now().Add(podBackoff)) // an informer's longest wait is shorter
}

// blockEvictions has a disruption budget forbid the next evictions.
func (w *world) blockEvictions(n int) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.api.blocked = n
}

// failLoad kills Kip, and the next one cannot read its records.
func (w *world) failLoad(e event) {
	w.mu.Lock()
	w.unreadable = true
	w.mu.Unlock()
	w.killFor(e)
}

// healSlowly heals the links that are cut one after the other, as when a network comes
// back in parts.
func (w *world) healSlowly(e event) {
	w.mu.Lock()
	var cut []*machine
	for _, m := range w.machines {
		if m.up && m.cutOff {
			cut = append(cut, m)
		}
	}
	if len(cut) > 1 {
		w.plays["heal one by one"]++
	}
	w.mu.Unlock()
	slices.SortFunc(cut, func(a, b *machine) int { return strings.Compare(a.id, b.id) })
	go func() {
		for _, m := range cut {
			w.mu.Lock()
			m.cutOff = false
			w.linksChanged()
			w.mu.Unlock()
			if !sleep(w.ctx, e.t/time.Duration(len(cut))) {
				return
			}
		}
	}()
}

// healLinks says whether a machine that runs was cut off.
func (w *world) healLinks() (healed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		healed = healed || m.up && m.cutOff
		m.cutOff = false
	}
	if w.lasting["cut off"] {
		delete(w.lasting, "cut off")
		w.troubled(time.Now())
	}
	w.linksChanged()
	return healed
}

// calmDown ends all faults.
func (w *world) calmDown() {
	w.mu.Lock()
	lasting := make([]string, 0, len(w.lasting))
	for what := range w.lasting {
		lasting = append(lasting, what)
	}
	w.cloudFail, w.unreadable = nil, false
	if w.armed == (failpoint{}) { // the death that a scenario is played for may come at its very end
		w.deadly = failpoint{}
	}
	for _, p := range w.short {
		w.cloud.SetCapacity(p, -1)
	}
	clear(w.short)
	w.resumeLocked()
	machines := slices.Collect(maps.Values(w.machines))
	w.mu.Unlock()
	for _, what := range lasting {
		w.set(what, false, event{})
	}
	w.healLinks()
	w.obeyKip()
	w.listAll()
	w.wakeKubelets(machines...)
	w.api.mu.Lock()
	w.api.failLists, w.api.blocked = 0, 0
	w.api.mu.Unlock()
	w.setLag(event{a: 1})
	w.setListLag(event{a: 1, b: 1})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.storeFail, w.readFail = func(string) (error, error) { return nil, nil }, func() error { return nil }
	close(w.revive)
	w.revive = make(chan struct{})
	w.troubled(time.Now())
}

// restartWithout starts Kip again without standby pools.
func (w *world) restartWithout() {
	w.mu.Lock()
	w.pools = nil
	w.mu.Unlock()
	w.kill()
}

// traceHandler writes what Kip logs, with the virtual time.
type traceHandler struct {
	w     *world
	attrs []slog.Attr
}

func (h *traceHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *traceHandler) WithGroup(string) slog.Handler            { return h }
func (h *traceHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return &traceHandler{h.w, append(slices.Clip(h.attrs), a...)}
}

func (h *traceHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%12s %s", time.Since(h.w.began).Round(time.Millisecond), r.Message)
	each := func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true }
	for _, a := range h.attrs {
		each(a)
	}
	r.Attrs(each)
	fmt.Println(b.String())
	return nil
}
