package aws

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud/aws/wire"
	"github.com/elotl/kip/internal/cloud/sim"
)

const gibi = 1 << 30

// forSale are two sizes in two zones, one of which has two subnets.
func forSale() []catalog.InstanceType {
	offerings := func(price float64) (all []catalog.PurchaseOption) {
		for _, place := range [][2]string{{"us-east-1a", "subnet-a1"}, {"us-east-1a", "subnet-a2"}, {"us-east-1b", "subnet-b1"}} {
			all = append(all,
				catalog.PurchaseOption{Zone: place[0], Subnet: place[1], PricePerHour: price},
				catalog.PurchaseOption{Zone: place[0], Subnet: place[1], Spot: true, PricePerHour: price / 4})
		}
		return all
	}
	return []catalog.InstanceType{
		{Name: "t3.small", MilliCPU: 2000, MemoryBytes: 2 * gibi, Arch: "amd64", Offerings: offerings(0.02)},
		{Name: "c5.large", MilliCPU: 2000, MemoryBytes: 4 * gibi, Arch: "amd64", Offerings: offerings(0.08)},
		{Name: "c7g.large", MilliCPU: 2000, MemoryBytes: 4 * gibi, Arch: "arm64", Offerings: offerings(0.07)},
		{
			Name: "g5.xlarge", MilliCPU: 4000, MemoryBytes: 16 * gibi, Arch: "amd64", Offerings: offerings(1),
			GPUs: []catalog.GPU{{Model: "A10G", Count: 1}},
		},
	}
}

const vpc, privateSubnet = "vpc-1", "subnet-b1"

// anAccount is what the tests' account has.
func anAccount(knobs sim.Knobs) ec2.Config {
	return ec2.Config{
		Sim: sim.Config{Catalogue: forSale(), Knobs: knobs, Seed: 1},
		Subnets: []ec2.Subnet{
			{ID: "subnet-a1", VPC: vpc, Zone: "us-east-1a", Public: true, MapPublic: true, Default: true},
			{ID: "subnet-a2", VPC: vpc, Zone: "us-east-1a", Public: true, MapPublic: true},
			{ID: privateSubnet, VPC: vpc, Zone: "us-east-1b"},
			{ID: "subnet-elsewhere", VPC: "vpc-2", Zone: "us-east-1b"},
		},
		Groups: []ec2.Group{{ID: "sg-1", Name: "changed", VPC: vpc}, {ID: "sg-2", Name: "another", VPC: vpc}, {ID: "sg-3", Name: "far",
			VPC: "vpc-2"}},
		Images: []ec2.Image{
			{ID: "ami-1", Name: "kip-cell-1", Owner: "self", Created: "2026-01-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 4},
			{ID: "ami-2", Name: "kip-cell-2", Owner: "self", Created: "2026-02-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 4},
			{ID: "ami-3", Name: "kip-cell-3", Owner: "210987654321", Created: "2026-03-01T00:00:00.000Z", RootDevice: "/dev/sda1", GiB: 8},
			{ID: "ami-4", Name: "changed", Owner: "self", Created: "2025-01-01T00:00:00.000Z", RootDevice: "/dev/xvda", GiB: 4},
		},
	}
}

// serve starts a model, and returns the address of its API.
func serve(t *testing.T, cfg ec2.Config) (*ec2.Model, string) {
	t.Helper()
	model, err := ec2.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(wire.Checked(t, model))
	t.Cleanup(func() {
		// In this order: a call may hang in the model.
		if err := model.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return model, server.URL
}

// settings are those of a Kip at an API.
func settings(url string) Config {
	return Config{
		Region:             "us-east-1",
		AccessKeyID:        "AKIATESTS",
		SecretAccessKey:    "secret",
		VPC:                vpc,
		Endpoint:           url,
		InterruptionsEvery: 10 * time.Millisecond,
		VolumesEvery:       5 * time.Millisecond,
	}
}

func open(t *testing.T, cfg Config) *Cloud {
	t.Helper()
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
	c, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newCloud is the driver at a model of its own.
func newCloud(t *testing.T, knobs sim.Knobs) (*Cloud, *ec2.Model) {
	t.Helper()
	model, url := serve(t, anAccount(knobs))
	return open(t, settings(url)), model
}
