package ec2

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// reservationXML is the answer to RunInstances, and an element of that to
// DescribeInstances.
type reservationXML struct {
	RequestID     string        `xml:"requestId,omitempty"`
	ReservationID string        `xml:"reservationId"`
	OwnerID       string        `xml:"ownerId"`
	Instances     []instanceXML `xml:"instancesSet>item"`
}

type stateXML struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

type instanceXML struct {
	ID          string         `xml:"instanceId"`
	ImageID     string         `xml:"imageId"`
	State       stateXML       `xml:"instanceState"`
	LaunchIndex int            `xml:"amiLaunchIndex"`
	Type        string         `xml:"instanceType"`
	LaunchTime  string         `xml:"launchTime"`
	Zone        string         `xml:"placement>availabilityZone"`
	Tenancy     string         `xml:"placement>tenancy"`
	Host        string         `xml:"placement>hostId,omitempty"`
	Subnet      string         `xml:"subnetId,omitempty"`
	VPC         string         `xml:"vpcId,omitempty"`
	PrivateIP   string         `xml:"privateIpAddress,omitempty"`
	PublicIP    string         `xml:"ipAddress,omitempty"`
	Groups      []groupXML     `xml:"groupSet>item"`
	RootDevice  string         `xml:"rootDeviceName"`
	Token       string         `xml:"clientToken"`
	Tags        []tagXML       `xml:"tagSet>item"`
	Interfaces  []interfaceXML `xml:"networkInterfaceSet>item"`
	Volumes     []mappingXML   `xml:"blockDeviceMapping>item"`
	Lifecycle   string         `xml:"instanceLifecycle,omitempty"`
	SpotRequest string         `xml:"spotInstanceRequestId,omitempty"`
	Reserved    string         `xml:"capacityReservationId,omitempty"`
	Profile     *profileXML    `xml:"iamInstanceProfile"`
	Reason      *StateReason   `xml:"stateReason"`
	CPU         cpuXML         `xml:"cpuOptions"`
}

// cpuXML are the vCPUs of an instance (EC2 API reference, "CpuOptions").
type cpuXML struct {
	Cores   int64 `xml:"coreCount"`
	Threads int64 `xml:"threadsPerCore"`
}

// profileXML is an instance profile.
type profileXML struct {
	ARN string `xml:"arn"`
}

// StateReason is why an instance has ended.
type StateReason struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

type groupXML struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

type tagXML struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

type interfaceXML struct {
	ID         string        `xml:"networkInterfaceId"`
	Subnet     string        `xml:"subnetId"`
	VPC        string        `xml:"vpcId"`
	PrivateIP  string        `xml:"privateIpAddress,omitempty"`
	Attachment attachmentXML `xml:"attachment"`
	Addresses  []addressXML  `xml:"privateIpAddressesSet>item"`
	Prefixes   []prefixXML   `xml:"ipv4PrefixSet>item"`
}

type attachmentXML struct {
	DeviceIndex int    `xml:"deviceIndex"`
	Status      string `xml:"status"`
	Delete      bool   `xml:"deleteOnTermination"`
}

type addressXML struct {
	IP      string `xml:"privateIpAddress"`
	Primary bool   `xml:"primary"`
}

type prefixXML struct {
	Prefix string `xml:"ipv4Prefix"`
}

type deviceXML struct {
	Name, Key         string
	GiB               int
	Encrypted, Delete bool
	Snapshot          string `xml:"-"` // that a call names; the image's is not shown
}

var states = map[cloud.State]stateXML{
	cloud.Pending:     {0, "pending"},
	cloud.Running:     {16, "running"},
	cloud.Terminating: {32, "shutting-down"},
	cloud.Gone:        {48, "terminated"},
	cloud.Stopping:    {64, "stopping"},
	cloud.Stopped:     {80, "stopped"},
}

func tagSet(tags map[string]string) (all []tagXML) {
	for _, k := range sortedKeys(tags) {
		all = append(all, tagXML{k, tags[k]})
	}
	return all
}

// launchOf is that of an instance.
func (m *Model) launchOf(i sim.Instance) *launch {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.launches[i.Token]; l != nil {
		return l
	}
	return &launch{}
}

// instance is one in EC2's words. One that has ended has no place in a network any more.
func (m *Model) instance(i sim.Instance) instanceXML {
	l := m.launchOf(i)
	index, _ := strconv.Atoi(i.Place) // of sim's own making
	out := instanceXML{
		ID:          i.ID,
		ImageID:     l.image.ID,
		State:       states[i.State],
		LaunchIndex: index,
		Type:        i.InstanceType,
		LaunchTime:  wireTime(i.Launched),
		Zone:        i.Zone,
		Tenancy:     cmp.Or(l.tenancy, "default"),
		Host:        l.host,
		RootDevice:  l.image.RootDevice,
		Token:       l.token,
		Tags:        tagSet(i.Tags),
		Reserved:    l.reservation,
		CPU:         cpuXML{max(1, m.vCPUs(i.InstanceType)/2), min(2, m.vCPUs(i.InstanceType))},
	}
	if l.profile != "" {
		arn := l.profile
		if !strings.HasPrefix(arn, "arn:") {
			arn = m.arnOf("iam", "", m.cfg.Account, "instance-profile/"+arn)
		}
		out.Profile = &profileXML{arn}
	}
	if i.Spot {
		out.Lifecycle, out.SpotRequest = "spot", spotRequest(i.ID)
	}
	if i.State == cloud.Gone {
		out.Reason = m.reasonOf(i)
		return out
	}
	out.Subnet, out.VPC = i.Subnet, l.subnet.VPC
	for _, g := range l.groups {
		out.Groups = append(out.Groups, groupXML{g.ID, g.Name})
	}
	n := interfaceXML{
		ID:         interfaceID(i.ID),
		Subnet:     i.Subnet,
		VPC:        l.subnet.VPC,
		Attachment: attachmentXML{Status: "attached", Delete: true},
	}
	if i.ManagementIP.IsValid() {
		out.PrivateIP = i.ManagementIP.String()
		n.PrivateIP, n.Addresses = out.PrivateIP, []addressXML{{out.PrivateIP, true}}
		if l.secondary {
			n.Addresses = append(n.Addresses, addressXML{IP: m.prefixOf(i.PodIP).Addr().String()})
		}
		if l.prefix {
			n.Prefixes = []prefixXML{{m.prefixOf(i.PodIP).String()}}
		}
		if l.public {
			out.PublicIP = publicOf(i.ManagementIP).String()
		}
	}
	out.Interfaces, out.Volumes = []interfaceXML{n}, m.mappings(i, l)
	return out
}

// Fail ends instances by itself for a reason, as EC2 does with those that it cannot start
// after all.
func (m *Model) Fail(why StateReason, ids ...string) error {
	m.mu.Lock()
	for _, id := range ids {
		m.reasons[id] = why
	}
	m.mu.Unlock()
	return m.sim.Vanish(ids...)
}

// reasonOf is why one has ended.
func (m *Model) reasonOf(i sim.Instance) *StateReason {
	m.mu.Lock()
	defer m.mu.Unlock()
	if why, ok := m.reasons[i.ID]; ok {
		return &why
	}
	code := map[sim.Cause]string{
		sim.Interrupted: "Server.SpotInstanceTermination",
		sim.Vanished:    "Server.InternalError",
	}[i.Cause]
	if code == "" {
		code = "Client.UserInitiatedShutdown"
	}
	return &StateReason{code, code + ": of the model"}
}

func interfaceID(instance string) string { return "eni-" + strings.TrimPrefix(instance, "i-") }
func spotRequest(instance string) string { return "sir-" + strings.TrimPrefix(instance, "i-")[:8] }

// prefixOf is the /28 of a machine: the sixteenfold of its place among the addresses of
// pods, in the network of Config.Pods.
func (m *Model) prefixOf(pod netip.Addr) netip.Prefix {
	base, own, first := m.cfg.Sim.PodCIDR.Masked().Addr().As4(), pod.As4(), m.cfg.Pods.Masked().Addr().As4()
	number := func(b [4]byte) uint32 { return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]) }
	n := number(first) + (number(own)-number(base))*16
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), 28)
}

// publicOf is the public address of a machine, in 198.0.0.0/8.
func publicOf(private netip.Addr) netip.Addr {
	b := private.As4()
	b[0] = 198
	return netip.AddrFrom4(b)
}

type describeInstancesXML struct {
	RequestID    string           `xml:"requestId"`
	Reservations []reservationXML `xml:"reservationSet>item"`
	NextToken    string           `xml:"nextToken,omitempty"`
}

// shownFor is how long EC2 shows an instance that has ended: about an hour.
const shownFor = time.Hour

func (m *Model) describeInstances(r *request) (any, error) {
	ids := r.texts("InstanceId")
	wanted := r.filters("tag:", "tag-key", "instance-id", "instance-state-name", "client-token", "availability-zone", "subnet-id",
		"vpc-id", "instance-type", "image-id", "capacity-reservation-id")
	r.unpaged(ids, "instancesSet")
	r.number("MaxResults")
	r.text("NextToken")
	if err := r.done(); err != nil {
		return nil, err
	}
	if err := m.may(r, "ec2:DescribeInstances", "*", nil); err != nil {
		return nil, err
	}
	// A description of some instances has a kind of its own, for faults and for bounds.
	kind := sim.KindList
	if len(ids) > 0 || wanted["instance-id"] != nil {
		kind = sim.KindDescribe
	}
	shown, err := m.sim.Shown(r.ctx, sim.Call{Kind: kind, IDs: ids})
	if err != nil {
		return nil, err
	}
	if err := m.disrupted(ids, shown); err != nil {
		return nil, err
	}
	if unknown := m.Unknown(ids...); len(unknown) > 0 {
		return nil, notFound(unknown)
	}
	now := m.Now()
	shown = slices.DeleteFunc(shown, func(i sim.Instance) bool {
		if len(ids) > 0 && !slices.Contains(ids, i.ID) || !i.Ended.IsZero() && now.Sub(i.Ended) > shownFor {
			return true
		}
		x := m.instance(i)
		shown := wanted.match(func(name string) []string {
			switch name {
			case "instance-id":
				return []string{x.ID}
			case "instance-state-name":
				return []string{x.State.Name}
			case "client-token":
				return []string{x.Token}
			case "availability-zone":
				return []string{x.Zone}
			case "subnet-id":
				return []string{x.Subnet}
			case "vpc-id":
				return []string{x.VPC}
			case "instance-type":
				return []string{x.Type}
			case "image-id":
				return []string{x.ImageID}
			case "capacity-reservation-id":
				return []string{x.Reserved}
			}
			return tagValues(i.Tags, name)
		})
		return !shown || len(ids) == 0 && m.Denies(i.ID)
	})
	some, next := page(r.form, m.cfg.PageSize, shown, func(i sim.Instance) string { return i.ID })
	answer := describeInstancesXML{RequestID: requestID, NextToken: next}
	byToken := map[string]int{}
	for _, i := range some {
		n, ok := byToken[i.Token]
		if !ok {
			n = len(answer.Reservations)
			byToken[i.Token] = n
			answer.Reservations = append(answer.Reservations, reservationXML{ReservationID: reservation(i.Token), OwnerID: m.cfg.Account})
		}
		answer.Reservations[n].Instances = append(answer.Reservations[n].Instances, m.instance(i))
	}
	return answer, nil
}

// blindZones are those with a service disruption, and whether their network interfaces are hidden as well.
func (m *Model) blindZones() (zones []string, hidden bool) {
	// Change is how the knobs are read, too: it never fails where nothing changes.
	_ = m.sim.Change(func(k *sim.Knobs) { zones, hidden = slices.Clone(k.BlindZones), k.HidesBlindParts })
	return zones, hidden
}

// disrupted fails a call while a zone has a service disruption: one that names no IDs, whatever its filters, and one that
// names an instance of that zone. Source: EC2 API reference, "DescribeInstances". It does not say with which code.
func (m *Model) disrupted(ids []string, shown []sim.Instance) error {
	zones, _ := m.blindZones()
	for _, zone := range zones {
		if len(ids) == 0 || slices.ContainsFunc(shown, func(i sim.Instance) bool { return i.Zone == zone && slices.Contains(ids, i.ID) }) {
			return &apiError{http.StatusServiceUnavailable, "Unavailable", "The zone " + zone + " is experiencing a service disruption"}
		}
	}
	return nil
}

func notFound(ids []string) error {
	return bad("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist", strings.Join(ids, ", "))
}

type stateChangeXML struct {
	RequestID string      `xml:"requestId"`
	Instances []changeXML `xml:"instancesSet>item"`
}

type changeXML struct {
	ID       string   `xml:"instanceId"`
	Current  stateXML `xml:"currentState"`
	Previous stateXML `xml:"previousState"`
}

// change is a call that moves instances into another state. EC2 does it for all or none.
func (m *Model) change(r *request, kind sim.Kind, to cloud.State, do func(ids []string) cloud.Results) (any, error) {
	ids := r.texts("InstanceId")
	if len(ids) == 0 {
		r.bad("MissingParameter", "The request must contain the parameter InstanceId")
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if unknown := m.Unknown(ids...); len(unknown) > 0 {
		return nil, m.Arrive(r.ctx, kind, notFound(unknown), ids...)
	}
	for _, id := range ids {
		if err := m.may(r, "ec2:"+r.action, m.arn("instance/"+id), tagged("ResourceTag", m.TagsOf(id))); err != nil {
			return nil, err
		}
	}
	if err := do(ids).Err(); err != nil {
		return nil, err
	}
	answer := stateChangeXML{RequestID: requestID}
	for _, id := range ids {
		answer.Instances = append(answer.Instances, changeXML{ID: id, Current: states[to], Previous: states[cloud.Running]})
	}
	return answer, nil
}

func (m *Model) terminateInstances(r *request) (any, error) {
	return m.change(r, sim.KindTerminate, cloud.Terminating, func(ids []string) cloud.Results { return m.sim.Terminate(r.ctx, ids...) })
}

func (m *Model) stopInstances(r *request) (any, error) {
	return m.change(r, sim.KindStop, cloud.Stopping, func(ids []string) cloud.Results { return m.sim.Stop(r.ctx, ids...) })
}

func (m *Model) startInstances(r *request) (any, error) {
	return m.change(r, sim.KindStart, cloud.Pending, func(ids []string) cloud.Results { return m.sim.Start(r.ctx, ids...) })
}

type doneXML struct {
	RequestID string `xml:"requestId"`
	Return    bool   `xml:"return"`
}

type consoleXML struct {
	RequestID string `xml:"requestId"`
	ID        string `xml:"instanceId"`
	Timestamp string `xml:"timestamp"`
	Output    string `xml:"output"`
}

func (m *Model) getConsoleOutput(r *request) (any, error) {
	id := r.text("InstanceId")
	r.flag("Latest")
	if err := r.done(); err != nil {
		return nil, err
	}
	if unknown := m.Unknown(id); len(unknown) > 0 {
		return nil, m.Arrive(r.ctx, sim.KindDescribe, notFound(unknown), id)
	}
	if err := m.may(r, "ec2:GetConsoleOutput", m.arn("instance/"+id), tagged("ResourceTag", m.TagsOf(id))); err != nil {
		return nil, err
	}
	if err := m.Arrive(r.ctx, sim.KindDescribe, nil, id); err != nil {
		return nil, err
	}
	text := fmt.Appendf(nil, "[    0.000000] %s is simulated\n", id)
	if m.cfg.Console != nil {
		var err error
		if text, err = m.cfg.Console(id); err != nil {
			return nil, err
		}
	}
	return consoleXML{requestID, id, wireTime(m.Now()), base64.StdEncoding.EncodeToString(text)}, nil
}
