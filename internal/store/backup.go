package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// backupFormat is the version of the file: a header, a line for each record in
// order of key, and a trailer, all JSON.
const backupFormat = 1

type header struct {
	Format   int       `json:"kipBackup"`
	Schema   int       `json:"schema"`
	Time     time.Time `json:"time"`
	Revision int64     `json:"revision"` // of etcd, that all records were read at
}

type line struct {
	Key  string `json:"key"`
	Data []byte `json:"data"`
}

type trailer struct {
	Records int    `json:"records"`
	SHA256  string `json:"sha256"` // of all bytes of the file before this line
}

// Backup writes all records of this view as they were at one revision, with a
// checksum at the end, in a format of its own that Restore writes to any kind
// of etcd. It needs no pause of anything. now is the time to put in its header.
//
// The file holds secrets, the key of Kip's CA among them: the caller makes it
// with mode 0600, and keeps it like a private key. A file is only whole if
// Backup returned no error. Records without a schema record are backed up as they
// are, for a look at them: Migrate refuses them, also once they are restored.
func (s *Store) Backup(ctx context.Context, w io.Writer, now time.Time) error {
	if err := s.backup(ctx, w, now); err != nil {
		return fmt.Errorf("back up the store: %w", err)
	}
	return nil
}

func (s *Store) backup(ctx context.Context, w io.Writer, now time.Time) error {
	if err := s.whole(ctx); err != nil {
		return err
	}
	// The schema decides how to read the rest, so it is read first; the records
	// are read at the same revision.
	is := schema{Version: 1}
	p, err := s.backend.read(ctx, s.prefix+schemaKey, "", 0)
	if err != nil {
		return err
	}
	if len(p.records) > 0 {
		if err := json.Unmarshal(p.records[0].value, &is); err != nil {
			return fmt.Errorf("read %s: %w", schemaKey, err)
		}
	}
	sum := sha256.New()
	buffered := bufio.NewWriter(w)
	out := json.NewEncoder(io.MultiWriter(buffered, sum))
	if err := out.Encode(header{backupFormat, max(is.Version, is.To), now.UTC(), p.at}); err != nil {
		return err
	}
	n := 0
	err = s.scan(ctx, s.prefix, p.at, func(r record) error {
		n++
		return out.Encode(line{strings.TrimPrefix(r.key, s.prefix), r.value})
	})
	if err != nil {
		return err
	}
	if err := out.Encode(trailer{n, hex.EncodeToString(sum.Sum(nil))}); err != nil {
		return err
	}
	return buffered.Flush()
}

// readBackup checks the whole of a backup.
func readBackup(r io.Reader) (h header, lines []line, err error) {
	in := bufio.NewReader(r)
	sum := sha256.New()
	next := func() ([]byte, error) {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is cut short: there is no trailer")
		}
		return text, err
	}
	strict := func(text []byte, v any) error {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		return d.Decode(v)
	}
	text, err := next()
	if err != nil {
		return h, nil, err
	}
	// Not strict: a later format may have more, and is to be told from garbage.
	if err := json.Unmarshal(text, &h); err != nil || h.Format == 0 {
		return h, nil, errors.New("it is no backup of Kip's store: its first line is no header")
	}
	if h.Format != backupFormat {
		return h, nil, fmt.Errorf("it has format %d, and this Kip reads format %d: use the Kip that wrote it", h.Format, backupFormat)
	}
	for {
		sum.Write(text)
		if text, err = next(); err != nil {
			return h, nil, err
		}
		var l line
		if err := strict(text, &l); err == nil {
			if l.Data == nil || len(lines) > 0 && l.Key <= lines[len(lines)-1].Key {
				return h, nil, fmt.Errorf("record %d (%q) has no data or is out of order", len(lines)+1, l.Key)
			}
			lines = append(lines, l)
			continue
		}
		var end trailer
		if err := strict(text, &end); err != nil {
			return h, nil, fmt.Errorf("line %d is neither a record nor the trailer: %w", len(lines)+2, err)
		}
		if got := hex.EncodeToString(sum.Sum(nil)); got != end.SHA256 || end.Records != len(lines) {
			return h, nil, fmt.Errorf("it is damaged: it has %d records and SHA-256 %s, its trailer says %d and %s", len(lines), got, end.Records,
				end.SHA256)
		}
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
			return h, nil, errors.New("it goes on after its trailer")
		}
		return h, lines, nil
	}
}

// Restore makes the records of this view those of a backup. It reads and checks
// the whole file, which it holds in memory, before it writes anything, and
// refuses a view that has records unless overwrite is set; then those that are
// not in the file are deleted. No other Kip may use the view meanwhile: a write
// of another ends Restore with ErrConflict.
//
// What fits into one transaction of etcd (100 records that differ, 1 MiB) is
// restored in one. Else a record is kept from the first transaction to the last
// that makes Migrate and Backup refuse the view; if Restore fails or dies
// between, Restore again, of any backup and with or without
// overwrite, and it writes only what is missing.
func (s *Store) Restore(ctx context.Context, r io.Reader, overwrite bool) error {
	h, lines, err := readBackup(r)
	if err != nil {
		return fmt.Errorf("read the backup: %w", err)
	}
	if h.Schema > schemaVersion {
		return fmt.Errorf("restore the store: the backup has schema %d, and this Kip knows schemas up to %d: use the Kip that wrote it, or a newer one", h.Schema, schemaVersion)
	}
	if err := s.restore(ctx, lines, overwrite); err != nil {
		return fmt.Errorf("restore the store: %w", err)
	}
	return nil
}

func (s *Store) restore(ctx context.Context, lines []line, overwrite bool) error {
	var marker int64
	stored := map[string]record{}
	if err := s.List(ctx, "", func(key string, data []byte, revision int64) error {
		if key == restoreKey {
			marker = revision
		} else {
			stored[key] = record{key, data, revision}
		}
		return nil
	}); err != nil {
		return err
	}
	if marker == 0 && len(stored) > 0 && !overwrite {
		return fmt.Errorf("it has %d records, which are replaced only with --overwrite", len(stored))
	}

	// Batches of changes, each with room for the marker.
	var batches [][]Change
	size := 0
	add := func(c Change, n int) {
		last := len(batches) - 1
		if last < 0 || len(batches[last]) == MaxChanges-1 || size+n > batchBytes {
			batches, last, size = append(batches, nil), last+1, 0
		}
		batches[last] = append(batches[last], c)
		size += n
	}
	for _, l := range lines {
		now := stored[l.Key]
		delete(stored, l.Key)
		if now.revision == 0 || !bytes.Equal(now.value, l.Data) {
			add(Change{l.Key, raw(l.Data), now.revision}, len(l.Data))
		}
	}
	extra := make([]Change, 0, len(stored))
	for key, r := range stored {
		extra = append(extra, Change{key, nil, r.revision})
	}
	slices.SortFunc(extra, func(a, b Change) int { return strings.Compare(a.Key, b.Key) })
	for _, c := range extra {
		add(c, 0)
	}
	if len(batches) == 0 && marker != 0 {
		batches = [][]Change{nil}
	}
	for i, b := range batches {
		if marker != 0 || len(batches) > 1 {
			mark := Change{Key: restoreKey, Revision: marker}
			if i < len(batches)-1 {
				mark.Value = struct{}{}
			}
			b = append(b, mark)
		}
		var err error
		if marker, err = s.Apply(ctx, b...); err != nil {
			return err
		}
	}
	return nil
}

// whole returns an error if a restore of this view was begun and not finished.
func (s *Store) whole(ctx context.Context) error {
	marker, err := s.Get(ctx, restoreKey, new(json.RawMessage))
	if err != nil {
		return err
	}
	if marker != 0 {
		return errors.New("the store holds a part of a backup: its restore was cut off; restore it again")
	}
	return nil
}
