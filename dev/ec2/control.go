package ec2

import (
	"cmp"
	"net/http"

	"github.com/elotl/kip/dev/cloudmodel"
)

// words are EC2's.
var words = cloudmodel.Words{
	Cloud:    "EC2",
	Action:   "RunInstances",
	Code:     "InternalError",
	Instance: "i-…",
	Zone:     "us-east-1a",
}

// State is what a model tells of itself.
type State struct {
	cloudmodel.State
	// Unused are the statements that have allowed nothing yet, of each key.
	Unused  map[string][]string
	Volumes []Volume // that exist, but for the root disks of instances
	Routes  []Route  // that were made by calls
	Groups  []Group  // that exist
}

// State says what is and was.
func (m *Model) State() State {
	s := State{
		State:   m.Model.State(),
		Unused:  map[string][]string{},
		Volumes: m.Volumes.All(),
		Routes:  m.Routing.Routes(),
		Groups:  m.Groups.All(),
	}
	for key, p := range m.base.cfg.Policies {
		s.Unused[key] = p.Unused()
	}
	return s
}

// Paid is capacity that the account has paid for; in place of what it had.
type Paid struct {
	Reservations []Reservation
	Hosts        []Host
}

// pay does what an order says.
func (m *Model) pay(p Paid) error {
	m.Change(func(cfg *Config) { cfg.Reservations, cfg.Hosts = p.Reservations, p.Hosts })
	return nil
}

// The ways by which EC2 says that it takes an instance back.
const (
	WayMetadata cloudmodel.Way = "metadata" // what the instance is told of itself
	WayRequest  cloudmodel.Way = "request"  // the status of the spot request
)

// statuses are the HTTP statuses of EC2's errors that are not the caller's.
var statuses = map[string]int{
	"RequestLimitExceeded":         http.StatusServiceUnavailable,
	"Unavailable":                  http.StatusServiceUnavailable,
	"InternalError":                http.StatusInternalServerError,
	"InsufficientInstanceCapacity": http.StatusInternalServerError,
}

// refusal is an answer that a call was told to have.
func refusal(code string) error {
	return &apiError{cmp.Or(statuses[code], http.StatusBadRequest), code, "as the model was told"}
}

// Orders are all that a model takes from another process.
func Orders() []cloudmodel.Order[*Model] {
	return append(cloudmodel.Orders[*Model](words),
		cloudmodel.NewOrder("paid", `{"Reservations":[{"ID":"cr-1","Type":"t3.small","Zone":"us-east-1a","Total":1}],"Hosts":[{"ID":"h-1","Family":"t3","Zone":"us-east-1a","VCPUs":4}]}`,
			"the account has these capacity reservations and Dedicated Hosts, and no others", (*Model).pay),
		cloudmodel.NewOrder("compose", `{"On":true}`,
			"instances find their user data beside a script of others', in a multi-part document",
			func(m *Model, c Compose) error { return m.Metadata.Compose(c) }),
		cloudmodel.NewOrder("rebalance", `{"Instance":"i-…"}`, "it is recommended to leave a spot instance",
			func(m *Model, r Rebalance) error { return m.Announcements.Rebalance(r) }),
		cloudmodel.NewOrder("maintain", `{"Instance":"i-…","Code":"instance-stop","NotBefore":"2030-01-01T00:00:00Z"}`,
			"maintenance is scheduled", func(m *Model, of Maintenance) error { return m.Announcements.Maintain(of) }),
		cloudmodel.NewOrder("role", `{"ARN":"arn:aws:iam::123456789012:role/a","Policy":{"Statement":[]},"Trust":{"Statement":[]}}`,
			"a role is made or changed", func(m *Model, r Role) error { return m.Roles.PutRole(r) }),
	)
}

// Control serves what tests and people do to a model in another process: GET is its State; a POST
// to one of Orders does that.
func (m *Model) Control() http.Handler {
	return cloudmodel.Control(m, func() any { return m.State() }, Orders())
}
