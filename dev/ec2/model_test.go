package ec2

import (
	"encoding/xml"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws/wire"
	"github.com/elotl/kip/internal/cloud/sim"
)

// client asks a model as any program would: it knows no SDK.
type client struct {
	*testing.T
	model *Model
	url   string
}

func aCatalogue() []catalog.InstanceType {
	return []catalog.InstanceType{{
		Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 << 30, Arch: "amd64",
		Offerings: []catalog.PurchaseOption{
			{Zone: "z1", Subnet: "subnet-1"}, {Zone: "z2", Subnet: "subnet-2"}, {Zone: "z1", Subnet: "subnet-1", Spot: true},
		},
	}}
}

func newClient(t *testing.T, knobs sim.Knobs) *client {
	t.Helper()
	return newClientOf(t, Config{
		Sim: sim.Config{
			Catalogue: aCatalogue(),
			Knobs:     knobs,
		},
		Subnets: []Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "z1"}, {ID: "subnet-2", VPC: "vpc-1", Zone: "z2"}},
		Images:  []Image{{ID: "ami-1", RootDevice: "/dev/xvda", GiB: 8}},
	})
}

func newClientOf(t *testing.T, cfg Config) *client {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(wire.Checked(t, m))
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return &client{t, m, server.URL}
}

// encode is the body of a call.
func encode(action string, parameters ...string) string {
	form := url.Values{"Action": {action}, "Version": {"2016-11-15"}}
	for _, p := range parameters {
		name, value, _ := strings.Cut(p, "=")
		form.Set(name, value)
	}
	return form.Encode()
}

// ask makes a call, whose parameters are "name=value"; it returns the code of a failure,
// or "", and what was answered.
func (c *client) ask(action string, parameters ...string) (code string, body string) {
	c.Helper()
	req, err := http.NewRequestWithContext(c.Context(), http.MethodPost, c.url, strings.NewReader(encode(action, parameters...)))
	if err != nil {
		c.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "lost", err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.Fatal(err)
	}
	var f failure
	if resp.StatusCode != http.StatusOK {
		if err := xml.Unmarshal(text, &f); err != nil || f.Code == "" {
			c.Fatalf("%s: %s: %v", resp.Status, text, err)
		}
	}
	return f.Code, string(text)
}

// run are the parameters of a launch, and some more of it or instead.
func run(more ...string) []string {
	all := map[string]string{}
	for _, p := range append([]string{
		"MinCount=1", "MaxCount=1", "ImageId=ami-1", "InstanceType=c5.large", "NetworkInterface.1.DeviceIndex=0",
		"NetworkInterface.1.SubnetId=subnet-1",
	}, more...) {
		name, value, _ := strings.Cut(p, "=")
		all[name] = value
	}
	var list []string
	for name, value := range all {
		list = append(list, name+"="+value)
	}
	return list
}

func (c *client) running() int { return len(c.model.Machines().Truth()) }

func TestWhatTheReferenceForbidsIsRefused(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	const nic, reserved = "NetworkInterface.1.", "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
	const block, onHost = "InstanceMarketOptions.MarketType=capacity-block", "Placement.Tenancy=host"
	soon := time.Now().Add(29 * time.Minute)
	c.model.Change(func(cfg *Config) {
		cfg.Reservations = []Reservation{
			{ID: "cr-1", Type: "c5.large", Zone: "z1", Total: 1}, {ID: "cr-full", Type: "c5.large", Zone: "z1"},
			{ID: "cr-two", Type: "c5.large", Zone: "z1", Total: 2}, {ID: "cr-far", Type: "c5.large", Zone: "z2", Total: 2},
			{ID: "cr-over", Type: "c5.large", Zone: "z1", Total: 2, State: "expired"},
			{ID: "cr-block", Type: "c5.large", Zone: "z1", Total: 2, Block: true, End: soon.Add(time.Hour)},
			{ID: "cr-ends", Type: "c5.large", Zone: "z1", Total: 2, Block: true, End: soon},
		}
		cfg.Hosts = []Host{
			{ID: "h-1", Family: "c5", Zone: "z1", VCPUs: 2}, {ID: "h-ill", Family: "c5", Zone: "z1", VCPUs: 2, State: "under-assessment"},
			{ID: "h-full", Family: "c5", Zone: "z1", VCPUs: 1},
			{ID: "h-m5", Family: "m5", Zone: "z1", VCPUs: 96}, {ID: "h-far", Type: "c5.large", Zone: "z2", VCPUs: 72},
		}
	})
	for what, tc := range map[string]struct {
		more []string
		want string
	}{
		"nothing":                                  {},
		"a parameter that nobody knows":            {[]string{"Surprise=1"}, "UnknownParameter"},
		"one below another that is known":          {[]string{nic + "Surprise=1"}, "UnknownParameter"},
		"secondary addresses of several instances": {[]string{"MaxCount=2", nic + "SecondaryPrivateIpAddressCount=1"}, ""},
		"a secondary address of one instance":      {[]string{nic + "SecondaryPrivateIpAddressCount=1"}, ""},
		"a prefix for each of several":             {[]string{"MaxCount=2", nic + "Ipv4PrefixCount=1"}, ""},
		"both for one": {[]string{nic + "Ipv4PrefixCount=1", nic + "SecondaryPrivateIpAddressCount=1"},
			"InvalidParameterCombination"},
		"a public address beside a second interface": {
			[]string{"NetworkInterface.2.DeviceIndex=1", "NetworkInterface.2.SubnetId=subnet-1", "NetworkInterface.2.AssociatePublicIpAddress=true"},
			"InvalidParameterCombination",
		},
		"a subnet twice":                   {[]string{"SubnetId=subnet-1"}, "InvalidParameterCombination"},
		"a subnet that is not there":       {[]string{nic + "SubnetId=subnet-3"}, "InvalidSubnetID.NotFound"},
		"an image that is not there":       {[]string{"ImageId=ami-2"}, "InvalidAMIID.NotFound"},
		"a group that is not there":        {[]string{nic + "SecurityGroupId.1=sg-1"}, "InvalidGroup.NotFound"},
		"a type that is not there":         {[]string{"InstanceType=c5.none"}, "InvalidParameterValue"},
		"no instance":                      {[]string{"MinCount=0", "MaxCount=0"}, "InvalidParameterValue"},
		"more at least than at most":       {[]string{"MinCount=2"}, "InvalidParameterValue"},
		"no number":                        {[]string{"MaxCount=many"}, "InvalidParameterValue"},
		"user data that is not base64":     {[]string{"UserData=?"}, "InvalidParameterValue"},
		"too much user data":               {[]string{"UserData=" + strings.Repeat("AAAA", 5462)}, "InvalidParameterValue"},
		"a token that is too long":         {[]string{"ClientToken=" + strings.Repeat("x", 65)}, "InvalidParameterValue"},
		"credits of a type without":        {[]string{"CreditSpecification.CpuCredits=standard"}, "InvalidParameterCombination"},
		"a market of nobody's":             {[]string{"InstanceMarketOptions.MarketType=barter"}, "InvalidParameterValue"},
		"on hosts of its own":              {[]string{"Placement.Tenancy=dedicated"}, ""},
		"on hosts of nobody's":             {[]string{"Placement.Tenancy=borrowed"}, "InvalidParameterValue"},
		"on hosts that have no such types": {[]string{"Placement.Tenancy=dedicated", "InstanceType=t3a.small"}, "Unsupported"},
		"a host":                           {[]string{onHost, "Placement.HostId=h-1"}, ""},
		"a host that is full":              {[]string{onHost, "Placement.HostId=h-full"}, "InsufficientCapacityOnHost"},
		"a host that is ill":               {[]string{onHost, "Placement.HostId=h-ill"}, "InvalidHostState"},
		"a host that is not there":         {[]string{onHost, "Placement.HostId=h-2"}, "InvalidHostID.NotFound"},
		"a host of another family":         {[]string{onHost, "Placement.HostId=h-m5"}, "InvalidParameterValue"},
		"a host in another zone":           {[]string{onHost, "Placement.HostId=h-far"}, "InvalidParameterValue"},
		"a host by no tenancy":             {[]string{"Placement.HostId=h-m5"}, "InvalidParameterCombination"},
		"a host for spot": {[]string{onHost, "Placement.HostId=h-m5", "InstanceMarketOptions.MarketType=spot"},
			"InvalidParameterCombination"},
		"any host":                        {[]string{onHost}, "InvalidParameterCombination"},
		"a reservation that is not there": {[]string{reserved + "=cr-2"}, "InvalidCapacityReservationId.NotFound"},
		"a reservation":                   {[]string{reserved + "=cr-1"}, ""},
		"one that is full by now":         {[]string{reserved + "=cr-full"}, "ReservationCapacityExceeded"},
		"one that has room for fewer":     {[]string{reserved + "=cr-two", "MaxCount=3"}, "ReservationCapacityExceeded"},
		"one that has ended":              {[]string{reserved + "=cr-over"}, "ReservationCapacityExceeded"},
		"one in another zone":             {[]string{reserved + "=cr-far"}, "InvalidParameterValue"},
		"one of another tenancy":          {[]string{reserved + "=cr-two", "Placement.Tenancy=dedicated"}, "InvalidParameterValue"},
		"one for spot": {[]string{reserved + "=cr-two", "InstanceMarketOptions.MarketType=spot"},
			"InvalidParameterCombination"},
		"a block":                           {[]string{reserved + "=cr-block", block}, ""},
		"a block in no words":               {[]string{reserved + "=cr-block"}, "InvalidParameterCombination"},
		"a block that is none":              {[]string{reserved + "=cr-two", block}, "InvalidParameterCombination"},
		"a block of nobody's":               {[]string{block}, "InvalidParameterCombination"},
		"a block whose instances are ended": {[]string{reserved + "=cr-ends", block}, "ReservationCapacityExceeded"},
		"a tag of AWS's own": {[]string{"TagSpecification.1.ResourceType=instance", "TagSpecification.1.Tag.1.Key=aws:x"},
			"InvalidParameterValue"},
		"tags of a kind of nobody's": {[]string{"TagSpecification.1.ResourceType=planet"}, "InvalidParameterValue"},
		"a disk smaller than its image": {
			[]string{"BlockDeviceMapping.1.DeviceName=/dev/xvda", "BlockDeviceMapping.1.Ebs.VolumeSize=7"},
			"InvalidBlockDeviceMapping",
		},
		"a disk that is filled at a rate": {
			[]string{"BlockDeviceMapping.1.DeviceName=/dev/xvda", "BlockDeviceMapping.1.Ebs.VolumeSize=8",
				"BlockDeviceMapping.1.Ebs.VolumeInitializationRate=300"}, "",
		},
		"one that is filled too slowly": {
			[]string{"BlockDeviceMapping.1.Ebs.VolumeSize=8", "BlockDeviceMapping.1.Ebs.VolumeInitializationRate=99"}, "InvalidParameterValue",
		},
		"metadata in a way of nobody's": {[]string{"MetadataOptions.HttpTokens=sometimes"}, "InvalidParameterValue"},
	} {
		before := c.running()
		code, body := c.ask("RunInstances", run(tc.more...)...)
		if launched := c.running() > before; code != tc.want || launched != (tc.want == "") {
			t.Errorf("%s: %q, launched: %v; want %q: %s", what, code, launched, tc.want, body)
		}
	}
	if code, _ := c.ask("MakeCoffee"); code != "InvalidAction" {
		t.Errorf("an action of nobody's: %q", code)
	}
}

func TestATokenHoldsInItsZone(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	launch := func(more ...string) string {
		code, _ := c.ask("RunInstances", run(append(more, "ClientToken=t")...)...)
		return code
	}
	for _, step := range []struct {
		what    string
		code    string
		running int
	}{
		{"the first call", launch(), 1},
		{"the same", launch(), 1},
		{"another number", launch("MaxCount=2"), 1},
		{"another image, of nobody's", launch("ImageId=ami-2"), 1},
		{"another zone", launch("NetworkInterface.1.SubnetId=subnet-2"), 2},
	} {
		want := map[string]string{"another number": "IdempotentParameterMismatch",
			"another image, of nobody's": "IdempotentParameterMismatch"}[step.what]
		if step.code != want {
			t.Errorf("%s: %q, want %q", step.what, step.code, want)
		}
	}
	if c.running() != 2 {
		t.Errorf("%d run, want one in each zone", c.running())
	}
	for _, i := range c.model.Machines().Truth()[:1] {
		if code, _ := c.ask("TerminateInstances", "InstanceId.1="+i.ID); code != "" {
			t.Error(code)
		}
	}
	if code := launch(); code != "IdempotentInstanceTerminated" {
		t.Errorf("after the end of its instance: %q", code)
	}
}

func TestWithoutRoomForTheLeastNothingIsLaunched(t *testing.T) {
	c := newClient(t, sim.Knobs{Capacity: []sim.Capacity{{Instances: 2}}})
	if code, _ := c.ask("RunInstances", run("MinCount=3", "MaxCount=3")...); code != "InsufficientInstanceCapacity" || c.running() != 0 {
		t.Errorf("all or none: %q, %d run", code, c.running())
	}
	if code, body := c.ask("RunInstances", run("MaxCount=3")...); code != "" || strings.Count(body, "<amiLaunchIndex>") != 2 ||
		!strings.Contains(body, "<amiLaunchIndex>0<") || !strings.Contains(body, "<amiLaunchIndex>1<") {
		t.Errorf("what there is: %q: %s", code, body)
	}
}

func TestErrorsOfTheMachinesHaveEC2sCodes(t *testing.T) {
	tight := map[sim.Kind]sim.RateLimit{sim.KindLaunch: {Resources: sim.Bucket{Capacity: 0.5}}}
	for want, tc := range map[string]struct {
		knobs sim.Knobs
		fault sim.Fault
		more  []string
	}{
		"RequestLimitExceeded": {knobs: sim.Knobs{RateLimits: tight}},
		"VcpuLimitExceeded":    {knobs: sim.Knobs{Quotas: []sim.Quota{{Name: "q", VCPUs: 1}}}},
		"MaxSpotInstanceCountExceeded": {
			knobs: sim.Knobs{Quotas: []sim.Quota{{Name: "q", VCPUs: 1, Spot: new(true)}}},
			more:  []string{"InstanceMarketOptions.MarketType=spot"},
		},
		"InstanceLimitExceeded":             {knobs: sim.Knobs{Quotas: []sim.Quota{{Name: "q", Instances: 1}}}},
		"InsufficientFreeAddressesInSubnet": {knobs: sim.Knobs{SubnetAddresses: map[string]int{"subnet-1": 0}}},
		"InsufficientInstanceCapacity":      {knobs: sim.Knobs{Capacity: []sim.Capacity{{}}}},
		"AuthFailure":                       {knobs: sim.Knobs{Unauthorised: true}},
		"InternalError":                     {fault: sim.Fault{Before: sim.ErrInternal}},
		"lost":                              {fault: sim.Fault{After: sim.ErrLost}},
	} {
		c := newClient(t, tc.knobs)
		c.model.Machines().FailNth(sim.KindLaunch, 1, tc.fault)
		code, body := c.ask("RunInstances", run(append(tc.more, "MinCount=2", "MaxCount=2")...)...)
		if code != want || (c.running() == 2) != (want == "lost") {
			t.Errorf("%q: %q, %d run: %s", want, code, c.running(), body)
		}
	}
}

// A call that names an instance which EC2 does not know yet fails, and does nothing.
func TestNotFoundMayBeALie(t *testing.T) {
	c := newClient(t, sim.Knobs{UnknownFor: sim.Distribution{Median: time.Hour}})
	if code, _ := c.ask("RunInstances", run()...); code != "" {
		t.Fatal(code)
	}
	id := c.model.Machines().Truth()[0].ID
	for _, action := range []string{"TerminateInstances", "StopInstances", "StartInstances", "DescribeInstances", "GetConsoleOutput"} {
		name := "InstanceId.1="
		if action == "GetConsoleOutput" {
			name = "InstanceId="
		}
		if code, _ := c.ask(action, name+id); code != "InvalidInstanceID.NotFound" || c.running() != 1 {
			t.Errorf("%s: %q, %d run", action, code, c.running())
		}
	}
	if code, _ := c.ask("CreateTags", "ResourceId.1="+id, "Tag.1.Key=a"); code != "InvalidInstanceID.NotFound" {
		t.Errorf("CreateTags: %q", code)
	}
	if code, body := c.ask("DescribeInstances", "Filter.1.Name=instance-id", "Filter.1.Value.1="+id); code != "" ||
		!strings.Contains(body, id) {
		t.Errorf("by a filter: %q, %s", code, body)
	}
}

func TestListsComeInPages(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	if code, _ := c.ask("RunInstances", run("MaxCount=5", "MinCount=5")...); code != "" {
		t.Fatal(code)
	}
	seen, token := map[string]bool{}, ""
	for pages := 1; ; pages++ {
		_, body := c.ask("DescribeInstances", "MaxResults=2", "NextToken="+token)
		var page struct {
			IDs  []string `xml:"reservationSet>item>instancesSet>item>instanceId"`
			Next string   `xml:"nextToken"`
		}
		if err := xml.Unmarshal([]byte(body), &page); err != nil || len(page.IDs) > 2 {
			t.Fatalf("%v: %s", err, body)
		}
		for _, id := range page.IDs {
			if seen[id] {
				t.Errorf("%s is shown twice", id)
			}
			seen[id] = true
		}
		if token = page.Next; token == "" {
			if pages != 3 || len(seen) != 5 {
				t.Errorf("%d instances in %d pages", len(seen), pages)
			}
			return
		}
	}
}

func TestFiltersMustBeKnown(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	if code, _ := c.ask("DescribeInstances", "Filter.1.Name=colour", "Filter.1.Value.1=red"); code != "InvalidParameterValue" {
		t.Errorf("%q", code)
	}
	many := []string{"Filter.1.Name=instance-id"}
	for n := range maxFilterValues + 1 {
		many = append(many, "Filter.1.Value."+cloud.PlaceOf(n+1)+"=i")
	}
	if code, _ := c.ask("DescribeInstances", many...); code != "FilterLimitExceeded" {
		t.Errorf("%q", code)
	}
}

func TestPoliciesAreEvaluatedAsIAMDoes(t *testing.T) {
	policy, err := ParsePolicy([]byte(`{"Version": "2012-10-17", "Statement": [
		{"Sid": "A", "Effect": "Allow", "Action": ["ec2:Run*", "ec2:Stop?nstances"], "Resource": "arn:*:ec2:*:*:instance/*",
		 "Condition": {"StringLike": {"aws:RequestTag/a": "x*"}, "Null": {"aws:RequestTag/b": "true"}}},
		{"Sid": "B", "Effect": "Allow", "Action": "ec2:CreateTags", "Resource": "*",
		 "Condition": {"ForAllValues:StringEquals": {"aws:TagKeys": ["a", "b"]}, "StringEquals": {"k": ["v", "w"]}}},
		{"Sid": "C", "Effect": "Deny", "Action": "*", "Resource": "*/forbidden"},
		{"Sid": "D", "Effect": "Allow", "Action": "ec2:Never", "Resource": "*"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	const instance = "arn:aws:ec2:r:1:instance/"
	tagged := map[string][]string{"aws:RequestTag/a": {"xyz"}}
	for _, tc := range []struct {
		action, resource string
		about            map[string][]string
		want             bool
	}{
		{"ec2:RunInstances", instance + "*", tagged, true},
		{"ec2:StopInstances", instance + "i", tagged, true},
		{"ec2:StartInstances", instance + "i", tagged, false},
		{"ec2:RunInstances", instance + "*", nil, false},
		{"ec2:RunInstances", instance + "*", map[string][]string{"aws:RequestTag/a": {"y"}}, false},
		{"ec2:RunInstances", instance + "*", map[string][]string{"aws:RequestTag/a": {"x"}, "aws:RequestTag/b": {"1"}}, false},
		{"ec2:RunInstances", "arn:aws:ec2:r:1:volume/*", tagged, false},
		{"ec2:RunInstances", instance + "forbidden", tagged, false},
		{"ec2:CreateTags", "x", map[string][]string{"k": {"w"}, "aws:TagKeys": {"a"}}, true},
		{"ec2:CreateTags", "x", map[string][]string{"k": {"w"}}, true},
		{"ec2:CreateTags", "x", map[string][]string{"k": {"w"}, "aws:TagKeys": {"a", "c"}}, false},
		{"ec2:CreateTags", "x", map[string][]string{"k": {"u"}, "aws:TagKeys": {"a"}}, false},
	} {
		if got := policy.allows(tc.action, tc.resource, maps.Clone(tc.about)); got != tc.want {
			t.Errorf("%s on %s with %v is allowed: %v", tc.action, tc.resource, tc.about, got)
		}
	}
	if unused := policy.Unused(); len(unused) != 2 || unused[0] != "C" || unused[1] != "D" {
		t.Errorf("unused are %v", unused)
	}
	for what, text := range map[string]string{
		"an operator":  `{"Statement": [{"Sid": "A", "Effect": "Allow", "Action": "a", "Resource": "*", "Condition": {"DateLessThan": {"a": "b"}}}]}`,
		"an effect":    `{"Statement": [{"Sid": "A", "Effect": "Perhaps", "Action": "a", "Resource": "*"}]}`,
		"a key":        `{"Statement": [{"Sid": "A", "Effect": "Allow", "Principal": "*", "Action": "a", "Resource": "*"}]}`,
		"two kinds":    `{"Statement": [{"Sid": "A", "Effect": "Allow", "Action": "a", "NotAction": "a", "Resource": "*"}]}`,
		"two others":   `{"Statement": [{"Sid": "A", "Effect": "Allow", "Action": "a", "Resource": "*", "NotResource": "*"}]}`,
		"no Sid":       `{"Statement": [{"Effect": "Allow", "Action": "a", "Resource": "*"}]}`,
		"no resources": `{"Statement": [{"Sid": "A", "Effect": "Allow", "Action": "a"}]}`,
		"no JSON":      `{`,
	} {
		if _, err := ParsePolicy([]byte(text)); err == nil {
			t.Errorf("a policy with %s that the model does not know is taken", what)
		}
	}
}

func TestAllButWhatIsNamedIsEvaluatedAsIAMDoes(t *testing.T) {
	read := func(statements string) *Policy {
		t.Helper()
		p, err := ParsePolicy([]byte(`{"Version": "2012-10-17", "Statement": [` + statements + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := read(`{"Sid": "A", "Effect": "Allow", "Action": "*", "Resource": "*"}`)
	limit := read(`{"Sid": "A", "Effect": "Allow", "Action": "ecr:*", "Resource": "*"},
		{"Sid": "B", "Effect": "Deny", "NotAction": ["ecr:Get*", "ecr:Put"], "Resource": "*"},
		{"Sid": "C", "Effect": "Deny", "NotAction": "ecr:GetToken", "NotResource": ["r/a", "r/b*"]}`)
	for _, tc := range []struct {
		action, resource string
		denied           bool
	}{
		{"ecr:GetImage", "r/a", false},
		{"ecr:GetImage", "r/bb", false},
		{"ecr:GetImage", "r/c", true},
		{"ecr:GetToken", "r/c", false},
		{"ecr:Put", "r/a", false},
		{"ecr:Delete", "r/a", true},
		{"ec2:GetImage", "r/a", true},
	} {
		for what, p := range map[string]*Policy{
			"alone": limit, "as a session's": all.within(limit), "as the role's": limit.within(all),
		} {
			denied, allowed := p.denies(tc.action, tc.resource, nil), p.allows(tc.action, tc.resource, nil)
			if denied != tc.denied || allowed == tc.denied {
				t.Errorf("%s on %s is denied by it %s: %v, and allowed: %v", tc.action, tc.resource, what, denied, allowed)
			}
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "a", true}, {"a", "b", false}, {"*", "", true}, {"*", "abc", true}, {"a*c", "abbc", true},
		{"a*c", "abbd", false}, {"a?c", "abc", true}, {"a?c", "ac", false}, {"*a*b*", "xxaybz", true}, {"*a*b*", "xxbya", false}, {"a**",
			"a", true},
	} {
		if got := like(tc.pattern, tc.text); got != tc.want {
			t.Errorf("%q is like %q: %v", tc.text, tc.pattern, got)
		}
	}
}

func TestATypeBootsByWhatTheImageDoes(t *testing.T) {
	cfg := Config{Subnets: []Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "z1"}}}
	for name, modes := range map[string][]string{"c5.large": nil, "t2.micro": {"bios"}, "m8i.large": {"uefi"}} {
		typ := aCatalogue()[0]
		typ.Name, typ.BootModes = name, modes
		cfg.Sim.Catalogue = append(cfg.Sim.Catalogue, typ)
	}
	for _, mode := range []string{"", "uefi", "uefi-preferred", "legacy-bios"} {
		cfg.Images = append(cfg.Images, Image{ID: "ami-" + mode, RootDevice: "/dev/xvda", GiB: 8, BootMode: mode})
	}
	c := newClientOf(t, cfg)
	refused := map[[2]string]bool{{"t2.micro", "uefi"}: true, {"m8i.large", "legacy-bios"}: true}
	for _, typ := range cfg.Sim.Catalogue {
		for _, i := range cfg.Images {
			code, text := c.ask("RunInstances", run("InstanceType="+typ.Name, "ImageId="+i.ID)...)
			if want := refused[[2]string{typ.Name, i.BootMode}]; want != (code == "InvalidParameterValue") || !want && code != "" {
				t.Errorf("%s of boot mode %q: %s", typ.Name, i.BootMode, text)
			}
		}
	}
}

// EC2 answers a dry run with one of two errors, and launches nothing. Source: EC2 API reference, "RunInstances", DryRun.
func TestADryRunOfALaunchTellsOfRightsAndLaunchesNothing(t *testing.T) {
	for want, effect := range map[string]string{"DryRunOperation": "Allow", "UnauthorizedOperation": "Deny"} {
		policy, err := ParsePolicy([]byte(`{"Statement": [{"Sid": "A", "Effect": "Allow", "Action": "*", "Resource": "*"},
			{"Sid": "L", "Effect": "` + effect + `", "Action": "ec2:RunInstances", "Resource": "*"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		c := newClientOf(t, Config{
			Sim:      sim.Config{Catalogue: aCatalogue()},
			Subnets:  []Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "z1"}, {ID: "subnet-2", VPC: "vpc-1", Zone: "z2"}},
			Images:   []Image{{ID: "ami-1", RootDevice: "/dev/xvda", GiB: 8}},
			Policies: map[string]*Policy{"AKIATESTS": policy},
		})
		status := map[string]int{"DryRunOperation": http.StatusPreconditionFailed, "UnauthorizedOperation": http.StatusForbidden}[want]
		body := strings.NewReader(encode("RunInstances", run("DryRun=true")...))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIATESTS/20260101/us-east-1/ec2/aws4_request")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != status || !strings.Contains(string(text), "<Code>"+want+"<") {
			t.Errorf("%s: %s %s, %v; want %d", effect, resp.Status, text, err, status)
		}
		if n := len(c.model.Machines().History()); n > 0 {
			t.Errorf("%s: %d instances were launched", effect, n)
		}
	}
}
