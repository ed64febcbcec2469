package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// requestTimeout bounds one request to etcd: far above what a healthy disk
// needs, below what anybody would wait for.
const requestTimeout = 10 * time.Second

// pageSize is how many records one request reads: a thousand cells are a few
// megabytes, and a request of etcd's holds its whole answer in memory.
const pageSize = 1000

// etcd is the backend of a real store.
type etcd struct {
	client  *clientv3.Client
	timeout time.Duration
	// of an embedded etcd; nil for another
	death *death
	room  func() error
}

var _ backend = etcd{}

func (e etcd) read(ctx context.Context, key, end string, at int64) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	options := []clientv3.OpOption{clientv3.WithRev(at), clientv3.WithLimit(pageSize)}
	if end != "" {
		options = append(options, clientv3.WithRange(end))
	}
	r, err := ask(ctx, e, func(ctx context.Context) (*clientv3.GetResponse, error) { return e.client.Get(ctx, key, options...) })
	if err != nil {
		return page{}, err
	}
	if at == 0 {
		at = r.Header.Revision
	}
	p := page{records: make([]record, len(r.Kvs)), at: at, more: r.More}
	for i, kv := range r.Kvs {
		p.records[i] = record{key: string(kv.Key), value: kv.Value, revision: kv.ModRevision}
	}
	return p, nil
}

func (e etcd) write(ctx context.Context, _ string, writes []write, f *fence) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	var ifs []clientv3.Cmp
	var then, otherwise []clientv3.Op
	for _, w := range writes {
		ifs = append(ifs, clientv3.Compare(clientv3.ModRevision(w.key), "=", w.revision))
		if w.value == nil {
			then = append(then, clientv3.OpDelete(w.key))
		} else {
			then = append(then, clientv3.OpPut(w.key, string(w.value)))
		}
		otherwise = append(otherwise, clientv3.OpGet(w.key, clientv3.WithKeysOnly()))
	}
	if f != nil {
		ifs = append(ifs, clientv3.Compare(clientv3.CreateRevision(f.key), "=", f.created))
		otherwise = append(otherwise, clientv3.OpGet(f.key, clientv3.WithKeysOnly()))
	}
	if e.room != nil {
		if err := e.room(); err != nil {
			return outcome{}, err
		}
	}
	r, err := ask(ctx, e, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return e.client.Txn(ctx).If(ifs...).Then(then...).Else(otherwise...).Commit()
	})
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return outcome{},
			fmt.Errorf("%w: etcd's database has reached its quota; Kip clears old revisions from an embedded etcd by itself, so if this lasts, raise quota-backend-bytes in etcd.internal.configFile; an external etcd is for its operator to compact, defragment and disarm: %w", ErrNoSpace, err)
	}
	if err != nil {
		return outcome{}, err
	}
	o := outcome{done: r.Succeeded, revision: r.Header.Revision}
	if o.done {
		return o, nil
	}
	o.found = make([]int64, len(writes))
	for i := range writes {
		if kvs := r.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			o.found[i] = kvs[0].ModRevision
		}
	}
	if f != nil {
		kvs := r.Responses[len(writes)].GetResponseRange().Kvs
		o.fenced = len(kvs) == 0 || kvs[0].CreateRevision != f.created
	}
	return o, nil
}

// ask makes one request. In an embedded etcd, where a request is a call of a
// function, that function may wait for a lock whose holder waits for a disk, or
// has died with it, and so heeds no context.
func ask[T any](ctx context.Context, e etcd, request func(context.Context) (*T, error)) (*T, error) {
	if e.death == nil {
		last := new(lastError)
		value, err := request(context.WithValue(ctx, lastErrorKey{}, last))
		if err != nil && ctx.Err() != nil {
			if err = fmt.Errorf("etcd does not answer: %w", err); last.get() != nil {
				err = fmt.Errorf("%w: %w", err, last.get())
			}
		}
		return value, err
	}
	type answer struct {
		value *T
		err   error
	}
	answers := make(chan answer, 1)
	select {
	case <-e.death.dead:
		return nil, e.death.err
	default:
	}
	go func() {
		value, err := request(ctx)
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-e.death.dead:
		return nil, e.death.err
	case <-ctx.Done():
		return nil, fmt.Errorf("etcd does not answer: %w", ctx.Err())
	}
}

// lastError is what gRPC said of the last attempt of a request: why it has no
// connection. The client says only that the time is up.
type lastError struct {
	mu  sync.Mutex
	err error
}

type lastErrorKey struct{}

func (l *lastError) get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// keepLastError is called for each attempt.
func keepLastError(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	o ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, o...)
	if l, ok := ctx.Value(lastErrorKey{}).(*lastError); ok && err != nil {
		l.mu.Lock()
		l.err = err
		l.mu.Unlock()
	}
	return err
}
