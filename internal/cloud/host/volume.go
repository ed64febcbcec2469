package host

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
	"sync"

	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/cloud"
)

// The disks of PersistentVolumes are sparse files in the state folder, which a Kind
// shows to a machine as a device. A disk's record is written before that and after
// it is undone, so that whoever reads it knows all that may have to be undone.

var _ cloud.Disks = (*Cloud)(nil)

const (
	diskRecordName = "record.json"
	diskFileName   = "disk.img"
)

// diskID is the form of IDs: this cloud's own, and those of a cloud that it stands behind.
var diskID = regexp.MustCompile(`^[a-z]{1,8}-[0-9a-f]{16,17}$`)

func (c Config) disksDir() string         { return filepath.Join(c.StateDir, "disks") }
func (c Config) diskDir(id string) string { return filepath.Join(c.disksDir(), id) }

// Disk is the disk with an ID, which need not be there.
func (c Config) Disk(id string) Disk {
	return Disk{ID: id, File: filepath.Join(c.diskDir(id), diskFileName)}
}

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
	return atomicfile.WriteSynced(filepath.Join(cfg.diskDir(r.Disk.ID), diskRecordName), data, 0o600)
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

// disk is readDisk while no record is changed.
func (c Config) disk(id string) (diskRecord, error) {
	c.disks.Lock()
	defer c.disks.Unlock()
	return c.readDisk(id)
}

// store is write while no record is read.
func (r diskRecord) store(c Config) error {
	c.disks.Lock()
	defer c.disks.Unlock()
	return r.write(c)
}

// disks are those of a StateDir. The lock is held while their records are read or changed, and never
// while a machine is told of one: that may hang, and is its own affair.
type disks struct {
	sync.Mutex
	busy map[string]chan struct{} // those that somebody changes, each until its channel is closed
}

// take waits until nobody else changes a disk, and has it until done.
func (d *disks) take(ctx context.Context, id string) (done func(), err error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d.Lock()
		other := d.busy[id]
		if other == nil {
			mine := make(chan struct{})
			d.busy[id] = mine
			d.Unlock()
			return func() {
				d.Lock()
				defer d.Unlock()
				delete(d.busy, id)
				close(mine)
			}, nil
		}
		d.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
		}
	}
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
	var random [8]byte
	rand.Read(random[:])
	return c.CreateDiskAs(ctx, "disk-"+hex.EncodeToString(random[:]), r)
}

// CreateDiskAs is CreateDisk, with an ID of the caller's choice: for a model of another cloud, which
// has told that ID already.
func (c *Cloud) CreateDiskAs(ctx context.Context, id string, r cloud.DiskRequest) (cloud.Disk, error) {
	switch {
	case !diskID.MatchString(id):
		return cloud.Disk{}, fmt.Errorf("create a disk: %w: its ID is %q: want letters, a dash, and 16 or 17 hexadecimal digits",
			cloud.ErrRefused, id)
	case r.Token == "":
		return cloud.Disk{}, fmt.Errorf("create a disk: %w: token is empty: want one that is the same in every attempt", cloud.ErrRefused)
	case r.SizeBytes <= 0:
		return cloud.Disk{}, fmt.Errorf("create a disk: %w: size is %d bytes: want more than 0", cloud.ErrRefused, r.SizeBytes)
	case r.Tags[cloud.TagOwner] == "":
		return cloud.Disk{}, fmt.Errorf("create a disk: %w: tag %s is missing: without it ListDisks never shows the disk", cloud.ErrRefused,
			cloud.TagOwner)
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
	rec := diskRecord{Token: r.Token, Disk: cloud.Disk{
		ID:        id,
		SizeBytes: sectors(r.SizeBytes),
		Zone:      r.Zone,
		Tags:      maps.Clone(r.Tags),
	}}
	// The file first: a disk is there when its record is.
	if err := os.MkdirAll(c.cfg.diskDir(rec.Disk.ID), 0o700); err != nil {
		return cloud.Disk{}, fmt.Errorf("create a disk: %w", err)
	}
	f, err := os.OpenFile(c.cfg.Disk(rec.Disk.ID).File, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(rec.Disk.SizeBytes), f.Sync(), f.Close())
	}
	c.cfg.Reached("disk file")
	if err == nil {
		err = rec.write(c.cfg)
	}
	if err != nil {
		return cloud.Disk{}, errors.Join(fmt.Errorf("create a disk of %d bytes: %w", rec.Disk.SizeBytes, err),
			os.RemoveAll(c.cfg.diskDir(rec.Disk.ID)))
	}
	c.cfg.Reached("disk recorded")
	return rec.Disk, nil
}

// sectors are bytes rounded up to the least that a device can have, of 512.
func sectors(bytes int64) int64 { return (bytes + 511) / 512 * 512 }

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
	if !diskID.MatchString(id) {
		return ctx.Err()
	}
	done, err := c.cfg.disks.take(ctx, id)
	if err != nil {
		return fmt.Errorf("delete disk %s: %w", id, err)
	}
	defer done()
	c.cfg.disks.Lock()
	defer c.cfg.disks.Unlock()
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
	c.cfg.Reached("disk record removed")
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

// AttachDisk has the machine's kind make a device of the disk in it.
func (c *Cloud) AttachDisk(ctx context.Context, id, instance string) error {
	done, err := c.cfg.disks.take(ctx, id)
	if err != nil {
		return fmt.Errorf("attach disk %s: %w", id, err)
	}
	defer done()
	init, err := c.attaching(id, instance)
	if err != nil {
		return err
	}
	if err := c.kind.AttachDisk(ctx, init, c.cfg.Disk(id)); err != nil {
		return fmt.Errorf("attach disk %s to %s: %w", id, instance, err)
	}
	c.cfg.Reached("disk attached")
	return nil
}

// attaching notes that a disk is a machine's from now on, and returns the machine's process. Who changes
// the disk holds it.
func (c *Cloud) attaching(id, instance string) (init Process, err error) {
	c.cfg.disks.Lock()
	defer c.cfg.disks.Unlock()
	rec, err := c.cfg.readDisk(id)
	if errors.Is(err, fs.ErrNotExist) {
		return init, fmt.Errorf("attach disk %s: %w: there is no such disk", id, cloud.ErrNotFound)
	}
	if err != nil {
		return init, fmt.Errorf("attach disk %s: %w", id, err)
	}
	if has := rec.Disk.Instance; has != "" && has != instance {
		return init, fmt.Errorf("attach to %s: %w", instance, &cloud.InUseError{Disk: id, Instance: has})
	}
	// Read with the disks' lock held: a machine that ends after this frees its
	// disks when it has the lock.
	c.mu.Lock()
	m := c.machines[instance]
	running := m != nil && m.process != nil && m.rec.Instance.State == cloud.Running
	zone := ""
	if running {
		init, zone = m.rec.Process, m.rec.Instance.Zone
	}
	c.mu.Unlock()
	switch {
	case !running:
		return init, fmt.Errorf("attach disk %s to %s: %w: no such machine runs", id, instance, cloud.ErrNotFound)
	case zone != rec.Disk.Zone:
		return init, fmt.Errorf("attach disk %s to %s: %w: the disk is in zone %q, the machine in %q", id, instance, cloud.ErrRefused,
			rec.Disk.Zone, zone)
	}
	if rec.Disk.Instance == "" {
		rec.Disk.Instance = instance
		if err := rec.write(c.cfg); err != nil {
			return init, fmt.Errorf("attach disk %s to %s: %w", id, instance, err)
		}
		c.cfg.Reached("disk attaching")
	}
	return init, nil
}

// DetachDisk has the machine's kind take the device away.
func (c *Cloud) DetachDisk(ctx context.Context, id, instance string) error {
	done, err := c.cfg.disks.take(ctx, id)
	if err != nil {
		return fmt.Errorf("detach disk %s: %w", id, err)
	}
	defer done()
	rec, err := c.cfg.disk(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && rec.Disk.Instance != instance {
		return nil
	}
	if err != nil {
		return fmt.Errorf("detach disk %s: %w", id, err)
	}
	c.mu.Lock()
	var init Process
	if m := c.machines[instance]; m != nil {
		init = m.rec.Process
	}
	c.mu.Unlock()
	if err := c.kind.DetachDisk(ctx, init, c.cfg.Disk(id)); err != nil {
		return fmt.Errorf("detach disk %s from %s: %w", id, instance, err)
	}
	rec.Disk.Instance = ""
	if err := rec.store(c.cfg); err != nil {
		return fmt.Errorf("detach disk %s from %s: %w", id, instance, err)
	}
	c.cfg.Reached("disk detached")
	return nil
}

// mostBytes is the largest file of ext4 with blocks of 4 KiB, 16 TiB (kernel.org, "ext4 Data
// Structures and Algorithms", "Blocks").
const mostBytes = 16 << 40

// GrowDisk makes the file longer, then has the machine see that. The record is last: until then a
// disk is as it was to whoever asks, and is grown again, to no less than its machine may have seen.
func (c *Cloud) GrowDisk(ctx context.Context, id string, bytes int64) (cloud.Disk, error) {
	done, err := c.cfg.disks.take(ctx, id)
	if err != nil {
		return cloud.Disk{}, fmt.Errorf("grow disk %s: %w", id, err)
	}
	defer done()
	rec, err := c.cfg.disk(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cloud.Disk{}, fmt.Errorf("grow disk %s: %w: there is no such disk", id, cloud.ErrNotFound)
	case err != nil:
		return cloud.Disk{}, fmt.Errorf("grow disk %s: %w", id, err)
	case bytes > mostBytes:
		return cloud.Disk{}, fmt.Errorf("grow disk %s: %w: size is %d bytes: want at most %d", id, cloud.ErrRefused, bytes, int64(mostBytes))
	case bytes <= rec.Disk.SizeBytes:
		return rec.Disk, nil
	}
	d := c.cfg.Disk(id)
	size, err := lengthen(d.File, sectors(bytes))
	if err != nil {
		return cloud.Disk{}, fmt.Errorf("grow disk %s to %d bytes: %w", id, bytes, err)
	}
	c.cfg.Reached("disk file grown")
	c.mu.Lock()
	m := c.machines[rec.Disk.Instance]
	var init Process
	if m != nil && m.process != nil {
		init = m.rec.Process
	}
	c.mu.Unlock()
	if init.PID != 0 {
		if err := c.kind.GrowDisk(ctx, init, d, size); err != nil {
			return cloud.Disk{}, fmt.Errorf("grow disk %s of %s to %d bytes: %w", id, rec.Disk.Instance, size, err)
		}
		c.cfg.Reached("disk growth shown")
	}
	rec.Disk.SizeBytes = size
	if err := rec.store(c.cfg); err != nil {
		return cloud.Disk{}, fmt.Errorf("grow disk %s to %d bytes: %w", id, bytes, err)
	}
	c.cfg.Reached("disk grown")
	return rec.Disk, nil
}

// lengthen gives a file at least so many bytes, and returns how many it has then. An interrupted
// try may have given it more, of which somebody knows already.
func lengthen(path string, bytes int64) (int64, error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	has, err := f.Stat()
	switch {
	case err != nil:
	case has.Size() < bytes:
		err = f.Truncate(bytes)
	default:
		bytes = has.Size()
	}
	return bytes, errors.Join(err, f.Sync(), f.Close())
}

// freeDisks takes its disks from a machine of which nothing runs any more.
func freeDisks(ctx context.Context, cfg Config, kind Kind, instance string) error {
	cfg.disks.Lock()
	all, err := cfg.readDisks()
	cfg.disks.Unlock()
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range all {
		if rec.Disk.Instance != instance {
			continue
		}
		if err := detachFrom(ctx, cfg, kind, rec.Disk.ID, instance); err != nil {
			errs = append(errs, fmt.Errorf("free disk %s of %s: %w", rec.Disk.ID, instance, err))
		}
	}
	return errors.Join(errs...)
}

func detachFrom(ctx context.Context, cfg Config, kind Kind, id, instance string) error {
	done, err := cfg.disks.take(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	rec, err := cfg.disk(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && rec.Disk.Instance != instance {
		return nil // it was meanwhile
	}
	if err != nil {
		return err
	}
	if err := kind.DetachDisk(ctx, Process{}, cfg.Disk(id)); err != nil {
		return err
	}
	rec.Disk.Instance = ""
	return rec.store(cfg)
}

// recoverDisks frees the disks of machines that are not there at all, which have
// nobody else to do it, and removes disks that were never whole.
func recoverDisks(ctx context.Context, cfg Config, kind Kind, known func(instance string) bool) error {
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
			err = freeDisks(ctx, cfg, kind, rec.Disk.Instance)
		}
		if err != nil {
			return fmt.Errorf("recover disk %s: %w", e.Name(), err)
		}
	}
	return nil
}
