package remote

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/cloudtest"
	"github.com/elotl/kip/internal/cloud/sim"
)

var nano = []catalog.InstanceType{{
	Name: "nano", MilliCPU: 1000, MemoryBytes: 1 << 30, Arch: "amd64",
	Offerings: []catalog.PurchaseOption{{Zone: "a", PricePerHour: 0.01}, {Zone: "a", Spot: true, PricePerHour: 0.005}},
}}

// overASocket serves a simulated cloud and returns its client.
func overASocket(t *testing.T) (*Cloud, *sim.Cloud) {
	behind, err := sim.New(sim.Config{Catalogue: nano})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "cloud.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Handler(behind)}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	c := Dial("sim", socket)
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if err := behind.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, behind
}

func TestKeepsWhatTheCloudBehindItPromises(t *testing.T) {
	cloudtest.Run(t, cloudtest.Subject{
		New:      func(t *testing.T) cloud.Cloud { c, _ := overASocket(t); return c },
		UserData: []byte("#cloud-config\n"), ComparesRequests: true, Patience: time.Minute,
	})
}

func TestACauseCrossesTheSocket(t *testing.T) {
	c, behind := overASocket(t)
	ctx := context.Background()
	r := cloud.LaunchRequest{
		Token:      "t",
		LaunchSpec: cloud.LaunchSpec{InstanceType: "nano", Zone: "a", Tags: map[string]string{cloud.TagOwner: "me", cloud.TagCell: "cell-a"}},
		Machines:   []cloud.Machine{{}},
	}
	behind.SetCapacity(sim.Pool{Zone: "a"}, 0)
	if err := c.Launch(ctx, r).Err(); !errors.Is(err, cloud.ErrCapacity) || !cloud.Refused(err) ||
		cloud.ScopeOf(err) != (cloud.Scope{Zone: "a"}) {
		t.Errorf("without capacity: %v", err)
	}
	said := &cloud.Error{Cause: cloud.ErrThrottled, Scope: cloud.Scope{Account: true}, RetryAfter: time.Minute, Err: errors.New("slow down")}
	var heard *cloud.Error
	if err := failureOf(said).error(); !errors.As(err, &heard) || err.Error() != said.Error() || heard.RetryAfter != time.Minute ||
		cloud.NothingDone(err) {
		t.Errorf("%v became %v", said, err)
	}
	for kind, want := range map[string]error{"quota": cloud.ErrQuota, "throttled": cloud.ErrThrottled, "unauthorised": cloud.ErrUnauthorised,
		"refused": cloud.ErrRefused, "mismatch": cloud.ErrMismatch, "not found": cloud.ErrNotFound} {
		if got := failureOf(want).error(); !errors.Is(got, want) {
			t.Errorf("%s became %v", kind, got)
		}
	}
	behind.FailNth(sim.KindList, 1, sim.Fault{Before: errors.New("boom")})
	if _, err := c.List(ctx, "me"); err == nil || cloud.Refused(err) || errors.Is(err, cloud.ErrThrottled) {
		t.Errorf("an unclassified error became %v", err)
	}
}
