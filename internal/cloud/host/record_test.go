package host

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/elotl/kip/internal/cloud"
)

func TestRecordReadsBackAsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "i-00112233445566ff")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	want := record{
		Token: "tok", Slot: 7, Process: Process{PID: 9, Started: 1234, BootID: "b"},
		Instance: cloud.Instance{
			ID: "i-00112233445566ff", InstanceType: "nano", Zone: "local", State: cloud.Running,
			ManagementIP: netip.MustParseAddr("10.110.0.7"), PodIP: netip.MustParseAddr("10.110.128.7"),
			Launched: time.Unix(1700000000, 5).UTC(), Tags: map[string]string{cloud.TagOwner: "me"},
		},
	}
	if err := want.write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := readRecord(dir)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
}

func TestEveryFolderIsListedAlsoWithoutAGoodRecord(t *testing.T) {
	cfg := Config{StateDir: t.TempDir()}
	if all, err := readAll(cfg); err != nil || len(all) != 0 {
		t.Fatalf("empty state: %v, %v", all, err)
	}
	content := map[string]string{
		"i-0000000000000001": `{"instance":{"id":"i-0000000000000001"}}`,
		"i-0000000000000002": `{"instance":{"id":"i-0000000000000001"}}`, // copied there
		"i-0000000000000003": `{"inst`,
		"i-0000000000000004": "",
		"lost+found":         "",
	}
	for name, c := range content {
		if err := os.MkdirAll(cfg.MachineDir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(cfg.MachineDir(name), recordName), []byte(c), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(cfg.MachineDir("i-0000000000000005"), 0o700); err != nil {
		t.Fatal(err)
	}
	all, err := readAll(cfg)
	if err != nil || len(all) != 5 {
		t.Fatalf("read %v, %v", all, err)
	}
	for n, s := range all {
		if (s.err == nil) != (n == 0) {
			t.Errorf("%s: error is %v", s.id, s.err)
		}
	}
}
