package aws

import (
	"testing"

	"github.com/elotl/kip/internal/catalog"
)

// A type that is newer than the embedded catalogue has a kernel, too, and a small one less to spare than a large one.
func TestNoTypeIsTakenToGiveAllItsMemory(t *testing.T) {
	kinds := []catalog.InstanceType{
		{Name: "t3.nano", MemoryBytes: 512 << 20}, {Name: "m5.4xlarge", MemoryBytes: 64 << 30}, {Name: "z99.nano", MemoryBytes: 512 << 20},
	}
	if err := complete(kinds); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		if most := k.MemoryBytes / 100 * 98; k.UsableBytes <= 0 || k.UsableBytes > most || k.MemoryBytes < 1<<30 && k.UsableBytes > 464<<20 {
			t.Errorf("of %s %d MiB are taken to be seen, of %d", k.Name, k.UsableBytes>>20, k.MemoryBytes>>20)
		}
	}
}
