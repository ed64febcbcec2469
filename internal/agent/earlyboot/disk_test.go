package earlyboot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agent/gpt"
)

// image makes a disk of this many sectors, with a root of this ID.
func image(t *testing.T, path string, sectors uint64, id gpt.GUID) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(sectors) * gpt.Sector); err != nil {
		t.Fatal(err)
	}
	table := gpt.Table{Sectors: sectors, ID: gpt.Random([16]byte{7}), Partitions: []gpt.Partition{
		{Type: gpt.ESP, ID: gpt.Random([16]byte{8}), First: 2048, Last: 4095, Name: "kip-esp"},
		{Type: gpt.Roots["amd64"], ID: id, First: 4096, Last: 8191, Name: "kip-root"},
	}}
	if err := table.Write(f); err != nil {
		t.Fatal(err)
	}
}

func TestTheRootIsFoundByItsID(t *testing.T) {
	dev := t.TempDir()
	mine, other := gpt.Random([16]byte{1}), gpt.Random([16]byte{2})
	image(t, filepath.Join(dev, "nvme1n1"), 1<<16, mine)
	image(t, filepath.Join(dev, "vda"), 1<<16, other)
	if err := os.WriteFile(filepath.Join(dev, "vdb"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	all := map[string]uint64{"nvme1n1": 1 << 16, "vda": 1 << 16, "vdb": 2048, "vdc": 2048}
	d, err := find(dev, all, mine.String())
	if err != nil || d.root != 2 || d.partition(d.root) != filepath.Join(dev, "nvme1n1p2") {
		t.Fatalf("found %+v (%v)", d, err)
	}
	// An image of another version, a blank disk, one that cannot be read: each is named.
	delete(all, "nvme1n1")
	_, err = find(dev, all, mine.String())
	for _, want := range []string{"vda: none of its 2 partitions is that root", "vdb: the disk has no GPT", "vdc: no such file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without the disk: %v, want %q in it", err, want)
		}
	}
	if _, err := find(dev, nil, mine.String()); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("without any disk: %v", err)
	}
}

// A pod may write the ID of the root to a volume of its own, and wait for a reset.
func TestOfTwoDisksWithTheRootNoneIsTaken(t *testing.T) {
	dev, sys, root := t.TempDir(), t.TempDir(), gpt.Random([16]byte{1})
	come := func(name string) {
		t.Helper()
		image(t, filepath.Join(dev, name), 1<<16, root)
		folder := filepath.Join(sys, "class/block", name)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "size"), []byte("65536\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	come("nvme1n1")
	taken, err := find(dev, map[string]uint64{"nvme1n1": 1 << 16}, root.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := alone(sys, dev, taken, root.String()); err != nil {
		t.Errorf("alone: %v", err)
	}
	if err := alone(sys, dev, &disk{path: filepath.Join(dev, "vda")}, root.String()); !errors.Is(err, errTwoRoots) {
		t.Errorf("in the place of another: %v", err)
	}
	come("nvme0n1")
	if d, err := find(dev, map[string]uint64{"nvme0n1": 1 << 16, "nvme1n1": 1 << 16}, root.String()); !errors.Is(err, errTwoRoots) {
		t.Errorf("of two %+v is taken (%v)", d, err)
	}
	if err := alone(sys, dev, taken, root.String()); !errors.Is(err, errTwoRoots) {
		t.Errorf("beside one that came: %v", err)
	}
}

func TestTheStateTakesTheRestOfTheDisk(t *testing.T) {
	dev := t.TempDir()
	id := gpt.Random([16]byte{1})
	path := filepath.Join(dev, "vda")
	image(t, path, 1<<16, id)
	grow := func(sectors int64) *disk {
		t.Helper()
		if err := os.Truncate(path, sectors*gpt.Sector); err != nil {
			t.Fatal(err)
		}
		d, err := find(dev, map[string]uint64{"vda": uint64(sectors)}, id.String())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, tc := range []struct {
		name    string
		sectors int64
		changed bool
	}{{"first boot", 1 << 18, true}, {"second", 1 << 18, false}, {"grown", 1 << 19, true}} {
		d := grow(tc.sectors)
		changed, err := d.claim()
		if err != nil || changed != tc.changed || d.partition(d.state) != path+"3" {
			t.Errorf("%s: changed %v, the state is %s (%v)", tc.name, changed, d.partition(d.state), err)
		}
		if p := d.table.Partitions[d.state-1]; int64(p.Last) != tc.sectors-gpt.Align-1 || p.First != 8192 {
			t.Errorf("%s: the state has the sectors %d to %d", tc.name, p.First, p.Last)
		}
	}
	small := filepath.Join(dev, "vdb")
	image(t, small, 12288, id)
	d, err := find(dev, map[string]uint64{"vdb": 12288}, id.String())
	if err != nil {
		t.Fatal(err)
	}
	d.table.Partitions[1].Last = 10239
	if _, err := d.claim(); err == nil || !strings.Contains(err.Error(), "too small") {
		t.Errorf("a disk with no room: %v", err)
	}
}

func TestOnlyADiskWithAMediumIsOne(t *testing.T) {
	sys := t.TempDir()
	for p, text := range map[string]string{
		"vda/size": "2097152\n", "vda1/size": "2048\n", "vda1/partition": "1\n", "sr0/size": "0\n", "bad/size": "x\n", "gone/x": "",
	} {
		p = filepath.Join(sys, "class/block", p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := disks(sys)
	if err != nil || len(got) != 1 || got["vda"] != 2097152 {
		t.Errorf("the disks are %v (%v), want only vda", got, err)
	}
}

func TestAnExt4IsKnown(t *testing.T) {
	p := filepath.Join(t.TempDir(), "part")
	for name, tc := range map[string]struct {
		content []byte
		want    bool
	}{
		"blank": {make([]byte, 1<<16), false},
		"short": {[]byte("x"), false},
		"ext4":  {append(make([]byte, magicAt), 0x53, 0xef), true},
	} {
		if err := os.WriteFile(p, tc.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := hasExt4(p); err != nil || got != tc.want {
			t.Errorf("%s: %v (%v), want %v", name, got, err, tc.want)
		}
	}
	if _, err := hasExt4(p + "-none"); err == nil {
		t.Error("a partition that is not there has no file system, and no error")
	}
}
