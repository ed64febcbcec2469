package kip

import (
	"strings"
	"testing"

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
