package ec2

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// Route is one that was made in a table.
type Route struct {
	Table    string
	To       netip.Prefix
	Instance string
	// List is the prefix list to which it leads, in place of To, and Target what it leads to, in place of an
	// Instance, by its ID. Only of Config.Routes.
	List, Target string `json:",omitempty"`
}

type routeTableXML struct {
	ID           string           `xml:"routeTableId"`
	VPC          string           `xml:"vpcId"`
	Routes       []routeXML       `xml:"routeSet>item"`
	Associations []associationXML `xml:"associationSet>item"`
}

type routeXML struct {
	CIDR      string `xml:"destinationCidrBlock,omitempty"`
	CIDR6     string `xml:"destinationIpv6CidrBlock,omitempty"`
	List      string `xml:"destinationPrefixListId,omitempty"`
	Gateway   string `xml:"gatewayId,omitempty"`
	NAT       string `xml:"natGatewayId,omitempty"`
	Transit   string `xml:"transitGatewayId,omitempty"`
	Peering   string `xml:"vpcPeeringConnectionId,omitempty"`
	Instance  string `xml:"instanceId,omitempty"`
	Interface string `xml:"networkInterfaceId,omitempty"`
	State     string `xml:"state"`
	Origin    string `xml:"origin"`
}

type associationXML struct {
	Subnet string `xml:"subnetId,omitempty"`
	Main   bool   `xml:"main"`
}

// The IDs of a VPC's tables begin so.
const mainTable, privateTable = "rtb-main-", "rtb-private-"

// mostRoutes is how many routes a table takes by default. Source: AWS, "What's New", June 2025 (50 before); Amazon VPC User
// Guide, "Amazon VPC quotas".
const mostRoutes = 500

func made(cidr, gateway string) routeXML {
	return routeXML{
		CIDR:    cidr,
		Gateway: gateway,
		State:   "active",
		Origin:  "CreateRouteTable",
	}
}

// routing are the route tables, and what instances forward.
type routing struct {
	*base
	networks *networks
	launched *launched

	given    []Route                   // of Config
	routes   []Route                   // made by calls
	lists    map[string][]netip.Prefix // by the prefix list's ID
	forwards map[string]bool           // instances without a check of source and destination
}

// describeRouteTables has two tables for each VPC: the main one, with a route to the
// internet gateway, and one of the subnets that have none.
func (m *routing) describeRouteTables(r *request) (any, error) {
	wanted := r.filters("vpc-id")
	if err := m.one(r); err != nil {
		return nil, err
	}
	var all []routeTableXML
	for _, s := range m.networks.Subnets() {
		if !wanted.match(func(string) []string { return []string{s.VPC} }) {
			continue
		}
		n := slices.IndexFunc(all, func(t routeTableXML) bool { return t.VPC == s.VPC })
		if n < 0 {
			var local []routeXML // one for each network. Source: Amazon VPC User Guide, "Route table concepts"
			for _, p := range m.networks.networksOf(s.VPC) {
				local = append(local, made(p, "local"))
			}
			n = len(all)
			all = append(all,
				routeTableXML{mainTable + s.VPC, s.VPC, append(slices.Clone(local), made("0.0.0.0/0", "igw-1")), []associationXML{{Main: true}}},
				routeTableXML{privateTable + s.VPC, s.VPC, slices.Clone(local), nil})
		}
		if !s.Public {
			all[n+1].Associations = append(all[n+1].Associations, associationXML{Subnet: s.ID})
		}
	}
	living := m.model.Living()
	m.mu.Lock()
	given := slices.Clone(m.given)
	m.mu.Unlock()
	for _, route := range append(given, m.Routes()...) {
		if n := slices.IndexFunc(all, func(t routeTableXML) bool { return t.ID == route.Table }); n >= 0 {
			all[n].Routes = append(all[n].Routes, shownRoute(route, living))
		}
	}
	return paged(r, "routeTableSet", m.cfg.PageSize, all, func(t routeTableXML) string { return t.ID }), nil
}

// shownRoute is a route as EC2 shows it. Of one to an instance that has ended it says no more
// than that the interface is gone.
func shownRoute(r Route, living map[string]sim.Instance) routeXML {
	if r.Target != "" {
		return shownTarget(r)
	}
	x := routeXML{
		CIDR:      r.To.String(),
		Instance:  r.Instance,
		Interface: "eni-" + r.Instance,
		State:     "active",
		Origin:    "CreateRoute",
	}
	if r.To.Addr().Is6() {
		x.CIDR, x.CIDR6 = "", x.CIDR
	}
	switch i, lives := living[r.Instance]; {
	case !lives:
		x.Instance, x.State = "", "blackhole"
	case i.State == cloud.Stopped:
		x.State = "blackhole"
	}
	return x
}

// shownTarget is a route to something else than an instance. One to a virtual gateway is propagated.
func shownTarget(r Route) routeXML {
	x := routeXML{List: r.List, State: "active", Origin: "CreateRoute"}
	if r.List == "" {
		x.CIDR = r.To.String()
	}
	switch kind, _, _ := strings.Cut(r.Target, "-"); kind {
	case "nat":
		x.NAT = r.Target
	case "tgw":
		x.Transit = r.Target
	case "pcx":
		x.Peering = r.Target
	case "eni":
		x.Interface = r.Target
	case "vgw":
		x.Gateway, x.Origin = r.Target, "EnableVgwRoutePropagation"
	default: // an internet gateway, an endpoint
		x.Gateway = r.Target
	}
	return x
}

// Routes are those that were made.
func (m *routing) Routes() []Route {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.routes)
}

// Forwards says that an instance may send what is not from its own address.
func (m *routing) Forwards(instance string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.forwards[instance]
}

// AddRoute makes a route that nobody has asked the model for.
func (m *routing) AddRoute(r Route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.routes = append(m.routes, r)
}

// prefix reads a network that a call names.
func (r *request) prefix(key string) netip.Prefix {
	text := r.text(key)
	p, err := netip.ParsePrefix(text)
	if err != nil || p != p.Masked() || !p.Addr().Is4() {
		r.bad("InvalidParameterValue", "Value (%s) for parameter %s is invalid. This is not a valid CIDR block.", text, key)
	}
	return p
}

// table is whether a VPC has a table of this ID.
func (m *routing) table(id string) bool {
	return slices.ContainsFunc(m.networks.Subnets(), func(s Subnet) bool {
		vpc, isMain := strings.CutPrefix(id, mainTable)
		if !isMain {
			vpc, _ = strings.CutPrefix(id, privateTable)
		}
		return vpc == s.VPC && vpc != id
	})
}

func (m *routing) createRoute(r *request) (any, error) {
	to := Route{Table: r.text("RouteTableId"), To: r.prefix("DestinationCidrBlock"), Instance: r.text("InstanceId")}
	err := m.changeRoute(r, sim.KindRoute, to.Table, func(living map[string]sim.Instance) error {
		i, lives := living[to.Instance]
		same := func(other Route) bool { return other.Table == to.Table && other.To == to.To }
		n := 0
		for _, other := range m.routes {
			if other.Table == to.Table {
				n++
			}
		}
		switch {
		case !lives:
			return notFound([]string{to.Instance})
		case i.State != cloud.Running:
			return bad("IncorrectInstanceState", "The instance %s is not in the state running", to.Instance)
		case slices.ContainsFunc(m.routes, same), slices.ContainsFunc(m.given, same):
			return bad("RouteAlreadyExists", "The route identified by %s already exists.", to.To)
		case n >= mostRoutes:
			return bad("RouteLimitExceeded", "The maximum number of routes has been reached.")
		}
		m.routes = append(m.routes, to)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return doneXML{requestID, true}, nil
}

func (m *routing) deleteRoute(r *request) (any, error) {
	table, to := r.text("RouteTableId"), r.prefix("DestinationCidrBlock")
	err := m.changeRoute(r, sim.KindUnroute, table, func(map[string]sim.Instance) error {
		n := slices.IndexFunc(m.routes, func(other Route) bool { return other.Table == table && other.To == to })
		if n < 0 {
			return bad("InvalidRoute.NotFound", "no route with destination-cidr-block %s in route table %s", to, table)
		}
		m.routes = slices.Delete(m.routes, n, n+1)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return doneXML{requestID, true}, nil
}

// changeRoute is a call that changes a table. The change has mu, and knows which instances there are.
func (m *routing) changeRoute(r *request, kind sim.Kind, table string, change func(living map[string]sim.Instance) error) error {
	if err := r.done(); err != nil {
		return err
	}
	if !m.table(table) {
		return m.model.Arrive(r.ctx, kind, bad("InvalidRouteTableID.NotFound", "The routeTable ID '%s' does not exist", table))
	}
	if err := m.may(r, "ec2:"+r.action, m.arn("route-table/"+table), nil); err != nil {
		return err
	}
	return m.take(r, kind, change)
}

// modifyInstanceAttribute changes whether an instance may forward, and nothing else.
func (m *routing) modifyInstanceAttribute(r *request) (any, error) {
	id, check := r.text("InstanceId"), r.text("SourceDestCheck.Value")
	if check != "true" && check != "false" {
		r.bad("InvalidParameterValue", "Value (%s) for parameter sourceDestCheck is invalid: the model changes no other attribute", check)
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if unknown := m.model.Unknown(id); len(unknown) > 0 {
		return nil, m.model.Arrive(r.ctx, sim.KindRoute, notFound(unknown), id)
	}
	if err := m.may(r, "ec2:"+r.action, m.arn("instance/"+id), tagged("ResourceTag", m.model.TagsOf(id))); err != nil {
		return nil, err
	}
	err := m.sim.Take(r.ctx, sim.Call{Kind: sim.KindRoute, IDs: []string{id}}, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.forwards[id] = check == "false"
		return nil
	})
	if err != nil {
		return nil, err
	}
	return doneXML{requestID, true}, nil
}
