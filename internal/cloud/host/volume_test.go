package host

import (
	"log/slog"
	"os"
	"testing"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
)

// What a growth has given a disk before it was cut short, the disk's machine may have seen, and
// written there: a claim may ask for less after it, and no disk becomes smaller.
func TestAGrowthThatIsRepeatedForLessTakesNothingBack(t *testing.T) {
	const machineID, old, more, less = "i-0000000000000001", 512, 4096, 2048
	for _, step := range []string{"disk file grown", "disk growth shown", "disk grown"} {
		alive := true
		cfg, err := Config{
			StateDir:  t.TempDir(),
			Catalogue: []catalog.InstanceType{{Name: "nano", Offerings: []catalog.PurchaseOption{{Zone: "here"}}}},
			Log:       slog.New(slog.DiscardHandler),
			Reached: func(s string) {
				if s == step && alive {
					alive = false
					panic(step)
				}
			},
		}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		instance := cloud.Instance{ID: machineID, State: cloud.Running, Zone: "here"}
		c := &Cloud{cfg: cfg, kind: &sleepers{disks: map[string]bool{}}, machines: map[string]*machine{
			machineID: {id: machineID, process: &Handle{}, rec: record{Instance: instance, Process: Process{PID: 1}}},
		}}
		disk, err := c.CreateDisk(t.Context(), cloud.DiskRequest{
			Token: "disk", SizeBytes: old, Zone: "here", Tags: map[string]string{cloud.TagOwner: "me"},
		})
		if err == nil {
			err = c.AttachDisk(t.Context(), disk.ID, machineID)
		}
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("never reached %q", step)
				}
			}()
			_, _ = c.GrowDisk(t.Context(), disk.ID, more)
		}()
		// The machine's kind refuses to be told another size than the file's.
		grown, err := c.GrowDisk(t.Context(), disk.ID, less)
		if err != nil || grown.SizeBytes != more || grown.Instance != machineID {
			t.Errorf("cut short at %q at %d bytes, and repeated for %d: %+v, %v", step, more, less, grown, err)
		}
		list, err := c.ListDisks(t.Context(), "me")
		if err != nil || len(list) != 1 || list[0].SizeBytes != more {
			t.Errorf("cut short at %q, and repeated: listed %+v, %v", step, list, err)
		}
		if file, err := os.Stat(cfg.Disk(disk.ID).File); err != nil || file.Size() != more {
			t.Errorf("cut short at %q, and repeated: the file is %+v, %v; want %d bytes", step, file, err, more)
		}
	}
}
