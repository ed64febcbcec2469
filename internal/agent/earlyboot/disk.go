package earlyboot

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/elotl/kip/internal/agent/gpt"
)

// stateName is the partition's for what the machine writes.
const stateName = "kip-state"

// disk is one with the root.
type disk struct {
	path  string
	table gpt.Table
	// root and state are the numbers of the partitions; state is 0 before it is made.
	root, state int
}

// disks lists the disks of the machine, by what the kernel says in sys ("/sys"), with
// their sizes in sectors. Partitions, and disks without a medium, are none.
func disks(sys string) (map[string]uint64, error) {
	all, err := filepath.Glob(filepath.Join(sys, "class/block/*"))
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for _, d := range all {
		if _, err := os.Stat(filepath.Join(d, "partition")); err == nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(d, "size"))
		if err != nil {
			continue // it went while we looked
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
			out[filepath.Base(d)] = n
		}
	}
	return out, nil
}

// errTwoRoots is why none of several disks is taken: a pod may have written to one of its volumes what
// looks like the root, for when its machine starts again.
var errTwoRoots = errors.New("more than one disk has that root, and a machine does not choose")

// find returns the disk, of those below dev, with the root of this ID, or nil and what
// was there instead; errTwoRoots where there are several.
func find(dev string, all map[string]uint64, root string) (*disk, error) {
	var seen []error
	var found *disk
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d := &disk{path: filepath.Join(dev, name)}
		f, err := os.Open(d.path)
		if err != nil {
			seen = append(seen, err)
			continue
		}
		d.table, err = gpt.Read(f, all[name])
		f.Close()
		if err != nil {
			seen = append(seen, fmt.Errorf("%s: %w", d.path, err))
			continue
		}
		d.root = d.number(func(p gpt.Partition) bool { return p.ID.String() == root })
		switch {
		case d.root == 0:
			seen = append(seen, fmt.Errorf("%s: none of its %d partitions is that root", d.path, len(d.table.Partitions)))
		case found != nil:
			return nil, fmt.Errorf("%s and %s: %w", found.path, d.path, errTwoRoots)
		default:
			found = d
		}
	}
	if found != nil {
		return found, nil
	}
	if len(seen) == 0 {
		seen = append(seen, errors.New("there is no disk"))
	}
	return nil, errors.Join(seen...)
}

// number returns the number of a partition, 0 for none.
func (d *disk) number(is func(gpt.Partition) bool) int {
	return slices.IndexFunc(d.table.Partitions, is) + 1
}

// claim gives the rest of the disk to the state partition and reports whether the table
// was written.
func (d *disk) claim() (changed bool, err error) {
	// Its ID is the image's, too: nobody looks for it by that, and early in a boot there
	// may be no random numbers.
	id := d.table.Partitions[d.root-1].ID
	sum := sha256.Sum256(append(id[:], stateName...))
	changed, _, err = d.table.Claim(stateName, gpt.Random([16]byte(sum[:16])))
	if err != nil {
		return false, err
	}
	d.state = d.number(func(p gpt.Partition) bool { return p.Name == stateName })
	if !changed {
		return false, nil
	}
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	if err := d.table.Write(f); err != nil {
		f.Close()
		return false, err
	}
	return true, errors.Join(f.Sync(), f.Close())
}

// partition returns the device of a partition.
func (d *disk) partition(number int) string {
	if last := d.path[len(d.path)-1]; last >= '0' && last <= '9' {
		return fmt.Sprintf("%sp%d", d.path, number)
	}
	return fmt.Sprintf("%s%d", d.path, number)
}

// Of an ext4's superblock (Documentation/filesystems/ext4/super.rst).
const (
	superblock  = 1024
	magicAt     = superblock + 0x38
	ext4Magic   = 0xef53
	stateBlocks = 4096 // of the file system, in bytes
)

// hasExt4 reports whether a partition has an ext4.
func hasExt4(device string) (bool, error) {
	f, err := os.Open(device)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], magicAt); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return binary.LittleEndian.Uint16(magic[:]) == ext4Magic, nil
}
