package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cellapi"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/pki"
	"github.com/elotl/kip/internal/tunnel"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// How long things take on a machine and on the way to it.
const (
	dialTime       = 5 * time.Millisecond
	kubeletStart   = time.Second
	containerStart = 300 * time.Millisecond
	containerStop  = time.Second
	heartbeat      = 10 * time.Second // of a kubelet's lease
	// noticed is how long a broken connection goes unnoticed: tunnel's ping
	// interval and time limit.
	noticed = 15 * time.Second
	retry   = time.Second // of what failed
	// catchUp is how long what came while Kip was paused takes to be read.
	catchUp = 2 * time.Second
)

// machine is an instance with its agent and kubelet. world.mu guards it.
type machine struct {
	w    *world
	id   string
	cell string
	// joinID is the cell's as the machine knows it.
	joinID string
	token  string
	addr   netip.Addr
	key    string
	wake   chan struct{}

	up         bool // it has booted and runs
	cutOff     bool
	joined     bool
	configured bool
	stuck      bool      // its kubelet does not end its pod
	kept       bool      // and has not ended it
	cutAtEnd   bool      // it is cut off when it has reported that its pod has ended
	hung       bool      // its kubelet does nothing at all
	refuses    bool      // it says that another Kip has connected to it
	node       string    // the virtual node that its kubelet is
	missed     bool      // and Kip has missed its lease
	started    time.Time // when its kubelet was up; zero when it is not
	trusts     []string  // the CAs by which it knows Kip
	session    *session  // whose connection it has; it may be broken and not noticed
	term       int       // the life of the last Kip that has connected

	devices map[string]bool // the disks that its agent has been told of
	// released are those that it was told to let go of.
	released map[string]bool

	pod      types.UID // that it was given, for good
	name     cache.ObjectName
	running  bool // the pod's containers run
	exit     *int // asks the containers to exit with it
	status   corev1.PodPhase
	restarts int32
	over     bool // the pod has run to its end here

	copies   map[types.UID]*setCopy // of DaemonSets' pods, beside it
	lingered bool                   // they have ended before the machine
}

// machineData is what an instance's agent makes of its user data and its place.
func machineData(i cloud.Instance, data []byte) (agentapi.UserData, error) {
	var own map[string]agentapi.UserData
	var shared map[string]agentapi.BatchUserData
	if err := errors.Join(yaml.Unmarshal(data, &own), yaml.Unmarshal(data, &shared)); err != nil || shared["kip"].Version == 0 {
		return own["kip"], err
	}
	secret, err := pki.ParseBatchSecret(shared["kip"].Secret)
	cell := agentapi.BatchCell(shared["kip"].Batch, i.Place)
	return agentapi.UserData{CellID: cell, CAHash: shared["kip"].CAHash, Token: secret.Token(cell).Reveal()}, err
}

// boot is what runs in an instance.
func (w *world) boot(ctx context.Context, i cloud.Instance, data []byte) {
	u, err := machineData(i, data)
	if err != nil {
		w.violate("user data of instance %s: %v", i.ID, err)
		return
	}
	w.mu.Lock()
	m := w.machines[i.ID]
	if m == nil {
		m = &machine{
			w:      w,
			id:     i.ID,
			cell:   w.books.named(u.CellID),
			joinID: u.CellID,
			token:  u.Token,
			trusts: []string{u.CAHash},
			key:    "key of " + i.ID,
			wake:   make(chan struct{}, 1),
		}
		w.machines[i.ID] = m
	}
	m.addr, m.up, m.started = i.ManagementIP, true, time.Time{}
	w.linksChanged()
	w.mu.Unlock()
	m.live(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	m.up, m.running, m.session, m.started = false, false, nil, time.Time{}
	m.devices, m.released, m.copies, m.lingered = nil, nil, nil, false
	w.unmountAll(m)
	w.linksChanged()
}

// poke has the machine's kubelet look again.
func (m *machine) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// live is the machine's kubelet.
func (m *machine) live(ctx context.Context) {
	for ctx.Err() == nil {
		if m.w.spins() && !sleep(ctx, retry) {
			return
		}
		again := m.step(ctx)
		if beside := m.stepBeside(); beside > 0 && (again == 0 || beside < again) {
			again = beside
		}
		if again > 0 {
			t := time.NewTimer(again)
			select {
			case <-ctx.Done():
			case <-m.wake:
			case <-t.C:
			}
			t.Stop()
			continue
		}
		select {
		case <-ctx.Done():
		case <-m.wake:
		}
	}
}

// configure is what its agent does with a configuration: a kubelet that is to be
// another node is started again. w.mu is held.
func (m *machine) configure(r *http.Request) {
	var c agentapi.Config
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		m.w.violateLocked("the configuration of cell %s: %v", m.cell, err)
	}
	if m.node != c.NodeName && m.configured {
		if m.pod != "" {
			m.w.violateLocked("a cell is of its pod's node: cell %s with pod %s becomes one of %s, it was of %s", m.cell, m.pod, c.NodeName, m.node)
		}
		m.w.plays["standby cell of another node"]++
		m.started = time.Time{}
	}
	m.configured, m.node = true, c.NodeName
	m.poke()
}

// step does what the kubelet has to do now. It returns after how long to look
// again; 0 is when something changes.
func (m *machine) step(ctx context.Context) time.Duration {
	w := m.w
	w.mu.Lock()
	configured, up := m.configured && !m.hung, !m.started.IsZero()
	w.mu.Unlock()
	if !configured {
		return 0
	}
	if !up {
		if !sleep(ctx, kubeletStart) {
			return 0
		}
		w.mu.Lock()
		m.started = time.Now()
		w.mu.Unlock()
	}
	m.containers()

	// What the kubelet sees of Kubernetes.
	w.mu.Lock()
	s := m.session
	if s == nil || !s.flows() {
		w.mu.Unlock()
		return 0
	}
	api := s.api
	name, uid := api.pod, api.uid
	if uid == "" && m.running {
		w.mu.Unlock()
		w.violate("a restart of Kip disturbs no pod: the kubelet of cell %s was told that its pod is gone", m.cell)
		return 0
	}
	refused, kept := m.node != api.node, api.kept
	w.mu.Unlock()
	if refused { // until it is started again, as another node
		return 0
	}
	api.nodeReady()
	if kept {
		w.mu.Lock()
		m.copies = nil
		w.mu.Unlock()
	}
	if uid == "" || kept {
		return 0
	}
	pod, known := api.kip.seenPod(name, uid)
	if !known {
		return retry // it is asked to come again
	}
	w.mu.Lock()
	m.pod, m.name = uid, name
	if pod != nil && pod.Spec.NodeName != m.node {
		w.violateLocked("a cell is of its pod's node: the kubelet of cell %s is node %s, its pod %s is on %s", m.cell, m.node, uid, pod.Spec.NodeName)
	}
	w.mu.Unlock()
	switch {
	case pod == nil: // it was deleted by force
		if m.running && !sleep(ctx, containerStop) {
			return 0
		}
		w.mu.Lock()
		m.running, m.over = false, true
		w.mu.Unlock()
		return 0
	case pod.DeletionTimestamp != nil && m.stuck:
		w.mu.Lock()
		if m.running && !m.kept {
			m.kept = true
			w.plays["stuck"]++
		}
		w.mu.Unlock()
		return 0
	case pod.DeletionTimestamp != nil:
		if m.running && !sleep(ctx, containerStop) {
			return 0
		}
		w.mu.Lock()
		m.running = false
		if !m.over {
			m.over, m.status = true, corev1.PodFailed
		}
		w.mu.Unlock()
	case terminal(pod) && !m.running && !m.over: // it ended elsewhere
		return 0
	case !m.running && !m.over:
		if !sleep(ctx, containerStart) {
			return 0
		}
		w.starts(m, uid)
	}
	return m.report(ctx, pod)
}

// containers lets the pod's containers exit, and start again if they are to.
func (m *machine) containers() {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.exit == nil || !m.running {
		return
	}
	code := *m.exit
	m.exit = nil
	m.w.plays["exit"]++
	policy := m.w.policies[m.pod]
	switch {
	case policy == corev1.RestartPolicyAlways, policy == corev1.RestartPolicyOnFailure && code != 0:
		m.restarts++
	case code == 0:
		m.running, m.over, m.status = false, true, corev1.PodSucceeded
	default:
		m.running, m.over, m.status = false, true, corev1.PodFailed
	}
}

// starts is the moment at which a machine runs a pod.
func (w *world) starts(m *machine, uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.machines {
		if other != m && other.up && other.running && other.pod == uid {
			w.violateLocked("invariant 1: cell %s starts pod %s, which cell %s runs", m.cell, uid, other.cell)
		}
	}
	if m.up && w.mountLocked(m, uid) {
		m.running, m.status = true, corev1.PodRunning
		if w.started[uid].IsZero() {
			w.started[uid] = time.Now()
		}
		if w.ran[uid]++; w.ran[uid] > 1 && w.policies[uid] == corev1.RestartPolicyNever {
			w.violateLocked("a pod that may not be restarted runs once: pod %s is started again by cell %s", uid, m.cell)
		}
	}
}

// report sends the pod's status, and the deletion of a deleted pod that has ended.
func (m *machine) report(ctx context.Context, pod *corev1.Pod) time.Duration {
	w := m.w
	w.mu.Lock()
	s, status, restarts, id := m.session, m.status, m.restarts, "containerd://"+m.id
	flows := s != nil && s.flows() && !m.hung && s.kip.alive() == nil
	w.mu.Unlock()
	if !flows {
		return retry
	}
	send := func(p *corev1.Pod) watch.EventType {
		ready := corev1.ConditionFalse
		c := corev1.ContainerStatus{Name: "main", ContainerID: id, RestartCount: restarts}
		if status == corev1.PodRunning {
			ready = corev1.ConditionTrue
			c.State.Running, c.Ready = &corev1.ContainerStateRunning{}, true
		} else {
			c.State.Terminated = &corev1.ContainerStateTerminated{}
		}
		if len(p.Status.ContainerStatuses) == 1 && p.Status.Phase == status && p.Status.ContainerStatuses[0].RestartCount == restarts &&
			p.Status.ContainerStatuses[0].ContainerID == id && len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == ready {
			return ""
		}
		p.Status.Phase, p.Status.ContainerStatuses = status, []corev1.ContainerStatus{c}
		p.Status.Conditions = append([]corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}, others(p.Status.Conditions)...)
		return watch.Modified
	}
	if send(pod.DeepCopy()) != "" {
		if err := w.api.edit(m.name, &metav1.Preconditions{UID: &m.pod}, send); err != nil {
			return retry
		}
		m.cutAfter(status)
	}
	if pod.DeletionTimestamp != nil {
		zero := int64(0)
		if err := w.api.remove(m.name, metav1.DeleteOptions{GracePeriodSeconds: &zero,
			Preconditions: &metav1.Preconditions{UID: &m.pod}}); err != nil {
			return retry
		}
	}
	return 0
}

// cutAfter cuts the machine off for two minutes if it is to be and its pod has ended.
func (m *machine) cutAfter(status corev1.PodPhase) {
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !m.cutAtEnd || status != corev1.PodSucceeded && status != corev1.PodFailed {
		return
	}
	if s := m.session; s != nil {
		s.api.freezeBeat()
	}
	m.cutAtEnd, m.cutOff, w.lasting["cut off"] = false, true, true
	w.linksChanged()
	go func() {
		if sleep(w.ctx, 2*time.Minute) {
			w.healLinks()
		}
	}()
}

func others(list []corev1.PodCondition) (kept []corev1.PodCondition) {
	for _, c := range list {
		if c.Type != corev1.PodReady {
			kept = append(kept, c)
		}
	}
	return kept
}

// cellAPI is what a cell sees of Kubernetes, as package cellapi serves it.
type cellAPI struct {
	http.Handler // nobody asks it
	kip          *kip
	id           string
	node         string // the virtual node whose kubelet is answered
	ready        chan struct{}

	// Under world.mu.
	isReady  bool
	restored bool // its kubelet may have had the pod before this Kip bound it
	knows    bool // what runs beside the pod is known
	copies   map[types.UID]*knownCopy
	over     map[types.UID]bool // those that the kubelet has ended
	kept     bool               // its kubelet hears no more of its pod
	pod      cache.ObjectName
	uid      types.UID
	beat     time.Time
	session  *session
}

var _ cells.API = (*cellAPI)(nil)

type cellAPIs struct{ k *kip }

func (a cellAPIs) AddCell(id string, info cellapi.CellInfo) cells.API {
	a.k.w.mu.Lock()
	defer a.k.w.mu.Unlock()
	api := &cellAPI{kip: a.k, id: id, node: info.Node, ready: make(chan struct{}), copies: map[types.UID]*knownCopy{},
		over: map[types.UID]bool{}}
	a.k.apis[id] = api
	return api
}

func (a cellAPIs) RemoveCell(id string) {
	a.k.w.mu.Lock()
	defer a.k.w.mu.Unlock()
	delete(a.k.apis, id)
}

func (a *cellAPI) NodeReady() <-chan struct{} { return a.ready }

func (a *cellAPI) nodeReady() {
	a.kip.w.mu.Lock()
	defer a.kip.w.mu.Unlock()
	if !a.isReady {
		a.isReady = true
		close(a.ready)
	}
}

func (a *cellAPI) Reserve(corev1.ResourceList, []string) {}

func (a *cellAPI) KeepPod() {
	a.kip.w.mu.Lock()
	defer a.kip.w.mu.Unlock()
	a.kept = true
}

func (a *cellAPI) Bind(namespace, name string, uid types.UID) error {
	w := a.kip.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range a.kip.apis {
		if other != a && other.uid == uid {
			w.violateLocked("invariant 1: pod %s is shown to cell %s and to cell %s", uid, a.id, other.id)
		}
	}
	if a.uid != "" && a.uid != uid {
		w.violateLocked("a cell runs one pod: cell %s has %s and is given %s", a.id, a.uid, uid)
		return errors.New("a cell runs one pod only")
	}
	a.pod, a.uid = cache.ObjectName{Namespace: namespace, Name: name}, uid
	a.restored, a.knows = !a.isReady, a.isReady
	a.seeSets()
	if a.session != nil && a.session.machine != nil {
		a.session.machine.poke()
	}
	return nil
}

// No pod of the histories has CSI volumes.
func (a *cellAPI) CSIDrivers() ([]string, bool) { return nil, false }
func (a *cellAPI) PluginTrouble() string        { return "" }
func (a *cellAPI) StatusTrouble() string        { return "" }

// What the machines of the histories have, nobody asks.
func (a *cellAPI) Node() *corev1.Node { return nil }

// LastHeartbeat has no timer behind it: a kubelet that is connected renews its
// lease each ten seconds.
func (a *cellAPI) LastHeartbeat() time.Time {
	a.kip.w.mu.Lock()
	defer a.kip.w.mu.Unlock()
	a.freezeBeat()
	if s := a.session; s != nil && s.flows() && s.machine.hung && !s.machine.missed && time.Since(a.beat) > 2*heartbeat {
		s.machine.missed = true
		a.kip.w.plays["kubelet hangs"]++
	}
	return a.beat
}

// tunnels connects to machines.
type tunnels struct{ k *kip }

func (t tunnels) Keep(ctx context.Context, target tunnel.Target, api http.Handler, onSpend tunnel.OnSpend) (cells.Session, error) {
	s := &session{
		kip:     t.k,
		target:  target,
		api:     api.(interface{ Unwrap() http.Handler }).Unwrap().(*cellAPI),
		onSpend: onSpend,
		ready:   make(chan struct{}),
		done:    make(chan struct{}),
		by:      target.CA,
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	t.k.w.mu.Lock()
	s.api.session = s
	a := t.k.w.books.cells[t.k.w.books.named(target.CellID)]
	if a != nil && s.api.uid == "" && (a.cell.Phase == apiv1.Bound || a.cell.Phase == apiv1.Draining) {
		t.k.w.violateLocked("a restart of Kip disturbs no pod: bound cell %s is dialled before its pod is shown", target.CellID)
	}
	t.k.w.mu.Unlock()
	go s.run()
	return s, nil
}

// session is a tunnel to one machine.
type session struct {
	kip     *kip
	target  tunnel.Target
	api     *cellAPI
	onSpend tunnel.OnSpend
	ctx     context.Context
	cancel  context.CancelFunc
	ready   chan struct{}
	done    chan struct{}
	once    sync.Once

	// Under world.mu.
	by        string   // the CA by which it dials
	machine   *machine // while connected
	connected bool
	broken    chan struct{} // closed when the connection has broken and that was noticed
	heard     time.Time
	err       error
}

// flows says that bytes get through; under world.mu.
func (s *session) flows() bool {
	return s.connected && s.machine.up && !s.machine.cutOff && s.machine.session == s && s.kip.stalled == nil
}

func (s *session) Ready() <-chan struct{} { return s.ready }
func (s *session) Close()                 { s.cancel(); <-s.done }
func (s *session) Connected() bool        { return locked(s, func() bool { return s.connected }) }
func (s *session) LastHeard() time.Time   { return locked(s, func() time.Time { return s.heard }) }
func (s *session) HeldBack() time.Time    { return time.Time{} }

// Trust is what an agent does that is told of Kip's CAs.
func (s *session) Trust(ctx context.Context) error {
	s.kip.running(ctx)
	if !sleep(ctx, dialTime) {
		return ctx.Err()
	}
	w := s.kip.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !s.flows() {
		return errors.New("the cell is not connected")
	}
	s.machine.trusts = slices.DeleteFunc([]string{s.kip.ca, s.kip.oldCA}, func(ca string) bool { return ca == "" })
	s.by = s.kip.ca
	w.plays["cell moved to another CA"]++
	return nil
}

func (s *session) CA() string       { return locked(s, func() string { return s.by }) }
func (s *session) LastError() error { return locked(s, func() error { return s.err }) }

func locked[T any](s *session, f func() T) T {
	s.kip.w.mu.Lock()
	defer s.kip.w.mu.Unlock()
	return f()
}

func (s *session) run() {
	defer close(s.done)
	for s.ctx.Err() == nil {
		wait, changed, err := s.connect()
		if err == nil {
			s.kip.running(s.ctx)
			s.target.OnState(true, nil)
			s.hold()
			s.kip.running(s.ctx)
			err, wait = errors.New("the cell was silent"), 0
		}
		s.kip.w.mu.Lock()
		s.api.freezeBeat()
		if s.connected {
			close(s.broken)
		}
		s.connected, s.machine, s.err = false, nil, err
		s.kip.w.mu.Unlock()
		s.target.OnState(false, err)
		if wait > 0 {
			sleep(s.ctx, wait)
			continue
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
		}
	}
}

// freezeBeat notes the last heartbeat, of a connection that ends or a Kip that stops
// reading; under world.mu.
func (a *cellAPI) freezeBeat() {
	if w := a.kip.w; w.paused != nil || a.kip.stalled != nil || time.Since(w.resumed) < catchUp {
		return
	}
	if s := a.session; s != nil && s.flows() && !s.machine.started.IsZero() && !s.machine.hung {
		a.beat = s.machine.started.Add(time.Since(s.machine.started) / heartbeat * heartbeat)
	}
}

// connect joins the machine if need be. After an error it returns how long to
// wait, or what to wait for.
func (s *session) connect() (wait time.Duration, changed <-chan struct{}, _ error) {
	w := s.kip.w
	if !sleep(s.ctx, dialTime) {
		return 0, nil, s.ctx.Err()
	}
	s.kip.running(s.ctx)
	w.mu.Lock()
	changed = w.links
	var m *machine
	for _, other := range w.machines {
		if other.up && !other.cutOff && other.addr == s.target.Addr.Addr() {
			m = other
		}
	}
	if m == nil {
		w.mu.Unlock()
		return 0, changed, errors.New("no route to host")
	}
	joined, key := m.joined, m.key
	w.mu.Unlock()
	switch {
	case m.joinID != s.target.CellID:
		return 0, changed, fmt.Errorf("the machine is cell %s", m.cell)
	case !joined && (s.target.Token.IsZero() || s.target.Token.Reveal() != m.token):
		return 0, changed, errors.New("the machine has not joined and the token is spent")
	case s.target.KeyHash != "" && s.target.KeyHash != key:
		return 0, changed, tunnel.ErrKeyChanged
	}
	if s.target.KeyHash == "" {
		if err := s.onSpend(s.ctx, key); err != nil {
			return retry, nil, fmt.Errorf("record the cell's key: %w", err)
		}
		s.target.KeyHash = key
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !m.up || m.cutOff {
		return 0, changed, errors.New("connection reset")
	}
	if m.refuses {
		w.plays["cell refuses"]++
		return retry, nil, &tunnel.FollowedError{Term: math.MaxInt64}
	}
	if !slices.Contains(m.trusts, s.by) {
		w.violateLocked("a cell is dialled by a CA that it trusts: cell %s by %q, and it trusts %v", m.cell, s.by, m.trusts)
		return 0, changed, errors.New("bad certificate")
	}
	if s.kip.life < m.term {
		w.plays["dial of a deposed Kip"]++
		return 0, changed, errors.New("another Kip has followed this one")
	}
	m.term = s.kip.life
	if a := w.books.cells[m.cell]; !joined && (a == nil || a.cell.KeyHash != key) {
		w.violateLocked("a token is spent in the store first: cell %s joins and its key is not recorded", m.cell)
	}
	m.joined = true
	m.session, s.machine, s.connected, s.heard, s.err = s, m, true, time.Now(), nil
	s.broken = make(chan struct{})
	s.once.Do(func() { close(s.ready) })
	m.poke()
	return 0, changed, nil
}

// hold returns when the connection has broken and that was noticed, or the
// session ends.
func (s *session) hold() {
	w := s.kip.w
	for {
		w.mu.Lock()
		changed, flows, ours := w.links, s.flows(), s.machine.up && s.machine.session == s
		w.mu.Unlock()
		if !ours { // the other end was started anew: it resets what it does not know
			sleep(s.ctx, noticed)
			return
		}
		if flows {
			select {
			case <-changed:
			case <-s.ctx.Done():
				return
			}
			continue
		}
		if !sleep(s.ctx, noticed) {
			return
		}
		w.mu.Lock()
		flows = s.flows()
		w.mu.Unlock()
		if !flows {
			return
		}
	}
}

// Conn leads to the agent.
func (s *session) Conn() agentapi.Conn { return agent{s} }

// Streams lead there, too.
func (s *session) Streams() agentapi.Conn { return agent{s} }

type agent struct{ s *session }

func (a agent) RoundTrip(r *http.Request) (*http.Response, error) {
	s, w := a.s, a.s.kip.w
	s.kip.running(r.Context())
	broken := locked(s, func() <-chan struct{} { return s.broken })
	for {
		attached := w.attached()
		w.mu.Lock()
		changed, flows := w.links, s.flows()
		if flows {
			m := s.machine
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, agentapi.PathConfig) {
				m.configure(r)
			}
			code := http.StatusOK
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, agentapi.PathDisks) {
				code = m.putDisks(r, attached)
			}
			w.mu.Unlock()
			return answer(code), nil
		}
		connected := s.connected
		w.mu.Unlock()
		if !connected {
			return nil, errors.New("the cell is not connected")
		}
		select {
		case <-changed:
		case <-broken: // the next connection does not know of the request
			return nil, errors.New("the connection has broken")
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
}
