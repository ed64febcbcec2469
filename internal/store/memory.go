package store

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
)

// Memory returns a store that is a map: the same semantics without etcd, disk,
// goroutines or time, for models, simulations and testing/synctest bubbles. Its
// Done never closes.
//
// hook, if not nil, is called without a lock before each write with "put",
// "delete" or "apply", the method, and the key, keys being joined by commas,
// with the prefixes of Within; if it returns an error, nothing is written.
// After the effect it is called with "applied": an error then is a lost answer,
// the write is done and the writer does not know. Either error is in the chain
// of what the method returns.
func Memory(hook func(op, key string) error) *Store {
	return MemoryWith(hook, func(string) error { return nil })
}

// MemoryWith is Memory with a hook for reads as well: before each it is called,
// without a lock, with the key or the prefix that is read. If it returns an error,
// the read fails with that.
func MemoryWith(hook func(op, key string) error, read func(key string) error) *Store {
	if hook == nil {
		hook = func(string, string) error { return nil }
	}
	// A nil channel: in a bubble, one from outside would keep time from moving.
	return &Store{backend: &memory{
		records:  map[string]record{},
		revision: 1,
		hook:     hook,
		reads:    read,
	}, prefix: root,
		close: func() error { return nil }}
}

type memory struct {
	hook  func(op, key string) error
	reads func(key string) error

	mu       sync.Mutex
	records  map[string]record
	revision int64
}

var _ backend = (*memory)(nil)

// read returns all there is in one page, so nobody asks it for an old revision.
func (m *memory) read(ctx context.Context, key, end string, _ int64) (page, error) {
	if err := ctx.Err(); err != nil {
		return page{}, err
	}
	if err := m.reads(strings.TrimPrefix(key, root)); err != nil {
		return page{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := page{at: m.revision}
	add := func(r record) {
		r.value = bytes.Clone(r.value)
		p.records = append(p.records, r)
	}
	if end == "" {
		if r, ok := m.records[key]; ok {
			add(r)
		}
		return p, nil
	}
	for k, r := range m.records {
		if k >= key && k < end {
			add(r)
		}
	}
	slices.SortFunc(p.records, func(a, b record) int { return strings.Compare(a.key, b.key) })
	return p, nil
}

func (m *memory) write(ctx context.Context, op string, writes []write, f *fence) (outcome, error) {
	if err := ctx.Err(); err != nil {
		return outcome{}, err
	}
	if fenced := m.fenced(f); fenced || len(writes) == 0 {
		return outcome{done: !fenced, fenced: fenced}, nil
	}
	keys := make([]string, len(writes))
	for i, w := range writes {
		keys[i] = strings.TrimPrefix(w.key, root)
	}
	key := strings.Join(keys, ",")
	if err := m.hook(op, key); err != nil {
		return outcome{}, err
	}
	o := m.swap(writes, f)
	if !o.done {
		return o, nil
	}
	return o, m.hook("applied", key)
}

// fenced says that a fence has fallen: the record of its key is another, or there is
// none. Nobody changes such a record.
func (m *memory) fenced(f *fence) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fencedNow(f)
}

// fencedNow is fenced under mu.
func (m *memory) fencedNow(f *fence) bool { return f != nil && m.records[f.key].revision != f.created }

func (m *memory) swap(writes []write, f *fence) outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fencedNow(f) {
		return outcome{fenced: true}
	}
	o := outcome{done: true, found: make([]int64, len(writes))}
	changed := false
	for i, w := range writes {
		o.found[i] = m.records[w.key].revision
		o.done = o.done && o.found[i] == w.revision
		changed = changed || w.value != nil || o.found[i] != 0
	}
	if o.done && changed {
		m.revision++
		for _, w := range writes {
			if w.value == nil {
				delete(m.records, w.key)
			} else {
				m.records[w.key] = record{key: w.key, value: w.value, revision: m.revision}
			}
		}
	}
	o.revision = m.revision
	return o
}
