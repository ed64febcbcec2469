package kip

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/internal/clouds"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/instancetypes"
	"github.com/elotl/kip/internal/offering"
	"github.com/elotl/kip/internal/pods"
)

// configured loads a provider.yaml.
func configured(t *testing.T, text string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "provider.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: v1\nkind: serverConfig\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestCellsAreLaunchedOnTheEC2ThatIsConfigured(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	model, err := ec2.New(ec2.Config{
		Sim: sim.Config{Catalogue: []catalog.InstanceType{{
			Name: "t3.nano", MilliCPU: 2000, MemoryBytes: 1 << 29, Arch: "amd64", Offerings: []catalog.PurchaseOption{{Zone: "us-west-2a",
				Subnet: "subnet-1"}},
		}}},
		Region:  "us-west-2",
		Subnets: []ec2.Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "us-west-2a"}},
		Groups:  []ec2.Group{{ID: "sg-1", Name: "cells", VPC: "vpc-1"}},
		Images:  []ec2.Image{{ID: "ami-1", Name: "kip-1", Owner: "self", RootDevice: "/dev/xvda", GiB: 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(model)
	t.Cleanup(server.Close)
	t.Cleanup(func() { model.Close() })
	cfg := configured(t, fmt.Sprintf(`cloud: {aws: {endpointURL: '%s', region: us-west-2, subnetID: subnet-1, accessKeyID: AKIA, secretAccessKey: x}}
cells: {defaultInstanceType: t3.nano, bootImageSpec: {name: kip-*}, extraSecurityGroups: [cells], defaultVolumeSize: 3Gi}
`, server.URL))
	c, closeIt, err := clouds.Shipped().Open(t.Context(), cfg, clouds.By{Owner: "kip-a", Facts: allHold{}}, silent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeIt(); err != nil {
			t.Error(err)
		}
	})
	types, err := c.Catalogue(t.Context())
	if err != nil || c.Capabilities().Region != "us-west-2" {
		t.Fatalf("%v in %q", err, c.Capabilities().Region)
	}
	made := offering.Of(&types[0], &types[0].Offerings[0], cfg.Cells.DefaultVolumeSize.Value())
	o := launchOptions(cfg)
	r := cloud.LaunchRequest{
		Token: "t",
		LaunchSpec: cloud.LaunchSpec{
			InstanceType:  made.InstanceType,
			Zone:          made.Zone,
			Subnet:        made.Subnet,
			RootDiskBytes: made.DiskBytes,
			Options:       cloud.Options{Image: o.Image, SecurityGroups: o.SecurityGroups},
			Tags:          map[string]string{cloud.TagOwner: "me"},
		},
		UserData: []byte("data"),
		Machines: make([]cloud.Machine, 2),
	}
	// Of an account where all facts hold, one is that several instances get no secondary addresses.
	found, err := c.Optional().Resolver.Resolve(t.Context(), r.LaunchSpec)
	if err != nil || found.SecondaryAddress {
		t.Fatalf("launches are not resolved by the facts that are kept: %+v, %v", found, err)
	}
	r.Resolved = &found
	if err := c.Launch(t.Context(), r).Err(); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), "me")
	if err != nil || len(list.Instances) != 2 || len(model.Machines().Truth()) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
}

// allHold are facts of an account, all of which hold.
type allHold struct{}

func (allHold) Holds(string) bool          { return true }
func (allHold) Note(string, time.Duration) {}

func TestGrantsAreWhatTheConfigurationSays(t *testing.T) {
	const least = "cloud: {aws: {endpointURL: 'http://127.0.0.1:1', subnetID: subnet-1}}\ncells: {defaultInstanceType: t3.nano, "
	for text, want := range map[string]pods.Grants{
		"":                         {PublicAddress: true, MaxVolumeBytes: 100 << 30, MaxKeptCells: 3},
		"privateIPOnly: true":      {MaxVolumeBytes: 100 << 30, MaxKeptCells: 3},
		"defaultVolumeSize: 200Gi": {PublicAddress: true, MaxVolumeBytes: 200 << 30, MaxKeptCells: 3},
		"grants: {maxVolumeSize: 0, maxKeepFailed: 60}": {PublicAddress: true, MaxKeepFailed: time.Minute, MaxKeptCells: 3},
		"grants: {unrestricted: true, maxKeepFailed: 60, maxKeptCells: 1}": {Unrestricted: true, PublicAddress: true,
			MaxVolumeBytes: 100 << 30, MaxKeepFailed: time.Minute, MaxKeptCells: 1},
		"grants: {maxVolumeSize: 0, maxKeepFailed: 0, unsafeSysctls: [net.*], namespaces: [{namespace: a, hostSysctls: [vm.*], hostModules: [ip_vs], unsafeSysctls: [kernel.sem]}]}": {
			PublicAddress: true, MaxKeptCells: 3, UnsafeSysctls: []string{"net.*"},
			Namespaces: []pods.NamespaceGrants{{
				Namespace: "a", HostSysctls: []string{"vm.*"}, HostModules: []string{"ip_vs"}, UnsafeSysctls: []string{"kernel.sem"},
			}},
		},
		"privateIPOnly: true, grants: {maxVolumeSize: 7Gi, maxPricePerHour: 2, namespaces: [{namespace: a, maxVolumeSize: 9Gi, maxKeepFailed: 7200, publicAddress: true, dedicated: true}, {namespace: b}]}": {
			MaxVolumeBytes: 7 << 30, MaxPricePerHour: 2, MaxKeptCells: 3,
			Namespaces: []pods.NamespaceGrants{{Namespace: "a", MaxVolumeBytes: 9 << 30, MaxKeepFailed: 2 * time.Hour, PublicAddress: true, Dedicated: true}, {Namespace: "b"}},
		},
	} {
		if got := grants(configured(t, least+text+"}")); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestCellsGoOverToTheAgentThatIsConfigured(t *testing.T) {
	const least = "cloud: {local: {}}\ncells: {defaultInstanceType: nano"
	digests := map[string]string{"amd64": strings.Repeat("a", 64), "arm64": strings.Repeat("b", 64)}
	with := configured(t, least+", itzo: {version: v2, url: 'https://example.com/kip/', sha256: {amd64: "+digests["amd64"]+
		", arm64: "+digests["arm64"]+"}}}")
	want := &agentapi.Agent{Version: "v2", URL: "https://example.com/kip/", SHA256: digests}
	if got := agentOf(with); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := want.Source("arm64"); got != "https://example.com/kip/itzo-v2-arm64" {
		t.Errorf("it is fetched from %s", got)
	}
	without := configured(t, least+"}")
	if got := agentOf(without); got != nil {
		t.Errorf("without the keys it is %+v", got)
	}
	if template(with, "ca") == template(without, "ca") {
		t.Error("a standby cell with another agent is taken for one of the image's")
	}
}

// A standby cell that no pod can be given would be kept for ever, and paid.
func TestStandbyCellsOfOtherDisksOrSubnetsAreReplaced(t *testing.T) {
	text := func(subnets, more string) *config.Config {
		return configured(t, "cloud: {aws: {endpointURL: 'http://127.0.0.1:1', "+subnets+"}}\ncells: {defaultInstanceType: t3.nano"+more+"}")
	}
	is := template(text("subnetID: subnet-1", ""), "ca")
	if again := template(text("subnetID: subnet-1", ""), "ca"); again != is {
		t.Error("the same is another")
	}
	for what, other := range map[string][2]*config.Config{
		"a larger disk":     {text("subnetID: subnet-1", ""), text("subnetID: subnet-1", ", defaultVolumeSize: 20Gi")},
		"another subnet":    {text("subnetID: subnet-1", ""), text("subnetID: subnet-2", "")},
		"another VPC":       {text("vpcID: vpc-1", ""), text("vpcID: vpc-2", "")},
		"a public address":  {text("subnetID: subnet-1", ""), text("subnetID: subnet-1, publicAddress: true", "")},
		"subnets by others": {text("subnetTags: {a: b}", ""), text("subnetTags: {a: c}", "")},
	} {
		if template(other[0], "ca") == template(other[1], "ca") {
			t.Errorf("with %s they are the same", what)
		}
	}
}

func TestWhatWouldHaveNoEffectOnEC2IsRefused(t *testing.T) {
	const least = "cloud: {aws: {endpointURL: 'http://127.0.0.1:1', subnetID: subnet-1}}\ncells: {defaultInstanceType: t3.nano, "
	const image, group = "bootImageSpec: {imageID: ami-1}", "extraSecurityGroups: [a]"
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for cells, want := range map[string]string{
		image + "," + group:                     "",
		group:                                   "cells.bootImageSpec",
		group + ", bootImageSpec: {filters: x}": `cells.bootImageSpec: filters has "x"`,
		image:                                   "",
		image + "," + group + ", extraCIDRs: [10.0.0.0/8]":                                          "",
		image + "," + group + ", useCloudParameterStore: true":                                      "cells.useCloudParameterStore",
		image + "," + group + ", cloudInitFile: " + file:                                            "",
		image + "," + group + ", grants: {namespaces: [{namespace: a, cloudRoutes: [10.0.0.0/8]}]}": "",
	} {
		_, closeIt, err := clouds.Shipped().Open(t.Context(), configured(t, least+cells+"}"), clouds.By{}, silent)
		if (err == nil) != (closeIt != nil) || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", cells, err, want)
		}
	}
}

func TestAnOfferKeepsItsReservation(t *testing.T) {
	got := offering.Of(&catalog.InstanceType{Name: "m5.large"}, &catalog.PurchaseOption{Zone: "a", Reservation: "cr-1", PricePerHour: 3}, 0)
	if got.Reservation != "cr-1" || got.PricePerHour != 3 || got.Key().Pool != "cr-1" ||
		instancetypes.Shortage(got, cloud.ErrCapacity).Pool != "cr-1" {
		t.Errorf("%+v", got)
	}
}

func TestDedicatedHostsAreOfferedWhereACellMayBeOnThem(t *testing.T) {
	const least = "cloud: {aws: {endpointURL: 'http://127.0.0.1:1', subnetID: subnet-1}}\ncells: {defaultInstanceType: t3.nano, "
	for cells, want := range map[string]bool{
		"":                                       false,
		"grants: {namespaces: [{namespace: a}]}": false,
		"grants: {namespaces: [{namespace: a, dedicated: true}]}":  true,
		"grants: {unrestricted: true}":                             true,
		"standbyCells: [{instanceType: t3.nano, dedicated: true}]": true,
	} {
		if got := configured(t, least+cells+"}").Cells.MayBeDedicated(); got != want {
			t.Errorf("%s: %t, want %t", cells, got, want)
		}
	}
}

// A Kip that waits for another to go would else begin, and say so only when it has its turn.
func TestWhatThisBuildHasNotIsSaidBeforeAnythingBegins(t *testing.T) {
	for text, want := range map[string]string{
		"cloud: {aws: {}}\ncells: {defaultInstanceType: x, bootImageSpec: {name: a, nme: b}}":                                  "cells.bootImageSpec",
		"cloud: {aws: {}}\ncells: {defaultInstanceType: x, bootImageSpec: {name: a}, useCloudParameterStore: true}":            "cells.useCloudParameterStore",
		"cloud: {gce: {projectID: p, zone: z, vpcName: v, subnetName: s}}\ncells: {defaultInstanceType: x, bootImageSpec: {}}": "cloud.gce",
		"cloud: {sim: {socket: /run/cloud.sock}}\ncells: {defaultInstanceType: x}":                                             "cloud.sim",
	} {
		path := filepath.Join(t.TempDir(), "provider.yaml")
		if err := os.WriteFile(path, []byte("apiVersion: v1\nkind: serverConfig\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		// No kubeconfig is there, nor is a file of instance data.
		err := Run(t.Context(), Options{
			Clouds: clouds.Shipped(), ProviderConfig: path, InstanceDataPath: "/nowhere", Log: slog.New(slog.DiscardHandler),
		})
		if err == nil || !strings.Contains(err.Error(), want+": ") {
			t.Errorf("%s: %v, want one of %s", text, err, want)
		}
	}
}
