package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"

	"github.com/elotl/kip/internal/watchdog"
)

// ErrConflict says that the record is not at the revision that the writer has seen.
var ErrConflict = errors.New("the stored record was changed by another writer")

// ErrNoSpace says that the disk of an embedded etcd is full, or etcd's database has
// reached its quota. Nothing was written, and writes work again by themselves
// once there is room, unless Done is closed: then it was too late to refuse.
var ErrNoSpace = errors.New("no space for the store")

// ErrNotLeader says that the write came through a fenced view whose holder is no longer
// the leader. Nothing was written.
var ErrNotLeader = errors.New("this process no longer leads; another one may write to the store")

// ErrTooBig says that the changes of one transaction are more than MaxBytes together. Nothing
// was written, and the same changes never will be at once.
var ErrTooBig = errors.New("too many bytes for one transaction of the store")

// MaxBytes is the most that the keys and the records of one Apply may have together.
// etcd takes requests of 1.5 MiB (its --max-request-bytes); the rest is for what
// stands around them: each key stands in a request three times.
const MaxBytes = 1280 << 10

// MaxChanges is the most that one Apply takes. etcd takes 128 operations a
// transaction (its --max-txn-ops); the rest is for the fence and to spare.
const MaxChanges = 100

// Store keeps JSON records under keys. Every write is a compare-and-swap on the
// record's revision, and has reached the disk when it returns. After an error
// other than ErrConflict, ErrNotLeader, ErrNoSpace and ErrTooBig it is not known whether
// the write was done: etcd may have done it and the answer was lost.
type Store struct {
	backend backend
	prefix  string
	fence   *fence
	observe func(op string, took time.Duration, err error)
	close   func() error
	done    <-chan struct{}
	// of an embedded etcd
	death    *death
	embedded *etcdserver.EtcdServer
	shared   *clientv3.Client // of an external etcd
}

// backend is what a Store needs of etcd. Its keys are whole keys.
type backend interface {
	// read returns the records from key to before end, or that at key if end is
	// empty, in order of key. It may stop after some; more then says so. at is
	// the revision that was read, 0 asks for the latest.
	read(ctx context.Context, key, end string, at int64) (p page, err error)
	// write does all of the writes or none. It is done if every record is at its
	// revision and the fence, if there is one, stands.
	write(ctx context.Context, op string, writes []write, f *fence) (outcome, error)
}

type page struct {
	records []record
	at      int64
	more    bool
}

type record struct {
	key      string
	value    []byte
	revision int64
}

// write puts value at key, or deletes the record if value is nil.
type write struct {
	key      string
	value    []byte
	revision int64
}

type outcome struct {
	done     bool
	revision int64   // of the store, after the write
	found    []int64 // if not done: the revision of each record, 0 for none
	fenced   bool    // if not done: because the fence has fallen
}

// fence is a key that must have been created at a revision for a write to be
// done.
type fence struct {
	key     string
	created int64
}

// ErrUnreadable says that a record is there, and is not of the form that was asked for.
var ErrUnreadable = errors.New("not of the form that is wanted")

// Get reads the record at key into v and returns its revision; 0 means that
// there is none, and leaves v alone. The revision is also returned with ErrUnreadable.
func (s *Store) Get(ctx context.Context, key string, v any) (revision int64, err error) {
	defer watchdog.Wait(ctx, watchdog.Store)()
	p, err := s.backend.read(ctx, s.prefix+key, "", 0)
	if err != nil {
		return 0, fmt.Errorf("read %s from the store: %w", key, err)
	}
	if len(p.records) == 0 {
		return 0, nil
	}
	if err := json.Unmarshal(p.records[0].value, v); err != nil {
		return p.records[0].revision, fmt.Errorf("read %s from the store: %w: %w", key, ErrUnreadable, err)
	}
	return p.records[0].revision, nil
}

// Change is one write of an Apply.
type Change struct {
	Key      string
	Value    any   // what to write; nil deletes the record
	Revision int64 // that the record must have, 0 for none
}

// Apply does all changes in one transaction, or none of them, and returns the
// revision that the written records then have. ErrConflict, naming the key, if
// a record is not at its revision; but the deletion of a record that is not
// there is no error. A key may be changed once, and there may be MaxChanges, of
// MaxBytes together: else ErrTooBig.
func (s *Store) Apply(ctx context.Context, changes ...Change) (revision int64, err error) {
	return s.apply(ctx, "apply", changes)
}

// Put writes v at key if the record there has the given revision, 0 for a new
// record, and returns the new revision. ErrConflict if it has another one.
func (s *Store) Put(ctx context.Context, key string, v any, revision int64) (int64, error) {
	if v == nil {
		return 0, fmt.Errorf("write %s to the store: the value is nil", key)
	}
	return s.apply(ctx, "put", []Change{{Key: key, Value: v, Revision: revision}})
}

// Delete removes the record at key if it has the given revision. ErrConflict if
// it has another one; a record that is not there is no error.
func (s *Store) Delete(ctx context.Context, key string, revision int64) error {
	_, err := s.apply(ctx, "delete", []Change{{Key: key, Revision: revision}})
	return err
}

// Observed returns a view that tells of each of its writes: which method it was
// (put, delete, apply), how long it took, and how it ended.
func (s *Store) Observed(observe func(op string, took time.Duration, err error)) *Store {
	v := s.Within("")
	v.observe = observe
	return v
}

func (s *Store) apply(ctx context.Context, op string, changes []Change) (int64, error) {
	defer watchdog.Wait(ctx, watchdog.Store)()
	if s.observe == nil || len(changes) == 0 {
		return s.write(ctx, op, changes)
	}
	began := time.Now()
	revision, err := s.write(ctx, op, changes)
	s.observe(op, time.Since(began), err)
	return revision, err
}

func (s *Store) write(ctx context.Context, op string, changes []Change) (int64, error) {
	if len(changes) == 0 {
		return 0, nil
	}
	if len(changes) > MaxChanges {
		return 0, fmt.Errorf("%s %d changes to the store: the most is %d", op, len(changes), MaxChanges)
	}
	writes := make([]write, len(changes))
	seen := make(map[string]bool, len(changes))
	size := 0
	for i, c := range changes {
		if seen[c.Key] {
			return 0, fmt.Errorf("%s %s in the store: it is changed twice in one transaction", op, c.Key)
		}
		seen[c.Key] = true
		writes[i] = write{key: s.prefix + c.Key, revision: c.Revision}
		data, ok := c.Value.(raw)
		if c.Value != nil && !ok {
			var err error
			if data, err = json.Marshal(c.Value); err != nil {
				return 0, fmt.Errorf("%s %s in the store: %w", op, c.Key, err)
			}
		}
		writes[i].value = data
		size += len(writes[i].key) + len(data)
	}
	if size > MaxBytes {
		return 0, fmt.Errorf("%s %s in the store: %d bytes, the most is %d: %w", op, describe(changes), size, MaxBytes, ErrTooBig)
	}
	for {
		o, err := s.backend.write(ctx, op, writes, s.fence)
		if err != nil {
			return 0, fmt.Errorf("%s %s in the store: %w", op, describe(changes), err)
		}
		if o.done {
			return o.revision, nil
		}
		if o.fenced {
			return 0, fmt.Errorf("%s %s in the store: %w", op, describe(changes), ErrNotLeader)
		}
		// Try again without the deletions of what is gone already. This ends: a
		// write is set to revision 0 once.
		again := false
		for i := range writes {
			w := &writes[i]
			if o.found[i] == w.revision {
				continue
			}
			if w.value != nil || o.found[i] != 0 {
				return 0, fmt.Errorf("%s %s in the store at revision %d, it is at %d: %w", op, changes[i].Key, changes[i].Revision, o.found[i],
					ErrConflict)
			}
			w.revision, again = 0, true
		}
		if !again {
			return 0, fmt.Errorf("%s %s in the store: etcd refused it without a reason", op, describe(changes))
		}
	}
}

func describe(changes []Change) string {
	if len(changes) == 1 {
		return changes[0].Key
	}
	return fmt.Sprintf("%s and %d more", changes[0].Key, len(changes)-1)
}

// List calls each for every record whose key begins with prefix, in order of
// key, as they were at one revision. The key has no store prefix. An error of
// each ends the listing.
func (s *Store) List(ctx context.Context, prefix string, each func(key string, data []byte, revision int64) error) error {
	var stopped error
	err := s.scan(ctx, s.prefix+prefix, 0, func(r record) error {
		stopped = each(strings.TrimPrefix(r.key, s.prefix), r.value, r.revision)
		return stopped
	})
	if err != nil && stopped == nil {
		return fmt.Errorf("list %s in the store: %w", prefix, err)
	}
	return stopped
}

// scan calls each for the records under a whole prefix, a page at a time, all
// as of one revision, 0 for the latest.
func (s *Store) scan(ctx context.Context, prefix string, at int64, each func(record) error) error {
	end := prefixEnd(prefix)
	for from := prefix; ; {
		p, err := s.backend.read(ctx, from, end, at)
		if err != nil {
			return err
		}
		at = p.at
		for _, r := range p.records {
			if err := each(r); err != nil {
				return err
			}
		}
		if !p.more {
			return nil
		}
		from = p.records[len(p.records)-1].key + "\x00"
	}
}

// prefixEnd is the first key after all that begin with prefix, which is not
// empty and ends in no 0xff: no UTF-8 text does.
func prefixEnd(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string([]byte{prefix[last] + 1})
}

// Within returns a view of the store under a further prefix, which ends in "/".
// It keeps the fence. Closing the view closes nothing.
func (s *Store) Within(prefix string) *Store {
	v := *s
	v.prefix, v.close = s.prefix+prefix, func() error { return nil }
	return &v
}

// Prefix is what the keys of this view begin with in etcd; it ends in "/".
func (s *Store) Prefix() string { return s.prefix }

// Healthy returns an error unless a linearised read works.
func (s *Store) Healthy(ctx context.Context) error {
	_, err := s.Get(ctx, "healthy", new(json.RawMessage))
	return err
}

// leadsTimeout bounds the question whether this process leads.
const leadsTimeout = 5 * time.Second

// Leads returns an error unless a linearised read shows in time that the fence of this view
// stands: ErrNotLeader where it has fallen. A view without a fence is that of an etcd
// that belongs to this process alone, or of a process that does not lead.
func (s *Store) Leads(ctx context.Context) error {
	if s.fence == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leadsTimeout)
	defer cancel()
	// A transaction without writes is a read to etcd, and compares all the same.
	o, err := s.backend.write(ctx, "lead", nil, s.fence)
	if err == nil && !o.done {
		err = ErrNotLeader
	}
	if err != nil {
		return fmt.Errorf("see whether this process leads: %w", err)
	}
	return nil
}

// Ready returns an error unless a linearised read works and, where etcd is
// embedded, there is room for a write: else ErrNoSpace. It writes nothing.
func (s *Store) Ready(ctx context.Context) error {
	if e, ok := s.backend.(etcd); ok && e.room != nil {
		if err := e.room(); err != nil {
			return err
		}
	}
	if s.embedded != nil {
		for _, a := range s.embedded.Alarms() {
			if a.Alarm == etcdserverpb.AlarmType_NOSPACE {
				return fmt.Errorf("%w: the database of etcd is at its quota: raise quota-backend-bytes in etcd.internal.configFile", ErrNoSpace)
			}
		}
	}
	return s.Healthy(ctx)
}

// Done is closed when an embedded etcd has stopped, for whatever reason, which
// Err tells. A process cannot start it again: it should end, and be restarted.
func (s *Store) Done() <-chan struct{} { return s.done }

// Err is why Done was closed, nil before.
func (s *Store) Err() error {
	select {
	case <-s.done:
		return s.death.err
	default:
		return nil
	}
}

// Shared returns the client of an external etcd and a prefix for keys that
// belong to this view but are none of its records. ok is false if no other
// process can have this store open, as with an embedded etcd.
func (s *Store) Shared() (client *clientv3.Client, prefix string, ok bool) {
	return s.shared, "/kip/leader/" + strings.TrimPrefix(s.prefix, root), s.shared != nil
}

// Fenced returns a view of a Shared store in which every write, in its own
// transaction, requires that the whole key was created at the given revision;
// ErrNotLeader if not.
func (s *Store) Fenced(key string, created int64) *Store {
	v := s.Within("")
	v.fence = &fence{key, created}
	return v
}

// Close releases the client and stops an embedded etcd.
func (s *Store) Close() error { return s.close() }

// NotWritten reports whether the error of a write means that the store has surely not written.
func NotWritten(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, ErrNotLeader) || errors.Is(err, ErrNoSpace) || errors.Is(err, ErrTooBig)
}
