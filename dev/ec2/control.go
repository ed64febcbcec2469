package ec2

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// ControlPath is where Control is to be served beside the API.
const ControlPath = "/_model/"

// State is what a model tells of itself.
type State struct {
	Calls map[string]int // of each action
	// Refused are the calls of each action that the policies did not allow.
	Refused map[string]int
	// Unused are the statements that have allowed nothing yet, of each key.
	Unused map[string][]string
	// Hung are the actions of the calls that have met a Hang, in their order.
	Hung      []string
	Instances []sim.Instance // all that ever were
	Volumes   []Volume       // that exist, but for the root disks of instances
	Routes    []Route        // that were made by calls
	Groups    []Group        // that exist
	// Interfaces are the network interfaces that exist.
	Interfaces []cloud.Part
}

// Hang lets one call of EC2 hang until its caller is gone.
type Hang struct {
	Action string // RunInstances and so on
	Nth    int    // from now on; 1 is the next
	// After lets it succeed first, and counts those that do.
	After bool
}

// Loss breaks the connection of one call, so that its answer is lost.
type Loss struct {
	Call cloud.Call // its kind
	Nth  int        // from now on; 1 is the next
	// After lets it have its effect first.
	After bool
}

// Failure answers one call with an error, and lets it have no effect.
type Failure struct {
	Call cloud.Call // its kind
	Nth  int        // from now on; 1 is the next
	Code string     // EC2's, such as InsufficientInstanceCapacity
}

// Throttle bounds the calls of a kind: each takes a token, of which there are Capacity, and Refill
// more each second. 0 of both is no bound.
type Throttle struct {
	Call             cloud.Call
	Capacity, Refill float64
}

// Denial lets the model not know an instance that is there: the next Calls that name it are answered
// InvalidInstanceID.NotFound, and lists of instances that would show it do not.
type Denial struct {
	Instance string
	Calls    int // 0 ends it
}

// Paid is capacity that the account has paid for; in place of what it had.
type Paid struct {
	Reservations []Reservation
	Hosts        []Host
}

// Capacity is for how many instances there is room, of a type, in a zone and in a subnet, each of
// which is any when ""; a negative number is no bound.
type Capacity struct {
	Type, Zone, Subnet string
	Instances          int
}

// Interruption takes a spot instance back.
type Interruption struct {
	Instance string        // the youngest spot instance when ""
	Notice   time.Duration // how long before; EC2's two minutes when 0
	// Untold are the ways by which nothing is said of it.
	Untold []Way
}

// Way is one by which EC2 says that it takes an instance back.
type Way string

// The ways.
const (
	WayMetadata Way = "metadata" // what the instance is told of itself
	WayRequest  Way = "request"  // the status of the spot request
)

// Rebalance recommends to leave a spot instance. Only the instance is told (EC2 User Guide, "EC2
// instance rebalance recommendations": besides by EventBridge, which the model lacks).
type Rebalance struct {
	Instance string
}

// Rebalance gives one.
func (m *Model) Rebalance(r Rebalance) error {
	n := slices.IndexFunc(m.sim.Truth(), func(i sim.Instance) bool { return i.ID == r.Instance && i.Spot })
	if n < 0 {
		return fmt.Errorf("the field Instance is %q: want the ID of a spot instance that has not ended", r.Instance)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.risks[r.Instance] = m.now()
	return nil
}

// Interrupt takes a spot instance back.
func (m *Model) Interrupt(i Interruption) error {
	all := []Way{WayMetadata, WayRequest}
	for _, w := range i.Untold {
		if !slices.Contains(all, w) {
			return fmt.Errorf("the field Untold has %q: want some of %q", w, all)
		}
	}
	if i.Instance == "" {
		var youngest sim.Instance
		for _, one := range m.sim.Truth() {
			if one.Spot && !one.Launched.Before(youngest.Launched) {
				youngest = one
			}
		}
		if i.Instance = youngest.ID; i.Instance == "" {
			return errors.New("the field Instance is empty, and there is no spot instance")
		}
	}
	m.mu.Lock()
	m.untold[i.Instance] = i.Untold
	m.mu.Unlock()
	if err := m.sim.Change(func(k *sim.Knobs) { k.InterruptionNotice = i.Notice }); err != nil {
		return err
	}
	return m.sim.Interrupt(i.Instance)
}

// announced are the notices of which something is said by a way.
func (m *Model) announced(by Way) []cloud.Interruption {
	all := m.sim.Announced()
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(all, func(i cloud.Interruption) bool { return slices.Contains(m.untold[i.InstanceID], by) })
}

// atRisk is when it was recommended to leave an instance.
func (m *Model) atRisk(instance string) (at time.Time, is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, is = m.risks[instance]
	return at, is
}

// State says what is and was.
func (m *Model) State() State {
	s := State{
		Instances:  m.sim.History(),
		Volumes:    m.Volumes(),
		Routes:     m.Routes(),
		Groups:     m.Groups(),
		Interfaces: m.sim.PartsNow(),
		Unused:     map[string][]string{},
	}
	for key, p := range m.cfg.Policies {
		s.Unused[key] = p.Unused()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Calls, s.Refused, s.Hung = maps.Clone(m.calls), maps.Clone(m.unallowed), slices.Clone(m.hung)
	return s
}

// Hang plans one.
func (m *Model) Hang(h Hang) error {
	if m.actions()[h.Action] == nil {
		return fmt.Errorf("the field Action is %q: want one of EC2 that the model knows, such as RunInstances", h.Action)
	}
	if h.Nth < 1 {
		return fmt.Errorf("the field Nth is %d: want 1 or more", h.Nth)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = append(m.hangs, h)
	return nil
}

// mishap is what happens to one call that is to come.
type mishap struct {
	call  cloud.Call
	nth   int
	fault sim.Fault
}

// kinds are those of the calls that the model takes.
var kinds = []cloud.Call{
	cloud.CallLaunch, cloud.CallList, cloud.CallDescribe, cloud.CallTerminate, cloud.CallStop, cloud.CallStart, cloud.CallTag,
	cloud.CallCatalogue, cloud.CallInterruptions, cloud.CallCreateDisk, cloud.CallDeleteDisk, cloud.CallListDisks,
	cloud.CallAttachDisk, cloud.CallDetachDisk, cloud.CallGrowDisk, cloud.CallRoute, cloud.CallUnroute, cloud.CallListParts,
	cloud.CallDeleteParts, cloud.CallPullCredentials, cloud.CallEndBoost,
}

// plan has one happen.
func (m *Model) plan(one mishap) error {
	switch {
	case !slices.Contains(kinds, one.call):
		return fmt.Errorf("the field Call is %q: want one of %q", one.call, kinds)
	case one.nth < 1:
		return fmt.Errorf("the field Nth is %d: want 1 or more", one.nth)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mishaps = append(m.mishaps, one)
	return nil
}

// Lose plans a loss.
func (m *Model) Lose(l Loss) error {
	fault := sim.Fault{Before: sim.ErrLost}
	if l.After {
		fault = sim.Fault{After: sim.ErrLost}
	}
	return m.plan(mishap{call: l.Call, nth: l.Nth, fault: fault})
}

// statuses are the HTTP statuses of EC2's errors that are not the caller's.
var statuses = map[string]int{
	"RequestLimitExceeded":         http.StatusServiceUnavailable,
	"Unavailable":                  http.StatusServiceUnavailable,
	"InternalError":                http.StatusInternalServerError,
	"InsufficientInstanceCapacity": http.StatusInternalServerError,
}

// FailCall plans a failure.
func (m *Model) FailCall(f Failure) error {
	if f.Code == "" {
		return errors.New("the field Code is empty: want one of EC2's, such as InternalError")
	}
	status := cmp.Or(statuses[f.Code], http.StatusBadRequest)
	return m.plan(mishap{call: f.Call, nth: f.Nth, fault: sim.Fault{Before: &apiError{status, f.Code, "as the model was told"}}})
}

// Throttle bounds calls.
func (m *Model) Throttle(t Throttle) error {
	if !slices.Contains(kinds, t.Call) {
		return fmt.Errorf("the field Call is %q: want one of %q", t.Call, kinds)
	}
	return m.sim.Change(func(k *sim.Knobs) {
		if k.RateLimits == nil {
			k.RateLimits = map[sim.Kind]sim.RateLimit{}
		}
		limit := k.RateLimits[t.Call]
		limit.Requests = sim.Bucket{Capacity: t.Capacity, Refill: t.Refill}
		k.RateLimits[t.Call] = limit
	})
}

// Deny begins or ends a denial.
func (m *Model) Deny(d Denial) error {
	if d.Calls < 0 {
		return fmt.Errorf("the field Calls is %d: want 0 or more", d.Calls)
	}
	if !slices.ContainsFunc(m.sim.Truth(), func(i sim.Instance) bool { return i.ID == d.Instance }) {
		return fmt.Errorf("the field Instance is %q: want the ID of an instance that has not ended", d.Instance)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.denied[d.Instance] = d.Calls
	return nil
}

// denies says whether a call does not know an instance that is denied, and counts it.
func (m *Model) denies(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.denied[id] < 1 {
		return false
	}
	m.denied[id]--
	return true
}

// unknown are those IDs that a call does not know.
func (m *Model) unknown(ids ...string) []string {
	none := m.sim.Unknown(ids...)
	for _, id := range ids {
		if !slices.Contains(none, id) && m.denies(id) {
			none = append(none, id)
		}
	}
	return none
}

// hang lets a call hang that was to, before its effect or after it. Its error is that the caller
// is gone.
func (m *Model) hang(r *request, after bool) error {
	m.mu.Lock()
	is := false
	for n := range m.hangs {
		if h := &m.hangs[n]; h.Action == r.action && h.After == after {
			h.Nth--
			is = is || h.Nth == 0
		}
	}
	m.hangs = slices.DeleteFunc(m.hangs, func(h Hang) bool { return h.Nth == 0 })
	if is {
		m.hung = append(m.hung, r.action)
	}
	m.mu.Unlock()
	if !is {
		return nil
	}
	<-r.ctx.Done()
	return r.ctx.Err()
}

// Interfaces says what becomes of the network interfaces of the instances that end from now on.
type Interfaces struct {
	// Stay says that they outlive their instances.
	Stay bool
}

// Interfaces changes it.
func (m *Model) Interfaces(i Interfaces) error {
	return m.sim.Change(func(k *sim.Knobs) {
		k.PartsLeft = 0
		if i.Stay {
			k.PartsLeft = 1
		}
	})
}

// fault is the sim's question of what goes wrong with a call.
func (m *Model) fault(c sim.Call) sim.Fault {
	m.mu.Lock()
	met := false
	var is mishap
	kept := m.mishaps[:0]
	for _, one := range m.mishaps {
		if one.call == c.Kind {
			one.nth--
		}
		if one.nth < 1 && !met {
			met, is = true, one
			continue
		}
		kept = append(kept, one)
	}
	m.mishaps = kept
	m.mu.Unlock()
	if !met && m.cfg.Sim.Fault != nil {
		return m.cfg.Sim.Fault(c)
	}
	return is.fault
}

// Order is one that Control takes.
type Order struct {
	Name string // in its path
	JSON string // an example
	Does string // for people
}

// Orders are all of them.
func Orders() []Order {
	return []Order{
		{"hang", `{"Action":"RunInstances","Nth":1,"After":true}`, "the Nth call of an action hangs, before or After its effect"},
		{"lose", `{"Call":"launch","Nth":1,"After":true}`, "the connection of the Nth call of a kind breaks, and its answer is lost"},
		{"fail", `{"Call":"launch","Nth":1,"Code":"InternalError"}`, "that call has no effect, and is answered with an error"},
		{"throttle", `{"Call":"list","Capacity":1,"Refill":0.1}`, "the calls of a kind are bounded, to more a second; 0 and 0 lift that"},
		{"capacity", `{"Zone":"us-east-1a","Instances":0}`, "there is room for so many, of a Type, in a Zone and in a Subnet; -1 lifts that"},
		{"paid", `{"Reservations":[{"ID":"cr-1","Type":"t3.small","Zone":"us-east-1a","Total":1}],"Hosts":[{"ID":"h-1","Family":"t3","Zone":"us-east-1a","VCPUs":4}]}`,
			"the account has these capacity reservations and Dedicated Hosts, and no others"},
		{"deny", `{"Instance":"i-…","Calls":3}`, "so many calls do not know an instance that is there"},
		{"compose", `{"On":true}`, "instances find their user data beside a script of others', in a multi-part document"},
		{"interfaces", `{"Stay":true}`, "network interfaces outlive the instances that end from now on"},
		{"interrupt", `{"Instance":"i-…"}`, "a spot instance is taken back, with EC2's notice; {} means the youngest"},
		{"rebalance", `{"Instance":"i-…"}`, "it is recommended to leave a spot instance"},
		{"impair", `{"Instance":"i-…","Check":"system-status.status"}`, "an instance fails one of EC2's checks; without Check it passes both"},
		{"maintain", `{"Instance":"i-…","Code":"instance-stop","NotBefore":"2030-01-01T00:00:00Z"}`, "maintenance is scheduled"},
		{"role", `{"ARN":"arn:aws:iam::123456789012:role/a","Policy":{"Statement":[]},"Trust":{"Statement":[]}}`, "a role is made or changed"},
	}
}

// Control serves what tests and people do to a model in another process: GET is its State; a POST
// to one of Orders does that.
func (m *Model) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ControlPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(m.State()) // or whoever asked is gone
	})
	handle(mux, "hang", m.Hang)
	handle(mux, "lose", m.Lose)
	handle(mux, "fail", m.FailCall)
	handle(mux, "throttle", m.Throttle)
	handle(mux, "deny", m.Deny)
	handle(mux, "capacity", func(c Capacity) error {
		m.sim.SetCapacity(sim.Pool{InstanceType: c.Type, Zone: c.Zone, Subnet: c.Subnet}, c.Instances)
		return nil
	})
	handle(mux, "paid", func(p Paid) error {
		m.Change(func(cfg *Config) { cfg.Reservations, cfg.Hosts = p.Reservations, p.Hosts })
		return nil
	})
	handle(mux, "interfaces", m.Interfaces)
	handle(mux, "compose", m.Compose)
	handle(mux, "interrupt", m.Interrupt)
	handle(mux, "impair", m.impair)
	handle(mux, "maintain", m.Maintain)
	handle(mux, "rebalance", m.Rebalance)
	handle(mux, "role", m.PutRole)
	return mux
}

func handle[T any](mux *http.ServeMux, name string, do func(T) error) {
	mux.HandleFunc("POST "+ControlPath+name, func(w http.ResponseWriter, r *http.Request) {
		var one T
		read := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
		read.DisallowUnknownFields()
		err := read.Decode(&one)
		if err == nil {
			err = do(one)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
}
