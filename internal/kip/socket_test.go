package kip

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/adminapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/config"
)

func TestTheHintNamesWhereTheRecordsAre(t *testing.T) {
	c := &config.Config{}
	c.Etcd.Internal.DataDir = "/data"
	if got := storeHint(c, "/kip/v1/id/"); !strings.Contains(got, "/data") {
		t.Error(got)
	}
	c.Etcd.Client.Endpoints = []string{"https://etcd:2379"}
	got := storeHint(c, "/kip/v1/id/")
	if !strings.Contains(got, "https://etcd:2379") || !strings.Contains(got, "etcdctl del --prefix /kip/v1/id/") {
		t.Error(got)
	}
}

// keeper is a cloud with one console.
type keeper struct{ fails error }

func (k keeper) Console(_ context.Context, instance string) ([]byte, error) {
	return []byte(instance), k.fails
}

func TestAnInstanceThatTheCloudHasNoLongerHasNoConsole(t *testing.T) {
	if got := consolesOf(nil); got != nil {
		t.Errorf("a cloud that keeps none has %v", got)
	}
	if text, err := consolesOf(keeper{}).Console(t.Context(), "i-1"); err != nil || string(text) != "i-1" {
		t.Errorf("one that is there: %q, %v", text, err)
	}
	gone := cloud.No(cloud.ErrNotFound, cloud.Scope{}, errors.New("no i-1"))
	if _, err := consolesOf(keeper{gone}).Console(t.Context(), "i-1"); !errors.Is(err, adminapi.ErrNotFound) ||
		!strings.Contains(err.Error(), "no i-1") {
		t.Errorf("one that is gone: %v", err)
	}
	if _, err := consolesOf(keeper{errors.New("no right")}).Console(t.Context(), "i-1"); errors.Is(err, adminapi.ErrNotFound) || err == nil {
		t.Errorf("one that may not be read: %v", err)
	}
}
