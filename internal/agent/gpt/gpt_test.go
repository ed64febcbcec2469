package gpt

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// disk is one in memory.
type disk []byte

func (d disk) WriteAt(b []byte, at int64) (int, error) { return copy(d[at:], b), nil }

func (d disk) ReadAt(b []byte, at int64) (int, error) { return bytes.NewReader(d).ReadAt(b, at) }

func table(sectors uint64) Table {
	return Table{ID: Random([16]byte{1}), Sectors: sectors, Partitions: []Partition{
		{Type: ESP, ID: Random([16]byte{2}), First: 2048, Last: 4095, Name: "esp"},
		{Type: Roots["amd64"], ID: Random([16]byte{3}), First: 4096, Last: 8191, Name: "root"},
	}}
}

func TestATableIsReadAsItWasWritten(t *testing.T) {
	d := make(disk, 16384*Sector)
	want := table(16384)
	if err := want.Write(d); err != nil {
		t.Fatal(err)
	}
	got, err := Read(d, 16384)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v (%v), want %+v", got, err, want)
	}
	if d[510] != 0x55 || d[450] != 0xee {
		t.Error("there is no protective boot sector")
	}
	// The copy is the same list, and its header says where it is.
	if !bytes.Equal(d[2*Sector:34*Sector], d[(16384-33)*Sector:16383*Sector]) || string(d[16383*Sector:][:8]) != "EFI PART" {
		t.Error("the copy at the disk's end is another")
	}
	if got, want := ESP.String(), "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"; got != want {
		t.Errorf("the type of an ESP is %s, want %s", got, want)
	}
}

func TestABadTableIsNotBelieved(t *testing.T) {
	whole := make(disk, 16384*Sector)
	if err := table(16384).Write(whole); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		at   int
		want string
	}{
		"no signature": {Sector, "no GPT"},
		"header":       {Sector + 60, "header of the partition table is corrupt"},
		"list":         {2*Sector + 40, "list of partitions is corrupt"},
	} {
		d := bytes.Clone(whole)
		d[tc.at] ^= 1
		if _, err := Read(disk(d), 16384); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	if _, err := Read(whole[:Sector], 16384); err == nil {
		t.Error("a disk of one sector has a table")
	}
	if _, err := Read(whole, 4096+100); err == nil || !strings.Contains(err.Error(), "not on the disk") {
		t.Errorf("an image that was cut off: %v", err)
	}
	over := table(16384)
	over.Partitions[1].First--
	if err := over.Write(whole); err == nil {
		t.Error("two partitions with a sector in common are written")
	}
}

func TestTheRestOfTheDiskIsClaimedOnce(t *testing.T) {
	id := Random([16]byte{9})
	for name, tc := range map[string]struct {
		sectors        uint64
		changed, added bool
		last           uint64
		fails          string
	}{
		"a larger disk": {sectors: 1 << 20, changed: true, added: true, last: 1<<20 - Align - 1},
		"no room":       {sectors: 8192 + 33, fails: "too small"},
		"too little":    {sectors: 8192 + 2048, fails: "it has 4 MiB, of which the image has 4, and a cell needs 64 more"},
		"a little less": {sectors: 8192 + leastState + 32, fails: "too small"},
		"just enough":   {sectors: 8192 + leastState + 33, changed: true, added: true, last: 8192 + leastState - 1},
	} {
		got := table(tc.sectors)
		changed, added, err := got.Claim("state", id)
		if tc.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: %v, want %q", name, err, tc.fails)
			}
			continue
		}
		if err != nil || changed != tc.changed || added != tc.added {
			t.Errorf("%s: changed %v, added %v, %v", name, changed, added, err)
			continue
		}
		if p := got.Partitions[2]; p.First != 8192 || p.Last != tc.last || p.ID != id || p.Type != State {
			t.Errorf("%s: %+v, want the sectors 8192 to %d", name, p, tc.last)
		}
		if changed, _, err := got.Claim("state", id); changed || err != nil {
			t.Errorf("%s: claimed twice: %v, %v", name, changed, err)
		}
		got.Sectors += 4 * Align
		if changed, added, err := got.Claim("state", GUID{}); !changed || added || err != nil || got.Partitions[2].ID != id {
			t.Errorf("%s: a disk that has grown: changed %v, added %v, %v", name, changed, added, err)
		}
		if p := got.Partitions[2]; p.Last != tc.last+4*Align {
			t.Errorf("%s: a disk that has grown: up to %d, want %d", name, p.Last, tc.last+4*Align)
		}
	}
	behind := table(1 << 20)
	behind.Partitions[0].Name = "state"
	if _, _, err := behind.Claim("state", id); err == nil {
		t.Error("a partition grows into the next")
	}
}
