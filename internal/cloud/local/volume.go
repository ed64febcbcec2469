package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/cloud"
)

// The disks of PersistentVolumes are sparse files in the state folder. A machine
// has one as a loop device, with a node of it in the machine's own /dev. A disk's
// record is written before the loop device is made and after it is gone, so that
// whoever reads it knows all that may have to be undone.

var _ cloud.Disks = (*Cloud)(nil)

const (
	diskRecordName = "record.json"
	diskFileName   = "disk.img"
	// deviceDir is where a machine finds its disks.
	deviceDir = "/dev/disk/by-id"
	// loopMajor is the kernel's number for loop devices (devices.txt).
	loopMajor = 7
	// freeTimeout bounds the wait for what is on its way out of use.
	freeTimeout = 2 * time.Second
)

var diskID = regexp.MustCompile(`^disk-[0-9a-f]{16}$`)

func (c Config) disksDir() string         { return filepath.Join(c.StateDir, "disks") }
func (c Config) diskDir(id string) string { return filepath.Join(c.disksDir(), id) }
func (c Config) diskFile(id string) string {
	return filepath.Join(c.diskDir(id), diskFileName)
}

func deviceName(id string) string { return "kip-" + id }

// diskRecord is all that this cloud knows of a disk.
type diskRecord struct {
	Disk  cloud.Disk `json:"disk"`
	Token string     `json:"token"`
}

// write replaces the record, and waits for the disk of the host: a volume must
// survive its crash.
func (r diskRecord) write(cfg Config) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the record of %s: %w", r.Disk.ID, err)
	}
	path := filepath.Join(cfg.diskDir(r.Disk.ID), diskRecordName)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readDisk returns a disk's record; fs.ErrNotExist for a disk that is not there.
func (c Config) readDisk(id string) (diskRecord, error) {
	var r diskRecord
	if !diskID.MatchString(id) {
		return r, fs.ErrNotExist // no ID of ours, and no path either
	}
	path := filepath.Join(c.diskDir(id), diskRecordName)
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read %s: %w", path, err)
	}
	if r.Disk.ID != id {
		return r, fmt.Errorf("read %s: disk.id is %q, want the folder's name %q", path, r.Disk.ID, id)
	}
	return r, nil
}

// readDisks returns all disks. A folder without a record is one that was being
// made or removed; one whose record cannot be read is left to people, since its
// data may be whole.
func (c Config) readDisks() ([]diskRecord, error) {
	entries, err := os.ReadDir(c.disksDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var all []diskRecord
	for _, e := range entries {
		if !diskID.MatchString(e.Name()) {
			continue
		}
		r, err := c.readDisk(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			c.Log.Error("a disk's record cannot be read", "disk", e.Name(), "err", err)
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

// CreateDisk makes a sparse file. Its token is forgotten with the disk.
func (c *Cloud) CreateDisk(ctx context.Context, r cloud.DiskRequest) (cloud.Disk, error) {
	switch {
	case r.Token == "":
		return cloud.Disk{}, fmt.Errorf("create a disk: %w: token is empty: want one that is the same in every attempt", cloud.ErrRefused)
	case r.SizeBytes <= 0:
		return cloud.Disk{}, fmt.Errorf("create a disk: %w: size is %d bytes: want more than 0", cloud.ErrRefused, r.SizeBytes)
	case r.Tags[cloud.TagOwner] == "":
		return cloud.Disk{}, fmt.Errorf("create a disk: %w: tag %s is missing: without it ListDisks never shows the disk", cloud.ErrRefused, cloud.TagOwner)
	case !c.hasZone(r.Zone):
		return cloud.Disk{}, fmt.Errorf("create a disk: %w: zone %q has no instance types here", cloud.ErrRefused, r.Zone)
	}
	c.cfg.disks.Lock()
	defer c.cfg.disks.Unlock()
	if err := ctx.Err(); err != nil {
		return cloud.Disk{}, err
	}
	all, err := c.cfg.readDisks()
	if err != nil {
		return cloud.Disk{}, err
	}
	for _, d := range all {
		if d.Token != r.Token {
			continue
		}
		if d.Disk.SizeBytes < r.SizeBytes || d.Disk.Zone != r.Zone {
			return cloud.Disk{}, fmt.Errorf("create a disk: %w: token %q has made %s of %d bytes in zone %q and cannot make one of %d in %q",
				cloud.ErrRefused, r.Token, d.Disk.ID, d.Disk.SizeBytes, d.Disk.Zone, r.SizeBytes, r.Zone)
		}
		return d.Disk, nil
	}
	var random [8]byte
	rand.Read(random[:])
	rec := diskRecord{Token: r.Token, Disk: cloud.Disk{
		ID: "disk-" + hex.EncodeToString(random[:]), SizeBytes: (r.SizeBytes + 511) / 512 * 512, Zone: r.Zone, Tags: maps.Clone(r.Tags),
	}}
	// The file first: a disk is there when its record is.
	if err := os.MkdirAll(c.cfg.diskDir(rec.Disk.ID), 0o700); err != nil {
		return cloud.Disk{}, fmt.Errorf("create a disk: %w", err)
	}
	f, err := os.OpenFile(c.cfg.diskFile(rec.Disk.ID), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(rec.Disk.SizeBytes), f.Sync(), f.Close())
	}
	c.cfg.reached("disk file")
	if err == nil {
		err = rec.write(c.cfg)
	}
	if err != nil {
		return cloud.Disk{}, errors.Join(fmt.Errorf("create a disk of %d bytes: %w", rec.Disk.SizeBytes, err), os.RemoveAll(c.cfg.diskDir(rec.Disk.ID)))
	}
	c.cfg.reached("disk recorded")
	return rec.Disk, nil
}

func (c *Cloud) hasZone(zone string) bool {
	for _, t := range c.cfg.Catalogue {
		for _, o := range t.Offerings {
			if o.Zone == zone {
				return true
			}
		}
	}
	return false
}

// DeleteDisk removes the record, then the file.
func (c *Cloud) DeleteDisk(ctx context.Context, id string) error {
	c.cfg.disks.Lock()
	defer c.cfg.disks.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if !diskID.MatchString(id) {
		return nil
	}
	rec, err := c.cfg.readDisk(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("delete disk %s: %w", id, err)
	case rec.Disk.Instance != "":
		return fmt.Errorf("delete disk: %w", &cloud.InUseError{Disk: id, Instance: rec.Disk.Instance})
	}
	if err := os.Remove(filepath.Join(c.cfg.diskDir(id), diskRecordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete disk %s: %w", id, err)
	}
	c.cfg.reached("disk record removed")
	if err := os.RemoveAll(c.cfg.diskDir(id)); err != nil {
		return fmt.Errorf("delete disk %s: %w", id, err)
	}
	return nil
}

// ListDisks reads the records.
func (c *Cloud) ListDisks(ctx context.Context, owner string) ([]cloud.Disk, error) {
	c.cfg.disks.Lock()
	defer c.cfg.disks.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all, err := c.cfg.readDisks()
	if err != nil {
		return nil, err
	}
	var list []cloud.Disk
	for _, r := range all {
		if r.Disk.Tags[cloud.TagOwner] == owner {
			list = append(list, r.Disk)
		}
	}
	return list, nil
}

// AttachDisk makes a loop device of the disk and a node of it in the machine.
func (c *Cloud) AttachDisk(ctx context.Context, id, instance string) error {
	c.cfg.disks.Lock()
	defer c.cfg.disks.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	rec, err := c.cfg.readDisk(id)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("attach disk %s: %w: there is no such disk", id, cloud.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("attach disk %s: %w", id, err)
	}
	if has := rec.Disk.Instance; has != "" && has != instance {
		return fmt.Errorf("attach to %s: %w", instance, &cloud.InUseError{Disk: id, Instance: has})
	}
	// Read with the disks' lock held: a machine that ends after this frees its
	// disks when it has the lock.
	c.mu.Lock()
	m := c.machines[instance]
	running := m != nil && m.process != nil && m.rec.Instance.State == cloud.Running
	var init process
	zone := ""
	if running {
		init, zone = m.rec.Process, m.rec.Instance.Zone
	}
	c.mu.Unlock()
	switch {
	case !running:
		return fmt.Errorf("attach disk %s to %s: %w: no such machine runs", id, instance, cloud.ErrNotFound)
	case zone != rec.Disk.Zone:
		return fmt.Errorf("attach disk %s to %s: %w: the disk is in zone %q, the machine in %q", id, instance, cloud.ErrRefused, rec.Disk.Zone, zone)
	}
	if rec.Disk.Instance == "" {
		rec.Disk.Instance = instance
		if err := rec.write(c.cfg); err != nil {
			return fmt.Errorf("attach disk %s to %s: %w", id, instance, err)
		}
		c.cfg.reached("disk attaching")
	}
	n, err := c.cfg.loop(id)
	if err != nil {
		return fmt.Errorf("attach disk %s to %s: %w", id, instance, err)
	}
	c.cfg.reached("disk looped")
	if err := showDevice(init, id, n); err != nil {
		return fmt.Errorf("attach disk %s to %s: show its device: %w", id, instance, err)
	}
	c.cfg.reached("disk attached")
	return nil
}

// DetachDisk takes the node away and frees the loop device.
func (c *Cloud) DetachDisk(ctx context.Context, id, instance string) error {
	c.cfg.disks.Lock()
	defer c.cfg.disks.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	rec, err := c.cfg.readDisk(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && rec.Disk.Instance != instance {
		return nil
	}
	if err != nil {
		return fmt.Errorf("detach disk %s: %w", id, err)
	}
	c.mu.Lock()
	var init process
	if m := c.machines[instance]; m != nil {
		init = m.rec.Process
	}
	c.mu.Unlock()
	if err := c.cfg.unloop(ctx, id); err != nil {
		return fmt.Errorf("detach disk %s from %s: %w", id, instance, err)
	}
	c.cfg.reached("disk unlooped")
	if err := hideDevice(init, id); err != nil {
		return fmt.Errorf("detach disk %s from %s: remove its device: %w", id, instance, err)
	}
	rec.Disk.Instance = ""
	if err := rec.write(c.cfg); err != nil {
		return fmt.Errorf("detach disk %s from %s: %w", id, instance, err)
	}
	c.cfg.reached("disk detached")
	return nil
}

// freeDisks takes its disks from a machine of which nothing runs any more.
func freeDisks(ctx context.Context, cfg Config, instance string) error {
	cfg.disks.Lock()
	defer cfg.disks.Unlock()
	all, err := cfg.readDisks()
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range all {
		if rec.Disk.Instance != instance {
			continue
		}
		if err := cfg.unloop(ctx, rec.Disk.ID); err != nil {
			errs = append(errs, fmt.Errorf("free disk %s of %s: %w", rec.Disk.ID, instance, err))
			continue
		}
		rec.Disk.Instance = ""
		errs = append(errs, rec.write(cfg))
	}
	return errors.Join(errs...)
}

// recoverDisks frees the disks of machines that are not there at all, which have
// nobody else to do it, and removes disks that were never whole.
func recoverDisks(ctx context.Context, cfg Config, known func(instance string) bool) error {
	entries, err := os.ReadDir(cfg.disksDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list disks: %w", err)
	}
	for _, e := range entries {
		if !diskID.MatchString(e.Name()) {
			continue
		}
		rec, err := cfg.readDisk(e.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = os.RemoveAll(cfg.diskDir(e.Name()))
		case err != nil:
			err = nil // readDisks says so
		case rec.Disk.Instance != "" && !known(rec.Disk.Instance):
			err = freeDisks(ctx, cfg, rec.Disk.Instance)
		}
		if err != nil {
			return fmt.Errorf("recover disk %s: %w", e.Name(), err)
		}
	}
	return nil
}

// loop returns the number of the disk's loop device, which it makes if there is
// none.
func (c Config) loop(id string) (int, error) {
	loops, err := c.loopsOfDisk(id)
	if err != nil {
		return 0, err
	}
	for _, l := range loops {
		if !l.nested {
			return l.n, nil
		}
	}
	f, err := os.OpenFile(c.diskFile(id), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("the kernel has no loop devices (modprobe loop): %w", err)
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return 0, fmt.Errorf("find a free loop device: %w", err)
		}
		_, loop, err := openLoop(n, c.diskDir(id), os.O_RDWR)
		if err != nil {
			return 0, fmt.Errorf("open loop device %d: %w", n, err)
		}
		config := unix.LoopConfig{Fd: uint32(f.Fd())}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], c.diskFile(id))
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		loop.Close()
		if errors.Is(err, unix.EBUSY) {
			continue // somebody else took it meanwhile
		}
		return n, err
	}
}

// diskLoop is a loop device of a disk. A nested one has the disk's device for its
// file: a kubelet holds block volumes open that way.
type diskLoop struct {
	n      int
	nested bool
}

// loopsOfDisk returns the loop devices that have the disk, nested ones first.
func (c Config) loopsOfDisk(id string) ([]diskLoop, error) {
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var own []diskLoop
	holds := map[uint64][]int{} // loop devices by the device that is their file
	for _, path := range backing {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // freed meanwhile
		}
		n, err := strconv.Atoi(strings.TrimPrefix(strings.Split(path, "/")[3], "loop"))
		if err != nil {
			return nil, fmt.Errorf("read the number of %s: %w", path, err)
		}
		if strings.TrimSpace(string(text)) == c.diskFile(id) {
			own = append(own, diskLoop{n: n})
			continue
		}
		// Its path is one in the machine: it does not say which device it is.
		_, loop, err := openLoop(n, c.diskDir(id), os.O_RDONLY)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
		if closed := loop.Close(); err == nil && closed == nil && info.Rdevice != 0 {
			holds[info.Rdevice] = append(holds[info.Rdevice], n)
		}
	}
	var nested []diskLoop
	for _, l := range own {
		for _, n := range holds[unix.Mkdev(loopMajor, uint32(l.n))] {
			nested = append(nested, diskLoop{n: n, nested: true})
		}
	}
	return append(nested, own...), nil
}

// unloop frees the loop devices of a disk when nobody uses them, and waits a
// little for that. ErrInUse when somebody goes on.
func (c Config) unloop(ctx context.Context, id string) error {
	deadline := c.Clock.Now().Add(freeTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		loops, err := c.loopsOfDisk(id)
		if err != nil || len(loops) == 0 {
			return err
		}
		var busy error
		for _, l := range loops {
			if busy = c.freeLoop(id, l.n); busy != nil {
				break
			}
		}
		if busy == nil {
			continue // look whether they are gone
		}
		if !errors.Is(busy, unix.EBUSY) {
			return busy
		}
		if c.Clock.Now().After(deadline) {
			return fmt.Errorf("%w: loop devices %v: %w", cloud.ErrInUse, loops, busy)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: loop devices %v are in use", ctx.Err(), loops)
		case <-c.Clock.After(pause):
		}
	}
}

// freeLoop takes the file from one loop device, once all is written to it.
func (c Config) freeLoop(id string, n int) error {
	// Exclusive: it is refused while a file system of the device is mounted.
	_, loop, err := openLoop(n, c.diskDir(id), os.O_RDWR|unix.O_EXCL)
	if err != nil {
		return err
	}
	err = errors.Join(loop.Sync(), unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0))
	// The kernel lets go when the last who has it open does; until then it
	// answers like a device that is in use.
	if closed := loop.Close(); err == nil {
		err = closed
	}
	if errors.Is(err, unix.ENXIO) {
		return nil // it had been freed already
	}
	if err == nil {
		if text, readErr := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", n)); readErr == nil && strings.Contains(string(text), id) {
			return fmt.Errorf("loop%d is open: %w", n, unix.EBUSY)
		}
	}
	return err
}

// openMachine opens a folder in a machine as the machine sees it. Links in it
// lead nowhere outside of it, whatever the machine has made of them.
func openMachine(init process, dir string, how *unix.OpenHow) (fd int, err error) {
	h, err := init.open()
	if err != nil {
		return -1, err
	}
	defer h.close()
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", init.PID), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	// Only now: the process has been itself until after its root was opened.
	if live, err := init.open(); err != nil {
		return -1, err
	} else {
		live.close()
	}
	how.Resolve |= unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	return unix.Openat2(root, dir, how)
}

// showDevice makes the node of a loop device in the machine.
func showDevice(init process, id string, n int) error {
	dir := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC}
	fd, err := openMachine(init, deviceDir, &dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	want := unix.Mkdev(loopMajor, uint32(n))
	err = unix.Mknodat(fd, deviceName(id), unix.S_IFBLK|0o600, int(want))
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	var have unix.Stat_t
	if err := unix.Fstatat(fd, deviceName(id), &have, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if have.Mode&unix.S_IFMT == unix.S_IFBLK && have.Rdev == want {
		return nil
	}
	if err := unix.Unlinkat(fd, deviceName(id), 0); err != nil {
		return err
	}
	return unix.Mknodat(fd, deviceName(id), unix.S_IFBLK|0o600, int(want))
}

// hideDevice removes the node. A machine that is gone has none.
func hideDevice(init process, id string) error {
	dir := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC}
	fd, err := openMachine(init, deviceDir, &dir)
	if errors.Is(err, errGone) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Unlinkat(fd, deviceName(id), 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
