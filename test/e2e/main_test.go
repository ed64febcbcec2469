//go:build e2e

// Package e2e proves what Kip promises on the real parts: a real API server with
// the Node authorizer, real kubelets and containerd on local cells. It needs
// root and what `make build` builds.
package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elotl/kip/test/harness"
	"github.com/elotl/kip/test/namespace"
)

// The network of the cells.
var (
	ownNetwork = harness.MustClaim("e2e")
	bridge     = ownNetwork.Bridge
	cidr       = ownNetwork.CIDR.String()
)

// tolerationSeconds is how long the API server lets pods that do not say stay on a node
// that is not heard of: short, so that it shows which pods stay.
const tolerationSeconds = 2

const (
	// nodeGrace is how long Kubernetes lets a node be silent before it takes it for dead. It
	// is longer than upstream's 50 seconds, so that tests that keep Kip from its node for a
	// while have room on a slow machine.
	nodeGrace = 2 * time.Minute
	// leaseAge is how old a node's lease is at most when its Kip stops.
	leaseAge = 10 * time.Second
	// nodeRoom is what such a test leaves of nodeGrace for all else that takes time.
	nodeRoom = 45 * time.Second
)

// auditLog is where the API server writes who asked it for what.
var auditLog = filepath.Join(os.TempDir(), bridge+"-audit.log")

// world is the one cluster that all tests share; each has a namespace.
var world *harness.World

func TestMain(m *testing.M) {
	os.Exit(func() int {
		images, err := csiImages()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(images)
		o := harness.Options{Network: ownNetwork, Nodes: 1, Race: true, Stderr: os.Stderr, AuditLog: auditLog,
			DevArgs: []string{"--images", images, fmt.Sprint("--toleration-seconds=", tolerationSeconds),
				fmt.Sprint("--node-grace=", nodeGrace)}}
		return harness.Main(o, &world, func() int {
			code, err := besideACloud(m.Run)
			if err != nil {
				fmt.Fprintln(os.Stderr, "run a cloud's life-cycle controller beside the tests:", err)
				return 1
			}
			return code
		})
	}())
}

// killKip ends Kip as a crash would; it is started again when the test ends, at
// the latest.
func killKip(t *testing.T) {
	t.Helper()
	if err := world.KillKip(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if pid, err := world.KipPID(); err == nil && pid == 0 {
			startKip(t)
		}
	})
}

func startKip(t *testing.T) {
	t.Helper()
	if err := world.StartKip(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// reconfigure starts Kip with other settings under "cells", until restore is
// called or the test ends.
func reconfigure(t *testing.T, cells map[string]any) (restore func()) {
	t.Helper()
	return namespace.Reconfigure(t, world, func(provider map[string]any) { maps.Copy(provider["cells"].(map[string]any), cells) })
}
