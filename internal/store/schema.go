package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/elotl/kip/internal/version"
)

// schemaVersion is that of the records that this build reads and writes: 1, and
// one more for each migration.
var schemaVersion = 1 + len(migrations)

// migrations lead from schema 1 to this build's, in order: the first to 2. Each
// is given every record of the view and returns what to put in its place: the
// same data to leave it, nil to delete it. It must not depend on other records:
// after a crash, the rest is done by another process.
//
// A Kip that does not know a field drops it from the records that it writes. So a new field whose loss does harm comes with a
// migration too, one that leaves all records as they are: a Kip of the release before then refuses the store.
var migrations []migration

type migration func(key string, data []byte) ([]byte, error)

// The records that the store keeps for itself in each view.
const (
	schemaKey  = "schema"
	restoreKey = "restoring"
)

// schema is the record at schemaKey. While a migration is on its way, To is the
// version that it leads to, and After the last key that it has dealt with.
type schema struct {
	Version int    `json:"version"`
	To      int    `json:"to,omitempty"`
	After   string `json:"after,omitempty"`
	// Kip is the build that wrote it: for the message to a build that is too old.
	Kip string `json:"kip"`
}

// Migrate brings the records of this view to the schema of this build, or
// refuses them, also if they do not say of which schema they are. Call it once the process leads, before anything reads: on the
// view of one Kip, since others that share the etcd may be of another version.
//
// Each migration goes through the records in order of key, in transactions of
// many records that also note how far it is: after a crash at any point, and by
// any process, the next Migrate goes on where it ended, and no record is
// migrated twice.
func (s *Store) Migrate(ctx context.Context) error {
	return s.migrate(ctx, migrations, version.String())
}

func (s *Store) migrate(ctx context.Context, migrations []migration, kip string) error {
	current := 1 + len(migrations)
	if err := s.whole(ctx); err != nil {
		return err
	}
	var is schema
	revision, err := s.Get(ctx, schemaKey, &is)
	if err != nil {
		return err
	}
	if revision == 0 {
		if err := s.isNew(ctx); err != nil {
			return err
		}
		is = schema{Version: current, Kip: kip}
		if revision, err = s.Put(ctx, schemaKey, is, 0); err != nil {
			return err
		}
	}
	if newest := max(is.Version, is.To); newest > current {
		return fmt.Errorf("the store has schema %d, written by Kip %s, and this Kip (%s) knows schemas up to %d: run Kip %s or newer, or restore a backup from before the upgrade", newest, is.Kip, kip, current, is.Kip)
	}
	for is.Version < current {
		is.To, is.Kip = is.Version+1, kip
		if revision, err = s.step(ctx, migrations[is.Version-1], &is, revision); err != nil {
			return fmt.Errorf("migrate the store from schema %d to %d: %w", is.Version, is.To, err)
		}
	}
	return nil
}

// errNoSchema says that nobody can tell how to read the records of a store.
var errNoSchema = errors.New("the store has records and does not say of which schema: its record " + schemaKey +
	" is lost, or they are not Kip's; " +
	"restore a backup with kipctl restore --overwrite")

// isNew returns an error if a view without a schema record has others.
func (s *Store) isNew(ctx context.Context) error {
	p, err := s.backend.read(ctx, s.prefix, prefixEnd(s.prefix), 0)
	if err != nil {
		return fmt.Errorf("see whether the store is new: %w", err)
	}
	if len(p.records) > 0 {
		return errNoSchema
	}
	return nil
}

// step finishes one migration and returns the revision of the schema record.
func (s *Store) step(ctx context.Context, m migration, is *schema, revision int64) (int64, error) {
	var changes []Change
	size := 0
	flush := func() error {
		var err error
		revision, err = s.Apply(ctx, append(changes, Change{schemaKey, *is, revision})...)
		changes, size = nil, 0
		return err
	}
	err := s.List(ctx, "", func(key string, data []byte, at int64) error {
		if key <= is.After || key == schemaKey {
			return nil
		}
		now, err := m(key, data)
		if err != nil {
			return fmt.Errorf("record %s: %w", key, err)
		}
		if len(changes) > 0 && (len(changes) == MaxChanges-1 || size+len(now) > batchBytes) {
			if err := flush(); err != nil {
				return err
			}
		}
		is.After = key
		if now == nil {
			changes = append(changes, Change{key, nil, at})
		} else if !bytes.Equal(now, data) {
			changes = append(changes, Change{key, raw(now), at})
			size += len(now)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	is.Version, is.To, is.After = is.To, 0, ""
	if err := flush(); err != nil {
		return 0, err
	}
	return revision, nil
}

// batchBytes, of values, is what one of many transactions carries: etcd takes
// requests of 1.5 MiB.
const batchBytes = 1 << 20

// raw is the value of a Change that is written as it is.
type raw []byte
