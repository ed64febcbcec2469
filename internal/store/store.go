package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrConflict: the record is not at the revision that the writer has seen.
var ErrConflict = errors.New("the stored record was changed by another writer")

// requestTimeout bounds one request to etcd: far above what a healthy disk
// needs, below what anybody would wait for.
const requestTimeout = 10 * time.Second

// Store keeps JSON records under keys. Every write is a compare-and-swap on the
// record's revision, and has reached the disk when it returns.
type Store struct {
	client *clientv3.Client
	prefix string
	close  func() error
	done   <-chan struct{}
}

// Get reads the record at key into v and returns its revision; 0 means that
// there is none, and leaves v alone.
func (s *Store) Get(ctx context.Context, key string, v any) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := s.client.Get(ctx, s.prefix+key)
	if err != nil {
		return 0, fmt.Errorf("read %s from the store: %w", key, err)
	}
	if len(r.Kvs) == 0 {
		return 0, nil
	}
	if err := json.Unmarshal(r.Kvs[0].Value, v); err != nil {
		return 0, fmt.Errorf("read %s from the store: %w", key, err)
	}
	return r.Kvs[0].ModRevision, nil
}

// Put writes v at key if the record there has the given revision, 0 for a new
// record, and returns the new revision. ErrConflict if it has another one.
func (s *Store) Put(ctx context.Context, key string, v any, revision int64) (int64, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return 0, fmt.Errorf("write %s to the store: %w", key, err)
	}
	return s.swap(ctx, "write", key, revision, clientv3.OpPut(s.prefix+key, string(data)))
}

// Delete removes the record at key if it has the given revision. ErrConflict if
// it has another one; a record that is not there is no error.
func (s *Store) Delete(ctx context.Context, key string, revision int64) error {
	_, err := s.swap(ctx, "delete", key, revision, clientv3.OpDelete(s.prefix+key))
	if errors.Is(err, ErrConflict) {
		if now, getErr := s.Get(ctx, key, new(json.RawMessage)); getErr == nil && now == 0 {
			return nil
		}
	}
	return err
}

func (s *Store) swap(ctx context.Context, verb, key string, revision int64, op clientv3.Op) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(s.prefix+key), "=", revision)).
		Then(op).
		Commit()
	if err != nil {
		return 0, fmt.Errorf("%s %s in the store: %w", verb, key, err)
	}
	if !r.Succeeded {
		return 0, fmt.Errorf("%s %s in the store at revision %d: %w", verb, key, revision, ErrConflict)
	}
	return r.Header.Revision, nil
}

// List calls each for every record whose key begins with prefix, in order of
// key. The key has no store prefix. An error of each ends the listing.
func (s *Store) List(ctx context.Context, prefix string, each func(key string, data []byte, revision int64) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := s.client.Get(ctx, s.prefix+prefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("list %s in the store: %w", prefix, err)
	}
	for _, kv := range r.Kvs {
		if err := each(strings.TrimPrefix(string(kv.Key), s.prefix), kv.Value, kv.ModRevision); err != nil {
			return err
		}
	}
	return nil
}

// Within returns a view of the store under a further prefix, which ends in "/".
// Closing the view closes nothing.
func (s *Store) Within(prefix string) *Store {
	return &Store{client: s.client, prefix: s.prefix + prefix, close: func() error { return nil }, done: s.done}
}

// Healthy returns an error unless a linearised read works.
func (s *Store) Healthy(ctx context.Context) error {
	_, err := s.Get(ctx, "healthy", new(json.RawMessage))
	return err
}

// Done is closed when an embedded etcd has stopped, for whatever reason.
func (s *Store) Done() <-chan struct{} { return s.done }

// Close releases the client and stops an embedded etcd.
func (s *Store) Close() error { return s.close() }
