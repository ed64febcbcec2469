package aws

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	ec2api "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/ecr"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/pipe"
	"github.com/elotl/kip/internal/cloud/sim"
)

const owner = "kip-tests"

// request is for n machines of a batch, in the first subnet.
func request(token string, n int) cloud.LaunchRequest {
	return cloud.LaunchRequest{
		Token: token,
		LaunchSpec: cloud.LaunchSpec{
			InstanceType:  "c5.large",
			Zone:          "us-east-1a",
			Subnet:        "subnet-a1",
			RootDiskBytes: 5*gibi + 1,
			Options:       cloud.Options{Image: map[string]string{imageName: "kip-cell-*"}, SecurityGroups: []string{"another", "sg-1"}},
			Tags:          map[string]string{cloud.TagOwner: owner, cloud.TagBatch: token},
		},
		UserData: []byte("#cloud-config\n"),
		Machines: make([]cloud.Machine, n),
	}
}

// heard are the calls that came to an API, in order.
type heard struct {
	mu    sync.Mutex
	calls []map[string]string
}

// eavesdrop puts an ear before an API.
func eavesdrop(t *testing.T, api http.Handler) (*heard, string) {
	t.Helper()
	h := &heard{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		call := map[string]string{}
		for k := range r.PostForm {
			call[k] = r.PostForm.Get(k)
		}
		h.mu.Lock()
		h.calls = append(h.calls, call)
		h.mu.Unlock()
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return h, server.URL
}

func (h *heard) of(action string) (all []map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		if c["Action"] == action {
			all = append(all, c)
		}
	}
	return all
}

func TestALaunchIsOneCallThatSaysAllThatCostsMoneyOrIsARight(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	h, url := eavesdrop(t, model)
	c := open(t, settings(url))
	for what, tc := range map[string]struct {
		change func(*cloud.LaunchRequest)
		want   map[string]string // "" for what must not be there
	}{
		"a batch": {
			change: func(*cloud.LaunchRequest) {},
			want: map[string]string{
				"MinCount":                          "1",
				"MaxCount":                          "3",
				"ClientToken":                       "a batch",
				"ImageId":                           "ami-2",
				"InstanceType":                      "c5.large",
				"UserData":                          "I2Nsb3VkLWNvbmZpZwo=",
				"InstanceInitiatedShutdownBehavior": "terminate",
				"MetadataOptions.HttpTokens":        "required",
				"MetadataOptions.HttpPutResponseHopLimit":           "1",
				"MetadataOptions.InstanceMetadataTags":              "disabled",
				"BlockDeviceMapping.1.DeviceName":                   "/dev/xvda",
				"BlockDeviceMapping.1.Ebs.VolumeSize":               "6",
				"BlockDeviceMapping.1.Ebs.VolumeType":               "gp3",
				"BlockDeviceMapping.1.Ebs.Encrypted":                "true",
				"BlockDeviceMapping.1.Ebs.DeleteOnTermination":      "true",
				"NetworkInterface.1.SubnetId":                       "subnet-a1",
				"NetworkInterface.1.AssociatePublicIpAddress":       "true",
				"NetworkInterface.1.SecurityGroupId.1":              "sg-00000000000000001",
				"NetworkInterface.1.SecurityGroupId.2":              "sg-2",
				"NetworkInterface.1.SecurityGroupId.3":              "sg-1",
				"NetworkInterface.1.Ipv4PrefixCount":                "",
				"NetworkInterface.1.SecondaryPrivateIpAddressCount": "1",
				"NetworkInterface.1.DeleteOnTermination":            "true",
				"TagSpecification.1.ResourceType":                   "instance",
				"TagSpecification.1.Tag.1.Key":                      cloud.TagBatch,
				"TagSpecification.1.Tag.2.Value":                    owner,
				"TagSpecification.2.ResourceType":                   "volume",
				"TagSpecification.3.ResourceType":                   "network-interface",
				"TagSpecification.4.ResourceType":                   "",
				"InstanceMarketOptions.MarketType":                  "",
				"CreditSpecification.CpuCredits":                    "",
				"IamInstanceProfile.Name":                           "",
				"SubnetId":                                          "",
				"Placement.Tenancy":                                 "",
				"BlockDeviceMapping.1.Ebs.VolumeInitializationRate": "",
			},
		},
		"one machine": {
			change: func(r *cloud.LaunchRequest) {
				r.Machines, r.PrivateIPOnly, r.AllowMetadata, r.InstanceProfile = r.Machines[:1], true, true, "profile"
				r.Image, r.RootDiskBytes = map[string]string{imageName: "kip-*", imageOwner: "210987654321"}, 0
			},
			want: map[string]string{
				"MaxCount":                                          "1",
				"ImageId":                                           "ami-3",
				"BlockDeviceMapping.1.DeviceName":                   "/dev/sda1",
				"BlockDeviceMapping.1.Ebs.VolumeSize":               "8",
				"NetworkInterface.1.Ipv4PrefixCount":                "",
				"NetworkInterface.1.SecondaryPrivateIpAddressCount": "1",
				"NetworkInterface.1.AssociatePublicIpAddress":       "false",
				"MetadataOptions.HttpPutResponseHopLimit":           "2",
				"IamInstanceProfile.Name":                           "profile",
				"IamInstanceProfile.Arn":                            "",
			},
		},
		"spot, without a way to the internet": {
			change: func(r *cloud.LaunchRequest) {
				r.CapacityType, r.Zone, r.Subnet, r.InstanceType = cloud.Spot, "us-east-1b", privateSubnet, "t3.small"
				r.InstanceProfile, r.Image = "arn:aws:iam::123456789012:instance-profile/x", map[string]string{imageID: "ami-1"}
			},
			want: map[string]string{
				"ImageId":                          "ami-1",
				"InstanceMarketOptions.MarketType": "spot",
				"InstanceMarketOptions.SpotOptions.SpotInstanceType":             "one-time",
				"InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
				"TagSpecification.4.ResourceType":                                "spot-instances-request",
				"CreditSpecification.CpuCredits":                                 "standard",
				"NetworkInterface.1.AssociatePublicIpAddress":                    "false",
				"IamInstanceProfile.Arn":                                         "arn:aws:iam::123456789012:instance-profile/x",
			},
		},
		"on hosts of its own": {
			change: func(r *cloud.LaunchRequest) { r.CapacityType = cloud.Dedicated },
			want: map[string]string{
				"Placement.Tenancy":                "dedicated",
				"InstanceMarketOptions.MarketType": "",
				"TagSpecification.4.ResourceType":  "",
			},
		},
	} {
		r := request(what, 3)
		tc.change(&r)
		before := len(h.of("RunInstances"))
		got, err := runLaunch(t.Context(), c, r).All()
		if err != nil || len(got) != len(r.Machines) {
			t.Errorf("%s: %v, %v", what, got, err)
			continue
		}
		calls := h.of("RunInstances")[before:]
		if len(calls) != 1 {
			t.Errorf("%s took %d calls", what, len(calls))
		}
		for k, v := range tc.want {
			if calls[0][k] != v {
				t.Errorf("%s was launched with %s=%q, want %q", what, k, calls[0][k], v)
			}
		}
		public := tc.want["NetworkInterface.1.AssociatePublicIpAddress"] != "false"
		list, err := c.List(t.Context(), owner)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list.Instances {
			if i.Tags[cloud.TagBatch] == what && (!i.ManagementIP.IsValid() || !i.PodIP.IsValid() || i.PublicIP.IsValid() != public) {
				t.Errorf("%s: the instance has the addresses %v, %v and %v", what, i.ManagementIP, i.PodIP, i.PublicIP)
			}
		}
	}
	if n := len(h.of("DescribeSubnets")); n != 1 {
		t.Errorf("the subnets were read %d times: want once, until the next catalogue", n)
	}
}

func TestWhatCannotBeOneCallIsRefusedBeforeIt(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	for what, spoil := range map[string]func(*cloud.LaunchRequest){
		"a subnet of nobody's":         func(r *cloud.LaunchRequest) { r.Subnet = "subnet-elsewhere" },
		"no subnet":                    func(r *cloud.LaunchRequest) { r.Subnet = "" },
		"a zone that is another's":     func(r *cloud.LaunchRequest) { r.Zone = "us-east-1b" },
		"too much user data":           func(r *cloud.LaunchRequest) { r.UserData = make([]byte, maxUserData+1) },
		"no owner":                     func(r *cloud.LaunchRequest) { r.Tags = map[string]string{cloud.TagBatch: "b"} },
		"a token that is too long":     func(r *cloud.LaunchRequest) { r.Token = strings.Repeat("x", 65) },
		"a token that is not ASCII":    func(r *cloud.LaunchRequest) { r.Token = "ü" },
		"a route of IPv6":              func(r *cloud.LaunchRequest) { r.CloudRoutes = []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")} },
		"no image":                     func(r *cloud.LaunchRequest) { r.Image = nil },
		"two images":                   func(r *cloud.LaunchRequest) { r.Image = map[string]string{imageID: "ami-1", imageName: "x"} },
		"an image in words of another": func(r *cloud.LaunchRequest) { r.Image = map[string]string{"project": "x"} },
		"an image that is not there":   func(r *cloud.LaunchRequest) { r.Image = map[string]string{imageName: "none-*"} },
		"a group that is not there":    func(r *cloud.LaunchRequest) { r.SecurityGroups = []string{"none"} },
		"a group of another VPC":       func(r *cloud.LaunchRequest) { r.SecurityGroups = []string{"far"} },
		"machines that differ":         func(r *cloud.LaunchRequest) { r.Machines[1].UserData = []byte("own") },
	} {
		r := request("bad", 2)
		spoil(&r)
		if err := runLaunch(t.Context(), c, r).Err(); err == nil || !cloud.Refused(err) || !errors.Is(err, cloud.ErrRefused) {
			t.Errorf("a launch with %s got %v: want a refusal", what, err)
		}
	}
	if n := model.Calls()["RunInstances"]; n != 0 {
		t.Errorf("%d calls launched", n)
	}
}

// answering is an API that says one thing to every call of one action, and leaves the
// others to a model.
func answering(t *testing.T, action string, status int, code, message string) *Cloud {
	t.Helper()
	model, _ := serve(t, anAccount(sim.Knobs{}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		if r.PostForm.Get("Action") != action {
			model.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>id-1</RequestID></Response>", code, message)
	}))
	t.Cleanup(server.Close)
	return open(t, settings(server.URL))
}

func TestErrorsSayWhatTheyAreAbout(t *testing.T) {
	onDemand := false
	offering := cloud.Scope{InstanceType: "c5.large", Zone: "us-east-1a", Spot: &onDemand}
	subnet := cloud.Scope{Zone: "us-east-1a", Subnet: "subnet-a1"}
	standard := cloud.Scope{Family: "standard", Spot: &onDemand}
	standardCPU := cloud.Scope{Family: "standard", ByCPU: true, Spot: &onDemand}
	everything := cloud.Scope{Account: true}
	exact := cloud.Scope{InstanceType: "c5.large", Zone: "us-east-1a", Subnet: "subnet-a1", Spot: &onDemand}
	for _, tc := range []struct {
		status      int
		code        string
		cause       cloud.Cause
		scope       cloud.Scope
		nothingDone bool
	}{
		{500, "InsufficientInstanceCapacity", cloud.ErrCapacity, offering, true},
		{400, "SpotMaxPriceTooLow", cloud.ErrCapacity, offering, true},
		{400, "InsufficientHostCapacity", cloud.ErrCapacity, offering, true},
		{500, "UnfulfillableCapacity", cloud.ErrCapacity, offering, true},
		{500, "InsufficientVolumeCapacity", cloud.ErrCapacity, offering, true},
		{400, "VolumeTypeNotAvailableInZone", cloud.ErrRefused, offering, true},
		{400, "NetworkInterfaceLimitExceeded", cloud.ErrQuota, everything, true},
		{400, "SecurityGroupsPerInterfaceLimitExceeded", cloud.ErrRefused, cloud.Scope{}, true},
		{401, "OptInRequired", cloud.ErrUnauthorised, everything, true},
		{400, "PendingVerification", cloud.ErrUnauthorised, everything, true},
		{400, "Unsupported", cloud.ErrRefused, offering, true},
		{400, "InsufficientAddressCapacity", cloud.ErrCapacity, subnet, true},
		{400, "InsufficientFreeAddressesInSubnet", cloud.ErrTogether, subnet, true},
		{400, "InsufficientCidrBlocks", cloud.ErrTogether, subnet, true},
		{400, "VcpuLimitExceeded", cloud.ErrQuota, standardCPU, true},
		{400, "InstanceLimitExceeded", cloud.ErrQuota, standard, true},
		{400, "MaxSpotInstanceCountExceeded", cloud.ErrQuota, standardCPU, true},
		{400, "VolumeLimitExceeded", cloud.ErrQuota, cloud.Scope{Disks: true}, true},
		{400, "MaxIOPSLimitExceeded", cloud.ErrQuota, cloud.Scope{Disks: true}, true},
		{400, "AttachmentLimitExceeded", cloud.ErrRefused, cloud.Scope{}, true},
		{400, "SecurityGroupsPerInstanceLimitExceeded", cloud.ErrRefused, cloud.Scope{}, true},
		{400, "TagLimitExceeded", cloud.ErrRefused, cloud.Scope{}, true},
		{403, "AuthFailure.ServiceLinkedRoleCreationNotPermitted", cloud.ErrQuota, cloud.Scope{Spot: &onDemand}, true},
		{503, "RequestLimitExceeded", cloud.ErrThrottled, everything, true},
		{403, "UnauthorizedOperation", cloud.ErrUnauthorised, exact, true},
		{403, "AccessDenied", cloud.ErrUnauthorised, exact, true},
		{403, "ExpiredToken", cloud.ErrUnauthorised, everything, true},
		{401, "AuthFailure", cloud.ErrUnauthorised, everything, true},
		{400, "IdempotentParameterMismatch", cloud.ErrMismatch, cloud.Scope{}, false},
		{400, "SomethingNew", cloud.ErrUnexplained, exact, true},
		{400, "InvalidParameterValue", cloud.ErrRefused, cloud.Scope{}, true}, // the pod's own
		{400, "InvalidSomething.New", cloud.ErrRefused, cloud.Scope{}, true},
		{400, "UnsupportedOperation", cloud.ErrRefused, cloud.Scope{}, true},
		{500, "InternalError", "", cloud.Scope{}, false},
		{503, "Unavailable", "", cloud.Scope{}, false},
		{500, "SomethingNew", cloud.ErrUnexplained, exact, false},
		{502, "UnknownError", "", cloud.Scope{}, false},
	} {
		c := answering(t, "RunInstances", tc.status, tc.code, "words"+encoded+" secret")
		c.note(factNoSecondaries, time.Hour)
		err := runLaunch(t.Context(), c, request("t", 2)).Err()
		if err == nil {
			t.Errorf("%s is no error", tc.code)
			continue
		}
		scope := cloud.ScopeOf(err)
		if cloud.CauseOf(err) != tc.cause || cloud.NothingDone(err) != tc.nothingDone || scope.String() != tc.scope.String() ||
			scope.Account != tc.scope.Account {
			t.Errorf("%s is %q for %v, nothing done %v: want %q for %v, %v", tc.code, cloud.CauseOf(err), scope, cloud.NothingDone(err),
				tc.cause, tc.scope,
				tc.nothingDone)
		}
		if text := err.Error(); !strings.Contains(text, tc.code+": words (request id-1)") || strings.Contains(text, "secret") {
			t.Errorf("%s reads %q", tc.code, text)
		}
	}
}

func TestACodeThatKipDoesNotKnowIsToldOnce(t *testing.T) {
	for _, status := range []int{400, 500} {
		for code, want := range map[string]int{"SomethingNew": 1, "InvalidSomething": 0, "InternalError": 0, "VcpuLimitExceeded": 0} {
			var log bytes.Buffer
			c := answering(t, "RunInstances", status, code, "words")
			c.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			for n := range 3 {
				if err := runLaunch(t.Context(), c, request(fmt.Sprint(n), 1)).Err(); err == nil {
					t.Errorf("%s is no error", code)
				}
			}
			if n := strings.Count(log.String(), "code="+code); n != want {
				t.Errorf("%d %s is told %d times, want %d: %s", status, code, n, want, &log)
			}
		}
	}
	// A code that nobody knows says nothing of offerings where none was asked for.
	_, err := answering(t, "DescribeInstances", 400, "SomethingNew", "words").List(t.Context(), owner)
	if cloud.CauseOf(err) != cloud.ErrRefused || cloud.ScopeOf(err).Says() {
		t.Errorf("of a list: %q for %+v", cloud.CauseOf(err), cloud.ScopeOf(err))
	}
}

// The right that is missing is to a pod's own role: no offering is to blame.
func TestAMissingRightToARoleIsThePodsOwn(t *testing.T) {
	const words = "User: x is not authorized to perform: iam:PassRole on resource: y"
	err := runLaunch(t.Context(), answering(t, "RunInstances", 403, "UnauthorizedOperation", words), request("t", 1)).Err()
	if cloud.CauseOf(err) != cloud.ErrRefused || cloud.ScopeOf(err).Says() || !cloud.NothingDone(err) {
		t.Errorf("%v for %+v", err, cloud.ScopeOf(err))
	}
	_, err = answering(t, "DescribeInstances", 403, "UnauthorizedOperation", "words").List(t.Context(), owner)
	if cloud.CauseOf(err) != cloud.ErrUnauthorised || !cloud.ScopeOf(err).Account {
		t.Errorf("a list without a right is %v", err)
	}
}

func TestAMissingRightToASecurityGroupIsThePodsOwn(t *testing.T) {
	const words = "User: x is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-1:1:security-group/%s because y"
	for _, c := range []struct {
		denied string
		named  []string
		own    bool
	}{
		{"sg-2", []string{"sg-1", "sg-2"}, true},
		{"sg-2", []string{"another"}, true},
		{"sg-2", nil, false},
		{"sg-2", []string{"sg-1"}, false},
		{"sg-22", []string{"sg-2"}, false},
	} {
		r := request("t", 1)
		r.SecurityGroups = c.named
		to := answering(t, "RunInstances", 403, "UnauthorizedOperation", fmt.Sprintf(words, c.denied))
		if _, err := to.Resolve(t.Context(), r.LaunchSpec); err != nil {
			t.Fatal(err)
		}
		err := runLaunch(t.Context(), to, r).Err()
		if own := cloud.CauseOf(err) == cloud.ErrRefused && !cloud.ScopeOf(err).Says() && cloud.NothingDone(err); own != c.own {
			t.Errorf("%s, of a pod that names %v: %v for %+v", c.denied, c.named, err, cloud.ScopeOf(err))
		}
	}
}

func TestALongMessageIsCut(t *testing.T) {
	c := answering(t, "DescribeInstances", 400, "SomethingNew", strings.Repeat("x", 100_000))
	if _, err := c.List(t.Context(), owner); err == nil || len(err.Error()) > 2*maxMessage {
		t.Errorf("the error is %d bytes long", len(fmt.Sprint(err)))
	}
}

// endless is a body, and a client that is answered with it.
type endless struct{}

func (endless) Read(p []byte) (int, error)                 { return len(p), nil }
func (endless) Close() error                               { return nil }
func (e endless) Do(*http.Request) (*http.Response, error) { return &http.Response{Body: e}, nil }

func TestAnAnswerWithoutEndIsCutOff(t *testing.T) {
	resp, err := bounded{endless{}}.Do(&http.Request{})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if tooLong := new(http.MaxBytesError); n != maxAnswer || !errors.As(err, &tooLong) {
		t.Errorf("it ended after %d bytes with %v", n, err)
	}
}

func TestPartOfABatchIsLaunchedWhereThereIsNoRoomForAll(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{Capacity: []sim.Capacity{{Pool: sim.Pool{InstanceType: "c5.large"}, Instances: 2}}})
	r := request("t", 5)
	for range 2 {
		for n, one := range runLaunch(t.Context(), c, r) {
			switch {
			case n < 2 && (one.Err != nil || one.Instance.Place != cloud.PlaceOf(n)):
				t.Errorf("machine %d: %+v", n, one)
			case n >= 2 && (!errors.Is(one.Err, cloud.ErrCapacity) || !cloud.NothingDone(one.Err) ||
				cloud.ScopeOf(one.Err).InstanceType != "c5.large" || cloud.ScopeOf(one.Err).Subnet != r.Subnet):
				t.Errorf("machine %d, for which there is no room: %v", n, one.Err) // of what is not said, so that another subnet is tried
			}
		}
	}
	if n := len(model.Machines().Truth()); n != 2 {
		t.Errorf("%d run", n)
	}
}

func TestASubnetInPiecesTakesMachinesOneByOne(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Subnets[0].Fragmented = true
	model, url := serve(t, account)
	c := open(t, settings(url))
	c.note(factNoSecondaries, time.Hour)
	if err := runLaunch(t.Context(), c, request("several", 2)).Err(); cloud.CauseOf(err) != cloud.ErrTogether || !cloud.Refused(err) {
		t.Errorf("two in one call: %v", err)
	}
	if err := runLaunch(t.Context(), c, request("one", 1)).Err(); err != nil || len(model.Machines().Truth()) != 1 {
		t.Errorf("one by itself: %v", err)
	}
	full := answering(t, "RunInstances", 400, "InsufficientFreeAddressesInSubnet", "words")
	err := runLaunch(t.Context(), full, request("one", 1)).Err()
	if cloud.CauseOf(err) != cloud.ErrCapacity || cloud.ScopeOf(err).Subnet != "subnet-a1" {
		t.Errorf("a subnet that is full: %v", err)
	}
}

func TestALostAnswerIsFoundByRepeatingTheCall(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	model.Machines().FailNth(cloud.CallLaunch, 1, sim.Fault{After: sim.ErrLost})
	r := request("t", 3)
	err := runLaunch(t.Context(), c, r).Err()
	if err == nil || cloud.NothingDone(err) || cloud.CauseOf(err) != "" {
		t.Fatalf("a lost answer is %v", err)
	}
	got, err := runLaunch(t.Context(), c, r).All()
	if err != nil || len(model.Machines().Truth()) != 3 || got[0].ID != model.Machines().Truth()[0].ID {
		t.Errorf("%v, %v; %d run", got, err, len(model.Machines().Truth()))
	}
}

func TestATokenWhoseInstancesHaveEndedLeadsToThem(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	r := request("t", 3)
	first, err := runLaunch(t.Context(), c, r).All()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Terminate(t.Context(), first[1].ID).Err(); err != nil {
		t.Fatal(err)
	}
	for n, one := range runLaunch(t.Context(), c, r) {
		want := map[bool]cloud.State{true: cloud.Gone, false: cloud.Running}[n == 1]
		if one.Err != nil || one.Instance.ID != first[n].ID || one.Instance.State != want || one.Instance.Subnet != r.Subnet {
			t.Errorf("machine %d: %+v, want %s, %s", n, one, first[n].ID, want)
		}
	}
	if n := len(model.Machines().Truth()); n != 2 {
		t.Errorf("%d run", n)
	}
	// What EC2 does not show any more does not run: the machine is to be launched anew.
	forgetful := answering(t, "RunInstances", 400, codeTerminated, "words")
	if err := runLaunch(t.Context(), forgetful, r).Err(); !cloud.Refused(err) || errors.Is(err, cloud.ErrMismatch) {
		t.Errorf("with nothing to show: %v", err)
	}
}

// unending is an API whose lists have a page more for ever, and that says of each token that
// its instances have ended.
type unending struct{ pages map[string]int }

func (u unending) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, err
	}
	action := form.Get("Action")
	u.pages[action]++
	status, answer := http.StatusOK, "<"+action+"Response><nextToken>more</nextToken></"+action+"Response>"
	if action == "RunInstances" {
		status, answer = http.StatusBadRequest, "<Response><Errors><Error><Code>"+codeTerminated+"</Code></Error></Errors></Response>"
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

func TestAListWithoutEndIsAnError(t *testing.T) {
	for action, ask := range map[string]func(*Cloud) error{
		"DescribeInstanceTypes":         func(c *Cloud) error { _, _, err := c.readTypes(t.Context()); return err },
		"DescribeInstanceTypeOfferings": func(c *Cloud) error { _, err := c.readOfferings(t.Context()); return err },
		"DescribeSpotPriceHistory":      func(c *Cloud) error { _, err := c.readSpotPrices(t.Context()); return err },
		"DescribeInstances":             func(c *Cloud) error { _, err := c.Describe(t.Context(), "i-1"); return err },
		"DescribeSpotInstanceRequests":  func(c *Cloud) error { _, err := c.interrupted(t.Context()); return err },
		"DescribeInstanceStatus":        func(c *Cloud) error { _, err := c.maintained(t.Context()); return err },
		"DescribeSubnets":               func(c *Cloud) error { _, err := c.networks.readSubnets(t.Context()); return err },
		"DescribeRouteTables":           func(c *Cloud) error { _, err := c.routeTables(t.Context(), vpc); return err },
		"DescribeNetworkInterfaces":     func(c *Cloud) error { _, err := c.ListOwned(t.Context(), owner); return err },
		"DescribeSecurityGroups": func(c *Cloud) error {
			_, err := c.groupsWith(t.Context(), filter("tag-key", cloud.TagOwner))
			return err
		},
	} {
		cfg, api := settings("http://ec2.test"), unending{map[string]int{}}
		cfg.Transport = api
		if err := ask(open(t, cfg)); !errors.Is(err, errTooLong) || api.pages[action] != maxPages {
			t.Errorf("%s: %v after %v", action, err, api.pages)
		}
	}
}

// Of a token whose instances have ended some may run: nothing is said of them until they
// were seen.
func TestATokenWhoseInstancesAreNotFoundSaysNothingOfThem(t *testing.T) {
	cfg := settings("http://ec2.test")
	cfg.Transport = unending{map[string]int{}}
	endless := open(t, cfg)
	_, err := endless.ended(t.Context(), request("t", 3), cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New(codeTerminated)))
	if !errors.Is(err, errTooLong) || cloud.NothingDone(err) || cloud.CauseOf(err) != "" || !strings.Contains(err.Error(), codeTerminated) {
		t.Errorf("without end: %v", err)
	}
	for code, want := range map[string]cloud.Cause{
		"RequestLimitExceeded":  cloud.ErrThrottled,
		"UnauthorizedOperation": cloud.ErrUnauthorised,
	} {
		c := answering(t, "DescribeInstances", 400, code, "words")
		_, err := c.ended(t.Context(), request("t", 3), cloud.No(cloud.ErrRefused, cloud.Scope{}, errors.New(codeTerminated)))
		if cloud.CauseOf(err) != want || cloud.NothingDone(err) {
			t.Errorf("%s: %v, nothing done %v", code, err, cloud.NothingDone(err))
		}
	}
}

func TestAListSaysWhichZonesItCouldNotLookAt(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	a, b := request("a", 1), request("b", 1)
	b.Zone, b.Subnet = "us-east-1b", privateSubnet
	for _, r := range []cloud.LaunchRequest{a, b} {
		if err := runLaunch(t.Context(), c, r).Err(); err != nil {
			t.Fatal(err)
		}
	}
	blind := func(zones ...string) {
		if err := model.Machines().Change(func(k *sim.Knobs) { k.BlindZones = zones }); err != nil {
			t.Fatal(err)
		}
	}
	for missing, want := range map[string]int{"": 2, "us-east-1a": 1, "us-east-1b": 1} {
		blind(slices.DeleteFunc([]string{missing}, func(z string) bool { return z == "" })...)
		list, err := c.List(t.Context(), owner)
		if err != nil || len(list.Instances) != want || list.Complete() != (missing == "") || missing != "" && list.Covers(missing) {
			t.Errorf("without %q: %+v, %v", missing, list, err)
		}
	}
	all, err := c.List(t.Context(), owner)
	if err != nil || !all.Complete() {
		blind()
		if all, err = c.List(t.Context(), owner); err != nil {
			t.Fatal(err)
		}
	}
	blind("us-east-1a")
	for _, i := range all.Instances {
		// A call that names IDs of the other zone alone works: then EC2 says which it does not know.
		want := map[string][2]cloud.State{"us-east-1a": {"", ""}, "us-east-1b": {i.State, cloud.Unknown}}[i.Zone]
		got, err := c.Describe(t.Context(), i.ID, "i-0123456789abcdef0")
		if err != nil || len(got) != 2 || got[0].ID != i.ID || [2]cloud.State{got[0].State, got[1].State} != want {
			t.Errorf("of the instance in %s and of an unknown one it says %+v, %v; want %q", i.Zone, got, err, want)
		}
	}
	blind("us-east-1a", "us-east-1b")
	if got, err := c.Describe(t.Context(), all.Instances[0].ID); err == nil {
		t.Errorf("without any zone it says %+v", got)
	}
	if list, err := c.List(t.Context(), owner); err == nil {
		t.Errorf("a list that saw nothing is %+v", list)
	}
	blind()
	if list, err := c.List(t.Context(), ""); !cloud.Refused(err) {
		t.Errorf("a list of nobody's is %v, %v", list, err)
	}
}

// An impaired endpoint answers late rather than with an error.
func TestAListOfAllThatHangsLeavesTimeForThatOfEachZone(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	if err := runLaunch(t.Context(), c, request("a", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	if err := model.Hang(cloudmodel.Hang{Action: "DescribeInstances", Nth: 1}); err != nil {
		t.Fatal(err)
	}
	// What hangs takes a third of it; what comes after that takes milliseconds.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if list, err := c.List(ctx, owner); err != nil || len(list.Instances) != 1 || !list.Covers("us-east-1a") || len(list.Silent) > 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// EC2 accepts a launch, and ends it: as what it says is what it is told. It may say of a fault of the client that it is its own,
// and which in the message alone.
func TestAnInstanceThatEC2HasEndedSaysWhy(t *testing.T) {
	spot := func(is bool) cloud.Scope { return cloud.Scope{InstanceType: "c5.large", Zone: "us-east-1a", Spot: &is} }
	for _, tc := range []struct {
		code  string
		cause cloud.Cause
		scope cloud.Scope
		says  string
	}{
		{"Server.InsufficientInstanceCapacity", cloud.ErrCapacity, spot(false), "words"},
		{"Server.SpotInstanceTermination", cloud.ErrCapacity, spot(true), "words"},
		{"Client.VolumeLimitExceeded", cloud.ErrQuota, spot(false), "words"},
		{"Client.InvalidSnapshot.NotFound", cloud.ErrRefused, cloud.Scope{}, "words"},
		{"Client.InternalError", cloud.ErrUnfit, cloud.Scope{}, "KMS"},
		{"Server.InternalError", "", cloud.Scope{}, "words"},
		{"Server.SomethingNew", "", cloud.Scope{}, "words"},
	} {
		c, model := newCloud(t, sim.Knobs{})
		r := request("t", 2)
		if tc.code == "Server.SpotInstanceTermination" {
			r.CapacityType = cloud.Spot
		}
		r = resolved(t, c, r)
		got, err := runLaunch(t.Context(), c, r).All()
		if err != nil {
			t.Fatal(err)
		}
		why := ec2.StateReason{Code: tc.code, Message: tc.code + ": words"}
		if strings.HasPrefix(tc.code, "Client.") {
			why.Code = "Server.InternalError"
		}
		if err := model.Instances.Fail(why, got[0].ID); err != nil {
			t.Fatal(err)
		}
		if err := c.Terminate(t.Context(), got[1].ID).Err(); err != nil {
			t.Fatal(err)
		}
		described, err := c.Describe(t.Context(), got[0].ID, got[1].ID)
		if err != nil {
			t.Fatal(err)
		}
		again := runLaunch(t.Context(), c, r) // whose answer was lost
		for n, i := range []cloud.Instance{described[0], again[0].Instance} {
			if i.State != cloud.Gone || i.Fault == nil || cloud.CauseOf(i.Fault) != tc.cause ||
				cloud.ScopeOf(i.Fault).String() != tc.scope.String() || cloud.NothingDone(i.Fault) ||
				strings.Count(i.Fault.Error(), tc.code) != 1 || !strings.Contains(i.Fault.Error(), tc.says) {
				t.Errorf("%s, answer %d: %s with %q for %v", tc.code, n, i.State, i.Fault, cloud.ScopeOf(i.Fault))
			}
		}
		if described[1].Fault != nil || again[1].Instance.Fault != nil {
			t.Errorf("one that was to end: %v", described[1].Fault)
		}
	}
}

func TestTerminationEndsWhatIsThereAmongWhatIsNot(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	got, err := runLaunch(t.Context(), c, request("t", 3)).All()
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{got[0].ID, "i-0123456789abcdef0", got[1].ID, got[2].ID}
	results := c.Terminate(t.Context(), ids...)
	for n, r := range results {
		if r.ID != ids[n] || r.Err != nil {
			t.Errorf("result %d: %+v", n, r)
		}
	}
	if left := model.Machines().Truth(); len(results) != 4 || len(left) != 0 {
		t.Errorf("%d results; %d run on", len(results), len(left))
	}
}

// EC2 refuses the whole of a call for one that it does not know: also of the second, which then has ended nothing.
func TestATerminationThatIsRefusedTwiceHasEndedNobody(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	var second string
	calls := 0
	h, url := eavesdrop(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PostForm.Get("Action") == "TerminateInstances" {
			if calls++; calls == 2 {
				if err := model.Deny(cloudmodel.Denial{Instance: second, Calls: 1}); err != nil {
					t.Error(err)
				}
			}
		}
		model.ServeHTTP(w, r)
	}))
	c := open(t, settings(url))
	got, err := runLaunch(t.Context(), c, request("t", 3)).All()
	if err != nil {
		t.Fatal(err)
	}
	second = got[2].ID
	const unknown = "i-0123456789abcdef0"
	for _, r := range c.Terminate(t.Context(), got[0].ID, unknown, got[1].ID, second) {
		if (r.Err == nil) != (r.ID == unknown) || r.Err != nil && !errors.Is(r.Err, cloud.ErrNotFound) {
			t.Errorf("%s: %v", r.ID, r.Err)
		}
	}
	if n := len(h.of("TerminateInstances")); n != 2 || len(model.Machines().Truth()) != 3 {
		t.Errorf("%d calls, and %d run on", n, len(model.Machines().Truth()))
	}
}

// A sweep that EC2 throttles asks no more: the account's calls are others', too.
func TestASweepThatIsThrottledStops(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	h, url := eavesdrop(t, model)
	c := open(t, settings(url))
	model.Machines().FailNth(sim.KindDeleteOwned, 2, sim.Fault{Before: cloud.ErrThrottled})
	results := c.DeleteOwned(t.Context(), "eni-1", "eni-2", "eni-3", "eni-4")
	for n, r := range results {
		if errors.Is(r.Err, cloud.ErrThrottled) != (n > 0) {
			t.Errorf("%s: %v", r.ID, r.Err)
		}
	}
	if n := len(h.of("DeleteNetworkInterface")); n != 2 || len(results) != 4 {
		t.Errorf("%d calls and %d results, want 2 calls", n, len(results))
	}
}

func TestTerminationAmongWhatIsNotThereTakesFewCalls(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	h, url := eavesdrop(t, model)
	c := open(t, settings(url))
	got, err := runLaunch(t.Context(), c, request("t", 10)).All()
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{"i-0123456789abcdef0"}
	for _, i := range got {
		ids = append(ids, i.ID)
	}
	if err := c.Terminate(t.Context(), ids...).Err(); err != nil {
		t.Error(err)
	}
	if n := len(h.of("TerminateInstances")); n != 2 || len(model.Machines().Truth()) != 0 {
		t.Errorf("%d calls, and %d run on", n, len(model.Machines().Truth()))
	}
}

// For which, smaller calls say.
func TestARightThatIsMissingToOneInstanceSaysNothingOfTheAccount(t *testing.T) {
	for action, ask := range map[string]func(*Cloud, ...string) cloud.Results{
		"TerminateInstances": func(c *Cloud, ids ...string) cloud.Results { return c.Terminate(t.Context(), ids...) },
		"StopInstances":      func(c *Cloud, ids ...string) cloud.Results { return c.Stop(t.Context(), ids...) },
		"StartInstances":     func(c *Cloud, ids ...string) cloud.Results { return c.Start(t.Context(), ids...) },
	} {
		for code, account := range map[string]bool{"UnauthorizedOperation": false, "AuthFailure": true} {
			results := ask(answering(t, action, 403, code, "words"), "i-1", "i-2")
			if len(results) != 2 {
				t.Errorf("%s: %d results", action, len(results))
			}
			for _, r := range results {
				if !errors.Is(r.Err, cloud.ErrUnauthorised) || !cloud.Refused(r.Err) || cloud.ScopeOf(r.Err) != (cloud.Scope{Account: account}) {
					t.Errorf("%s, %s: %v, of %+v", action, code, r.Err, cloud.ScopeOf(r.Err))
				}
			}
		}
	}
}

// An ID that EC2 does not know yet is no death, and no reason to end the others later.
func TestWhatEC2DoesNotKnowYetIsUnknown(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{UnknownFor: short(time.Hour), ListLag: short(time.Hour)})
	got, err := runLaunch(t.Context(), c, request("t", 2)).All()
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.Describe(t.Context(), got[0].ID, got[1].ID, got[0].ID)
	if err != nil || len(all) != 3 || all[0].State != cloud.Unknown || all[1].State != cloud.Unknown {
		t.Errorf("just launched: %+v, %v", all, err)
	}
	if err := c.Terminate(t.Context(), got[0].ID, got[1].ID).Err(); err != nil || len(model.Machines().Truth()) != 2 {
		t.Errorf("%v; %d run", err, len(model.Machines().Truth()))
	}
	if err := c.Stop(t.Context(), got[0].ID).Err(); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("stopped: %v", err)
	}
}

func TestOneThatCannotBeStoppedKeepsNoOtherFromIt(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{StoppedKeepsAddresses: true})
	spot := request("spot", 1)
	spot.CapacityType = cloud.Spot
	var ids []string
	for _, r := range []cloud.LaunchRequest{request("t", 4), spot} {
		got, err := runLaunch(t.Context(), c, r).All()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range got {
			ids = append(ids, i.ID)
		}
	}
	all := pipe.New(pipe.Config{Cloud: c, Clock: clock.RealClock{}})
	for n, r := range all.Optional().Stopper.Stop(t.Context(), ids...) {
		if r.ID != ids[n] || (r.Err != nil) != (n == 4) || n == 4 && !cloud.Refused(r.Err) {
			t.Errorf("result %d: %+v", n, r)
		}
	}
	if n := model.Calls()["StopInstances"]; n > 7 {
		t.Errorf("it took %d calls", n)
	}
}

func TestInstancesWithTheSameTagsShareACall(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	got, err := runLaunch(t.Context(), c, request("t", 3)).All()
	if err != nil {
		t.Fatal(err)
	}
	var taggings []cloud.Tagging
	for n, i := range got {
		taggings = append(taggings, cloud.Tagging{ID: i.ID, Tags: map[string]string{cloud.TagPod: []string{"a", "b", "a"}[n]}})
	}
	if err := c.Tag(t.Context(), taggings...).Err(); err != nil {
		t.Fatal(err)
	}
	if n := model.Calls()["CreateTags"]; n != 2 {
		t.Errorf("two sets of tags took %d calls", n)
	}
	for n, i := range model.Machines().Truth() {
		if i.Tags[cloud.TagPod] != taggings[n].Tags[cloud.TagPod] || i.Tags[cloud.TagOwner] != owner {
			t.Errorf("instance %d has the tags %v", n, i.Tags)
		}
	}
}

// Of a pod with a long name, say: none of its tags would come.
func TestATagThatIsTooLongIsCut(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	got, err := runLaunch(t.Context(), c, request("t", 1)).All()
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("é", maxTagValue)
	want := cloud.Tagging{ID: got[0].ID, Tags: map[string]string{"Name": long + "x", cloud.TagPod: "a"}}
	if err := c.Tag(t.Context(), want).Err(); err != nil {
		t.Fatal(err)
	}
	if tags := model.Machines().Truth()[0].Tags; tags["Name"] != long || tags[cloud.TagPod] != "a" {
		t.Errorf("it has the tags %v", tags)
	}
}

// takenBack launches spot instances, and has EC2 take the last of them back. It returns its ID.
func takenBack(t *testing.T, c *Cloud, model *ec2.Model, instances int) (id string) {
	t.Helper()
	r := request("t", instances)
	r.CapacityType = cloud.Spot
	got, err := runLaunch(t.Context(), c, r).All()
	if err != nil {
		t.Fatal(err)
	}
	id = got[instances-1].ID
	if err := model.Machines().Interrupter.Interrupt(id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestASpotInstanceThatIsTakenBackIsToldOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := anAccount(sim.Knobs{InterruptionNotice: 2 * time.Minute})
	cfg.Sim.Fault = func(call sim.Call) sim.Fault {
		if call.Kind == sim.KindInterruptions && call.N == 4 {
			cancel() // a few looks later
		}
		return sim.Fault{}
	}
	model, url := serve(t, cfg)
	c := open(t, settings(url))
	id := takenBack(t, c, model, 2)
	told, looks := map[string]int{}, 0
	err := c.Interruptions(ctx, cloud.Listener{Send: func(ctx context.Context, call func(context.Context) error) error {
		looks++
		return call(ctx)
	}, Notify: func(i cloud.Interruption) {
		told[i.InstanceID]++
		if end := model.Machines().Interrupter.Announced()[0].At; i.At.Sub(end).Abs() > time.Second || !strings.HasPrefix(i.Reason, marked) {
			t.Errorf("told %+v; it ends at %v", i, end)
		}
	}})
	if !errors.Is(err, context.Canceled) || !maps.Equal(told, map[string]int{id: 1}) {
		t.Errorf("told of %v: %v", told, err)
	}
	if b := c.Capabilities().Budgets[cloud.CallInterruptions]; looks != 4 || b.Requests.Refill == 0 {
		t.Errorf("%d of 4 looks, one of them at maintenance, were sent in turn, by the budget %+v", looks, b)
	}
}

// By EC2's own clock, that says in the same answer what time it is; and once, when the cell is known.
func TestASpotNoticeIsToldByEC2sClockAndWhenItsCellIsKnown(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{InterruptionNotice: 2 * time.Minute}))
	c := open(t, settings(url))
	takenBack(t, c, model, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asked, told := 0, 0
	err := c.Interruptions(ctx, cloud.Listener{
		Mine: func(string) bool { asked++; return asked > 2 },
		Notify: func(i cloud.Interruption) {
			if told++; i.Left <= 0 || i.Left > 2*time.Minute+time.Second { // it tells whole seconds
				t.Errorf("%v are left: %+v", i.Left, i)
			}
			cancel()
		},
	})
	if !errors.Is(err, context.Canceled) || asked != 3 || told != 1 {
		t.Errorf("asked %d times whose it is, told %d times: %v", asked, told, err)
	}
}

func TestALookThatFailsEndsNoWatchAndIsTold(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{InterruptionNotice: 2 * time.Minute}))
	var told bytes.Buffer
	cfg := settings(url)
	cfg.Log = slog.New(slog.NewTextHandler(&told, nil))
	c := open(t, cfg)
	id := takenBack(t, c, model, 1)
	for n := range 3 {
		model.Machines().FailNth(sim.KindInterruptions, n+1, sim.Fault{Before: sim.ErrInternal})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	heard := ""
	err := c.Interruptions(ctx, cloud.Listener{Notify: func(i cloud.Interruption) {
		heard = i.InstanceID
		cancel()
	}})
	if !errors.Is(err, context.Canceled) || heard != id {
		t.Errorf("it heard of %q, then %v", heard, err)
	}
	if n := strings.Count(told.String(), "look for spot instances"); n != 1 {
		t.Errorf("two looks that failed were told %d times: %s", n, told.String())
	}
}

// silence answers nothing until whoever asks gives up, and counts that.
type silence struct{ asked atomic.Int32 }

func (s *silence) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked.Add(1)
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestALookThatIsNeverAnsweredEndsAndIsTold(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg, deaf := settings("http://ec2.test"), &silence{}
		cfg.Transport, cfg.Log, cfg.InterruptionsEvery = deaf, slog.New(slog.NewTextHandler(&log, nil)), 5*time.Second
		c, err := New(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		err = c.Interruptions(ctx, cloud.Listener{Notify: func(cloud.Interruption) {}})
		if n := deaf.asked.Load(); !errors.Is(err, context.DeadlineExceeded) || n < 4 {
			t.Errorf("%d looks within the notice, then %v", n, err)
		}
		if n := strings.Count(log.String(), "retrying"); n < 1 || n > 2 {
			t.Errorf("told %d times: %s", n, log.String())
		}
	})
}

func TestPartsOutliveTheirInstancesUntilTheyAreDeleted(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{OwnedLeft: 1})
	got, err := runLaunch(t.Context(), c, request("t", 2)).All()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Terminate(t.Context(), got[0].ID).Err(); err != nil {
		t.Fatal(err)
	}
	parts, err := c.ListOwned(t.Context(), owner)
	if err != nil || len(parts) != 3 {
		t.Fatalf("%+v, %v", parts, err)
	}
	for _, p := range parts {
		err := c.DeleteOwned(t.Context(), p.ID).Err()
		if p.Kind != "network interface" {
			continue
		}
		if used := p.Instance != ""; used != cloud.Refused(err) || used && p.Instance != got[1].ID || p.Tags[cloud.TagBatch] != "t" ||
			p.Zone != "us-east-1a" {
			t.Errorf("%+v was deleted: %v", p, err)
		}
	}
	if err := c.DeleteOwned(t.Context(), "eni-0123456789abcdef0").Err(); err != nil {
		t.Errorf("one that is not there: %v", err)
	}
	if left := len(model.Machines().OwnedResources.OwnedNow()); left != 1 {
		t.Errorf("%d are left", left)
	}
	if list, err := c.ListOwned(t.Context(), ""); !cloud.Refused(err) {
		t.Errorf("the parts of nobody are %v, %v", list, err)
	}
}

// reach is who may reach which ports, for a message and to compare.
func reach(g ec2.Group) (all []string) {
	for _, r := range g.Rules {
		all = append(all, fmt.Sprintf("%s %d-%d from %s", r.Protocol, r.From, r.To, r.Source))
	}
	slices.Sort(all)
	return all
}

func others(source, icmp string) []string {
	return []string{icmp + " -1--1 from " + source, "tcp 0-6420 from " + source, "tcp 6422-65535 from " + source, "udp 0-65535 from " + source}
}

func TestCellsHaveAGroupThatLetsKipReachTheirAgents(t *testing.T) {
	const six = "fd00::/8"
	for what, tc := range map[string]struct {
		change func(*Cloud)
		want   []string
	}{
		"somewhere in the VPC": {
			change: func(*Cloud) {},
			want:   append(others("10.0.0.0/8", "icmp"), "tcp 6421-6421 from 10.0.0.0/8"),
		},
		"on an instance of the VPC": {
			change: func(c *Cloud) { c.rules.kipGroups = []string{"sg-kip"} },
			want:   append(others("10.0.0.0/8", "icmp"), "tcp 6421-6421 from sg-kip"),
		},
		"outside": {
			change: func(c *Cloud) {
				c.dialPublic, c.cfg.ExtraCIDRs = true, []netip.Prefix{netip.MustParsePrefix("203.0.113.7/30")}
			},
			want: slices.Concat(others("10.0.0.0/8", "icmp"), others("203.0.113.4/30", "icmp"), []string{"tcp 6421-6421 from 203.0.113.4/30"}),
		},
		"with networks that are the VPC's, and there twice": {
			change: func(c *Cloud) {
				c.cfg.ExtraCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix(six), netip.MustParsePrefix(six)}
			},
			want: slices.Concat(others("10.0.0.0/8", "icmp"), others(six, "icmpv6"),
				[]string{"tcp 6421-6421 from 10.0.0.0/8", "tcp 6421-6421 from " + six}),
		},
		"where the file says": {
			change: func(c *Cloud) {
				c.rules.kipGroups, c.cfg.KipSources = []string{"sg-kip"}, []string{"sg-pods", "10.0.3.7/24", "2001:db8::7/128", "sg-pods"}
			},
			want: append(others("10.0.0.0/8", "icmp"),
				"tcp 6421-6421 from sg-pods", "tcp 6421-6421 from 10.0.3.0/24", "tcp 6421-6421 from 2001:db8::7/128"),
		},
		"on an instance, with a network more": {
			change: func(c *Cloud) {
				c.rules.kipGroups, c.cfg.ExtraCIDRs = []string{"sg-kip"}, []netip.Prefix{netip.MustParsePrefix(six)}
			},
			want: slices.Concat(others("10.0.0.0/8", "icmp"), others(six, "icmpv6"), []string{"tcp 6421-6421 from sg-kip"}),
		},
	} {
		c, model := newCloud(t, sim.Knobs{})
		tc.change(c)
		for n := range 3 {
			if err := runLaunch(t.Context(), c, request(fmt.Sprint(what, n), 1)).Err(); err != nil {
				t.Fatal(err)
			}
		}
		groups := model.Groups.All()
		own := groups[len(groups)-1]
		slices.Sort(tc.want)
		if got := reach(own); !slices.Equal(got, tc.want) || own.Tags[cloud.TagOwner] != owner || own.VPC != vpc {
			t.Errorf("%s: %+v, %v, want %v", what, own, got, tc.want)
		}
		if n := model.Calls()["CreateSecurityGroup"] + model.Calls()["AuthorizeSecurityGroupIngress"]; n != 2 {
			t.Errorf("%s: three launches took %d calls for one group", what, n)
		}
		// Another start, with other networks: what is surplus goes, what is right stays.
		c.cfg.ExtraCIDRs, c.cfg.KipSources, c.dialPublic, c.rules.kipGroups = nil, nil, false, nil
		c.caches.forget()
		if err := runLaunch(t.Context(), c, request("again", 1)).Err(); err != nil {
			t.Fatal(err)
		}
		again := model.Groups.All()
		if got, want := reach(again[len(again)-1]), append([]string{}, others("10.0.0.0/8", "icmp")...); len(again) != len(groups) ||
			!slices.Equal(got, slices.Sorted(slices.Values(append(want, "tcp 6421-6421 from 10.0.0.0/8")))) {
			t.Errorf("%s, and then as usual: %v in %d groups", what, got, len(again))
		}
	}
}

// sentTo carries calls to another host.
type sentTo struct{ host string }

func (s sentTo) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", s.host
	return http.DefaultTransport.RoundTrip(r)
}

func TestAKipThatHasMovedIsLetInWithoutALaunch(t *testing.T) {
	model, _ := serve(t, anAccount(sim.Knobs{}))
	refuse := atomic.Bool{}
	h, api := eavesdrop(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PostForm.Get("Action") == "AuthorizeSecurityGroupIngress" && refuse.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "<Response><Errors><Error><Code>RequestLimitExceeded</Code></Error></Errors></Response>")
			return
		}
		model.ServeHTTP(w, r)
	}))
	groups := atomic.Pointer[string]{}
	moveTo := func(ids string) { groups.Store(&ids) }
	cfg := settings("")
	cfg.metadata = metadataOf(t, "subnet-a1", func() string { return *groups.Load() })
	cfg.Transport = sentTo{strings.TrimPrefix(api, "http://")}
	agentFrom := func() (all []string) {
		for _, g := range model.Groups.All() {
			for _, r := range g.Rules {
				if r.From == agentPort {
					all = append(all, r.Source)
				}
			}
		}
		return all
	}
	// changes are the calls that changed a rule, in order.
	changes := func() (all []string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, c := range h.calls {
			if strings.HasSuffix(c["Action"], "Ingress") {
				all = append(all, c["Action"])
			}
		}
		h.calls = nil
		return all
	}
	admit := func(c *Cloud, what, want string, calls ...string) {
		t.Helper()
		if err := c.Admit(t.Context(), owner); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got, made := agentFrom(), changes(); !slices.Equal(got, []string{want}) || !slices.Equal(made, calls) {
			t.Errorf("%s: %v may reach the agents, by the calls %v; want %s, %v", what, got, made, want, calls)
		}
	}
	both := []string{"AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"}

	moveTo("sg-there")
	c := open(t, cfg)
	if err := c.Admit(t.Context(), owner); err != nil || len(model.Groups.All()) != len(anAccount(sim.Knobs{}).Groups) {
		t.Errorf("without cells: %v; the groups are %v", err, model.Groups.All())
	}
	if err := runLaunch(t.Context(), c, request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	changes()
	admit(c, "where it was", "sg-there")
	moveTo("sg-here")
	admit(open(t, cfg), "another Kip, elsewhere", "sg-here", both...)
	admit(c, "the first one, which has come there, too", "sg-here")
	moveTo("sg-now")
	admit(c, "an instance with another group now", "sg-now", both...)
	admit(c, "and again", "sg-now")

	// A failure leaves what lets it in now.
	moveTo("sg-next")
	refuse.Store(true)
	if err := open(t, cfg).Admit(t.Context(), owner); !errors.Is(err, cloud.ErrThrottled) || !slices.Equal(changes(), both[:1]) {
		t.Errorf("without the call that lets it in: %v", err)
	}
	if got := agentFrom(); !slices.Equal(got, []string{"sg-now"}) {
		t.Errorf("without the call that lets it in: %v may reach the agents", got)
	}
	refuse.Store(false)
	moveTo("")
	if err := c.Admit(t.Context(), owner); err == nil || !slices.Equal(agentFrom(), []string{"sg-now"}) {
		t.Errorf("with an instance of no group: %v; %v may reach the agents", err, agentFrom())
	}

	// Whether a Kip without a metadata service is outside of EC2, or that is silent for a moment,
	// it cannot know: it takes nobody's way in.
	moveTo("sg-now")
	there := cfg.metadata
	cfg.metadata, cfg.Region = metadataOf(t, "", nil), "eu-west-1"
	cfg.ExtraCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32")}
	lost := open(t, cfg)
	if err := lost.Admit(t.Context(), owner); err != nil || !slices.Equal(agentFrom(), []string{"sg-now", "203.0.113.7/32"}) {
		t.Errorf("without a metadata service: %v; %v may reach the agents", err, agentFrom())
	}
	changes()
	lost.cfg.metadata = there
	if err := lost.Admit(t.Context(), owner); err == nil || len(changes()) > 0 {
		t.Errorf("with one that answers again: %v; %v may reach the agents", err, agentFrom())
	}
}

// TestRulesThatDoNotFitBesideTheOldOnesReplaceThem: a group takes sixty.
func TestRulesThatDoNotFitBesideTheOldOnesReplaceThem(t *testing.T) {
	model, endpoint := serve(t, anAccount(sim.Knobs{}))
	cfg := settings(endpoint)
	networks := func(second int) (all []netip.Prefix) {
		for n := range 7 {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second), byte(n), 0}), 24))
		}
		return all
	}
	cfg.ExtraCIDRs = networks(1)
	if err := runLaunch(t.Context(), open(t, cfg), request("t", 1)).Err(); err != nil {
		t.Fatal(err)
	}
	cfg.ExtraCIDRs = networks(2)
	if err := open(t, cfg).Admit(t.Context(), owner); err != nil {
		t.Error(err)
	}
	for _, g := range model.Groups.All() {
		for _, r := range g.Rules {
			if strings.HasPrefix(r.Source, "10.1.") {
				t.Errorf("a rule is left: %+v", r)
			}
		}
	}
}

func TestTheGroupOfTheCellsIsAPartThatGoesLast(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{OwnedLeft: 1})
	got, err := runLaunch(t.Context(), c, request("t", 1)).All()
	if err != nil {
		t.Fatal(err)
	}
	parts, err := c.ListOwned(t.Context(), owner)
	n := slices.IndexFunc(parts, func(p cloud.OwnedResource) bool { return p.Kind == "security group" })
	if err != nil || n < 0 || parts[n].Instance != "" || parts[n].Tags[cloud.TagCell]+parts[n].Tags[cloud.TagBatch] != "" {
		t.Fatalf("%+v, %v", parts, err)
	}
	group := parts[n].ID
	if err := c.DeleteOwned(t.Context(), group).Err(); !cloud.Refused(err) {
		t.Errorf("one that is in use: %v", err)
	}
	if err := c.Terminate(t.Context(), got[0].ID).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteOwned(t.Context(), group).Err(); !cloud.Refused(err) {
		t.Errorf("one of which an interface is a member yet: %v", err)
	}
	for _, p := range parts {
		if err := c.DeleteOwned(t.Context(), p.ID).Err(); p.ID != group && err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := c.DeleteOwned(t.Context(), group).Err(); err != nil {
			t.Error(err)
		}
	}
	if slices.ContainsFunc(model.Groups.All(), func(g ec2.Group) bool { return g.ID == group }) {
		t.Error("the group is there")
	}
	// A Kip that runs on makes another.
	if err := runLaunch(t.Context(), c, request("u", 1)).Err(); err != nil {
		t.Error(err)
	}
}

// One answer that lacks what was there before is no absence: no offering is to blame for it.
func TestOneEmptyAnswerIsNoReasonToRefuseALaunch(t *testing.T) {
	for what, action := range map[string]string{
		"subnets":   "DescribeSubnets",
		"the image": "DescribeImages",
		"groups":    "DescribeSecurityGroups",
	} {
		t.Run(what, func(t *testing.T) {
			model, _ := serve(t, anAccount(sim.Knobs{}))
			empty := atomic.Bool{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := r.ParseForm(); err != nil {
					t.Error(err)
				}
				if r.PostForm.Get("Action") == action && empty.Load() {
					fmt.Fprintf(w, "<%sResponse/>", action)
					return
				}
				model.ServeHTTP(w, r)
			}))
			defer server.Close()
			s := settings(server.URL)
			clk := clocktesting.NewFakeClock(time.Now())
			s.Clock = clk
			c := open(t, s)
			r := request("t", 1)
			r.SecurityGroups = []string{"changed"}
			r = resolved(t, c, r)
			resolve := func() error {
				spec := r.LaunchSpec
				spec.Tags = r.TagsOf(0)
				_, err := c.Resolve(t.Context(), spec)
				return err
			}
			c.caches.forget()
			empty.Store(true)
			for range 3 {
				if err := resolve(); err == nil || cloud.Refused(err) {
					t.Fatalf("while EC2 shows nothing for a moment: %v", err)
				}
			}
			empty.Store(false)
			if err := resolve(); err != nil {
				t.Fatalf("when it shows all again: %v", err)
			}
			// What stays away is gone.
			c.caches.forget()
			empty.Store(true)
			if err := resolve(); err == nil || cloud.Refused(err) {
				t.Errorf("at once: %v", err)
			}
			clk.Step(goneAfter)
			if err := resolve(); !cloud.Refused(err) {
				t.Errorf("after %s: %v", goneAfter, err)
			}
		})
	}
}

// One that was just made, or that EC2 shows, will be known to all of EC2: no offering is to blame
// for it, and the call stays as it is.
func TestALaunchWhoseGroupIsNotKnownYetIsToBeRepeated(t *testing.T) {
	model, endpoint := serve(t, anAccount(sim.Knobs{}))
	lying := atomic.Bool{}
	lying.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		if r.PostForm.Get("Action") == "RunInstances" && lying.Load() {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, "<Response><Errors><Error><Code>InvalidGroup.NotFound</Code></Error></Errors></Response>")
			return
		}
		model.ServeHTTP(w, r)
	}))
	defer server.Close()
	maker := open(t, settings(server.URL))
	r := resolved(t, maker, request("t", 1))
	if err := runLaunch(t.Context(), maker, r).Err(); !errors.Is(err, cloud.ErrNotYet) || cloud.Refused(err) || !cloud.NothingDone(err) {
		t.Errorf("by who made it: %v", err)
	}
	other := open(t, settings(server.URL))
	if err := runLaunch(t.Context(), other, r).Err(); !errors.Is(err, cloud.ErrNotYet) || cloud.Refused(err) || !cloud.NothingDone(err) {
		t.Errorf("by another, to whom EC2 shows it: %v", err)
	}
	model.Change(drifts["the cells' group is gone"])
	if err := runLaunch(t.Context(), maker, r).Err(); !errors.Is(err, cloud.ErrNotYet) || cloud.Refused(err) || !cloud.NothingDone(err) {
		t.Errorf("by who just made it, and it is not shown: %v", err)
	}
	if err := runLaunch(t.Context(), other, r).Err(); !errors.Is(err, cloud.ErrStale) {
		t.Errorf("by another, to whom EC2 shows none: %v", err)
	}
	lying.Store(false)
	if err := open(t, settings(endpoint)).Launch(t.Context(), resolved(t, other, request("u", 1))).Err(); err != nil {
		t.Errorf("anew: %v", err)
	}
}

// That the group cannot be made is no refusal of what was to be launched.
func TestAGroupThatCannotBeMadeIsToBlameOnNoOffering(t *testing.T) {
	for code, want := range map[string]cloud.Cause{
		"SecurityGroupLimitExceeded": "",
		"InvalidGroup.Duplicate":     "", // and no look finds it: it is another's
		"RequestLimitExceeded":       cloud.ErrThrottled,
		"UnauthorizedOperation":      cloud.ErrUnauthorised,
	} {
		err := runLaunch(t.Context(), answering(t, "CreateSecurityGroup", 400, code, "words"), request("t", 1)).Err()
		if err == nil || cloud.CauseOf(err) != want || errors.Is(err, cloud.ErrRefused) || !strings.Contains(err.Error(), code) {
			t.Errorf("%s: %v, want %q", code, err, want)
		}
	}
}

// The cells' subnets may be those of another VPC after a change of their tags. What was found for a launch into the old one is not
// used for the new one.
func TestGroupsOfOneVPCAreNoneOfAnother(t *testing.T) {
	account := anAccount(sim.Knobs{})
	account.Groups = append(account.Groups, ec2.Group{ID: "sg-4", Name: "changed", VPC: "vpc-2"})
	_, url := serve(t, account)
	c := open(t, settings(url))
	own := map[string]bool{}
	for in, want := range map[string]string{vpc: "sg-1", "vpc-2": "sg-4"} {
		if got, err := c.groupIDs(t.Context(), in, []string{"changed"}); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("in %s: %v, %v; want %s", in, got, err, want)
		}
		id, err := c.ownGroup(t.Context(), in, owner)
		if err != nil {
			t.Error(err)
		}
		own[id] = true
	}
	if len(own) != 2 {
		t.Errorf("the cells' groups are %v: want one in each VPC", own)
	}
	if _, err := c.groupIDs(t.Context(), "vpc-2", []string{"sg-1"}); err == nil {
		t.Error("vpc-2 has the group sg-1")
	}
}

// Two Kips that make it at once do not hinder each other.
func TestAGroupThatAnotherKipMadeMeanwhileIsTaken(t *testing.T) {
	model, url := serve(t, anAccount(sim.Knobs{}))
	other := open(t, settings(url))
	once := sync.OnceFunc(func() {
		if _, err := other.ownGroup(t.Context(), vpc, owner); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		if r.PostForm.Get("Action") == "CreateSecurityGroup" {
			once()
		}
		model.ServeHTTP(w, r)
	}))
	defer server.Close()
	if err := runLaunch(t.Context(), open(t, settings(server.URL)), request("t", 1)).Err(); err != nil {
		t.Error(err)
	}
}

func TestMoreRulesThanAGroupTakesAreAnErrorAtTheStart(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	for n, want := range map[int]bool{5: true, 11: true, 12: false, 100: false} {
		cfg := settings("http://ec2.test")
		for i := range n {
			cfg.ExtraCIDRs = append(cfg.ExtraCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 32))
		}
		if _, err := New(t.Context(), cfg); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "cells.extraCIDRs") {
			t.Errorf("%d networks: %v", n, err)
		}
	}
}

func TestTheConsoleIsReadAsItWasWritten(t *testing.T) {
	c, _ := newCloud(t, sim.Knobs{})
	got, err := runLaunch(t.Context(), c, request("t", 1)).All()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := c.Console(t.Context(), got[0].ID); err != nil || !strings.Contains(string(text), got[0].ID+" is simulated\n") {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := c.Console(t.Context(), "i-0123456789abcdef0"); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("one that is not there: %v", err)
	}
}

func TestTheCatalogueHasWhatIsOfferedInTheSubnets(t *testing.T) {
	cfg := anAccount(sim.Knobs{})
	cfg.PageSize = 2
	old := cfg.Sim.Catalogue[0]
	old.Name, old.BootModes = "bios.small", []string{"bios"} // Kip's image does not boot on it
	cfg.Sim.Catalogue = append(cfg.Sim.Catalogue, old)
	_, url := serve(t, cfg)
	s := settings(url)
	s.VPC, s.Subnets = "", []string{"subnet-a1", privateSubnet}
	types, err := open(t, s).Catalogue(t.Context())
	if err != nil || len(types) != 4 {
		t.Fatalf("%+v, %v", types, err)
	}
	byName := map[string]catalog.InstanceType{}
	for _, typ := range types {
		byName[typ.Name] = typ
	}
	gpu := catalog.GPU{Model: "A10G", Count: 1, MemoryBytes: 22888 << 20}
	if g := byName["g5.xlarge"]; g.Family != "g and vt" || len(g.GPUs) != 1 || g.GPUs[0] != gpu ||
		g.MilliCPU != 4000 || g.UsableBytes != 16664473109 ||
		g.MemoryBytes != 16*gibi || g.BootTimeout != catalog.BootTimeout {
		t.Errorf("%+v", g)
	}
	if s := byName["t3.small"]; s.BaselineMilliCPU != 400 || s.Family != "standard" || s.Arch != "amd64" ||
		byName["c7g.large"].Arch != "arm64" {
		t.Errorf("%+v, %+v", s, byName["c7g.large"])
	}
	want := []catalog.PurchaseOption{
		{Zone: "us-east-1a", Subnet: "subnet-a1", PricePerHour: 0.08},
		{Zone: "us-east-1a", Subnet: "subnet-a1", Spot: true, PricePerHour: 0.02},
		{Zone: "us-east-1b", Subnet: privateSubnet, PricePerHour: 0.08},
		{Zone: "us-east-1b", Subnet: privateSubnet, Spot: true, PricePerHour: 0.02},
	}
	if got := byName["c5.large"].Offerings; !slices.Equal(got, want) {
		t.Errorf("c5.large is offered at %+v, want %+v", got, want)
	}
}

func TestDedicatedInstancesAreOfferedWhereTheyAreWanted(t *testing.T) {
	_, url := serve(t, anAccount(sim.Knobs{}))
	s := settings(url)
	s.Subnets, s.Dedicated = []string{"subnet-a1"}, true
	types, err := open(t, s).Catalogue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]catalog.PurchaseOption{}
	for _, typ := range types {
		for _, o := range typ.Offerings {
			if o.Dedicated {
				got[typ.Name] = o
			}
		}
	}
	for name, want := range map[string]catalog.PurchaseOption{
		"c5.large": {PricePerHour: 0.088},
		"t3.small": {PricePerHour: 0.022},
	} {
		want.Zone, want.Subnet, want.Dedicated = "us-east-1a", "subnet-a1", true
		if got[name] != want {
			t.Errorf("%s is offered at %+v, want %+v", name, got[name], want)
		}
	}
	if err := catalog.Validate(types); err != nil {
		t.Error(err)
	}
	for name, may := range map[string]bool{"t3.small": true, "t3a.small": false, "t4g.small": false, "m5.large": true} {
		if dedicable(name) != may {
			t.Errorf("%s may be dedicated: %t, want %t", name, !may, may)
		}
	}
}

// What is short of dedicated instances is there beside them, and the other way round.
func TestAShortageOfDedicatedHostsIsOneOfThemAlone(t *testing.T) {
	hosts := sim.Pool{InstanceType: "c5.large", Apart: catalog.Dedicated}
	c, _ := newCloud(t, sim.Knobs{Capacity: []sim.Capacity{{Pool: hosts, Instances: 1}}})
	dedicated := request("dedicated", 2)
	dedicated.CapacityType = cloud.Dedicated
	results := runLaunch(t.Context(), c, dedicated)
	if results[0].Err != nil || !errors.Is(results[1].Err, cloud.ErrCapacity) || cloud.ScopeOf(results[1].Err).Pool != catalog.Dedicated {
		t.Errorf("%+v", results)
	}
	if err := runLaunch(t.Context(), c, request("shared", 1)).Err(); err != nil {
		t.Errorf("beside them: %v", err)
	}
	list, err := c.api.DescribeInstances(t.Context(), &ec2api.DescribeInstancesInput{})
	if err != nil {
		t.Fatal(err)
	}
	tenancies := map[types.Tenancy]int{}
	for _, r := range list.Reservations {
		for _, i := range r.Instances {
			tenancies[i.Placement.Tenancy]++
		}
	}
	if want := (map[types.Tenancy]int{types.TenancyDedicated: 1, types.TenancyDefault: 1}); !maps.Equal(tenancies, want) {
		t.Errorf("%v, want %v", tenancies, want)
	}
}

// EC2 tells Gaudi accelerators as GPUs, on which nothing of NVIDIA's or AMD's runs.
func TestAGPUIsOneOfNVIDIAOrAMD(t *testing.T) {
	for maker, want := range map[string]int{"NVIDIA": 1, "AMD": 1, "": 1, "Habana": 0} {
		gpu := types.GpuDeviceInfo{Name: aws.String("HL-205"), Count: aws.Int32(8)}
		if maker != "" {
			gpu.Manufacturer = aws.String(maker)
		}
		got, is := typeOf(types.InstanceTypeInfo{
			InstanceType:  "dl1.24xlarge",
			Hypervisor:    types.InstanceTypeHypervisorNitro,
			VCpuInfo:      &types.VCpuInfo{DefaultVCpus: aws.Int32(96)},
			MemoryInfo:    &types.MemoryInfo{SizeInMiB: aws.Int64(768 << 10)},
			NetworkInfo:   &types.NetworkInfo{Ipv4AddressesPerInterface: aws.Int32(50)},
			ProcessorInfo: &types.ProcessorInfo{SupportedArchitectures: []types.ArchitectureType{types.ArchitectureTypeX8664}},
			GpuInfo:       &types.GpuInfo{Gpus: []types.GpuDeviceInfo{gpu}},
		})
		if !is || len(got.GPUs) != want {
			t.Errorf("of maker %q: %+v, %t", maker, got, is)
		}
	}
}

// Kip's image boots by UEFI, and finds disks and interfaces of Nitro's.
func TestATypeIsOfNitroAndBootsByUEFI(t *testing.T) {
	for name, tc := range map[string]struct {
		hypervisor types.InstanceTypeHypervisor
		boots      []types.BootModeType
		metal, is  bool
	}{
		"m5.large":  {types.InstanceTypeHypervisorNitro, []types.BootModeType{types.BootModeTypeLegacyBios, types.BootModeTypeUefi}, false, true},
		"m6i.metal": {"", []types.BootModeType{types.BootModeTypeUefi}, true, true},
		"a.told":    {types.InstanceTypeHypervisorNitro, nil, false, true},
		"t2.micro":  {types.InstanceTypeHypervisorXen, []types.BootModeType{types.BootModeTypeLegacyBios}, false, false},
		"i3.large":  {types.InstanceTypeHypervisorXen, nil, false, false},
		"bios":      {types.InstanceTypeHypervisorNitro, []types.BootModeType{types.BootModeTypeLegacyBios}, false, false},
	} {
		if _, is := typeOf(types.InstanceTypeInfo{
			InstanceType:       types.InstanceType(name),
			Hypervisor:         tc.hypervisor,
			BareMetal:          aws.Bool(tc.metal),
			SupportedBootModes: tc.boots,
			VCpuInfo:           &types.VCpuInfo{DefaultVCpus: aws.Int32(2)},
			MemoryInfo:         &types.MemoryInfo{SizeInMiB: aws.Int64(8 << 10)},
			NetworkInfo:        &types.NetworkInfo{Ipv4AddressesPerInterface: aws.Int32(10)},
			ProcessorInfo:      &types.ProcessorInfo{SupportedArchitectures: []types.ArchitectureType{types.ArchitectureTypeX8664}},
		}); is != tc.is {
			t.Errorf("%s can be a cell: %t", name, is)
		}
	}
}

func TestSubnetsMustBeThereAndOfOneVPC(t *testing.T) {
	cfg := anAccount(sim.Knobs{})
	cfg.Subnets[0].Tags = map[string]string{"team": "b", "use": "cells"}
	cfg.Subnets[1].Tags = map[string]string{"team": "a", "use": "cells"}
	cfg.Subnets[2].Tags = cfg.Subnets[1].Tags
	cfg.Subnets[3].Tags = map[string]string{"team": "c"}
	_, url := serve(t, cfg)
	for what, tc := range map[string]struct {
		vpc     string
		subnets []string
		tags    map[string]string
		want    string // of the error; "" for none
		shown   string // the subnets of the first type; "" for any
	}{
		"all of a VPC":          {vpc: vpc},
		"the default ones":      {vpc: defaultVPC},
		"some of it":            {vpc: vpc, subnets: []string{"subnet-a1"}},
		"one that is not there": {subnets: []string{"subnet-a1", "subnet-none"}, want: "EC2 shows only subnet-a1"},
		"of two VPCs":           {subnets: []string{"subnet-a1", "subnet-elsewhere"}, want: "want subnets of one VPC"},
		"of another VPC":        {vpc: vpc, subnets: []string{"subnet-elsewhere"}, want: "want subnets of cloud.aws.vpcID, which is vpc-1"},
		"none":                  {vpc: "vpc-3", want: "there is no subnet of vpc-3"},
		"by tags":               {tags: map[string]string{"use": "cells", "team": "a"}, shown: "subnet-a2 subnet-b1"},
		"by a part of a tag":    {tags: map[string]string{"team": "*"}, vpc: vpc, shown: "subnet-a1 subnet-a2 subnet-b1"},
		"by tags in two VPCs":   {tags: map[string]string{"team": "*"}, want: "want subnets of one VPC"},
		"by tags of none":       {tags: map[string]string{"use": "none"}, want: "no subnet of the region has the tags map[use:none]"},
		"by tags elsewhere":     {tags: map[string]string{"use": "cells"}, vpc: "vpc-2", want: "no subnet of VPC vpc-2 has the tags"},
	} {
		s := settings(url)
		s.VPC, s.Subnets, s.SubnetTags = tc.vpc, tc.subnets, tc.tags
		list, err := open(t, s).Catalogue(t.Context())
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
		if tc.shown == "" {
			continue
		}
		var shown []string
		for _, o := range list[0].Offerings {
			shown = append(shown, o.Subnet)
		}
		if slices.Sort(shown); strings.Join(slices.Compact(shown), " ") != tc.shown {
			t.Errorf("%s: %v, want %s", what, shown, tc.shown)
		}
	}
}

// metadataService is that of an instance in a subnet; no instance when that is empty.
func metadataService(t *testing.T, subnet string) string {
	t.Helper()
	return metadataOf(t, subnet, func() string { return "sg-1\nsg-2" })
}

// metadataOf is that of an instance whose security groups change.
func metadataOf(t *testing.T, subnet string, groups func() string) string {
	t.Helper()
	values := map[string]string{
		"placement/region":                     "eu-west-1",
		"mac":                                  "02:00",
		"network/interfaces/macs/02:00/vpc-id": vpc,
		"network/interfaces/macs/02:00/subnet-id": subnet,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/latest/meta-data/")
		value, ok := values[path]
		if path == "network/interfaces/macs/02:00/security-group-ids" {
			value, ok = groups(), true
		}
		switch {
		case subnet == "":
			http.Error(w, "no", http.StatusForbidden)
		case r.Method == http.MethodPut:
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
			fmt.Fprint(w, "token")
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "token" || !ok:
			http.Error(w, "no", http.StatusNotFound)
		default:
			fmt.Fprint(w, value)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestKipFindsOutWhereItRuns(t *testing.T) {
	const own = "subnet-own"
	here := []netip.Prefix{netip.MustParsePrefix("203.0.113.7/32")}
	for what, tc := range map[string]struct {
		here       string // the subnet that Kip runs in
		env        string
		cfg        Config
		region     string
		subnets    []string
		dialPublic bool
		want       string // of an error
	}{
		"in EC2": {here: own, region: "eu-west-1", subnets: []string{own}},
		"in EC2, told where": {here: own, cfg: Config{Region: "us-west-2", Subnets: []string{"s"}}, region: "us-west-2",
			subnets: []string{"s"}},
		"in EC2, told by the environment": {here: own, env: "us-west-1", region: "us-west-1", subnets: []string{own}},
		"in EC2, told by both": {here: own, env: "us-west-1", cfg: Config{Region: "us-west-2"}, region: "us-west-2",
			subnets: []string{own}},
		"in another VPC":         {here: own, cfg: Config{VPC: "vpc-2", ExtraCIDRs: here}, region: "eu-west-1", dialPublic: true},
		"outside":                {cfg: Config{Region: "us-west-2", VPC: vpc, ExtraCIDRs: here}, region: "us-west-2", dialPublic: true},
		"outside, at no address": {cfg: Config{Region: "us-west-2", VPC: vpc}, want: "cells.extraCIDRs"},
		"outside, at a group's": {cfg: Config{Region: "us-west-2", VPC: vpc, KipSources: []string{"sg-kip", "10.0.0.0/8"}},
			want: "cells.extraCIDRs"},
		"outside, as the file says": {cfg: Config{Region: "us-west-2", VPC: vpc, KipSources: []string{"203.0.113.7/32"}},
			region: "us-west-2", dialPublic: true},
		"outside, with private cells":   {cfg: Config{Region: "us-west-2", VPC: vpc, PrivateOnly: true}, region: "us-west-2"},
		"outside, without a region":     {cfg: Config{VPC: vpc}, want: "cloud.aws.region"},
		"outside, without a subnet":     {cfg: Config{Region: "us-west-2"}, want: "cloud.aws.subnetID"},
		"at another API":                {here: own, cfg: Config{Endpoint: "http://127.0.0.1:1", VPC: vpc}, region: "us-east-1"},
		"at another API, with no place": {here: own, cfg: Config{Endpoint: "http://127.0.0.1:1"}, region: "us-east-1"},
	} {
		for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
			t.Setenv(name, "")
		}
		t.Setenv("AWS_REGION", tc.env)
		t.Setenv("AWS_CONFIG_FILE", "/dev/null")
		tc.cfg.metadata = metadataService(t, tc.here)
		c, err := New(t.Context(), tc.cfg)
		switch {
		case tc.want != "":
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", what, err, tc.want)
			}
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case c.Capabilities().Region != tc.region || !slices.Equal(c.cfg.Subnets, tc.subnets) ||
			(len(c.rules.kipGroups) == 2) != (tc.here != "" && tc.cfg.Endpoint == "" && !tc.dialPublic) ||
			c.Capabilities().DialPublic != tc.dialPublic:
			t.Errorf("%s: %+v, dialled at public addresses %v", what, c.cfg, c.Capabilities().DialPublic)
		}
	}
}

// From outside, an instance without a public address would never join.
func TestFromOutsideOnlyPublicInstancesAreLaunched(t *testing.T) {
	c, model := newCloud(t, sim.Knobs{})
	c.dialPublic = true
	hidden, private := request("a", 1), request("b", 1)
	hidden.PrivateIPOnly = true
	private.Zone, private.Subnet = "us-east-1b", privateSubnet
	for n, r := range []cloud.LaunchRequest{hidden, private} {
		// That a subnet is private is nobody's fault; that a pod wants no public address is.
		err := runLaunch(t.Context(), c, r).Err()
		if want := []string{"", privateSubnet}[n]; !cloud.Refused(err) || cloud.ScopeOf(err).Subnet != want {
			t.Errorf("%v: want a refusal of subnet %q", err, want)
		}
	}
	if err := runLaunch(t.Context(), c, request("c", 1)).Err(); err != nil || model.Calls()["RunInstances"] != 1 {
		t.Errorf("%v, %d launches", err, model.Calls()["RunInstances"])
	}
}

func TestFamiliesAreThoseOfQuotas(t *testing.T) {
	for name, want := range map[string]string{
		"c5.large": "standard", "im4gn.large": "standard", "is4gen.large": "standard", "d3.xlarge": "standard", "h1.2xlarge": "standard",
		"dl1.24xlarge": "dl", "g5.xlarge": "g and vt", "gr6.4xlarge": "g and vt", "vt1.3xlarge": "g and vt", "p5.48xlarge": "p",
		"x2idn.metal": "x",
		"inf2.xlarge": "inf", "trn1.2xlarge": "trn", "u-6tb1.metal": "high memory", "u7i-12tb.224xlarge": "high memory", "hpc7a.96xlarge": "hpc",
		"f1.2xlarge": "f", "mac2.metal": "mac", "": "standard",
	} {
		if got := familyOf(name); got != want {
			t.Errorf("%q is of family %q, want %q", name, got, want)
		}
	}
}

// A Kip with another endpoint must not show AWS the token of its service account.
func TestRolesAreAskedForAtTheEndpointToo(t *testing.T) {
	asked := make(chan string, 10)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		asked <- r.PostForm.Get("Action")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, "<ErrorResponse><Error><Code>ValidationError</Code><Message>words</Message></Error></ErrorResponse>")
	}))
	defer elsewhere.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/kip")
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_STS"} {
		t.Setenv(name, "")
	}
	cfg := settings(elsewhere.URL)
	cfg.AccessKeyID, cfg.SecretAccessKey = "", ""
	// Whatever STS finds fault with is no fault of what EC2 sells.
	if _, err := open(t, cfg).List(t.Context(), owner); !errors.Is(err, cloud.ErrUnauthorised) || errors.Is(err, cloud.ErrRefused) ||
		!cloud.ScopeOf(err).Account {
		t.Errorf("a list without credentials: %v", err)
	}
	select {
	case action := <-asked:
		if action != "AssumeRoleWithWebIdentity" {
			t.Errorf("the first call is %s", action)
		}
	default:
		t.Error("the endpoint was not asked for the role: somebody else was")
	}
}

func TestOnlyTheEndpointsOwnCertificateIsNotVerified(t *testing.T) {
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL_STS",
		"AWS_ENDPOINT_URL_ECR", "AWS_CA_BUNDLE", "HTTPS_PROXY",
	} {
		t.Setenv(name, "")
	}
	secure := func(answer int) (*httptest.Server, *atomic.Int32) {
		var asked atomic.Int32
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(answer)
		}))
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // of who takes no such certificate
		s.StartTLS()
		t.Cleanup(s.Close)
		return s, &asked
	}
	endpoint, atEndpoint := secure(http.StatusBadRequest)
	other, atOther := secure(http.StatusBadRequest)
	try := func(skip bool) error {
		cfg := settings(endpoint.URL + "/")
		cfg.SkipVerify, cfg.ImageRole = skip, imageRole
		c := open(t, cfg)
		_, _ = c.api.DescribeVpcs(t.Context(), &ec2api.DescribeVpcsInput{})
		_, err := c.PullCredentials(t.Context(), registryHere, "team/app")
		keys := credentials.NewStaticCredentialsProvider("a", "b", "c")
		_, _ = c.newECR(registry{region: "us-east-1"}, keys).GetAuthorizationToken(t.Context(), &ecr.GetAuthorizationTokenInput{})
		return err
	}
	if err := try(false); err == nil || !strings.Contains(err.Error(), "certificate") || atEndpoint.Load() != 0 {
		t.Errorf("%v after %d calls, of an endpoint whose certificate nobody has signed", err, atEndpoint.Load())
	}
	if err := try(true); atEndpoint.Load() != 3 { // EC2's, STS', ECR's
		t.Errorf("%v after %d calls, want 3", err, atEndpoint.Load())
	}
	// Those that the environment has elsewhere are verified.
	t.Setenv("AWS_ENDPOINT_URL_STS", other.URL)
	t.Setenv("AWS_ENDPOINT_URL_ECR", other.URL)
	atEndpoint.Store(0)
	if err := try(true); err == nil || !strings.Contains(err.Error(), "certificate") || atOther.Load() != 0 || atEndpoint.Load() != 1 {
		t.Errorf("%v after %d calls of the endpoint and %d of another", err, atEndpoint.Load(), atOther.Load())
	}
	// So is whom the SDK asks for Kip's own credentials.
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/kip")
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file)
	cfg := settings(endpoint.URL)
	cfg.AccessKeyID, cfg.SecretAccessKey, cfg.SkipVerify = "", "", true
	list := func() error {
		_, err := open(t, cfg).List(t.Context(), owner)
		return err
	}
	if err := list(); err == nil || !strings.Contains(err.Error(), "certificate") || atOther.Load() != 0 {
		t.Errorf("%v after %d calls of another", err, atOther.Load())
	}
	t.Setenv("AWS_ENDPOINT_URL_STS", "")
	atEndpoint.Store(0)
	if err := list(); err == nil || atEndpoint.Load() != 1 {
		t.Errorf("%v after %d calls of the endpoint", err, atEndpoint.Load())
	}
}

func TestAProxyOnTheWayToTheEndpointIsVerified(t *testing.T) {
	var asked, proxied atomic.Int32
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer endpoint.Close()
	at, err := url.Parse(endpoint.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxied.Add(1)
		if err := tunnelTo(r.Context(), w, r.Host); err != nil {
			t.Error(err)
		}
	}))
	proxy.Config.ErrorLog = log.New(io.Discard, "", 0) // of who takes no such certificate
	proxy.StartTLS()
	defer proxy.Close()
	through, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	get := func(change func(*http.Transport)) error {
		transport := anyCertificate(at)
		change(transport)
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get(endpoint.URL)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	if err := get(func(*http.Transport) {}); err != nil || asked.Load() != 1 {
		t.Errorf("%v after %d calls of the endpoint", err, asked.Load())
	}
	err = get(func(tr *http.Transport) { tr.Proxy = http.ProxyURL(through) })
	if err == nil || !strings.Contains(err.Error(), "certificate") || proxied.Load() != 0 || asked.Load() != 1 {
		t.Errorf("%v after %d calls by a proxy whose certificate nobody has signed", err, proxied.Load())
	}
	plain := httptest.NewServer(proxy.Config.Handler)
	defer plain.Close()
	if through, err = url.Parse(plain.URL); err != nil {
		t.Fatal(err)
	}
	err = get(func(tr *http.Transport) { tr.Proxy = http.ProxyURL(through) })
	if err != nil || proxied.Load() != 1 || asked.Load() != 2 {
		t.Errorf("%v after %d calls by a proxy, and %d", err, proxied.Load(), asked.Load())
	}
}

func TestAnEndpointThatNeverShakesHandsIsNotWaitedFor(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // whose connections nobody takes
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	transport := anyCertificate(&url.URL{Scheme: "https", Host: silent.Addr().String()})
	transport.TLSHandshakeTimeout = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+silent.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transport.RoundTrip(request); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}

// tunnelTo answers a proxy's CONNECT, until one side has ended.
func tunnelTo(ctx context.Context, w http.ResponseWriter, host string) error {
	there, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer there.Close()
	w.WriteHeader(http.StatusOK)
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer here.Close()
	var sent sync.WaitGroup
	sent.Go(func() {
		_, _ = io.Copy(there, buffered) // who asked has gone
		there.Close()
	})
	_, _ = io.Copy(here, there)
	here.Close()
	sent.Wait()
	return nil
}

func TestARedirectOfTheEndpointIsNotFollowedToWhomeverItIs(t *testing.T) {
	var asked atomic.Int32
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	endpoint := httptest.NewTLSServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer endpoint.Close()
	cfg := settings(endpoint.URL)
	cfg.SkipVerify = true
	if _, err := open(t, cfg).List(t.Context(), owner); err == nil || asked.Load() != 0 {
		t.Errorf("%v after %d calls of another", err, asked.Load())
	}
}

// bodyThatEnds is as the SDK's, once that is closed.
type bodyThatEnds struct{ io.ReadCloser }

func (bodyThatEnds) WriteTo(io.Writer) (int64, error) { return 0, io.EOF }

func TestAnAnswerOutlivesTheBodyOfItsRequest(t *testing.T) {
	const asked, answered = "Action=DescribeInstances", "<DescribeInstancesResponse/>"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got, err := io.ReadAll(r.Body); string(got) != asked || err != nil {
			t.Errorf("the server read %q, %v", got, err)
		}
		if _, err := io.WriteString(w, answered); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL,
		bodyThatEnds{io.NopCloser(strings.NewReader(asked))})
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = int64(len(asked))
	resp, err := bounded{server.Client()}.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); string(got) != answered || err != nil {
		t.Errorf("the answer is %q, %v", got, err)
	}
}

func TestAnEndpointAloneIsEnough(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIATESTS")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	model, url := serve(t, anAccount(sim.Knobs{}))
	c := withImage{open(t, Config{Endpoint: url})}
	types, err := c.Catalogue(t.Context())
	if err != nil || len(types) == 0 || c.Capabilities().Region != "us-east-1" {
		t.Fatalf("%d types in %q: %v", len(types), c.Capabilities().Region, err)
	}
	for _, typ := range types {
		for _, o := range typ.Offerings {
			if o.Subnet != "subnet-a1" {
				t.Errorf("%s is offered in %s: want the default VPC's subnet", typ.Name, o.Subnet)
			}
		}
	}
	r := cloud.LaunchRequest{
		Token: "t",
		LaunchSpec: cloud.LaunchSpec{
			InstanceType: types[0].Name,
			Zone:         types[0].Offerings[0].Zone,
			Subnet:       types[0].Offerings[0].Subnet,
			Tags:         map[string]string{cloud.TagOwner: "me"},
		},
		Machines: make([]cloud.Machine, 1),
	}
	if err := c.Launch(t.Context(), r).Err(); err != nil {
		t.Error(err)
	}
	model.Change(func(c *ec2.Config) { c.Subnets[0].Default = false })
	const want = "there is no subnet of a default VPC: want cloud.aws.subnetID, or a cloud.aws.vpcID that has some"
	if _, err := open(t, Config{Endpoint: url}).Catalogue(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("without a default VPC: %v: want %q", err, want)
	}
}

// Such as one that a person has added.
func TestARuleByAPrefixListIsSeenAndCanBeRevoked(t *testing.T) {
	all := []rule{
		{"tcp", agentPort, agentPort, "pl-0123456789abcdef0"}, {"tcp", agentPort, agentPort, "10.0.0.0/8"},
		{"udp", 0, 65535, "fd00::/8"}, {"tcp", agentPort, agentPort, "sg-1"},
	}
	var want []describedRule
	for _, r := range all {
		want = append(want, describedRule{r, ownDescription})
	}
	if got := rulesOf(permissionsOf(all)); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
