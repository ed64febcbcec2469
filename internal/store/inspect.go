package store

import (
	"fmt"
	"io"
	"time"
)

// Summary is what a backup says of itself.
type Summary struct {
	Schema int
	Time   time.Time
	// Revision of etcd that all records were read at.
	Revision int64
	// Keys of the records, in order.
	Keys []string
}

// Inspect reads a backup to its end and checks all that Restore does before it
// writes: that it is whole, undamaged, and of a schema that this Kip knows.
func Inspect(r io.Reader) (Summary, error) {
	h, lines, err := readBackup(r)
	if err != nil {
		return Summary{}, fmt.Errorf("read the backup: %w", err)
	}
	s := Summary{
		Schema:   h.Schema,
		Time:     h.Time,
		Revision: h.Revision,
		Keys:     make([]string, len(lines)),
	}
	for i, l := range lines {
		s.Keys[i] = l.Key
	}
	if h.Schema > schemaVersion {
		return s, fmt.Errorf("the backup has schema %d, and this Kip knows schemas up to %d: use the Kip that wrote it, or a newer one",
			h.Schema, schemaVersion)
	}
	return s, nil
}
