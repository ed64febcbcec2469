package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

var update = flag.Bool("update", false, "write docs/provider-configuration.md")

// agent begins what names another agent, and digests ends it.
const (
	agent   = "  itzo:\n    version: v1\n"
	digests = "    sha256: {arm64: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}\n"
)

const least = `cloud:
  local: {}
cells:
  defaultInstanceType: nano
`

// full sets every key that is not deprecated, with one cloud.
const full = `apiVersion: v1
kind: serverConfig
cloud:
  aws:
    region: us-gov-west-1
    accessKeyID: AKIAEXAMPLE
    secretAccessKey: very-secret
    vpcID: vpc-1
    subnetID: subnet-1
    ecr:
      roleARN: arn:aws-us-gov:iam::123456789012:role/path/kip-images
      pullThroughCache: true
    kipSources: [10.0.3.7/32, sg-1]
    clusterName: prod.example.com
    kmsKeyID: alias/cells
    securityGroupTags: {kubernetes.io/cluster/prod: owned}
    capacityReservations: {ids: [cr-1], tags: {team: a}}
    dedicatedHosts: {ids: [h-1], tags: {team: b}}
    cpuCredits: standard
    endpointURL: https://ec2.example.com:8443
    endpoints: {sts: 'https://sts.example.com', ecr: 'https://ecr.example.com', pricing: 'https://p.example.com'}
    insecureTLSSkipVerify: true
    useFIPS: false
    publicAddress: true
etcd:
  internal:
    dataDir: /var/lib/kip
    configFile: /etc/kip/etcd.yaml
  encryptionKeyFiles: [/etc/kip/new.key, /etc/kip/old.key]
cells:
  bootImageSpec:
    owners: "689494258501"
  defaultInstanceType: t3.nano
  defaultVolumeSize: 15Gi
  reservedMemory: 128Mi
  standbyCells:
  - instanceType: t3.nano
    count: 2
    zone: us-gov-west-1a
    spot: true
  - {instanceType: m5.large, dedicated: true, stopped: true}
  maxAttempts: 7
  interruptionPenalty: 25
  spotSpread: 5
  cloudInitFile: /etc/kip/cloudinit.yaml
  itzo:
    version: v1.0.1
    url: https://example.com/itzo
    sha256: {amd64: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
  extraCIDRs: [10.20.0.0/16, "2001:db8::/32"]
  extraSecurityGroups:
  - sg-1
  tags: {cost-center: "42", Größe: ""}
  nametag: team-a
  statusInterval: 2.5
  endLimit: {percent: 25, least: 3, window: 120}
  caOverlap: 600
  maxAge: 2592000
  healthcheck:
    cloudAPI:
      interval: 30
      healthyTimeout: 120
  privateIPOnly: true
  masquerade: false
  defaultIAMPermissions: arn:aws:iam::1:instance-profile/x
  useCloudParameterStore: true
  grants:
    maxPricePerHour: 1.5
    maxVolumeSize: 50Gi
    maxKeepFailed: 1800
    maxKeptCells: 2
    namespaces:
    - namespace: team-a
      instanceProfiles: [reader, team-a-*]
      securityGroups: [sg-2]
      cloudRoutes: [10.30.0.0/16]
      allowMetadata: true
      instanceTypes: [m5.*]
      maxPricePerHour: 20
      publicAddress: true
      dedicated: true
      maxVolumeSize: 2Ti
      maxKeepFailed: 86400
  prices:
  - instanceTypes: [c5.*, m5.large]
    regions: [us-gov-west-1]
    spot: true
    discount: 27.5
  - pricePerHour: 0.04
  - prefer: 5
  - exclude: true
  registryMirrors:
    docker.io: [http://10.110.0.1:5000, https://mirror.example.com]
    _default:
    - http://10.110.0.1:5000
kubelet:
  capacity:
    cpu: 100
    nvidia.com/gpu: 8
  labels:
    team: a
    example.com/tier: "1"
nodes:
- suffix: 7
  zones: [us-gov-west-1a]
  architectures: [arm64, amd64]
  launchTypes: [spot, on-demand]
  instanceTypes: [g*, m5.large]
  labels: {team: b}
  taints:
  - {key: gpu, value: "yes"}
  - {key: gpu, effect: NoExecute}
  capacity: {cpu: 50}
- {}
servingCertificate:
  signerName: beta.eks.amazonaws.com/app-serving
  requester: node
  approve: true
testing:
  controllerID: abc-123
`

func parsed(t *testing.T, text string) (*Config, []Warning) {
	t.Helper()
	c, warnings, err := Parse("provider.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c, warnings
}

// asJSON makes equal what means the same: a Quantity can be represented in several ways.
func asJSON(t *testing.T, c Config) string {
	t.Helper()
	out, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestDefaults(t *testing.T) {
	c, warnings := parsed(t, least)
	if len(warnings) > 0 {
		t.Errorf("warnings %v", warnings)
	}
	want := Config{
		APIVersion: "v1",
		Kind:       "serverConfig",
		Cloud: Cloud{Local: &Local{StateDir: "/opt/kip/local", RootDir: "/opt/kip/cell-root", Bridge: "kip0",
			CIDR: netip.MustParsePrefix("10.110.0.0/16"), Zones: []string{"local"}}},
		Etcd: Etcd{Internal: EtcdInternal{DataDir: "/opt/kip/data"}},
		Cells: Cells{
			DefaultInstanceType: "nano",
			DefaultVolumeSize:   resource.MustParse("5Gi"),
			ReservedMemory:      resource.MustParse("64Mi"),
			MaxAttempts:         5,
			InterruptionPenalty: 10,
			SpotSpread:          10,
			StatusInterval:      5 * time.Second,
			Grants:              Grants{MaxPricePerHour: resource.MustParse("0"), MaxVolumeSize: resource.MustParse("100Gi"), MaxKeptCells: 3},
			Healthcheck:         Healthcheck{Status: &HealthcheckStatus{HealthyTimeout: 90 * time.Second}},
			EndLimit:            EndLimit{Percent: 10, Least: 10, Window: 5 * time.Minute},
			CAOverlap:           5 * time.Minute,
			Masquerade:          true,
		},
		Kubelet: Kubelet{Capacity: corev1.ResourceList{"cpu": resource.MustParse("20"), "memory": resource.MustParse("100Gi"),
			"ephemeral-storage": resource.MustParse("100Gi"), "pods": resource.MustParse("20")}},
	}
	if got, want := asJSON(t, *c), asJSON(t, want); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	c, warnings := parsed(t, full)
	if len(warnings) > 0 {
		t.Errorf("warnings %v", warnings)
	}
	want := Config{
		APIVersion: "v1",
		Kind:       "serverConfig",
		Cloud: Cloud{AWS: &AWS{Region: "us-gov-west-1", AccessKeyID: "AKIAEXAMPLE", SecretAccessKey: "very-secret", VPCID: "vpc-1",
			SubnetID:    "subnet-1",
			CPUCredits:  "standard",
			ECR:         ECR{RoleARN: "arn:aws-us-gov:iam::123456789012:role/path/kip-images", PullThroughCache: true},
			EndpointURL: "https://ec2.example.com:8443", InsecureTLSSkipVerify: true,
			Endpoints: AWSEndpoints{
				STS:     "https://sts.example.com",
				ECR:     "https://ecr.example.com",
				Pricing: "https://p.example.com",
			},
			KipSources:           []string{"10.0.3.7/32", "sg-1"},
			PublicAddress:        true,
			ClusterName:          "prod.example.com",
			KMSKeyID:             "alias/cells",
			SecurityGroupTags:    map[string]string{"kubernetes.io/cluster/prod": "owned"},
			CapacityReservations: CapacityReservations{IDs: []string{"cr-1"}, Tags: map[string]string{"team": "a"}},
			DedicatedHosts:       DedicatedHosts{IDs: []string{"h-1"}, Tags: map[string]string{"team": "b"}}}},
		Etcd: Etcd{Internal: EtcdInternal{DataDir: "/var/lib/kip", ConfigFile: "/etc/kip/etcd.yaml"},
			EncryptionKeyFiles: []string{"/etc/kip/new.key", "/etc/kip/old.key"}},
		Cells: Cells{
			BootImageSpec:       map[string]string{"owners": "689494258501"},
			DefaultInstanceType: "t3.nano",
			DefaultVolumeSize:   resource.MustParse("15Gi"),
			ReservedMemory:      resource.MustParse("128Mi"),
			StandbyCells: []StandbyCells{{InstanceType: "t3.nano", Count: 2, Zone: "us-gov-west-1a", Spot: true},
				{InstanceType: "m5.large", Dedicated: true, Stopped: true}},
			MaxAttempts:         7,
			CloudInitFile:       "/etc/kip/cloudinit.yaml",
			InterruptionPenalty: 25,
			SpotSpread:          5,
			Itzo: Itzo{
				Version: "v1.0.1",
				URL:     "https://example.com/itzo",
				SHA256:  map[string]string{"amd64": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
			},
			ExtraCIDRs:             []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("2001:db8::/32")},
			ExtraSecurityGroups:    []string{"sg-1"},
			Tags:                   map[string]string{"cost-center": "42", "Größe": ""},
			Nametag:                "team-a",
			StatusInterval:         2500 * time.Millisecond,
			Healthcheck:            Healthcheck{CloudAPI: &HealthcheckCloudAPI{Interval: 30 * time.Second, HealthyTimeout: 2 * time.Minute}},
			EndLimit:               EndLimit{Percent: 25, Least: 3, Window: 2 * time.Minute},
			CAOverlap:              10 * time.Minute,
			MaxAge:                 30 * 24 * time.Hour,
			PrivateIPOnly:          true,
			DefaultIAMPermissions:  "arn:aws:iam::1:instance-profile/x",
			UseCloudParameterStore: true,
			Grants: Grants{MaxPricePerHour: resource.MustParse("1.5"), MaxVolumeSize: resource.MustParse("50Gi"), MaxKeepFailed: 30 * time.Minute,
				MaxKeptCells: 2, Namespaces: []NamespaceGrants{{
					Namespace:        "team-a",
					InstanceProfiles: []string{"reader", "team-a-*"},
					SecurityGroups:   []string{"sg-2"},
					CloudRoutes:      []netip.Prefix{netip.MustParsePrefix("10.30.0.0/16")},
					AllowMetadata:    true,
					InstanceTypes:    []string{"m5.*"},
					MaxPricePerHour:  resource.MustParse("20"),
					PublicAddress:    true,
					Dedicated:        true,
					MaxVolumeSize:    resource.MustParse("2Ti"),
					MaxKeepFailed:    24 * time.Hour,
				}}},
			Prices: []Price{{
				InstanceTypes: []string{"c5.*", "m5.large"},
				Regions:       []string{"us-gov-west-1"},
				Spot:          true,
				Discount:      resource.MustParse("27.5"),
			}, {PricePerHour: resource.MustParse("0.04")}, {Prefer: resource.MustParse("5")}, {Exclude: true}},
			RegistryMirrors: map[string][]string{"docker.io": {"http://10.110.0.1:5000", "https://mirror.example.com"},
				"_default": {"http://10.110.0.1:5000"}},
		},
		Kubelet: Kubelet{
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("100"), "memory": resource.MustParse("100Gi"),
				"ephemeral-storage": resource.MustParse("100Gi"), "pods": resource.MustParse("20"), "nvidia.com/gpu": resource.MustParse("8")},
			Labels: map[string]string{"team": "a", "example.com/tier": "1"},
		},
		Nodes: []Node{{
			Suffix:        new(7),
			Zones:         []string{"us-gov-west-1a"},
			Architectures: []string{"arm64", "amd64"},
			LaunchTypes:   []string{"spot", "on-demand"},
			InstanceTypes: []string{"g*", "m5.large"},
			Labels:        map[string]string{"team": "b"},
			Taints:        []Taint{{Key: "gpu", Value: "yes", Effect: "NoSchedule"}, {Key: "gpu", Effect: "NoExecute"}},
			Capacity:      corev1.ResourceList{"cpu": resource.MustParse("50")},
		}, {}},
		Testing:            Testing{ControllerID: "abc-123"},
		ServingCertificate: ServingCertificate{SignerName: "beta.eks.amazonaws.com/app-serving", Requester: RequesterNode, Approve: true},
	}
	if got, want := asJSON(t, *c), asJSON(t, want); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	capacity, auto := c.CapacityOf(c.Nodes[0])
	cpu, pods := capacity["cpu"], capacity["pods"]
	if cpu.Value() != 50 || pods.Value() != 20 || len(c.Nodes[0].Capacity) != 1 || auto != nil {
		t.Errorf("a node's capacity is cpu %s, pods %s: want its own of cpu, and that of kubelet.capacity", &cpu, &pods)
	}
	if l := c.LabelsOf(c.Nodes[0]); l["team"] != "b" || l["example.com/tier"] != "1" || c.LabelsOf(c.Nodes[1])["team"] != "a" {
		t.Errorf("a node's labels are %v: want its own before kubelet.labels", l)
	}
}

func TestOtherForms(t *testing.T) {
	keeps := func(memory string) func(*Config) bool {
		return func(c *Config) bool { return c.Cells.ReservedMemory.Cmp(resource.MustParse(memory)) == 0 }
	}
	for name, c := range map[string]struct {
		text  string
		holds func(*Config) bool
	}{
		"a cloud without keys is chosen": {"cloud:\n  local:\ncells: {defaultInstanceType: nano}",
			func(c *Config) bool { return c.Cloud.Local.Bridge == "kip0" }},
		"a key without a value is as if not there": {least + "  nametag:\n  statusInterval:\nkubelet:\n  cpu:\netcd:\n", func(c *Config) bool {
			return c.Cells.StatusInterval == 5*time.Second && c.Kubelet.CPU == nil && c.Etcd.Internal.DataDir == "/opt/kip/data"
		}},
		"name servers": {"cloud: {local: {nameservers: [10.0.0.1, '2001:db8::1']}}\ncells: {defaultInstanceType: x}", func(c *Config) bool {
			return len(c.Cloud.Local.Nameservers) == 2 && c.Cloud.Local.Nameservers[1].String() == "2001:db8::1"
		}},
		"virtual machines": {"cloud: {qemu: }\ncells: {defaultInstanceType: x}", func(c *Config) bool {
			q := c.Cloud.QEMU
			return c.Cloud.Name() == "qemu" && q.Accelerator == "auto" && !q.Hugepages && q.Bridge == "kip0" && q.StateDir == "/opt/kip/qemu"
		}},
		"cells with a kernel of their own": {"cloud: {qemu: }\ncells: {defaultInstanceType: x}", keeps("128Mi")},
		"EC2 instances":                    {"cloud: {aws: }\ncells: {defaultInstanceType: x, bootImageSpec: {imageID: ami-1}}", keeps("128Mi")},
		"cells on Kip's kernel":            {least, keeps("64Mi")},
		"cells on Kip's kernel, by null":   {least + "  reservedMemory:\n", keeps("64Mi")},
		"cells on Kip's kernel, but more":  {least + "  reservedMemory: 128Mi\n", keeps("128Mi")},
		"simulated cells":                  {"cloud: {sim: {socket: /s}}\ncells: {defaultInstanceType: x}", keeps("64Mi")},
		"VMs, but none":                    {"cloud: {qemu: }\ncells: {defaultInstanceType: x, reservedMemory: 0}", keeps("0")},
		"VMs, but less":                    {"cloud: {qemu: }\ncells: {defaultInstanceType: x, reservedMemory: 32Mi}", keeps("32Mi")},
		"JSON": {`{"cloud": {"local": {"cidr": "10.9.0.0/24"}}, "cells": {"defaultInstanceType": "nano"}}`,
			func(c *Config) bool { return c.Cloud.Local.CIDR.String() == "10.9.0.0/24" }},
		"comments, a ---": {"# mine\n---\n" + least, func(c *Config) bool { return c.Cells.DefaultInstanceType == "nano" }},
		"an alias": {"cloud: {local: {stateDir: &d /srv, rootDir: *d}}\ncells: {defaultInstanceType: nano}",
			func(c *Config) bool { return c.Cloud.Local.RootDir == "/srv" }},
		"gce": {"cloud: {gce: {projectID: p, zone: us-west1-a, credentials: {clientEmail: a@b, privateKey: k}}}\ncells: {defaultInstanceType: n1}", func(c *Config) bool { return c.Cloud.GCE.Credentials.PrivateKey.Reveal() == "k" }},
		"azure": {"cloud: {azure: {subscriptionID: s, location: East US, resourceGroup: g}}\ncells: {defaultInstanceType: B1s}",
			func(c *Config) bool { return c.Cloud.Azure.Location == "East US" }},
		"any region": {"cloud: {aws: {region: RegionOne, endpointURL: 'https://x'}}\ncells: {defaultInstanceType: m1}",
			func(c *Config) bool { return c.Cloud.AWS.Region == "RegionOne" }},
		"subnets as a list": {"cloud: {aws: {subnetID: [subnet-1, subnet-2]}}\ncells: {defaultInstanceType: m1}",
			func(c *Config) bool { return slices.Equal(c.Cloud.AWS.Subnets(), []string{"subnet-1", "subnet-2"}) }},
		"no region": {"cloud: {aws: {}}\ncells: {defaultInstanceType: m1}",
			func(c *Config) bool { return c.Cloud.AWS.Region == "" }},
		"an external etcd": {least + "etcd: {client: {endpoints: ['https://a:2379'], certFile: c, keyFile: k, caFile: a}}",
			func(c *Config) bool { return c.Etcd.Client.CAFile == "a" }},
		"an etcd without TLS": {least + "etcd: {client: {allowPlainText: true, endpoints: ['http://127.0.0.1:2379', 'http://[::1]:2379/']}}",
			func(c *Config) bool { return len(c.Etcd.Client.Endpoints) == 2 }},
		"an etcd whose CA the host knows": {least + "etcd: {client: {endpoints: ['https://a:2379']}}",
			func(c *Config) bool { return c.Etcd.Client.CAFile == "" }},
		"no bound to attempts": {least + "  maxAttempts: 0", func(c *Config) bool { return c.Cells.MaxAttempts == 0 }},
		"a running and a stopped pool of a type": {least +
			"  standbyCells: [{instanceType: nano, count: 1}, {instanceType: nano, zone: local, count: 1}, {instanceType: nano, count: 9, stopped: true}]", func(c *Config) bool {
			return len(c.Cells.StandbyCells) == 3 && c.Cells.StandbyCells[2].Stopped && c.Cells.StandbyCells[1].Zone == "local"
		}},
		"pools in zones": {"cloud: {gce: {}}\ncells: {defaultInstanceType: n1, standbyCells: [{instanceType: n1, zone: us-west1-a}, {instanceType: n1, zone: us-west1-b}]}", func(c *Config) bool {
			return c.Cells.StandbyCells[1].Zone == "us-west1-b"
		}},
		"a node for each zone": {least + "nodes: zones", func(c *Config) bool { return c.AutoNodes == NodesZones && c.Nodes == nil }},
		"nodes by themselves":  {least + "nodes: auto", func(c *Config) bool { return c.AutoNodes == NodesAuto && c.Nodes == nil }},
		"nodes that differ by their suffix and labels": {least + "nodes: [{suffix: 0}, {suffix: 1, labels: {a: b}}]",
			func(c *Config) bool { return c.AutoNodes == "" && *c.Nodes[0].Suffix == 0 }},
		"local zones": {"cloud: {local: {zones: [a, b]}}\ncells: {defaultInstanceType: x}\nnodes: [{zones: [a]}, {zones: [b]}]",
			func(c *Config) bool { return len(c.Cloud.Local.Zones) == 2 && c.Nodes[1].Zones[0] == "b" }},
		"status by itself": {least + "  healthcheck: {status: {healthyTimeout: 15}}",
			func(c *Config) bool { return c.Cells.Healthcheck.Status.HealthyTimeout == 15*time.Second }},
		"cloudAPI defaults": {least + "  healthcheck: {cloudAPI: }", func(c *Config) bool {
			return *c.Cells.Healthcheck.CloudAPI == HealthcheckCloudAPI{time.Minute, 3 * time.Minute}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c2, warnings := parsed(t, c.text); !c.holds(c2) || len(warnings) > 0 {
				t.Errorf("not as it should be: %+v, warnings %v", c2, warnings)
			}
		})
	}
}

const wantsNamespaced = "want a namespaced sysctl, or the beginning of some and a *: " +
	"kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* or net.*, or within these"

func TestErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "p.yaml:1: the file is empty: want at least cloud and cells.defaultInstanceType"},
		{"comments only", "# nothing\n", "p.yaml:1: the file is empty: want at least cloud and cells.defaultInstanceType"},
		{"null", "---\n",
			"p.yaml:1: cells.defaultInstanceType: there is no value: this key is required\np.yaml:1: cloud: none is there: want exactly one of local, qemu, aws, gce, azure, sim"},
		{"a text", "hello",
			"p.yaml:1: a single value is not valid: want keys and values: apiVersion, kind, cloud, etcd, cells, kubelet, nodes, admission, costs, testing, servingCertificate"},
		{"no YAML", "a:\n  b: [", "p.yaml:2: no valid YAML: did not find expected node content"},
		{"a tab", "cells:\n\tnametag: x", "p.yaml:2: no valid YAML: found character that cannot start any token"},
		{"two documents", least + "---\na: b\n", "p.yaml:5: a second document begins here: want one only"},
		{"a second document that is no YAML", least + "---\na: [", "p.yaml:6: no valid YAML: did not find expected node content"},

		{"unknown key", least + "  nametagg: x", "p.yaml:5: cells.nametagg: no such key; did you mean cells.nametag?"},
		{"wrong case", least + "  nameTag: x", "p.yaml:5: cells.nameTag: no such key; did you mean cells.nametag?"},
		{"key in a wrong place", least + "nametag: x", "p.yaml:5: nametag: no such key; did you mean cells.nametag?"},
		{"unknown key, nothing near", least + "testing: {zzz: x}", "p.yaml:5: testing.zzz: no such key: want one of controllerID"},
		{"empty key", least + "'': x", "p.yaml:5: \"\": no such key: want one of apiVersion, kind, cloud, etcd, cells, kubelet, nodes, admission, costs, testing, servingCertificate"},
		{"key that is no text", least + "[a]: x", "p.yaml:5: a key is no text"},
		{"duplicate key", least + "  nametag: a\n  nametag: b", "p.yaml:6: cells.nametag: this key is there twice: first on line 5"},
		{"duplicate section", least + "cells: {}", "p.yaml:5: cells: this key is there twice: first on line 3"},
		{"duplicate name", least + "  cellConfig: {a: b, a: c}", "p.yaml:5: cells.cellConfig.a: this key is there twice: first on line 5"},

		{"nodes: a text", least + "nodes: automatic", `p.yaml:5: nodes: "automatic" is not valid: want a list`},
		{"nodes: none", least + "nodes: []", "p.yaml:5: nodes: the list is empty: want virtual nodes, auto, zones, or no such key, for one node"},
		{"nodes: too many", least + "nodes: [" + strings.Repeat("{labels: {a: b}}, ", 65) + "]",
			"p.yaml:5: nodes: there are 65: want at most 64"},
		{"nodes: the same twice", least + "nodes:\n- {suffix: 1, zones: [local]}\n- {suffix: 2, zones: [local]}",
			"p.yaml:7: nodes[1]: is the same as nodes[0]: want one of them, or one that differs"},
		{"nodes: what offers the same", least + "nodes:\n- {launchTypes: [spot, on-demand]}\n- {launchTypes: [on-demand, spot], labels: {a: b}}",
			"p.yaml:7: nodes[1]: offers the same as nodes[0]: want a suffix for one of them at least, by which Kip knows it"},
		{"nodes: a number twice", least + "nodes:\n- suffix: 3\n- {suffix: 3, labels: {a: b}}",
			"p.yaml:7: nodes[1].suffix: nodes[0] has 3 too: want another"},
		{"nodes: a number too large", least + "nodes: [{suffix: 65}]", `p.yaml:5: nodes[0].suffix: "65" is not valid: want 0 to 64`},
		{"nodes: a zone that the local cloud lacks", least + "nodes: [{zones: [mars]}]",
			`p.yaml:5: nodes[0].zones[0]: "mars" is not valid: want one of cloud.local.zones: local`},
		{"nodes: a zone twice", "cloud: {aws: {}}\ncells: {defaultInstanceType: x}\nnodes: [{zones: [a, a]}]",
			`p.yaml:3: nodes[0].zones[1]: "a" is not valid: want each once`},
		{"nodes: an unknown architecture", least + "nodes: [{architectures: [x86_64]}]",
			`p.yaml:5: nodes[0].architectures[0]: "x86_64" is not valid: want amd64, arm64`},
		{"nodes: an unknown launch type", least + "nodes: [{launchTypes: [Spot]}]",
			`p.yaml:5: nodes[0].launchTypes[0]: "Spot" is not valid: want on-demand, spot, dedicated`},
		{"nodes: an empty pattern", least + "nodes: [{instanceTypes: ['']}]",
			"p.yaml:5: nodes[0].instanceTypes[0]: there is no value: this key is required"},
		{"nodes: a label of Kip's", least + "nodes: [{labels: {kubernetes.io/arch: arm64}}]",
			`p.yaml:5: nodes[0].labels.kubernetes.io/arch: "arm64" is not valid: Kip sets this label by what the node is`},
		{"nodes: the role", least + "nodes: [{labels: {kubernetes.io/role: master}}]",
			`p.yaml:5: nodes[0].labels.kubernetes.io/role: "master" is not valid: Kip sets this label by what the node is`},
		{"nodes: an unknown effect", least + "nodes: [{taints: [{key: a, effect: Never}]}]",
			`p.yaml:5: nodes[0].taints[0].effect: "Never" is not valid: want NoSchedule, PreferNoSchedule, NoExecute`},
		{"nodes: a taint twice", least + "nodes: [{taints: [{key: a}, {key: a, value: b}]}]",
			"p.yaml:5: nodes[0].taints[1]: taints[0] has the same key and effect: want one of them"},
		{"nodes: a capacity below 0", least + "nodes: [{capacity: {cpu: -1}}]",
			`p.yaml:5: nodes[0].capacity.cpu: "-1" is not valid: want 0 or more`},
		{"a local zone that is no name", "cloud: {local: {zones: [A]}}\ncells: {defaultInstanceType: x}", `p.yaml:1: cloud.local.zones[0]: "A" is no name of a zone: a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?'); such as local`},
		{"no local zone", "cloud: {local: {zones: []}}\ncells: {defaultInstanceType: x}",
			"p.yaml:1: cloud.local.zones: there are 0: want 1 to 16"},

		{"section that is a text", "cloud: local\ncells: {defaultInstanceType: nano}",
			"p.yaml:1: cloud: a single value is not valid: want keys and values: local, qemu, aws, gce, azure, sim"},
		{"section that is a list", "cloud: {local: }\ncells: [a]", "p.yaml:2: cells: a list is not valid: want keys and values: " +
			strings.Join(keysOf(reflect.TypeFor[Cells]()), ", ")},
		{"number for a text", least + "  nametag: 7", `p.yaml:5: cells.nametag: "7" is not valid: want a text: put it in quotes`},
		{"list for a text", least + "  nametag: [a]", `p.yaml:5: cells.nametag: a list is not valid: want a text`},
		{"text for a bool", least + "  privateIPOnly: yes", `p.yaml:5: cells.privateIPOnly: "yes" is not valid: want true or false`},
		{"text for a number", least + "  statusInterval: 5s", `p.yaml:5: cells.statusInterval: "5s" is not valid: want a number of seconds`},
		{"no number", least + "  statusInterval: .nan", `p.yaml:5: cells.statusInterval: ".nan" is not valid: want a number of seconds`},
		{"too many seconds", least + "  statusInterval: 1e20", `p.yaml:5: cells.statusInterval: "1e20" is not valid: want a number of seconds`},
		{"fraction for a count", least + "  standbyCells: [{instanceType: x, count: 1.5}]",
			`p.yaml:5: cells.standbyCells[0].count: "1.5" is not valid: want a whole number`},
		{"text for a list", least + "  extraCIDRs: 10.0.0.0/8", `p.yaml:5: cells.extraCIDRs: "10.0.0.0/8" is not valid: want a list`},
		{"list item without a value", least + "  extraCIDRs:\n  -",
			`p.yaml:6: cells.extraCIDRs[0]: there is no value: want a CIDR such as 10.20.0.0/16`},
		{"cache of images", least + "  cellConfig:\n    imageCacheEndpoint: fs-1:/",
			"p.yaml:6: cells.cellConfig.imageCacheEndpoint: it has no effect any more: want none; for images from nearby there is cells.registryMirrors"},
		{"flag of itzo", least + "  cellConfig: {itzoFlag-v: '5'}",
			"p.yaml:5: cells.cellConfig.itzoFlag-v: it has no effect any more: want none; " +
				"the agent's flags are those of its unit, on an image of your own (systemctl edit itzo, by runcmd in cells.cloudInitFile)"},
		{"logs to AWS", least + "  cellConfig: {fluentdAWSRegion: x}", "p.yaml:5: cells.cellConfig.fluentdAWSRegion: it has no effect any more: want none; " +
			"an agent of logs or figures is started by runcmd in cells.cloudInitFile, on an image of your own, or runs in the pod"},
		{"figures to AWS", least + "  cellConfig: {awsCWAgentRegion: x}", "p.yaml:5: cells.cellConfig.awsCWAgentRegion: it has no effect any more: want none; " +
			"an agent of logs or figures is started by runcmd in cells.cloudInitFile, on an image of your own, or runs in the pod"},
		{"any other setting", least + "  cellConfig: {a: b}", "p.yaml:5: cells.cellConfig.a: it has no effect any more: want none; " +
			"files and commands are given to cells by cells.cloudInitFile"},
		{"list for a mapping", least + "  cellConfig: [a]", `p.yaml:5: cells.cellConfig: a list is not valid: want names, each with a text`},
		{"name without a value", least + "  cellConfig:\n    a:", `p.yaml:6: cells.cellConfig.a: there is no value: want a text`},
		{"number in a mapping of texts", least + "kubelet: {labels: {a: 1}}",
			`p.yaml:5: kubelet.labels.a: "1" is not valid: want a text: put it in quotes`},
		{"bad quantity", least + "  reservedMemory: 64MB",
			`p.yaml:5: cells.reservedMemory: "64MB" is not valid: want a quantity such as 5Gi or 500m`},
		{"quantity that takes for ever", least + "  reservedMemory: 1e-999999999",
			`p.yaml:5: cells.reservedMemory: "1e-999999999" is not valid: want a quantity such as 5Gi or 500m`},
		{"bool for a quantity", least + "  reservedMemory: true",
			`p.yaml:5: cells.reservedMemory: "true" is not valid: want a quantity such as 5Gi or 500m`},
		{"bad CIDR", least + "  extraCIDRs: [10.0.0.0]",
			`p.yaml:5: cells.extraCIDRs[0]: "10.0.0.0" is not valid: want a CIDR such as 10.20.0.0/16`},
		{"CIDR with a host", least + "  extraCIDRs:\n  - 10.0.0.0/8\n  - 10.1.2.3/16",
			`p.yaml:7: cells.extraCIDRs[1]: "10.1.2.3/16" is not valid: want a CIDR such as 10.20.0.0/16: did you mean 10.1.0.0/16?`},
		{"long value", least + "  statusInterval: " + strings.Repeat("x", 100), `p.yaml:5: cells.statusInterval: "` + strings.Repeat("x", 80) +
			`…" is not valid: want a number of seconds`},

		{"apiVersion", "apiVersion: v2\n" + least, `p.yaml:1: apiVersion: "v2" is not valid: want v1`},
		{"kind", "kind: Config\n" + least, `p.yaml:1: kind: "Config" is not valid: want serverConfig`},
		{"no cloud", "cloud: {}\ncells: {defaultInstanceType: nano}",
			`p.yaml:1: cloud: none is there: want exactly one of local, qemu, aws, gce, azure, sim`},
		{"two clouds", "cloud:\n  local:\n  aws:\ncells: {defaultInstanceType: nano}",
			`p.yaml:1: cloud: local and aws are there: want exactly one of local, qemu, aws, gce, azure, sim`},
		{"FILL_IN", "cloud: {azure: {subscriptionID: FILL_IN, location: x, resourceGroup: g}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.azure.subscriptionID: FILL_IN is a placeholder: replace it, or remove the key`},
		{"region", "cloud: {aws: {region: us-east-1a}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.region: "us-east-1a" is not valid: want a region such as us-east-1`},
		{"FIPS elsewhere", "cloud: {aws: {useFIPS: true, endpointURL: 'https://x'}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.useFIPS: "true" is not valid: want false, since cloud.aws.endpointURL says whom to ask`},
		{"FIPS in China", "cloud: {aws: {useFIPS: true, region: cn-north-1}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.useFIPS: "true" is not valid: want false, since AWS has no such endpoints in China`},
		{"endpoint", "cloud: {aws: {endpointURL: ec2.example.com}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.endpointURL: "ec2.example.com" is not valid: want a URL such as https://ec2.example.com`},
		{"another endpoint", "cloud: {aws: {endpointURL: 'https://x', endpoints: {ecr: ecr.example.com}}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.endpoints.ecr: "ecr.example.com" is not valid: want a URL such as https://ecr.example.com`},
		{"an endpoint of AWS", "cloud: {aws: {endpoints: {pricing: 'https://x'}}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.endpoints.pricing: "https://x" is not valid: want none, since there is no cloud.aws.endpointURL`},
		{"a role's name", "cloud:\n  aws:\n    ecr: {roleARN: kip-images}\ncells: {defaultInstanceType: x}",
			`p.yaml:3: cloud.aws.ecr.roleARN: "kip-images" is not valid: want the ARN of a role such as arn:aws:iam::123456789012:role/kip-images`},
		{"a profile", "cloud:\n  aws:\n    ecr: {roleARN: 'arn:aws:iam::123456789012:instance-profile/x'}\ncells: {defaultInstanceType: x}",
			`p.yaml:3: cloud.aws.ecr.roleARN: "arn:aws:iam::123456789012:instance-profile/x" is not valid: ` +
				`want the ARN of a role such as arn:aws:iam::123456789012:role/kip-images`},
		{"a place of Kip's that is none", "cloud:\n  aws:\n    kipSources: [10.0.0.0/16, kip.example.com]\ncells: {defaultInstanceType: x}",
			`p.yaml:3: cloud.aws.kipSources[1]: "kip.example.com" is not valid: want a network such as 10.0.3.7/32, or the ID of a security group ` +
				"such as sg-0123456789abcdef0"},
		{"a rate that EBS has not", "cloud: {aws: {volumeInitializationRate: 99}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.volumeInitializationRate: "99" is not valid: want 100 to 300, or 0 for no rate`},
		{"credits that EC2 has not", "cloud: {aws: {cpuCredits: free}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.cpuCredits: "free" is not valid: want boot, standard or unlimited`},
		{"credits of an unknown price", "cloud: {aws: {region: cn-north-1, cpuCredits: unlimited}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.cpuCredits: "unlimited" is not valid: want boot or standard, since the price of credits in China is not known`},
		{"a subnet that is no text", "cloud: {aws: {subnetID: [subnet-1, [subnet-2]]}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.subnetID[1]: a list is not valid: want a text`},
		{"subnets in two ways", "cloud: {aws: {subnetID: subnet-1, subnetTags: {a: b}}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.subnetTags: "map[a:b]" is not valid: want none, since there is cloud.aws.subnetID`},
		{"a tag without a key", "cloud: {aws: {subnetTags: {'': b}}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.subnetTags: "" is not valid: want keys that are not empty`},
		{"a host's ARN", "cloud: {aws: {dedicatedHosts: {ids: ['arn:aws:ec2:x']}}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.dedicatedHosts.ids[0]: "arn:aws:ec2:x" is not valid: want an ID such as h-0123456789abcdef0`},
		{"a reservation's ARN", "cloud: {aws: {capacityReservations: {ids: [cr-1, 'arn:aws:ec2:x']}}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.capacityReservations.ids[1]: "arn:aws:ec2:x" is not valid: want an ID such as cr-0123456789abcdef0`},
		{"a price of dedicated spot", "cloud: {aws: {}}\ncells: {defaultInstanceType: x, prices: [{spot: true, dedicated: true, discount: 5}]}",
			`p.yaml:2: cells.prices[0].dedicated: spot is true too: want only one of them`},
		{"a preference of dedicated instances", "cloud: {aws: {}}\ncells: {defaultInstanceType: x, prices: [{dedicated: true, prefer: 5}]}",
			`p.yaml:2: cells.prices[0].dedicated: there is no discount and no pricePerHour that it would be about`},
		{"half an access key", "cloud: {aws: {accessKeyID: a}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.aws.secretAccessKey: there is no value: cloud.aws.accessKeyID needs it`},
		{"two credentials", "cloud: {gce: {credentialsFile: f, credentials: {clientEmail: e, privateKey: k}}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.gce.credentials: credentialsFile is there too: want only one of them`},
		{"half of the credentials", "cloud:\n  gce:\n    credentials: {clientEmail: e}\ncells: {defaultInstanceType: x}",
			`p.yaml:3: cloud.gce.credentials.privateKey: there is no value: this key is required`},
		{"no location", "cloud: {azure: {subscriptionID: s, resourceGroup: g}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.azure.location: there is no value: this key is required`},
		{"bridge", "cloud: {local: {bridge: a-bridge-with-a-long-name}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.bridge: "a-bridge-with-a-long-name" is not valid: want the name of a network device: at most 15 letters, digits, dots, dashes and underscores`},
		{"IPv6 for cells", "cloud: {local: {cidr: '2001:db8::/64'}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.cidr: "2001:db8::/64" is not valid: want an IPv4 network from /8 to /28`},
		{"IPv4 for IPv6", "cloud: {local: {ipv6CIDR: 10.0.0.0/8}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.ipv6CIDR: "10.0.0.0/8" is not valid: want an IPv6 network from /16 to /96, such as fd10:110::/64`},
		{"little IPv6", "cloud: {local: {ipv6CIDR: 'fd00::/112'}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.ipv6CIDR: "fd00::/112" is not valid: want an IPv6 network from /16 to /96, such as fd10:110::/64`},
		{"no room for cells", "cloud: {local: {cidr: 10.0.0.0/30}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.cidr: "10.0.0.0/30" is not valid: want an IPv4 network from /8 to /28`},
		{"name of a name server", "cloud: {local: {nameservers: [10.0.0.1, dns.example.com]}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.nameservers[1]: "dns.example.com" is not valid: want an IP address such as 10.20.0.1`},
		{"virtual machines' network", "cloud: {qemu: {cidr: 10.0.0.0/30, zones: []}}\ncells: {defaultInstanceType: x}",
			"p.yaml:1: cloud.qemu.cidr: \"10.0.0.0/30\" is not valid: want an IPv4 network from /8 to /28\n" +
				"p.yaml:1: cloud.qemu.zones: there are 0: want 1 to 16"},
		{"virtual machines' image", "cloud: {qemu: {image: /srv/cell.vhd}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.qemu.image: "/srv/cell.vhd" is not valid: want a file whose name ends in .qcow2 or .raw`},
		{"accelerator", "cloud: {qemu: {accelerator: xen}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.qemu.accelerator: "xen" is not valid: want auto, kvm, tcg`},
		{"zone of virtual machines", "cloud: {qemu: }\ncells: {defaultInstanceType: x, standbyCells: [{instanceType: x, zone: us-east-1a}]}",
			`p.yaml:2: cells.standbyCells[0].zone: "us-east-1a" is not valid: want one of cloud.qemu.zones: local`},
		{"GPUs", "cloud: {local: {gpus: 17}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.gpus: "17" is not valid: want a number from 0 to 16`},
		{"fewer than no GPUs", "cloud: {local: {gpus: -1}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.gpus: "-1" is not valid: want a number from 0 to 16`},
		{"no state folder", "cloud: {local: {stateDir: ''}}\ncells: {defaultInstanceType: x}",
			`p.yaml:1: cloud.local.stateDir: there is no value: this key is required`},

		{"etcd endpoint", least + "etcd:\n  client:\n    endpoints:\n    - https://a:2379\n    - b:2379",
			`p.yaml:9: etcd.client.endpoints[1]: "b:2379" is not valid: want a URL such as https://etcd-0:2379`},
		{"etcd endpoint without a port", least + "etcd: {client: {endpoints: ['https://etcd-0']}}",
			`p.yaml:5: etcd.client.endpoints[0]: "https://etcd-0" is not valid: want a URL such as https://etcd-0:2379`},
		{"etcd endpoint with a path", least + "etcd: {client: {endpoints: ['https://etcd-0:2379/v3']}}",
			`p.yaml:5: etcd.client.endpoints[0]: "https://etcd-0:2379/v3" is not valid: want a URL such as https://etcd-0:2379`},
		{"etcd endpoints with and without TLS", least + "etcd: {client: {endpoints: ['https://a:2379', 'http://b:2379']}}",
			`p.yaml:5: etcd.client.endpoints[1]: "http://b:2379" is not valid: want https, as in the endpoints before it`},
		{"etcd certificate without TLS", least + "etcd: {client: {allowPlainText: true, endpoints: ['http://a:2379'], certFile: c, keyFile: k}}",
			"p.yaml:5: etcd.client.certFile: the etcd.client.endpoints are http, without TLS: want https, or no etcd.client.certFile\n" +
				"p.yaml:5: etcd.client.keyFile: the etcd.client.endpoints are http, without TLS: want https, or no etcd.client.keyFile"},
		{"etcd CA without TLS", least + "etcd: {client: {allowPlainText: true, endpoints: ['http://a:2379'], caFile: c}}",
			"p.yaml:5: etcd.client.caFile: the etcd.client.endpoints are http, without TLS: want https, or no etcd.client.caFile"},
		{"etcd in plain text", least + "etcd: {client: {endpoints: ['http://a:2379', 'http://b:2379']}}",
			"p.yaml:5: etcd.client.endpoints[0]: \"http://a:2379\" is not valid: want https, or etcd.client.allowPlainText: true where nobody else is on the way\n" +
				"p.yaml:5: etcd.client.endpoints[1]: \"http://b:2379\" is not valid: want https, or etcd.client.allowPlainText: true where nobody else is on the way"},
		{"encryption key twice, and none", least + "etcd: {encryptionKeyFiles: [/a, /a, '']}",
			"p.yaml:5: etcd.encryptionKeyFiles[1]: \"/a\" is not valid: want each file once\n" +
				"p.yaml:5: etcd.encryptionKeyFiles[2]: there is no value: this key is required"},
		{"grants that undo each other", least + "  grants: {unrestricted: true, namespaces: [{namespace: a, hostSysctls: [vm.*]}, {namespace: a, allowMetadata: true}]}",
			"p.yaml:5: cells.grants.unrestricted: true is not valid beside bounds, or grants of cells.grants.namespaces other than besidePods, hostSysctls, hostModules, unsafeSysctls and maxKeepFailed, which it would undo: want only one of them"},
		{"a bound that is undone", least + "  grants: {unrestricted: true, maxVolumeSize: 100Gi}",
			"p.yaml:5: cells.grants.unrestricted: true is not valid beside bounds, or grants of cells.grants.namespaces other than besidePods, hostSysctls, hostModules, unsafeSysctls and maxKeepFailed, which it would undo: want only one of them"},
		{"sizes of disks", least + "  grants:\n    maxVolumeSize: -1Gi\n    namespaces:\n    - {namespace: a, maxVolumeSize: 100G}\n" +
			"    - {namespace: a, maxVolumeSize: 1Gi}",
			"p.yaml:6: cells.grants.maxVolumeSize: \"-1Gi\" is not valid: want 0, for no bound, or a whole number of Gi\n" +
				"p.yaml:8: cells.grants.namespaces[0].maxVolumeSize: \"100G\" is not valid: want 0, for no bound, or a whole number of Gi"},
		{"no larger disks", least + "  grants:\n    namespaces:\n    - {namespace: a, maxVolumeSize: 100Gi}",
			"p.yaml:7: cells.grants.namespaces[0].maxVolumeSize: \"100Gi\" is not valid: want more than cells.grants.maxVolumeSize, which bounds all namespaces"},
		{"a short life", least + "  maxAge: 3599", "p.yaml:5: cells.maxAge: \"3599\" is not valid: want 0, for any age, or at least 3600 seconds"},
		{"times for which failed cells are kept", least + "  grants:\n    maxKeepFailed: 604801\n    namespaces:\n" +
			"    - {namespace: a, maxKeepFailed: -1}\n",
			"p.yaml:6: cells.grants.maxKeepFailed: \"604801\" is not valid: want 0, for not at all, or seconds, at most 604800\n" +
				"p.yaml:8: cells.grants.namespaces[0].maxKeepFailed: \"-1\" is not valid: want 0, for not at all, or seconds, at most 604800"},
		{"a bound on cells that are kept", least + "  grants:\n    maxKeptCells: 0\n",
			"p.yaml:6: cells.grants.maxKeptCells: \"0\" is not valid: want at least 1; maxKeepFailed: 0 keeps none"},
		{"no longer kept", least + "  grants:\n    maxKeepFailed: 60\n    namespaces:\n    - {namespace: a, maxKeepFailed: 60}",
			"p.yaml:8: cells.grants.namespaces[0].maxKeepFailed: \"60\" is not valid: want more than cells.grants.maxKeepFailed, which all namespaces have"},
		{"grants", least + "  grants:\n    maxPricePerHour: 2\n    namespaces:\n    - {}\n    - {namespace: A_b}\n    - {namespace: a, instanceProfiles: ['a*b']}\n" +
			"    - {namespace: a, securityGroups: ['']}\n    - {namespace: a, maxPricePerHour: 1.5}",
			"p.yaml:8: cells.grants.namespaces[0].namespace: there is no value: this key is required\n" +
				"p.yaml:9: cells.grants.namespaces[1].namespace: \"A_b\" is not valid: want the name of a namespace, or *\n" +
				"p.yaml:10: cells.grants.namespaces[2].instanceProfiles[0]: \"a*b\" is not valid: want a value, or the beginning of one and a * at its end\n" +
				"p.yaml:11: cells.grants.namespaces[3].securityGroups[0]: there is no value: this key is required\n" +
				"p.yaml:12: cells.grants.namespaces[4].maxPricePerHour: \"1500m\" is not valid: want more than cells.grants.maxPricePerHour, which bounds all namespaces"},
		{"prices", least + "  prices:\n  - {discount: 10}\n  - {}\n  - {discount: 100}\n  - {prefer: 5, exclude: true}\n" +
			"  - {instanceTypes: ['c5.?', ''], pricePerHour: -1}\n  - {spot: true, exclude: true}",
			"p.yaml:7: cells.prices[1]: want one of discount, pricePerHour, prefer and exclude: there are 0\n" +
				"p.yaml:8: cells.prices[2].discount: \"100\" is not valid: want above 0, and at most 99.99\n" +
				"p.yaml:9: cells.prices[3]: want one of discount, pricePerHour, prefer and exclude: there are 2\n" +
				"p.yaml:10: cells.prices[4].instanceTypes[0]: \"c5.?\" is not valid: want a name, or of types a pattern such as c5.*\n" +
				"p.yaml:10: cells.prices[4].instanceTypes[1]: there is no value: this key is required\n" +
				"p.yaml:10: cells.prices[4].pricePerHour: \"-1\" is not valid: want above 0, and at most 10000\n" +
				"p.yaml:11: cells.prices[5].spot: there is no discount and no pricePerHour that it would be about"},
		{"budgets", least + "  budgets:\n  - {namespace: a, maxCostPerHour: 1}\n  - {namespace: a, maxCostPerMonth: -1}\n  - {maxCostPerHour: -2}\n" +
			"  - {namespace: A_b, maxCostPerMonth: 1}\n  - {namespace: '*'}",
			"p.yaml:7: cells.budgets[1].maxCostPerMonth: \"-1\" is not valid: want 0, for no bound, or more\n" +
				"p.yaml:7: cells.budgets[1].namespace: a is there already: cells.budgets[0] has it\n" +
				"p.yaml:8: cells.budgets[2].maxCostPerHour: \"-2\" is not valid: want 0, for no bound, or more\n" +
				"p.yaml:8: cells.budgets[2].namespace: there is no value: this key is required\n" +
				"p.yaml:9: cells.budgets[3].namespace: \"A_b\" is not valid: want the name of a namespace, or *\n" +
				"p.yaml:10: cells.budgets[4]: want maxCostPerHour or maxCostPerMonth: there is no bound"},
		{"a signer that is none", least + "servingCertificate: {signerName: kubelet-serving, requester: me}",
			"p.yaml:5: servingCertificate.requester: \"me\" is not valid: want node or kip\n" +
				"p.yaml:5: servingCertificate.signerName: \"kubelet-serving\" is not valid: want a name such as example.com/serving"},
		{"a signer of clients", least + "servingCertificate: {signerName: kubernetes.io/kube-apiserver-client}",
			"p.yaml:5: servingCertificate.signerName: \"kubernetes.io/kube-apiserver-client\" is not valid: want kubernetes.io/kubelet-serving: " +
				"the others of that domain sign certificates of clients"},
		{"no signer", least + "servingCertificate: {approve: true}",
			"p.yaml:5: servingCertificate.signerName: there is no value, but there are requester or approve: want a signer such as " +
				"kubernetes.io/kubelet-serving"},
		{"too many labels of costs", least + "costs:\n  labels: [a, b, c, d, e, f]",
			"p.yaml:6: costs.labels: there are 6: want at most 5"},
		{"labels of costs that are none", least + "costs:\n  labels: [team, a b, '', team, example.com/stage]",
			"p.yaml:6: costs.labels[1]: \"a b\" is no name of a label: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')\n" +
				"p.yaml:6: costs.labels[2]: there is no value: this key is required\n" +
				"p.yaml:6: costs.labels[3]: team is there already: costs.labels[0] has it"},
		{"sysctls that no pod has for itself", least + "  grants:\n    unsafeSysctls: ['net.*', 'kernel.*']\n    namespaces:\n" +
			"    - {namespace: a, hostSysctls: ['vm.*', 'a*b'], hostModules: [''], unsafeSysctls: [vm.swappiness, 'net.*.x']}",
			"p.yaml:6: cells.grants.unsafeSysctls[1]: \"kernel.*\" is not valid: " + wantsNamespaced + "\n" +
				"p.yaml:8: cells.grants.namespaces[0].hostModules[0]: there is no value: this key is required\n" +
				"p.yaml:8: cells.grants.namespaces[0].hostSysctls[1]: \"a*b\" is not valid: want a value, or the beginning of one and a * at its end\n" +
				"p.yaml:8: cells.grants.namespaces[0].unsafeSysctls[0]: \"vm.swappiness\" is not valid: " + wantsNamespaced + "\n" +
				"p.yaml:8: cells.grants.namespaces[0].unsafeSysctls[1]: \"net.*.x\" is not valid: " + wantsNamespaced},
		{"a bound below nothing", least + "  grants: {maxPricePerHour: -1}",
			`p.yaml:5: cells.grants.maxPricePerHour: "-1" is not valid: want 0, for no bound, or more`},
		{"etcd key without a certificate", least + "etcd: {client: {endpoints: ['https://a:2379'], keyFile: k}}",
			`p.yaml:5: etcd.client.certFile: there is no value: etcd.client.keyFile needs it`},
		{"etcd certificate without a key", least + "etcd: {client: {endpoints: ['https://a:2379'], certFile: c}}",
			`p.yaml:5: etcd.client.keyFile: there is no value: etcd.client.certFile needs it`},
		{"etcd CA without endpoints", least + "etcd: {client: {caFile: c}}",
			`p.yaml:5: etcd.client.caFile: there are no etcd.client.endpoints to use it with`},
		{"no data folder", least + "etcd: {internal: {dataDir: ''}}", `p.yaml:5: etcd.internal.dataDir: there is no value: this key is required`},

		{"no default type", "cloud: {local: }\ncells:\n  nametag: a",
			`p.yaml:2: cells.defaultInstanceType: there is no value: this key is required`},
		{"small volume", least + "  defaultVolumeSize: 1023Mi", `p.yaml:5: cells.defaultVolumeSize: "1023Mi" is not valid: want at least 1Gi`},
		{"negative reserve", least + "  reservedMemory: -1", `p.yaml:5: cells.reservedMemory: "-1" is not valid: want a quantity of 0 or more`},
		{"status interval 0", least + "  statusInterval: 0",
			`p.yaml:5: cells.statusInterval: "0" is not valid: want a number of seconds above 0`},
		{"long nametag", least + "  nametag: abcdefghijklmnopqrstuvwxy",
			`p.yaml:5: cells.nametag: "abcdefghijklmnopqrstuvwxy" is not valid: want at most 24 lower-case letters, digits and dashes, a letter first and no dash last`},
		{"nametag with a digit first", least + "  nametag: 1a",
			`p.yaml:5: cells.nametag: "1a" is not valid: want at most 24 lower-case letters, digits and dashes, a letter first and no dash last`},
		{"standby cells", least + "  standbyCells:\n  - count: -1\n    spot: true\n    dedicated: true",
			"p.yaml:6: cells.standbyCells[0].count: \"-1\" is not valid: want 0 or more\n" +
				"p.yaml:6: cells.standbyCells[0].instanceType: there is no value: this key is required\n" +
				"p.yaml:8: cells.standbyCells[0].dedicated: spot is true too: want only one of them"},
		{"stopped spot", least + "  standbyCells: [{instanceType: x, spot: true, stopped: true}]",
			`p.yaml:5: cells.standbyCells[0].stopped: spot is true too: want only one of them`},
		{"CSI drivers", least +
			"  csiDrivers:\n  - {name: nfs.csi.k8s.io, daemonSet: kube-system/csi-nfs-node}\n  - {name: NFS, daemonSet: csi-nfs-node}\n  - {name: disk.kip.elotl.co, daemonSet: a/b}\n  - {}\n  - {name: nfs.csi.k8s.io, daemonSet: a/b}",
			"p.yaml:7: cells.csiDrivers[1].daemonSet: \"csi-nfs-node\" is not valid: want a namespace and a name such as kube-system/csi-nfs-node\n" +
				"p.yaml:7: cells.csiDrivers[1].name: \"NFS\" is not valid: want the name of a CSI driver such as nfs.csi.k8s.io\n" +
				"p.yaml:8: cells.csiDrivers[2].name: disk.kip.elotl.co is Kip's own, and needs no plugin: want another driver\n" +
				"p.yaml:9: cells.csiDrivers[3].daemonSet: there is no value: this key is required\n" +
				"p.yaml:9: cells.csiDrivers[3].name: there is no value: this key is required\n" +
				"p.yaml:10: cells.csiDrivers[4].name: nfs.csi.k8s.io is there already: cells.csiDrivers[0] has it"},
		{"DaemonSets beside pods", least +
			"  daemonSets:\n  - {namespace: logging, name: fluent-bit, pods: 'logs!=none', maxDelay: 30}\n  - {name: fluent-bit}\n  - {namespace: a, selector: 'a in', pods: '='}\n  - {namespace: A_B, name: X, namespaces: [team-a, '*'], maxDelay: 601}\n  - {namespace: logging, name: fluent-bit}",
			"p.yaml:7: cells.daemonSets[1].namespace: there is no value: this key is required\n" +
				"p.yaml:8: cells.daemonSets[2].pods: \"=\" is not valid: found '=', expected: !, identifier, or 'end of string': want a label selector such as app=fluent-bit\n" +
				"p.yaml:8: cells.daemonSets[2].selector: \"a in\" is not valid: unable to parse requirement: found '' expected: '(': want a label selector such as app=fluent-bit\n" +
				"p.yaml:9: cells.daemonSets[3].maxDelay: \"601\" is not valid: want 0 to 600 seconds\n" +
				"p.yaml:9: cells.daemonSets[3].name: \"X\" is not valid: want the name of a DaemonSet\n" +
				"p.yaml:9: cells.daemonSets[3].namespace: \"A_B\" is not valid: want the name of a namespace\n" +
				"p.yaml:9: cells.daemonSets[3].namespaces[1]: \"*\" is not valid: want the name of a namespace\n" +
				"p.yaml:10: cells.daemonSets[4]: names the same DaemonSets as cells.daemonSets[0], which counts: want one of them"},
		{"the same pool twice", least +
			"  standbyCells:\n  - {instanceType: x, count: 1}\n  - {instanceType: y}\n  - {instanceType: x, count: 2}",
			`p.yaml:8: cells.standbyCells[2]: differs from cells.standbyCells[0] in nothing but the count: want one pool, with the sum of their counts`},
		{"zone of the local cloud", least + "  standbyCells: [{instanceType: x, zone: us-east-1a}]",
			`p.yaml:5: cells.standbyCells[0].zone: "us-east-1a" is not valid: want one of cloud.local.zones: local`},
		{"zone that is not GCE's",
			"cloud: {gce: {zone: us-west1-a}}\ncells: {defaultInstanceType: n1, standbyCells: [{instanceType: n1, zone: us-west1-b}]}",
			`p.yaml:2: cells.standbyCells[0].zone: "us-west1-b" is not valid: want us-west1-a, which is cloud.gce.zone`},
		{"a penalty above all", least + "  interruptionPenalty: 101",
			`p.yaml:5: cells.interruptionPenalty: "101" is not valid: want 0 to 100`},
		{"spread over more than double", least + "  spotSpread: 101",
			`p.yaml:5: cells.spotSpread: "101" is not valid: want 0 to 100`},
		{"fewer attempts than none", least + "  maxAttempts: -1",
			`p.yaml:5: cells.maxAttempts: "-1" is not valid: want 0, for no bound, or more`},
		{"empty security group", least + "  extraSecurityGroups: [sg-1, '']",
			`p.yaml:5: cells.extraSecurityGroups[1]: there is no value: this key is required`},
		{"agent of no URL", least + agent + "    url: x\n" + digests,
			`p.yaml:7: cells.itzo.url: "x" is not valid: want a URL such as https://example.com/itzo, of at most 1024 characters, ` +
				`to which the file's name is appended`},
		{"agent behind a query", least + agent + "    url: https://a/b?c\n" + digests,
			`p.yaml:7: cells.itzo.url: "https://a/b?c" is not valid: want a URL such as https://example.com/itzo, ` +
				`of at most 1024 characters, to which the file's name is appended`},
		{"agent behind a password", least + agent + "    url: https://me:sesame@a/b\n" + digests,
			`p.yaml:7: cells.itzo.url: there is a user name in it: want a URL such as https://example.com/itzo`},
		{"agent of a path", least + "  itzo:\n    version: ../v1\n    url: https://a\n" + digests,
			`p.yaml:6: cells.itzo.version: "../v1" is not valid: want at most 64 letters, digits and . _ + -, ` +
				`a letter or digit first, such as v1.2.3`},
		{"agent without a place", least + agent + digests, `p.yaml:5: cells.itzo.url: there is no value: this key is required`},
		{"agent without a version", least + "  itzo:\n    url: https://a\n" + digests,
			`p.yaml:5: cells.itzo.version: there is no value: this key is required`},
		{"agent without a digest", least + agent + "    url: https://a\n",
			`p.yaml:5: cells.itzo.sha256: there is no value: want the digest by architecture, such as {amd64: …}, ` +
				`or the agent could be any program`},
		{"agent of another architecture", least + agent + "    url: https://a\n    sha256: {x86_64: a}",
			`p.yaml:8: cells.itzo.sha256.x86_64: "x86_64" is no architecture of cells: want amd64 or arm64`},
		{"agent with a digest that is none", least + agent + "    url: https://a\n    sha256:\n      arm64: ABC",
			`p.yaml:9: cells.itzo.sha256.arm64: "ABC" is not valid: want 64 lower-case hex digits, as sha256sum prints them`},
		{"mirror", least + "  registryMirrors: {docker.io: [mirror]}",
			`p.yaml:5: cells.registryMirrors.docker.io[0]: "mirror" is not valid: want a URL such as http://10.110.0.1:5000`},
		{"no mirror", least + "  registryMirrors: {docker.io: []}",
			`p.yaml:5: cells.registryMirrors.docker.io: there is no value: want at least one URL`},
		{"credential provider by a path", least + "  credentialProviders: [{name: a/b, matchImages: ['*.example.com']}]",
			`p.yaml:5: cells.credentialProviders[0].name: "a/b" is not valid: want the name of a file in /opt/kip/credential-providers, of letters, digits and . _ -`},
		{"credential providers of many bytes", least + "  credentialProviders: [{name: a, matchImages: [a.example], args: [" +
			strings.Repeat("'"+strings.Repeat("x", 4000)+"',", 33) + "]}]",
			"p.yaml:5: cells.credentialProviders: they have 132227 bytes together, in JSON: want at most 131072"},
		{"credential provider for nothing", least + "  credentialProviders: [{name: a}]",
			"p.yaml:5: cells.credentialProviders[0].matchImages: there is no value: want at least one, such as *.registry.example.com"},
		{"credential provider's cache",
			least + "  credentialProviders: [{name: a, matchImages: [a.example], tokenAttributes: {serviceAccountTokenAudience: x, cacheType: Pod}}]",
			`p.yaml:5: cells.credentialProviders[0].tokenAttributes.cacheType: "Pod" is not valid: want Token or ServiceAccount`},
		{"registry of a URL", least + "  registries: [{host: 'https://a.example'}]",
			`p.yaml:5: cells.registries[0].host: "https://a.example" is not valid: want the name of an image host such as registry.example.com:5000`},
		{"registry twice", least + "  registries: [{host: a.example}, {host: a.example}]",
			`p.yaml:5: cells.registries[1].host: a.example is there already: cells.registries[0] has it`},
		{"registry without a host", least + "  registries: [{plainHTTP: true}]", `p.yaml:5: cells.registries[0].host: there is no value: this key is required`},
		{"mirror of a URL", least + "  registryMirrors: {'https://docker.io': ['http://a']}",
			`p.yaml:5: cells.registryMirrors.https://docker.io: "https://docker.io" is not valid: want the name of an image host such as docker.io or registry.example.com:5000, or _default`},
		{"two health checks", least + "  healthcheck:\n    status: {}\n    cloudAPI: {}",
			`p.yaml:5: cells.healthcheck: status and cloudAPI are there: want only one of them`},
		{"no health timeout", least + "  healthcheck: {status: {healthyTimeout: 0}}",
			`p.yaml:5: cells.healthcheck.status.healthyTimeout: "0" is not valid: want a number of seconds above 0`},
		{"a share above all", least + "  endLimit: {percent: 101}",
			`p.yaml:5: cells.endLimit.percent: "101" is not valid: want 0 to 100`},
		{"less than none", least + "  endLimit: {least: -1}",
			`p.yaml:5: cells.endLimit.least: "-1" is not valid: want 0 or more`},
		{"a CA that is dropped too early", least + "  caOverlap: 9",
			`p.yaml:5: cells.caOverlap: "9" is not valid: want at least 10 seconds`},
		{"a share of no time", least + "  endLimit: {window: 59}",
			`p.yaml:5: cells.endLimit.window: "59" is not valid: want at least 60 seconds`},
		{"cloud asked too often", least + "  healthcheck: {cloudAPI: {interval: 9.5}}",
			`p.yaml:5: cells.healthcheck.cloudAPI.interval: "9.5" is not valid: want at least 10 seconds`},
		{"no cloud timeout", least + "  healthcheck: {cloudAPI: {healthyTimeout: -1}}",
			`p.yaml:5: cells.healthcheck.cloudAPI.healthyTimeout: "-1" is not valid: want a number of seconds above 0`},
		{"lost before the cloud is asked again", least + "  healthcheck: {cloudAPI: {interval: 30, healthyTimeout: 30}}",
			`p.yaml:5: cells.healthcheck.cloudAPI.healthyTimeout: "30" is not valid: want more than cells.healthcheck.cloudAPI.interval, 30 seconds`},

		{"negative capacity", least + "kubelet:\n  capacity:\n    cpu: -1", `p.yaml:7: kubelet.capacity.cpu: "-1" is not valid: want 0 or more`},
		{"part of a pod", least + "kubelet: {capacity: {pods: 0.5}}",
			`p.yaml:5: kubelet.capacity.pods: "500m" is not valid: want a whole number`},
		{"capacity of no resource", least + "kubelet: {capacity: {'a b': 1}}",
			`p.yaml:5: kubelet.capacity.a b: "a b" is no name of a resource: name part must consist of…`},
		{"capacity twice", least + "kubelet: {cpu: 5, capacity: {cpu: 6}}",
			`p.yaml:5: kubelet.cpu: kubelet.capacity.cpu is there too: want only that`},
		{"negative old capacity", least + "kubelet: {cpu: -5}", `p.yaml:5: kubelet.cpu: "-5" is not valid: want 0 or more`},
		{"label name", least + "kubelet: {labels: {'a/b/c': d}}",
			`p.yaml:5: kubelet.labels.a/b/c: "a/b/c" is no name of a label: a valid label key must consist of…`},
		{"label value", least + "kubelet: {labels: {a: 'b c'}}",
			`p.yaml:5: kubelet.labels.a: "b c" is no value of a label: a valid label must be…`},
		{"controller ID", least + "testing: {controllerID: A_b}",
			`p.yaml:5: testing.controllerID: "A_b" is not valid: want at most 63 lower-case letters, digits and dashes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, _, err := Parse("p.yaml", []byte(c.text))
			if err == nil {
				t.Fatalf("no error, but %+v", config)
			}
			if got := err.Error(); got != c.want && !(strings.HasSuffix(c.want, "…") && strings.HasPrefix(got, strings.TrimSuffix(c.want, "…"))) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			var e *Error
			if !errors.As(err, &e) || e.File != "p.yaml" || e.Line == 0 {
				t.Errorf("error %#v, want an *Error with file and line", err)
			}
			if config != nil {
				t.Error("a configuration was returned with the error")
			}
		})
	}
}

func TestNodesThatWouldSayTheSameAreNamed(t *testing.T) {
	const (
		cloud = "cloud: {aws: {}}\ncells: {defaultInstanceType: x}\n"
		zone  = "p.yaml:4: kubelet.labels.topology.kubernetes.io/zone: "
	)
	for text, want := range map[string]string{
		"nodes:\n- {suffix: 1, zones: [a, b], instanceTypes: [g*]}\n- {suffix: 2, zones: [b, a], instanceTypes: [g*]}": "p.yaml:5: nodes[1]: " +
			"is the same as nodes[0]: want one of them, or one that differs",
		"nodes: [{zones: [a]}]\nkubelet: {labels: {topology.kubernetes.io/zone: a}}": zone +
			`"a" is not valid: each of nodes says its own zone`,
		"nodes: auto\nkubelet: {labels: {topology.kubernetes.io/zone: a}}": zone,
	} {
		if _, _, err := Parse("p.yaml", []byte(cloud+text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{
		"nodes: [{suffix: 1, launchTypes: [spot, on-demand]}, {suffix: 2, launchTypes: [on-demand, spot]}]", // the first is preferred
		"kubelet: {labels: {topology.kubernetes.io/zone: a}}",
	} {
		if _, _, err := Parse("p.yaml", []byte(cloud+text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAllErrorsAreReportedAtOnceInOrder(t *testing.T) {
	_, _,
		err := Parse("p.yaml",
		[]byte("kind: x\ncloud: {local: {cidr: y}}\ncells:\n  statusInterval: -1\n  nametagg: a\n  privateIPOnly: 1\nkubelet: {capacity: {cpu: z}}\n"))
	want := `p.yaml:1: kind: "x" is not valid: want serverConfig
p.yaml:2: cloud.local.cidr: "y" is not valid: want a CIDR such as 10.20.0.0/16
p.yaml:3: cells.defaultInstanceType: there is no value: this key is required
p.yaml:4: cells.statusInterval: "-1" is not valid: want a number of seconds above 0
p.yaml:5: cells.nametagg: no such key; did you mean cells.nametag?
p.yaml:6: cells.privateIPOnly: "1" is not valid: want true or false
p.yaml:7: kubelet.capacity.cpu: "z" is not valid: want auto, or a quantity such as 5Gi or 500m`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"deprecated", least + "kubelet:\n  cpu: 5\n  pods: 7",
			"p.yaml:6: kubelet.cpu: is deprecated: use kubelet.capacity.cpu\np.yaml:7: kubelet.pods: is deprecated: use kubelet.capacity.pods"},
		{"healthy cells are lost", least + "  healthcheck: {status: {healthyTimeout: 14}}",
			"p.yaml:5: cells.healthcheck.status.healthyTimeout: healthy cells are lost too, since one is heard of every 10 seconds only: want at least 15"},
		{"Fargate", "cloud: {aws: {ecsClusterName: x}}\ncells: {defaultInstanceType: x}",
			"p.yaml:1: cloud.aws.ecsClusterName: is deprecated: Fargate is not supported"},
		{"another cloud's keys", least + "  privateIPOnly: true\n  useCloudParameterStore: true",
			"p.yaml:5: cells.privateIPOnly: has no effect with cloud.local\np.yaml:6: cells.useCloudParameterStore: has no effect with cloud.local"},
		{"one etcd too many", least + "etcd:\n  internal: {dataDir: /d}\n  client: {endpoints: ['https://a:2379']}",
			"p.yaml:6: etcd.internal: is not used, since there are etcd.client.endpoints"},
		{"hosts for nobody", "cloud: {aws: {dedicatedHosts: {ids: [h-1]}}}\ncells: {defaultInstanceType: x}",
			"p.yaml:1: cloud.aws.dedicatedHosts: nobody may use them: want cells.grants that let a namespace have dedicated cells"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, warnings, err := Parse("p.yaml", []byte(c.text))
			var got []string
			for _, w := range warnings {
				got = append(got, w.String())
			}
			if s := strings.Join(got, "\n"); err != nil || s != c.want {
				t.Errorf("got  %s, %v\nwant %s", s, err, c.want)
			}
		})
	}
}

func TestDeprecatedCapacityIsCopied(t *testing.T) {
	c, _ := parsed(t, least+"kubelet: {cpu: 5, memory: 8Gi}")
	for name, want := range map[corev1.ResourceName]string{"cpu": "5", "memory": "8Gi", "pods": "20"} {
		if q := c.Kubelet.Capacity[name]; q.String() != want {
			t.Errorf("capacity %s is %s, want %s", name, q.String(), want)
		}
	}
}

// A capacity that names no ephemeral-storage still has the default: without any, no pod that
// asks for some would ever be scheduled.
func TestACapacityKeepsTheDefaultOfWhatItDoesNotName(t *testing.T) {
	c, _ := parsed(t, least+"kubelet: {capacity: {cpu: 5, hugepages-2Mi: 4Gi}}")
	for name, want := range map[corev1.ResourceName]string{
		"cpu": "5", "memory": "100Gi", "ephemeral-storage": "100Gi", "pods": "20", "hugepages-2Mi": "4Gi",
	} {
		if q := c.Kubelet.Capacity[name]; q.String() != want {
			t.Errorf("capacity %s is %s, want %s", name, q.String(), want)
		}
	}
	c, _ = parsed(t, least+"kubelet: {capacity: {ephemeral-storage: 0}}")
	if q := c.Kubelet.Capacity["ephemeral-storage"]; !q.IsZero() {
		t.Errorf("a node that is to offer none offers %s", q.String())
	}
}

func TestCheckCloudSaysWhatTheBuildHas(t *testing.T) {
	c, _ := parsed(t, full)
	if err := c.CheckCloud("local"); err == nil ||
		err.Error() != "provider.yaml:4: cloud.aws: this cloud is not in this build: want local" {
		t.Errorf("error %v", err)
	}
	if err := c.CheckCloud("local", "aws"); err != nil {
		t.Error(err)
	}
}

func TestCheckStoppedNamesThePoolsOfACloudThatCannotStop(t *testing.T) {
	c, _ := parsed(t, least+"  standbyCells:\n  - {instanceType: nano}\n  - instanceType: nano\n    stopped: true\n")
	if err := c.CheckStopped(true); err != nil {
		t.Errorf("error %v, though the cloud can", err)
	}
	if err := c.CheckStopped(false); err == nil ||
		err.Error() != "provider.yaml:8: cells.standbyCells[1].stopped: cloud.local cannot stop instances in this build: want false" {
		t.Errorf("error %v", err)
	}
}

// wronglyGiven are files that have a secret by mistake, or where it is of no use.
func wronglyGiven(secret string) map[string]string {
	return map[string]string{
		"misspelt key":       "cloud: {aws: {secretAcessKey: " + secret + "}}",
		"in a wrong place":   "secretAccessKey: " + secret,
		"no text":            "cloud: {aws: {secretAccessKey: [" + secret + "]}}",
		"no key":             "cloud: {aws: " + secret + "}",
		"an alias":           "cloud: {aws: {secretAccessKey: *" + secret + "}}",
		"placeholder":        "cloud: {aws: {secretAccessKey: FILL_IN" + secret + "}}",
		"credentials":        "cloud: {gce: {credentials: " + secret + "}}",
		"half of the pair":   "cloud: {aws: {secretAccessKey: " + secret + "}}",
		"no YAML after":      "cloud: {aws: {secretAccessKey: '" + secret,
		"an etcd endpoint":   least + "etcd: {client: {endpoints: ['https://kip:" + secret + "@etcd-0:2379']}}",
		"no etcd endpoint":   least + "etcd: {client: {endpoints: ['kip:" + secret + "@etcd-0']}}",
		"the same key twice": "cloud: {aws: {secretAccessKey: " + secret + ", secretAccessKey: " + secret + "}}",
	}
}

// TestSecretsAreNeverShown puts the same secret wherever it can be, rightly and by
// mistake, and looks at all that is printed.
func TestSecretsAreNeverShown(t *testing.T) {
	const secret = "hunter2hunter2"
	shows := func(where, printed string) {
		t.Helper()
		if strings.Contains(printed, secret) {
			t.Errorf("%s shows the secret: %s", where, printed)
		}
	}
	c, _ := parsed(t, strings.ReplaceAll(full, "very-secret", secret))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shows(verb, fmt.Sprintf(verb, *c.Cloud.AWS))
		shows(verb, fmt.Sprintf(verb, c.Cloud.AWS.SecretAccessKey))
	}
	for name, marshal := range map[string]func(any) ([]byte, error){"JSON": json.Marshal, "YAML": yaml.Marshal} {
		out, err := marshal(c.Cloud.AWS)
		if err != nil || !bytes.Contains(out, []byte("***")) {
			t.Errorf("%s: %s, %v", name, out, err)
		}
		shows(name, string(out))
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "aws", c.Cloud.AWS, "key", c.Cloud.AWS.SecretAccessKey)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "aws", *c.Cloud.AWS, "key", c.Cloud.AWS.SecretAccessKey)
	shows("log", log.String())
	if got := c.Cloud.AWS.SecretAccessKey.Reveal(); got != secret {
		t.Errorf("Reveal = %q", got)
	}
	if got := fmt.Sprint(Secret("")); got != "" {
		t.Errorf("no secret prints as %q", got)
	}

	for name, text := range wronglyGiven(secret) {
		if _, _, err := Parse("p.yaml", []byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			shows(name, err.Error())
		}
	}
	if _, _,
		err := Parse("p.yaml",
		[]byte("cloud: {aws: {secretAccessKey: 12345678, accessKeyID: a}}\ncells: {defaultInstanceType: x}")); err == nil ||
		strings.Contains(err.Error(), "1234") {
		t.Errorf("a secret that is a number: %v", err)
	}
}

func TestLoadNamesFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "provider.yaml")
	there := filepath.Join(dir, "there.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(there, "")
	write(path, least+"  cloudInitFile: "+there+"\netcd:\n  internal:\n    configFile: "+dir+"/missing\n")
	_, _, err := Load(path)
	if want := fmt.Sprintf("%s:8: etcd.internal.configFile: want a file that can be read: open %s/missing: no such file or directory", path,
		dir); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	write(path, least+"  cloudInitFile: "+there)
	if c, _, err := Load(path); err != nil || c.Cells.CloudInitFile != there {
		t.Errorf("%+v, %v", c, err)
	}
	if _, _, err := Load(filepath.Join(dir, "no.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want that the file does not exist", err)
	}
}

// TestReference fails when the page and the schema are not what the code says; -update mends them.
func TestReference(t *testing.T) {
	schema, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	for page, want := range map[string]string{
		"../../docs/provider-configuration.md":       Reference(),
		"../../deploy/helm/kip/provider.schema.json": schema,
	} {
		if *update {
			if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is out of date: go test ./internal/config -run TestReference -update", page)
		}
	}
}

func TestWhoRequestsAServingCertificate(t *testing.T) {
	for _, c := range []struct {
		signer, requester string
		node              bool
	}{
		{"kubernetes.io/kubelet-serving", "", true},
		{"kubernetes.io/kubelet-serving", RequesterKip, false},
		{"beta.eks.amazonaws.com/app-serving", "", false},
		{"beta.eks.amazonaws.com/app-serving", RequesterNode, true},
	} {
		if is := (ServingCertificate{SignerName: c.signer, Requester: c.requester}).RequestedByNode(); is != c.node {
			t.Errorf("with the signer %s and the requester %q it is the node: %t", c.signer, c.requester, is)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	if len(keys) < 60 {
		t.Errorf("only %d keys", len(keys))
	}
	for _, k := range keys {
		if !strings.HasSuffix(k.doc, ".") {
			t.Errorf("%s: doc %q is no sentence", k.path, k.doc)
		}
	}
}

// mentions says whether a text is in a document.
func mentions(n *yaml.Node, text string) bool {
	return strings.Contains(n.Value, text) || strings.Contains(n.Tag, text) ||
		slices.ContainsFunc(n.Content, func(child *yaml.Node) bool { return mentions(child, text) })
}

// onlySecret says whether a document has a text nowhere but in the values of keys that
// are secret, or whose value cannot be right. What an alias repeats may be anywhere.
func onlySecret(n *yaml.Node, text string) bool {
	if n.Kind == yaml.AliasNode || strings.Contains(n.Value, text) || strings.Contains(n.Tag, text) {
		return false
	}
	for i, child := range n.Content {
		key := ""
		if n.Kind == yaml.MappingNode && i%2 == 1 {
			key = n.Content[i-1].Value
		}
		switch key {
		case "secretAccessKey", "secretAcessKey", "clientSecret", "privateKey", "aws", "credentials":
			if child.Kind == yaml.ScalarNode || child.Kind == yaml.SequenceNode {
				continue
			}
		case "bootImageSpec", "cellConfig", "registryMirrors", "capacity", "labels": // the keys in them are anybody's
			if mentions(child, text) {
				return false
			}
		}
		if !onlySecret(child, text) {
			return false
		}
	}
	return true
}

// errorsIn are the errors that Parse joined.
func errorsIn(err error) (all []*Error) {
	if err == nil {
		return nil
	}
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		all = append(all, e.(*Error))
	}
	return all
}

// FuzzParse holds that what is accepted is valid, that what is not is told on clean
// lines with their places, the same each time, and that no secret is shown.
func FuzzParse(f *testing.F) {
	const secret = "hunter2hunter2"
	for _, seed := range []string{
		least,
		full,
		"",
		"'': x",
		"a: &a [*a]",
		"cells: {standbyCells: [{}, null]}",
		"cloud: &c {local: *c}",
		"? [a]\n: b",
		"kubelet: {capacity: {cpu: 1e99}}",
		"kubelet: {capacity: {cpu: 1e-99999999}}",
		"<<: {a: b}",
		least + "---\na: b\n",
		"\"a\\nb\\e[31m\": 1",
		least + "kubelet: {labels: {\"a\\nb\": x, \"a\\nb.c\": y}, capacity: {\"\\e\": -1, \"\\e.x\": 1}}\n",
		least + "kubelet: {cpu: -1, capacity: {memory: -1}, labels: {\"\": \"\", a/b/c: \"\\e\"}}\n",
		strings.Replace(least, "local: {}", "local: {cidr: 10.0.0.0/29}", 1),
		least + "etcd: {client: {endpoints: [\"http://a\\n:1\"], caFile: x}}\n",
		least + "  maxAttempts: -1\n",
		least + "  standbyCells: [{instanceType: a, count: -1}]\n",
		least + "kubelet: {capacity: {memory: -1}}\n",
		least + "kubelet: {cpu: -1}\n",
		least + "kubelet: {labels: {=: a, =.a: a, =.a.a: a, =.a.a.a: a, =.a.a.a.a: a, =.a.a.a.a.a: a}}\n",
		least + "kubelet: {capacity: {=: 1, =.a: 1, =.a.a: 1, =.a.a.a: 1, =.a.a.a.a: 1, =.a.a.a.a.a: 1}}\n",
		"cloud: {aws: {secretAccessKey: !!binary " + secret + "}}",
		"cloud: {aws: {secretAccessKey: !" + secret + " x}}",
		full[:len(full)/2] + "\x00",
	} {
		f.Add([]byte(seed))
	}
	for _, seed := range wronglyGiven(secret) {
		f.Add([]byte(seed))
	}
	f.Add([]byte(strings.ReplaceAll(full, "very-secret", secret)))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, warnings, err := Parse("p.yaml", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("configuration %v and error %v", c, err)
		}
		again, againWarnings, againErr := Parse("p.yaml", data)
		if !reflect.DeepEqual(again, c) || !slices.Equal(againWarnings, warnings) || fmt.Sprint(againErr) != fmt.Sprint(err) {
			t.Fatalf("%+v, %v, %v\nthe second time it is\n%+v, %v, %v", c, warnings, err, again, againWarnings, againErr)
		}
		said := errorsIn(err)
		for _, w := range warnings {
			e := Error(w)
			said = append(said, &e)
		}
		last := 2
		for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // all that end a line in YAML
			last += bytes.Count(data, []byte(end))
		}
		for _, e := range said {
			if text := e.Error(); e.File != "p.yaml" || e.Line < 1 || e.Line > last || strings.ContainsAny(text, "\n\x1b") {
				t.Fatalf("of %d lines at most: line %d, %q", last, e.Line, text)
			}
		}
		var doc yaml.Node
		if yaml.Unmarshal(data, &doc) != nil || onlySecret(&doc, secret) {
			printed := fmt.Sprintf("%v %v %+v", err, warnings, c)
			if c != nil && c.Cloud.AWS != nil {
				printed += fmt.Sprintf("%+v %+v", *c.Cloud.AWS, c.Cloud)
			}
			if strings.Contains(printed, secret) {
				t.Fatalf("the secret is shown: %s", printed)
			}
		}
		if err != nil {
			return
		}
		if c.Cloud.Name() == "" || c.Cells.DefaultInstanceType == "" || c.Cells.StatusInterval <= 0 || c.Cells.MaxAttempts < 0 {
			t.Fatalf("accepted without what is required: %+v", c)
		}
		for _, pool := range c.Cells.StandbyCells {
			if pool.Count < 0 || pool.InstanceType == "" {
				t.Fatalf("accepted a pool %+v", pool)
			}
		}
		if l := c.Cloud.Local; l != nil && (!l.CIDR.Addr().Is4() || l.CIDR.Bits() < 8 || l.CIDR.Bits() > 28) {
			t.Fatalf("accepted the network %v", l.CIDR)
		}
		for name, q := range c.Kubelet.Capacity {
			if q.Sign() < 0 {
				t.Fatalf("accepted a capacity of %s %s", q.String(), name)
			}
		}
	})
}
