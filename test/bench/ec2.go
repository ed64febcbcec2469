package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/cloud/sim"
	"github.com/elotl/kip/test/harness"
	"k8s.io/apimachinery/pkg/util/wait"
)

// What the account of onEC2 has.
const (
	ec2Key, ec2VPC, ec2Subnet, ec2Zone, ec2Type = "AKIABENCH", "vpc-1", "subnet-1", "us-east-1a", "t3.micro"
	ec2Price                                    = 0.0104           // dollars an hour
	ec2Refills                                  = 10 * time.Second // of the buckets, after one launch
)

// onEC2 measures a burst of pods of one kind on a model of EC2's API that has the account's
// documented limits (sim.EC2), and what calls Kip makes until all are launched.
func onEC2(ctx context.Context) (err error) {
	s, model, err := startOnEC2(ctx, "kipec20", "10.116.0.0/16")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	// A store that has launched nothing waits for lists that show that nothing was.
	if _, err := s.create(ctx, "first", 1); err != nil {
		return err
	}
	if err := s.running(ctx, 1); err != nil {
		return err
	}
	if err := harness.Sleep(ctx, ec2Refills); err != nil {
		return err
	}
	return s.launchedOnEC2(ctx, model)
}

// startOnEC2 starts a world whose Kip launches hollow cells by that model.
func startOnEC2(ctx context.Context, name, cidr string) (s *simulated, model *ec2.Model, err error) {
	s, err = sell(ctx, harness.Options{
		Name:   name,
		CIDR:   cidr,
		Stderr: os.Stderr,
		Fsync:  true,
	}, seller{
		network: "tcp",
		address: "127.0.0.1:0",
		open: func(boot func(context.Context, cloud.Instance, []byte)) (http.Handler, func() error, error) {
			policy, err := ec2.ParsePolicy(aws.Policy())
			if err != nil {
				return nil, nil, err
			}
			model, err = ec2.New(ec2.Config{
				Sim: sim.Config{Boot: boot, Knobs: sim.EC2(), Catalogue: []catalog.InstanceType{{
					Name:        ec2Type,
					MilliCPU:    2000,
					MemoryBytes: 1 << 30,
					Arch:        "amd64",
					Offerings:   []catalog.PurchaseOption{{Zone: ec2Zone, Subnet: ec2Subnet, PricePerHour: ec2Price}},
				}}},
				Subnets:  []ec2.Subnet{{ID: ec2Subnet, VPC: ec2VPC, Zone: ec2Zone, Public: true, MapPublic: true}},
				Images:   []ec2.Image{{ID: "ami-1", Name: "cell-1", Owner: "self", RootDevice: "/dev/xvda", GiB: 4}},
				Policies: map[string]*ec2.Policy{ec2Key: policy},
			})
			if err != nil {
				return nil, nil, err
			}
			return model, model.Close, nil
		},
		configure: func(provider map[string]any, at string) {
			provider["cloud"] = map[string]any{"aws": map[string]any{
				"region":          "us-east-1",
				"vpcID":           ec2VPC,
				"endpointURL":     "http://" + at,
				"accessKeyID":     ec2Key,
				"secretAccessKey": "any",
			}}
			cells := provider["cells"].(map[string]any)
			cells["defaultInstanceType"], cells["bootImageSpec"] = ec2Type, map[string]any{"name": "cell-*"}
		},
	})
	return s, model, err
}

// launchedOnEC2 measures pods that are all bound when Kip first looks: from its first sight of
// one until the last is launched, and until all run.
func (s *simulated) launchedOnEC2(ctx context.Context, model *ec2.Model) error {
	if err := s.KillKip(ctx); err != nil {
		return err
	}
	uids, err := s.create(ctx, "burst", burst)
	if err != nil {
		return err
	}
	before := model.Calls()
	if err := s.StartKip(ctx); err != nil {
		return err
	}
	var last time.Time
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		n := 0
		for _, i := range model.Machines().History() {
			if n++; i.Launched.After(last) {
				last = i.Launched
			}
		}
		return n > burst, nil // and the first
	}); err != nil {
		return fmt.Errorf("wait for %d instances: %w", burst, err)
	}
	calls := model.Calls()
	seen, err := s.firstSeen(ctx, uids)
	if err != nil {
		return err
	}
	if err := s.running(ctx, 1+burst); err != nil {
		return err
	}
	print("ec2_1000_launched_seconds", last.Sub(seen).Seconds(), "s")
	print("ec2_1000_running_seconds", time.Since(seen).Seconds(), "s")
	print("ec2_1000_launch_calls", float64(calls["RunInstances"]-before["RunInstances"]), "calls")
	all := 0
	for _, action := range slices.Sorted(maps.Keys(calls)) {
		if n := calls[action] - before[action]; n > 0 {
			progress("  %d of %s", n, action)
			all += n
		}
	}
	print("ec2_1000_calls", float64(all), "calls")
	return nil
}
